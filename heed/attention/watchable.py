"""Modules that return a record: their hooks.

A watch or a walk sets hooks that copies and pickles leave out. PyTorch calls full backward hooks
for tensors alone; here they are two forward hooks, which pass the tensors of a call through its
machinery: the positional arguments before it, and what was formed of the record after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from torch import nn
from torch.utils.hooks import BackwardHook, RemovableHandle

from heed.records import Attended

KEPT = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs"),
)
"""Where a module keeps its hooks by number."""


FORMED = ("context", "weight", "energy")
"""Fields of a record whose gradients a hook is given, in this order, as far as they were formed."""

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


def _around(
    module: nn.Module, prepend: bool, hooks: list[UserHook], pre_hooks: list[UserHook]
) -> RemovableHandle:
    """Set backward hooks on a module around its calls."""
    around = Around(hooks, pre_hooks)
    return Handle(
        module.register_forward_pre_hook(around.before, prepend=prepend),
        module.register_forward_hook(around.after, prepend=prepend, always_call=True),
    )


class Hook(partial[Any]):
    """A hook on a module that belongs to a watch or a walk."""


class Watchable(nn.Module):
    """A module that can be watched. Copies and pickles leave out the hooks of watches and walks.

    It returns a record, so full backward hooks on it are given the gradients of the context, and of
    weights and energies as far as the call formed them.
    """

    def register_full_backward_hook(self, hook: UserHook, prepend: bool = False) -> RemovableHandle:
        """As of any module: hook(module, grad_input, grad_output), of positional arguments."""
        return _around(self, prepend, [hook], [])

    def register_full_backward_pre_hook(
        self, hook: UserHook, prepend: bool = False
    ) -> RemovableHandle:
        """As of any module: hook(module, grad_output)."""
        return _around(self, prepend, [], [hook])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        hooks = (*self._forward_pre_hooks.items(), *self._forward_hooks.items())
        ours = {number for number, hook in hooks if isinstance(hook, Hook)}
        for name in KEPT if ours else ():
            kept = {number: x for number, x in state[name].items() if number not in ours}
            state[name] = type(state[name])(kept)
        return state
