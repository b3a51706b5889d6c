"""From the records of a watch to the layers of an atlas: weights or pooled maps, with their words.

seen = {"encoder.0": record, ...}                      # heed.Attended by path
layers(seen, lambda path: (words, None)).values()      # each over the same words
heed.watch(model, statistics=summary(12))              # enough for texts of any length
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.records import Attended, Statistics, Summary
from heed.viewing.layers import Kind, Layer

CELLS = (512, 1024)
"""Cells along a side of a map, at least and at most. A text with no more symbols has one for each
weight, so its map is exact."""

ROOM = 2**30
"""Bytes that the maps of all attentions may take if they have more cells than the least."""

HEADS = 16
"""The assumed number of heads of an attention, a safe estimate."""

Words = tuple[Sequence[str], Sequence[str] | None]
"""The words of queries and of keys; without the latter it is self-attention."""

PLAIN = {
    "self_attn": "self",
    "SelfAttention": "self",
    "encoder_attn": "cross",
    "EncDecAttention": "cross",
}
"""The names for modules of other libraries."""

TOLD = ("entropy", "peak", "spread")
"""The statistics of a head without weights, each the mean over its queries."""


def summary(attentions: int) -> Summary:
    """The statistics to request of every call, so that memory does not grow with T S.

    With fewer attentions, longer texts have exact maps.
    """
    least, most = CELLS
    cells = max(least, min(most, math.isqrt(ROOM // (4 * HEADS * max(1, attentions)))))
    return Summary(map=(cells, cells))


def layers(
    seen: Mapping[str, Attended],
    words: Callable[[str], Words],
    row: int = 0,
    kinds: Mapping[str, Kind] | None = None,
) -> dict[str, Layer]:
    """A layer for every attention with weights or a map, by its path, for one row of the batch."""
    found = {}
    names = short(seen)
    for path, record in seen.items():
        queries, keys = words(path)
        one = layer(names[path], record, queries, keys, (kinds or {}).get(path), row=row)
        if one is not None:
            found[path] = one
    return found


def layer(
    name: str,
    record: Attended,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    kind: Kind | None = None,
    *,
    row: int = 0,
) -> Layer | None:
    """The heads of one attention; None without weights and map, or without queries or keys.

    Fewer words than positions mean that the text ends in padding, which is left out if there are
    weights; otherwise positions without a word are numbered.
    """
    said = record.formed.statistics
    weight = _exact(record, row)
    if weight is not None:
        T, S = weight.shape[1:]
    elif said is not None and said.map is not None:
        T, S = _size(said)
    else:
        return None
    if not T or not S:
        return None
    if keys is None and T != S:
        kind = kind or ("static" if T == 1 else None)
        queries, keys = (["the text"], queries) if T == 1 else (queries, ())
    kind = kind or ("self" if keys is None else "cross")
    others = queries if keys is None else keys
    if weight is not None:
        weight = weight[:, : len(queries) or T, : len(others) or S]
        T, S = weight.shape[1:]
        return Layer.of(name, weight, fitted(queries, T), fitted(others, S), kind)
    assert said is not None
    assert said.received is not None
    looked = np.maximum((_array(said.mass[row]) > 0).sum(-1), 1)  # queries with any weight
    told = {name: _array(getattr(said, name)[row]).sum(-1) / looked for name in TOLD}
    told["received"] = _array(said.received[row])
    cells = _array(said.map)[row]
    return Layer.of_map(name, cells, fitted(queries, T), fitted(others, S), kind, told)


def _exact(record: Attended, row: int) -> NDArray[Any] | None:
    """Weights, or a map with a cell for each of them.    H T S"""
    _, weight, _, said = record.formed
    if weight is not None:
        return _array(weight[row])
    if said is None or said.map is None or not _whole(said):
        return None
    return _array(said.map[row])


def _whole(said: Statistics) -> bool:
    assert said.map is not None
    return tuple(said.map.shape[2:]) == _size(said)


def _size(said: Statistics) -> tuple[int, int]:
    """T and S of statistics with a map: these also have the mass that keys received."""
    assert said.received is not None
    return said.mass.shape[2], said.received.shape[2]


def _array(x: Any) -> NDArray[Any]:
    """An array of a tensor of any device and dtype."""
    return np.asarray(x.detach().float().cpu().numpy())


def fitted(words: Sequence[str], count: int) -> tuple[str, ...]:
    """A word for each position: positions without one are numbered from 1, as on the pages."""
    return tuple(words[:count]) + tuple(str(n + 1) for n in range(len(words), count))


def short(paths: Iterable[str]) -> dict[str, str]:
    """Paths without the parts that all of them have: "transformer.h.3.attn" is "layer 3", and
    "encoder.block.3.layer.0.SelfAttention" beside those of a decoder is "encoder 3 self"."""
    cut = {path: [PLAIN.get(part, part) for part in path.split(".")] for path in paths}
    shared = set.intersection(*map(set, cut.values())) if cut else set()
    found = {
        path: [part for part in parts if part not in shared or part.isdecimal()]
        for path, parts in cut.items()
    }
    for shorter in (_unnamed, _numbered_once):
        less = {path: shorter(parts) for path, parts in found.items()}
        found = less if len(set(map(tuple, less.values()))) == len(less) else found
    if len(set(map(tuple, found.values()))) < len(found) or [] in found.values():
        return {path: path or "attention" for path in cut}
    plain = all(len(parts) == 1 and parts[0].isdecimal() for parts in found.values())
    return {path: f"layer {parts[0]}" if plain else _joined(parts) for path, parts in found.items()}


def _unnamed(parts: list[str]) -> list[str]:
    """The parts of a path without "attention" at its end."""
    return parts[:-1] if len(parts) > 1 and parts[-1] == "attention" else parts


def _numbered_once(parts: list[str]) -> list[str]:
    """The parts without numbers after the first, which only count modules within a layer."""
    first = next((n for n, part in enumerate(parts) if part.isdecimal()), len(parts))
    return [part for n, part in enumerate(parts) if n <= first or not part.isdecimal()]


def _joined(parts: list[str]) -> str:
    numbered = any(map(str.isdecimal, parts)) and not all(map(str.isdecimal, parts))
    layer = "layer " if numbered and parts[0].isdecimal() else ""
    return layer + (" " if numbered else ".").join(parts)
