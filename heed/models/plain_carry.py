"""A fast path for the steps of a plain Transformer decoder; its twin is `Decoder.step`.

Most decoders attend by scaled dot products throughout, and most steps are taken without gradients.
Then all that a step needs is known when the text begins: the weights are looked up once; queries,
keys and values are one product; reordering a beam and adding a symbol is one copy of the keys; and
all hypotheses of a sentence share one memory. The numbers are those of the general path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

import heed
from heed.attention.position import Learned
from heed.models.layers import TransformerLayer, pass_through
from heed.models.native_carry import Keep, NativeCarry, native_carry
from heed.models.own_attention import project
from heed.models.plain_layer import HiddenPadding, PlainLayer, known
from heed.models.positioned_words import PositionedWords, readable
from heed.records import Need
from heed.visible import Visible

if TYPE_CHECKING:
    from heed.models.transformer import Decoder, DecoderCarry

BLOCK = 32  # positions made at a time, where they are computed
GROWTH = 8  # places by which a cache grows: few copies, and little that is copied in vain


class Cache:
    """The keys and values of one layer for the symbols written so far, with room for more.

    What a carry sees of it never changes: a place is written once, by the first carry that goes on
    from it; every later one goes on with a copy. A table that grows is replaced here, for all
    carries: otherwise a step would hold the tables of all layers twice. Keys and values have a
    table each, so that growing holds no more than one of them twice.
    """

    def __init__(self, k: Tensor, v: Tensor, filled: int) -> None:
        self.k, self.v, self.filled = k, v, filled  # N H room D each

    @staticmethod
    def of(new: Tensor, room: int, rows: int | None = None) -> Cache:
        """The keys and values of a prompt, with room for so many places and rows.    N T 2 H D"""
        N, T, _, H, D = new.shape
        k, v = (new.new_zeros(rows or N, H, max(T, room), D) for _ in range(2))
        return Cache(k, v, 0).fill(new)

    def fill(self, new: Tensor) -> Cache:
        """The keys and values of a prompt, from the first row and place on.    N T 2 H D"""
        N, T = new.shape[:2]
        for table, each in zip((self.k, self.v), new.unbind(2), strict=True):
            table[:N, :, :T] = each.transpose(1, 2)
        self.filled = T
        return self

    def seen(self, places: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first places.    N H P D each"""
        return self.k.narrow(2, 0, places), self.v.narrow(2, 0, places)

    def extend(self, place: int, new: Tensor, rows: Tensor | None) -> Cache:
        """The chosen rows of the first `place` places, and a new one.    N 2 H D"""
        if rows is None and self.filled == place:
            self._grow(place)  # other carries that hold this look at earlier places alone
            self.k.select(2, place).copy_(new[:, 0])
            self.v.select(2, place).copy_(new[:, 1])
            self.filled = place + 1
            return self
        k, v = (x.clone() if rows is None else x.index_select(0, rows) for x in (self.k, self.v))
        return Cache(k, v, place).extend(place, new, None)

    def _grow(self, place: int) -> None:
        if place == self.k.shape[2]:
            self.k = pad(self.k, (0, 0, 0, GROWTH))
            self.v = pad(self.v, (0, 0, 0, GROWTH))


KeepCache = Callable[[int, Tensor], Cache]
"""Stores the keys and values of a prompt for a layer, by its number.    N T 2 H D"""


class Start:
    """Embeds symbols and adds their positions, which are learned or computed block by block."""

    def __init__(self, words: PositionedWords) -> None:
        self.position, self.scale = words.position, words.scale
        self.table = words.table.weight
        self.places = self.table.new_empty(0, self.table.shape[1])  # P M
        if isinstance(self.position, Learned):
            self.places = self.position.table.weight.to(self.table.dtype)

    def __call__(self, symbols: Tensor, place: int, first: Tensor | None) -> Tensor:
        """N -> N M"""
        where = self.place(place, first)
        return torch.add(where, embedding(symbols, self.table), alpha=self.scale)

    def place(self, place: int, first: Tensor | None = None) -> Tensor:
        """The vector of a position: M, or N M where texts begin at column `first`, N."""
        last = place if first is None else self._last(place, first)
        while last >= self.places.shape[0]:
            self.places = torch.cat([self.places, self._more(self.places.shape[0])])
        return self.places[place] if first is None else self.places[place - first]

    def _last(self, place: int, first: Tensor) -> int:
        """The last place of a text, once a row has become longer than learned positions reach."""
        if not isinstance(self.position, Learned) or place < self.position.table.num_embeddings:
            return place
        return int((place - first).max()) if first.numel() and readable(first) else place

    def _more(self, start: int) -> Tensor:
        """The positions that follow; beyond the last learned one they are refused."""
        assert self.position is not None
        count = 1 if isinstance(self.position, Learned) else BLOCK
        nothing = self.table.new_zeros(1, count, self.table.shape[1])
        more: Tensor = self.position(nothing, start)[0]
        return more


class PlainCarry(NamedTuple):
    """State handed from step to step on this path."""

    place: int
    start: Start
    layers: tuple[PlainLayer, ...]
    own: tuple[Cache, ...]
    rows: Tensor | None  # of `own`, chosen but not yet copied    N
    source: tuple[heed.Memory | None, ...]
    hidden: HiddenPadding | None
    sentence: Tensor  # which row of `source` each hypothesis asks    N
    aligns: int | None  # the layer whose weights are wanted
    first: Tensor | None = None  # the column of each text's first symbol; None: 0    N

    def step(self, symbols: Tensor) -> tuple[Tensor, PlainCarry, Tensor | None]:
        """N -> N M, before the last norm; and the weights that are wanted, N S."""
        x, weight = self.start(symbols, self.place, self.first), None
        unseen, after = self._unseen(x), []
        for i, (layer, own, source) in enumerate(
            zip(self.layers, self.own, self.source, strict=True)
        ):
            need: Need = "weight" if i == self.aligns else "context"
            x, own, seen = pass_through(
                layer,
                x,
                partial(self._look_back, layer, own, unseen),
                None if source is None else partial(self._read, layer, source, need),
            )
            weight = weight if seen is None else seen
            after.append(own)
        return x, self._replace(place=self.place + 1, own=tuple(after), rows=None), weight

    def _unseen(self, x: Tensor) -> HiddenPadding | None:
        """Masks the padding in front of texts that are shorter than others."""
        if self.first is None:
            return None
        places = torch.arange(self.place + 1, device=x.device)
        return HiddenPadding(places >= self.first[:, None], x.dtype)

    def _look_back(
        self, layer: PlainLayer, own: Cache, unseen: HiddenPadding | None, h: Tensor
    ) -> tuple[Tensor, Cache]:
        """Self-attention. Where all texts are equally long, nothing is hidden.    N M -> N M"""
        new = layer.look(h).view(h.shape[0], 3, layer.heads, -1)  # N 3 H D
        own = own.extend(self.place, new[:, 1:], self.rows)
        k, v = own.seen(self.place + 1)
        q = new[:, 0].unsqueeze(2)  # N H 1 D
        if unseen is None:
            context = heed.attend(q, k, v).context
        else:
            context = layer.back(q, heed.Memory(k, v), position=unseen).context
        return layer.join(context.reshape(h.shape)), own

    def _read(
        self, layer: PlainLayer, source: heed.Memory, need: Need, h: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention; the hypotheses of a sentence are so many queries.    N M -> N M, N S"""
        assert layer.ask is not None
        assert layer.answer is not None
        assert layer.mechanism is not None
        B, _, _, D = source.k.shape
        q = layer.ask(h).view(B, -1, layer.heads, D)
        q = q.transpose(1, 2)  # B H K D
        if self.hidden is None and need == "context":
            seen = heed.attend(q, source.k, source.v)
        else:
            seen = layer.mechanism(q, source, need=need, position=self.hidden)
        added = layer.answer(seen.context.transpose(1, 2).reshape(h.shape))
        return added, None if need == "context" else seen.weight.mean(1).flatten(0, 1)

    def select(self, rows: Tensor, same: bool) -> PlainCarry:
        """The chosen hypotheses; their keys and values are copied with the next step."""
        chosen = rows if self.rows is None else self.rows[rows]
        first = None if self.first is None else self.first[rows]
        if same:
            return self._replace(rows=chosen, first=first)
        kept, sentence = regroup(self.sentence[rows])
        source = tuple(None if each is None else each.select(kept) for each in self.source)
        hidden = self.hidden
        if hidden is not None:
            hidden = HiddenPadding(hidden.far[kept, 0, 0] == 0, hidden.far.dtype)
        followed = self._replace(rows=chosen, first=first)
        return followed._replace(source=source, hidden=hidden, sentence=sentence)


def shorten(
    decoder: Decoder,
    carry: DecoderCarry,
    inputs: Tensor,
    there: Visible | None = None,
    keep: KeepCache | None = None,
) -> PlainCarry | NativeCarry | None:
    """The carry of the fast path after a prompt, in C if it can be; None where it does not apply.

    carry   before anything was read
    there   which symbols of the prompt are not padding
    keep    where the keys and values of each layer go; by default into caches that grow
    """
    if decoder.training or torch.is_grad_enabled() or not _plain(decoder):
        return None
    memory = carry.layers[0].source
    exists, start = None, Start(decoder.words)
    if memory is not None and memory.visible is not None:
        exists = memory.exists
        all_seen, any_blind = torch.stack([exists.all(), ~exists.any(1).all()]).tolist()
        if any_blind:
            return None
        exists = None if all_seen else exists
    T = inputs.shape[1]
    read = partial(_read, decoder, carry, inputs, there)
    native = native_carry(decoder, carry, start, exists, T)
    if native is not None:
        return native.after(read, T)
    hidden = None if memory is None or exists is None else HiddenPadding(exists, memory.k.dtype)
    layers = tuple(PlainLayer.of(layer) for layer in decoder.stack.layers)
    keep = keep or (lambda _, new: Cache.of(new, T + GROWTH))
    own: list[Cache] = []
    read(lambda i, new: own.append(keep(i, new)))
    return PlainCarry(
        T,
        start,
        layers,
        tuple(own),
        None,
        tuple(_bare(kept.source) for kept in carry.layers),
        hidden,
        carry.sentence,
        None if carry.need == "context" else decoder.alignment_layer,
        carry.first,
    )


def _read(
    decoder: Decoder, carry: DecoderCarry, inputs: Tensor, there: Visible | None, keep: Keep
) -> None:
    """Take a prompt through the layers, and pass the keys and values of each to `keep`.    N T

    The last layer gives nothing else: the first step brings the symbol whose output is wanted.
    Padding begins as zeros, so that nothing in it is ever NaN.
    """
    x = decoder.words(inputs, first=carry.first, exists=there)
    layers = decoder.stack.layers
    for i, (layer, kept) in enumerate(zip(layers, carry.layers, strict=True)):
        if i + 1 == len(layers):
            keep(i, project(layer.attention, layer.around_attention.enter(x), skip=1))
            return
        attend = partial(_attend, layer, partial(keep, i), there)
        x, _, _ = pass_through(layer, x, attend, layer.reading(kept, "context"))


def _attend(
    layer: TransformerLayer, keep: Callable[[Tensor], None], there: Visible | None, h: Tensor
) -> tuple[Tensor, None]:
    """Self-attention over a prompt, whose keys and values are kept.    N T M -> N T M"""
    new = project(layer.attention, h)  # N T 3 H D
    keep(new[:, :, 1:])
    q, k, v = new.permute(2, 0, 3, 1, 4)  # N H T D
    if there is None:
        seen = heed.attend(q, k, v, visible=heed.causal())
    else:
        memory = heed.Memory(k, v, there)
        seen = layer.attention.mechanism(q, memory, visible=heed.causal())
    return layer.attention.shape_context(seen.context), None


def regroup(sentence: Tensor) -> tuple[Tensor, Tensor]:
    """The memories to keep, and which of them each hypothesis asks from now on.    N -> N', N

    One for each run of hypotheses of a sentence, where the runs are equally long; else one each.
    """
    kept, counts = sentence.unique_consecutive(return_counts=True)
    each = len(sentence) // max(len(kept), 1)
    if not torch.equal(counts, torch.full_like(counts, each)):
        kept, each = sentence, 1
    return kept, torch.arange(len(kept), device=kept.device).repeat_interleave(each)


def _plain(decoder: Decoder) -> bool:
    """Whether the fast path knows the exact type of every part, and no hook waits for a call."""
    attentions = [x for y in decoder.stack.layers for x in (y.attention, y.cross) if x is not None]
    return (
        known(decoder)
        and decoder.words.position is not None
        and decoder.words.norm is None
        and decoder.words.types is None
        and not torch.is_autocast_enabled(decoder.words.table.weight.device.type)
        and all(x.in_proj_weight is not None and not x.sinks() for x in attentions)
    )


def _bare(memory: heed.Memory | None) -> heed.Memory | None:
    """Its keys and values alone."""
    return None if memory is None else heed.Memory(memory.k, memory.v)
