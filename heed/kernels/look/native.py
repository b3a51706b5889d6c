"""One look on the CPU: the calls of `native.c`. The twin is in heed/kernels/single.py."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.native import address
from heed.kernels.strides import dense

_LOOK = "19qd"  # struct look of native.c
_ahead = native.Function("heed_look_ahead", _LOOK)
_back = native.Function("heed_look_back", _LOOK)


def serves(*tensors: Tensor) -> bool:
    """Whether the library serves these tensors, by dtype and strides."""
    return native.reads(*tensors) and all(x.stride(-1) == 1 and not x.is_neg() for x in tensors)


def ahead(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """N 1 D, N S D, N S R, N 1 S -> context N 1 R, weight N 1 S"""
    N, S, D = k.shape
    R = v.shape[2]
    context, weight = q.new_empty(N, 1, R), q.new_empty(N, 1, S)
    _ahead(
        address(q), address(k), address(v), address(hidden),
        address(context), address(weight), 0, 0, 0, N, S, D, R,
        q.stride(0), k.stride(0), k.stride(1), v.stride(0), v.stride(1), 0, scale,
    )  # fmt: skip
    return context, weight


def back(by: Tensor, k: Tensor, v: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The gradients of the energies and of the queries.    N 1 R -> N 1 S, N 1 D"""
    N, S, D = k.shape
    R = v.shape[2]
    by = dense(by)
    by_energy, by_q = torch.empty_like(weight), by.new_empty(N, 1, D)
    _back(
        0, address(k), address(v), 0, 0, address(weight), address(by),
        address(by_energy), address(by_q), N, S, D, R,
        0, k.stride(0), k.stride(1), v.stride(0), v.stride(1), by.stride(0), scale,
    )  # fmt: skip
    return by_energy, by_q
