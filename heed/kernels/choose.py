"""The choice of the kernel that serves a call, and why the others do not."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import ModuleType
from typing import Protocol

from torch import Tensor

from heed.errors import UnknownName
from heed.kernels import (
    additive,
    banded,
    cell,
    decoder,
    scan,
    sdpa,
    single,
    statistics,
    window,
)
from heed.kernels.ability import for_onnx
from heed.records import Call


class Kernel(Protocol):
    """A module that may serve calls."""

    def refusal(self, call: Call) -> str | None:
        """The reason why it cannot serve a call; None where it can."""


class Serving(Kernel, Protocol):
    """A module that serves whole calls."""

    def run(self, call: Call) -> Tensor:
        """The context.    B H T R"""


SERVING: dict[str, Serving] = {
    "window": window,
    "banded": banded,
    "single": single,
    "sdpa": sdpa,
    "additive": additive,
}
"""Kernels that serve a call as a whole, fastest first."""

ALIGNING: dict[str, Kernel] = {"scan": scan}
"""Kernels that serve only the align of a call; the align itself calls them."""

KERNELS: dict[str, Kernel] = {**SERVING, **ALIGNING}
"""Every kernel, in the order in which they are tried."""

BESIDE: dict[str, ModuleType] = {"statistics": statistics}
"""Kernels that add something to a call that another kernel serves."""

AROUND: dict[str, ModuleType] = {"cell": cell, "decoder": decoder}
"""Kernels for computations around attention; if they cannot serve, PyTorch does."""

NAMES: dict[str, object] = {**KERNELS, **BESIDE, **AROUND}
"""All kernels that can be switched off."""

CPU_ALONE = frozenset({"single", "cell", "decoder"})
"""Kernels for the CPU only; all others serve a GPU too.

Switching `single` off also switches off deferred_gradients.py, on a GPU too: the steps of windows
(window/steps.py).
"""

OPERATORS = frozenset({"window", "additive", "scan", "statistics"})
"""Kernels that enter a graph as operators of heed's own."""

_off: frozenset[str] = frozenset()
_times_off: Counter[str] = Counter()  # contexts may overlap, in threads too
_switch = Lock()


def choose(call: Call) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """The first kernel that can serve the call (None: the reference), and why others cannot."""
    refusals: list[tuple[str, str]] = []
    for name, kernel in KERNELS.items():
        reason = switched_off(name) or kernel.refusal(call)
        if reason is None:
            return name, tuple(refusals)
        refusals.append((name, reason))
    return None, tuple(refusals)


def is_on(name: str) -> bool:
    """Whether a kernel may be chosen."""
    return switched_off(name) is None


def switched_off(name: str) -> str | None:
    """The reason why a kernel may not be chosen; None where it may."""
    if name in _off:
        return "it is switched off"
    return "ONNX has none of heed's operators" if name in OPERATORS and for_onnx() else None


@contextmanager
def off(*names: str) -> Iterator[None]:
    """Switch kernels off while the context lasts, in the whole process: `with off("sdpa"):`"""
    for name in names:
        if name not in NAMES:
            raise UnknownName("kernel", name, NAMES)
    _turn(names, 1)
    try:
        yield
    finally:
        _turn(names, -1)


def _turn(names: tuple[str, ...], by: int) -> None:
    global _off
    with _switch:
        for name in names:
            _times_off[name] += by
        _off = frozenset(name for name, times in _times_off.items() if times)
