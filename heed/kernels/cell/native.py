"""Cells on the CPU: what `native.c` is told of them. The twins are in heed/models/unrolled.py."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.choose import is_on

_ROWS = "13q"  # struct rows of native.c
_ahead = native.Function("heed_gru_ahead", _ROWS)
_back = native.Function("heed_gru_back", _ROWS)


def serves(x: Tensor) -> bool:
    """Whether the library computes with such numbers."""
    fits = type(x) is Tensor and x.is_cpu and x.dtype == torch.float32
    return fits and is_on("cell") and native.missing() is None


def gru_ahead(x: Tensor, gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The next state, and what it might have become; r and z stand in `gates` afterwards.

    B 3H, B 3H, B H -> B H, B H
    """
    x, h = _rows(x), _rows(h)
    B, H = h.shape
    new, after = h.new_empty(B, H), h.new_empty(B, H)
    _ahead(
        B, H, x.data_ptr(), gates.data_ptr(), h.data_ptr(), new.data_ptr(), after.data_ptr(),
        0, 0, 0, x.stride(0), h.stride(0), 0,
    )  # fmt: skip
    return after, new


def gru_back(
    by: Tensor, h: Tensor, gates: Tensor, new: Tensor, by_x: Tensor, by_gates: Tensor
) -> Tensor:
    """Write the gradients of both parts of the gates; what reaches the state past them.

    B H, B H, B 3H, B H -> B H
    """
    by, h = _rows(by), _rows(h)
    B, H = h.shape
    direct = h.new_empty(B, H)
    _back(
        B, H, 0, gates.data_ptr(), h.data_ptr(), new.data_ptr(), direct.data_ptr(),
        by.data_ptr(), by_x.data_ptr(), by_gates.data_ptr(), 0, h.stride(0), by.stride(0),
    )  # fmt: skip
    return direct


def _rows(x: Tensor) -> Tensor:
    """Rows without gaps inside."""
    return x if x.stride(1) == 1 else x.contiguous()
