"""Whether modules may be bypassed: a short road computes what they would without calling them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as everywhere

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps its hooks."""


def plain(modules: Iterable[nn.Module]) -> bool:
    """Whether there are no hooks on them, and no instance has a `forward` of its own."""
    modules = list(modules)
    return not any("forward" in vars(each) for each in modules) and not any(hooks(modules))


def hooks(modules: Iterable[nn.Module]) -> list[Mapping[int, Any]]:
    """The live hook tables of these modules and the global ones; any(...) says if a hook is set."""
    own = [getattr(each, name) for each in modules for name in HOOKS]
    return own + [getattr(everywhere, f"_global{name}") for name in HOOKS]
