"""The walk: one query's way through attention, stage by stage, with the numbers it meets.

walked = walk(attend, query, memory, position=3, head=0)
walked.energy, walked.normal, walked.weight, walked.context
walked.agrees  # with what the attention itself computed, by whatever kernel

with listen(model) as heard:  # the attentions of a whole model, by their paths
    model(batch)
follow(heard["decoder.attention"], position=3).weight

The numbers are a trace of the reference (heed.attention.trace): this file only asks for that of one
query, and says of each hidden key why it is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heed.attention.attention import Attending
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.some_queries import of_some
from heed.attention.watchable import Hook
from heed.errors import Refused
from heed.records import Attended, Need, State
from heed.visible import (
    Causal,
    Mask,
    Packed,
    Places,
    Visible,
    Window,
    all_of,
    as_visible,
    conjuncts,
)
from heed.watching.walked import Asked, Walk, at_rest
from heed.watching.watch import EAGER, Standing, present

__all__ = ["Asked", "Walk", "follow", "listen", "walk"]


def walk(
    attention: Attending | Mechanism,
    query: Tensor | None,
    memory: Memory | Tensor | None = None,
    state: State | None = None,
    *,
    visible: Visible | Tensor | None = None,
    segments: Tensor | None = None,
    bias: Tensor | None = None,
    row: int = 0,
    position: int = -1,
    head: int = 0,
) -> Walk:
    """Attend as `attention(query, memory, state, ...)` does, and walk the way of one query.

    row, position, head  which query and head; negative positions count from the last
    """
    with listen(attention) as heard, torch.no_grad():
        more: dict[str, Any] = {"visible": visible, "segments": segments, "bias": bias}
        attend: Callable[..., Attended] = attention
        attend(query, memory, state, **{k: x for k, x in more.items() if x is not None})
    return follow(heard[""], row=row, position=position, head=head)


@contextmanager
def listen(model: nn.Module) -> Iterator[dict[str, list[Asked]]]:
    """Collect the calls of heed's attentions inside a model, by path, until the block ends.

    Those of other libraries are included where heed stands in for them (heed.integrations).
    """
    found = present(model, "to walk through")
    heard: dict[str, list[Asked]] = {path: [] for path in found}
    with ExitStack() as stack:
        stack.enter_context(EAGER)
        for path, module in found.items():
            around = model.get_submodule(path)
            if isinstance(around, Attending | Mechanism):
                module = around if isinstance(around, Mechanism) else around.mechanism
            hook = _note(heard[path])
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield heard


def _note(calls: list[Asked]) -> Hook:
    def note(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Attended
    ) -> None:
        mechanism, given = _given(module, args, kwargs)
        context = seen.formed.context
        query, memory, state = given["query"], given["memory"], given.get("state")
        if query is None:
            query = mechanism.reach.question(memory.k.shape[0])
        visible = given.get("visible")
        calls.append(
            Asked(
                mechanism,
                query.detach(),
                memory,
                State(0, memory.S - query.shape[2]) if state is None else state,
                None if visible is None else as_visible(visible),
                given.get("segments"),
                given.get("position"),
                None if context is None else context.detach(),
            )
        )

    return Hook(note)


def _given(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Mechanism, dict[str, Any]]:
    """The mechanism of a call, and what it was given by name."""
    if isinstance(module, Mechanism):
        return module, {**dict(zip(("query", "memory", "state"), args, strict=False)), **kwargs}
    call = args[1]
    if not isinstance(call, Standing):
        raise Refused(f"a {type(module).__name__} does not support walks")
    told = {"query": call.query, "memory": call.memory}
    return call.mechanism, {**told, "visible": call.visible, "position": call.position}


@torch.no_grad()
def follow(calls: Sequence[Asked], *, row: int = 0, position: int = -1, head: int = 0) -> Walk:
    """The walk of one query of consecutive calls, such as the steps of a text."""
    counts = [call.query.shape[2] for call in calls]
    T = sum(counts)
    if not -T <= position < T:
        raise Refused(f"there are {T} queries; there is no position {position}")
    t = position % T
    for call, count in zip(calls, counts, strict=True):
        if t < count:
            return _alone(call, row, t, head)
        t -= count
    raise Refused("there are no queries")  # never: T counts them


def _alone(call: Asked, row: int, t: int, head: int) -> Walk:
    """The walk of query t of a row: first the call is cut down to it."""
    mechanism, (B, H, T, _) = call.mechanism, call.query.shape
    for name, number, count in (("row", row, B), ("head", head, H)):
        if not 0 <= number < count:
            raise Refused(f"there are {count} {name}s, counted from 0, and no {name} {number}")
    if mechanism.is_random:  # a walk cannot repeat its draws
        raise Refused("this attention is random in training mode; call .eval() first")
    memory, visible = call.memory, call.visible
    if visible is not None:
        of_keys, visible = visible.split()
        memory = memory if of_keys is None else memory.hide(of_keys)
    if memory.k.shape[2] == 0:
        raise Refused("there is nothing to walk through: the memory has no keys")
    places = Places(T, memory.S, call.state.step, call.state.origin, call.query.device)
    one = torch.tensor([row], device=call.query.device)

    def shown(start: int, stop: int) -> list[tuple[str, Tensor]]:
        """The tables of what these queries alone may see, each with the reason why it hides.

        -> broadcasts to 1 H n S
        """
        some = replace(places, T=stop - start, step=places.step + start)
        parts = ((_why(each), of_some(each, places, start, stop)) for each in conjuncts(visible))
        tables = ((why, each.dense(some)) for why, each in parts)
        return [(why, x if x.shape[0] == 1 else x[row : row + 1]) for why, x in tables]

    memory = memory.select(one)

    def asked(start: int, stop: int, state: State | None, need: Need) -> Attended:
        """The same call for some queries of the row alone."""
        segments, position = call.segments, call.position
        return mechanism.forward(
            call.query[row : row + 1, :, start:stop],
            memory,
            state,
            visible=all_of(Mask(x.expand(-1, -1, stop - start, -1)) for _, x in shown(start, stop)),
            need=need,
            segments=None if segments is None else segments[row : row + 1, start:stop],
            position=None if position is None else position.cut(row, start, stop),
        )

    state, claims = call.state.select(one), mechanism.claims
    if t and claims.has_steps and not claims.is_row_wise:
        state = asked(0, t, state, "context").state
    else:
        state = State(state.step + t, state.origin, state.slots)
    reasons = ["" if there else "padding" for there in memory.exists[0].tolist()]
    for why, table in shown(t, t + 1):
        seen = table.expand(1, H, 1, memory.S)[0, head, 0].tolist()
        reasons = [told or ("" if ok else why) for told, ok in zip(reasons, seen, strict=True)]
    trace = asked(t, t + 1, state if claims.has_steps else None, "trace").trace
    found = Walk.of(trace, head, state.step, state.step + state.origin, reasons)
    computed = None if call.context is None else call.context[row, head, t]
    return at_rest(replace(found, computed=computed))


def _why(visible: Visible) -> str:
    """The reason why a predicate hides keys."""
    whys = {Causal: "later position", Window: "outside the window", Packed: "another text"}
    return whys.get(type(visible), "masked")
