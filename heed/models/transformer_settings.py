"""The Transformer: an encoder, a decoder, or both. Vaswani 2017.

    network = build(TransformerSettings(size="tiny"), source=8000, target=8000, shared=True,
                    longest=60)

Every attention takes any mechanism that goes inside heads: one for all layers, one per layer, one
per head. The networks are in `heed.models.transformer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from torch import nn

import heed
from heed.attention import names
from heed.attention.head_groups import HeadGroups, head_groups
from heed.attention.position import Learned, Position, Rotary, Sinusoidal
from heed.errors import Refused, UnknownName
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.layers import FeedForward, TransformerLayer, TransformerStack
from heed.models.positioned_words import PositionedNumbers, PositionedWords
from heed.models.transformer import CrossDecoder, Decoder, Encoder
from heed.settings import Settings


class Size(NamedTuple):
    """Sizes of a network."""

    layers: int
    width: int
    feed: int
    heads: int


SIZES = {
    "tiny": Size(4, 128, 256, 4),  # Multi30k: Wu 2021, Li 2022
    "small": Size(6, 256, 1024, 4),
    "base": Size(6, 512, 2048, 8),  # Vaswani 2017 table 3
    "big": Size(6, 1024, 4096, 16),
}
"""Named sizes, which the encoder and the decoder share."""

Heads = str | Annotated[list[str], Field(min_length=1, max_length=256)]
"""A layer's mechanism: a name, groups of heads ("2*additive + 2*scaled-dot"), or a name a head."""

Layers = str | Annotated[list[Heads], Field(min_length=1, max_length=100)]
"""The mechanism of all layers, or a list with one for each."""

Option = bool | Annotated[int, Field(ge=0, le=65536)] | Annotated[float, Field(ge=0, le=1e6)] | str
Share = Annotated[float, Field(ge=0, lt=1)]


class TransformerSettings(Settings):
    """A recipe's settings of a Transformer. `size` fills in what is None."""

    kind: Literal["transformer"] = "transformer"
    size: Literal["tiny", "small", "base", "big"] = "tiny"
    encoder_layers: int | None = Field(None, ge=1, le=100)
    decoder_layers: int | None = Field(None, ge=1, le=100)
    width: int | None = Field(None, ge=2, le=8192)
    feed: int | None = Field(None, ge=1, le=65536)
    heads: int | None = Field(None, ge=1, le=256)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu", "gelu-tanh"] = "relu"
    position: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    dropout: Share = 0.1  # on what each sublayer adds, and on the embeddings
    attention_dropout: Share = 0.0  # on the attention weights
    feed_dropout: Share = 0.0  # inside the feed-forward network
    tied: bool = True  # output = target embedding, = source embedding where they share symbols
    encoder_attention: Layers = "scaled-dot"
    decoder_attention: Layers = "scaled-dot"
    cross_attention: Layers = "scaled-dot"
    options: dict[str, Option] = Field(default_factory=dict, max_length=32)  # of the mechanisms
    alignment_layer: int | None = Field(None, ge=0, lt=100)  # None: the last but one
    longest: int = Field(512, ge=1, le=65536)  # for learned positions, and `location` in a decoder


def _refuse_misfit(name: str, self_attends: bool, causal: bool) -> None:
    """Refuse a mechanism whose answers would depend on symbols yet to be written, or that compares
    places within one text where there are two."""
    claims = names.claims_of(name)
    if causal and claims.needs_length:
        raise Refused(
            f"'{name}' places its window by the text's length, which a decoder's self-attention "
            "does not know; it suits the encoder and the cross-attention"
        )
    if not self_attends and claims.needs_one_text:
        raise Refused(
            f"'{name}' compares places within one text; cross-attention has two: "
            "'local-m' follows the step, 'local-p' predicts a place"
        )


def multi_head(
    layer: Heads,
    *,
    width: int,
    heads: int,
    dropout: float = 0.0,
    options: dict[str, Any] | None = None,
    position: Position | None = None,
    self_attends: bool = True,
    causal: bool = False,
    kind: type[heed.MultiHeadAttention] = heed.MultiHeadAttention,
) -> heed.MultiHeadAttention:
    """The attention of one layer, with one mechanism for all heads or several."""
    if width % heads:
        raise Refused(f"width={width} does not split into heads={heads}")
    lanes = []
    for name, count in head_groups(layer, heads):
        _refuse_misfit(name, self_attends, causal)
        known = names.options_of(name)
        sizes = dict.fromkeys(("query", "key", "value"), width // heads)
        given = {option: x for option, x in (options or {}).items() if option in known}
        lane = names.build(name, **sizes, heads=count, dropout=dropout, **given)
        if not lane.claims.fits_heads:
            raise Refused(f"'{name}' does not work inside the heads of a Transformer")
        lanes.append((lane, count))
    mechanism = lanes[0][0] if len(lanes) == 1 else HeadGroups(lanes)
    return kind(width, heads, mechanism=mechanism, position=position)


def build(
    settings: TransformerSettings, *, source: int, target: int, shared: bool, longest: int
) -> EncoderDecoder:
    """The network of the settings, for vocabularies of `source` and `target` symbols.

    shared: they are one vocabulary. longest: the longest source, its end included.
    """
    looks = (settings.encoder_attention, settings.decoder_attention, settings.cross_attention)
    check_options(settings.options, looks, _size(settings).heads)
    refuse_segments(settings.options)
    most = max(longest, settings.longest)
    read = None if settings.tied and shared else _words(settings, source, most)
    stack = _stack(settings, longest, decodes=False)
    decoder = CrossDecoder(*_parts(settings, target, longest, cross=True))
    encoder = Encoder(decoder.words if read is None else read, stack)
    return EncoderDecoder(encoder, decoder)


def build_encoder(
    settings: TransformerSettings,
    *,
    symbols: int | None = None,
    features: int | None = None,
    longest: int,
) -> Encoder:
    """The encoder of the settings, a reader.

    symbols   the size of the vocabulary
    features  in its place: inputs are so many real numbers at every place
    longest   the longest input
    """
    check_options(settings.options, [settings.encoder_attention], _size(settings).heads)
    refuse_segments(settings.options)
    most, stack = max(longest, settings.longest), _stack(settings, longest, decodes=False)
    if symbols is not None:
        return Encoder(_words(settings, symbols, most), stack)
    if features is None:
        raise Refused("say what is read: symbols=... of a vocabulary, or features=... of numbers")
    width, position = _size(settings).width, _position(settings, most)
    return Encoder(PositionedNumbers(features, width, position, settings.dropout), stack)


def build_writer(
    settings: TransformerSettings, *, symbols: int, memory: int, longest: int
) -> CrossDecoder:
    """The decoder of the settings as a writer, for any reader.

    memory   the width of the reader's states
    longest  the most places of a memory, for a score that must know it (`location`)
    """
    looks = (settings.decoder_attention, settings.cross_attention)
    check_options(settings.options, looks, _size(settings).heads)
    refuse_segments(settings.options)
    return CrossDecoder(*_parts(settings, symbols, longest, cross=True), memory=memory)


def build_decoder(settings: TransformerSettings, *, symbols: int, longest: int) -> Decoder:
    """The decoder of the settings, without a source: a language model."""
    return Decoder(*_parts(settings, symbols, longest, cross=False))


def _parts(
    settings: TransformerSettings, symbols: int, longest: int, *, cross: bool
) -> tuple[PositionedWords, TransformerStack, nn.Linear | None, int | None]:
    """The parts of a decoder."""
    width = _size(settings).width
    output = None if settings.tied else nn.Linear(width, symbols, bias=False)
    words = _words(settings, symbols, max(longest, settings.longest))
    stack = _stack(settings, longest, decodes=True, cross=cross)
    return words, stack, output, settings.alignment_layer


def _size(settings: TransformerSettings) -> Size:
    given = {field: getattr(settings, field) for field in ("width", "feed", "heads")}
    named = SIZES[settings.size]
    return named._replace(**{field: x for field, x in given.items() if x is not None})


def _words(settings: TransformerSettings, symbols: int, longest: int) -> PositionedWords:
    position = _position(settings, longest)
    return PositionedWords(symbols, _size(settings).width, position, settings.dropout)


def _position(settings: TransformerSettings, longest: int) -> nn.Module | None:
    """The part that adds positions to vectors; rotary positions turn queries and keys instead."""
    if settings.position == "sinusoidal":
        return Sinusoidal()
    if settings.position == "learned":
        return Learned(longest=longest, width=_size(settings).width)
    return None


def _stack(
    settings: TransformerSettings, longest: int, *, decodes: bool, cross: bool = False
) -> TransformerStack:
    size, pre_norm = _size(settings), settings.norm == "pre"
    layers = (settings.decoder_layers if decodes else settings.encoder_layers) or size.layers
    own = settings.decoder_attention if decodes else settings.encoder_attention
    own_options = {"longest": settings.longest if decodes else longest, **settings.options}
    cross_options = {"longest": longest, **settings.options}

    def attention(look: Heads, options: dict[str, Any], **facts: Any) -> heed.MultiHeadAttention:
        facts |= {"dropout": settings.attention_dropout, "options": options}
        return multi_head(look, width=size.width, heads=size.heads, **facts)

    def layer(look: Heads, read: Heads | None) -> TransformerLayer:
        position = Rotary() if settings.position == "rotary" else None
        return TransformerLayer(
            attention(look, own_options, position=position, causal=decodes),
            FeedForward(size.width, size.feed, settings.activation, settings.feed_dropout),
            None if read is None else attention(read, cross_options, self_attends=False),
            dropout=settings.dropout,
            pre_norm=pre_norm,
        )

    looks = per_layer(own, layers)
    reads = per_layer(settings.cross_attention, layers) if cross else [None] * layers
    norm = nn.LayerNorm(size.width) if pre_norm else None
    return TransformerStack(map(layer, looks, reads), norm)


def per_layer(given: Layers, layers: int) -> list[Heads]:
    """The mechanism of each layer."""
    if isinstance(given, str):
        return [given] * layers
    if len(given) != layers:
        raise Refused(f"there are {layers} layers, and {len(given)} mechanisms are listed for them")
    return list(given)


def refuse_segments(options: Mapping[str, Any]) -> None:
    """Refuse a score that compares segments: of these models, XLNet alone tells them apart."""
    if options.get("segments"):
        raise Refused("segments are for XLNet's texts in parts; leave them out")


def options_of(given: Iterable[Layers], heads: int) -> dict[str, Any]:
    """The options that these mechanisms take, with their defaults."""
    known: dict[str, Any] = {}
    for layers in given:
        for layer in [layers] if isinstance(layers, str) else layers:
            for name, _ in head_groups(layer, heads):
                known |= names.options_of(name)
    return known


def check_options(options: dict[str, Any], given: Iterable[Layers], heads: int) -> None:
    """Refuse an option that no mechanism of these takes."""
    known = options_of(given, heads)
    for option in options:
        if option not in known:
            raise UnknownName("option of these mechanisms", option, known or ["(they take none)"])
