"""The walks on a GPU: one program for each head of each batch row steps over T by itself.

A step starts from the row of weights that an earlier step wrote, so rows of any length fit; a
barrier makes the row visible to all threads of the program. Keys are taken in tiles from left to
right, and a scan passes its carry from tile to tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.scan.device import (
    TINY,
    chance_at,
    entry,
    forward_prior,
    left_of,
    scanned,
    seen_at,
    summed,
)
from heed.kernels.scan.native import KINDS
from heed.kernels.scan.tuned import mixture_tile, tile
from heed.kernels.strides import dense

LENGTHS = ["H", "T", "S", "e_b", "e_h", "e_t", "ok_b", "ok_h", "ok_t", "ok_s"]
"""Parameters that differ from call to call and must not be compiled in."""


@triton.jit(do_not_specialize=LENGTHS)
def _stop(
    E, OK, BEFORE, W, LAST, STAND, H, T, S, e_b, e_h, e_t, ok_b, ok_h, ok_t, ok_s,
    KIND: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """monotonic and hard: x_j = (1 - p_{j-1}) x_{j-1} + before_j, weight_j = p_j x_j"""
    n = tl.program_id(0).to(tl.int64)
    E += n // H * e_b + n % H * e_h
    OK += n // H * ok_b + n % H * ok_h
    W += n * T * S
    FROM = BEFORE + n * S
    at = tl.arange(0, BLOCK)
    stood = -1
    for t in range(T):
        tl.debug_barrier()
        sighted, carry = 0, 0.0
        for start in range(0, S, BLOCK):
            j = start + at
            seen = seen_at(OK, j, j < S, ok_s, MASKED)
            chance = chance_at(E, j, seen, KIND)
            earlier = seen_at(OK, j - 1, (j < S) & (j > 0), ok_s, MASKED)
            keep = tl.where(j > 0, 1 - chance_at(E, j - 1, earlier, KIND), 0.0)
            x = scanned(keep, tl.load(FROM + j, j < S, other=0.0), carry, False)
            tl.store(W + j, chance * x, j < S)
            carry = entry(x, at, BLOCK - 1)
            sighted = tl.maximum(sighted, tl.max(seen.to(tl.int32), 0))
        stood = tl.where(sighted > 0, t, stood)
        FROM = tl.where(sighted > 0, W, FROM)
        tl.store(STAND + n * T + t, stood)
        E += e_t
        OK += ok_t
        W += S
    tl.debug_barrier()
    for start in range(0, S, BLOCK):
        j = start + at
        tl.store(LAST + n * S + j, tl.load(FROM + j, j < S), j < S)


@triton.jit(do_not_specialize=LENGTHS)
def _weigh(
    E, OK, BEFORE, COVERED, MOVE, W, LAST, USED, STAND,
    H, T, S, e_b, e_h, e_t, ok_b, ok_h, ok_t, ok_s,
    FORCED: tl.constexpr, MOVES: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """forward and forced: a softmax with a prior, in two passes over the row."""
    n = tl.program_id(0).to(tl.int64)
    E += n // H * e_b + n % H * e_h
    OK += n // H * ok_b + n % H * ok_h
    W += n * T * S
    FROM = BEFORE + n * S
    at = tl.arange(0, BLOCK)
    stood = -1
    if FORCED:
        for start in range(0, S, BLOCK):
            j = start + at
            tl.store(USED + n * S + j, tl.load(COVERED + n * S + j, j < S), j < S)
    for t in range(T):
        tl.debug_barrier()
        top, total, carry, move = -3.4028234663852886e38, 0.0, 0.0, 0.5
        if MOVES:
            move = tl.load(MOVE + n * T + t)
        for start in range(0, S, BLOCK):
            j = start + at
            seen = seen_at(OK, j, j < S, ok_s, MASKED)
            if FORCED:
                reached = summed(tl.load(FROM + j, j < S, other=0.0), carry, False)
                carry = entry(reached, at, BLOCK - 1)
                prior = reached * left_of(tl.load(USED + n * S + j, j < S, other=0.0))
            else:
                _, arrives, prior = forward_prior(FROM, OK, j, j < S, ok_s, move, carry, MASKED)
                carry = entry(arrives, at, BLOCK - 1)
            energy = tl.load(E + j, seen, other=0.0) + tl.log(tl.maximum(prior, TINY))
            energy = tl.where(seen & (prior > 0), energy, float("-inf"))
            tl.store(W + j, energy, j < S)
            higher = tl.maximum(top, tl.max(energy, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(energy - higher), 0)
            top = higher
        tl.debug_barrier()
        over = tl.maximum(total, 1.0)
        for start in range(0, S, BLOCK):
            j = start + at
            weight = tl.exp(tl.load(W + j, j < S, other=float("-inf")) - top) / over
            tl.store(W + j, weight, j < S)
            if FORCED:
                used = tl.load(USED + n * S + j, j < S, other=0.0)
                tl.store(USED + n * S + j, used + weight, j < S)
        stood = tl.where(total > 0, t, stood)
        FROM = tl.where(total > 0, W, FROM)
        tl.store(STAND + n * T + t, stood)
        E += e_t
        OK += ok_t
        W += S
    tl.debug_barrier()
    for start in range(0, S, BLOCK):
        j = start + at
        tl.store(LAST + n * S + j, tl.load(FROM + j, j < S), j < S)


@triton.jit(do_not_specialize=["H", "T", "S", "K", "ok_b", "ok_h", "ok_t", "ok_s"])
def _mix(
    HEIGHT, SHARP, CENTRE, OK, W, H, T, S, K, ok_b, ok_h, ok_t, ok_s,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    n = row // T
    OK += n // H * ok_b + n % H * ok_h + row % T * ok_t
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = seen_at(OK, j, j < S, ok_s, MASKED)
    weight = tl.zeros([BLOCK], tl.float32)
    for k in range(K):
        away = tl.load(CENTRE + row * K + k) - j.to(tl.float32)
        inside = tl.exp(-tl.load(SHARP + row * K + k) * away * away)
        weight += tl.load(HEIGHT + row * K + k) * inside
    tl.store(W + row * S + j, tl.where(seen, weight, 0.0), j < S)


def walk(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights, the slot handed on (two parts), and on which row each step stands."""
    B, H, T, S = energy.shape
    energy = dense(energy)
    before = before.contiguous()
    weight, last = energy.new_empty(B, H, T, S), torch.empty_like(before)
    stand = energy.new_empty((B, H, T), dtype=torch.int32)
    used = energy.new_empty(0 if covered is None else (B, H, S))
    lengths = H, T, S, *energy.stride()[:3], *((0, 0, 0, 0) if ok is None else ok.stride())
    masked, seen, block = ok is not None, stand if ok is None else ok.view(torch.uint8), tile(S)
    if kind in KINDS[:2]:
        tensors = energy, seen, before, weight, last, stand
        _stop[(B * H,)](*tensors, *lengths, KINDS.index(kind), masked, **block)
    else:
        given = (before if x is None else x.contiguous() for x in (covered, move))
        rows = energy, seen, before, *given, weight, last, used, stand
        forms = kind == "forced", move is not None, masked
        _weigh[(B * H,)](*rows, *lengths, *forms, **block)
    return weight, last, used, stand


def mix(height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int) -> Tensor:
    """The weights of a mixture of windows.    B H T K (three times) -> B H T S"""
    B, H, T, K = centre.shape
    parts = [x.contiguous() for x in (height, sharpness, centre)]
    weight = centre.new_empty(B, H, T, S)
    strides = (0, 0, 0, 0) if ok is None else ok.stride()
    block = mixture_tile(S)
    grid = B * H * T, triton.cdiv(S, block["BLOCK"])
    seen = parts[0] if ok is None else ok.view(torch.uint8)
    _mix[grid](*parts, seen, weight, H, T, S, K, *strides, ok is not None, **block)
    return weight
