"""Steps of a plain decoder as CUDA graphs, recorded once and replayed. Its twin: `Decoder.step`.

One step of a small model takes a GPU less time than Python needs to launch it. Here all tensors
that a step touches stay where they are: symbols, the place, keys and values with room for those to
come. The first steps are taken eagerly, since a text may be too short for a recording to pay; then
a step is recorded. On a CPU all of them are eager.

    replaying = Replaying(decoder, new=100)
    greedy(replaying, replaying.begin(prompts), ..., longest=100)

Keys, values and logits are written in place: a search can go on from its last carry alone, a new
beginning overwrites what was there, and logits are valid until the next step. Where the fast path
of `heed.models.plain_carry` does not apply, the decoder takes its own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

import heed
from heed.errors import HeedError, Refused
from heed.models.layers import pass_through
from heed.models.native_carry import NativeStep
from heed.models.plain_carry import Cache, PlainCarry, Start
from heed.models.plain_layer import HiddenPadding, PlainLayer
from heed.models.positioned_words import Real
from heed.models.transformer import AnyCarry, Decoder
from heed.models.written import WrittenStep

PATIENCE = 8  # eager rounds, before a recording is likely to pay
WARM = 2  # rounds at least, in which libraries choose algorithms and allocate
ROOM = 256  # places that are made at a time, where texts may become long
SPARE = 8  # a recorded step may have so many times the rows that are needed

Work = Callable[[], Tensor]


class ReplayedCarry(NamedTuple):
    """State that a search holds: valid until the next beginning, step or selection."""

    held: Held
    moves: int


class Studio:
    """A stream of its own, on which work on a GPU is first run eagerly and then recorded."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = _aside(device), torch.cuda.graph_pool_handle()

    def rehearse(self, work: Work) -> Tensor:
        """Run it eagerly."""
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            output = work()
        here.wait_stream(self.stream)
        return output

    def record(self, work: Work) -> Work:
        """Record it without running it; the result runs it again, on the same tensors."""
        graph = torch.cuda.CUDAGraph()
        mode = "thread_local"  # other threads may use the GPU meanwhile
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode=mode):
            output = work()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class Recorded:
    """Work on tensors that stay where they are: some rounds eagerly, all others replayed.

    The work comes with each call and is not kept: it belongs to whoever holds this, and a circle of
    references would keep both alive.
    """

    def __init__(self, studio: Studio | None, rounds: int) -> None:
        self.studio, self.rounds = studio, rounds
        self.replay: Work | None = None

    def __call__(self, work: Work) -> Tensor:
        if self.studio is None:
            return work()
        if self.replay is None and self.rounds:
            self.rounds -= 1
            return self.studio.rehearse(work)
        if self.replay is None:
            self.replay = self.studio.record(work)
        return self.replay()


class Held:
    """The tensors that stay where they are, N rows with room for P places, and work on them."""

    def __init__(self, decoder: Decoder, rows: int, most: int | None) -> None:
        device = decoder.words.table.weight.device
        self.decoder, self.most, self.moves = decoder, most, 0
        self.caches: list[Cache] = []  # N H P D each
        self.layers: tuple[PlainLayer, ...] = ()
        self.symbols, self.first, self.order = (
            torch.zeros(rows, dtype=torch.long, device=device) for _ in range(3)
        )
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.steps = self.until = self.places = 0
        self._stage(PATIENCE)

    def _stage(self, rounds: int) -> None:
        """Drop the recordings, since they refer to the tensors of before."""
        studio = studio_of(self.place.device)
        self.forward, self.reorder = Recorded(studio, rounds), Recorded(studio, rounds)

    def begin(self, inputs: Tensor, new: int, **padding: Any) -> AnyCarry | ReplayedCarry:
        """The carry after prompts, with `new` symbols to come.    N T"""
        T = inputs.shape[1]
        self.until, self.moves = T + new, self.moves + 1
        room = self._room(T)
        if self.caches and self.places < T:
            self._widen(room)

        def keep(layer: int, read: Tensor) -> Cache:
            if layer == len(self.caches):
                self.caches.append(Cache.of(read, room, len(self.symbols)))
                return self.caches[layer]
            own = self.caches[layer]
            own.k.zero_()
            own.v.zero_()
            return own.fill(read)

        carry = self.decoder.begin(inputs, keep=keep, **padding)
        if not isinstance(carry, PlainCarry):
            return carry
        if not self.places:
            self.layers = carry.layers
            self._measure(carry.start, room)
        self.first.zero_()
        if carry.first is not None:
            self.first[: len(inputs)].copy_(carry.first)
        self.place.fill_(T)
        self.steps = T
        return ReplayedCarry(self, self.moves)

    def _measure(self, start: Start, places: int) -> None:
        """Set what depends on how many places there are."""
        start.place(places - 1)
        self.start, self.where, self.places = start, start.places[:places], places
        self.every = torch.arange(places, device=self.place.device)

    def _room(self, filled: int) -> int:
        """The number of places to have from now on: for what is to come, but not too far ahead."""
        some = min(max(self.until, filled + 1), filled + ROOM)
        some = -(-some // 8) * 8  # fused kernels like multiples
        return some if self.most is None else min(some, self.most)

    def _widen(self, places: int) -> None:
        """Make room for so many places, one table after the other."""
        self._stage(WARM)
        for own in self.caches:
            own.k = pad(own.k, (0, 0, 0, places - self.places))
            own.v = pad(own.v, (0, 0, 0, places - self.places))
        self._measure(self.start, places)

    def step(self, symbols: Tensor) -> Tensor:
        """One more symbol for the first rows, as many as are given.    n -> n V"""
        n = len(symbols)
        if self.steps == self.most:
            raise Refused(f"there are {self.most} positions, and all are used")
        if self.steps == self.places:
            self._widen(self._room(self.steps))
        self.symbols[:n].copy_(symbols)
        logits = self.forward(self._step)
        self.steps, self.moves = self.steps + 1, self.moves + 1
        return logits[:n]

    def _step(self) -> Tensor:
        """The logits, N V; no operation depends on a number that only the host knows."""
        x = torch.add(
            self.where.index_select(0, self.place - self.first),
            embedding(self.symbols, self.start.table),
            alpha=self.start.scale,
        )
        there = (self.every <= self.place) & (self.every >= self.first[:, None])
        unseen = HiddenPadding(there, x.dtype)
        for layer, own in zip(self.layers, self.caches, strict=True):
            x, _, _ = pass_through(layer, x, partial(self._look_back, layer, own, unseen))
        norm = self.decoder.stack.norm
        logits = self.decoder.logits(x if norm is None else norm(x))
        self.place.add_(1)
        return logits

    def _look_back(
        self, layer: PlainLayer, own: Cache, unseen: HiddenPadding, h: Tensor
    ) -> tuple[Tensor, None]:
        """Self-attention over all places, with those to come masked.    N M -> N M"""
        new = layer.look(h).view(h.shape[0], 3, layer.heads, -1)  # N 3 H D
        own.k.index_copy_(2, self.place, new[:, 1].unsqueeze(2))
        own.v.index_copy_(2, self.place, new[:, 2].unsqueeze(2))
        seen = layer.back(new[:, 0].unsqueeze(2), heed.Memory(own.k, own.v), position=unseen)
        return layer.join(seen.context.reshape(h.shape)), None

    def select(self, rows: Tensor) -> None:
        """Put the chosen rows first, in that order.    n"""
        self.moves += 1
        if len(rows) > len(self.symbols):
            return self._multiply(rows)
        self.order[: len(rows)].copy_(rows)
        self.reorder(self._reorder)
        return None

    def _reorder(self) -> Tensor:
        for table in chain(*((own.k, own.v) for own in self.caches), [self.first]):
            table.copy_(table.index_select(0, self.order))
        return self.order

    def _multiply(self, rows: Tensor) -> None:
        """More rows than there were, as when a beam spreads out."""
        self._stage(max(self.forward.rounds, WARM))
        for own in self.caches:
            own.k = own.k.index_select(0, rows)
            own.v = own.v.index_select(0, rows)
        self.first = self.first.index_select(0, rows)
        self.symbols, self.order = (torch.zeros_like(self.first) for _ in range(2))


class Replaying:
    """A decoder over the protocol of `heed.decoding`, its steps replayed where they can be.

    new  how many symbols are written after a prompt; if there are more, room is made for them
    """

    def __init__(self, decoder: Decoder, new: int = ROOM) -> None:
        table = getattr(decoder.words.position, "table", None)
        self.decoder, self.new = decoder, new
        self.most = None if table is None else int(table.num_embeddings)
        self.held: Held | None = None

    def begin(
        self,
        inputs: Tensor,
        *,
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
    ) -> AnyCarry | ReplayedCarry:
        """The carry after prompts, whose padding is said as to `Decoder.begin`.    N T"""
        padding: dict[str, Any] = {"lengths": lengths, "first": first}
        N, T = inputs.shape
        if not N or (self.most is not None and self.most < T):
            return self.decoder.begin(inputs, **padding)
        if self.held is None or not N <= len(self.held.symbols) <= SPARE * N:
            self.held = Held(self.decoder, N, self.most)
        return self.held.begin(inputs, self.new, **padding)

    def step(self, carry: AnyCarry | ReplayedCarry, symbols: Tensor) -> WrittenStep | NativeStep:
        """One more symbol for each text; its logits stand until the next step.    N -> N V"""
        if not isinstance(carry, ReplayedCarry):
            return self.decoder.step(carry, symbols)
        held = _newest(carry)
        logits = held.step(symbols)
        return WrittenStep(logits, ReplayedCarry(held, held.moves), None)

    def select(
        self, carry: AnyCarry | ReplayedCarry, rows: Tensor, same: bool = False
    ) -> AnyCarry | ReplayedCarry:
        """The chosen texts, in that order."""
        if not isinstance(carry, ReplayedCarry):
            return self.decoder.select(carry, rows, same)
        held = _newest(carry)
        held.select(rows)
        return ReplayedCarry(held, held.moves)


def replayed(model: nn.Module, new: int) -> Any:
    """The model, with its steps replayed where that pays: on a GPU, for more than a few symbols."""
    if not isinstance(model, Decoder) or new < 2 * PATIENCE:
        return model
    return model if studio_of(model.words.table.weight.device) is None else Replaying(model, new)


def studio_of(device: torch.device) -> Studio | None:
    """The studio in which steps on a device are recorded; None: nowhere."""
    return Studio(device) if device.type == "cuda" else None


def _newest(carry: ReplayedCarry) -> Held:
    if carry.moves != carry.held.moves:
        raise HeedError("keys and values were overwritten: only the last carry can continue")
    return carry.held


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream that records all graphs: cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream(device)
