"""Triton's interpreter, sped up: it takes over the language once for each module rather than at
every call of every function, and combines whole rows at once rather than number by number."""

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> None:
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch, scopes = interpreter._patch_lang, dict[str, Any]()

    def patch_once(function: Any) -> Any:
        module = function.__module__
        if module not in scopes:
            scopes[module] = patch(function)
        return scopes[module]

    interpreter._patch_lang = patch_once
    interpreter._LangPatchScope.restore = lambda scope: None
    interpreter.ReduceOps.generic_reduce = reduced
    interpreter.ScanOps.generic_scan = scanned


def combined(self: Any, types: list[Any], one: list[Any], other: list[Any]) -> list[Any]:
    """What a kernel's own function makes of two sets of arrays."""
    given = [
        self.to_tensor(x, dtype)
        for half in (one, other)
        for x, dtype in zip(half, types, strict=True)
    ]
    made = self.combine_fn.fn(*given)
    return [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]


def reduced(self: Any, inputs: Any) -> list[Any]:
    """Neighbours are combined, then pairs of them: an axis is as long as a power of two."""
    assert self.axis is not None
    types, parts = zip(*((x.dtype, x.handle.data) for x in inputs), strict=True)
    parts = [np.moveaxis(x, self.axis, 0) for x in parts]
    while len(parts[0]) > 1:
        parts = combined(self, types, [x[::2] for x in parts], [x[1::2] for x in parts])
    parts = [np.moveaxis(x, 0, self.axis) if self.keep_dims else x[0] for x in parts]
    return [self.to_tensor(x, dtype) for x, dtype in zip(parts, types, strict=True)]


def scanned(self: Any, inputs: Any) -> list[Any]:
    """Each number is combined with what lies 1, 2, 4 and so on before it."""
    types, parts = zip(*((x.dtype, x.handle.data) for x in inputs), strict=True)
    parts, step = [np.moveaxis(x, self.axis, 0) for x in parts], 1
    while step < len(parts[0]):
        both = combined(self, types, [np.roll(x, step, 0) for x in parts], parts)
        parts = [np.concatenate([x[:step], y[step:]]) for x, y in zip(parts, both, strict=True)]
        step *= 2
    parts = [np.moveaxis(x, 0, self.axis) for x in parts]
    return [self.to_tensor(x, dtype) for x, dtype in zip(parts, types, strict=True)]
