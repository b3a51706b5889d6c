"""Cells in a loop in training: each step is one node of the graph, each weight's gradient one sum.

Autograd records every operation of every step. It forms a weight's gradient once per step, a matrix
of its own each time, and adds them up afterwards. Here the backward pass of a step is one piece
that leaves its rows behind, and one product of all of them is a weight's gradient:

    h_t = f(x_t + U y_t, W h_{t-1} + b)        dW = Σ_t δ_tᵀ h_{t-1},  dU = Σ_t δ'_tᵀ y_t

The twin of each step is the cell in cells.py, which serves wherever a graph must see inside, and
while `heed.kernels.off("single")` lasts: second derivatives need it. Where the native library
serves, a GRU's products and what is between them are one call; `GRU.ahead` and `GRU.back` say what
it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heed.kernels.cell import native
from heed.kernels.looping import first_alone
from heed.kernels.looping import learning as learning

Hidden = tuple[Tensor, ...]
Ahead = Callable[[Tensor, Tensor, Hidden], tuple[Hidden, Hidden]]
"""The input's and the state's part of the gates, the state -> the next state, what to keep.

The state's part may be overwritten: nothing else refers to it."""
Direct = tuple[Tensor | None, *tuple[Tensor, ...]]
Back = Callable[[Hidden, Hidden, Hidden, Hidden], Direct]
"""Gradients of the next state, the state, what was kept, room -> gradients of the state, without
what reaches it through its part of the gates.

The gradients of the parts of the gates are written into the room."""


class Left(NamedTuple):
    """What some steps left behind: rows of products that are formed for all of them at once."""

    by: tuple[Tensor, ...]  # room for the gradients of the parts of the gates  n B G
    states: list[Tensor]  # before each step  B H
    fed: list[Tensor | None]  # B F

    @property
    def full(self) -> bool:
        return len(self.states) == len(self.by[0])

    def product(self, name: str) -> Tensor:
        """The gradient of a weight, Σ byᵀ x; or of the bias, Σ by."""
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
        self.turned: dict[str, Tensor] = {}  # the weights, transposed: faster in the forward pass
        self.panels: native.Panels | None = None  # or as the native library reads them

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
        """The sums of these weights, by name; what was left behind is then forgotten."""
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
    """Passes weights on. Its backward pass follows those of all steps: their sums are complete."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, sums: Sums, names: tuple[str, ...], *weights: Tensor
    ) -> Hidden:
        ctx.sums, ctx.names = sums, names
        ctx.set_materialize_grads(False)
        named = dict(zip(names, weights, strict=True))
        if pieces.native and native.serves(*weights):
            weight, bias = named["weight"].detach(), named["bias"].detach()
            sums.panels = native.Panels.of(weight[None], bias[None], named.get("feed"))
        else:
            sums.turned = {name: w.t().contiguous() for name, w in named.items() if w.dim() > 1}
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    @first_alone
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Any, ...]:
        learns = ctx.needs_input_grad[3:]
        asked = tuple(name for name, each in zip(ctx.names, learns, strict=True) if each)
        totals = dict(zip(asked, ctx.sums.take(asked), strict=True))
        grads = []
        for name, x in zip(ctx.names, others, strict=True):
            total = totals.get(name)
            grads.append(x if total is None else total if x is None else total + x)
        return (None, None, None, *grads)


def shared(pieces: Pieces, sums: Sums, **weights: Tensor) -> list[Tensor]:
    """Weights for the steps of a loop, whose gradients `sums` will hold."""
    named = (tuple(weights), *weights.values())
    return list(_Shared.apply(pieces, sums, *named))  # type: ignore[no-untyped-call]


class Pieces(NamedTuple):
    """A cell in one piece: the forward pass of a step, and its backward pass."""

    ahead: Ahead
    back: Back
    parts: int  # of the gates whose gradients differ: the input's first, the state's last
    native: bool = False  # whether the native library knows it


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
        after: Hidden
        kept: Hidden
        if sums.panels is not None:
            state = torch.empty_like(hidden[0], memory_format=torch.contiguous_format)
            kept = native.ahead(x, hidden[0], state[None, None], sums.panels, fed)
            after = (state,)
        else:
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
        by_x, by_gates = room[0], room[-1]
        if (panels := ctx.sums.panels) is not None:
            given = (by[0], hidden[0], native.Kept(*kept), by_x, by_gates, panels)
            (by_h,), by_feed = native.back(*given, 0 if fed is None else fed.shape[1])
            return (None, None, by_x, None if fed is None else by_feed, None, None, None, by_h)
        direct, *others = ctx.pieces.back(by, hidden, kept, room)
        by_fed = None if fed is None else by_x @ feed
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
    given = (x, fed, feed, weight, bias, *hidden)
    after: Hidden = _Step.apply(pieces, sums, *given)  # type: ignore[no-untyped-call]
    return after


class _Rows(torch.autograd.Function):
    """Whole rows, N directions at a time: the states of all places, and one product per weight."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor, *first: Tensor
    ) -> Tensor:
        (T, N, B, _), H = x.shape, weight.shape[2]
        states = x.new_empty(T + 1, N, B, H)
        states[0] = first[0]
        ctx.pieces, ctx.slots, ctx.panels = pieces, len(first), None
        kept: Iterable[Tensor]
        if pieces.native and native.serves(x, weight, bias, *first):
            ctx.panels = native.Panels.of(weight.detach(), bias.detach())
            kept = native.ahead(x, states[:-1], states[1:], ctx.panels)
        else:
            kept = _rows_ahead(pieces, x, weight, bias, first, states)
        ctx.save_for_backward(states, weight, *kept)
        return states[1:]

    @staticmethod
    @first_alone
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        states, weight, *kept = ctx.saved_tensors
        T, N, B, H = by.shape
        G = weight.shape[1]
        rooms = tuple(by.new_empty(T, N * B, G) for _ in range(ctx.pieces.parts))
        by_first: Iterable[Tensor]
        if ctx.panels is not None:
            ends = native.back(by, states[:-1], native.Kept(*kept), rooms[0], rooms[-1], ctx.panels)
            by_first = ends[:1]
        else:
            by_first = _rows_back(ctx.pieces, by, states, weight, kept, ctx.slots, rooms)
        by_x, by_gates = (room.view(T, N, B, G) for room in (rooms[0], rooms[-1]))
        d_gates = by_gates.transpose(0, 1).reshape(N, T * B, G)
        before = states[:-1].transpose(0, 1).reshape(N, T * B, H)
        by_bias = by_gates.sum(0).sum(1)  # one axis at a time: rows are added as they lie
        return (None, by_x, torch.bmm(d_gates.mT, before), by_bias, *by_first)


def _rows_ahead(
    pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor, first: Hidden, states: Tensor
) -> list[Tensor]:
    """Write the states, one step after the other; returns what to keep of them all."""
    (T, N, B, G), H = x.shape, weight.shape[2]  # no -1 in views: an empty batch could not infer it
    hidden, kept = tuple(h.flatten(0, 1) for h in first), list[Tensor]()
    for t, part in enumerate(x.view(T, N * B, G)):
        gates = torch.baddbmm(bias[:, None], states[t], weight.mT).view(N * B, G)
        after, keep = pieces.ahead(part, gates, hidden)
        kept += (*hidden[1:], *keep)
        hidden = after
        states[t + 1] = after[0].view(N, B, H)
    return kept


def _rows_back(
    pieces: Pieces,
    by: Tensor,
    states: Tensor,
    weight: Tensor,
    kept: list[Tensor],
    slots: int,
    rooms: Hidden,
) -> list[Tensor]:
    """Write the gradients of the parts of all gates; returns those of the first state."""
    T, N, B, H = by.shape
    each, G = len(kept) // T, weight.shape[1]
    by_hidden = tuple(by.new_zeros(N * B, H) for _ in range(slots))
    for t in range(T - 1, -1, -1):
        keep = tuple(kept[t * each : (t + 1) * each])
        hidden = (states[t].view(N * B, H), *keep[: slots - 1])
        by_h = (by_hidden[0].add_(by[t].reshape(N * B, H)), *by_hidden[1:])
        room = tuple(whole[t] for whole in rooms)
        direct, *others = pieces.back(by_h, hidden, keep[slots - 1 :], room)
        through = room[-1].view(N, B, G)
        if direct is None:
            d_h = torch.bmm(through, weight)
        else:
            d_h = direct.view(N, B, H).baddbmm_(through, weight)
        by_hidden = (d_h.view(N * B, H), *others)
    return [h.view(N, B, H) for h in by_hidden]


def rows(pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor, first: Hidden) -> Tensor:
    """The states of whole rows, in N directions at once, each with its own weights.

    The input's part of the gates T N B G, weight N G H, bias N G, first N B H -> T N B H
    """
    given = (x.contiguous(), weight, bias, *first)
    states: Tensor = _Rows.apply(pieces, *given)  # type: ignore[no-untyped-call]
    return states


def gru_ahead(x: Tensor, gates: Tensor, hidden: Hidden) -> tuple[Hidden, Hidden]:
    """The forward pass of cells.gru_cell."""
    (h,) = hidden
    H = h.shape[-1]
    r_z = gates[:, : 2 * H].add_(x[:, : 2 * H]).sigmoid_()
    h_new = gates[:, 2 * H :]
    new = torch.addcmul(x[:, 2 * H :], r_z[:, :H], h_new).tanh_()
    return (torch.lerp(new, h, r_z[:, H:]),), (gates, new)


def gru_back(by: Hidden, hidden: Hidden, kept: Hidden, room: Hidden) -> Direct:
    """The backward pass of `gru_ahead`.

    By n (1 - z)(1 - n²); by z (h - n) z(1 - z); by r, through n, W_n h r(1 - r).
    """
    (d,), (h,), (gates, new) = by, hidden, kept
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
    """The forward pass of cells.lstm_cell."""
    h, c = hidden
    gates.add_(x)
    H = h.shape[-1]
    i_f, g, o = gates.split((2 * H, H, H), -1)
    i, f = i_f.sigmoid_().split(H, -1)
    c = torch.addcmul(i * g.tanh_(), f, c)
    tanh_c = torch.tanh(c)
    return (o.sigmoid_() * tanh_c, c), (gates, tanh_c)


def lstm_back(by: Hidden, hidden: Hidden, kept: Hidden, room: Hidden) -> Direct:
    """The backward pass of `lstm_ahead`.

    By c' from both: by h' o (1 - tanh² c'); then by i, f, g and o, each through its own.
    """
    (by_h, by_c), (_, c), (gates, tanh_c) = by, hidden, kept
    H = c.shape[-1]
    i, f, g, o = gates.split(H, -1)
    by_c = by_c + torch.ops.aten.tanh_backward(by_h * o, tanh_c)
    by_i_f = torch.ops.aten.sigmoid_backward(torch.cat([by_c * g, by_c * c], -1), gates[:, : 2 * H])
    by_g = torch.ops.aten.tanh_backward(by_c * i, g)
    by_o = torch.ops.aten.sigmoid_backward(by_h * tanh_c, o)
    torch.cat([by_i_f, by_g, by_o], -1, out=room[0])
    return None, by_c * f


GRU, LSTM = Pieces(gru_ahead, gru_back, 2, native=True), Pieces(lstm_ahead, lstm_back, 1)
