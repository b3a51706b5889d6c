"""From a recipe's pairs to what training reads: tokenisers, a cache of tokens, examples kept.

All of it lies in the run folder, so that going on, evaluating and looking need nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.data import cache
from heed.data.pairs import Links, Report
from heed.data.text import read_lines
from heed.errors import Refused
from heed.running.events import Note, Progress, Work
from heed.running.recipe import Recipe
from heed.tasks.translate import Data, Part, examples
from heed.tasks.translator import Example, Vocabulary
from heed.training.folder import RunFolder

LONGEST = 100_000  # characters of an example
CHUNK = 2000  # pairs that are tokenised at a time


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    vocabulary: Vocabulary
    train: cache.Corpus
    valid: list[Example]


def data_root() -> Path:
    """Where data folders are looked up: $HEED_DATA, or here."""
    return Path(os.environ.get("HEED_DATA", ".")).absolute()


def prepare(recipe: Recipe, folder: RunFolder, start: Path | None = None) -> Work[Prepared]:
    """Read the pairs, train the tokenisers, write the cache; what is there already is kept.

    start  a run whose tokenisers to take, since its weights mean nothing with others
    """
    if not (folder.cache / "ready.json").exists():
        if folder.config.exists():  # which is written later: the cache was there once
            raise Refused(f"{folder.path} has lost its cache; begin anew: --overwrite")
        yield from _write(recipe, folder, start)
    vocabulary = vocabulary_of(folder)
    train = _cached(folder, vocabulary)
    return Prepared(vocabulary, train, list(kept(folder, "valid")))


def vocabulary_of(folder: RunFolder) -> Vocabulary:
    """The tokenisers of a run."""
    source, target = folder.plain(folder.tokenizer), folder.target_tokenizer
    return Vocabulary.load(source, folder.plain(target) if target.exists() else target)


def _cached(folder: RunFolder, vocabulary: Vocabulary) -> cache.Corpus:
    """The training pairs as numbers, all of them numbers that the tokenisers know."""
    for path in folder.inside(folder.cache).iterdir():
        folder.plain(path)
    train = cache.Corpus.open(folder.cache, "train", vocabulary.fingerprint)
    sizes = {"source": vocabulary.source.size, "target": vocabulary.target.size}
    sound = train.tokens.keys() == sizes.keys() and all(
        len(train) and train.lengths[column].min() > 0 and train.tokens[column].max() < size
        for column, size in sizes.items()
    )
    if not sound:
        raise Refused(f"{folder.cache} does not fit the tokenisers; begin anew: --overwrite")
    return train


def _write(recipe: Recipe, folder: RunFolder, start: Path | None) -> Work[None]:
    data, root = recipe.data, data_root()
    if start is None:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        vocabulary = Vocabulary.train(data.tokens, lambda: examples(data, "train", root, Report()))
    else:
        vocabulary = vocabulary_of(RunFolder.open(start))
    vocabulary.save(folder.tokenizer, folder.target_tokenizer)
    report = Report()
    yield from _tokenise(data, vocabulary, folder, report)
    yield Note(f"training pairs: {report}")
    for part in _parts(data):
        counted = Report()
        _keep(folder, part, examples(data, part, root, counted))
        yield Note(f"{part} pairs: {counted}")
    folder.write_json(folder.cache / "ready.json", {"pairs": report.kept})


def _parts(data: Data) -> list[Part]:
    if data.grammar is not None:
        return ["valid", "test", "long"] if data.grammar.beyond else ["valid", "test"]
    return ["valid"] if data.test is None else ["valid", "test"]


def _tokenise(data: Data, vocabulary: Vocabulary, folder: RunFolder, report: Report) -> Work[None]:
    def fits(row: Sequence[Sequence[int]]) -> bool:
        short = max(map(len, row)) <= data.longest
        if not short:
            report.drop_kept("too long")
        return short

    sides = {"source": vocabulary.source, "target": vocabulary.target}
    pairs = examples(data, "train", data_root(), report)
    for read in cache.encode(
        folder.cache,
        "train",
        ((pair.source, pair.target) for pair in pairs),
        {name: side.encode for name, side in sides.items()},
        vocabulary=max(side.size for side in sides.values()),
        fingerprint=vocabulary.fingerprint,
        keep=fits,
        chunk=CHUNK,
    ):
        yield Progress("tokenising", read)
    if not report.kept:
        raise Refused(f"there is nothing to train on: {report}")


def _keep(folder: RunFolder, part: str, pairs: Iterator[Example]) -> None:
    lines = [json.dumps(_as_data(pair), ensure_ascii=False) for pair in pairs]
    if not lines:
        raise Refused(f"there are no {part} pairs")
    folder.write_text(folder.examples / f"{part}.jsonl", "\n".join(lines) + "\n")


def _as_data(pair: Example) -> dict[str, Any]:
    links = None if pair.links is None else [sorted(some) for some in pair.links]
    return {"source": pair.source, "target": pair.target, "links": links}


def kept(folder: RunFolder, part: str) -> Iterator[Example]:
    """The examples of a part, as the run folder keeps them."""
    path = folder.inside(folder.examples / f"{part}.jsonl")
    if not path.is_file() or not path.stat().st_size:
        raise Refused(f"{folder.path} keeps no {part} pairs; give a file")
    for number, line in read_lines(folder.plain(path)):
        try:
            yield _example(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Refused(f"{path}:{number}: not an example") from None


def _example(found: Any) -> Example:
    """What `_as_data` made of an example; anything else is refused, since nobody vouches for it."""
    texts, links = (found["source"], found["target"]), found["links"]
    for text in texts:
        if not isinstance(text, str) or text.isspace() or not 0 < len(text) <= LONGEST:
            raise ValueError
        text.encode()  # half a surrogate pair is a ValueError, too
    if links is not None:
        links = Links(*(frozenset((int(i), int(j)) for i, j in some) for some in links))
    return Example(*texts, links)
