"""Following texts while they are written: whose row is whose, and what one of them saw.

A search puts its rows in a new order at every step (`begin`, `step`, `select`). While a model is
watched, these calls are noted; afterwards the rows that a surviving text stood in are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import update_wrapper
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from heed.errors import Refused
from heed.records import Attended, State, Statistics

When = tuple[int, int]
"""Which text of a watch, and its step; -1 while the text began (a prompt, a source)."""


class Text:
    """Texts that were written side by side: what each row read, and which row it came from.

    symbols   for each step, the symbol that each row read
    parents   for each step, the row of the step before that each row continues; at the first step,
              its sentence
    """

    def __init__(self) -> None:
        self.symbols: list[list[int]] = []
        self.parents: list[list[int]] = []
        self.chosen: list[int] | None = None  # rows selected since the last step

    def select(self, rows: list[int]) -> None:
        """Go on with these rows."""
        self.chosen = rows if self.chosen is None else [self.chosen[row] for row in rows]

    def step(self, symbols: list[int]) -> None:
        """Each row reads a symbol."""
        parents = list(range(len(symbols))) if self.chosen is None else self.chosen
        self.symbols.append(symbols)
        self.parents.append(parents)
        self.chosen = None

    def path(self, symbols: Sequence[int], sentence: int) -> list[int]:
        """The rows in which a text of n symbols stood when each of them was chosen: n steps."""
        n = len(symbols)
        if not 0 < n <= len(self.symbols):
            raise Refused(f"{len(self.symbols)} steps were watched, but the text has {n} symbols")
        before = list(symbols[: n - 1])
        for row in range(len(self.symbols[n - 1])):
            rows = self._back(n - 1, row)
            read = [self.symbols[t][rows[t]] for t in range(1, n)]
            if self.parents[0][rows[0]] == sentence and read == before:
                return rows
        raise Refused(f"no hypothesis of sentence {sentence} was continued by these symbols")

    def _back(self, t: int, row: int) -> list[int]:
        rows = [row]
        for parents in self.parents[t:0:-1]:
            rows.append(parents[rows[-1]])
        return rows[::-1]


class _Noted:
    """A watch's wrapper around a method of a module; a deep copy of the module has its own method
    instead.

    below  what the instance itself had under that name before, if anything
    """

    def __init__(self, watch: Following, call: Any, below: Any, noting: Callable[..., Any]) -> None:
        update_wrapper(self, call)  # first: it copies the attributes of another watch's wrapper
        self.watch, self.call, self.below, self.noting = watch, call, below, noting

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.noting(*given, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self.call, memo)


class Following:
    """Notes the calls of `begin`, `step` and `select` inside a model while a watch lasts."""

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self.now: When | None = None
        self.busy = False  # inside one of the calls: a model's part may have them too
        self.last: tuple[object, int] | None = None  # the carry last handed out, and its text
        self.kinds: set[type] = set()
        self.ended = False

    @property
    def stepping(self) -> bool:
        """Whether a step is being taken, so that each row asks once."""
        return self.now is not None and self.now[1] >= 0

    def listen(self, model: nn.Module, stack: ExitStack) -> None:
        """Note the calls inside a model until the stack is left."""
        calls: dict[str, tuple[Callable[..., Any], int]]
        calls = {"begin": (self._begin, 0), "step": (self._step, 2), "select": (self._select, 2)}
        for module in model.modules():
            if all(callable(getattr(module, name, None)) for name in calls):
                for name, (around, least) in calls.items():
                    self._note(module, name, around, least, stack)

    def _note(
        self,
        module: nn.Module,
        name: str,
        around: Callable[..., Any],
        least: int,
        stack: ExitStack,
    ) -> None:
        """Wrap a method of this one module until the stack is left.

        A call with fewer arguments than `least` is one of a method that only shares the name. A
        wrapper that another watch has wrapped stays, doing nothing, until that watch ends.
        """
        call, below = getattr(module, name), vars(module).get(name)

        def noting(*given: Any, **named: Any) -> Any:
            if self.ended or self.busy or len(given) < least:
                return call(*given, **named)
            self.busy = True
            try:
                return around(call, *given, **named)
            finally:
                self.busy, self.now = False, None

        def restore() -> None:
            self.ended = True
            while isinstance(top := vars(module).get(name), _Noted) and top.watch.ended:
                if top.below is None:
                    vars(module).pop(name)
                else:
                    vars(module)[name] = top.below

        vars(module)[name] = _Noted(self, call, below, noting)
        stack.callback(restore)

    def _begin(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.texts.append(Text())
        self.now = (len(self.texts) - 1, -1)
        return self._hand_out(call(*given, **named), self.now[0])

    def _step(self, call: Callable[..., Any], carry: Any, symbols: Tensor, **named: Any) -> Any:
        index = self._text(carry)
        self.texts[index].step(symbols.tolist())
        self.now = (index, len(self.texts[index].symbols) - 1)
        told = call(carry, symbols, **named)
        self._hand_out(told.carry, index)
        return told

    def _select(
        self, call: Callable[..., Any], carry: Any, rows: Tensor, *given: Any, **named: Any
    ) -> Any:
        index = self._text(carry)
        self.texts[index].select(rows.tolist())
        return self._hand_out(call(carry, rows, *given, **named), index)

    def _hand_out(self, carry: Any, index: int) -> Any:
        self.last = (carry, index)
        self.kinds.add(type(carry))
        return carry

    def _text(self, carry: Any) -> int:
        """The text that a carry continues; any carry but the last one branches off into another."""
        if self.last is not None and self.last[0] is carry:
            return self.last[1]
        if type(carry) not in self.kinds:
            raise Refused(
                "this text was begun before it was watched, perhaps on a fast path that forms no "
                "records; begin it inside: with heed.watch(model): carry = model.begin(...)"
            )
        self.texts.append(Text())
        return len(self.texts) - 1


def fields(record: Attended) -> dict[str, Tensor]:
    """The tensors of a record by name, without its context."""
    _, weight, energy, said = record.formed
    named = {
        "weight": weight,
        "energy": energy,
        "log_prob": record.log_prob,
        "entropy": record.entropy,
        "penalty": record.penalty,
    }
    if said is not None:
        named |= {f"statistics.{name}": x for name, x in said._asdict().items()}
    return {name: x for name, x in named.items() if x is not None}


def of_fields(tensors: Mapping[str, Tensor], kernel: str = "reference", **told: Any) -> Attended:
    """A record made of tensors by name, as `fields` gives them."""
    start = "statistics."
    stated = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
    told |= {name: x for name, x in tensors.items() if not name.startswith(start)}
    said = Statistics(**stated) if stated else None
    return Attended(None, kernel=kernel, statistics=said, **told)


def changed(record: Attended, change: Callable[[Tensor], Tensor]) -> Attended:
    """The same record with every tensor changed, without its context."""
    tensors = {name: change(x) for name, x in fields(record).items()}
    return of_fields(tensors, record.kernel, refusals=record.refusals, state=record.state)


def of_row(record: Attended, row: int, rows: int) -> Attended:
    """The record of one of so many rows.    B H T S -> 1 H T S

    Hypotheses of a sentence may have asked its one memory together, as so many queries.
    """
    B, T = sizes(record)
    if not 0 <= row < rows:
        raise Refused(f"there is no row {row}: {rows} texts were written together")
    if rows == B:
        return _cut(record, row, None)
    if rows != B * T:
        raise Refused(f"{rows} texts were written, and a record has B={B} and T={T}")
    return _cut(record, row // T, row % T)


def sizes(record: Attended) -> tuple[int, int]:
    """B and T of a record."""
    _, weight, energy, said = record.formed
    for x in (weight, energy, None if said is None else said.mass):
        if x is not None:
            return x.shape[0], x.shape[2]
    raise Refused("neither weights nor statistics were kept, so there is nothing to follow")


def _cut(record: Attended, b: int, t: int | None) -> Attended:
    def some(x: Tensor) -> Tensor:
        return x[b : b + 1] if t is None else x[b : b + 1, :, t : t + 1]

    seen, state = record.formed.statistics, State(record.state.step, record.state.origin)
    cut = changed(record.replace(statistics=None), some)
    return cut.replace(state=state, statistics=None if seen is None else _stated(seen, b, t))


def _stated(seen: Statistics, b: int, t: int | None) -> Statistics:
    """The statistics of one row, or of one query, whose weights are then what keys received."""
    if t is None:
        return Statistics(*(None if x is None else x[b : b + 1] for x in seen))  # type: ignore[arg-type]
    if seen.rows is None or seen.rows.shape[2] != seen.mass.shape[2]:
        raise Refused(
            "the weights of each hypothesis were not kept; begin the text inside the watch"
        )
    whole = {"received", "map", "rows"}
    fields: dict[str, Tensor | None] = {
        name: None if x is None or name in whole else x[b : b + 1, :, t : t + 1]
        for name, x in seen._asdict().items()
    }
    fields["received"] = seen.rows[b : b + 1, :, t]
    return Statistics(**fields)  # type: ignore[arg-type]


def join(records: Sequence[Attended]) -> Attended:
    """Consecutive records as one, along T; queries give 0 to keys that came after them."""
    if len(records) == 1:
        return records[0]
    S = max(keys(record) for record in records)
    told = [record.formed.statistics for record in records]
    tops = [said.top.shape[-1] for said in told if said is not None and said.top is not None]
    return Attended.join([_wider(record, S, max(tops, default=0)) for record in records])


def keys(record: Attended) -> int:
    """S of a record."""
    _, weight, energy, said = record.formed
    for x in (weight, energy, None if said is None else said.received):
        if x is not None:
            return x.shape[-1]
    return 0


def _wider(record: Attended, S: int, most: int) -> Attended:
    def to(x: Tensor | None) -> Tensor | None:
        return None if x is None else pad(x, (0, S - x.shape[-1]))

    _, weight, energy, seen = record.formed
    if seen is not None:  # maps of other widths cannot follow each other
        seen = seen._replace(received=to(seen.received), map=None, rows=None)
        if seen.top is not None and seen.share is not None:
            more = (0, most - seen.top.shape[-1])  # there were fewer keys to list
            seen = seen._replace(top=pad(seen.top, more), share=pad(seen.share, more))
    return record.replace(weight=to(weight), energy=to(energy), statistics=seen)


def followed(
    looks: Iterable[tuple[When, Attended]], text: Text, rows: Sequence[int]
) -> Attended | None:
    """What one module saw for one text: as it began, and at every step; None where it saw nothing.

    looks   the records of the module for this text, and when each was made
    rows    the row that the text stood in at each step
    """
    first, parts = text.parents[0][rows[0]], []
    for when, record in looks:
        if when[1] < 0:
            parts.append(of_row(record, first, sizes(record)[0]))
        else:
            count = len(text.symbols[when[1]])
            parts.append(of_row(record, rows[when[1]], count))
    return join(parts) if parts else None


def detached(record: Attended) -> Attended:
    """The same record without its graph, its context and the slots of its state."""

    def bare(x: Tensor) -> Tensor:
        x = x.detach()
        return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x

    return changed(record, bare).replace(state=State(record.state.step, record.state.origin))
