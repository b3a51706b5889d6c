"""The fast path of `heed.models.plain_carry` in one call of C per step, for float32 on the CPU.

Weights are packed once (heed.kernels.linear), a step is one call through all layers
(heed.kernels.decoder), and the output layer forms only what a search needs. Reordering a beam
copies row numbers alone: keys and values stay where they were written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from heed.errors import Refused, ShapeError
from heed.kernels.ability import recorded
from heed.kernels.choose import is_on
from heed.kernels.decoder.native import DecoderLayer, Norm, Source, Stack
from heed.kernels.linear.native import (
    Likeliest,
    Packed,
    as_it_is,
    forward,
    likeliest,
    pack,
    refusal,
)

if TYPE_CHECKING:
    import heed
    from heed.models.layers import TransformerLayer
    from heed.models.plain_carry import Start
    from heed.models.transformer import Decoder, DecoderCarry


Keep = Callable[[int, Tensor], None]
"""Keeps the keys and values of a layer, by its number, for all places of a prompt.    N T 2 H D"""


class NativeStep(NamedTuple):
    """One more symbol for each of N hypotheses; all logits are formed only when asked for.

    known, output   what logits are made of    N M
    carry, weight   as in `heed.models.written.Step`
    """

    known: Tensor
    output: Packed
    carry: Any
    weight: Tensor | None

    @property
    def logits(self) -> Tensor:
        """The logits of the next symbol.    N V"""
        return forward(self.known, self.output)

    def likeliest(self, many: int, end: int, forbid: Tensor) -> Likeliest:
        """The `many` best symbols of each row, except the forbidden ones."""
        return likeliest(self.known, self.output, many, end, forbid)


class NativeCarry(NamedTuple):
    """State handed from step to step on this path."""

    stack: Stack
    output: Packed
    start: Start
    pasts: tuple[Tensor, ...]  # for each place, the keys and values of its rows: N' L 2 M
    origins: Tensor  # N T: the row of each place that a hypothesis comes from
    sentences: Tensor  # N: which source each looks at
    first: Tensor | None = None  # N: the column of each text's first symbol; None: 0

    @property
    def place(self) -> int:
        return len(self.pasts)

    def step(self, symbols: Tensor) -> NativeStep:
        """N -> N V"""
        N, stack = len(self.origins), self.stack
        check_symbols(symbols, N, stack.symbols)
        past = stack.table.new_empty(N, stack.depth, 2, stack.width)
        pasts = (*self.pasts, past)
        place = self.start.place(self.place, self.first).to(torch.float32)
        symbols = symbols.long().contiguous()
        x, weight = stack.step(symbols, place, pasts, self.origins, self.sentences, self.first)
        origins = torch.cat([self.origins, _counted(N)], 1)
        return NativeStep(x, self.output, self._replace(pasts=pasts, origins=origins), weight)

    def after(self, read: Callable[[Keep], None], places: int) -> NativeCarry:
        """The carry after a prompt of so many places; `read` passes on its keys and values."""
        if not places:
            return self
        N, stack = len(self.origins), self.stack
        table = stack.table.new_empty(places, N, stack.depth, 2, stack.width)

        def keep(layer: int, new: Tensor) -> None:
            table[:, :, layer] = new.flatten(3).transpose(0, 1)

        read(keep)
        origins = _counted(N).expand(-1, places).contiguous()
        return self._replace(pasts=table.unbind(0), origins=origins)

    def select(self, rows: Tensor, same: bool) -> NativeCarry:
        """The chosen hypotheses."""
        origins = self.origins.index_select(0, rows)
        first = None if self.first is None else self.first.index_select(0, rows)
        if same and len(rows) == len(self.sentences):
            return self._replace(origins=origins, first=first)
        sentences = self.sentences.index_select(0, rows)
        chosen = self._replace(origins=origins, sentences=sentences, first=first)
        kept = sum(len(past) for past in self.pasts)
        return chosen._without_the_lost() if kept > 2 * origins.numel() else chosen

    def _without_the_lost(self) -> NativeCarry:
        """Without the keys and values that no hypothesis comes from any more."""
        pasts = []
        for past, origin in zip(self.pasts, self.origins.unbind(1), strict=True):
            pasts.append(past.index_select(0, origin))
        origins = _counted(len(self.origins)).expand_as(self.origins)
        return self._replace(pasts=tuple(pasts), origins=origins.contiguous())


def native_carry(
    decoder: Decoder, carry: DecoderCarry, start: Start, exists: Tensor | None, places: int
) -> NativeCarry | None:
    """The carry of this path, before anything was read; None where the path does not apply.

    The decoder is known to be plain. places  how many the prompt to come has
    """
    table = decoder.words.table.weight
    layers, weights = decoder.stack.layers, list(decoder.parameters())
    if recorded() or not is_on("decoder") or refusal(*weights) is not None:
        return None
    if not table.is_contiguous():  # C looks up its rows as if they were
        return None
    if len({_alike(layer) for layer in layers}) > 1 or _shares_heads(decoder):
        return None
    check_first(carry.first, places)
    sources = [_source(kept.source, exists) for kept in carry.layers if kept.source is not None]
    norm, lay = decoder.stack.norm, _laid(weights)
    if lay is as_it_is and len(carry.sentence) > MANY:
        return None
    stack = Stack(
        table.detach(),
        decoder.words.scale,
        [_layer(layer, lay) for layer in layers],
        sources,
        exists,
        heads=layers[0].attention.num_heads,
        pre_norm=layers[0].around_attention.pre_norm,
        bends=_bends(layers[0].feed[1]),
        aligns=None if carry.need == "context" or not sources else decoder.alignment_layer,
        last=None if norm is None else _norm(norm),
    )
    weight, bias = (table, None) if decoder.output is None else _parts(decoder.output)
    return NativeCarry(
        stack,
        lay(weight, bias),
        start,
        (),
        torch.empty(len(carry.sentence), 0, dtype=torch.int64, device="cpu"),
        carry.sentence.contiguous(),
        None if carry.first is None else carry.first.long().contiguous(),
    )


def check_symbols(symbols: Tensor, rows: int, count: int) -> None:
    """Refuse symbols outside the table: C would read whatever lies there."""
    if symbols.shape != (rows,):
        raise ShapeError(f"{rows} hypotheses need {rows} symbols; got {tuple(symbols.shape)}")
    if symbols.dtype not in (torch.int64, torch.int32) or symbols.device.type != "cpu":
        raise Refused(
            f"symbols are int64 or int32 on the CPU, not {symbols.dtype} on {symbols.device.type}"
        )
    if not rows:
        return
    low, high = torch.aminmax(symbols)
    if int(low) < 0 or int(high) >= count:
        raise IndexError(f"symbols are numbers from 0 to {count - 1}; got {low} to {high}")


def check_first(first: Tensor | None, places: int) -> None:
    """Refuse texts that begin before their row or after its end: C would look there."""
    if first is None or not first.numel():
        return
    low, high = torch.aminmax(first)
    if int(low) < 0 or int(high) > places:
        raise ShapeError(
            f"a text has 0 to {places} of the {places} symbols of its row; "
            f"first has {int(low)} to {int(high)}"
        )


def _counted(rows: int) -> Tensor:
    """0, 1, 2 …    N 1"""
    return torch.arange(rows, dtype=torch.int64, device="cpu")[:, None]


def _alike(layer: TransformerLayer) -> tuple[int, int, str]:
    """Facts that must be the same in all layers."""
    widen = layer.feed[0]
    assert isinstance(widen, nn.Linear)
    return layer.attention.num_heads, widen.out_features, _bends(layer.feed[1])


def _bends(bend: nn.Module) -> str:
    if not isinstance(bend, nn.GELU):
        return "relu"
    return "gelu" if bend.approximate == "none" else "gelu-tanh"


def _shares_heads(decoder: Decoder) -> bool:
    """Whether some heads share their keys and values."""
    attentions = [x for y in decoder.stack.layers for x in (y.attention, y.cross) if x is not None]
    return any(x.groups != x.num_heads for x in attentions)


LARGE = 2**26
"""From so many weights on, 256 MiB, a packed copy is not worth its memory: no cache holds them."""

MANY = 64
"""With more texts than this, and weights that are not packed, PyTorch's own steps are faster."""

Lay = Callable[..., Packed]


def _laid(parameters: list[nn.Parameter]) -> Lay:
    """The layout of the weights: in panels, or as they are."""
    weights = [x for x in parameters if x.ndim == 2]
    apart = any(x.stride(0) != x.shape[1] for x in weights)
    return pack if apart or sum(x.numel() for x in weights) < LARGE else as_it_is


def _layer(layer: TransformerLayer, lay: Lay) -> DecoderLayer:
    own, cross = layer.attention, layer.cross
    parts = (layer.around_attention, layer.around_feed, layer.around_cross)
    assert own.in_proj_weight is not None
    ask = answer = None
    if cross is not None:
        assert cross.in_proj_weight is not None
        ask = lay(cross.in_proj_weight, cross.in_proj_bias, rows=cross.embed_dim)
        answer = lay(*_parts(cross.out_proj))
    return DecoderLayer(
        lay(own.in_proj_weight, own.in_proj_bias),
        lay(*_parts(own.out_proj)),
        ask,
        answer,
        lay(*_parts(layer.feed[0])),
        lay(*_parts(layer.feed[3])),
        tuple(_norm(part.norm) for part in parts if part is not None),
    )


def _parts(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    assert isinstance(linear, nn.Linear)
    return linear.weight, linear.bias


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def _source(memory: heed.Memory, exists: Tensor | None) -> Source:
    return Source.of(memory.k, memory.v, exists)
