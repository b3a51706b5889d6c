"""Launches of Triton kernels without its slow inspection of arguments; scratch in one allocation.

A kernel's parameters are, in this order, addresses, numbers and constants. Triton specialises a
kernel by the constants, the kind of each address, and which numbers are wide: these are the key
under which a compiled kernel is cached.

Kernels of windows, of walks and of maps of statistics are launched by Triton's own
`kernel[grid](...)`: they have strides that Triton specialises for, several stages, or a third axis
of programs, which launches from here do not support.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
"""Whether kernels run in Triton's interpreter, without a GPU."""

APART = 256
"""Alignment in bytes of the parts of one allocation."""

WIDE = 1 << 31
"""The least number that takes 64 bits."""


class At(int):
    """The address of a tensor, which Triton's launcher takes without further cost."""

    tensor: Tensor  # the tensor there, or the allocation around it
    offset: int | None  # in bytes, within an allocation of several parts
    kind: tuple[torch.dtype, bool]  # dtype, and whether it is aligned: Triton specialises for both

    def shown(self) -> Tensor:
        """The tensor at the address."""
        return self.tensor if self.offset is None else self.tensor[self.offset :].view(self.kind[0])


def at(x: Tensor) -> At:
    """The address of a tensor."""
    found = At(x.data_ptr())
    found.tensor, found.offset, found.kind = x, None, (x.dtype, not found & 15)
    return found


def maybe(x: Tensor | None) -> At | None:
    """The address of a tensor, or None without one."""
    return None if x is None else at(x)


class Room:
    """Several tensors in one allocation, each by its count of numbers (0: none) and dtype."""

    def __init__(self, *parts: tuple[int, torch.dtype]) -> None:
        self.total = 0
        self.begins: list[tuple[int, tuple[torch.dtype, bool]] | None] = []
        for count, dtype in parts:
            self.begins.append((self.total, (dtype, True)) if count else None)
            self.total += -(-count * dtype.itemsize // APART) * APART

    def made(self, like: Tensor) -> list[At | None]:
        """Allocate them on the device of a tensor; their addresses, None for empty ones."""
        whole = like.new_empty(self.total, dtype=torch.uint8)
        base = whole.data_ptr()
        found: list[At | None] = []
        for part in self.begins:
            if part is None:
                found.append(None)
                continue
            there = At(base + part[0])
            there.tensor, (there.offset, there.kind) = whole, part
            found.append(there)
        return found


_compiled: dict[tuple[Any, ...], Callable[..., None]] = {}


class _Rehearsal(threading.local):
    on = False


_rehearsal = _Rehearsal()


@contextmanager
def rehearsal() -> Iterator[None]:
    """Inside the block, compile in parallel what launches would compile, and launch nothing.

    A pass needs up to seven kernels, of a second or more each, mostly outside Python.
    """
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as several, triton.AsyncCompileMode(several):
        _rehearsal.on = True
        try:
            yield
        finally:
            _rehearsal.on = False


def launch(
    kernel: Any,
    grid: tuple[int, int],
    addresses: Sequence[At | None],
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    warps: int,
    registers: int | None = None,
) -> None:
    """Launch a kernel on the current device and stream."""
    if INTERPRETED.value:
        kernel[grid](*map(_shown, addresses), *numbers, *constants)
        return
    device = torch.cuda.current_device()
    key = (
        id(kernel),  # a kernel's own hash reads its source
        device,
        warps,
        registers,
        constants,
        tuple([x if x is None else x.kind for x in addresses]),
        None if max(numbers) < WIDE else tuple([x >= WIDE for x in numbers]),
    )
    known = _compiled.get(key)
    if known is not None:
        if _rehearsal.on:
            return
        known(*grid, 1, _stream(device), *addresses, *numbers, *constants)
        return
    refuse_special(kernel, len(addresses), numbers)
    options = {"num_warps": warps, "num_stages": 1}
    if registers is not None:
        options["maxnreg"] = registers
    arguments = (*map(_shown, addresses), *numbers, *constants)
    if _rehearsal.on:
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        _compiled[key] = _again(kernel[grid](*arguments, **options))


def _stream(device: int) -> int:
    found: int = torch._C._cuda_getCurrentRawStream(device)
    return found


def _again(made: Any) -> Callable[..., None]:
    """A function that launches a compiled kernel again, by its own launcher and without hooks.

    Triton calls hooks before and after each launch, even if none is set.
    """
    run, function, metadata = made.run, made.function, made.packed_metadata

    def launch_again(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        run(x, y, z, stream, function, metadata, None, None, None, *arguments)

    return launch_again


def _shown(x: At | None) -> Tensor | None:
    return x if x is None else x.shown()


def refuse_special(kernel: Any, addresses: int, numbers: tuple[float, ...]) -> None:
    """Assert that Triton specialises for no number's value: 17 would run in a kernel for 16."""
    for parameter, x in zip(kernel.params[addresses:], numbers, strict=False):
        name = f"{kernel.__name__}'s {parameter.name}"
        assert not parameter.is_constexpr, f"{name} is a constant, and was passed as a number"
        special = isinstance(x, int) and not parameter.do_not_specialize
        assert not special, f"{name} is a number that Triton would specialise for"
    for parameter in kernel.params[addresses + len(numbers) :]:
        name = f"{kernel.__name__}'s {parameter.name}"
        assert parameter.is_constexpr, f"{name} is a number, and was passed as a constant"
