"""Abilities of this process: Triton on this device, heed's operators under this transform."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., object])


def unchanging(f: F) -> F:
    """Mark a function whose result never changes in a process: torch.compile need not trace it.

    This is `torch.compiler.assume_constant_result` without loading the compiler.
    """
    f.__dict__["_dynamo_marked_constant"] = True
    return f


@unchanging
def no_triton(device: torch.device) -> str | None:
    """The reason why Triton cannot serve tensors on this device; None where it can."""
    if device.type != "cuda":
        return f"it runs on a CUDA device, not on {device.type}"
    return _no_triton_on(device.index or 0)


@cache
def _no_triton_on(index: int) -> str | None:
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(index) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or more"
    return None


def transformed() -> str | None:
    """The reason why heed's operators cannot be called now, as under vmap or jvp; or None."""
    if torch._C._are_functorch_transforms_active():
        return "a torch.func transform is active, and the operator has only first derivatives"
    return forward_mode()


def forward_mode() -> str | None:
    """The reason why no fused operator can be called now: no forward-mode derivative; or None."""
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active, which the operator does not support"
    return None


def many_in_one(x: Tensor) -> bool:
    """Whether a tensor is a batch under vmap or `is_grads_batched`, which has no address."""
    about = torch._C._functorch
    return about.is_batchedtensor(x) or about.is_legacy_batchedtensor(x)


def lowered(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast computes in; None where it is off, and for meta tensors."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A context with autocast off: it must not touch energies and softmax."""
    if lowered(x.device) is None:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def recorded() -> bool:
    """Whether a compiler, a trace or a mode of the dispatcher records each operation.

    They do not see what C writes, so their graph would hold uninitialised memory.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds; of sizes that an export leaves open, whether it must.

    A compiler would make a graph for each case; an export has one, which must serve all of them.
    """
    if not torch.compiler.is_exporting():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def for_onnx() -> bool:
    """Whether the graph being made is for ONNX, which has no operators of heed."""
    return torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export()


def saving() -> object:
    """The hooks on tensors that autograd saves, as checkpointing sets them; None without any.

    Checkpointing may run a part of a loop again, which must give the same results as before.
    """
    if torch.compiler.is_compiling():
        return None
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether a result of these tensors may need a gradient."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
