"""Recurrent cells and layers: over whole rows at once, or one step at a time, the same weights.

A step is given the input's part of its gates: a decoder projects the embeddings of all steps in one
product before its loop, and only what depends on the step before is left inside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from heed.attention.hooks import plain
from heed.attention.initial_weights import initialise
from heed.errors import UnknownName
from heed.models import unrolled

Hidden = tuple[Tensor, ...]
"""The state of one layer: (h,), and for an LSTM (h, c), each B H."""


def tanh_cell(x: Tensor, hidden: Hidden, weight: Tensor, bias: Tensor) -> Hidden:
    """h' = tanh(x + W h + b). Elman 1990.    x: the input's part, B H"""
    return (torch.tanh(x + linear(hidden[0], weight, bias)),)


def gru_cell(x: Tensor, hidden: Hidden, weight: Tensor, bias: Tensor) -> Hidden:
    """h' = (1 - z) n + z h, n = tanh(x_n + r (W_n h + b_n)). Cho 2014.    x: B 3H"""
    (h,) = hidden
    H = h.shape[-1]
    x_gates, x_new = x.split((2 * H, H), -1)
    # Nothing else refers to the product, so its gates are computed in place: less to keep.
    gates, h_new = linear(h, weight, bias).unsafe_split_with_sizes((2 * H, H), -1)
    r, z = gates.add_(x_gates).sigmoid_().chunk(2, -1)
    new = torch.addcmul(x_new, r, h_new).tanh_()
    return (torch.lerp(new, h.to(new.dtype), z),)


def lstm_cell(x: Tensor, hidden: Hidden, weight: Tensor, bias: Tensor) -> Hidden:
    """c' = f c + i g, h' = o tanh(c'). Hochreiter 1997, with a forget gate.    x: B 4H"""
    h, c = hidden
    H = h.shape[-1]
    gates = x + linear(h, weight, bias)
    i, f = torch.sigmoid(gates[:, : 2 * H]).chunk(2, -1)
    c = torch.addcmul(i * torch.tanh(gates[:, 2 * H : 3 * H]), f, c.to(gates.dtype))
    return torch.sigmoid(gates[:, 3 * H :]) * torch.tanh(c), c


class Cell(NamedTuple):
    """A kind of cell: PyTorch's module for a whole row, and the function for one step."""

    module: Callable[..., nn.RNNBase]
    step: Callable[[Tensor, Hidden, Tensor, Tensor], Hidden]
    slots: int  # how many tensors its state has
    pieces: unrolled.Pieces | None = None  # the same step for a loop in training


class Weights(NamedTuple):
    """The weights of a layer for its steps."""

    weight: Tensor  # G H
    bias: Tensor  # G
    feed: Tensor | None  # for what is fed back  G F


Loop = Weights | unrolled.Loop
"""What the steps of a loop use: the weights, or where a loop learns, their gradients' sums too."""


CELLS = {
    "tanh": Cell(nn.RNN, tanh_cell, 1),
    "gru": Cell(nn.GRU, gru_cell, 1, unrolled.GRU),
    "lstm": Cell(nn.LSTM, lstm_cell, 2, unrolled.LSTM),
}


class Dropout(nn.Module):
    """Dropout on rows of states; variational: the same units at every step. Gal 2016."""

    def __init__(self, p: float = 0.0, *, variational: bool = False) -> None:
        super().__init__()
        self.p, self.variational = p, variational

    @property
    def active(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """B T M -> B T M"""
        if not self.active:
            return x
        return x * self.noise(x, *x.shape) if self.variational else dropout(x, self.p)

    def noise(self, like: Tensor, B: int, T: int, M: int) -> Tensor:
        """The factors for all steps, drawn at once.    -> B T M"""
        drawn = dropout(like.new_ones(B, 1 if self.variational else T, M), self.p)
        return drawn.expand(B, T, M)


def _remembering(bias: Tensor) -> None:
    """Open the forget gates.    4H"""
    hidden = len(bias) // 4
    bias[hidden : 2 * hidden] = 1


class Layer(nn.Module):
    """One layer in one direction: over a whole row, or a step at a time with the same weights."""

    def __init__(self, cell: str, inputs: int, hidden: int) -> None:
        super().__init__()
        if cell not in CELLS:
            raise UnknownName("cell", cell, CELLS)
        self.cell = CELLS[cell]
        self.rnn = self.cell.module(inputs, hidden, batch_first=True)
        if cell == "lstm":  # a cell that remembers by default. Jozefowicz 2015 §2.2
            initialise(self.rnn, bias_ih_l0=_remembering)

    def _weight(self, name: str) -> Tensor:
        return cast(Tensor, getattr(self.rnn, f"{name}_l0"))

    def forward(self, x: Tensor, hidden: Hidden | None = None) -> Tensor:
        """B T X -> B T H, from zero unless a state is given"""
        if in_pieces(x, self):
            return together([self], [x], hidden)[0]
        with _row_precision(x):
            x = x if x.device.type != "cpu" else x.to(self._weight("weight_ih").dtype)
            if hidden is None:
                states: Tensor = self.rnn(x)[0]
            else:
                first = tuple(h.to(x.dtype)[None].contiguous() for h in hidden)  # as cuDNN wants it
                states = self.rnn(x, first if len(first) > 1 else first[0])[0]
        return states

    def project(self, x: Tensor) -> Tensor:
        """The contribution of the first columns of the input to the gates.    ... X -> ... G"""
        return linear(x, self._weight("weight_ih")[:, : x.shape[-1]], self._weight("bias_ih"))

    def loop(self, fed: int = 0) -> Loop:
        """The weights for steps; the last `fed` columns of the input are fed back."""
        weight, bias = self._weight("weight_hh"), self._weight("bias_hh")
        feed = self._weight("weight_ih")[:, -fed:] if fed else None
        if feed is not None and _lowered(feed):
            feed = feed.to(torch.get_autocast_dtype(feed.device.type))  # or each step would cast it
        pieces = self.cell.pieces
        if pieces is None or not unrolled.may_defer_on_cpu(weight):
            return Weights(weight, bias, feed)
        return unrolled.Loop(pieces, weight, bias, feed)

    def zero(self, rows: int) -> Hidden:
        """The state before anything was read.    B H"""
        weight = self._weight("weight_hh")
        return tuple(weight.new_zeros(rows, weight.shape[1]) for _ in range(self.cell.slots))

    def step(
        self, x: Tensor, hidden: Hidden, loop: Loop | None = None, fed: Tensor | None = None
    ) -> Hidden:
        """One step; x is the input's part of the gates.    B G -> the next state"""
        loop = loop or self.loop()
        if isinstance(loop, unrolled.Loop):
            return loop.step(x, hidden, fed)
        if fed is not None and loop.feed is not None:
            x = torch.addmm(x, fed, loop.feed.t())
        return self.cell.step(x, hidden, loop.weight, loop.bias)


def in_pieces(x: Tensor, *layers: Layer) -> bool:
    """Whether heed's own steps may serve whole rows, and are faster than PyTorch's module."""
    for layer in layers:
        kinds = (type(layer), type(layer.rnn))
        if kinds != (Layer, layer.cell.module) or layer.cell.pieces is None:
            return False
    weight = layers[0]._weight("weight_hh")
    if not x.shape[1] or x.dtype != weight.dtype or not unrolled.may_defer_on_cpu(weight):
        return False
    return plain(module for layer in layers for module in layer.modules())


def together(layers: list[Layer], xs: list[Tensor], hidden: Hidden | None = None) -> list[Tensor]:
    """Layers of one size, each over rows of its own, all a step at a time.    B T X -> B T H"""
    pieces = layers[0].cell.pieces
    assert pieces is not None
    pairs = zip(layers, xs, strict=True)
    x = torch.stack([layer.project(x.transpose(0, 1)) for layer, x in pairs], 1)  # T N B G
    weight, bias = (
        torch.stack([layer._weight(name) for layer in layers]) for name in ("weight_hh", "bias_hh")
    )
    if hidden is None:
        hidden = layers[0].zero(x.shape[2])
    first = tuple(h.expand(len(layers), *h.shape) for h in hidden)
    states = unrolled.rows(pieces, x, weight, bias, first)
    return list(states.permute(1, 2, 0, 3).unbind(0))


def _lowered(x: Tensor) -> bool:
    """Whether autocast would compute a product of x in a narrower type."""
    return torch.is_autocast_enabled(x.device.type) and x.dtype == torch.float32


def _row_precision(x: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off on the CPU: not every processor has an LSTM in bfloat16."""
    lowered = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return torch.autocast("cpu", enabled=False) if lowered else nullcontext()


class Stack(nn.Module):
    """Layers on top of each other, in one direction, with dropout between them."""

    def __init__(
        self, cell: str, inputs: int, hidden: int, layers: int, dropout: Dropout | None = None
    ) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(Layer(cell, width, hidden) for width in widths)
        self.dropout = dropout or Dropout()
        self.hidden = hidden

    @property
    def each(self) -> list[Layer]:
        """The layers, from the input up."""
        return cast(list[Layer], list(self.layers))

    def forward(self, x: Tensor, hidden: tuple[Hidden, ...]) -> Tensor:
        """Whole rows, no loop over T.    B T X -> B T H"""
        for i, (layer, first) in enumerate(zip(self.each, hidden, strict=True)):
            x = layer(self.dropout(x) if i else x, first)
        return x

    def noise(self, like: Tensor, T: int) -> list[tuple[Tensor, ...]]:
        """The dropout between the layers for each of T steps, drawn at once.    T tuples of B H"""
        if not self.dropout.active:
            return [()] * T
        B, between = len(like), range(len(self.layers) - 1)
        drawn = [self.dropout.noise(like, B, T, self.hidden).unbind(1) for _ in between]
        return list(zip(*drawn, strict=True)) or [()] * T

    def loop(self, fed: int = 0) -> tuple[Loop, ...]:
        """The weights of every layer for steps; `fed` columns are fed back to the first."""
        return tuple(layer.loop(0 if i else fed) for i, layer in enumerate(self.each))

    def step(
        self,
        x: Tensor,
        hidden: tuple[Hidden, ...],
        noise: tuple[Tensor, ...] = (),
        loop: tuple[Loop, ...] | None = None,
        fed: Tensor | None = None,
    ) -> tuple[Hidden, ...]:
        """One step: x is the input's part of the first layer's gates.    B G -> the next state"""
        after: list[Hidden] = []
        loop = loop or self.loop()
        for i, (layer, weights, before) in enumerate(zip(self.each, loop, hidden, strict=True)):
            if i:
                below = after[-1][0]
                x = layer.project(below * noise[i - 1] if noise else below)
            after.append(layer.step(x, before, weights, None if i else fed))
        return tuple(after)


class First(nn.Module):
    """The first state of a stack from a vector: tanh(W v). Bahdanau 2015 A.2.2."""

    def __init__(self, vector: int, *, cell: str, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers, self.slots = layers, CELLS[cell].slots
        self.linear = nn.Linear(vector, layers * self.slots * hidden)

    def forward(self, vector: Tensor) -> tuple[Hidden, ...]:
        """B K -> a state for every layer"""
        parts = torch.tanh(self.linear(vector)).chunk(self.layers * self.slots, -1)
        return tuple(parts[i : i + self.slots] for i in range(0, len(parts), self.slots))


def select(hidden: tuple[Hidden, ...], rows: Tensor) -> tuple[Hidden, ...]:
    """The states of the chosen rows, in that order."""
    return tuple(tuple(h.index_select(0, rows) for h in layer) for layer in hidden)


class Maxout(nn.Module):
    """The larger of each pair. Goodfellow 2013.    ... 2M -> ... M"""

    def forward(self, x: Tensor) -> Tensor:
        larger: Tensor = x.unflatten(-1, (-1, 2)).amax(-1)
        return larger


READOUTS: dict[str, tuple[int, type[nn.Module]]] = {"tanh": (1, nn.Tanh), "maxout": (2, Maxout)}


class Readout(nn.Module):
    """A deep output: f(W [all that is known]). Pascanu 2014; Bahdanau 2015 A.2.2."""

    def __init__(self, kind: str, *, parts: int, width: int) -> None:
        super().__init__()
        if kind not in READOUTS:
            raise UnknownName("readout", kind, READOUTS)
        factor, activation = READOUTS[kind]
        self.linear = nn.Linear(parts, factor * width)
        self.activation = activation()

    def forward(self, *parts: Tensor) -> Tensor:
        """... M, ... R, ... E -> ... width"""
        known: Tensor = self.activation(self.linear(torch.cat(parts, -1)))
        return known
