"""The walks' gradients on a GPU: each program steps back over T, from the weights it is given.

The gradient of the slot that a step began with is one row of memory per head, overwritten at every
step. A step that went nowhere has weights of zero: it passes that row on as it is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.scan.device import (
    FAINT,
    HARD,
    TRACE,
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
def _stop_back(
    E, OK, W, STAND, G, DE, D, H, T, S, e_b, e_h, e_t, ok_b, ok_h, ok_t, ok_s,
    KIND: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """d_j = p_j g_j + (1 - p_j) d_{j+1} of the slot; of the energies, weight_j (g_j - d_j)."""
    n = tl.program_id(0).to(tl.int64)
    E += n // H * e_b + n % H * e_h
    OK += n // H * ok_b + n % H * ok_h
    D += n * S
    at = tl.arange(0, BLOCK)
    tiles = tl.cdiv(S, BLOCK)
    for back in range(T):
        tl.debug_barrier()
        t = (T - 1 - back).to(tl.int64)
        row = (n * T + t) * S
        moved = tl.load(STAND + n * T + t) == t
        carry = 0.0
        for i in range(tiles):
            j = (tiles - 1 - i) * BLOCK + at
            seen = seen_at(OK + t * ok_t, j, j < S, ok_s, MASKED)
            chance = chance_at(E + t * e_t, j, seen, KIND)
            after = tl.load(D + j, j < S, other=0.0)
            grad = tl.load(G + row + j, j < S, other=0.0) + after
            began = scanned(1 - chance, chance * grad, carry, True)
            carry = entry(began, at, 0)
            tl.store(D + j, tl.where(moved, began, after), j < S)
            slope = tl.zeros([BLOCK], tl.float32)
            if KIND != HARD:
                weight = tl.load(W + row + j, seen & moved, other=0.0)
                slope = tl.where(seen & moved, weight * (grad - began), 0.0)
            tl.store(DE + row + j, slope, j < S)


@triton.jit(do_not_specialize=["T", "S"])
def _cover(COVERED, W, USED, T, S, BLOCK: tl.constexpr):
    """The coverage before each step."""
    n = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    W += n * T * S
    USED += n * T * S
    used = tl.load(COVERED + n * S + j, j < S)
    for _ in range(T):
        tl.store(USED + j, used, j < S)
        used += tl.load(W + j, j < S)
        W += S
        USED += S


@triton.jit(do_not_specialize=LENGTHS)
def _weigh_back(
    OK, BEFORE, MOVE, W, STAND, G, DE, D, C, DM, P,
    H, T, S, e_b, e_h, e_t, ok_b, ok_h, ok_t, ok_s,
    FORCED: tl.constexpr, MOVES: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Backward through softmax and prior; DE comes in as the coverage before each step."""
    n = tl.program_id(0).to(tl.int64)
    OK += n // H * ok_b + n % H * ok_h
    D += n * S
    C += n * S
    P += n * S
    at = tl.arange(0, BLOCK)
    tiles = tl.cdiv(S, BLOCK)
    for back in range(T):
        tl.debug_barrier()
        t = (T - 1 - back).to(tl.int64)
        row = (n * T + t) * S
        seen_row = OK + t * ok_t
        move, d_move = 0.5, 0.0
        if MOVES:
            move = tl.load(MOVE + n * T + t)
        if tl.load(STAND + n * T + t) == t:
            # The mean is found in two parts: where one place has nearly all the weight, its
            # gradient is a small difference, which dividing by the prior may magnify.
            mean, rest = 0.0, 0.0
            for _ in tl.static_range(2):
                mean = rest
                rest = 0.0
                for start in range(0, S, BLOCK):
                    j = start + at
                    grad = tl.load(G + row + j, j < S, other=0.0) + tl.load(D + j, j < S, other=0.0)
                    if FORCED:
                        grad += tl.load(C + j, j < S, other=0.0)
                    rest += tl.sum(tl.load(W + row + j, j < S, other=0.0) * (grad - mean), 0)
            stood = tl.load(STAND + n * T + t - 1, t > 0, other=-1).to(tl.int64)
            FROM = tl.where(stood < 0, BEFORE + n * S, W + (n * T + stood) * S)
            carry = 0.0
            for start in range(0, S, BLOCK):
                j = start + at
                grad = tl.load(G + row + j, j < S, other=0.0) + tl.load(D + j, j < S, other=0.0)
                weight = tl.load(W + row + j, j < S, other=0.0)
                if FORCED:
                    used = tl.load(DE + row + j, j < S, other=0.0)
                    later = tl.load(C + j, j < S, other=0.0)
                    reached = summed(tl.load(FROM + j, j < S, other=0.0), carry, False)
                    carry = entry(reached, at, BLOCK - 1)
                    slope = weight * (grad + later - mean - rest)
                    prior = reached * left_of(used)
                    d_prior = tl.where(prior < FAINT, 0.0, slope / tl.maximum(prior, FAINT))
                    unused = tl.where(1 - used >= TRACE, d_prior * reached, 0.0)
                    tl.store(C + j, later - unused, j < S)
                    d_prior *= left_of(used)
                else:
                    waits, arrives, prior = forward_prior(
                        FROM, seen_row, j, j < S, ok_s, move, carry, MASKED
                    )
                    carry = entry(arrives, at, BLOCK - 1)
                    slope = weight * (grad - mean - rest)
                    d_prior = tl.where(prior < FAINT, 0.0, slope / tl.maximum(prior, FAINT))
                    d_move += tl.sum(d_prior * (arrives - waits), 0)
                tl.store(DE + row + j, slope, j < S)
                tl.store(P + j, d_prior, j < S)
            tl.debug_barrier()
            carry = 0.0
            for i in range(tiles):
                j = (tiles - 1 - i) * BLOCK + at
                here = tl.load(P + j, j < S, other=0.0)
                if FORCED:
                    began = summed(here, carry, True)
                    carry = entry(began, at, 0)
                else:
                    onward = move * tl.load(P + j + 1, j + 1 < S, other=0.0)
                    if MASKED:
                        seen = seen_at(seen_row, j + 1, j + 1 < S, ok_s, MASKED)
                        onward = scanned(tl.where(seen, 0.0, 1.0), onward, carry, True)
                        carry = entry(onward, at, 0)
                    began = (1 - move) * here + onward
                tl.store(D + j, began, j < S)
        else:
            for start in range(0, S, BLOCK):
                j = start + at
                tl.store(DE + row + j, tl.zeros([BLOCK], tl.float32), j < S)
        if MOVES:
            tl.store(DM + n * T + t, d_move)


@triton.jit(do_not_specialize=["H", "T", "S", "K", "ok_b", "ok_h", "ok_t", "ok_s"])
def _mix_back(
    HEIGHT, SHARP, CENTRE, OK, G, DH, DS, DC, H, T, S, K, ok_b, ok_h, ok_t, ok_s,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = row * K + tl.program_id(1)
    OK += row // T // H * ok_b + row // T % H * ok_h + row % T * ok_t
    height, sharp, centre = tl.load(HEIGHT + k), tl.load(SHARP + k), tl.load(CENTRE + k)
    mass = tl.zeros([BLOCK], tl.float32)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for start in range(0, S, BLOCK):
        j = start + tl.arange(0, BLOCK)
        seen = seen_at(OK, j, j < S, ok_s, MASKED)
        away = centre - j.to(tl.float32)
        each = tl.load(G + row * S + j, seen, other=0.0) * tl.exp(-sharp * away * away)
        mass += each
        first += each * away
        second += each * away * away
    tl.store(DH + k, tl.sum(mass, 0))
    tl.store(DS + k, -height * tl.sum(second, 0))
    tl.store(DC + k, -2 * height * sharp * tl.sum(first, 0))


def walk(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
    weight: Tensor,
    stand: Tensor,
    grad: Tensor,
    d_last: Tensor,
    d_used: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the energies, of the slot given (two parts), and of the moves."""
    B, H, T, S = energy.shape
    energy = dense(energy)
    grad, before = grad.contiguous(), before.contiguous()
    d_energy, d_before = energy.new_empty(B, H, T, S), _copy(d_last)
    d_covered = energy.new_empty(0) if d_used is None else _copy(d_used)
    d_move = energy.new_empty(0 if move is None else (B, H, T))
    lengths = H, T, S, *energy.stride()[:3], *((0, 0, 0, 0) if ok is None else ok.stride())
    masked, seen, block = ok is not None, stand if ok is None else ok.view(torch.uint8), tile(S)
    if kind in KINDS[:2]:
        tensors = energy, seen, weight, stand, grad, d_energy, d_before
        _stop_back[(B * H,)](*tensors, *lengths, KINDS.index(kind), masked, **block)
        return d_energy, d_before, d_covered, d_move
    if covered is not None:
        across = B * H, triton.cdiv(S, block["BLOCK"])
        _cover[across](covered.contiguous(), weight, d_energy, T, S, **block)
    moves = before if move is None else move.contiguous()
    rows = seen, before, moves, weight, stand, grad, d_energy, d_before, d_covered, d_move
    forms = kind == "forced", move is not None, masked
    _weigh_back[(B * H,)](*rows, torch.empty_like(before), *lengths, *forms, **block)
    return d_energy, d_before, d_covered, d_move


def mix(
    height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of height, sharpness and centre.    B H T K each"""
    B, H, T, K = centre.shape
    S = grad.shape[-1]
    grad, *parts = (x.contiguous() for x in (grad, height, sharpness, centre))
    found = [torch.empty_like(x) for x in parts]
    strides = (0, 0, 0, 0) if ok is None else ok.stride()
    seen = grad if ok is None else ok.view(torch.uint8)
    lengths, block = (H, T, S, K, *strides), mixture_tile(S)
    _mix_back[(B * H * T, K)](*parts, seen, grad, *found, *lengths, ok is not None, **block)
    return found[0], found[1], found[2]


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
