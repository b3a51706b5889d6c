"""Sampling: symbols drawn at random, from the likeliest ones if wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Generator, Tensor

from heed.decoding.greedy import follow
from heed.decoding.stepper import Carry, Hypothesis, Rules, Stepper
from heed.errors import Refused, ShapeError


@torch.no_grad()
def sample(
    stepper: Stepper[Carry],
    carry: Carry,
    count: int,
    *,
    begin: int | Tensor,
    end: int,
    longest: int | Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
    seeds: Sequence[int] | None = None,
    forbid: Iterable[int] = (),
    lengths: Tensor | None = None,
    device: torch.device | str | None = None,
    cut: bool = False,
) -> list[Hypothesis]:
    """One hypothesis per sentence, drawn; several per sentence by `select` with rows repeated.

    temperature  below 1 sharpens, above 1 flattens; towards 0 it becomes greedy
    top_k        only the k likeliest symbols (Fan 2018); of equals, those with the lowest ids
    top_p        only the likeliest symbols that together hold this share (Holtzman 2020), the
                 one that passes it included; counted after temperature and top_k
    generator    on the model's device. The same seed and batch give the same answers; in another
                 batch a sentence meets other draws
    seeds        one per sentence, instead of a generator: its draws are then its own, in any batch
                 and on any device

    The rest is as for `greedy`. `log_prob` is the model's own, before all of these.
    """
    _check(temperature, top_k, top_p)
    rules = Rules.of(count, begin, end, longest, forbid, lengths, device, cut)
    own = None
    if seeds is not None:
        if len(seeds) != count:
            raise ShapeError(f"there are {len(seeds)} seeds for {count} sentences")
        own = torch.tensor([signed(seed) for seed in seeds], device=rules.device)

    def draw(log_prob: Tensor, who: Tensor, t: int) -> Tensor:
        """N V -> N"""
        # The best is subtracted first: 0 stays 0 at any temperature, where x / 1e-40 is infinite.
        cool = (log_prob - log_prob.amax(-1, keepdim=True)).div_(temperature)
        if top_k is None and top_p is None:
            share, symbols = cool.softmax(-1), torch.arange(cool.shape[1], device=cool.device)
        else:
            cool, symbols = best(cool, top_k)
            share = truncate(cool, top_p)
        clock = None if own is None else clocks(own[who], t, symbols)
        picked = _pick(share, generator, clock)
        return symbols.expand_as(share).gather(-1, picked[:, None])[:, 0]

    return follow(stepper, carry, rules, draw)


def best(logits: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    """The k likeliest and their ids, best first; of equals, the lowest ids.    N V -> N K, N K"""
    if top_k is not None and top_k < logits.shape[1] and logits.is_cpu:
        found, symbols = logits.topk(top_k)
        if bool(((logits >= found[:, -1:]).sum(-1) == top_k).all()):  # no equal is left outside
            symbols = symbols.sort(-1).values
            found, order = logits.gather(-1, symbols).sort(dim=-1, descending=True, stable=True)
            return found, symbols.gather(-1, order)
    found, symbols = logits.sort(dim=-1, descending=True, stable=True)
    return found[:, :top_k], symbols[:, :top_k]


def truncate(sorted_logits: Tensor, top_p: float | None) -> Tensor:
    """The shares of the likeliest symbols, zero for those outside.    N K"""
    share = sorted_logits.softmax(-1)
    if top_p is None or top_p == 1:  # a running sum may round to 1 too early
        return share
    before = share.cumsum(-1) - share
    before[:, 0] = 0.0  # the likeliest is always in, also where NaN came from the model
    return share.masked_fill(before >= top_p, 0.0)


def _pick(share: Tensor, generator: Generator | None, clock: Tensor | None) -> Tensor:
    """A column drawn in proportion to its share.    N V -> N"""
    # An exponential race (the fastest of clocks that run at these rates): it takes rows of any
    # length and lets NaN pass, so that the caller can say what is wrong.
    if clock is None:
        clock = torch.empty_like(share).exponential_(generator=generator)
    return (share / clock).argmax(-1)


def clocks(seeds: Tensor, t: int, symbols: Tensor) -> Tensor:
    """Exponential draws that follow from the seed, the step and the symbol alone.    N, N K -> N K

    A counter put through a hash (SplitMix64; Steele 2014), as in Salmon 2011: no state, so a row's
    draws do not depend on the rows beside it. Symbols that are the same for all rows: K.
    """
    row = _mixed(_mixed(seeds) + signed((t + 1) * GOLDEN))
    bits = _logical_shift(_mixed(row[:, None] + (symbols + 1) * signed(GOLDEN)), 11)
    uniform = (bits.double() + 0.5) * 2.0**-53
    return -uniform.log().float()


GOLDEN = 0x9E3779B97F4A7C15


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's last steps; int64 wraps round as its unsigned arithmetic does."""
    x = (x ^ _logical_shift(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ _logical_shift(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


def signed(number: int) -> int:
    """The lowest 64 bits of a number, as an int64."""
    return (number + 2**63) % 2**64 - 2**63


def seed_of(*facts: object) -> int:
    """The seed of one text's draws, which follows from these facts alone."""
    told = " ".join(map(str, facts)).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest())


def _check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not temperature > 0:
        raise Refused(
            f"temperature must be above 0; got {temperature} (near 0, sampling is greedy)"
        )
    if top_k is not None and top_k < 1:
        raise Refused(f"top_k must be 1 or more; got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refused(f"top_p must satisfy 0 < top_p <= 1; got {top_p}")
