"""The native library: plain C for the CPU, built at install and called through ctypes.

    attend = Function("heed_additive_forward", "12q2d")    # the C struct of its arguments
    attend(address(q), ..., 0.5)

A C function takes one pointer to a struct of 64-bit numbers and the number of threads, and returns
zero, or anything else where memory ran out. One packed struct is far cheaper to pass than thirty
arguments: a call costs two or three microseconds. Everything the pointers lead to must be kept
alive by the caller, who also sees to it that strides and types are what the C function expects.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path

import torch

from heed.errors import Refused
from heed.kernels.ability import no_triton, unchanging

LIBRARY = Path(__file__).with_name("libheed.so")
LEVELS = ("baseline", "avx2", "avx512")
"""The instruction sets every function is compiled for; only the first on other than x86-64."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_empty = ctypes.create_string_buffer(64)
_NOWHERE = ctypes.addressof(_empty)
_alone = False
"""Whether this process was forked: OpenMP's threads stayed with its parent; waiting would hang."""


@unchanging
def missing() -> str | None:
    """The reason why there is no native library; None where there is one."""
    found = _loaded()
    return found if isinstance(found, str) else None


def unbuilt(device: torch.device) -> str | None:
    """The reason why this device has no kernel, native or by Triton; None where it has one."""
    return missing() if device.type == "cpu" else no_triton(device)


def reads(*tensors: torch.Tensor) -> bool:
    """Whether there is a library, and these are plain float32 tensors on the CPU."""
    return missing() is None and all(
        type(x) in _PLAIN and x.dtype == torch.float32 and x.is_cpu for x in tensors
    )


def must_read(*tensors: torch.Tensor) -> None:
    """Refuse tensors that the library would misread."""
    if not reads(*tensors):
        kinds = ", ".join(f"{x.dtype} on {x.device}".removeprefix("torch.") for x in tensors)
        raise Refused(f"this loop was begun with float32 weights on cpu, and was given {kinds}")


def address(x: torch.Tensor | None) -> int:
    """The address of a tensor's first number; 0 for None alone, which C takes for "not given".

    PyTorch says 0 for an empty tensor too: that has an address here, of which nothing is read.
    """
    return 0 if x is None else x.data_ptr() or _NOWHERE


def level() -> str:
    """The instruction set whose functions are called here."""
    return LEVELS[_library().heed_level()]


def threads() -> int:
    """The number of threads that a call may use."""
    return 1 if _alone else torch.get_num_threads()


class Function:
    """A C function by its name and the layout of its arguments, as `struct` writes it."""

    def __init__(self, name: str, layout: str, at: str | None = None) -> None:
        self._name, self._at = name, at
        self.layout = layout
        self._pack = struct.Struct("@" + layout).pack

    def __call__(self, *values: float) -> None:
        if self._run(self._pack(*values), threads()):
            raise MemoryError(f"out of memory in {self._name}")

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        if name != "_run":  # looked up when it is called for the first time
            raise AttributeError(name)
        run = _library()[f"{self._name}_{self._at or level()}"]
        run.argtypes, run.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_int
        self._run = run
        return run


def _library() -> ctypes.CDLL:
    found = _loaded()
    if isinstance(found, str):
        raise OSError(found)
    return found


@cache
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if not LIBRARY.exists():
        return "the native library was not built: heed was installed without a C compiler"
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return f"the native library does not load: {error}"
    library.heed_threads.argtypes = (ctypes.c_void_p,)
    library.heed_threads(_parallel())
    return library


def _parallel() -> int | None:
    """The address of GOMP_parallel in torch's OpenMP runtime; None: work stays on one thread."""
    core = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        runtime = ctypes.CDLL(str(core), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _forked() -> None:
    global _alone
    _alone = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
