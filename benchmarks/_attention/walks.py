"""Aligns that move along the keys, and hard and sparse ones: against a Python loop over T."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import heed
from _attention.cases import BOTH, CAPTURED, FORWARD, Case, Inputs, Work, leaf
from _attention.measuring import Effort
from heed.attention.names import build
from heed.kernels import KERNELS

NAMES = (
    "monotonic",
    "forward",
    "forced-forward",
    "mixture-window",
    "sparsemax",
    "entmax",
    "argmax",
)
SIZES = {"cuda": (64, 256, 256, 128), "cpu": (16, 64, 64, 64), "tiny": (2, 5, 7, 4)}  # B T S D
OPTIONS = {"monotonic": {"noise": 0.0}}


def cases(device: str, tiny: bool) -> Iterator[Case]:
    """Every name in float32, forward and backward."""
    B, T, S, D = SIZES["tiny" if tiny else device]
    more = (BOTH + CAPTURED,) if device == "cuda" else ()
    for name in NAMES:
        yield Case(
            f"{name}: {B} × {T} × {S} × {D}",
            partial(_work, name, (B, T, S, D), device),
            torch.float32,
            passes=(FORWARD, BOTH, *more),
            compiled=False,  # T steps unrolled compile for minutes
        )


def _work(name: str, sizes: tuple[int, int, int, int], device: str) -> Work:
    B, T, S, D = sizes
    q, k, v = (leaf(B, 1, n, D, device=device, dtype=torch.float32) for n in (T, S, S))
    mechanism = build(name, query=D, key=D, **OPTIONS.get(name, {})).to(device).train()
    exact = copy.deepcopy(mechanism).double()

    def plain(inputs: Inputs, rows: Tensor | None) -> Tensor:
        """heed's reference, which is the definition: one step after the other."""
        q, k, v = inputs.values()
        used = exact if q.dtype == torch.float64 else mechanism
        with heed.kernels.off(*KERNELS):
            return heed.attend(q, k, v, used).context

    dots = 4 * B * T * S * D
    return Work(
        {"q": q, "k": k, "v": v},
        lambda: heed.attend(q, k, v, mechanism),
        plain,
        effort=Effort(products=dots, bytes=(2 * q.numel() + 2 * k.numel()) * 4),
        whole=True,
    )
