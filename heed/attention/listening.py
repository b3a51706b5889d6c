"""Whether modules may be passed by: a short road computes what they would, and calls none."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as everywhere

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps what is called around it."""


def plain(modules: Iterable[nn.Module]) -> bool:
    """Whether nobody would miss their calls, and each does what its class says."""
    modules = list(modules)
    return not any("forward" in vars(each) for each in modules) and not any(hooks(modules))


def hooks(modules: Iterable[nn.Module]) -> list[Mapping[int, Any]]:
    """Where somebody may wait for the calls of these modules, now and later: any(...) says so."""
    own = [getattr(each, name) for each in modules for name in HOOKS]
    return own + [getattr(everywhere, f"_global{name}") for name in HOOKS]
