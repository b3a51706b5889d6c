"""Prepare the labelled texts of a recipe for training: a tokeniser, a cache, examples to keep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heed.data import cache
from heed.data.labelled import Labelled, TextReport, choice, label_set
from heed.data.tokenise import Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.running import preparing
from heed.running.events import Note, Progress, Work
from heed.running.preparing import data_root, text_of
from heed.running.stories.story import Start
from heed.storage.run_folder import RunFolder
from heed.tasks.classify import Data, check_names, examples
from heed.tasks.cutting import MOST, Cutting, Gathers, Words, load_cutting

TRAINING = ("data.train.text", "data.train.label")
"""The keys of the columns of the training file."""
NAME = 40  # characters of a column's name, at most


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    words: Words
    train: cache.Corpus
    valid: list[Labelled]


def prepare(
    data: Data,
    folder: RunFolder,
    start: Start | None,
    *,
    gathers: Gathers | None,
    reads: int | None,
) -> Work[Prepared]:
    """Read the texts, train the tokeniser, write the cache; finished steps are not repeated.

    gathers  the place of the symbol that represents the whole text, if there is one
    reads    symbols that the model can read, if there is a limit
    """
    longest = data.longest if reads is None else min(data.longest, reads)
    if not preparing.ready(folder):
        yield from _write(data, folder, start, gathers, longest)
    words = words_of(folder, labels_of(folder), gathers, longest)
    sizes = {"text": words.tokeniser.size, "label": len(words.labels) + 1}
    train = preparing.cached(folder, words.fingerprint, sizes)
    return Prepared(words, train, list(kept(folder, "valid", words.labels)))


def words_of(
    folder: RunFolder,
    labels: Sequence[str],
    gathers: Gathers | None,
    longest: int,
    symbols: int = MOST,
) -> Words:
    """The tokeniser of a run, and the labels that texts may get."""
    tokeniser = load_cutting(folder.plain(folder.tokenizer), symbols)
    return Words(tokeniser, tuple(labels), gathers, longest)


def labels_of(folder: RunFolder) -> list[str]:
    """The labels of the training texts, in their order."""
    path = folder.cache / "labels.json"
    labels = folder.read_json(path)
    texts = isinstance(labels, list) and all(isinstance(each, str) for each in labels)
    if not texts or not 1 < len(set(labels)) == len(labels):
        raise Refused(f"{path} is not a list of labels; start again: --overwrite")
    return list(labels)


def _write(
    data: Data, folder: RunFolder, start: Start | None, gathers: Gathers | None, longest: int
) -> Work[None]:
    root = data_root(data.folder)
    first = TextReport()
    files = data.train.under(root / data.folder)
    texts = examples(data, "train", root, first)
    labels = label_set(texts, lambda: choice(files, TRAINING))
    check_names(data.names, labels)
    if first.alone:
        yield Note(
            f"{data.train}:1: the first line is read as a text with the label '{first.alone}', "
            f"which no other text has; if it is a header, name its columns: {_columns(first)}"
        )
    tokeniser: Cutting
    if start is not None:
        if not isinstance(start.tokeniser, Tokeniser | Vocabulary):
            raise Refused(f"{start.path} has no tokeniser of sentences, which these texts need")
        tokeniser = Cutting(start.tokeniser)
    else:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        again = (row.text for row in examples(data, "train", root, TextReport()))
        tokens = data.tokens
        tokeniser = Cutting(
            Tokeniser.train(tokens.kind, again, tokens.size, tokens.lowercase, least=tokens.least)
        )
    tokeniser.save(folder.tokenizer)
    folder.write_json(folder.cache / "labels.json", list(labels))
    words = words_of(folder, labels, gathers, longest)
    report = TextReport()
    cut = yield from _tokenise(data, words, folder, report)
    yield Note(f"training texts: {report}; {len(labels)} labels{_said(cut, longest)}")
    for part in data.parts():
        counted = TextReport()
        rows = (row._asdict() for row in examples(data, part, root, counted, labels))
        preparing.keep(folder, part, rows, "texts")
        yield Note(f"{part} texts: {counted}")
    folder.write_json(folder.cache / "ready.json", {"texts": report.kept})


def _columns(report: TextReport) -> str:
    """The keys that make names of columns of the first line; a long cell is none, but a text."""
    cells = (report.first, report.alone)
    named = cells if max(map(len, cells)) <= NAME else ("COLUMN", "COLUMN")
    pairs = zip(TRAINING, named, strict=True)
    return " ".join(shlex.quote(f"{key}={name}") for key, name in pairs)


def _said(cut: int, longest: int) -> str:
    return f"; {cut:,} longer than {longest} symbols were cut" if cut else ""


def _tokenise(data: Data, words: Words, folder: RunFolder, report: TextReport) -> Work[int]:
    """Write texts and labels as numbers, labels from 1; returns how many texts were cut."""
    numbers = {label: [c + 1] for c, label in enumerate(words.labels)}
    cut = 0

    def encode(texts: Sequence[str]) -> list[list[int]]:
        nonlocal cut
        whole = words.whole(texts)
        cut += sum(len(ids) > len(words.cut(ids)) for ids in whole)
        return [words.cut(ids) for ids in whole]

    rows = examples(data, "train", data_root(data.folder), report, words.labels)
    for read in cache.encode(
        folder.cache,
        "train",
        ((row.text, row.label) for row in rows),
        {"text": encode, "label": lambda labels: [numbers[label] for label in labels]},
        vocabulary=max(words.tokeniser.size, len(words.labels) + 1),
        fingerprint=words.fingerprint,
        chunk=preparing.CHUNK,
    ):
        yield Progress("tokenising", read)
    return cut


def kept(folder: RunFolder, part: str, labels: Sequence[str]) -> Iterator[Labelled]:
    """The texts of a part, as the run folder keeps them."""

    def parse(found: Any) -> Labelled:
        if found["label"] not in labels:
            raise ValueError
        return Labelled(text_of(found["text"]), found["label"])

    return preparing.kept(folder, part, parse, "texts")
