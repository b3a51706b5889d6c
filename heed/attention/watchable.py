"""Modules that can be watched, and the hooks that watch them."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from heed.attention.backward_hooks import UserHook, register

KEPT = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs"),
)
"""Where a module keeps its hooks by number."""


class Hook(partial[Any]):
    """A hook on a module that belongs to a watch or a walk."""


class Watchable(nn.Module):
    """A module that can be watched. Copies and pickles leave out the hooks of watches and walks.

    It returns a record, so full backward hooks on it are given the gradients of the context, and of
    weights and energies as far as the call formed them.
    """

    def register_full_backward_hook(self, hook: UserHook, prepend: bool = False) -> RemovableHandle:
        """As of any module: hook(module, grad_input, grad_output), of positional arguments."""
        return register(self, prepend, [hook], [])

    def register_full_backward_pre_hook(
        self, hook: UserHook, prepend: bool = False
    ) -> RemovableHandle:
        """As of any module: hook(module, grad_output)."""
        return register(self, prepend, [], [hook])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        hooks = (*self._forward_pre_hooks.items(), *self._forward_hooks.items())
        ours = {number for number, hook in hooks if isinstance(hook, Hook)}
        for name in KEPT if ours else ():
            kept = {number: x for number, x in state[name].items() if number not in ours}
            state[name] = type(state[name])(kept)
        return state
