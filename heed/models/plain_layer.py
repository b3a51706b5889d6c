"""Plain layers with their weights at hand, which the fast paths of a Transformer go through.

`heed.models.plain_encoder` is such a path for reading, `heed.models.plain_carry` and
`heed.models.replaying` are for writing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

import heed
from heed.attention.hooks import plain
from heed.attention.part import Part
from heed.attention.position import Learned, Position, Sinusoidal
from heed.models.layers import FeedForward, Residual, TransformerLayer
from heed.models.own_attention import OwnAttention
from heed.visible import Places

Map = Callable[[Tensor], Tensor]

KNOWN = {
    *(nn.Embedding, nn.Linear, nn.LayerNorm, nn.Dropout, nn.ReLU, nn.GELU, nn.ModuleList),
    *(heed.MultiHeadAttention, heed.Mechanism, Sinusoidal, Learned, OwnAttention),
}
OWN = ("heed.models.transformer", "heed.models.layers", "heed.models.positioned_words")
"""Modules of any other type, unless their class is from these files, rule the fast paths out."""


def known(network: nn.Module) -> bool:
    """Whether every module is of a known kind, all are in evaluation (a part may have been left in
    training), and no hook waits for their calls."""
    modules = list(network.modules())
    others = [each for each in modules if not isinstance(each, Part)]
    ours = all(type(each) in KNOWN or type(each).__module__ in OWN for each in others)
    usual = all(each.is_plain for each in others if type(each) is heed.Mechanism)
    return ours and usual and not any(each.training for each in modules) and plain(modules)


class HiddenPadding(Position):
    """Hides the places beyond the end of each source, none of which is empty."""

    def __init__(self, exists: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        far = torch.zeros(exists.shape, dtype=dtype, device=exists.device)
        self.far = far.masked_fill_(~exists, -torch.inf)[:, None, None]  # B 1 1 S

    def bias(self, places: Places) -> Tensor:
        return self.far


class PlainResidual(NamedTuple):
    """A residual, its norm bound to its weights."""

    enter: Map
    leave: Callable[[Tensor, Tensor], Tensor]

    @staticmethod
    def of(residual: Residual) -> PlainResidual:
        norm = _norm(residual.norm)
        if residual.pre_norm:
            return PlainResidual(norm, torch.add)
        return PlainResidual(_same, lambda x, added: norm(x + added))


class PlainLayer(NamedTuple):
    """The operations of one layer, each bound to its weights."""

    heads: int
    around_attention: PlainResidual
    around_cross: PlainResidual | None
    around_feed: PlainResidual
    look: Map  # N M -> N 3M, query, key and value
    back: heed.Mechanism
    join: Map
    ask: Map | None  # N M -> N M, the query of the cross-attention
    mechanism: heed.Mechanism | None
    answer: Map | None
    feed: Map

    @staticmethod
    def of(layer: TransformerLayer) -> PlainLayer:
        own, cross = layer.attention, layer.cross
        return PlainLayer(
            own.num_heads,
            PlainResidual.of(layer.around_attention),
            None if layer.around_cross is None else PlainResidual.of(layer.around_cross),
            PlainResidual.of(layer.around_feed),
            _linear(own.in_proj_weight, own.in_proj_bias),
            own.mechanism,
            _linear(own.out_proj.weight, own.out_proj.bias),
            None if cross is None else _linear(*cross._projection(0)),
            None if cross is None else cross.mechanism,
            None if cross is None else _linear(cross.out_proj.weight, cross.out_proj.bias),
            _feed(layer.feed),
        )


def _linear(weight: Tensor | None, bias: Tensor | None) -> Map:
    assert weight is not None
    return partial(linear, weight=weight, bias=bias)


def _norm(norm: nn.LayerNorm) -> Map:
    return partial(
        torch.layer_norm,
        normalized_shape=list(norm.normalized_shape),
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
    )


def _feed(feed: FeedForward) -> Map:
    widen, bend, _, narrow = feed
    assert isinstance(widen, nn.Linear)
    assert isinstance(narrow, nn.Linear)
    wide, thin = _linear(widen.weight, widen.bias), _linear(narrow.weight, narrow.bias)
    bent: Map = torch.relu_
    if isinstance(bend, nn.GELU):
        bent = partial(gelu, approximate=bend.approximate)
    return lambda x: thin(bent(wide(x)))


def _same(x: Tensor) -> Tensor:
    return x
