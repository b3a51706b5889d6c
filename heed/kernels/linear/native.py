"""y = x Wᵀ + b for few rows of float32 on the CPU, with weights packed once.

    packed = pack(layer.weight, layer.bias)
    forward(x, packed)                       # M K -> M N
    likeliest(x, packed, 11, end, forbid)    # the best 11 of N log-probabilities of each row

A row gives the same bits alone and among others. Packed weights are cached as long as the weight
lives, and are packed anew when anything in it has changed, by whatever means: every call of `pack`
reads it through, which costs as much as a few products of one row.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from heed.errors import Refused
from heed.kernels import native
from heed.kernels.native import address
from heed.kernels.strides import dense

PANEL, MARKS = 16, 32

_pack = native.Function("heed_linear_pack", "5q")
_turn = native.Function("heed_linear_turn", "5q")
_mark = native.Function("heed_linear_mark", "5q")
_forward = native.Function("heed_linear_forward", "11q")
_ahead = native.Function("heed_linear_ahead", "17q")
_back = native.Function("heed_linear_back", "17q")
_likeliest = native.Function("heed_linear_likeliest", "18q")


class Packed(NamedTuple):
    """The weights of a linear map in panels of 16 columns, and its bias as it is.

    data  ⌈N / 16⌉ K 16; or N K, not packed at all
    row   the stride of rows that are not packed, else 0
    """

    data: Tensor
    bias: Tensor | None
    N: int
    K: int
    row: int = 0


class Likeliest(NamedTuple):
    """The best symbols of each row.

    log_prob  M many, in the order of the symbols' ids
    symbol    M many
    ending    M, the log-probability of the end symbol
    """

    log_prob: Tensor
    symbol: Tensor
    ending: Tensor


_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The cache, by weight and number of rows: the weight's address and mark, and the packed data."""


def refusal(*tensors: Tensor | None) -> str | None:
    """The reason why these cannot be weights and inputs here; None: they can."""
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return f"float32 on the CPU is served, not {tensor.dtype} on {tensor.device.type}"
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return f"{type(tensor).__name__} is not a plain tensor"
        if tensor.stride(-1) != 1:
            return "the numbers of a row must be contiguous"
    return native.missing()


def pack(weight: Tensor, bias: Tensor | None = None, rows: int | None = None) -> Packed:
    """The weight N K, or its first `rows` rows, in panels."""
    N, K = (weight.shape[0] if rows is None else rows), weight.shape[1]
    part = weight.detach()[:N]
    version = None if weight.is_inference() else weight._version  # inference tensors have none
    place = version, part.data_ptr(), part.stride(0), K, mark(part)
    kept = _kept.setdefault(weight, {})
    known = kept.get(N)
    if known is None or known[0] != place:
        across = -(-N // PANEL)
        data = _room(across * K * PANEL).view(across, K, PANEL)
        _pack(address(part), part.stride(0), address(data), N, K)
        known = kept[N] = place, data
    return Packed(known[1], None if bias is None else bias.detach()[:N], N, K)


def mark(rows: Tensor) -> bytes:
    """A checksum of a matrix: any single number that changes will change it.    N K"""
    found = torch.empty(MARKS, dtype=torch.int32, device="cpu")
    _mark(address(rows), rows.stride(0), address(found), *rows.shape)
    return found.numpy().tobytes()


def panels(weight: Tensor, turned: bool = False) -> Tensor:
    """A weight, or its transpose, in panels for one loop; they are not cached.

    N K -> ⌈N / 16⌉ K 16, or ⌈K / 16⌉ N 16
    """
    weight = dense(weight.detach())
    N, K = weight.shape
    across, along = (K, N) if turned else (N, K)
    packed = weight.new_empty(-(-across // PANEL), along, PANEL)
    lay_out = _turn if turned else _pack
    lay_out(address(weight), weight.stride(0), address(packed), N, K)
    return packed


HUGE, SLAB = 2**21, 2**24
"""Bytes of a large page, and of the memory that is mapped at once."""

_left = torch.empty(0, device="cpu")
_taking = threading.Lock()


def _room(count: int) -> Tensor:
    """Memory for so many numbers, in large pages where the system has them.

    A step reads every weight once. In pages of 4 kB the processor looks up an address for every
    64th cache line, and in a virtual machine twice. Weights that are packed one after the other
    share a slab, which lives as long as any of them.
    """
    global _left
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.float32, device="cpu")
    size = -(-count // PANEL) * PANEL  # each begins with a line of the cache
    with _taking, torch.inference_mode(False):  # the rest may be used outside inference mode
        if len(_left) < size:
            many = max(SLAB, -(-4 * size // HUGE) * HUGE)
            slab = mmap.mmap(-1, many + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # it may have been built without them
                slab.madvise(mmap.MADV_HUGEPAGE)
            _left = torch.frombuffer(slab, dtype=torch.float32)
            _left = _left[-_left.data_ptr() % HUGE // 4 :][: many // 4]
        room, _left = _left[:count], _left[size:]
    return room


def as_it_is(weight: Tensor, bias: Tensor | None = None, rows: int | None = None) -> Packed:
    """The weight N K, or its first `rows` rows, read where it stands: slower, but no second copy.

    For weights that no cache holds, where reading takes most of the time.
    """
    N, K = (weight.shape[0] if rows is None else rows), weight.shape[1]
    data = weight.detach()[:N]
    return Packed(data, None if bias is None else bias.detach()[:N], N, K, data.stride(0))


def forward(x: Tensor, packed: Packed, relu: bool = False) -> Tensor:
    """x Wᵀ + b, through ReLU if wanted.    M K -> M N"""
    data, bias, N, K, row = packed
    M = x.shape[0]
    y = x.new_empty(M, N)
    _forward(
        address(x), x.stride(0), address(data), row, address(bias),
        address(y), N, M, K, N, relu,
    )  # fmt: skip
    return y


def likeliest(x: Tensor, packed: Packed, many: int, end: int, forbid: Tensor) -> Likeliest:
    """The best of log_softmax(x Wᵀ + b), but for the forbidden symbols.    M K

    Forbidden symbols still count in the softmax. Of equal symbols the one with the lowest id is
    better. Where fewer than `many` are possible, symbol 0 with -inf fills the row.
    """
    data, bias, N, K, row = packed
    M, many = x.shape[0], min(many, N)
    if many < 1:  # C looks at the last of them
        raise Refused(f"at least one symbol is chosen, of at least one; got {many} of {N}")
    symbols = torch.empty(M, many, dtype=torch.int64, device="cpu")
    found = Likeliest(x.new_empty(M, many), symbols, x.new_empty(M))
    log_prob, symbol, ending = (address(each) for each in found)
    _likeliest(
        address(x), x.stride(0), address(data), row, address(bias),
        M, K, N, many, end, address(forbid), len(forbid), log_prob, symbol, ending, 0, 0, 0,
    )  # fmt: skip
    return found


def ahead(packed: Sequence[Tensor], parts: Sequence[Tensor], N: int, bends: bool) -> Tensor:
    """Σ x_i W_iᵀ of one part or two, through tanh if wanted.    B K_i -> B N"""
    native.must_read(*parts)
    x, *more = (dense(part) for part in parts)
    z, w = (more[0], packed[1]) if more else (x, packed[0])
    B, y = len(x), x.new_empty(len(x), N)
    _ahead(
        address(x), address(z), address(packed[0]), address(w), address(y), 0, 0, 0, 0,
        x.stride(0), z.stride(0), 0, x.shape[1], z.shape[1] if more else 0, B, N, bends,
    )  # fmt: skip
    return y


def back(
    packed: Sequence[Tensor], by: Tensor, y: Tensor | None, widths: list[int]
) -> tuple[Tensor, list[Tensor]]:
    """The gradient before tanh, and those of the parts; the panels are of transposed weights.

    B N -> B N, B K_i
    """
    by = dense(by)
    B, N = by.shape
    d, to = by if y is None else torch.empty_like(y), [by.new_empty(B, K) for K in widths]
    _back(
        0, 0, address(packed[0]), address(packed[-1]), address(y),
        address(by), address(d), address(to[0]), address(to[-1]), 0, 0, by.stride(0),
        widths[0], widths[1] if len(widths) > 1 else 0, B, N, y is not None,
    )  # fmt: skip
    return d, to
