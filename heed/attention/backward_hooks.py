"""Full backward hooks on modules that return a record; PyTorch calls them for tensors alone.

`register_full_backward_hook` here sets two forward hooks, which pass the tensors of a call through
PyTorch's own machinery: the positional arguments before it, and the context, weights and energies
that were formed after it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import nn
from torch.utils.hooks import BackwardHook, RemovableHandle

from heed.records import Attended

FORMED = ("context", "weight", "energy")
"""What of a record the gradients of the output are of, in this order, as far as it was formed."""

UserHook = Callable[..., Any]


class Around:
    """The forward hooks around each call of a module; calls may lie inside each other."""

    def __init__(self, hooks: list[UserHook], pre_hooks: list[UserHook]) -> None:
        self.hooks, self.pre_hooks = hooks, pre_hooks
        self.begun: dict[int, list[BackwardHook]] = {}  # of calls that have not ended, by thread

    def before(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments, with their gradients heard."""
        hook = BackwardHook(module, self.hooks, self.pre_hooks)
        self.begun.setdefault(get_ident(), []).append(hook)
        heard: tuple[Any, ...] = hook.setup_input_hook(given)
        return heard

    def after(self, module: nn.Module, given: tuple[Any, ...], seen: Any) -> Any:
        """The output, with its gradients heard; a call that failed has none."""
        hook = self.begun[get_ident()].pop()
        if not isinstance(seen, Attended):
            return None if seen is None else hook.setup_output_hook(seen)
        formed = {name: x for name in FORMED if (x := getattr(seen.formed, name)) is not None}
        tensors = hook.setup_output_hook(tuple(formed.values()))
        return seen.replace(**dict(zip(formed, tensors, strict=True)))


class Handle(RemovableHandle):
    """Removes both forward hooks."""

    def __init__(self, *parts: RemovableHandle) -> None:
        self.parts = parts

    def remove(self) -> None:
        for part in self.parts:
            part.remove()


def register(
    module: nn.Module, prepend: bool, hooks: list[UserHook], pre_hooks: list[UserHook]
) -> RemovableHandle:
    """Set backward hooks on a module around its calls."""
    around = Around(hooks, pre_hooks)
    return Handle(
        module.register_forward_pre_hook(around.before, prepend=prepend),
        module.register_forward_hook(around.after, prepend=prepend, always_call=True),
    )
