"""Watching: collect every record of attention while a model runs.

with heed.watch(model) as seen:
    model(batch)
seen["decoder.attention"][0].weight

with heed.watch(model, statistics=heed.Summary(top=4)) as seen:  # from the fast path
    model(batch)
seen["decoder.attention"][0].statistics.entropy

with heed.watch(model, modules="*.cross", heads=[0, 3]) as seen:  # while a text is written
    (best,) = beam(model, model.begin(source, lengths), 1, ...)
seen.follow(best[0])["decoder.stack.layers.0.cross"].weight
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from heed.attention.attention import Attending
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.position import Position
from heed.attention.watchable import Hook, Watchable
from heed.errors import Refused
from heed.records import NEEDS, SEARCH, Attended, Need, Statistics, Summary, as_need, as_summary
from heed.shapes import whole
from heed.visible import Visible
from heed.watching.hypotheses import WrittenText, changed, moment
from heed.watching.watch_file import load_watch
from heed.watching.watched import (
    Keeper,
    Other,
    Records,
    Watched,
    folder_for,
    matching,
)

__all__ = ["Records", "StandIn", "Standing", "Watched", "attentions", "load_watch", "watch"]


@contextmanager
def watch(
    model: nn.Module,
    need: Need | None = None,
    *,
    statistics: Summary | bool | None = None,
    modules: str | Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    limit: int | None = None,
    spill: str | PathLike[str] | None = None,
) -> Iterator[Watched]:
    """Collect the records of every attention inside `model`, weights included, during the block.

    statistics  True or a `heed.Summary`: each record carries those instead of the weights, which
                are then formed only where `need` asks for them. A Summary that the model itself
                asks for is answered too. A call gives one map: if the watch asks for another size
                than the model, or than a watch around it, the call is refused.
                `heed.Summary(received=False)`, statistics of each query alone, costs least
    modules     paths of attentions or patterns of them, such as "encoder.*" or ["*.cross"]
    heads       which heads are kept; by default all
    rows        which queries of each call are kept (negative ones count from the last): a fast path
                that serves the call still does, and no other weights are kept. Steps of a text that
                is being written are kept whole
    tokens      the words that queries and keys stand for; `seen.tokens(...)` tells them later
    limit       how many bytes of records may be kept in memory; more are refused, unless there is
                a folder for them
    spill       that folder: records beyond the limit are written there, and read from there when
                they are looked at

    A text that a search of heed writes is followed: begin it inside, and `seen.follow(hypothesis)`
    gives what the survivor saw. With a limit or a spill folder the
    records are kept without graph, context and the slots of their states.

    Watches may end in any order and leave nothing on the model; a copy of the model made meanwhile
    is not watched. Graph capture is off: a compiled model runs in eager mode, since a captured
    graph would keep its records to itself. Calls from all threads are collected as they come; let
    one thread at a time call a watched model, or the records of several are mixed.
    """
    if not isinstance(model, nn.Module):
        raise Refused(f"watch takes a model, a torch.nn.Module, not {type(model).__name__}")
    found = present(model, "to watch")
    others = _others(model, found)
    seen = Watched(found if modules is None else matching(found, modules, others))
    seen.others = others
    seen.heads = _numbers("heads", heads, 0)
    seen.rows = _numbers("rows", rows, None)
    wish = Wish.of(need, as_summary(statistics), seen)
    most = None if limit is None else whole("limit", limit, 1, math.inf)
    keeper = Keeper(seen, most, None if spill is None else folder_for(spill))
    if tokens is not None:
        seen.tokens(tokens)
    with ExitStack() as stack:
        stack.enter_context(EAGER)
        for path in seen:
            before, after = wish.hooks(path, keeper)
            module = found[path]
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        yield seen


class _Eager:
    """Turns graph capture off (eager mode) from the first watch or walk until the last one ends."""

    def __init__(self) -> None:
        self.lock, self.inside, self.stance = Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.stance.enter_context(torch.compiler.set_stance("force_eager"))
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.stance.close()


EAGER = _Eager()


class Attend(Protocol):
    """A call of attention that still lacks `need` and `statistics`."""

    def __call__(self, *, need: Need, statistics: Summary | bool | None) -> Attended:
        """Attend."""


class Standing:
    """A call of a mechanism with its arguments, for a StandIn: a walk can read what they were."""

    def __init__(
        self,
        mechanism: Mechanism,
        query: Tensor,
        memory: Memory,
        visible: Visible | None = None,
        position: Position | None = None,
    ) -> None:
        self.mechanism, self.query, self.memory = mechanism, query, memory
        self.visible, self.position = visible, position

    def __call__(self, *, need: Need, statistics: Summary | bool | None) -> Attended:
        """Attend."""
        more: dict[str, Any] = {"visible": self.visible, "position": self.position}
        seen: Attended = self.mechanism(
            self.query, self.memory, need=need, statistics=statistics, **more
        )
        return seen


class StandIn(Watchable):
    """Attends for another library's module, as its child, and is watched under its path."""

    def forward(
        self,
        query: Tensor,
        attend: Attend,
        *,
        need: Need = "context",
        statistics: Summary | bool | None = None,
    ) -> Attended:
        """Call `attend`; the queries (... T D) are an argument so that hooks can count them."""
        return attend(need=need, statistics=statistics)


PREPARING: list[Callable[[nn.Module], object]] = []
"""Changes that integrations make to a model before its attentions are looked for."""


def attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost attentions inside a model, with their paths."""
    for prepare in PREPARING:
        prepare(model)
    found: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}." if outer else "") for outer, _ in found)
        if inside:
            continue
        deputy = next((x for x in module.children() if isinstance(x, StandIn)), None)
        if deputy is not None or isinstance(module, Attending | Mechanism):
            found.append((path, module if deputy is None else deputy))
    return found


def present(model: nn.Module, purpose: str) -> dict[str, nn.Module]:
    """The attentions of a model by path; a model without any is refused, with the purpose."""
    found = dict(attentions(model))
    if not found:
        raise Refused(
            f"there is no heed attention inside this model {purpose}; those of other libraries "
            "are replaced by heed.integrations.huggingface.enable(model) or "
            "heed.integrations.torch.replace(model)"
        )
    return found


def _others(model: nn.Module, found: Iterable[str]) -> dict[str, Other]:
    """Attentions of other libraries by path, without those that contain one that was found."""
    others = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        if isinstance(module, nn.MultiheadAttention):
            cure = "heed.integrations.torch.replace(model)"
            others[path] = Other("torch.nn.MultiheadAttention", cure)
        if kind.__module__.startswith("transformers.") and "Attention" in kind.__name__:
            cure = "heed.integrations.huggingface.enable(model)"
            others[path] = Other(f"{kind.__name__} of transformers", cure)
    return {
        path: other
        for path, other in others.items()
        if not any(f"{inner}.".startswith(f"{path}.") for inner in found)
    }


@dataclass(frozen=True)
class Joint(Summary):
    """One Summary for all that is asked of a call; `own` is what the model itself asks for."""

    own: Summary | None = None


@dataclass(frozen=True)
class Wish:
    """The wishes of a watch, for every call."""

    need: Need
    summary: Summary | None
    heads: tuple[int, ...] | None
    rows: tuple[int, ...] | None
    texts: list[WrittenText]

    @staticmethod
    def of(need: Need | None, summary: Summary | None, seen: Watched) -> Wish:
        least = as_need(need or ("weight" if summary is None else "context"))
        return Wish(least, summary, seen.heads, seen.rows, seen.texts)

    def hooks(self, path: str, keeper: Keeper) -> tuple[Hook, Hook]:
        """The hooks before and after a call of a module."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            wanted = as_need(kwargs.get("need", "context"))
            T = _queries(args, kwargs)
            need, asked = self._of_call(T)
            more: dict[str, Any] = {"need": max(wanted, need, key=NEEDS.index)}
            if asked is not None:
                more["statistics"] = _joint(as_summary(kwargs.get("statistics")), asked)
            return args, {**kwargs, **more}

        def after(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], record: Attended
        ) -> None:
            asked = as_summary(kwargs.get("statistics"))
            cut = self._cut(record, asked, _queries(args, kwargs), path)
            keeper.keep(path, cut, moment(self.texts))

        return Hook(before), Hook(after)

    def _chosen(self, T: int) -> tuple[int, ...] | None:
        """The queries of a call of T that are kept; None: all."""
        if self.rows is None or SEARCH.get() is not None:
            return None
        return tuple(sorted({t % T for t in self.rows if -T <= t < T})) if T else ()

    def _of_call(self, T: int) -> tuple[Need, Summary | None]:
        """The need of a call of T queries, and which statistics it must give."""
        chosen, need, summary = self._chosen(T), self.need, self.summary
        if chosen is not None and need == "weight":
            need = "context"
            if chosen:
                summary = replace(summary or Summary(), rows=chosen)
        if summary is not None and SEARCH.get() is not None and T > 1:
            # Hypotheses asked as the queries of one call: keep the weights of each of them.
            summary = replace(summary, rows=tuple(range(T)))
        return need, summary

    def _cut(self, record: Attended, asked: Summary | None, T: int, path: str) -> Attended:
        """The part of a record that is kept: nothing that only other watches asked for."""
        if isinstance(asked, Joint):
            ours = _both(asked.own, self._of_call(T)[1])
            record = record.replace(statistics=_told(record.formed.statistics, asked, ours))
            asked = ours
        chosen = self._chosen(T)
        if chosen is not None:
            record = self._of_queries(record, chosen, asked)
        return record if self.heads is None else _of_heads(record, self.heads, path)

    def _of_queries(
        self, record: Attended, chosen: tuple[int, ...], asked: Summary | None
    ) -> Attended:
        _, weight, energy, said = record.formed
        weight, energy = (None if x is None else x[:, :, list(chosen)] for x in (weight, energy))
        wanted = weight is None and self.need != "context" and chosen
        if wanted and asked is not None and said is not None and said.rows is not None:
            weight = said.rows[:, :, [asked.rows.index(t) for t in chosen]]
        told = said if self.summary is not None else None
        return record.replace(weight=weight, energy=energy, statistics=told)


def _queries(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of queries of a call; a learned query is one.    ... T D"""
    query = args[0] if args else kwargs.get("query")
    return query.shape[-2] if isinstance(query, Tensor) and query.ndim > 1 else 1


def _joint(theirs: Summary | None, ours: Summary) -> Joint:
    """A watch's Summary joined with what the model and other watches ask for, if they do."""
    every = _both(theirs, ours) or ours
    own = theirs.own if isinstance(theirs, Joint) else theirs
    return Joint(every.top, every.map, every.rows, every.received, own)


def _both(first: Summary | None, second: Summary | None) -> Summary | None:
    """A Summary that covers two; the first one's rows come first."""
    if first is None or second is None:
        return first or second
    if first.map is not None and second.map not in (None, first.map):
        there, here = ("{} by {}".format(*one.map) for one in (first, second) if one.map)
        raise Refused(
            f"a call gives one map of its weights: the model or another watch asks for {there} "
            f"cells, and this watch for {here}; ask for the same, or watch one after the other"
        )
    rows = first.rows + tuple(t for t in second.rows if t not in first.rows)
    received = first.received or second.received
    return Summary(max(first.top, second.top), first.map or second.map, rows, received)


def _told(said: Statistics | None, every: Summary, ours: Summary | None) -> Statistics | None:
    """The statistics that one Summary asked for, out of those given for `every` one."""
    if said is None or ours is None:
        return None
    if not ours.received:
        said = said._replace(received=None)
    if (ours.top, ours.map, ours.rows) == (every.top, every.map, every.rows):
        return said
    top, share, rows = said.top, said.share, said.rows
    if top is not None and share is not None:
        top, share = (x[..., : ours.top] if ours.top else None for x in (top, share))
    if rows is not None:
        rows = rows[:, :, [every.rows.index(t) for t in ours.rows]] if ours.rows else None
    return said._replace(top=top, share=share, map=said.map if ours.map else None, rows=rows)


def _of_heads(record: Attended, heads: tuple[int, ...], path: str) -> Attended:
    """A record of some heads, its context as it was.    B H ... -> B n ..."""

    def some(x: Tensor) -> Tensor:
        if max(heads) >= x.shape[1]:
            raise Refused(f"{path or 'the model'} has {x.shape[1]} heads, and no head {max(heads)}")
        return x.index_select(1, torch.tensor(heads, device=x.device))

    return changed(record, some).replace(context=record.formed.context)


def _numbers(name: str, given: Sequence[int] | None, least: int | None) -> tuple[int, ...] | None:
    """Numbers of heads or rows; None where all are meant."""
    if given is None:
        return None
    if isinstance(given, int | str) or not len(given):
        raise Refused(f"{name} takes numbers, such as [0, 3]; got {given!r}")
    low = -(2**31) if least is None else least
    return tuple(whole(f"each of {name}", n, low) for n in given)
