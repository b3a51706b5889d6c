"""XLNet's two streams: a content stream and a query stream. Yang 2019.

A text is predicted in any order. The content stream encodes every symbol. The query stream has a
query at each position to be predicted: it knows the position and the symbols before it in the
order, and never sees the symbol itself. Both attend to the same keys with the same weights (§2.3).
The score `relative` compares distances and segments; the states of one segment are kept, without
gradient, as memories for the next (§2.4, §2.5; Dai 2019 §3.2).

    read = streams(symbols, targets=places, visible=order)   # B T, B P, B T T -> read.states B P M
    read = streams(symbols, memories=read.memories)          # the next segment -> read.states B T M

The heads are in `heed.models.xlnet_answers`, the settings in `heed.models.xlnet_settings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import heed
from heed.attention.initial_weights import Drawn
from heed.attention.score import constant
from heed.errors import Refused, ShapeError
from heed.models.layers import FeedForward, Residual, pass_through
from heed.models.positioned_words import Real, at_the_end, check_types, not_padding, within
from heed.models.xlnet_sights import Memories, Segment, Sights, picked, spread
from heed.records import Attended, Need, State, as_need
from heed.visible import Visible


class Streamed(NamedTuple):
    """The streams' output for a segment."""

    states: Tensor  # of every symbol B T M, or of the targets B P M
    memories: Memories  # for the next segment
    seen: dict[str, Attended]  # by layer and stream: "0.content", "0.query"
    vectors: Tensor  # of the symbols, the input of the layers  B T M


class StreamLayer(nn.Module):
    """Attention and feed-forward, each with a residual and a norm; both streams use it."""

    def __init__(
        self,
        attention: heed.MultiHeadAttention,
        feed: FeedForward,
        *,
        dropout: float = 0.0,
        epsilon: float = 1e-12,
    ) -> None:
        super().__init__()
        if not attention.ignores_shifts:
            raise Refused(
                "the queries of the two streams are in no order, so every query must be answered "
                "by itself: a mechanism with a past, one that moves along the keys, or one that "
                "counts positions from the beginning does not work in XLNet"
            )
        self.attention, self.feed = attention, feed
        self.around_attention = Residual(attention.embed_dim, dropout, False, epsilon)
        self.around_feed = Residual(attention.embed_dim, dropout, False, epsilon)
        self.around_cross = None

    def remember(
        self, h: Tensor, before: Tensor | None, types: Tensor | None, exists: Tensor | None = None
    ) -> heed.Memory:
        """The keys and values of this layer: the memories, then the content.    B T M, B L M"""
        keys = h if before is None else torch.cat([before, h], 1)
        if types is not None:  # memories count as of the first type
            types = pad(types, (keys.shape[1] - h.shape[1], 0))
        return self.attention.remember(keys, visible=exists, segments=types)

    def read(
        self, x: Tensor, memory: heed.Memory, state: State | None = None, **more: Any
    ) -> tuple[Tensor, Attended]:
        """A stream through the layer: it attends to the content.    B T M -> B T M"""

        def attend(h: Tensor) -> tuple[Tensor, Attended]:
            seen: Attended = self.attention(h, memory, state, **more)
            return seen.context, seen

        x, seen, _ = pass_through(self, x, attend)
        return x, seen

    def ask(
        self,
        g: Tensor,
        memory: heed.Memory,
        sights: Sights,
        targets: Tensor | None,
        types: Tensor | None,
        need: Need,
    ) -> tuple[Tensor, Attended]:
        """The query stream attends to the content except its own symbols.    B P M -> B P M"""
        more: dict[str, Any] = {"visible": sights.query, "segments": types, "need": need}
        if targets is None:
            return self.read(g, memory, sights.state, **more)

        def attend(h: Tensor) -> tuple[Tensor, Attended]:
            asked = spread(h, targets, sights.places)
            seen: Attended = self.attention(asked, memory, sights.state, **more)
            rows = {} if need == "context" else {"weight": picked(seen.weight, targets)}
            if need == "energy":
                rows["energy"] = picked(seen.energy, targets)
            seen = seen.replace(context=picked(seen.context, targets), **rows)
            return seen.context, seen

        g, seen, _ = pass_through(self, g, attend)
        return g, seen


class TwoStreams(Drawn):
    """The layers, the embedding table, and the initial vector of every query.

    causal  a symbol sees itself and those before it; otherwise its whole segment by default
    memory  how many positions are kept for the next segment; None: all since the beginning
    reuse   how many of a segment's first symbols are kept; None: all of them
    """

    layers: Sequence[StreamLayer]

    def __init__(
        self,
        words: nn.Embedding,
        layers: Sequence[StreamLayer],
        *,
        dropout: float = 0.0,
        causal: bool = False,
        memory: int | None = None,
        reuse: int | None = None,
    ) -> None:
        super().__init__()
        self.words, self.dropout = words, nn.Dropout(dropout)
        self.question = constant(0, words.embedding_dim)
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.causal, self.memory, self.reuse = causal, memory, reuse

    def forward(
        self,
        symbols: Tensor,
        lengths: Real | None = None,
        types: Tensor | None = None,
        need: Need = "context",
        *,
        targets: Tensor | None = None,
        visible: Tensor | Visible | None = None,
        memories: Memories | None = None,
        ahead: bool = False,
        nudge: Tensor | None = None,
    ) -> Streamed:
        """One segment: symbols B T -> states B T M; the query stream's, with targets or `ahead`.

        lengths   of each text, B; or which symbols are not padding, B T; None: all
        types     which of several texts each symbol belongs to, B T; None: not compared
        targets   the positions to be predicted, B P, each once; below 0: none -> states B P M
        visible   which symbols each may attend to in the order of prediction, B T T. A symbol
                  always sees itself in the content stream and never in the query stream;
                  None: no symbol sees a target, unless the network is causal
        memories  those of the segment before; every query sees them
        ahead     every position also predicts the symbol after it, and none looks ahead
        nudge     added to the symbols' vectors  B T M
        """
        need = as_need(need)
        if ahead and (targets is not None or visible is not None):
            raise Refused("ahead=True is left to right: leave out targets and visible, or ahead")
        self._check(symbols, types, targets, memories)
        segment = Segment.of(symbols, lengths, memories)
        sights = segment.sights(causal=self.causal, visible=visible, targets=targets, ahead=ahead)
        vectors = self.dropout(self.words(symbols))
        vectors = vectors if nudge is None else vectors + nudge
        h, g = segment.entered(vectors), None
        if ahead or targets is not None:
            size = symbols.shape if targets is None else targets.shape
            g = self.dropout(self.question.expand(*size, -1))
        seen, kept = {}, []
        for i, layer in enumerate(self.layers):
            before = segment.remembered(i)
            kept.append(self._kept(h, before))
            memory = layer.remember(h, before, types)
            h, seen[f"{i}.content"] = layer.read(
                h, memory, visible=sights.content, segments=types, need=need
            )
            if g is not None:
                g, seen[f"{i}.query"] = layer.ask(g, memory, sights, targets, types, need)
        there, L = segment.table, segment.before
        if there is not None:
            there = self._kept(there[:, L:], there[:, :L])
        states = self.dropout(h if g is None else g)
        return Streamed(states, Memories(tuple(kept), there), seen, vectors)

    if TYPE_CHECKING:
        __call__ = forward

    def begin(
        self,
        symbols: Tensor,
        lengths: Real | None = None,
        types: Tensor | None = None,
        memories: Memories | None = None,
    ) -> tuple[heed.Memory, ...]:
        """The content of a text to be continued, as each layer keeps it.    N T

        Unless the network is causal, its symbols see each other; they never see later symbols.
        With padding, texts are moved to the end of their rows, where they go on.
        """
        self._check(symbols, types, None, memories)
        exists = not_padding(lengths, None, symbols)
        if exists is not None:
            types = None if types is None else at_the_end(exists, types)[0]
            symbols, lengths, _ = at_the_end(exists, symbols)
        segment = Segment.of(symbols, lengths, memories)
        sights = segment.sights(causal=self.causal)
        h, kept = segment.entered(self.dropout(self.words(symbols))), []
        for i, layer in enumerate(self.layers):
            before = segment.remembered(i)
            kept.append(layer.remember(h, before, types, segment.table))
            h, _ = layer.read(h, kept[-1], visible=sights.content, segments=types)
        return tuple(kept)

    def further(
        self, symbols: Tensor, kept: Sequence[heed.Memory]
    ) -> tuple[Tensor, tuple[heed.Memory, ...]]:
        """One more symbol for each text, and the query for the one after it.    N -> N M

        Both see the same keys, so each layer computes them in one call.
        """
        within("symbols", symbols, 0, self.words.num_embeddings)
        question = self.question.expand(len(symbols), 1, -1)
        x = self.dropout(torch.cat([self.words(symbols)[:, None], question], 1))  # N 2 M
        after = []
        for layer, before in zip(self.layers, kept, strict=True):
            types = None if before.segments is None else before.segments[:, -1:]
            after.append(before.extend(x[:, :1], segments=types))
            types = None if types is None else types.expand(-1, 2)
            x, _ = layer.read(x, after[-1], State(0, before.S), segments=types)
        return self.dropout(x[:, 1]), tuple(after)

    def _kept(self, new: Tensor, before: Tensor | None) -> Tensor:
        """The memories for the next segment.    B T ..., B L ... -> B L' ..."""
        new = new if self.reuse is None else new[:, : self.reuse]
        joined = new if before is None else torch.cat([before, new], 1)
        return (joined if self.memory is None else joined[:, -self.memory :]).detach()

    def _check(
        self,
        symbols: Tensor,
        types: Tensor | None,
        targets: Tensor | None,
        memories: Memories | None,
    ) -> None:
        """Refuse inputs that do not fit together."""
        if symbols.ndim != 2:
            raise ShapeError(f"symbols are whole numbers, B T; got {tuple(symbols.shape)}")
        within("symbols", symbols, 0, self.words.num_embeddings)
        if types is not None:
            check_types(types, symbols)
        if targets is not None and (targets.ndim != 2 or len(targets) != len(symbols)):
            raise ShapeError(
                f"targets are positions of each row, B P with B={len(symbols)}; "
                f"got {tuple(targets.shape)}"
            )
        if targets is not None:
            within("targets", targets, None, symbols.shape[1])
        if memories is None:
            return
        wanted = (len(symbols), memories.length, self.words.embedding_dim)
        shapes = {tuple(layer.shape) for layer in memories.layers}
        if len(memories.layers) != len(self.layers) or shapes != {wanted}:
            raise ShapeError(
                f"memories are one tensor B L M for each of {len(self.layers)} layers, with "
                f"B={wanted[0]} and M={wanted[2]}; got {len(memories.layers)} of {sorted(shapes)}"
            )
