"""The axis alphabet, and the one checker of shapes and sizes.

B batch        T queries               D width compared     M model width (of a query)
H heads        S keys                  R width read         K width of a raw key
G groups of heads that share one key and value; H is a multiple of G
"""

import math
from contextlib import suppress
from numbers import Integral, Real

import torch
from torch import Tensor

from heed.errors import Refused, ShapeError


def check(**tensors: tuple[Tensor, str]) -> dict[str, int]:
    """Bind the letters of every pattern, or say which tensors disagree, and on what.

    check(k=(k, "B G S D"), v=(v, "B G S R"))  ->  {"B": 2, "G": 1, "S": 7, "D": 64, "R": 64}
    """
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, (tensor, pattern) in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ShapeError(f"{name} must be a tensor, {pattern}; got {type(tensor).__name__}")
        letters = pattern.split()
        if tensor.ndim != len(letters):
            raise ShapeError(
                f"{name} must have {len(letters)} axes, {pattern}; it has {tensor.ndim}: "
                f"{tuple(tensor.shape)}"
            )
        for letter, size in zip(letters, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ShapeError(_disagreement(owner[letter], name, letter, tensors))
            owner.setdefault(letter, name)
    return sizes


def check_dtypes(**tensors: Tensor) -> None:
    """Refuse tensors of different dtypes, unless autocast is on and will cast them: all but those
    of float64."""
    first, *others = tensors.values()
    if all(x.dtype == first.dtype for x in others):
        return
    device, wide = first.device.type, any(x.dtype == torch.float64 for x in tensors.values())
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and not wide:
        return
    *names, last = tensors
    *those, that = (str(x.dtype) for x in tensors.values())
    cures = " or ".join(f".to({dtype})" for dtype in dict.fromkeys((*those, that)))
    raise Refused(
        f"{', '.join(names)} and {last} must share a dtype; they are {', '.join(those)} and "
        f"{that}: cast by {cures}"
    )


def check_devices(**tensors: Tensor) -> None:
    """Refuse tensors on different devices."""
    first, *others = tensors.values()
    if all(x.device == first.device for x in others):
        return
    *names, last = tensors
    devices = ", ".join(str(x.device) for x in tensors.values())
    raise Refused(f"{', '.join(names)} and {last} must be on one device; they are on {devices}")


def check_width(name: str, tensor: Tensor, built_for: int | None) -> None:
    """The last axis must be as wide as a module was built for (None: any width).    B T M"""
    if built_for is not None and tensor.shape[-1] != built_for:
        raise ShapeError(
            f"{name} are {tensor.shape[-1]} wide, {tuple(tensor.shape)}; "
            f"this attention was built for {built_for}"
        )


def check_groups(q: Tensor, k: Tensor) -> None:
    """Heads share keys evenly: H must be a multiple of G.    B H T D, B G S D"""
    H, G = q.shape[1], k.shape[1]
    if G == 0 or H % G:
        raise ShapeError(
            f"H must be a multiple of G; the queries have H={H} heads, the keys G={G} groups"
        )


LARGEST = 2**31 - 1
"""The largest size or window that is taken: no sum or product of two of them overflows in C."""


def whole(name: str, value: object, least: int, most: float = LARGEST) -> int:
    """An option that is a whole number, from `least` to `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise Refused(f"{name} is a whole number, {least} or more; got {_told(value)}")
    if int(value) > most:
        raise Refused(f"{name} is a whole number from {least} to {most}; got {_told(value)}")
    return int(value)


def real(name: str, value: object, low: float, high: float = math.inf) -> float:
    """An option that is a finite number, from low to high."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # a whole number that no float holds
            number = float(value)
    if not low <= number <= high or math.isinf(number):
        most = "" if math.isinf(high) else f" and at most {high}"
        raise Refused(f"{name} is a number of at least {low}{most}; got {_told(value)}")
    return number


def check_rows(rows: object) -> Tensor:
    """Rows to be selected, by their numbers, as a tensor of one axis; the numbers are not read."""
    if (
        not isinstance(rows, Tensor)
        or rows.ndim != 1
        or rows.dtype not in (torch.int64, torch.int32)
    ):
        told = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else _told(rows)
        raise Refused(
            f"rows to select are a tensor of whole numbers, int64, of one axis; got {told}"
        )
    return rows


def selected(x: Tensor, rows: Tensor) -> Tensor:
    """The chosen rows of a tensor; on a GPU, which is not waited for, others fail as in PyTorch."""
    try:
        return x.index_select(0, rows)
    except (IndexError, RuntimeError):  # the second, where x is empty
        wrong = rows[(rows < 0) | (rows >= len(x))] if rows.is_cpu else rows[:0]
        if not len(wrong):
            raise
    raise ShapeError(
        f"there are B={len(x)} rows to select from, counted from 0, and no row {wrong[0].item()}"
    )


def _told(value: object) -> str:
    """A value as a message tells it; of a long number only how long it is."""
    if isinstance(value, Integral) and abs(int(value)) >= 1 << 64:
        return f"a number of {int(value).bit_length()} bits"
    return repr(value)


def _disagreement(
    first: str, second: str, letter: str, tensors: dict[str, tuple[Tensor, str]]
) -> str:
    lines = [f"{first} and {second} disagree on {letter}"]
    for name in (first, second):
        tensor, pattern = tensors[name]
        axes = " ".join(f"{a}={n}" for a, n in zip(pattern.split(), tensor.shape, strict=True))
        lines.append(f"  {name}: {axes}")
    return "\n".join(lines)
