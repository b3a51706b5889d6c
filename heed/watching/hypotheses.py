"""Texts that were written while a model was watched: whose row is whose, and what one of them saw.

A search puts its rows in a new order at every step, and keeps which row each of them continues
(`heed.records.Search`). A watch notes the step at which each call was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from heed.errors import Refused
from heed.records import SEARCH, Attended, State, Statistics

When = tuple[int, int]
"""Which text of a watch, and its step."""

Row = Tensor | list[int]


class WrittenText:
    """Texts that were written side by side by a search.

    parents, symbols  as in `heed.records.Search`, which may still grow
    steps             how many of them were watched
    """

    def __init__(self, parents: Sequence[Row], symbols: Sequence[Row], steps: int = 0) -> None:
        self.parents, self.symbols, self.steps = parents, symbols, steps

    def path(self, rows: Sequence[int], written: Sequence[int] | None = None) -> list[int]:
        """The rows in which a hypothesis stood, refused if it did not; or its symbols are others.

        written  its symbols; the last is not compared, since no step may have read it
        """
        n, rows = len(rows), list(rows)
        if not 0 < n <= self.steps:
            raise Refused(f"{self.steps} steps were watched, but the text has {n} symbols")
        for t, row in enumerate(rows):
            parents, symbols = _numbers(self.parents[t]), _numbers(self.symbols[t])
            fits = 0 <= row < len(parents) and (not t or parents[row] == rows[t - 1])
            if not fits or (t and written is not None and symbols[row] != written[t - 1]):
                raise Refused(f"no hypothesis of this search stood in the rows {rows}")
        return rows

    def paths(self) -> list[list[int]]:
        """The rows of each hypothesis of the last step that was watched."""
        found = []
        for row in range(len(self.parents[self.steps - 1]) if self.steps else 0):
            rows = [row]
            for t in range(self.steps - 1, 0, -1):
                rows.append(_numbers(self.parents[t])[rows[-1]])
            found.append(rows[::-1])
        return found


def _numbers(row: Row) -> list[int]:
    numbers: list[int] = row.tolist() if isinstance(row, Tensor) else row
    return numbers


def told(text: WrittenText) -> list[list[list[int]]]:
    """The part of a text that a file keeps: symbols and parents of the steps that were watched."""
    return [[_numbers(x) for x in some[: text.steps]] for some in (text.symbols, text.parents)]


def moment(texts: list[WrittenText]) -> When | None:
    """The step that is being taken; None outside of searches. A new search is a new text."""
    search = SEARCH.get()
    if search is None:
        return None
    known = (i for i, text in enumerate(texts) if text.parents is search.parents)
    index = next(known, len(texts))
    if index == len(texts):
        texts.append(WrittenText(*search))
    texts[index].steps = len(search.parents)
    return index, len(search.parents) - 1


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
    looks: Iterable[tuple[int, Attended]], text: WrittenText, rows: Sequence[int]
) -> Attended | None:
    """Join what one module saw for one text, step by step; None where it saw nothing.

    looks   the records of the module for this text, and the step of each
    rows    the row that the text stood in at each step
    """
    parts = [of_row(record, rows[step], len(text.parents[step])) for step, record in looks]
    return join(parts) if parts else None


def detached(record: Attended) -> Attended:
    """The same record without its graph, its context and the slots of its state."""

    def bare(x: Tensor) -> Tensor:
        x = x.detach()
        return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x

    return changed(record, bare).replace(state=State(record.state.step, record.state.origin))
