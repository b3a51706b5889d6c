"""Cells in a loop that learns: each step one node of the graph, and one sum for each weight.

Autograd knows every operation of every step by itself. It forms a weight's gradient once per step,
a matrix of its own each time, and adds them up afterwards. Here a step goes back in one piece and
leaves its rows behind, and one product of all of them is a weight's gradient:

    h_t = f(x_t + U y_t, W h_{t-1} + b)        dW = Σ_t δ_tᵀ h_{t-1},  dU = Σ_t δ'_tᵀ y_t

The twin of each step is the cell in cells.py, which serves wherever a graph must see inside, and
while `heed.kernels.off("single")` lasts: second derivatives need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heed.kernels.cell import native
from heed.kernels.choose import is_on
from heed.kernels.single import first_alone

Hidden = tuple[Tensor, ...]
Ahead = Callable[[Tensor, Tensor, Hidden], tuple[Hidden, Hidden]]
"""The input's and the state's part of the gates, the state -> the next state, what to keep.

The second part is nobody else's, and may be overwritten."""
Direct = tuple[Tensor | None, ...]
Back = Callable[[Hidden, Hidden, Hidden, Hidden], Direct]
"""Gradients of the next state, the state, what was kept, room for the gradients of the parts of the
gates, which are written there -> those of the state but for what comes through its part."""


class Left(NamedTuple):
    """What some steps left behind: rows of products that are formed for all of them at once."""

    by: tuple[Tensor, ...]  # room for the gradients of the parts of the gates  n B G
    states: list[Tensor]  # before each step  B H
    fed: list[Tensor | None]  # B F

    @property
    def full(self) -> bool:
        return len(self.states) == len(self.by[0])

    def product(self, name: str) -> Tensor:
        """What a weight gets: Σ byᵀ x; or the bias, Σ by."""
        by = self.by[0 if name == "feed" else -1][: len(self.states)].flatten(0, 1)
        if name == "bias":
            return by.sum(0)
        rows = self.states if name == "weight" else [x for x in self.fed if x is not None]
        return by.t() @ torch.cat(rows)


class Sums:
    """The gradients of weights that many steps share, while a backward pass goes through them."""

    def __init__(self) -> None:
        self.steps, self.task = 0, -1
        self.left: list[Left] = []
        self.turned: dict[str, Tensor] = {}  # the weights as products ahead read them fastest

    def room(self, parts: int, hidden: Tensor, fed: Tensor | None, G: int) -> tuple[Tensor, ...]:
        """Where a step writes the gradients of the parts of its gates.    B G"""
        task = torch._C._current_graph_task_id()
        if task != self.task:  # a pass that ended early may have left some behind
            self.task, self.left = task, []
        B = len(hidden)
        if not self.left or self.left[-1].full or self.left[-1].by[0].shape[1] != B:
            n = max(1, self.steps - sum(len(left.states) for left in self.left))
            by = tuple(hidden.new_empty(n, B, G) for _ in range(parts))
            self.left.append(Left(by, [], []))
        left = self.left[-1]
        left.states.append(hidden)
        left.fed.append(fed)
        return tuple([by[len(left.states) - 1] for by in left.by])

    def take(self, names: tuple[str, ...]) -> list[Tensor | None]:
        """The sums that are asked for by name; it begins anew."""
        here = self.left if self.task == torch._C._current_graph_task_id() else []
        self.left = []
        found: list[Tensor | None] = []
        for name in names:
            total: Tensor | None = None
            for left in here:
                part = left.product(name)
                total = part if total is None else total + part
            found.append(total)
        return found


class _Shared(torch.autograd.Function):
    """Weights as they are. Its turn to go back comes when all steps have had theirs."""

    @staticmethod
    def forward(ctx: Any, sums: Sums, names: tuple[str, ...], *weights: Tensor) -> Hidden:
        ctx.sums, ctx.names = sums, names
        ctx.set_materialize_grads(False)
        named = zip(names, weights, strict=True)
        sums.turned = {name: weight.t().contiguous() for name, weight in named if weight.dim() > 1}
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    @first_alone
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Any, ...]:
        learns = ctx.needs_input_grad[2:]
        asked = tuple(name for name, each in zip(ctx.names, learns, strict=True) if each)
        totals = dict(zip(asked, ctx.sums.take(asked), strict=True))
        grads = []
        for name, x in zip(ctx.names, others, strict=True):
            total = totals.get(name)
            grads.append(x if total is None else total if x is None else total + x)
        return (None, None, *grads)


def shared(sums: Sums, **weights: Tensor) -> list[Tensor]:
    """Weights for the steps of a loop, whose gradients `sums` will hold."""
    return list(_Shared.apply(sums, tuple(weights), *weights.values()))


def learning(*tensors: Tensor) -> bool:
    """Whether steps in one piece may serve: a gradient is wanted, on the CPU, unseen by others."""
    return (
        torch.is_grad_enabled()
        and tensors[0].is_cpu
        and any(x.requires_grad for x in tensors)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
        and is_on("single")
    )


class Pieces(NamedTuple):
    """A cell in one piece: a step ahead, and the same step back."""

    ahead: Ahead
    back: Back
    parts: int  # of the gates whose gradients differ: the input's first, the state's last


class _Step(torch.autograd.Function):
    """h_t from x_t, what is fed back, and h_{t-1}."""

    @staticmethod
    def forward(
        ctx: Any,
        pieces: Pieces,
        sums: Sums,
        x: Tensor,
        fed: Tensor | None,
        feed: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *hidden: Tensor,
    ) -> Hidden:
        if fed is not None:
            x = torch.addmm(x, fed, sums.turned["feed"])
        gates = torch.addmm(bias, hidden[0], sums.turned["weight"])
        after, kept = pieces.ahead(x, gates, hidden)
        ctx.pieces, ctx.sums, ctx.slots = pieces, sums, len(hidden)
        sums.steps += 1
        ctx.save_for_backward(fed, feed, weight, *hidden, *kept)
        return after

    @staticmethod
    @first_alone
    def backward(ctx: Any, *by: Tensor) -> tuple[Any, ...]:
        fed, feed, weight, *rest = ctx.saved_tensors
        hidden, kept = tuple(rest[: ctx.slots]), tuple(rest[ctx.slots :])
        room = ctx.sums.room(ctx.pieces.parts, hidden[0], fed, len(weight))
        by_hidden = ctx.pieces.back(by, hidden, kept, room)
        by_x, by_gates = room[0], room[-1]
        by_fed = None if fed is None else by_x @ feed
        direct, *others = by_hidden
        by_h = by_gates @ weight if direct is None else torch.addmm(direct, by_gates, weight)
        return (None, None, by_x, by_fed, None, None, None, by_h, *others)


def step(
    pieces: Pieces,
    sums: Sums,
    x: Tensor,
    hidden: Hidden,
    weights: tuple[Tensor, Tensor, Tensor | None],
    fed: Tensor | None,
) -> Hidden:
    """The next state.    x: the input's part of the gates, B G; fed: B F"""
    weight, bias, feed = weights
    after: Hidden = _Step.apply(pieces, sums, x, fed, feed, weight, bias, *hidden)
    return after


class _Rows(torch.autograd.Function):
    """Whole rows, N directions at a time: the states of all places, and one product per weight."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor, *first: Tensor
    ) -> Tensor:
        T, N, B, G = x.shape
        H = weight.shape[2]  # sizes are named: of an empty batch none can be inferred
        states = x.new_empty(T + 1, N, B, H)
        states[0] = first[0]
        hidden, kept = tuple(h.flatten(0, 1) for h in first), list[Tensor]()
        for t, part in enumerate(x.view(T, N * B, G)):
            gates = torch.baddbmm(bias[:, None], states[t], weight.mT).view(N * B, G)
            after, keep = pieces.ahead(part, gates, hidden)
            kept += (*hidden[1:], *keep)
            hidden = after
            states[t + 1] = after[0].view(N, B, H)
        ctx.pieces, ctx.slots = pieces, len(first)
        ctx.save_for_backward(states, weight, *kept)
        return states[1:]

    @staticmethod
    @first_alone
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        (states, weight, *kept), slots = ctx.saved_tensors, ctx.slots
        T, N, B, H = by.shape
        each = len(kept) // T
        by_hidden = tuple(by.new_zeros(N * B, H) for _ in range(slots))
        G = weight.shape[1]
        rooms = tuple(by.new_empty(T, N * B, G) for _ in range(ctx.pieces.parts))
        for t in range(T - 1, -1, -1):
            keep = tuple(kept[t * each : (t + 1) * each])
            hidden = (states[t].view(N * B, H), *keep[: slots - 1])
            by_h = (by_hidden[0].add_(by[t].reshape(N * B, H)), *by_hidden[1:])
            room = tuple(whole[t] for whole in rooms)
            direct, *others = ctx.pieces.back(by_h, hidden, keep[slots - 1 :], room)
            through = room[-1].view(N, B, G)
            if direct is None:
                d_h = torch.bmm(through, weight)
            else:
                d_h = direct.view(N, B, H).baddbmm_(through, weight)
            by_hidden = (d_h.view(N * B, H), *others)
        by_x, by_gates = (room.view(T, N, B, G) for room in (rooms[0], rooms[-1]))
        d_gates = by_gates.transpose(0, 1).reshape(N, T * B, G)
        before = states[:-1].transpose(0, 1).reshape(N, T * B, H)
        by_first = (h.view(N, B, H) for h in by_hidden)
        by_bias = by_gates.sum(0).sum(1)  # one axis at a time: rows are added as they lie
        return (None, by_x, torch.bmm(d_gates.mT, before), by_bias, *by_first)


def rows(pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor, first: Hidden) -> Tensor:
    """The states of whole rows, in N directions at once, each with its own weights.

    The input's part of the gates T N B G, weight N G H, bias N G, first N B H -> T N B H
    """
    states: Tensor = _Rows.apply(pieces, x.contiguous(), weight, bias, *first)
    return states


def gru_ahead(x: Tensor, gates: Tensor, hidden: Hidden) -> tuple[Hidden, Hidden]:
    """As cells.gru_cell."""
    (h,) = hidden
    if native.serves(gates):
        after, new = native.gru_ahead(x, gates, h)
        return (after,), (gates, new)
    H = h.shape[-1]
    r_z = gates[:, : 2 * H].add_(x[:, : 2 * H]).sigmoid_()
    h_new = gates[:, 2 * H :]
    new = torch.addcmul(x[:, 2 * H :], r_z[:, :H], h_new).tanh_()
    return (torch.lerp(new, h, r_z[:, H:]),), (gates, new)


def gru_back(by: Hidden, hidden: Hidden, kept: Hidden, room: Hidden) -> Direct:
    """By n (1 - z)(1 - n²); by z (h - n) z(1 - z); by r, through n, W_n h r(1 - r)."""
    (d,), (h,), (gates, new) = by, hidden, kept
    if native.serves(gates):
        return (native.gru_back(d, h, gates, new, *room),)
    H = h.shape[-1]
    r_z, h_new = gates.split((2 * H, H), -1)
    r, z = r_z.split(H, -1)
    direct = d * z
    by_new = torch.ops.aten.tanh_backward(d - direct, new)
    by_r_z = torch.cat([by_new * h_new, d * (h - new)], -1)
    by_r_z = torch.ops.aten.sigmoid_backward(by_r_z, r_z)
    torch.cat([by_r_z, by_new], -1, out=room[0])
    torch.cat([by_r_z, by_new * r], -1, out=room[1])
    return (direct,)


def lstm_ahead(x: Tensor, gates: Tensor, hidden: Hidden) -> tuple[Hidden, Hidden]:
    """As cells.lstm_cell."""
    h, c = hidden
    gates.add_(x)
    H = h.shape[-1]
    i_f, g, o = gates.split((2 * H, H, H), -1)
    i, f = i_f.sigmoid_().split(H, -1)
    c = torch.addcmul(i * g.tanh_(), f, c)
    tanh_c = torch.tanh(c)
    return (o.sigmoid_() * tanh_c, c), (gates, tanh_c)


def lstm_back(by: Hidden, hidden: Hidden, kept: Hidden, room: Hidden) -> Direct:
    """By c' from both: by h' o (1 - tanh² c'); then by i, f, g and o, each through its own."""
    (by_h, by_c), (_, c), (gates, tanh_c) = by, hidden, kept
    H = c.shape[-1]
    i, f, g, o = gates.split(H, -1)
    by_c = by_c + torch.ops.aten.tanh_backward(by_h * o, tanh_c)
    by_i_f = torch.ops.aten.sigmoid_backward(torch.cat([by_c * g, by_c * c], -1), gates[:, : 2 * H])
    by_g = torch.ops.aten.tanh_backward(by_c * i, g)
    by_o = torch.ops.aten.sigmoid_backward(by_h * tanh_c, o)
    torch.cat([by_i_f, by_g, by_o], -1, out=room[0])
    return None, by_c * f


GRU, LSTM = Pieces(gru_ahead, gru_back, 2), Pieces(lstm_ahead, lstm_back, 1)
