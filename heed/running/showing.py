"""Showing: what a model looked at, in the terminal and as a page to explore.

subject = opened(Path("runs/mine"))        a run, a checkpoint, a pretrained folder, a watch
looks = explored(subject, ["a text"])      the weights of every attention
heed.viewing.looking.page("mine", looks).write("look.html")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch

import heed
from heed.errors import HeedError, Refused
from heed.models.pretrained import describe
from heed.running.devices import chosen
from heed.running.opening import fits, open_run
from heed.running.shards import Shelf, is_pretrained
from heed.running.stories.story import AnyRun, Listened, Shown
from heed.storage import checkpoint
from heed.storage.manifest import MANIFEST
from heed.viewing.atlas import Take
from heed.viewing.blocks import Column, Examples, Table, Value
from heed.viewing.looking import Look, beside
from heed.viewing.page import Page
from heed.viewing.taking import layers, short
from heed.watching.passes import Pass, passes

LONG = 1500  # bytes; the maps of longer texts are pooled
MOST = 8  # passes of a watch on a page


class Subject(Protocol):
    """Anything whose attention can be looked at."""

    name: str

    def looks(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Look]:
        """The attention over texts, or over some of the subject's own.

        given  another subject's looks at the same texts
        """

    def hear(self, text: str) -> Listened:
        """The calls of every attention while the model reads a text, for walks."""


class OfRun:
    """A run, one of its checkpoints, or a pretrained folder that heed has a model for."""

    def __init__(self, run: AnyRun, name: str) -> None:
        self.run, self.name = run, name

    def looks(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Look]:
        return self.run.story.look(self.run, texts, given)

    def hear(self, text: str) -> Listened:
        return self.run.story.hear(self.run, text)


class OfWatch:
    """A watch that `heed.watch` saved: it can be drawn, but there is no model to run."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.seen = path, path.name, heed.load_watch(path)

    def looks(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Look]:
        if texts:
            raise Refused(f"{self.path} is a saved watch and has its own text; leave out INPUT")
        found = list(islice(passes(self.seen), MOST + 1))
        remark = f"the first {MOST} passes; there are more" if len(found) > MOST else ""
        takes = [take for one in found[:MOST] for take in self._take(one)]
        figures = [] if takes else [table for one in found[:MOST] for table in _figures(one)]
        if not takes and not figures:
            raise Refused(f"{self.path} holds no weights, maps or statistics to show")
        return [Look(self.name, "", takes, figures=figures, remark=remark)]

    def _take(self, one: Pass) -> list[Take]:
        every = list(layers(one.seen, lambda path: self._words(path, one), one.row).values())
        return [Take(one.name, every, written=one.written)] if every else []

    def _words(self, path: str, one: Pass) -> tuple[Sequence[str], Sequence[str] | None]:
        """The words that the watch was given; those of queries only as far as they were kept."""
        told = self.seen.words.get(path)
        if told is None or one.sentence >= min(map(len, told)):
            return (), None
        queries, keys = self.seen.labels(path, one.sentence)
        if self.seen.rows is not None and not one.written:
            T = len(queries)
            kept = sorted({t % T for t in self.seen.rows if -T <= t < T})
            return [queries[t] for t in kept], keys
        return queries, None if queries == keys else keys

    def hear(self, text: str) -> Listened:
        raise Refused(f"{self.path} holds weights, but no queries and keys to walk through")


def _figures(one: Pass) -> list[Table]:
    """The statistics of a pass whose weights were not kept."""
    names = {"entropy": "entropy, nats", "peak": "sharpness", "spread": "spread"}
    rows: list[list[Value]] = []
    for path, name in short(one.seen).items():
        said = one.seen[path].formed.statistics
        if said is not None:
            means = [getattr(said, each)[one.row].float().mean(-1).tolist() for each in names]
            rows += [[name, h, *numbers] for h, numbers in enumerate(zip(*means, strict=True))]
    columns = [Column("attention"), Column("head"), *(Column(n, ".3f") for n in names.values())]
    return [Table(columns, rows, one.name)] if rows else []


def opened(path: Path, device: str = "auto") -> Subject:
    """A run or one of its checkpoints, a pretrained folder, or the file of a watch."""
    where = chosen(device)
    if path.is_file():
        return OfWatch(path)
    try:
        name = path.resolve().name
    except RuntimeError as error:  # links in a circle
        raise Refused(f"{path} is a circular link") from error
    if path.parent.name == "checkpoints" and (path / MANIFEST).exists():
        return OfRun(_at_step(path, where), f"{path.resolve().parent.parent.name} {name}")
    return OfRun(open_run(path, where), name)


def _at_step(path: Path, device: torch.device) -> AnyRun:
    """A run with the weights of one of its checkpoints."""
    run = open_run(path.parent.parent, device)
    weights = run.folder.inside(path / "model.safetensors")
    checkpoint.verify(path)
    fits(run.config.outline(), weights)
    run.worker.model.load_state_dict(checkpoint.load(path, {"model"}).tensors["model"])
    return run


def is_foreign(path: Path) -> bool:
    """Whether this is a pretrained folder whose architecture or head no command of heed supports;
    transformers may."""
    if not is_pretrained(path):
        return False
    from heed.running.adopting import adopted  # rarely needed

    raw = Shelf(path).json("config.json")
    if "heed" in raw:  # heed wrote it, in another format than that of transformers
        return False
    try:
        found = describe(raw)
    except HeedError as error:
        return isinstance(error, LookupError)  # a name that heed does not know
    return (found.kind, found.head) not in adopted()


def explored(subject: Subject, texts: Sequence[str], other: Subject | None = None) -> list[Look]:
    """The attention over each text; that of two subjects side by side."""
    if other is None:
        return subject.looks(texts)
    saved = [isinstance(each, OfWatch) for each in (subject, other)]
    if saved in ([True, False], [False, True]) and len(texts) != 1:
        raise Refused(f"a saved watch is shown beside one text; give one INPUT, not {len(texts)}")
    mine = subject.looks([] if saved == [True, False] else texts)
    if isinstance(subject, OfRun) and isinstance(other, OfRun):
        tasks = [each.run.config.task for each in (subject, other)]
        if len(set(tasks)) > 1:
            raise Refused(f"--beside needs a run of the same task: {tasks[0]}, not {tasks[1]}")
    given = [] if saved[1] else texts or [look.source for look in mine]
    theirs = other.looks(given, () if saved[0] else mine)
    names = sides(subject, other)
    return [beside(*both, names) for both in zip(mine, theirs, strict=True)]


def sides(subject: Subject, other: Subject) -> tuple[str, str]:
    """The names of two subjects on a page."""
    return subject.name, other.name if other.name != subject.name else f"{other.name} (2)"


def show(
    path: Path, texts: Sequence[str] = (), *, every: bool = False, device: str = "auto"
) -> list[Any]:
    """The answers to texts, or to a few examples of the run, with their attention: a story's
    `Shown`; for long texts and watches, a `Look`.

    every  every head of every attention too
    """
    subject = opened(path, device)
    if isinstance(subject, OfRun) and all(len(text.encode()) <= LONG for text in texts):
        return list(subject.run.story.show(subject.run, texts, every=every))
    return [replace(look, every=every) for look in subject.looks(texts)]


def page(title: str, shown: Sequence[Shown]) -> Page:
    """A page with all that is shown, except blank lines, which have no answers."""
    told = (each for each in shown if each.source.strip() or each.text)
    blocks: list[Any] = [each.block() for each in told]
    return Page(title, [Examples(blocks)])
