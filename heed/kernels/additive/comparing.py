"""Additive energies alone, for the reference.

Weights that are returned, and aligns other than softmax, need the energies T S, but not the tensor
T S D behind them. The operators heed::additive_energies and heed::additive_energies_backward never
form it: on a CUDA device they run Triton kernels (compared.py), on the CPU the native library.
Their twin is the score of the reference. Energies are float32, whatever the dtype of the inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from heed.kernels import native as library
from heed.kernels.ability import many_in_one, needs_grad, no_triton, transformed
from heed.kernels.additive import native
from heed.kernels.additive.operator import watched
from heed.kernels.refusing import SHORT

WIDEST = 2048
"""The largest D on a GPU, as for additive attention: a block keeps one maximum per 64 of it."""


def compares(q: Tensor, k: Tensor) -> bool:
    """Whether the energies of such queries and keys are computed here."""
    if transformed() is not None:
        return False
    if q.device.type == k.device.type == "cpu":
        return q.dtype == k.dtype == torch.float32 and library.missing() is None
    fits = q.device == k.device and q.dtype == k.dtype and q.dtype in SHORT
    return fits and q.shape[3] <= WIDEST and no_triton(q.device) is None


def energies(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """w·tanh(q + k), float32.    B H T D, B G S D, H D -> B H T S"""
    if watched(q, k, w):
        energy: Tensor = operator(q, k, w)
        return energy
    if needs_grad(q, k, w):
        energy = _Energies.apply(q, k, w)  # type: ignore[no-untyped-call]
        return energy
    return _compare(q, k, w)


def _compare(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    if not q.is_cuda:
        return native.energies(q, k, w)
    from heed.kernels.additive import compared

    with torch.cuda.device(q.device):
        return compared.energies(q, k, w)


def _compare_back(grad: Tensor, q: Tensor, k: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not q.is_cuda:
        return native.energies_backward(grad, q, k, w)
    from heed.kernels.additive import compared

    with torch.cuda.device(q.device):
        return compared.backward(grad, q, k, w)


@torch.library.custom_op("heed::additive_energies", mutates_args=())
def operator(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """The energies as an operator, for a compiler or a trace."""
    return _compare(q, k, w)


@torch.library.custom_op("heed::additive_energies_backward", mutates_args=())
def backward(grad: Tensor, q: Tensor, k: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and w."""
    return _compare_back(grad, q, k, w)


@operator.register_fake
def _fake(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return q.new_empty(*q.shape[:3], k.shape[2], dtype=torch.float32)


@backward.register_fake
def _fake_back(grad: Tensor, q: Tensor, k: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dw = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, w))
    return dq, dk, dw


def _remember(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    given = (grad, *ctx.saved_tensors)
    if torch.is_grad_enabled() or watched(*given) or many_in_one(grad):
        return tuple(backward(*given))
    return _compare_back(*given)


def _differentiate_twice(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
    """Second derivatives, through the definition and its tensor T S D: they are rare."""
    plainly = torch.autocast(ctx.saved_tensors[0].device.type, enabled=False)
    with torch.enable_grad(), plainly:
        given = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        grad, q, k, w = given
        heads = k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
        inside = torch.tanh(q.float()[:, :, :, None] + heads[:, :, None])
        energy = (inside @ w.float()[:, None, :, None])[..., 0]
        first = torch.autograd.grad(energy, (q, k, w), grad.float(), create_graph=True)
        return torch.autograd.grad(first, given, grads)


class _Energies(torch.autograd.Function):
    """The operator without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, w)
        return _compare(q, k, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return _differentiate(ctx, grad)


operator.register_autograd(_differentiate, setup_context=_remember)
backward.register_autograd(_differentiate_twice, setup_context=_remember)
