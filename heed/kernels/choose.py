"""Which kernel serves a call, and in words why another does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from heed.errors import UnknownName
from heed.kernels import banded, sdpa
from heed.records import Call

KERNELS: dict[str, ModuleType] = {"banded": banded, "sdpa": sdpa}
"""Every kernel, fastest first: `refusal(call)` gives None or a reason, `run(call)` the context."""

_off: frozenset[str] = frozenset()


def choose(call: Call) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """The first kernel that can serve the call (None: the reference), and why others cannot."""
    refusals: list[tuple[str, str]] = []
    for name, kernel in KERNELS.items():
        reason = "it is switched off" if name in _off else kernel.refusal(call)
        if reason is None:
            return name, tuple(refusals)
        refusals.append((name, reason))
    return None, tuple(refusals)


def is_on(name: str) -> bool:
    """Whether a kernel may be chosen."""
    return name not in _off


@contextmanager
def off(*names: str) -> Iterator[None]:
    """Switch kernels off while the context lasts, in the whole process: `with off("sdpa"):`"""
    global _off
    for name in names:
        if name not in KERNELS:
            raise UnknownName("kernel", name, KERNELS)
    before = _off
    _off = before | frozenset(names)
    try:
        yield
    finally:
        _off = before
