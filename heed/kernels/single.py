"""One query at a time, on the CPU: the dot family in a loop that asks the same memory again.

PyTorch's fused attention is made for many queries; one of them is three small products, and its
gradient three more. Those of the keys and values, de_tᵀ q_t and a_tᵀ dc_t, are as large as the
memory at every step. Where the memory was made for steps (`gathering`), the steps leave their rows
behind, and two products form the gradients of the whole loop at its end:

    dk = Σ_t de_t ⊗ q_t,    dv = Σ_t a_t ⊗ dc_t

Its twin is the reference with `dot`, `softmax` and `blend`. In float32 a look is one call of the
native library (look/).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from heed.errors import Refused
from heed.kernels.ability import transformed
from heed.kernels.look import native
from heed.records import Call

Backward = Callable[..., tuple[Any, ...]]
Sums = Callable[[], tuple[Tensor, Tensor]]
Shapes = tuple[torch.Size, torch.Size]


def first_alone(backward: Backward) -> Backward:
    """The backward of a step in one piece, which has no second derivative and says so at once.

    Gradients that steps leave behind reach their weights past the graph: `once_differentiable`
    would see nothing to refuse there, and a penalty on them would be silently dropped.
    """

    @wraps(backward)
    def guarded(ctx: Any, *by: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise Refused(
                "steps in one piece know first derivatives alone; for second ones go forward with "
                'them switched off: with heed.kernels.off("single", "sdpa", "additive"): ...'
            )
        if not torch.is_autocast_enabled("cpu"):  # the context costs more than the question
            return backward(ctx, *by)
        with torch.autocast("cpu", enabled=False):  # the step went forward without it
            return backward(ctx, *by)

    return guarded


def learning(*tensors: Tensor) -> bool:
    """Whether steps in one piece may serve: a gradient is wanted, on the CPU, unseen by others."""
    from heed.kernels.choose import is_on  # which knows this module by name

    return (
        torch.is_grad_enabled()
        and tensors[0].is_cpu
        and any(x.requires_grad for x in tensors)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and transformed() is None
        and is_on("single")
    )


def refusal(call: Call) -> str | None:
    """Why this kernel cannot serve the call; None where it can."""
    if call.places.T != 1:
        return "it serves one query at a time"
    if torch.compiler.is_compiling():
        return "a compiler would rather see the products"
    if getattr(call.k.grad_fn, "rows", None) is None:
        return "it serves memories made for the steps of a loop that learns"
    if call.family != "dot" or call.need != "context":
        return "it computes the context of dot products alone"
    if not call.q.is_cpu:
        return "it runs on the CPU"
    if call.align != "softmax" or call.read != "blend" or call.past:
        return "it knows softmax and blend, and no past"
    if call.gain is not None or call.bias is not None or call.sinks or call.dropout:
        return "it knows no gain, bias, sinks or dropout"
    if call.visible is not None and not (call.clean and call.visible.about_keys_alone):
        return "it knows hidden keys, and no other mask"
    if call.q.shape[1] != call.k.shape[1]:
        return "it has one group of keys for each head"
    if call.q.dtype not in (torch.float32, torch.float64) or call.k.dtype != call.q.dtype:
        return "it computes in float32 or float64"
    if torch.is_autocast_enabled("cpu"):
        return "it knows no autocast"
    return transformed()


def run(call: Call) -> Tensor:
    """The context.    B H 1 R"""
    return again(call)(call.q)


def again(call: Call) -> Callable[[Tensor], Tensor]:
    """The same for any further query to the same memory.    B H 1 D -> B H 1 R"""
    k, v, scale, hidden = call.k, call.v, call.scale, _hidden(call)
    rows = getattr(k.grad_fn, "rows", None)

    def look(q: Tensor) -> Tensor:
        context: Tensor = _Single.apply(rows, q, k, v, hidden, scale)  # type: ignore[no-untyped-call]
        return context

    return look


def _hidden(call: Call) -> Tensor | None:
    """What no query may see.    N 1 S"""
    ok = call.dense_visible()
    if ok is None:
        return None
    B, H, S = call.k.shape[:3]
    return (~ok.expand(B, H, 1, S)).reshape(B * H, 1, S).contiguous()


def _look(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """N 1 D, N S D, N S R -> context N 1 R, weight N 1 S"""
    energy = torch.bmm(q, k.mT)
    if scale != 1:
        energy.mul_(scale)
    if hidden is None:
        weight = energy.softmax(-1)
    else:  # a row that sees nothing is NaN, and all of it is hidden
        weight = energy.masked_fill_(hidden, -torch.inf).softmax(-1).masked_fill_(hidden, 0)
    return torch.bmm(weight, v), weight


def _look_back(
    by: Tensor, k: Tensor, v: Tensor, weight: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of the energies and of the queries.    N 1 R -> N 1 S, N 1 D"""
    by_energy = torch._softmax_backward_data(torch.bmm(by, v.mT), weight, -1, weight.dtype)
    if scale != 1:
        by_energy.mul_(scale)
    return by_energy, torch.bmm(by_energy, k)


class _Single(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Rows | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        scale: float,
    ) -> Tensor:
        B, H = q.shape[:2]  # sizes are named: of an empty batch none can be inferred
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        ctx.native = native.serves(q, k, v)
        look = native.ahead if ctx.native else _look
        context, weight = look(q, k, v, hidden, scale)
        ctx.rows, ctx.scale, ctx.heads = rows, scale, (B, H)
        ctx.save_for_backward(q, k, v, weight)
        return context.view(B, H, 1, v.shape[-1])

    @staticmethod
    @first_alone
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        q, k, v, weight = ctx.saved_tensors
        by = by.flatten(0, 1)
        look_back = native.back if ctx.native else _look_back
        by_energy, by_q = look_back(by, k, v, weight, ctx.scale)
        by_q = by_q.view(*ctx.heads, 1, q.shape[-1])
        if ctx.rows is not None:
            ctx.rows.add(by_energy, q, weight, by)
            return None, by_q, None, None, None, None
        by_k, by_v = (
            torch.bmm(a.mT, x).view(*ctx.heads, *y.shape[1:])
            for a, x, y in ((by_energy, q, k), (weight, by, v))
        )
        return None, by_q, by_k, by_v, None, None


class Rows:
    """What steps leave behind while a backward pass goes through them."""

    def __init__(self) -> None:
        self.task = -1
        self.left: list[tuple[Tensor, ...]] = []
        self.added: tuple[Tensor, Tensor] | None = None

    def add(self, *rows: Tensor) -> None:
        """Of one step: by the energy, the query, the weight, by the context.    N 1 S|D|S|R"""
        self._now()
        self.left.append(rows)

    def sums(self, room: Sums) -> tuple[tuple[Tensor, Tensor], bool]:
        """Where a step adds the gradients of keys and values itself, and whether others have.

        B G S N, filled up as the kernel likes it
        """
        self._now()
        more = self.added is not None
        if self.added is None:
            self.added = room()
        return self.added, more

    def take(self, shapes: Shapes) -> list[Tensor] | None:
        """The gradients of keys and values, once.    B G S D, B G S R"""
        left, added, self.left, self.added = self.left, self.added, [], None
        if self.task != torch._C._current_graph_task_id():
            return None
        total: list[Tensor] | None = None
        if left:
            by_energy, q, weight, by = (torch.cat(x, 1) for x in zip(*left, strict=True))
            pair = torch.bmm(by_energy.mT, q), torch.bmm(weight.mT, by)
            total = [x.view(shape) for x, shape in zip(pair, shapes, strict=True)]
        if added is not None:
            own = [x[..., : shape[-1]] for x, shape in zip(added, shapes, strict=True)]
            total = own if total is None else [x + y for x, y in zip(own, total, strict=True)]
        return total

    def _now(self) -> None:
        """Begin anew where a pass that ended early may have left some behind."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.left, self.added = task, [], None


class _Gathering(torch.autograd.Function):
    """Keys and values as they are; goes back when all steps have gone."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.rows, ctx.shapes, ctx.kind = Rows(), (k.shape, v.shape), k.device.type
        ctx.set_materialize_grads(False)
        return k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.kind, enabled=False):  # as the steps that left them
            taken = ctx.rows.take(ctx.shapes)
        if taken is None:  # no step of ours: others' gradients pass, with all their derivatives
            return others
        return tuple(
            total if x is None else total + x for total, x in zip(taken, others, strict=True)
        )


def gathering(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values for a loop of single queries; as they are where the kernel is off."""
    from heed.kernels.choose import is_on  # which knows this module by name

    if not is_on("single"):
        return k, v
    gathered: tuple[Tensor, Tensor] = _Gathering.apply(k, v)  # type: ignore[no-untyped-call]
    return gathered
