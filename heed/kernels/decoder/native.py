"""One step of a plain Transformer decoder, float32 on the CPU: the arguments of its C function.

    stack = Stack(layers, sources, hidden, ...)    # once per text
    stack.step(symbols, place, pasts, origins, sentences, weights)

Nothing that was written is ever moved: each place keeps the keys and values of the rows that stood
there, and `origins` says which of them a hypothesis comes from.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.kernels import native
from heed.kernels.linear.native import PANEL, Packed
from heed.kernels.native import address

_step = native.Function("heed_decoder_step", "21qd2qd3q")
_layer = struct.Struct("@14q" + 3 * "2qd")


BENDS = ("relu", "gelu", "gelu-tanh")


class Norm(NamedTuple):
    """A layer norm."""

    weight: Tensor
    bias: Tensor
    eps: float

    def told(self) -> tuple[int, int, float]:
        return address(self.weight), address(self.bias), self.eps


class DecoderLayer(NamedTuple):
    """A layer: its linear maps and its norms."""

    look: Packed  # M -> 3M, query, key and value
    join: Packed
    ask: Packed | None  # M -> M, the query of the cross-attention
    answer: Packed | None
    widen: Packed
    narrow: Packed
    around: tuple[Norm, ...]  # attention, feed-forward, cross-attention if there is one


class Source(NamedTuple):
    """The keys and values that a layer's cross-attention reads."""

    k: Tensor  # B H D P, the places in whole panels
    v: Tensor  # B H S D

    @staticmethod
    def of(k: Tensor, v: Tensor, exists: Tensor | None) -> Source:
        """Keys and values B H S D, zeroed at places that do not exist, by `exists` B S."""
        if exists is not None:
            k, v = (x.masked_fill(~exists[:, None, :, None], 0.0) for x in (k, v))
        return Source(pad(k.mT, (0, -k.shape[2] % PANEL)).contiguous(), v.contiguous())


class Stack:
    """Layers, and all that stays the same from step to step."""

    def __init__(
        self,
        table: Tensor,
        scale: float,
        layers: Sequence[DecoderLayer],
        sources: Sequence[Source],
        exists: Tensor | None,
        *,
        heads: int,
        pre_norm: bool,
        bends: str,
        aligns: int | None,
        last: Norm | None,
    ) -> None:
        """`table` V M and `exists` B S are read; `bends`: one of BENDS.

        Either all maps are packed, or none is and each is contiguous.
        """
        V, M = table.shape
        S = P = 0
        if sources:
            S, P = sources[0].v.shape[2], sources[0].k.shape[3]
        hidden = None
        if exists is not None:
            hidden = torch.zeros(exists.shape, dtype=torch.float32, device="cpu")
            hidden = hidden.masked_fill_(~exists, -torch.inf)
            hidden = pad(hidden, (0, P - S), value=-torch.inf)
        told = [_told(layers[i], sources[i] if sources else None) for i in range(len(layers))]
        self.layers = torch.frombuffer(bytearray(b"".join(told)), dtype=torch.uint8)
        self.alive = (table, layers, sources, hidden, last)  # what pointers lead to
        self.table, self.symbols, self.width, self.source = table, V, M, S
        self.depth, self.aligns = len(layers), aligns
        F = layers[0].widen.N
        self.as_it_is = layers[0].widen.row > 0
        self.hidden = address(hidden)
        self.sizes = (
            M,
            heads,
            F,
            S,
            P,
            pre_norm,
            BENDS.index(bends),
            -1 if aligns is None else aligns,
        )
        self.rest = (scale, *((0, 0, 0.0) if last is None else last.told()))

    def step(
        self,
        symbols: Tensor,
        place: Tensor,
        pasts: Sequence[Tensor],
        origins: Tensor,
        sentences: Tensor,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Take each hypothesis one symbol further: its last state, and where it looked.

        symbols    N, and sentences N: which source each looks at; both int64
        place      M, the position's vector; or N M, one for each hypothesis
        pasts      keys and values N' L 2 M of each of the T places before, and of this one, which
                   is written
        origins    N T, int64: the row of each past that a hypothesis comes from
        first      N, int64: the place where each text begins; None: the first
        Gives N M, and where a layer `aligns` the mean weights of its heads, N S.
        """
        N, T = origins.shape
        x, weights = self.table.new_empty(N, self.width), None
        if self.aligns is not None:
            weights = self.table.new_empty(N, self.source)
        places = array("q", [address(past) for past in pasts])
        _step(
            address(symbols), address(self.table), address(place), address(self.layers),
            places.buffer_info()[0], address(origins), address(sentences), self.hidden,
            address(x), address(weights), self.depth, N, T,
            *self.sizes, *self.rest, address(first),
            self.width if place.ndim == 2 else 0, self.as_it_is,
        )  # fmt: skip
        return x, weights


def _told(layer: DecoderLayer, source: Source | None) -> bytes:
    maps: list[int] = []
    for packed in layer[:6]:
        maps += (0, 0) if packed is None else _pointers(packed)
    places = (0, 0) if source is None else (address(source.k), address(source.v))
    norms = [number for norm in layer.around for number in norm.told()]
    norms += [0, 0, 0.0] * (3 - len(layer.around))
    return _layer.pack(*maps, *places, *norms)


def _pointers(packed: Packed) -> tuple[int, int]:
    return address(packed.data), address(packed.bias)
