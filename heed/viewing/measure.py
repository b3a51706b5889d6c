"""Measures of attention weights: small functions on plain arrays.

Weights are `... T S`: T queries, S keys. Rows need not sum to one, since those of some mechanisms
do not: each is divided by its own mass, and a row of zeros does not count. As in causal attention,
the last query is at the position of the last key, for any number of queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.errors import Refused, ShapeError

Floats = NDArray[np.float64]
TINY = np.finfo(np.float64).tiny
RANKED = 256 * 256  # weights of a head; up to so many, its singular values are found quickly


def shares(weight: ArrayLike) -> Floats:
    """Each row divided by its mass; a row of zeros stays zero.    ... T S -> ... T S"""
    weight = _weights(weight)
    return np.asarray(weight / np.maximum(weight.sum(-1, keepdims=True), TINY))


def entropy(weight: ArrayLike) -> Floats:
    """-Σ a log a of each row, in nats: 0 for one key, log S for equal keys.    ... T S -> ... T"""
    share = shares(weight)
    return np.asarray(-(share * np.log(np.maximum(share, TINY))).sum(-1) + 0.0)


def distance(weight: ArrayLike) -> Floats:
    """Σ a |t - s|: the mean distance of each query to its keys.    ... T S -> ... T"""
    share = shares(weight)
    T, S = share.shape[-2:]
    away = np.abs(np.arange(T)[:, None] + (S - T) - np.arange(S))
    return np.asarray((share * away).sum(-1))


def sharpness(weight: ArrayLike) -> Floats:
    """The largest share of each row: 1 if all of it is on one key.    ... T S -> ... T"""
    return np.asarray(shares(weight).max(-1, initial=0.0))


def diagonality(weight: ArrayLike) -> Floats:
    """The correlation of the positions of queries and keys, -1 to 1.

    The correlation of t and s weighted by the weights: 1 on a diagonal (of any slope), -1 if the
    order is reversed, 0 if they are uncorrelated.    ... T S -> ...
    """
    share = shares(weight)
    T, S = share.shape[-2:]
    return correlation(moments(share, np.arange(T), np.arange(S)))


def moments(share: Floats, t: ArrayLike, s: ArrayLike) -> Floats:
    """Σ a (1, t, s, t², s², t s), which add up over rows.    ... T S -> ... 6"""
    t, s = np.asarray(t, np.float64), np.asarray(s, np.float64)
    mass, first, second = share.sum(-1), share @ s, share @ (s * s)
    rows = (mass, mass * t, first, mass * t * t, second, first * t)
    return np.stack([each.sum(-1) for each in rows], -1)


def correlation(moments: Floats) -> Floats:
    """The correlation of t and s; 0 if one of them does not vary.    ... 6 -> ..."""
    mass = np.maximum(moments[..., 0], TINY)
    t, s, tt, ss, ts = (moments[..., n] / mass for n in range(1, 6))
    # A variance of zero may be a rounding error above zero, and must count as zero.
    across, along = (
        np.where(each > 1e-12 * (1 + square), each, 0.0)
        for each, square in ((tt - t * t, tt), (ss - s * s, ss))
    )
    spread = np.sqrt(across * along)
    return np.asarray(np.where(spread > 0, (ts - t * s) / np.where(spread > 0, spread, 1), 0.0))


def sink_mass(weight: ArrayLike, sinks: int = 1) -> Floats:
    """The share of the first keys in each row (Xiao et al. 2023).    ... T S -> ... T"""
    return np.asarray(shares(weight)[..., :sinks].sum(-1))


def coverage(weight: ArrayLike) -> Floats:
    """The coverage of the keys, 0 to 1: the mean of the mass each received, at most 1.

    The quantity inside the coverage penalty of Wu et al. (2016), §7.    ... T S -> ...
    """
    return np.asarray(np.minimum(_weights(weight).sum(-2), 1.0).mean(-1))


def agreement(weight: ArrayLike) -> Floats:
    """The agreement of heads, 0 to 1: 1 - their mean Jensen-Shannon divergence of rows, in bits.

    H T S -> H H
    """
    share = shares(weight)
    if share.ndim != 3:
        raise ShapeError(f"agreement takes weights H T S; got {' × '.join(map(str, share.shape))}")
    seen = share.sum(-1) > 0  # H T
    out = np.eye(len(share))
    for a in range(len(share)):
        for b in range(a + 1, len(share)):
            both = seen[a] & seen[b]
            between = (share[a, both] + share[b, both]) / 2
            parts = (entropy(share[a, both]) + entropy(share[b, both])) / 2
            apart = (entropy(between) - parts) / np.log(2)
            out[a, b] = out[b, a] = 1 - (apart.mean() if both.any() else 1.0)
    return out


def rollout(weights: ArrayLike, residual: float = 0.5) -> Floats:
    """Attention rollout: the share of each input in a layer's output (Abnar and Zuidema 2020, §3).

    Heads are averaged, the residual stream counts for `residual` of each layer, rows sum to one,
    and layers are multiplied. The last result is that of the whole network.    L H T T -> L T T
    """
    layers = shares(_weights(weights).mean(-3))
    if layers.ndim != 3 or layers.shape[-1] != layers.shape[-2]:
        size = " × ".join(map(str, np.shape(weights)))
        raise ShapeError(f"rollout takes self-attention weights L H T T; got {size}")
    same = np.eye(layers.shape[-1])
    sofar, out = same, []
    for layer in layers:
        sofar = shares(residual * same + (1 - residual) * layer) @ sofar
        out.append(sofar)
    return np.stack(out) if out else layers


def value_weighted(weight: ArrayLike, value: ArrayLike, out: ArrayLike | None = None) -> Floats:
    """‖α f(v)‖: the norm of each key's contribution to each query (Kobayashi et al. 2020, §3).

    Keys with values of a small norm, such as sinks often have, count for little. `value` is
    projected already; `out` is each head's part of the output projection.
    H T S, H S R, H R M -> H T S
    """
    moved = _moved(value, out)  # H S M
    return np.asarray(_weights(weight) * np.linalg.norm(moved, axis=-1)[..., None, :])


def value_weighted_jointly(
    weight: ArrayLike, value: ArrayLike, out: ArrayLike | None = None
) -> Floats:
    """‖Σ_h α f(v)‖: the same for the sum of all heads, which may cancel each other.

    H T S, H S R, H R M -> T S
    """
    joined = np.einsum("hts,hsm->tsm", _weights(weight), _moved(value, out))
    return np.asarray(np.linalg.norm(joined, axis=-1))


def _moved(value: ArrayLike, out: ArrayLike | None) -> Floats:
    value = np.asarray(value, np.float64)
    return value if out is None else value @ np.asarray(out, np.float64)


def alignment_error(
    weight: ArrayLike,
    sure: Iterable[tuple[int, int]],
    possible: Iterable[tuple[int, int]] = (),
) -> float:
    """Alignment error rate (Och and Ney 2003, §4): 0 is best.    T S

    Links are pairs (t, s). Each query with a gold link is linked to the key of its largest weight;
    the others are left out on both sides. Sure links are possible ones too.
    """
    weight = _weights(weight)
    certain = set(sure)
    allowed = certain | set(possible)
    T, S = weight.shape
    if any(not (0 <= t < T and 0 <= s < S) for t, s in allowed):
        raise Refused(f"a gold link is outside the weights, T={T} S={S}")
    rows = {t for t, _ in allowed if weight[t].any()}
    found = {(t, int(weight[t].argmax())) for t in rows}
    if not found and not certain:
        return 0.0
    return 1 - (len(found & certain) + len(found & allowed)) / (len(found) + len(certain))


def effective_rank(weight: ArrayLike) -> Floats:
    """exp of the entropy of the singular values (Roy and Vetterli 2007).    ... T S -> ...

    1 if all rows are alike; T if each query attends to another key.
    """
    singular = np.linalg.svd(_weights(weight), compute_uv=False)
    return np.asarray(np.exp(entropy(singular[..., None, :])[..., 0]) * (singular.sum(-1) > 0))


class Tally:
    """The statistics of one head, from blocks of rows that need not be in memory together."""

    def __init__(self, T: int, S: int) -> None:
        self.T, self.S = T, S
        self.rows = 0
        self.sums = np.zeros(4)
        self.moments = np.zeros(6)
        self.received = np.zeros(S)

    def add(self, start: int, weight: NDArray[Any]) -> None:
        """Add the rows from `start` on.    n S"""
        seen = np.flatnonzero(weight.any(0))  # keys hidden from all of them take no time
        weight = weight if len(seen) == self.S else weight[:, seen]
        mass = weight.sum(-1, dtype=np.float64)
        share = (weight / np.maximum(mass, TINY)[:, None]).astype(weight.dtype, copy=False)
        places = np.arange(start, start + len(weight), dtype=weight.dtype)
        columns = seen.astype(weight.dtype)
        away = np.abs((places + (self.S - self.T))[:, None] - columns)
        logs = np.log(share, out=np.zeros_like(share), where=share > 0)
        self.rows += int((mass > 0).sum())
        self.sums += (
            -_dot(share, logs),
            _dot(share, away),
            share.max(-1, initial=0.0).sum(),
            share[:, :1].sum() if len(seen) and seen[0] == 0 else 0.0,
        )
        self.moments += moments(share.astype(np.float64), places, columns)
        self.received[seen] += weight.sum(0)

    def result(self) -> dict[str, float]:
        """Each statistic by its name, as the mean over the rows that are not zero."""
        entropy, distance, sharpness, sink = map(float, self.sums / max(self.rows, 1))
        return {
            "entropy": entropy + 0.0,
            "distance": distance,
            "sharpness": sharpness,
            "diagonality": float(correlation(self.moments)),
            "sink": sink,
            "coverage": float(np.minimum(self.received, 1.0).mean()) if self.S else 0.0,
        }


def _dot(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Σ a b, summed first within rows, which loses fewer digits in single precision."""
    return float(np.einsum("ts,ts->t", a, b).sum(dtype=np.float64))


def _weights(weight: ArrayLike) -> Floats:
    weight = np.asarray(weight, np.float64)
    if weight.ndim < 2:
        raise ShapeError(f"weights have queries and keys, T S; got {weight.ndim} axes")
    return weight
