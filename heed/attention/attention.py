"""Attention on B T M: remember once, then ask; `Attention` has a single head."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from heed.attention.apply import every_key_seen
from heed.attention.bias import Bias, check_bias, split_mask
from heed.attention.blind_queries import placed, spared
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory, check_counts, clean
from heed.attention.names import build, options_of, parse
from heed.attention.position import Position
from heed.attention.torch_words import refuse, refuse_all
from heed.attention.watchable import Watchable
from heed.errors import Refused
from heed.records import Attended, Need, State, Summary
from heed.shapes import check, check_devices, check_width
from heed.visible import Keys, Visible, as_visible, both


def made_on(device: torch.device | str | int | None) -> AbstractContextManager[object]:
    """A context in which parameters are made on a device; None: where PyTorch would make them."""
    return nullcontext() if device is None else torch.device(device)


class Attending(Watchable):
    """The base of `Attention` and `MultiHeadAttention`: remember once, then ask.

    `shape_query` and `shape_keys` bring B T M into heads, `shape_context` brings the answer back.
    """

    token: object  # marks the memories that it made
    mechanism: Mechanism
    position: Position | None  # set in __init__: a default on the class would hide the module
    widths: tuple[int | None, int | None, int | None] = (None, None, None)
    """The widths of queries, keys and values that it was built for; None where unknown."""
    num_heads: int = 1
    projects: ClassVar[bool] = False
    """Whether `shape_query` multiplies queries by weights, whose gradient a NaN would reach."""

    def __init__(self) -> None:
        super().__init__()
        self.token = object()

    @property
    def ignores_shifts(self) -> bool:
        """Whether padding in front of a text changes nothing."""
        claims = self.mechanism.claims
        turns = self.position is not None and self.position.turns
        alike = claims.is_row_wise and claims.ignores_shifts
        return alike and (claims.ignores_turns or not turns)

    def shape_query(self, query: Tensor) -> Tensor:
        """B T M -> B H T D"""
        raise NotImplementedError

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """B S K, B S R -> B G S D, B G S R"""
        raise NotImplementedError

    def shape_context(self, context: Tensor) -> Tensor:
        """B H T R -> B T R"""
        raise NotImplementedError

    def sinks(self) -> list[tuple[Tensor, Tensor]]:
        """Extra keys and values that every query may look at.    G D, G D"""
        return []

    def remember(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
        **torch_arguments: Any,
    ) -> Memory:
        """Project keys and values (default: the keys) once, to be asked many times.

        keys: B S K.  values: B S R.  visible: which keys exist, `heed.lengths(n)` or booleans B S.
        """
        if torch_arguments:
            refuse_all("memory", torch_arguments, Attending.remember)
        check(keys=(keys, "B S K"))
        values = keys if values is None else values
        memory = Memory.of(keys, values, self._keep, visible, segments, self.token)
        for k, v in self.sinks():
            k = self.mechanism.keep(k[None, :, None], v[None, :, None])[0, :, 0]
            memory = memory.with_sink(k, v)
        return memory

    def forward(
        self,
        query: Tensor | None,
        memory: Memory | Tensor | None = None,
        state: State | None = None,
        *,
        visible: Visible | Tensor | None = None,
        need: Need = "context",
        segments: Tensor | None = None,
        statistics: Summary | bool | None = None,
        bias: Tensor | None = None,
        **torch_arguments: Any,
    ) -> Attended:
        """Attend: queries B T M -> context B T R, weight B H T S.

        memory    from `remember`; or keys that serve as values too (B S K); or None, for
                  self-attention
        state     from the last step's record. A loop over steps begins with `heed.State()`, whose
                  first query stands at the first key; without a state the last query of the call
                  stands at the last key, and one beyond it is refused where places matter
        visible   who may look where, beyond what the memory hides; a boolean tensor is T S, B T S
                  or B H T S (keys alone, B S, are `heed.Visible.keys(mask)`). Padding belongs to
                  the memory, which cleans it before anything is projected
        need      "context"; "weight" forms the weights too, "energy" also the energies
        segments  which segment each query is in, B T, for a `relative` score that compares them
        statistics  True or a `heed.Summary`: the record has `statistics` of the weights, which need
                  not be formed
        bias      numbers added to the energies, B H T S, where all axes but S may be 1; -inf hides.
                  Gradients flow to it
        """
        if torch_arguments:
            refuse_all("call", torch_arguments, Attending.forward)
        if state is not None and not isinstance(state, State):
            raise Refused(
                "the third argument is the state; keys and values go into a memory: "
                "attend(query, attend.remember(keys, values))"
            )
        if visible is not None:
            visible = as_visible(visible)
        if query is not None:
            check(queries=(query, "B T M"))
            check_width("queries", query, self.widths[0])
        if memory is None:
            memory = query
        position = self.position
        if bias is not None and memory is not None:
            if isinstance(memory, Tensor):
                check(keys=(memory, "B S K"))
            S = memory.S if isinstance(memory, Memory) else memory.shape[1]
            visible, position = self._added(bias, query, S, visible)
        if isinstance(memory, Tensor):
            memory = self._remember_for(query, memory, state, visible, segments)
        if memory is None:
            raise Refused("there is neither a query nor a memory")
        if isinstance(memory, Memory) and memory.owner is not None:
            if memory.owner is not self.token:
                raise Refused("this memory was made by another attention; use the one that made it")
            memory = replace(memory, owner=self.mechanism.token)
        if query is not None:
            projects = self.projects and isinstance(memory, Memory)
            if projects and not self.mechanism.claims.looks_regardless:
                places = placed(query.shape[1], memory.S, state, query.device)
                shown = both(visible, self.mechanism.shown(memory, places))
                query = spared(query, memory, both(memory.visible, shown), places)
            query = self.shape_query(query)
        seen: Attended = self.mechanism(
            query,
            memory,
            state,
            visible=visible,
            need=need,
            segments=segments,
            position=position,
            statistics=statistics,
        )
        if not self.mechanism.claims.gives_context:
            return seen
        return seen.replace(context=self.shape_context(seen.context))

    if TYPE_CHECKING:  # a call gives what forward gives; nn.Module would say Any
        __call__ = forward

    def _added(
        self, bias: Tensor, query: Tensor | None, S: int, visible: Visible | None
    ) -> tuple[Visible | None, Position | None]:
        """The visible keys under a bias, and the position that adds it."""
        if query is None:
            raise Refused("a bias needs queries: those of a learned 'static' take none")
        B, T, _ = query.shape
        seen, added = split_mask("bias", check_bias(bias, (B, self.num_heads, T, S)))
        check_devices(queries=query, bias=bias)
        visible = both(visible, Visible.mask(seen))
        return visible, self.position if added is None else Bias(added, self.position)

    def _keep(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        check_width("keys", keys, self.widths[1])
        check_width("values", values, self.widths[2])
        k, v = self.shape_keys(keys, values)
        if self.position is not None:
            k = self.position.turn(k, torch.arange(start, start + k.shape[2], device=k.device))
        return self.mechanism.keep(k, v), v

    def _remember_for(
        self,
        query: Tensor | None,
        keys: Tensor,
        state: State | None,
        visible: Visible | None,
        segments: Tensor | None,
    ) -> Memory:
        """A memory for this call alone: what the call hides from every query is cleaned first."""
        check(keys=(keys, "B S K"))
        exists, rest = (None, None) if visible is None else visible.split()
        values = keys
        if rest is not None:
            check_counts(rest, keys.shape[1])
        if query is not None and rest is not None:
            T, S = query.shape[1], keys.shape[1]
            places = placed(T, S, state, keys.device)
            if not every_key_seen(rest, places):
                seen = Keys(rest.dense(places).any(2).any(1))
                keys, values = clean(seen, keys, keys)
        return self.remember(keys, values, exists, segments)


class Attention(Attending):
    """One attention by name or from a Mechanism, on queries B T M and keys B S K.

    heed.Attention("local-p/general", query=512, key=1024, window=10)

    Only the score projects anything; values are read as they are. A call without a query (the
    name `static`) asks with a learned vector.

    mechanism  a name, or a Mechanism put together from parts
    query, key, value  the widths of what is compared and read
    dropout    on the weights, in training
    device, dtype  of the parameters, which are made there; "meta" makes none
    options    of the parts named, such as window=10; `heed list mechanisms` shows them
    """

    def __init__(
        self,
        mechanism: str | Mechanism = "scaled-dot",
        *,
        query: int | None = None,
        key: int | None = None,
        value: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.position = None
        with made_on(device):
            self.mechanism = self._built(mechanism, (query, key, value), dropout, options)
        self.to(device=device, dtype=dtype)

    def _built(
        self,
        mechanism: str | Mechanism,
        widths: tuple[int | None, int | None, int | None],
        dropout: float,
        options: dict[str, Any],
    ) -> Mechanism:
        query, key, value = widths
        if isinstance(mechanism, Mechanism):
            if options or dropout or widths != (None, None, None):
                raise Refused("a Mechanism already has its widths, dropout and options")
            return mechanism
        key = query if key is None else key
        parse(mechanism)  # what is no name is refused before widths are asked for
        refuse("module", options.keys() - options_of(mechanism))
        if key is None:
            raise Refused(f"'{mechanism}' needs the widths it compares: query=..., key=...")
        query = key if query is None else query
        self.widths = (query, key, value)
        return build(mechanism, query=query, key=key, value=value, dropout=dropout, **options)

    def extra_repr(self) -> str:
        widths = zip(("query", "key", "value"), self.widths, strict=True)
        return ", ".join(f"{name}={width}" for name, width in widths if width is not None)

    def shape_query(self, query: Tensor) -> Tensor:
        return query.unsqueeze(1)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys.unsqueeze(1), values.unsqueeze(1)

    def shape_context(self, context: Tensor) -> Tensor:
        return context.squeeze(1)
