"""GRUs on the CPU: the calls of `native.c`. The twins are in heed/models/unrolled.py."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heed.errors import ShapeError
from heed.kernels import native
from heed.kernels.choose import is_on
from heed.kernels.linear.native import panels
from heed.kernels.native import address

_STEPS = "23q"  # struct steps of native.c
_ahead = native.Function("heed_gru_ahead", _STEPS)
_back = native.Function("heed_gru_back", _STEPS)


def serves(*tensors: Tensor) -> bool:
    """Whether the library serves these tensors."""
    return is_on("cell") and native.reads(*tensors)


class Panels(NamedTuple):
    """Weights of N directions in panels, for the forward pass, and turned, for the backward pass.

    weight  N G H, in panels; `feed` G F, for the input that is fed back, likewise
    bias    N G
    """

    weight: Tensor
    turned: Tensor
    bias: Tensor
    feed: Tensor | None = None
    feed_turned: Tensor | None = None

    @staticmethod
    def of(weight: Tensor, bias: Tensor, feed: Tensor | None = None) -> Panels:
        """Pack weights for the steps of one loop.    N G H, N G, G F"""
        ahead, back = (torch.stack([panels(w, turned) for w in weight]) for turned in (False, True))
        if feed is None:
            return Panels(ahead, back, bias.contiguous())
        return Panels(ahead, back, bias.contiguous(), panels(feed), panels(feed, turned=True))


class Kept(NamedTuple):
    """Tensors for the backward pass: r, z and W_n h + b_n, where the product left them; and n."""

    gates: Tensor  # T N B G
    new: Tensor  # T N B H


def ahead(x: Tensor, h: Tensor, states: Tensor, by: Panels, fed: Tensor | None = None) -> Kept:
    """Write the states after each step, given the input's part of the gates.

    x       T N B G, that part
    h       T N B H, the states before each step; h[1:] may be states[:-1], written on the way
    fed     B F, the input that is fed back, where T and N are 1
    states  T N B H, written here
    """
    T, N, B, H = states.shape
    native.must_read(x, h, *(() if fed is None else (fed,)))
    _fit(x, (T, N, B, 3 * H), "x")
    _fit(h, (T, N, B, H), "h")
    if fed is not None:
        _fit(fed, (B, 0 if by.feed is None else by.feed.shape[1]), "what is fed back")
    x, h, fed = _rows(x), _rows(h), None if fed is None else _rows(fed)
    kept = Kept(x.new_empty(T, N, B, 3 * H), x.new_empty(T, N, B, H))
    _ahead(
        T, N, B, H, 0 if fed is None else fed.shape[1],
        address(by.weight), address(by.bias), address(by.feed),
        address(x), address(fed), address(h), address(states),
        address(kept.gates), address(kept.new), 0, 0, 0, 0, 0,
        _apart(x), 0 if fed is None else _apart(fed), _apart(h), 0,
    )  # fmt: skip
    return kept


def back(
    grads: Tensor, h: Tensor, kept: Kept, by_x: Tensor, by_gates: Tensor, by: Panels, fed: int = 0
) -> tuple[Tensor, Tensor]:
    """Write the gradients of both parts of the gates; give those of the first states and of `fed`.

    T N B H, T N B H, T N B G, T N B G -> N B H, B F
    """
    T, N, B, H = kept.new.shape
    grads, h = _rows(grads), _rows(h)
    by_h, by_fed = h.new_empty(N, B, H), h.new_empty(B, fed)
    _back(
        T, N, B, H, fed,
        address(by.turned), 0, address(by.feed_turned),
        0, 0, address(h), 0, address(kept.gates), address(kept.new), address(grads),
        address(by_x), address(by_gates), address(by_h), address(by_fed),
        0, 0, _apart(h), _apart(grads),
    )  # fmt: skip
    return by_h, by_fed


def _fit(x: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Refuse tensors that do not fit the state: the library checks no bounds."""
    if tuple(x.shape) != shape[-x.dim() :] or x.numel() != math.prod(shape):
        told = " ".join(map(str, x.shape))
        want = " ".join(map(str, shape[-max(2, x.dim()) :]))
        raise ShapeError(f"a step of a GRU needs {name} as large as its state: {want}; got {told}")


def _rows(x: Tensor) -> Tensor:
    """A tensor whose rows have no gaps inside; those of a single step may have gaps between."""
    x = x.resolve_neg()
    return x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous()


def _apart(x: Tensor) -> int:
    """The stride from one row to the next."""
    return x.stride(0) if x.dim() == 2 else x.shape[-1]
