"""Prepare the documents of a recipe for pre-training: a tokeniser, a cache, kept documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os.path import lexists
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.borrowed import Hiding, Renumbered, load_hiding, symbols_of
from heed.data.cache import Corpus
from heed.data.documents import Documents, Sentence, SentenceReport, encode
from heed.data.masked_words import Symbols, mask_of, with_mask
from heed.data.tokenise import Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.running import preparing
from heed.running.preparing import data_root
from heed.running.stories.story import Start
from heed.storage.run_folder import RunFolder
from heed.tasks.pretrain import Data, Hidden, Ordered, Part, sentences, unigram

COUNTED = 1 << 24  # symbols that are counted at a time
DIGITS = 24  # bytes of a frequency in its file, at most

Document = list[str]
"""A document as its sentences."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    tokeniser: Hiding
    symbols: Symbols
    train: Documents
    valid: list[Document]
    objective: Hidden | Ordered
    longest: int  # symbols of a row


def prepare(
    data: Data,
    objective: Hidden | Ordered,
    folder: RunFolder,
    start: Start | None = None,
    rows: int | None = None,
) -> Work[Prepared]:
    """Read the text, learn the tokens, write the cache; finished steps are not repeated.

    start  its tokeniser is used, since its weights fit no other
    rows   of the model's embedding table, if a recipe sets them
    """
    if not preparing.ready(folder):
        yield from _write(data, folder, start, rows)
    tokeniser = tokeniser_of(folder, rows)
    sizes = {"text": tokeniser.size, "opens": 2}
    train: Corpus = preparing.cached(folder, tokeniser.fingerprint, sizes)
    valid = list(kept(folder, "valid"))
    known = symbols_of(tokeniser)
    return Prepared(tokeniser, known, Documents(train), valid, objective, data.longest)


def tokeniser_of(folder: RunFolder, rows: int | None = None) -> Hiding:
    """The tokeniser of a run; it must have a mask."""
    tokeniser = load_hiding(folder.plain(folder.tokenizer), rows)
    if isinstance(tokeniser, Tokeniser) and mask_of(tokeniser) is None:
        raise Refused(f"{folder.tokenizer} has no mask: it was not made for pre-training")
    return tokeniser


def _write(data: Data, folder: RunFolder, start: Start | None, rows: int | None) -> Work[None]:
    tokeniser: Hiding
    if start is None:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        tokeniser = _learnt(data)
    else:
        tokeniser = _taken(start, rows)
    tokeniser.save(folder.tokenizer)
    tokeniser = tokeniser_of(folder, rows)  # as it is when the run is opened
    report = SentenceReport()
    for read in encode(folder.cache, "train", _part(data, "train", report), tokeniser):
        yield Progress("tokenising", read)
    yield from map(Note, report.told("training text"))
    _count(folder, tokeniser)
    for part in ("valid", "test"):
        if part == "test" and data.test is None:
            continue
        counted = SentenceReport()
        records = ({"sentences": found} for found in gathered(_part(data, part, counted)))
        preparing.keep(folder, part, records, "documents")
        yield from map(Note, counted.told(f"{part} text"))
    folder.write_json(folder.cache / "ready.json", {"sentences": report.kept})


def _count(folder: RunFolder, tokeniser: Hiding) -> None:
    """Keep the frequency of each symbol in the training text, a baseline for any model."""
    stream = Corpus.open(folder.cache, "train", tokeniser.fingerprint).tokens["text"]
    counts = np.zeros(tokeniser.size, np.int64)
    for start in range(0, len(stream), COUNTED):
        counts += np.bincount(stream[start : start + COUNTED], minlength=tokeniser.size)
    folder.write_text(folder.frequencies, json.dumps(counts.tolist()))


def likely(folder: RunFolder, symbols: Symbols) -> NDArray[np.float64] | None:
    """The probability of each symbol by its frequency in the training text; None if it was not
    kept, as in a pretrained folder.    V"""
    if not lexists(folder.frequencies):
        return None
    size = len(symbols.plain)
    counts = folder.read_json(folder.frequencies, limit=DIGITS * size)
    sound = isinstance(counts, list) and len(counts) == size
    if not sound or not all(type(n) is int and 0 <= n < 2**40 for n in counts):
        raise Refused(
            f"{folder.frequencies} is not a list of {size} frequencies; train again: --overwrite"
        )
    return unigram(np.array(counts, np.int64), symbols.plain)


def _part(data: Data, part: Part, report: SentenceReport) -> Iterator[Sentence]:
    return sentences(data, part, data_root(data.folder), report)


def _learnt(data: Data) -> Tokeniser:
    """A tokeniser of the size that is set, the mask included."""
    tokens = data.tokens
    texts = (sentence.text for sentence in _part(data, "train", SentenceReport()))
    return with_mask(Tokeniser.train(tokens.kind, texts, tokens.size - 1, tokens.lowercase))


def _taken(start: Start, rows: int | None) -> Hiding:
    """The tokeniser that the start's weights were trained with."""
    found = start.tokeniser
    if isinstance(found, Vocabulary):
        return Renumbered(found, rows or found.size, str(start.path))
    if not isinstance(found, Tokeniser) or mask_of(found) is None:
        raise Refused(f"{start.path} has no tokeniser with a mask, so it cannot be trained further")
    return found


def gathered(found: Iterable[Sentence]) -> Iterator[Document]:
    """The sentences of each document."""
    document: Document = []
    for sentence in found:
        if sentence.opens and document:
            yield document
            document = []
        document.append(sentence.text)
    if document:
        yield document


def kept(folder: RunFolder, part: str) -> Iterator[Document]:
    """The documents of a part, as the run folder keeps them."""
    return preparing.kept(folder, part, _document, "documents")


def _document(found: Any) -> Document:
    texts = found["sentences"]
    if not isinstance(texts, list) or not texts:
        raise ValueError
    return [preparing.text_of(text) for text in texts]
