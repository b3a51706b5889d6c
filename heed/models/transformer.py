"""The Transformer: an encoder, a decoder, or both. Vaswani 2017.

Every attention is a `heed.MultiHeadAttention` and takes any mechanism that goes inside heads: one
for all layers, one per layer, one per head. A decoder writes a whole text at once (`forward`) or
symbol by symbol (`begin`, `step`, `select`), with the same numbers.

    network = build(TransformerSettings(size="tiny"), source=8000, target=8000, shared=True,
                    longest=60)
    written = network(source, lengths, inputs, need="weight")  # B S, B, B T -> B T V
    network.alignment(written.seen)                            # B T S
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import and_
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import linear, pad

import heed
from heed.attention import naming
from heed.attention.mixed import Mixed
from heed.attention.position import Learned, Position, Rotary, Sinusoidal
from heed.errors import Refused, UnknownName
from heed.models.written import Step, Written
from heed.records import Attended, Need, State
from heed.visible import Visible


class Size(NamedTuple):
    """How large a network is."""

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
"""Of the encoder and the decoder alike."""

Heads = str | Annotated[list[str], Field(min_length=1, max_length=256)]
"""A layer's mechanism: a name, groups of heads ("2*additive + 2*scaled-dot"), or a name a head."""

Layers = str | Annotated[list[Heads], Field(min_length=1, max_length=100)]
"""The mechanism of all layers, or a list with one for each."""

Option = bool | Annotated[int, Field(ge=0, le=65536)] | Annotated[float, Field(ge=0, le=1e6)] | str
Share = Annotated[float, Field(ge=0, lt=1)]


class TransformerSettings(BaseModel):
    """What a recipe says of a Transformer. What is None is as `size` has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["transformer"] = "transformer"
    size: Literal["tiny", "small", "base", "big"] = "tiny"
    encoder_layers: int | None = Field(None, ge=1, le=100)
    decoder_layers: int | None = Field(None, ge=1, le=100)
    width: int | None = Field(None, ge=2, le=8192)
    feed: int | None = Field(None, ge=1, le=65536)
    heads: int | None = Field(None, ge=1, le=256)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu"] = "relu"
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


class HeadGroups(heed.Mechanism):
    """Another mechanism for every group of heads, over one memory.

    Their kept keys lie one group above the other in `Memory.k`, filled up to the widest.
    """

    lanes: Sequence[heed.Mechanism]

    def __init__(self, lanes: Sequence[tuple[heed.Mechanism, int]]) -> None:
        nn.Module.__init__(self)
        self.token = object()
        self.lanes = nn.ModuleList(lane for lane, _ in lanes)  # type: ignore[assignment]
        self.heads = [heads for _, heads in lanes]
        widths = [lane.kept_width for lane, _ in lanes]
        self.widths = [width for width in widths if width is not None]
        if len(self.widths) < len(lanes):
            raise Refused("groups of heads share a memory: each score must say its kept_width")
        self.claims = reduce(and_, (lane.claims for lane, _ in lanes))

    @property
    def in_line(self) -> bool:
        return any(lane.in_line for lane in self.lanes)

    @property
    def slots(self) -> set[str]:
        return {str(i) for i in range(len(self.heads))}

    @property
    def kept_width(self) -> int:
        return max(self.widths)

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        parts = zip(self.lanes, keys.split(self.heads, 1), values.split(self.heads, 1), strict=True)
        kept = [lane.keep(k, v) for lane, k, v in parts]
        return torch.cat([pad(k, (0, self.kept_width - k.shape[-1])) for k in kept], 1)

    def forward(
        self,
        query: Tensor | None,
        memory: heed.Memory,
        state: State | None = None,
        *,
        visible: Visible | Tensor | None = None,
        need: Need = "context",
        segments: Tensor | None = None,
        position: Position | None = None,
    ) -> Attended:
        """Each group attends on its own heads: queries B H T M -> context B H T R."""
        if query is None:
            raise Refused("groups of heads need a query")
        self.check_call(query, memory, state, need)
        k, v, q = (x.split(self.heads, 1) for x in (memory.k, memory.v, query))
        seen = [
            lane(
                q[i],
                replace(memory, k=k[i][..., : self.widths[i]], v=v[i], owner=lane.token),
                None if state is None else state.slots.get(str(i), State(state.step, state.origin)),
                visible=visible,
                need=need,
                segments=segments,
                position=position,
            )
            for i, lane in enumerate(self.lanes)
        ]
        return self._together(seen, need)

    def _together(self, seen: list[Attended], need: Need) -> Attended:
        states = {str(i): one.state for i, one in enumerate(seen)}
        return Attended(
            torch.cat([one.context for one in seen], 1),
            State(seen[0].state.step, seen[0].state.origin, states),
            weight=None if need == "context" else torch.cat([one.weight for one in seen], 1),
            energy=torch.cat([one.energy for one in seen], 1) if need == "energy" else None,
            log_prob=self._fact([one.log_prob for one in seen]),
            entropy=self._fact([one.entropy for one in seen]),
            penalty=self._fact([one.penalty for one in seen]),
            kernel=" + ".join(one.kernel for one in seen),
            refusals=tuple(refusal for one in seen for refusal in one.refusals),
        )

    def _fact(self, facts: list[Tensor | None]) -> Tensor | None:
        """What some groups report, zero for the heads of the others.    -> B H T"""
        like = next((x for x in facts if x is not None), None)
        if like is None:
            return None
        B, _, T = like.shape
        filled = zip(facts, self.heads, strict=True)
        return torch.cat([like.new_zeros(B, n, T) if x is None else x for x, n in filled], 1)


def head_groups(layer: Heads, heads: int) -> list[tuple[str, int]]:
    """The mechanisms of a layer's heads: "a" or "2*a + 2*b" or ["a", "a", "b", "b"]."""
    words = layer.split("+") if isinstance(layer, str) else layer
    groups = [_counted(word.strip()) for word in words]
    if isinstance(layer, str) and len(groups) == 1 and "*" not in layer:
        groups = [(groups[0][0], heads)]
    if sum(count for _, count in groups) != heads:
        raise Refused(
            f"there are {heads} heads, and '{layer}' speaks of {sum(n for _, n in groups)}; "
            f"a layer takes one name, or as many as heads: '{heads - 1}*scaled-dot + 1*additive'"
        )
    merged = groupby(groups, key=lambda group: group[0])
    return [(name, sum(count for _, count in group)) for name, group in merged]


def _counted(word: str) -> tuple[str, int]:
    """ "2*additive" -> ("additive", 2); without a number, one head."""
    count, star, name = word.rpartition("*")
    if not star:
        return word, 1
    if not count.strip().isdecimal() or int(count) == 0:
        raise Refused(f"'{word}': before the * stands how many heads, as in 2*additive")
    return name.strip(), int(count)


def _refuse_misfit(name: str, options: dict[str, Any], self_attends: bool, causal: bool) -> None:
    """A text must read the same at any padding, and as it grows."""
    parts = naming.parse(name)
    reach = parts.get("reach")
    if reach == "expanded-window" and "block" not in options:
        raise Refused(
            f"'{name}' sizes its blocks by the text's padded length unless told: "
            "options: {block: 16}"
        )
    if causal and reach in ("local-p", "mixed"):
        raise Refused(
            f"'{name}' places its window by the text's length, which a decoder that looks at what "
            "it has written does not know; it suits the encoder and the cross-attention"
        )
    if not self_attends and reach in ("fixed-window", "expanded-window"):
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
) -> heed.MultiHeadAttention:
    """The attention of one layer, whatever its heads do."""
    if width % heads:
        raise Refused(f"width={width} does not split into heads={heads}")
    lanes = []
    for name, count in head_groups(layer, heads):
        _refuse_misfit(name, options or {}, self_attends, causal)
        known = naming.options_of(name)
        sizes = dict.fromkeys(("query", "key", "value"), width // heads)
        given = {option: x for option, x in (options or {}).items() if option in known}
        lane = naming.build(name, **sizes, heads=count, dropout=dropout, **given)
        if not lane.claims.heads:
            raise Refused(f"'{name}' does not go inside the heads of a Transformer")
        lanes.append((lane, count))
    mechanism = lanes[0][0] if len(lanes) == 1 else HeadGroups(lanes)
    return heed.MultiHeadAttention(width, heads, mechanism=mechanism, position=position)


def forgets(mechanism: heed.Mechanism) -> bool:
    """Whether each query is answered by itself: by no earlier one, and wherever it stands."""
    if isinstance(mechanism, HeadGroups):
        return all(forgets(lane) for lane in mechanism.lanes)
    if isinstance(mechanism, Mixed):
        return forgets(mechanism.first) and forgets(mechanism.second)
    return (
        mechanism.past is None
        and mechanism.align.name in ("softmax", "sparsemax", "entmax", "argmax")
        and mechanism.reach.name in ("global", "local-p")
        and mechanism.score.name != "relative"
    )


class Kept(NamedTuple):
    """What one layer keeps between steps: of its own text, and of the source where it has one."""

    own: heed.Memory | None = None  # None: the call is the whole text
    own_state: State = State()
    source: heed.Memory | None = None
    source_state: State = State()


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) as in the paper; dropout on what f gives. §3.1, §5.4"""

    def __init__(self, width: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm, self.dropout, self.pre_norm = nn.LayerNorm(width), nn.Dropout(dropout), pre_norm

    def enter(self, x: Tensor) -> Tensor:
        """What f is given."""
        return self.norm(x) if self.pre_norm else x

    def leave(self, x: Tensor, added: Tensor) -> Tensor:
        """What goes on."""
        x = x + self.dropout(added)
        return x if self.pre_norm else self.norm(x)


class FeedForward(nn.Sequential):
    """Two linear maps with a bend between them, at each place alike. §3.3"""

    def __init__(self, width: int, feed: int, activation: str, dropout: float) -> None:
        bend = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]()
        widen, narrow = nn.Linear(width, feed), nn.Linear(feed, width)
        for end in (widen, narrow):
            nn.init.xavier_uniform_(end.weight)
            nn.init.zeros_(end.bias)
        super().__init__(widen, bend, nn.Dropout(dropout), narrow)


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward."""

    def __init__(
        self,
        attention: heed.MultiHeadAttention,
        feed: FeedForward,
        cross: heed.MultiHeadAttention | None = None,
        *,
        dropout: float = 0.0,
        pre_norm: bool = True,
    ) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention, self.cross, self.feed = attention, cross, feed
        self.around_attention = Residual(width, dropout, pre_norm)
        self.around_cross = None if cross is None else Residual(width, dropout, pre_norm)
        self.around_feed = Residual(width, dropout, pre_norm)
        self.folds = cross is not None and forgets(cross.mechanism)
        """Whether the hypotheses of a sentence may ask one memory, as so many queries."""

    def forward(
        self, x: Tensor, kept: Kept, visible: Visible, need: Need = "context"
    ) -> tuple[Tensor, dict[str, Attended], Kept]:
        """B T M -> B T M"""
        h = self.around_attention.enter(x)
        own = None if kept.own is None else kept.own.extend(h)
        looked = self.attention(h, own, kept.own_state, visible=visible, need=need)
        x = self.around_attention.leave(x, looked.context)
        seen, read_state = {"self": looked}, kept.source_state
        if kept.source is not None:
            x, seen["cross"] = self._read(x, kept, need)
            read_state = read_state if self.folds else seen["cross"].state
        x = self.around_feed.leave(x, self.feed(self.around_feed.enter(x)))
        return x, seen, Kept(own, looked.state, kept.source, read_state)

    def _read(self, x: Tensor, kept: Kept, need: Need) -> tuple[Tensor, Attended]:
        """Where the memory has a row per sentence, its K hypotheses ask it as K queries."""
        assert self.cross is not None
        assert self.around_cross is not None
        assert kept.source is not None
        h = self.around_cross.enter(x).reshape(kept.source.k.shape[0], -1, x.shape[-1])
        seen = self.cross(h, kept.source, kept.source_state, need=need)
        return self.around_cross.leave(x, seen.context.reshape(x.shape)), seen


class Stack(nn.Module):
    """Layers, and with pre-norm a last norm, since no layer normalised what leaves it."""

    layers: Sequence[Layer]

    def __init__(self, layers: Iterable[Layer], norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = norm

    def forward(
        self, x: Tensor, kept: Sequence[Kept], visible: Visible, needs: Sequence[Need]
    ) -> tuple[Tensor, dict[str, Attended], tuple[Kept, ...]]:
        """B T M -> B T M, what every attention saw ("0.self", "0.cross"), and what to keep."""
        seen: dict[str, Attended] = {}
        after = []
        for i, layer in enumerate(self.layers):
            x, looks, keeps = layer(x, kept[i], visible, needs[i])
            seen |= {f"{i}.{name}": look for name, look in looks.items()}
            after.append(keeps)
        return x if self.norm is None else self.norm(x), seen, tuple(after)


class Words(nn.Module):
    """Symbols as vectors, √M times their table, and where they stand. §3.4, §3.5"""

    def __init__(self, symbols: int, width: int, position: nn.Module | None, dropout: float):
        super().__init__()
        self.table = nn.Embedding(symbols, width)
        nn.init.normal_(
            self.table.weight, std=width**-0.5
        )  # inputs and tied outputs both start near one
        self.position, self.dropout = position, nn.Dropout(dropout)
        self.scale = width**0.5

    def forward(self, symbols: Tensor, start: int = 0) -> Tensor:
        """B T -> B T M; the first of T stands at `start`."""
        x = self.table(symbols) * self.scale
        return self.dropout(x if self.position is None else self.position(x, start))


class Encoder(nn.Module):
    """Reads a text. Without `words` of its own it is given a decoder's."""

    def __init__(self, words: Words | None, stack: Stack) -> None:
        super().__init__()
        self.words, self.stack = words, stack

    def forward(
        self, source: Tensor, lengths: Tensor, need: Need = "context", words: Words | None = None
    ) -> tuple[Tensor, dict[str, Attended]]:
        """B S, B -> B S M, and what every attention saw; what stands beyond a length is noise."""
        words = self.words if words is None else words
        if words is None:
            raise Refused("this encoder shares the embeddings of its decoder: give it words=...")
        layers = len(self.stack.layers)
        x, seen, _ = self.stack(
            words(source), [Kept()] * layers, heed.lengths(lengths), [need] * layers
        )
        return x, seen


class Carry(NamedTuple):
    """What a decoder hands from step to step."""

    place: int  # how many symbols were written
    layers: tuple[Kept, ...]
    sentence: Tensor  # which row of a folded memory each hypothesis asks    N
    need: Need


class Decoder(nn.Module):
    """Writes a text: by itself (a language model), or from a source that it looks at.

    The output is the transposed embedding unless an `output` of its own is given.
    """

    def __init__(
        self,
        words: Words,
        stack: Stack,
        output: nn.Linear | None = None,
        alignment_layer: int | None = None,
    ) -> None:
        super().__init__()
        layers = len(stack.layers)
        if alignment_layer is not None and alignment_layer >= layers:
            raise Refused(f"alignment_layer={alignment_layer}: the layers are 0 to {layers - 1}")
        self.words, self.stack, self.output = words, stack, output
        self.alignment_layer = max(layers - 2, 0) if alignment_layer is None else alignment_layer

    def forward(
        self,
        inputs: Tensor,
        need: Need = "context",
        source: Tensor | None = None,
        visible: Visible | None = None,
    ) -> Written:
        """A whole text at once: symbols B T (and an encoded source B S M) -> logits B T V."""
        kept = [Kept(source=memory) for memory in self._memories(source, visible)]
        x, seen, _ = self.stack(self.words(inputs), kept, heed.causal(), [need] * len(kept))
        return Written(self._logits(x), seen)

    def begin(
        self,
        inputs: Tensor,
        need: Need = "context",
        source: Tensor | None = None,
        visible: Visible | None = None,
    ) -> Carry:
        """After the symbols of a prompt, which may be none.    N T -> carry"""
        nothing = self.words.table.weight.new_empty(len(inputs), 0, self.words.table.embedding_dim)
        kept = tuple(
            Kept(layer.attention.remember(nothing), source=memory)
            for layer, memory in zip(
                self.stack.layers, self._memories(source, visible), strict=True
            )
        )
        rows = torch.arange(len(inputs), device=inputs.device)
        carry = Carry(0, kept, rows, need)
        return self._further(carry, inputs)[2] if inputs.shape[1] else carry

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """One more symbol for each hypothesis.    N -> N V"""
        x, seen, carry = self._further(carry, symbols[:, None])
        look = seen.get(f"{self.alignment_layer}.cross")
        weight = None
        if look is not None and carry.need != "context":
            weight = look.weight.mean(1).flatten(0, 1)  # B K S, whatever K
        return Step(self._logits(x[:, -1]), carry, weight)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The chosen hypotheses, in that order; `same`: each still of the sentence of its place."""
        kept, sentence = (rows, carry.sentence) if same else regroup(carry.sentence[rows])
        layers = []
        for layer, (own, own_state, source, state) in zip(
            self.stack.layers, carry.layers, strict=True
        ):
            if source is not None and not same:
                source = source.select(kept if layer.folds else rows)
            own = None if own is None else own.select(rows)
            layers.append(Kept(own, own_state.select(rows), source, state.select(rows)))
        return carry._replace(layers=tuple(layers), sentence=sentence)

    def _further(self, carry: Carry, symbols: Tensor) -> tuple[Tensor, dict[str, Attended], Carry]:
        needs: list[Need] = ["context"] * len(carry.layers)
        needs[self.alignment_layer] = carry.need  # the only one that a step reports
        x = self.words(symbols, carry.place)
        x, seen, kept = self.stack(x, carry.layers, heed.causal(), needs)
        return x, seen, carry._replace(place=carry.place + symbols.shape[1], layers=kept)

    def _memories(self, source: Tensor | None, visible: Visible | None) -> list[heed.Memory | None]:
        """The source as each layer's cross-attention keeps it."""
        if source is None:
            return [None] * len(self.stack.layers)
        reads = [layer.cross for layer in self.stack.layers if layer.cross is not None]
        return [cross.remember(source, visible=visible) for cross in reads]

    def _logits(self, x: Tensor) -> Tensor:
        return linear(x, self.words.table.weight) if self.output is None else self.output(x)


def regroup(sentence: Tensor) -> tuple[Tensor, Tensor]:
    """The memories to keep, and which of them each hypothesis asks from now on.    N -> N', N

    One for each run of hypotheses of a sentence, where the runs are equally long; else one each.
    """
    kept, counts = sentence.unique_consecutive(return_counts=True)
    each = len(sentence) // max(len(kept), 1)
    if not torch.equal(counts, torch.full_like(counts, each)):
        kept, each = sentence, 1
    return kept, torch.arange(len(kept), device=kept.device).repeat_interleave(each)


class EncoderDecoder(nn.Module):
    """Reads one text and writes another."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self, source: Tensor, lengths: Tensor, inputs: Tensor, need: Need = "context"
    ) -> Written:
        """The whole text at once.    B S, B, B T -> logits B T V"""
        encoded, reading = self._encoded(source, lengths, need)
        written = self.decoder(inputs, need, encoded, heed.lengths(lengths))
        ends = {"encoder": reading, "decoder": written.seen}
        seen = {
            f"{end}.{path}": look for end, looks in ends.items() for path, look in looks.items()
        }
        return Written(written.logits, seen)

    def begin(self, source: Tensor, lengths: Tensor, need: Need = "context") -> Carry:
        """Read the source; one hypothesis per sentence, with nothing written.    B S, B"""
        encoded, _ = self._encoded(source, lengths, "context")
        return self.decoder.begin(source[:, :0], need, encoded, heed.lengths(lengths))

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """One more symbol for each hypothesis.    N -> logits N V, weight N S"""
        return self.decoder.step(carry, symbols)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The chosen hypotheses, in that order; `same`: each still of the sentence of its place."""
        return self.decoder.select(carry, rows, same)

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the word alignment, the mean of a layer's heads.    B T S

        The last layer but one aligns best: Garg 2019.
        """
        return seen[f"decoder.{self.decoder.alignment_layer}.cross"].weight.mean(1)

    def _encoded(
        self, source: Tensor, lengths: Tensor, need: Need
    ) -> tuple[Tensor, dict[str, Attended]]:
        shared = self.decoder.words if self.encoder.words is None else None
        return self.encoder(source, lengths, need, shared)


def build(
    settings: TransformerSettings, *, source: int, target: int, shared: bool, longest: int
) -> EncoderDecoder:
    """The network of the settings, for vocabularies of `source` and `target` symbols.

    shared: they are one vocabulary. longest: the longest source, its end included.
    """
    _check_options(settings)
    tied = settings.tied and shared
    reading = None if tied else _words(settings, source, max(longest, settings.longest))
    encoder = Encoder(reading, _stack(settings, longest, decodes=False))
    decoder = build_decoder(settings, symbols=target, longest=longest, cross=True)
    return EncoderDecoder(encoder, decoder)


def build_decoder(
    settings: TransformerSettings, *, symbols: int, longest: int, cross: bool = False
) -> Decoder:
    """The decoder of the settings; without `cross` it is a language model."""
    width = _size(settings).width
    output = None if settings.tied else nn.Linear(width, symbols, bias=False)
    return Decoder(
        _words(settings, symbols, max(longest, settings.longest)),
        _stack(settings, longest, decodes=True, cross=cross),
        output,
        settings.alignment_layer,
    )


def _size(settings: TransformerSettings) -> Size:
    given = {field: getattr(settings, field) for field in ("width", "feed", "heads")}
    named = SIZES[settings.size]
    return named._replace(**{field: x for field, x in given.items() if x is not None})


def _words(settings: TransformerSettings, symbols: int, longest: int) -> Words:
    width = _size(settings).width
    position: nn.Module | None = None
    if settings.position == "sinusoidal":
        position = Sinusoidal()
    if settings.position == "learned":
        position = Learned(longest=longest, width=width)
    return Words(symbols, width, position, settings.dropout)


def _stack(
    settings: TransformerSettings, longest: int, *, decodes: bool, cross: bool = False
) -> Stack:
    size, pre_norm = _size(settings), settings.norm == "pre"
    layers = (settings.decoder_layers if decodes else settings.encoder_layers) or size.layers
    own = settings.decoder_attention if decodes else settings.encoder_attention
    own_options = {"longest": settings.longest if decodes else longest, **settings.options}
    cross_options = {"longest": longest, **settings.options}

    def attention(look: Heads, options: dict[str, Any], **facts: Any) -> heed.MultiHeadAttention:
        facts |= {"dropout": settings.attention_dropout, "options": options}
        return multi_head(look, width=size.width, heads=size.heads, **facts)

    def layer(look: Heads, read: Heads | None) -> Layer:
        position = Rotary() if settings.position == "rotary" else None
        return Layer(
            attention(look, own_options, position=position, causal=decodes),
            FeedForward(size.width, size.feed, settings.activation, settings.feed_dropout),
            None if read is None else attention(read, cross_options, self_attends=False),
            dropout=settings.dropout,
            pre_norm=pre_norm,
        )

    looks = _per_layer(own, layers)
    reads = _per_layer(settings.cross_attention, layers) if cross else [None] * layers
    norm = nn.LayerNorm(size.width) if pre_norm else None
    return Stack(map(layer, looks, reads), norm)


def _per_layer(given: Layers, layers: int) -> list[Heads]:
    if isinstance(given, str):
        return [given] * layers
    if len(given) != layers:
        raise Refused(f"there are {layers} layers, and {len(given)} mechanisms are listed for them")
    return list(given)


def _check_options(settings: TransformerSettings) -> None:
    """Refuse an option that no mechanism of these settings takes."""
    heads = _size(settings).heads
    known: dict[str, Any] = {}
    for given in (
        settings.encoder_attention,
        settings.decoder_attention,
        settings.cross_attention,
    ):
        for layer in [given] if isinstance(given, str) else given:
            for name, _ in head_groups(layer, heads):
                known |= naming.options_of(name)
    for option in settings.options:
        if option not in known:
            raise UnknownName("option of these mechanisms", option, known or ["(they take none)"])
