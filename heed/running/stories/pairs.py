"""Prepare the pairs of a recipe for training: tokenisers, a cache of tokens, examples to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heed.data import cache
from heed.data.pairs import Files, Links, Report
from heed.data.tokenise import UNK
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.running import preparing
from heed.running.preparing import data_root, text_of
from heed.running.stories.story import Start
from heed.storage.run_folder import RunFolder
from heed.tasks.translate import Data, examples
from heed.tasks.translator import Example, Vocabulary

COUNTED = 1 << 24  # symbols that are counted at a time
LINKS = "links"
"""The column of linked pieces: the places of a source piece and a target piece, and so on."""
TOLD = 0.001
"""From which share of unknown symbols on it is said."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What training reads."""

    vocabulary: Vocabulary
    train: cache.Corpus
    valid: list[Example]


def prepare(
    data: Data, folder: RunFolder, start: Start | None = None, linked: bool = False
) -> Work[Prepared]:
    """Read the pairs, train the tokenisers, write the cache; finished steps are not repeated.

    start   a run; its tokenisers are used, since its weights fit no others
    linked  keep the alignment of the training pairs, too
    """
    if not preparing.ready(folder):
        yield from _write(data, folder, start, linked)
    vocabulary = vocabulary_of(folder)
    sizes = {"source": vocabulary.source.size, "target": vocabulary.target.size}
    sizes |= {LINKS: data.longest} if linked else {}
    train = preparing.cached(folder, vocabulary.fingerprint, sizes, empty=(LINKS,))
    return Prepared(vocabulary, train, list(kept(folder, "valid")))


def vocabulary_of(folder: RunFolder) -> Vocabulary:
    """The tokenisers of a run."""
    source, target = folder.plain(folder.tokenizer), folder.target_tokenizer
    return Vocabulary.load(source, folder.plain(target) if target.exists() else target)


def _write(data: Data, folder: RunFolder, start: Start | None, linked: bool) -> Work[None]:
    root = data_root(data.folder)
    if start is None:
        yield Progress(f"learning {data.tokens.kind} tokens", 0)
        vocabulary = Vocabulary.train(data.tokens, lambda: examples(data, "train", root, Report()))
    else:
        vocabulary = vocabulary_of(RunFolder.open(start.path))
    vocabulary.save(folder.tokenizer, folder.target_tokenizer)
    report = Report()
    yield from _tokenise(data, vocabulary, folder, report, linked)
    yield from headed(report, data.train)
    yield Note(f"training pairs: {report}")
    yield from map(Note, _unknown(vocabulary, folder))
    for part in data.parts():
        counted = Report()
        pairs = map(_as_data, examples(data, part, root, counted))
        preparing.keep(folder, part, pairs, "pairs")
        yield from headed(counted, getattr(data, part, None) or data.train)
        yield Note(f"{part} pairs: {counted}")
    folder.write_json(folder.cache / "ready.json", {"pairs": report.kept})


def headed(report: Report, files: Files | None) -> Iterator[Note]:
    """A note on a first line that is read as a pair and looks like the names of two columns."""
    if report.header:
        yield Note(
            f"{files}:1: the first line, '{report.header}', is read as a pair; if it is a header, "
            "delete it"
        )


def _tokenise(
    data: Data, vocabulary: Vocabulary, folder: RunFolder, report: Report, linked: bool
) -> Work[None]:
    def fits(row: Sequence[Sequence[int]]) -> bool:
        short = max(map(len, row[:2])) <= data.longest
        if not short:
            report.drop_kept("too long")
        return short

    sides = {"source": vocabulary.source, "target": vocabulary.target}
    encoders: dict[str, cache.Encode] = {name: side.encode for name, side in sides.items()}
    if linked:
        encoders[LINKS] = lambda pairs: [vocabulary.links(pair) for pair in pairs]
    pairs = examples(data, "train", data_root(data.folder), report)
    for read in cache.encode(
        folder.cache,
        "train",
        ((pair.source, pair.target, pair)[: len(encoders)] for pair in pairs),
        encoders,
        vocabulary=max(data.longest * linked, *(side.size for side in sides.values())),
        fingerprint=vocabulary.fingerprint,
        keep=fits,
        chunk=preparing.CHUNK,
    ):
        yield Progress("tokenising", read)
    if not report.kept:
        raise Refused(f"there is nothing to train on: {report}")
    if linked and not cache.Corpus.open(folder.cache, "train").lengths[LINKS].any():
        raise Refused("training.guided needs alignments, and no training pair has a link")


def _unknown(vocabulary: Vocabulary, folder: RunFolder) -> Iterator[str]:
    """For each side of which much is unknown, how much."""
    streams = cache.Corpus.open(folder.cache, "train", vocabulary.fingerprint).tokens
    for name in ("source", "target"):
        stream = streams[name]
        parts = (stream[start : start + COUNTED] for start in range(0, len(stream), COUNTED))
        share = sum(int((part == UNK).sum()) for part in parts) / len(stream)
        if share >= TOLD:
            more = "a larger data.tokens.size keeps more of them"
            yield f"{share:.1%} of the {name} symbols are unknown; {more}"


def _as_data(pair: Example) -> dict[str, Any]:
    links = None if pair.links is None else [sorted(some) for some in pair.links]
    return {"source": pair.source, "target": pair.target, "links": links}


def kept(folder: RunFolder, part: str) -> Iterator[Example]:
    """The pairs of a part, as the run folder keeps them."""
    return preparing.kept(folder, part, _example, "pairs")


def _example(found: Any) -> Example:
    """The inverse of `_as_data`."""
    source, target, links = text_of(found["source"]), text_of(found["target"]), found["links"]
    if links is not None:
        links = Links(*(frozenset((int(i), int(j)) for i, j in some) for some in links))
    return Example(source, target, links)
