"""Prepare the text files of a recipe for training: a tokeniser, a cache, validation texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data import cache
from heed.data.verbatim import CHUNK, Verbatim
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.running import preparing
from heed.running.preparing import data_root
from heed.running.stories.story import Start
from heed.storage.run_folder import RunFolder
from heed.tasks.borrowing import Borrowed, Text, load_text, marks_of
from heed.tasks.cutting import MOST
from heed.tasks.language_model import Data, DocumentReport, Piece, texts, vocabulary


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    vocabulary: Text
    train: cache.Corpus
    valid: list[NDArray[np.int64]]  # a document each


def prepare(data: Data, folder: RunFolder, start: Start | None = None) -> Work[Prepared]:
    """Read the text, learn the tokens, write the cache; finished steps are not repeated.

    start  its tokeniser is used, since its weights fit no other
    """
    if not preparing.ready(folder):
        yield from _write(data, folder, start)
    found = vocabulary_of(folder)
    train = preparing.cached(folder, found.fingerprint, {"text": found.size})
    valid = [np.array(ids, np.int64) for ids in found.encode(kept(folder, "valid"))]
    return Prepared(found, train, valid)


def vocabulary_of(folder: RunFolder, symbols: int = MOST) -> Text:
    """The tokeniser of a run."""
    return load_text(folder.plain(folder.tokenizer), symbols)


def _write(data: Data, folder: RunFolder, start: Start | None) -> Work[None]:
    parts = texts(data, data_root(data.folder))
    found: Text
    if start is None:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        found = vocabulary(data.tokens, parts["train"])
    else:
        found = _taken(start)
    found.save(folder.tokenizer)
    report = DocumentReport()
    count = yield from _tokenise(parts["train"].pieces(report), found, folder)
    yield from map(Note, report.told("training text"))
    yield Note(f"training text: {count:,} symbols, of a vocabulary of {found.size:,}")
    for part in (part for part in ("valid", "test") if part in parts):
        counted = DocumentReport()
        preparing.keep(folder, part, _records(parts[part].pieces(counted)), "texts")
        judged = kept(folder, part)
        mark = marks_of(found).unknown
        unknown = 0 if mark is None else sum(ids.count(mark) for ids in found.encode(judged))
        strange = f"; {unknown:,} symbols of it are unknown" if unknown else ""
        *files, whole = counted.told(f"{part} text")
        yield from map(Note, [*files, f"{whole}{strange}"])
    folder.write_json(folder.cache / "ready.json", {"symbols": count})


def _taken(start: Start) -> Text:
    """The tokeniser that the start's weights were trained with."""
    if isinstance(start.tokeniser, Vocabulary):
        return Borrowed(start.tokeniser, str(start.path))
    if not isinstance(start.tokeniser, Verbatim | Borrowed):
        raise Refused(f"{start.path} has no tokeniser that keeps text unchanged")
    return start.tokeniser


def _tokenise(pieces: Iterable[Piece], found: Text, folder: RunFolder) -> Work[int]:
    """Write the training text as one stream, with the end symbol between documents."""
    end = marks_of(found).end
    with cache.Writer(
        folder.cache, "train", ["text"], vocabulary=found.size, fingerprint=found.fingerprint
    ) as writer:
        for some in _gathered(pieces):
            rows = found.encode([piece.text for piece in some])
            after = [writer.rows + i > 0 and piece.opens for i, piece in enumerate(some)]
            ended = [[end, *row] if ends else row for row, ends in zip(rows, after, strict=True)]
            writer.add({"text": ended})
            yield Progress("tokenising", writer.counts["text"])
        count = writer.counts["text"]
    if not count:
        raise Refused("there is nothing to train on: the training text is empty")
    return count


def _gathered(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces of short documents together, so that they are tokenised at once."""
    held: list[Piece] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece.text)
        if length >= CHUNK:
            yield held
            held, length = [], 0
    if held:
        yield held


def _records(pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
    number = -1
    for text, opens in pieces:
        number += opens
        yield {"document": number, "text": text}


def kept(folder: RunFolder, part: str) -> list[str]:
    """The documents of a part, as the run folder keeps them."""
    found: dict[int, list[str]] = {}
    for number, piece in preparing.kept(folder, part, _piece, "text"):
        found.setdefault(number, []).append(piece)
    return ["".join(pieces) for pieces in found.values()]


def _piece(found: Any) -> tuple[int, str]:
    number, text = found["document"], found["text"]
    if type(number) is not int or not isinstance(text, str) or not text:
        raise ValueError
    text.encode()  # half a surrogate pair is a ValueError, too
    return number, text
