"""XLNet from settings. Yang 2019.

    build(XLNetSettings(size="mini", symbols=8000, head="language"))              # a LanguageModel
    build(XLNetSettings(size="base", symbols=32000, head="classify", labels=6))   # an Answerer

The attention of all layers, of each layer or of each head is set by its name; every query must be
answered by itself (heed.models.xlnet).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

import heed
from heed.attention.initial_weights import initialise, normal
from heed.attention.score import Relative
from heed.models.layers import FeedForward
from heed.models.text_settings import Activation, TextSettings, draw, draw_linear
from heed.models.transformer_settings import (
    Heads,
    Layers,
    Share,
    Size,
    check_options,
    multi_head,
    per_layer,
)
from heed.models.xlnet import StreamLayer, TwoStreams
from heed.models.xlnet_answers import LanguageModel, TextSummary, XLNetAnswerer

SIZES = {
    "tiny": Size(2, 128, 512, 2),
    "mini": Size(4, 256, 1024, 4),
    "base": Size(12, 768, 3072, 12),  # Yang 2019 A.4
    "large": Size(24, 1024, 4096, 16),
}

Head = Literal["none", "language", "classify", "label", "span"]


class XLNetSettings(TextSettings):
    """XLNet: two streams over one text, memories of the segments before it, and a head.

    blind  zero     a query that sees no key has the context 0 (contract 1)
           uniform  it attends to all keys evenly, as in the published model

    head  none      the states
          language  hidden symbols in any order, or the next one
          classify  one of `labels` for the text
          label     one of `labels` for each symbol
          span      the beginning and end of an answer
    """

    kind: Literal["xlnet"] = "xlnet"
    size: Literal["tiny", "mini", "base", "large"] = "base"
    activation: Activation = "gelu"
    epsilon: float = Field(1e-12, gt=0, le=1)
    attention: Layers = "relative"
    direction: Literal["both", "left-to-right"] = "both"
    memory: int | None = Field(512, ge=1, le=65536)  # positions kept for the next segment
    reuse: int | None = Field(None, ge=1, le=65536)  # of a segment's first positions; None: all
    clamp: int = Field(0, ge=0, le=65536)  # the largest distance; 0: no limit
    blind: Literal["zero", "uniform"] = "zero"  # the weights of a query that sees no key
    tied: bool = True  # output = embedding
    head: Head = "none"
    labels: Annotated[int, Field(ge=1, le=65536)] = 2
    summary: Literal["last", "first", "mean"] = "last"  # what represents a text
    summary_activation: Literal["tanh", "none"] = "tanh"
    head_dropout: Share | None = None  # None: as dropout

    @property
    def sizes(self) -> Size:
        return self._sized(SIZES[self.size])


def build(settings: XLNetSettings) -> LanguageModel | XLNetAnswerer:
    """The network of the settings."""
    check_options(settings.options, [settings.attention], settings.sizes.heads)
    streams, width, head = _streams(settings), settings.sizes.width, settings.head
    network: LanguageModel | XLNetAnswerer
    if head == "language":
        network = LanguageModel(streams, None if settings.tied else nn.Linear(width, settings.rows))
    else:
        counts = {"classify": settings.labels, "label": settings.labels, "span": 2}
        dropout = settings.dropout if settings.head_dropout is None else settings.head_dropout
        network = XLNetAnswerer(
            streams,
            pool=TextSummary(width, settings.summary, bend(settings))
            if head == "classify"
            else None,
            answer=nn.Linear(width, counts[head]) if head in counts else None,
            dropout=dropout if head == "classify" else 0.0,
        )
    _draw(network, settings.initial)
    return network


def bend(settings: XLNetSettings) -> nn.Module:
    """The activation of a text's summary."""
    return nn.Tanh() if settings.summary_activation == "tanh" else nn.Identity()


def _streams(settings: XLNetSettings) -> TwoStreams:
    size = settings.sizes
    layers = [
        StreamLayer(
            _attention(settings, look),
            FeedForward(size.width, size.feed, settings.activation, settings.dropout),
            dropout=settings.dropout,
            epsilon=settings.epsilon,
        )
        for look in per_layer(settings.attention, size.layers)
    ]
    dropout = settings.embedding_dropout
    return TwoStreams(
        nn.Embedding(settings.rows, size.width),
        layers,
        dropout=settings.dropout if dropout is None else dropout,
        causal=settings.direction == "left-to-right",
        memory=settings.memory,
        reuse=settings.reuse,
    )


def _attention(settings: XLNetSettings, look: Heads) -> heed.MultiHeadAttention:
    """Multi-head attention without biases: the score has its own."""
    size = settings.sizes
    own: dict[str, Any] = {"width": size.width, "segments": "optional", "clamp": settings.clamp}
    made = multi_head(
        look,
        width=size.width,
        heads=size.heads,
        dropout=settings.attention_dropout,
        options={**own, **settings.options},
        causal=settings.direction == "left-to-right",
    )
    if settings.blind == "uniform":
        made.mechanism.look_regardless()  # mechanisms unfit for XLNet are refused later
    for score in made.mechanism.modules():
        if isinstance(score, Relative):
            score.ahead = settings.direction == "both"
    return heed.MultiHeadAttention(size.width, size.heads, bias=False, mechanism=made.mechanism)


def _draw(network: nn.Module, spread: float) -> None:
    """Draw new weights: normal, the score's vectors too; biases of linear maps are zero."""
    draw(network, spread)
    for module in network.modules():
        if isinstance(module, TextSummary | XLNetAnswerer | LanguageModel):
            draw_linear((x for x in module.children() if isinstance(x, nn.Linear)), spread)
        if isinstance(module, Relative):
            initialise(module, **{name: normal(spread) for name, _ in module.named_parameters()})
        if isinstance(module, TwoStreams):
            initialise(module, question=normal(spread))
