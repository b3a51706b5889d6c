"""Sampling: a symbol by chance, from the likeliest ones if wanted."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from heed.decoding.greedy import follow
from heed.decoding.stepping import Carry, Hypothesis, Rules, Stepper
from heed.errors import Refused


@torch.no_grad()
def sample(
    stepper: Stepper[Carry],
    carry: Carry,
    count: int,
    *,
    begin: int,
    end: int,
    longest: int | Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
    forbid: Iterable[int] = (),
    lengths: Tensor | None = None,
    device: torch.device | str | None = None,
) -> list[Hypothesis]:
    """One hypothesis per sentence, drawn; several per sentence by `select` with rows repeated.

    temperature  below 1 sharpens, above 1 flattens; towards 0 it becomes greedy
    top_k        only the k likeliest symbols (Fan 2018); of equals, those with the lowest ids
    top_p        only the likeliest symbols that together hold this share (Holtzman 2020), the
                 one that passes it included; counted after temperature and top_k
    generator    on the model's device. The same seed and batch give the same answers; in another
                 batch a sentence meets other draws

    The rest is as for `greedy`. `log_prob` is the model's own, before all of these.
    """
    _check(temperature, top_k, top_p)
    rules = Rules.of(count, begin, end, longest, forbid, lengths, device)

    def draw(log_prob: Tensor) -> Tensor:
        """N V -> N"""
        # The best is subtracted first: 0 stays 0 at any temperature, where x / 1e-40 is infinite.
        cool = (log_prob - log_prob.amax(-1, keepdim=True)) / temperature
        if top_k is None and top_p is None:
            return _pick(cool.softmax(-1), generator)
        cool, symbols = cool.sort(dim=-1, descending=True, stable=True)
        share = truncate(cool, top_k, top_p)
        return symbols[:, : share.shape[1]].gather(-1, _pick(share, generator)[:, None])[:, 0]

    return follow(stepper, carry, rules, draw)


def truncate(sorted_logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """The shares of the likeliest symbols, zero for those outside.    N V -> N K"""
    share = sorted_logits[:, :top_k].softmax(-1)
    if top_p is None or top_p == 1:  # a running sum may round to 1 too early
        return share
    before = share.cumsum(-1) - share
    before[:, 0] = 0.0  # the likeliest is always in, also where NaN came from the model
    return share.masked_fill(before >= top_p, 0.0)


def _pick(share: Tensor, generator: Generator | None) -> Tensor:
    """A column by chance, in proportion to its share.    N V -> N"""
    # An exponential race (the fastest of clocks that run at these rates): it takes rows of any
    # length and lets NaN pass, so that the caller can say what is wrong.
    clock = torch.empty_like(share).exponential_(generator=generator)
    return (share / clock).argmax(-1)


def _check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not temperature > 0:
        raise Refused(f"temperature is above 0; got {temperature} (the limit at 0 is greedy)")
    if top_k is not None and top_k < 1:
        raise Refused(f"top_k keeps at least one symbol; got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refused(f"top_p is a share, 0 < top_p <= 1; got {top_p}")
