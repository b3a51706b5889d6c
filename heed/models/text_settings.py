"""BERT and GPT-2: Transformers that read or write one text. Devlin 2019, Radford 2019.

    build(BertSettings(size="tiny", symbols=8000, head="classify", labels=6))     # an Answerer
    build(GPT2Settings(size="small", symbols=50257))                              # a Decoder

Both are settings of `heed.models.transformer`: the attention of all layers, of each layer or of
each head is exchanged by its name. The heads of BERT are in `heed.models.answers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from torch import nn

import heed
from heed.attention.initial_weights import initialise, normal
from heed.attention.position import Learned
from heed.errors import Refused
from heed.models.answers import Answerer, MaskedWords, Pooler
from heed.models.layers import FeedForward, TransformerLayer, TransformerStack
from heed.models.own_attention import OwnAttention
from heed.models.positioned_words import PositionedWords
from heed.models.transformer import Decoder, Encoder
from heed.models.transformer_settings import (
    Layers,
    Option,
    Share,
    Size,
    check_options,
    multi_head,
    per_layer,
    refuse_segments,
)
from heed.settings import Settings

BERT_SIZES = {
    "tiny": Size(2, 128, 512, 2),  # Turc 2019 table 1
    "mini": Size(4, 256, 1024, 4),
    "small": Size(4, 512, 2048, 8),
    "medium": Size(8, 512, 2048, 8),
    "base": Size(12, 768, 3072, 12),  # Devlin 2019 §3
    "large": Size(24, 1024, 4096, 16),
}

GPT2_SIZES = {
    "nano": Size(6, 384, 1536, 6),  # for texts of a megabyte, symbol by symbol
    "small": Size(12, 768, 3072, 12),  # Radford 2019 table 2
    "medium": Size(24, 1024, 4096, 16),
    "large": Size(36, 1280, 5120, 20),
    "xl": Size(48, 1600, 6400, 25),
}

Activation = Literal["relu", "gelu", "gelu-tanh"]
BertHead = Literal["none", "masked", "next", "pretraining", "classify", "label", "span"]
GPT2Head = Literal["none", "language"]


class TextSettings(Settings):
    """Settings that the text models share. `size` fills in what is None."""

    layers: int | None = Field(None, ge=1, le=200)
    width: int | None = Field(None, ge=2, le=16384)
    feed: int | None = Field(None, ge=1, le=65536)
    heads: int | None = Field(None, ge=1, le=256)
    symbols: int | None = Field(None, ge=1, le=2**22)  # None: as many as the tokeniser has
    multiple: int = Field(1, ge=1, le=1024)  # the table's rows are rounded up to a multiple of it
    longest: int = Field(512, ge=1, le=65536)  # how many places there are
    dropout: Share = 0.1  # on what each sublayer adds
    embedding_dropout: Share | None = None  # None: as dropout
    attention_dropout: Share = 0.1
    epsilon: float = Field(1e-5, gt=0, le=1)  # of the norms
    initial: float = Field(0.02, gt=0, le=10)  # the spread of new weights
    attention: Layers = "scaled-dot"
    options: dict[str, Option] = Field(default_factory=dict, max_length=32)  # of the mechanisms

    @property
    def sizes(self) -> Size:
        """The sizes of the network: the named size, and what is given besides."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """The rows of the table of symbols."""
        if self.symbols is None:
            raise Refused("give the number of symbols: symbols=...")
        return -(-self.symbols // self.multiple) * self.multiple

    def _sized(self, named: Size) -> Size:
        width = named.width if self.width is None else self.width
        feed = named.feed if self.width is None else 4 * width
        given = {"layers": self.layers, "feed": self.feed, "heads": self.heads}
        kept = {field: x for field, x in given.items() if x is not None}
        return named._replace(**{"width": width, "feed": feed, **kept})


Text = TypeVar("Text", bound=TextSettings)


class BertSettings(TextSettings):
    """BERT: an encoder that reads one or two texts at once, and a head that answers.

    head  none         the states, and the pooled text
          masked       what hidden words were
          next         whether the second text follows the first
          pretraining  both
          classify     one of `labels` for the text
          label        one of `labels` for each symbol
          span         where an answer begins and ends
    """

    kind: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    activation: Activation = "gelu"
    epsilon: float = Field(1e-12, gt=0, le=1)
    types: int = Field(2, ge=1, le=1024)
    head: BertHead = "none"
    labels: Annotated[int, Field(ge=1, le=65536)] = 2
    head_dropout: Share | None = None  # None: as dropout

    @property
    def sizes(self) -> Size:
        return self._sized(BERT_SIZES[self.size])


class GPT2Settings(TextSettings):
    """GPT-2: a decoder that writes one text, from the symbols so far to the next symbol."""

    kind: Literal["gpt2"] = "gpt2"
    size: Literal["nano", "small", "medium", "large", "xl"] = "small"
    activation: Activation = "gelu-tanh"
    longest: int = Field(1024, ge=1, le=65536)
    tied: bool = True  # output = embedding
    head: GPT2Head = "language"

    @property
    def sizes(self) -> Size:
        return self._sized(GPT2_SIZES[self.size])


def with_symbols(settings: Text, symbols: int) -> Text:
    """The settings with the size of the vocabulary; a size of their own, if not less, is kept."""
    if settings.symbols is not None and settings.symbols < symbols:
        raise Refused(f"the vocabulary has {symbols} symbols, and the model {settings.symbols}")
    if settings.symbols is not None:
        return settings
    known = settings.model_dump(exclude_unset=True)
    return type(settings).model_validate({**known, "symbols": symbols})


def build(settings: BertSettings | GPT2Settings) -> Answerer | Decoder:
    """The network of the settings."""
    return build_bert(settings) if isinstance(settings, BertSettings) else build_gpt2(settings)


def build_bert(settings: BertSettings) -> Answerer:
    """Post-norm, learned places, token types, a norm around the embeddings. Devlin 2019 §3"""
    width, head = settings.sizes.width, settings.head
    types = nn.Embedding(settings.types, width)
    norm = nn.LayerNorm(width, eps=settings.epsilon)
    words = _words(settings, types=types, norm=norm)
    counts = {"classify": settings.labels, "label": settings.labels, "span": 2}
    dropout = settings.dropout if settings.head_dropout is None else settings.head_dropout
    network = Answerer(
        Encoder(words, _stack(settings, causal=False)),
        pool=Pooler(width) if head in ("none", "next", "pretraining", "classify") else None,
        words=MaskedWords(settings.rows, width, settings.activation, settings.epsilon)
        if head in ("masked", "pretraining")
        else None,
        follows=nn.Linear(width, 2) if head in ("next", "pretraining") else None,
        answer=nn.Linear(width, counts[head]) if head in counts else None,
        dropout=0.0 if head == "span" else dropout,
    )
    draw(network, settings.initial)
    return network


def build_gpt2(settings: GPT2Settings) -> Decoder:
    """Pre-norm, learned places. Radford 2019 §2.3

    The N maps that add to the residual stream start smaller by 1/√N, so that the stream does not
    grow with the depth.
    """
    width = settings.sizes.width
    output = None if settings.tied else nn.Linear(width, settings.rows, bias=False)
    network = Decoder(_words(settings), _stack(settings, causal=True), output)
    added = [layer.attention.out_proj for layer in network.stack.layers]
    added += [layer.feed[3] for layer in network.stack.layers]  # type: ignore[misc]
    draw(network, settings.initial)
    draw_linear(added, settings.initial * len(added) ** -0.5)
    return network


def draw(network: nn.Module, spread: float) -> None:
    """Draw new weights: normal, biases zero. Norms and the weights of mechanisms stay."""
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            initialise(module, weight=normal(spread))
        if isinstance(module, heed.MultiHeadAttention):
            initialise(module, in_proj_weight=normal(spread))
            draw_linear([module.out_proj], spread)
        if isinstance(module, FeedForward | Pooler | MaskedWords | Answerer):
            draw_linear((x for x in module.children() if isinstance(x, nn.Linear)), spread)
        if isinstance(module, Decoder) and module.output is not None:
            draw_linear([module.output], spread)


def draw_linear(maps: Iterable[nn.Linear], spread: float) -> None:
    """Draw new weights of linear maps; biases are zero."""
    for each in maps:
        initialise(each, weight=normal(spread))
        if each.bias is not None:
            initialise(each, bias=nn.init.zeros_)


def _words(settings: TextSettings, **parts: Any) -> PositionedWords:
    width = settings.sizes.width
    position = Learned(longest=settings.longest, width=width)
    dropout = settings.embedding_dropout
    dropout = settings.dropout if dropout is None else dropout
    return PositionedWords(settings.rows, width, position, dropout, scale=1.0, **parts)


def _stack(settings: BertSettings | GPT2Settings, *, causal: bool) -> TransformerStack:
    size, epsilon = settings.sizes, settings.epsilon
    check_options(settings.options, [settings.attention], size.heads)
    refuse_segments(settings.options)
    table = settings.options.get("longest", settings.longest)  # of `location`
    if isinstance(table, int) and table < settings.longest:
        raise Refused(
            f"options.longest={table} is fewer than the model's {settings.longest} places; leave "
            f"it out, or set longest={table}"
        )
    facts: dict[str, Any] = {
        "width": size.width,
        "heads": size.heads,
        "dropout": settings.attention_dropout,
        "options": {"longest": settings.longest, **settings.options},
        "causal": causal,
        "kind": OwnAttention,
    }
    layers = [
        TransformerLayer(
            multi_head(look, **facts),
            FeedForward(size.width, size.feed, settings.activation, 0.0),
            dropout=settings.dropout,
            pre_norm=causal,
            epsilon=epsilon,
        )
        for look in per_layer(settings.attention, size.layers)
    ]
    return TransformerStack(layers, nn.LayerNorm(size.width, eps=epsilon) if causal else None)
