"""The walks as operators: heed::scan and heed::mixture, for graphs, gradients and devices."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from heed.kernels.scan import native

Kind = Literal["monotonic", "hard", "forward", "forced"]
"""Which walk: `monotonic` is the expected one, for training, and `hard` the one for evaluation."""

TWINS: dict[str, Callable[..., Any]] = {}
"""The loops that define all this, `scan` and `mixture`. heed.attention.moving_aligns enters them; a
second derivative goes through them."""

Three = tuple[Tensor, Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]

_WALK = "Tensor energy, Tensor? ok, Tensor before, Tensor? covered, Tensor? move"
_WINDOWS = "Tensor height, Tensor sharpness, Tensor centre, Tensor? ok"
_FOUND = "Tensor weight, Tensor stand, Tensor grad, Tensor d_last, Tensor? d_used"

_library = torch.library.Library("heed", "FRAGMENT")
_library.define(f"scan(str kind, {_WALK}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(f"scan_backward(str kind, {_WALK}, {_FOUND}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(f"mixture({_WINDOWS}, SymInt S) -> Tensor")
_library.define(f"mixture_backward({_WINDOWS}, Tensor grad) -> (Tensor, Tensor, Tensor)")


def scan(
    kind: Kind,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
) -> Four:
    """The weights B H T S, the slot handed on B H S (twice), and on which row each step stands."""
    return cast(Four, torch.ops.heed.scan(kind, energy, ok, before, covered, move))


def mixture(height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int) -> Tensor:
    """The weights of a mixture of windows.    B H T K (three times) -> B H T S"""
    return cast(Tensor, torch.ops.heed.mixture(height, sharpness, centre, ok, S))


def _scan_cuda(kind: str, *inputs: Any) -> Four:
    from heed.kernels.scan import forward

    with torch.cuda.device(inputs[0].device):
        return forward.walk(kind, *inputs)


def _scan_backward_cuda(kind: str, *inputs: Any) -> Four:
    from heed.kernels.scan import backward

    with torch.cuda.device(inputs[0].device):
        return backward.walk(kind, *inputs)


def _mixture_cuda(*inputs: Any) -> Tensor:
    from heed.kernels.scan import forward

    with torch.cuda.device(inputs[0].device):
        return forward.mix(*inputs)


def _mixture_backward_cuda(*inputs: Any) -> Three:
    from heed.kernels.scan import backward

    with torch.cuda.device(inputs[0].device):
        return backward.mix(*inputs)


for _name, _cpu, _cuda in (
    ("scan", native.walk, _scan_cuda),
    ("scan_backward", native.walk_back, _scan_backward_cuda),
    ("mixture", native.mix, _mixture_cuda),
    ("mixture_backward", native.mix_back, _mixture_backward_cuda),
):
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _cuda, "CUDA")


def _scan_shapes(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
) -> Four:
    B, H, T, S = energy.shape
    used = energy.new_empty(0 if covered is None else (B, H, S))
    stand = energy.new_empty((B, H, T), dtype=torch.int32)
    return energy.new_empty(B, H, T, S), energy.new_empty(B, H, S), used, stand


def _scan_backward_shapes(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
    *found: Tensor | None,
) -> Four:
    B, H, T, S = energy.shape
    d_covered = energy.new_empty(0 if covered is None else (B, H, S))
    d_move = energy.new_empty(0 if move is None else (B, H, T))
    return energy.new_empty(B, H, T, S), energy.new_empty(B, H, S), d_covered, d_move


def _mixture_shapes(
    height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int
) -> Tensor:
    return centre.new_empty(*centre.shape[:3], S)


def _mixture_backward_shapes(
    height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, grad: Tensor
) -> Three:
    return (
        height.new_empty(height.shape),
        height.new_empty(height.shape),
        height.new_empty(height.shape),
    )


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    ctx.kind = inputs[0]
    ctx.save_for_backward(*inputs[1:], output[0], output[3])


def _scan_gradients(
    ctx: Any, grad: Tensor, d_last: Tensor, d_used: Tensor, _: None
) -> tuple[Tensor | None, ...]:
    *inputs, weight, stand = ctx.saved_tensors
    covered, move = inputs[3:]
    if torch.is_grad_enabled():
        inputs = _apart(inputs)
        found = TWINS["scan"](ctx.kind, *inputs)[: 2 if covered is None else 3]
        return None, *_again(found, (grad, d_last, d_used), inputs)
    handed_on = None if covered is None else d_used
    d_energy, d_before, d_covered, d_move = torch.ops.heed.scan_backward(
        ctx.kind, *inputs, weight, stand, grad, d_last, handed_on
    )
    return (
        None,
        d_energy,
        None,
        d_before,
        None if covered is None else d_covered,
        None if move is None else d_move,
    )


def _keep_mixture(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *kept, ctx.S = inputs
    ctx.save_for_backward(*kept)


def _mixture_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    if torch.is_grad_enabled():
        inputs = _apart(inputs)
        return *_again([TWINS["mixture"](*inputs, ctx.S)], [grad], inputs), None
    return *torch.ops.heed.mixture_backward(*inputs, grad), None, None


def _apart(inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Views of the tensors, each a variable of its own, though one may come from another."""
    return [x if x is None else x.view_as(x) for x in inputs]


def _again(
    found: Sequence[Tensor], grads: Sequence[Tensor], inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients by the twin instead, whose own graph can be differentiated in turn."""
    learning = [x for x in inputs if x is not None and x.requires_grad]
    pairs = [(x, g) for x, g in zip(found, grads, strict=False) if x.requires_grad]
    slopes = iter(
        torch.autograd.grad(
            [x for x, _ in pairs], learning, [g for _, g in pairs], create_graph=True,
            allow_unused=True,
        )
    )  # fmt: skip
    return [next(slopes) if x is not None and x.requires_grad else None for x in inputs]


torch.library.register_autograd("heed::scan", _scan_gradients, setup_context=_keep_scan)
torch.library.register_autograd("heed::mixture", _mixture_gradients, setup_context=_keep_mixture)
for _name, _shapes in (
    ("scan", _scan_shapes),
    ("scan_backward", _scan_backward_shapes),
    ("mixture", _mixture_shapes),
    ("mixture_backward", _mixture_backward_shapes),
):
    torch.library.register_fake(f"heed::{_name}", _shapes)
