"""From a recipe's documents to what pre-training reads: a tokeniser, a cache, what to judge by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from heed.data.cache import Corpus
from heed.data.documents import Documents, Sentence, SentenceReport, encode
from heed.data.masking import Symbols, mask_of, symbols, with_mask
from heed.data.tokenise import Tokeniser
from heed.errors import Refused
from heed.running import preparing
from heed.running.events import Note, Progress, Work
from heed.running.preparing import data_root
from heed.running.stories.story import Start
from heed.tasks.pretrain import Data, Hidden, Ordered, Part, sentences
from heed.training.folder import RunFolder

Document = list[str]
"""A document as its sentences."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    tokeniser: Tokeniser
    symbols: Symbols
    train: Documents
    valid: list[Document]
    objective: Hidden | Ordered
    longest: int  # symbols of a row


def prepare(
    data: Data, objective: Hidden | Ordered, folder: RunFolder, start: Start | None = None
) -> Work[Prepared]:
    """Read the text, learn the tokens, write the cache; what is done already is kept.

    start  a run whose tokeniser to take, since its weights mean nothing with another
    """
    if not preparing.ready(folder):
        yield from _write(data, folder, start)
    tokeniser = tokeniser_of(folder)
    sizes = {"text": tokeniser.size, "opens": 2}
    train: Corpus = preparing.cached(folder, tokeniser.fingerprint, sizes)
    valid = list(kept(folder, "valid"))
    known = symbols(tokeniser)
    return Prepared(tokeniser, known, Documents(train), valid, objective, data.longest)


def tokeniser_of(folder: RunFolder) -> Tokeniser:
    """The tokeniser of a run; it must have a mask."""
    tokeniser = Tokeniser.load(folder.plain(folder.tokenizer))
    if mask_of(tokeniser) is None:
        raise Refused(f"{folder.tokenizer} has no mask: it was not made for pre-training")
    return tokeniser


def _write(data: Data, folder: RunFolder, start: Start | None) -> Work[None]:
    if start is None:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        tokeniser = _learnt(data)
    else:
        tokeniser = _taken(start)
    tokeniser.save(folder.tokenizer)
    report = SentenceReport()
    for read in encode(folder.cache, "train", _part(data, "train", report), tokeniser):
        yield Progress("tokenising", read)
    yield from map(Note, report.told("training text"))
    for part in ("valid", "test"):
        if part == "test" and data.test is None:
            continue
        counted = SentenceReport()
        records = ({"sentences": found} for found in gathered(_part(data, part, counted)))
        preparing.keep(folder, part, records, "documents")
        yield from map(Note, counted.told(f"{part} text"))
    folder.write_json(folder.cache / "ready.json", {"sentences": report.kept})


def _part(data: Data, part: Part, report: SentenceReport) -> Iterator[Sentence]:
    return sentences(data, part, data_root(data.folder), report)


def _learnt(data: Data) -> Tokeniser:
    """A tokeniser of as many symbols as asked for, the mask among them."""
    tokens = data.tokens
    texts = (sentence.text for sentence in _part(data, "train", SentenceReport()))
    return with_mask(Tokeniser.train(tokens.kind, texts, tokens.size - 1, tokens.lowercase))


def _taken(start: Start) -> Tokeniser:
    if not isinstance(start.tokeniser, Tokeniser) or mask_of(start.tokeniser) is None:
        raise Refused(f"{start.path} has no tokeniser with a mask, so it cannot be trained further")
    return start.tokeniser


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
