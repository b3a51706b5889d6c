"""Showing: what a model looked at, in the terminal and as a page to explore.

subject = opened(Path("runs/mine"))        a run, a checkpoint, a pretrained folder, a watch
((look, seen),) = explored(subject, ["a text"])   the weights of every attention
heed.viewing.looking.page("mine", [look]).write("look.html")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch

import heed
from heed.answers.form import Example
from heed.errors import HeedError, Refused
from heed.models.pretrained import describe
from heed.running.devices import chosen
from heed.running.opening import Run, fits, open_run
from heed.running.passes import Pass, one_pass
from heed.running.preparing import examples_of, shown_part
from heed.running.shards import Shelf, is_pretrained
from heed.storage import checkpoint
from heed.storage.manifest import MANIFEST
from heed.tasks.task import Codec
from heed.viewing.atlas import Take
from heed.viewing.blocks import Column, Examples, Table, Value
from heed.viewing.looking import Look, beside
from heed.viewing.page import Page
from heed.viewing.taking import layers, short
from heed.watching.passes import WatchedPass, watched_passes
from heed.watching.walk import Walk

MOST = 8  # passes of a watch on a page


class Seen(Protocol):
    """An input that was read once: what is drawn of it, and the calls to walk through."""

    @property
    def look(self) -> Look: ...
    @property
    def calls(self) -> Mapping[str, Sequence[Any]]:
        """The calls of each attention by its path, the lowest layer first."""

    @property
    def chosen(self) -> int:
        """The most telling attention, as an index in that order."""

    @property
    def first(self) -> int:
        """The query that is walked with by default."""

    @property
    def missing(self) -> str:
        """The reason that there is nothing to walk through, if there is nothing."""

    def words(self, path: str) -> Sequence[str]:
        """The words of an attention's queries."""

    def asked(self, path: str) -> Sequence[str]:
        """The words of its keys."""

    def walk(self, path: str, position: int, head: int) -> Walk:
        """The walk of one query of one head."""


class Subject(Protocol):
    """Anything whose attention can be looked at."""

    name: str

    def passes(self, texts: Sequence[str], given: Sequence[Look] = ()) -> Sequence[Seen]:
        """A pass over each text, or over some of the subject's own.

        given  another subject's looks at the same texts
        """


class OfRun:
    """A run, one of its checkpoints, or a pretrained folder that heed has a model for."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name

    def passes(
        self, texts: Sequence[str], given: Sequence[Look] = (), *, several: bool = True
    ) -> list[Pass]:
        """A pass over each text, or over a few examples that the run keeps.

        several  read as many answers to each as can be explored
        """
        task, worker, folder = self.run.task, self.run.worker, self.run.folder
        codec = Codec(worker.inputs, worker.form)
        examples = [Example(task.of_line(codec, text), None) for text in texts]
        if not texts:
            kept = examples_of(task, codec, folder, shown_part(folder))
            examples = task.excerpts(codec, kept, task.few)
        choice = getattr(self.run.config, "decoding", None)
        best = worker.form.explored(choice) if several else 1
        more: dict[str, Any] = {"choice": choice, "best": best}
        others = [each.readings for each in given] or [()] * len(examples)
        return [
            one_pass(worker, each.inputs, gold=each.answer, given=other, **more)
            for each, other in zip(examples, others, strict=True)
        ]


class OfWatch:
    """A watch that `heed.watch` saved: it can be drawn, but there is no model to run."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.seen = path, path.name, heed.load_watch(path)

    def passes(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Pass]:
        if texts:
            raise Refused(f"{self.path} is a saved watch and has its own text; leave out INPUT")
        found = list(islice(watched_passes(self.seen), MOST + 1))
        remark = f"the first {MOST} passes; there are more" if len(found) > MOST else ""
        takes = [take for one in found[:MOST] for take in self._take(one)]
        figures = [] if takes else [table for one in found[:MOST] for table in _figures(one)]
        if not takes and not figures:
            raise Refused(f"{self.path} holds no weights, maps or statistics to show")
        look = Look(self.name, "", takes, figures=figures, remark=remark)
        missing = f"{self.path} holds weights, but no queries and keys to walk through"
        return [Pass(look, {}, lambda path: ((), None), missing=missing)]

    def _take(self, one: WatchedPass) -> list[Take]:
        every = list(layers(one.seen, lambda path: self._words(path, one), one.row).values())
        return [Take(one.name, every, written=one.written)] if every else []

    def _words(self, path: str, one: WatchedPass) -> tuple[Sequence[str], Sequence[str] | None]:
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


def _figures(one: WatchedPass) -> list[Table]:
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


def _at_step(path: Path, device: torch.device) -> Run:
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


def explored(
    subject: Subject, texts: Sequence[str], other: Subject | None = None
) -> list[tuple[Look, Seen]]:
    """The attention over each text, that of two subjects side by side; and the subject's pass."""
    if other is None:
        return [(seen.look, seen) for seen in subject.passes(texts)]
    saved = [isinstance(each, OfWatch) for each in (subject, other)]
    if saved in ([True, False], [False, True]) and len(texts) != 1:
        raise Refused(f"a saved watch is shown beside one text; give one INPUT, not {len(texts)}")
    mine = subject.passes([] if saved == [True, False] else texts)
    if isinstance(subject, OfRun) and isinstance(other, OfRun):
        tasks = [each.run.config.task for each in (subject, other)]
        if len(set(tasks)) > 1:
            raise Refused(f"--beside needs a run of the same task: {tasks[0]}, not {tasks[1]}")
    looks = [seen.look for seen in mine]
    given = [] if saved[1] else texts or [look.source for look in looks]
    theirs = other.passes(given, () if saved[0] else looks)
    names = sides(subject, other)
    return [(beside(one.look, two.look, names), one) for one, two in zip(mine, theirs, strict=True)]


def sides(subject: Subject, other: Subject) -> tuple[str, str]:
    """The names of two subjects on a page."""
    return subject.name, other.name if other.name != subject.name else f"{other.name} (2)"


def show(
    path: Path, texts: Sequence[str] = (), *, every: bool = False, device: str = "auto"
) -> list[Look]:
    """The answers to texts, or to a few examples of the run, with their attention.

    every  every head of every attention too
    """
    subject = opened(path, device)
    seen: Sequence[Seen]
    if isinstance(subject, OfRun):
        seen = subject.passes(texts, several=False)
    else:
        seen = subject.passes(texts)
    return [replace(each.look, every=every) for each in seen]


def page(title: str, shown: Sequence[Look]) -> Page:
    """A page with all that is shown, except blank lines, which have no answers."""
    told = (each for each in shown if each.source.strip() or each.text)
    blocks: list[Any] = [each.block() for each in told]
    return Page(title, [Examples(blocks)])
