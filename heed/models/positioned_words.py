"""Symbols as vectors with positions, and which of them are not padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import heed
from heed.attention.initial_weights import initialise, normal
from heed.attention.memory import as_keys, key_table
from heed.attention.position import Learned, Sinusoidal, sinusoid
from heed.errors import Refused, ShapeError
from heed.kernels.ability import recorded, transformed
from heed.visible import Lengths, Visible


class PositionedWords(nn.Module):
    """Embeddings, times √M unless told otherwise, plus positions. Vaswani 2017 §3.4, §3.5

    With `types`, a vector for the text that a symbol belongs to is added as well, and `norm`
    normalises the sum: Devlin 2019 §3.
    """

    def __init__(
        self,
        symbols: int,
        width: int,
        position: nn.Module | None,
        dropout: float,
        *,
        scale: float | None = None,
        types: nn.Embedding | None = None,
        norm: nn.LayerNorm | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(symbols, width)
        # So that inputs and tied outputs both start near one.
        initialise(self.table, weight=normal(width**-0.5))
        self.position, self.dropout = position, nn.Dropout(dropout)
        self.types, self.norm = types, norm
        self.scale = width**0.5 if scale is None else scale

    def forward(
        self,
        symbols: Tensor,
        start: int = 0,
        types: Tensor | None = None,
        first: Tensor | None = None,
        exists: Visible | None = None,
    ) -> Tensor:
        """B T -> B T M; the first of T stands at `start`.

        types   of each symbol, B T; the first type where none are given
        first   the column of each text's first symbol, B, where positions count from
        exists  which symbols are not padding; if that depends on no query, the vectors of padding
                become zero before the norm, and get no gradient
        """
        within("symbols", symbols, 0, self.table.num_embeddings)
        x = self.table(symbols)
        x = x if self.scale == 1 else x * self.scale
        if types is not None:
            if self.types is None:
                raise Refused("this model was built without token types")
            check_types(types, symbols)
            within("types", types, 0, self.types.num_embeddings)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        if self.position is not None:
            x = _standing(self.position, x, start, first)
        if exists is not None and exists.about_keys_alone:
            # Before the norm, in whose gradient 0 times NaN would be NaN.
            x = x.where(key_table(exists, x.shape[1], x.device)[..., None], 0)
        known: Tensor = self.dropout(x if self.norm is None else self.norm(x))
        return known


class PositionedNumbers(nn.Module):
    """Real numbers as vectors, by a linear map, plus positions."""

    def __init__(
        self, features: int, width: int, position: nn.Module | None, dropout: float
    ) -> None:
        super().__init__()
        self.linear, self.position = nn.Linear(features, width), position
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, numbers: Tensor, types: Tensor | None = None, exists: Visible | None = None
    ) -> Tensor:
        """B T F -> B T M; the vectors of padding are zero."""
        if types is not None:
            raise Refused("real numbers have no token types")
        there = None
        if exists is not None and exists.about_keys_alone:
            there = key_table(exists, numbers.shape[1], numbers.device)[..., None]
            numbers = numbers.where(there, 0)  # NaN would reach the gradients
        x = self.linear(numbers)
        x = x if self.position is None else self.position(x, 0)
        return self.dropout(x if there is None else x.where(there, 0))  # type: ignore[no-any-return]


def _standing(position: nn.Module, x: Tensor, start: int, first: Tensor | None) -> Tensor:
    """Vectors plus positions, counted in each row from its first symbol.    B T M, B"""
    if first is None:
        told: Tensor = position(x, start)
        return told
    T, M = x.shape[1:]
    places = torch.arange(start, start + T, device=x.device) - first[:, None]
    places = places.clamp(min=0)  # what stands in front is hidden from all
    if isinstance(position, Learned):
        longest, end = position.table.num_embeddings, start + T
        if end > longest and places.numel() and readable(places):
            end = int(places.max()) + 1
        if end > longest:
            raise Refused(f"learned positions end at {longest}; this text reaches {end}")
        learned: Tensor = position.table(places)
        return x + learned.to(x.dtype)
    if not isinstance(position, Sinusoidal):
        raise Refused(f"{type(position).__name__} cannot count positions row by row")
    wide = torch.promote_types(x.dtype, torch.float32)
    return x + sinusoid(places.flatten().to(wide), M).view_as(x).to(x.dtype)


Real = Tensor | Visible | Sequence[Any]
"""A way to say which symbols are not padding: lengths, B; booleans, or 0 and 1 as in the attention
mask of a tokeniser, B S; either of them as a list; or a predicate."""


_ADDED = " (a mask that is added, of 0 and -inf, is mask == 0; one of 1 and 0 is mask == 1)"


def sight(given: Real | None, symbols: Tensor) -> Visible | None:
    """The symbols B S that are not padding; None: all."""
    if given is None or isinstance(given, Visible):
        return given
    given = _tensor(given, symbols)
    if given.ndim != 2:
        return heed.lengths(lengths_of(given, symbols))
    if given.shape != symbols.shape or given.is_floating_point() or given.is_complex():
        raise ShapeError(
            "a mask of existing symbols has booleans, or 0 and 1, B S "
            f"{tuple(symbols.shape)}; got {given.dtype} of shape {tuple(given.shape)}"
            f"{_ADDED * given.is_floating_point()}"
        )
    if given.dtype != torch.bool:
        within("the numbers of an attention mask", given, 0, 2)
    return Visible.keys(given.bool())


def not_padding(
    lengths: Real | None, first: Tensor | Sequence[int] | None, symbols: Tensor
) -> Visible | None:
    """The symbols B T that are not padding, by `lengths` or the column of each text's `first`.

    None: all. Texts with lengths stand at the beginning of their rows, those with a first column
    at the end.
    """
    if first is None:
        return as_keys(sight(lengths, symbols))
    if lengths is not None:
        raise Refused(
            "give lengths for padding behind the texts, or first for padding in front of them; "
            "for both kinds, lengths takes which symbols are not padding, B T"
        )
    places = torch.arange(symbols.shape[1], device=symbols.device)
    return Visible.keys(places >= _whole_each("first", first, symbols)[:, None])


def in_front(exists: Visible | None, symbols: Tensor) -> Tensor | None:
    """The column of each text's first symbol, S for an empty text.    B S -> B

    None where no padding is in front. On a GPU, which is not waited for, all may be zero.
    """
    if exists is None or isinstance(exists, Lengths) or not exists.about_keys_alone:
        return None
    there = key_table(exists, symbols.shape[1], symbols.device).expand(len(symbols), -1)
    return _begins(there)


def at_the_end(exists: Visible, symbols: Tensor) -> tuple[Tensor, Visible, Tensor | None]:
    """Symbols with all texts moved to the end of their rows, to be continued there.    B T

    -> the symbols, which of them are not padding, and what `in_front` says of them
    """
    B, T = symbols.shape
    there = key_table(exists, T, symbols.device).expand(B, T)
    if T:
        places = torch.arange(T, device=symbols.device)
        end = ((places + 1) * there).amax(-1, keepdim=True)
        came_from = (places + end) % T  # what is padding behind goes to the front
        symbols, there = symbols.gather(1, came_from), there.gather(1, came_from)
    return symbols, Visible.keys(there), _begins(there)


def _begins(there: Tensor) -> Tensor | None:
    """B T -> B; None where it is known that every text begins in the first column."""
    first = (there.cumsum(-1) == 0).sum(-1)
    return None if readable(first) and not first.any() else first


def readable(numbers: Tensor) -> bool:
    """Whether numbers may be read: a GPU would have to be waited for, and a compiler has none."""
    return numbers.is_cpu and not recorded() and transformed() is None


def within(name: str, numbers: Tensor, least: int | None, end: int) -> None:
    """Refuse numbers below `least` (None: there is none), or from `end` on, where readable."""
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise ShapeError(f"{name} are whole numbers; got {numbers.dtype}")
    if not numbers.numel() or not readable(numbers):
        return
    low, high = (int(x) for x in numbers.aminmax())
    if least is None and high >= end:
        raise ShapeError(f"{name} are below {end}; got {high}")
    if least is not None and (low < least or high >= end):
        raise ShapeError(f"{name} are {least} to {end - 1}; got {low if low < least else high}")


def check_types(types: Tensor, symbols: Tensor) -> None:
    """Refuse types that are not one for each symbol.    B T, B T"""
    if types.shape != symbols.shape:
        raise ShapeError(
            f"there is a type for each symbol, B T {tuple(symbols.shape)}; got {tuple(types.shape)}"
        )


def lengths_of(given: Tensor | Sequence[int], symbols: Tensor) -> Tensor:
    """The lengths of texts within their rows, refused if they are none.    B, B T -> B"""
    return _whole_each("lengths", given, symbols)


_PADDING = {"lengths": "mask.sum(-1)", "first": "(mask == 0).sum(-1)"}
"""Each argument, computed from an attention mask."""


def _whole_each(name: str, given: Tensor | Sequence[int], symbols: Tensor) -> Tensor:
    """One whole number from 0 to T for each text, refused if it is none.    B, B T -> B"""
    B, T = symbols.shape[:2]
    numbers = _tensor(given, symbols)
    if numbers.shape != (B,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        masks = numbers.shape == symbols.shape
        cure = f"; an attention mask has them as {_PADDING[name]}" if masks else ""
        raise ShapeError(
            f"{name} takes one whole number for each of {B} texts; got {numbers.dtype} "
            f"of shape {tuple(numbers.shape)}{cure}"
        )
    if not B or not readable(numbers):
        return numbers
    low, high = (int(x) for x in numbers.aminmax())
    if low < 0 or high > T:
        raise ShapeError(
            f"a text has 0 to {T} of the {T} symbols of its row; {name} has {low} to {high}"
        )
    return numbers


def _tensor(given: Tensor | Sequence[Any], symbols: Tensor) -> Tensor:
    """A list as a tensor beside the symbols; a tensor as it is."""
    if isinstance(given, Tensor):
        return given
    try:
        return torch.as_tensor(given, device=symbols.device)
    except (TypeError, ValueError, RuntimeError):
        raise Refused(
            "lengths takes one whole number for each text, B, or which symbols are not padding, "
            f"B S; got {type(given).__name__} {str(given)[:40]}"
        ) from None
