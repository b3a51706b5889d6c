"""Steps of a plain decoder as CUDA graphs, recorded once and replayed. Its twin: `Decoder.step`.

One step of a small model takes a GPU less time than Python needs to ask for it. Here all that a
step touches stands still: symbols, the place, keys and values for every place there is. On a CPU
the same steps run as they are written.

    replaying = Replaying(decoder)
    greedy(replaying, replaying.begin(prompts), ...)

Keys and values are written in place: of the carries that a search has held, only the last goes on.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

import heed
from heed.errors import HeedError, Refused
from heed.models.stepping import Hidden, PlainCarry, PlainLayer, Start
from heed.models.transformer import Decoder
from heed.models.written import Step

WARM = 2  # rounds before a capture, in which libraries choose algorithms and allocate


class Carry(NamedTuple):
    """Which step comes next, and of how many texts."""

    held: Held
    step: int
    live: int


class Held:
    """What stands still: N texts with room for all P places."""

    def __init__(self, decoder: Decoder, carry: PlainCarry, places: int) -> None:
        first = carry.own[0].k
        N, device = first.shape[0], first.device
        self.decoder, self.layers = decoder, carry.layers
        self.caches = [(own.k, own.v) for own in carry.own]  # N H P D each
        self.start, self.where = carry.start, _all_places(carry.start, places)
        self.behind = torch.zeros(N, dtype=torch.long, device=device)
        if carry.behind is not None:
            self.behind.copy_(carry.behind)
        self.place = torch.full((1,), carry.place, dtype=torch.long, device=device)
        self.symbols = torch.zeros(N, dtype=torch.long, device=device)
        self.every = torch.arange(places, device=device)
        self.steps, self.places = carry.place, places
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def step(self, symbols: Tensor) -> Tensor:
        """One more symbol for the first texts, as many as are given.    n -> n V"""
        n = len(symbols)
        self.symbols[:n].copy_(symbols)
        if not self.symbols.is_cuda:
            self.logits = self._step()
        else:
            if self.graph is None:
                self._record()
            assert self.graph is not None
            self.graph.replay()
        self.steps += 1
        return self.logits[:n].clone()  # the next step writes over it

    def _step(self) -> Tensor:
        """N V; nothing in it depends on a number that only the host knows."""
        x = torch.add(
            self.where.index_select(0, self.place - self.behind),
            embedding(self.symbols, self.start.table),
            alpha=self.start.scale,
        )
        there = (self.every <= self.place) & (self.every >= self.behind[:, None])
        unseen = Hidden(there, x.dtype)
        for layer, (k, v) in zip(self.layers, self.caches, strict=True):
            x = self._look_back(x, layer, k, v, unseen)
            enter, leave = layer.around[1]
            x = leave(x + layer.feed(enter(x)))
        norm = self.decoder.stack.norm
        logits = self.decoder._logits(x if norm is None else norm(x))
        self.place.add_(1)
        return logits

    def _look_back(
        self, x: Tensor, layer: PlainLayer, k: Tensor, v: Tensor, unseen: Hidden
    ) -> Tensor:
        """Self-attention over all places, of which those to come are out of sight.    N M -> N M"""
        enter, leave = layer.around[0]
        new = layer.look(enter(x)).view(x.shape[0], 3, layer.heads, -1)  # N 3 H D
        k.index_copy_(2, self.place, new[:, 1].unsqueeze(2))
        v.index_copy_(2, self.place, new[:, 2].unsqueeze(2))
        seen = layer.back(new[:, 0].unsqueeze(2), heed.Memory(k, v), position=unseen)
        return leave(x + layer.join(seen.context.reshape(x.shape)))

    def _record(self) -> None:
        """Rehearse and capture; what that wrote is written again by the step itself."""
        stream = _aside(self.symbols.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self._step()
                self.place.sub_(1)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):  # recorded, not run
            self.logits = self._step()

    def select(self, rows: Tensor) -> None:
        """The chosen texts come first, in that order; no more than there are."""
        for table in (*chain(*self.caches), self.behind):
            table[: len(rows)].copy_(table.index_select(0, rows))


class Replaying:
    """A plain decoder over the protocol of `heed.decoding`, its steps replayed."""

    def __init__(self, decoder: Decoder, places: int | None = None) -> None:
        table = getattr(decoder.words.position, "table", None)
        most = None if table is None else int(table.num_embeddings)
        if places is None and most is None:
            raise Refused("how many places there are is not known from this model: places=...")
        self.decoder, self.places = decoder, min(x for x in (places, most) if x is not None)

    def begin(self, inputs: Tensor, *, lengths: Tensor | None = None) -> Carry:
        """After the symbols of prompts, which stand at the end of their rows.    N T, N"""
        carry = self.decoder.begin(inputs, lengths=lengths, room=self.places)
        if not isinstance(carry, PlainCarry) or carry.source[0] is not None:
            raise Refused("only the steps of a plain decoder without a source can be replayed")
        if carry.rows is not None or carry.place > self.places:
            raise Refused(f"a prompt of {carry.place} symbols does not fit {self.places} places")
        return Carry(Held(self.decoder, carry, self.places), carry.place, len(inputs))

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """One more symbol for each text.    N -> N V"""
        held = _newest(carry)
        if held.steps >= held.places:
            raise Refused(f"there are {held.places} places, and all are full")
        return Step(held.step(symbols), Carry(held, carry.step + 1, carry.live), None)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The chosen texts, in that order; as many as there were at first, or fewer."""
        held = _newest(carry)
        if len(rows) > len(held.symbols):
            raise Refused("replayed texts cannot become more: repeat the prompts instead")
        held.select(rows)
        return Carry(held, carry.step, len(rows))


def _newest(carry: Carry) -> Held:
    if carry.step != carry.held.steps:
        raise HeedError("keys and values were written over since: only the last carry goes on")
    return carry.held


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """Where graphs are recorded, the same for all: cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream(device)


def _all_places(start: Start, places: int) -> Tensor:
    """What is added at each place.    P M"""
    start.place(places - 1)
    return start.places[:places]
