"""Memory: the keys and values that queries attend to, projected once, kept between steps.

A Memory is immutable: `extend`, `truncate`, `select` and `repeat` give new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heed.errors import Refused, ShapeError
from heed.kernels.ability import full_precision, recorded, transformed
from heed.records import gradientless
from heed.shapes import check, check_dtypes, check_rows, selected, whole
from heed.visible import Keys, Places, Visible, as_visible

Keep = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Makes k and v of raw keys and values, given the place of the first of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Keys as the score compares them, values as they are read, and which of them exist.

    The last `sinks` keys are always visible and stand nowhere (learned extra keys).
    """

    k: Tensor  # B G S D
    v: Tensor  # B G S R
    visible: Visible | None = None  # about keys alone
    segments: Tensor | None = None  # B S
    sinks: int = 0
    keep: Keep | None = None
    owner: object = None  # the mechanism that made it, and may be asked about it
    prepared: dict[str, Any] = field(default_factory=dict)  # what kernels derived from k: a cache
    lost: bool = field(default_factory=gradientless)  # whether no gradient comes back to keys

    def __post_init__(self) -> None:
        """Refuse keys and values that do not belong together: a kernel checks no bounds."""
        k, v = self.k.shape, self.v.shape
        if len(k) != 4 or len(v) != 4 or k[:3] != v[:3]:
            check(k=(self.k, "B G S D"), v=(self.v, "B G S R"))
        if self.sinks and not 0 < self.sinks <= k[2]:
            raise ShapeError(f"of {k[2]} keys, {self.sinks} cannot be sinks")

    @staticmethod
    def of(
        keys: Tensor,
        values: Tensor,
        keep: Keep,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
        owner: object = None,
    ) -> Memory:
        """Keep raw keys and values; hidden ones are zeroed first, so that NaN cannot spread.

        With heads or without: B G S K and B G S R, or B S K and B S R.
        """
        if not isinstance(values, Tensor):
            raise Refused(f"values are a tensor, not {type(values).__name__}; name it: visible=...")
        axes = "B S" if keys.ndim == 3 else "B G S"
        check(keys=(keys, f"{axes} K"), values=(values, f"{axes} R"))
        check_dtypes(keys=keys, values=values)
        seen = as_keys(visible)
        if seen is not None:
            keys, values = clean(seen, keys, values)
            check_counts(seen, keys.shape[-2])
        if segments is not None:
            check(keys=(keys, f"{axes} K"), segments=(segments, "B S"))
        k, v = keep(keys, values, 0)
        return Memory(k, v, seen, segments, keep=keep, owner=owner)

    def __repr__(self) -> str:
        hidden = "" if self.visible is None else ", some hidden"
        return f"Memory(k={tuple(self.k.shape)}, v={tuple(self.v.shape)}{hidden})"

    @property
    def S(self) -> int:
        """The number of places to look at, sinks left out."""
        return self.k.shape[2] - self.sinks

    @property
    def exists(self) -> Tensor:
        """The visible places, as booleans.    B S"""
        B, S, device = self.k.shape[0], self.S, self.k.device
        if self.visible is None:
            return torch.ones(B, S, dtype=torch.bool, device=device)
        return key_table(self.visible, S, device).expand(B, S)

    @property
    def lengths(self) -> Tensor:
        """Each row's own length: one past its last visible place.    B"""
        known: Tensor | None = self.prepared.get("lengths")
        if known is not None:
            return known
        B, S = self.k.shape[0], self.S
        if self.visible is None:
            return torch.full((B,), S, device=self.k.device)
        places = torch.arange(1, S + 1, device=self.k.device)
        return (places * self.exists).amax(-1) if S else places.new_zeros(B)

    def extend(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """A longer memory: the new keys and values (default: the keys) come after the old ones."""
        if self.keep is None:
            raise Refused("this memory was not made by remember(...), and cannot be extended")
        if (segments is None) != (self.segments is None):
            raise Refused("either all keys of a memory have segments, or none")
        values = keys if values is None else values
        more = Memory.of(keys, values, lambda k, v, _: self.keep_from_here(k, v), visible, segments)
        check(k=(self.k, "B G S D"), new_k=(more.k, "B G N D"))
        check(v=(self.v, "B G S R"), new_v=(more.v, "B G N R"))
        seen = None
        if self.visible is not None or more.visible is not None:
            seen = Keys(torch.cat([self.exists, more.exists], -1))
        if segments is not None and self.segments is not None:
            segments = torch.cat([self.segments, segments], -1)
        return self._with(
            k=self._insert(self.k, more.k),
            v=self._insert(self.v, more.v),
            visible=seen,
            segments=segments,
        )

    def truncate(self, S: int) -> Memory:
        """Only the first S places (and the sinks)."""
        if not 0 <= S <= self.S:
            raise Refused(f"cannot truncate a memory of S={self.S} places to {S}")
        seen = None if self.visible is None else Keys(self.exists[:, :S])
        segments = None if self.segments is None else self.segments[:, :S]
        k, v = (
            concat([x[:, :, :S], x[:, :, self.S :]], 2) if self.sinks else x[:, :, :S]
            for x in (self.k, self.v)
        )
        return self._with(k=k, v=v, visible=seen, segments=segments)

    def select(self, rows: Tensor) -> Memory:
        """The memory of the chosen batch rows, in that order (beams)."""
        rows = check_rows(rows)
        return self._each(lambda x: selected(x, rows))

    def repeat(self, n: int) -> Memory:
        """Repeat every row n times, its copies side by side (beams)."""
        n = whole("the number of copies", n, 0)
        return self._each(lambda x: x.repeat_interleave(n, 0))

    def hide(self, seen: Visible) -> Memory:
        """The same memory with fewer keys visible; the hidden ones are zeroed too."""
        k, v = clean(seen, self.k, self.v, self.sinks)
        visible = seen if self.visible is None else self.visible & seen
        return self._with(k=k, v=v, visible=visible)

    def with_sink(self, k: Tensor, v: Tensor) -> Memory:
        """One more always-visible key and value at the end.    G D, G R"""
        B = self.k.shape[0]
        k = concat([self.k, k.to(self.k.dtype).expand(B, *k.shape)[:, :, None]], 2)
        v = concat([self.v, v.to(self.v.dtype).expand(B, *v.shape)[:, :, None]], 2)
        return self._with(k=k, v=v, sinks=self.sinks + 1)

    def keep_from_here(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Make k and v of raw keys and values that come after this memory's."""
        assert self.keep is not None
        return self.keep(keys, values, self.S)

    def _with(self, **changes: Any) -> Memory:
        """The same memory with changes, and an empty cache."""
        return replace(self, prepared={}, lost=self.lost or gradientless(), **changes)

    def _insert(self, old: Tensor, new: Tensor) -> Tensor:
        """Append along S, before the sinks."""
        if not self.sinks:
            return concat([old, new], 2)
        return concat([old[:, :, : self.S], new, old[:, :, self.S :]], 2)

    def _each(self, rows: Callable[[Tensor], Tensor]) -> Memory:
        return self._with(
            k=rows(self.k),
            v=rows(self.v),
            visible=None if self.visible is None else self.visible.rearranged(rows),
            segments=None if self.segments is None else rows(self.segments),
        )


def as_keys(visible: Visible | Tensor | None) -> Visible | None:
    """A predicate that speaks of keys alone; a bare table is read as B S."""
    if visible is None:
        return None
    seen = Visible.keys(visible) if isinstance(visible, Tensor) else as_visible(visible)
    if not seen.about_keys_alone:
        raise Refused(
            "a memory holds masks for all queries (lengths, padding); those that depend on the "
            "query, such as causal, are given with the call: attend(query, memory, visible=...)"
        )
    return seen


def concat(parts: list[Tensor] | tuple[Tensor, ...], axis: int) -> Tensor:
    """`torch.cat`, also under autocast, which would take no half precision but its own."""
    with full_precision(parts[0]):
        return torch.cat(parts, axis)


def check_counts(seen: Visible, S: int) -> None:
    """Refuse lengths that are not of the S keys beside them, where the numbers can be read.

    A call on a memory is not checked: the memory may still grow, and the lengths be of all its
    keys.
    """
    if not recorded() and transformed() is None:
        seen.check(S)


def key_table(seen: Visible, S: int, device: torch.device) -> Tensor:
    """The visible ones of S keys, by a predicate about keys alone.    B|1 S"""
    return seen.dense(Places(1, S, 0, 0, device))[:, 0, 0]


def clean(seen: Visible, keys: Tensor, values: Tensor, sinks: int = 0) -> tuple[Tensor, Tensor]:
    """Zero the keys and values that nobody may see: NaN in padding must not spread."""
    S = keys.shape[-2] - sinks
    table = key_table(seen, S, keys.device)
    if table.shape[-1] != S or table.shape[0] not in (1, keys.shape[0]):
        B = keys.shape[0]
        raise ShapeError(
            "visible and keys disagree\n"
            f"  visible: B={table.shape[0]} S={table.shape[1]}\n  keys: B={B} S={S}"
        )
    if sinks:
        table = torch.nn.functional.pad(table, (0, sinks), value=True)
    axes = (slice(None), *(None,) * (keys.ndim - 3), slice(None), None)
    return keys.where(table[axes], 0), values.where(table[axes], 0)
