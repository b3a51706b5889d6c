"""Functions of the scans' Triton kernels: reading rows, and scans over a tile with a carry."""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)
FAINT = tl.constexpr(1e-30)  # heed.attention.align.weighed
TRACE = tl.constexpr(1e-6)  # heed.attention.moving_aligns.forced_step
HARD = tl.constexpr(1)


@triton.jit
def then(keep, x, next_keep, next_x):
    """Two consecutive stretches of x_j = keep_j x_{j-1} + term_j combined."""
    return keep * next_keep, next_keep * x + next_x


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def scanned(keep, term, carry, REVERSE: tl.constexpr):
    """x_j = keep_j x_{j-1} + term_j over a tile; `carry` is x before it.    BLOCK"""
    kept, x = tl.associative_scan((keep, term), 0, then, reverse=REVERSE)
    return x + kept * carry


@triton.jit
def summed(term, carry, REVERSE: tl.constexpr):
    """The running sum over a tile."""
    return tl.associative_scan(term, 0, plus, reverse=REVERSE) + carry


@triton.jit
def entry(x, at, place):
    """The entry of a tile at one place: the carry for the next tile."""
    return tl.sum(tl.where(at == place, x, 0.0), 0)


@triton.jit
def seen_at(OK, j, inside, by_key, MASKED: tl.constexpr):
    """The keys that are visible; none outside."""
    if MASKED:
        return tl.load(OK + j * by_key, inside, other=0) != 0
    return inside


@triton.jit
def chance_at(E, j, seen, KIND: tl.constexpr):
    """The probability of stopping at each place; zero where it is hidden."""
    energy = tl.load(E + j, seen, other=0.0)
    if KIND == HARD:
        return tl.where(seen & (energy > 0), 1.0, 0.0)
    return tl.where(seen, 1 / (1 + tl.exp(-energy)), 0.0)


@triton.jit
def forward_prior(FROM, OK, j, inside, by_key, move, carry, MASKED: tl.constexpr):
    """The mass that stays at each place, the mass that arrives from the one before, and the prior.

    Mass on hidden places arrives at the next visible one.
    """
    waits = tl.load(FROM + j, inside, other=0.0)
    arrives = tl.load(FROM + j - 1, inside & (j > 0), other=0.0)
    if MASKED:
        crossed = seen_at(OK, j - 1, inside & (j > 0), by_key, MASKED)
        keep = tl.where(crossed | (j == 0), 0.0, 1.0)
        arrives = scanned(keep, arrives, carry, False)
    return waits, arrives, (1 - move) * waits + move * arrives


@triton.jit
def left_of(covered):
    """The unused share of each place, at least TRACE."""
    return tl.maximum(1 - covered, TRACE)
