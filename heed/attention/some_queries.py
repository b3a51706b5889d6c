"""Some of a call's queries, so that its weights can be formed block by block."""

from dataclasses import replace

from torch import Tensor

from heed.records import Call
from heed.visible import (
    Causal,
    Gaussian,
    Keys,
    Lengths,
    Mask,
    Near,
    Not,
    Packed,
    Pair,
    Places,
    Visible,
    Window,
)


def of_queries(call: Call, start: int, stop: int) -> Call:
    """The same call for the queries from `start` to before `stop` alone."""
    places, gain, bias = call.places, call.gain, call.bias
    segment = None if places.segment is None else places.segment[:, start:stop]
    some = replace(places, T=stop - start, step=places.step + start, segment=segment)
    return replace(
        call,
        q=call.q[:, :, start:stop],
        visible=None if call.visible is None else of_some(call.visible, places, start, stop),
        gain=gain if gain is None else Gaussian(of_table(gain.centre, start, stop), gain.sigma),
        bias=bias if bias is None else of_table(bias, start, stop),
        places=some,
    )


def of_some(visible: Visible, places: Places, start: int, stop: int) -> Visible:
    """A predicate for some queries alone; one of unknown kind is formed for all of them first."""
    if isinstance(visible, Pair):
        halves = (of_some(x, places, start, stop) for x in (visible.first, visible.second))
        return type(visible)(*halves)
    if isinstance(visible, Not):
        return Not(of_some(visible.part, places, start, stop))
    if isinstance(visible, Near):
        return Near(of_table(visible.centre, start, stop), visible.half)
    if isinstance(visible, Packed):
        ids = visible.query_ids  # B T, or B 1 where all queries are of one text
        return Packed(visible.key_ids, ids if ids.shape[1] == 1 else ids[:, start:stop])
    if isinstance(visible, Causal | Window | Lengths | Keys):
        return visible  # their places, or the keys alone, say it
    return Mask(of_table(visible.dense(places), start, stop))


def of_table(table: Tensor, start: int, stop: int) -> Tensor:
    """Some rows of a table; a single row serves all queries.    B H T ... -> B H n ..."""
    return table if table.shape[2] == 1 else table[:, :, start:stop]
