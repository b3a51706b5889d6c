"""Cells in a loop in training: each step is one node of the graph, each weight's gradient one sum.

    h_t = f(x_t + U y_t, W h_{t-1} + b)        dW = Σ_t δ_tᵀ h_{t-1},  dU = Σ_t δ'_tᵀ y_t

Autograd would record every operation of every step. The sums are formed at the end of the loop
(heed/kernels/deferred_gradients.py); whole rows (`rows`) form them at once. The twin of each step
is the cell in cells.py, which serves wherever a graph must see inside, and while
`heed.kernels.off("single")` lasts: second derivatives need it. Where the native library serves, a
GRU's products and what is between them are one call; `GRU.ahead` and `GRU.back` say what it
computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heed.kernels.cell import native
from heed.kernels.deferred_gradients import Deferred, first_derivatives_only, share
from heed.kernels.deferred_gradients import may_defer_on_cpu as may_defer_on_cpu

Hidden = tuple[Tensor, ...]
Ahead = Callable[[Tensor, Tensor, Hidden], tuple[Hidden, Hidden]]
"""The input's and the state's part of the gates, the state -> the next state, what to keep.

The state's part may be overwritten: nothing else refers to it."""
Direct = tuple[Tensor | None, *tuple[Tensor, ...]]
Back = Callable[[Hidden, Hidden, Hidden, Hidden], Direct]
"""Gradients of the next state, the state, what was kept, room -> gradients of the state, without
what reaches it through its part of the gates.

The gradients of the parts of the gates are written into the room."""


class Pieces(NamedTuple):
    """A cell in one piece: the forward pass of a step, and its backward pass."""

    ahead: Ahead
    back: Back
    parts: int  # of the gates whose gradients differ: the input's first, the state's last
    native: bool = False  # whether the native library knows it


class Loop:
    """The weights of a cell as the steps of one loop use them."""

    def __init__(self, pieces: Pieces, weight: Tensor, bias: Tensor, feed: Tensor | None) -> None:
        self.pieces = pieces
        given = (weight, bias) if feed is None else (weight, bias, feed)
        self.panels: native.Panels | None = None
        self.turned: list[Tensor] = []  # weight and feed, transposed: faster in the forward pass
        if pieces.native and native.serves(*given):
            self.panels = native.Panels.of(weight.detach()[None], bias.detach()[None], feed)
        else:
            self.turned = [w.detach().t().contiguous() for w in given if w.dim() > 1]
        self.shared = share(*given)
        self.deferred = Deferred.of(*self.shared)

    def step(self, x: Tensor, hidden: Hidden, fed: Tensor | None = None) -> Hidden:
        """The next state.    x: the input's part of the gates, B G; fed: B F, fed back"""
        weight, bias, *feed = self.shared
        back = (fed, feed[0]) if feed else (None, None)
        after: Hidden = _Step.apply(self, x, *back, weight, bias, *hidden)  # type: ignore[no-untyped-call]
        return after


class _Step(torch.autograd.Function):
    """h_t from x_t, what is fed back, and h_{t-1}."""

    @staticmethod
    def forward(
        ctx: Any,
        loop: Loop,
        x: Tensor,
        fed: Tensor | None,
        feed: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *hidden: Tensor,
    ) -> Hidden:
        after: Hidden
        kept: Hidden
        if loop.panels is not None:
            state = torch.empty_like(hidden[0], memory_format=torch.contiguous_format)
            kept = native.ahead(x, hidden[0], state[None, None], loop.panels, fed)
            after = (state,)
        else:
            if fed is not None:
                x = torch.addmm(x, fed, loop.turned[1])
            gates = torch.addmm(bias, hidden[0], loop.turned[0])
            after, kept = loop.pieces.ahead(x, gates, hidden)
        ctx.loop, ctx.slots = loop, len(hidden)
        ctx.save_for_backward(fed, feed, weight, *hidden, *kept)
        return after

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, *by: Tensor) -> tuple[Any, ...]:
        fed, feed, weight, *rest = ctx.saved_tensors
        hidden, kept = tuple(rest[: ctx.slots]), tuple(rest[ctx.slots :])
        loop, shape = ctx.loop, (len(hidden[0]), len(weight))
        room = tuple([hidden[0].new_empty(shape) for _ in range(loop.pieces.parts)])
        by_x, by_gates = room[0], room[-1]
        loop.deferred.add(
            (by_gates, hidden[0]), (by_gates, None), *(() if fed is None else ((by_x, fed),))
        )
        if loop.panels is not None:
            given = (by[0], hidden[0], native.Kept(*kept), by_x, by_gates, loop.panels)
            (by_h,), by_feed = native.back(*given, 0 if fed is None else fed.shape[1])
            return (None, by_x, None if fed is None else by_feed, None, None, None, by_h)
        direct, *others = loop.pieces.back(by, hidden, kept, room)
        by_fed = None if fed is None else by_x @ feed
        by_h = by_gates @ weight if direct is None else torch.addmm(direct, by_gates, weight)
        return (None, by_x, by_fed, None, None, None, by_h, *others)


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
    @first_derivatives_only
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
