"""When modules may be bypassed: not while a hook waits for their calls."""

from typing import Any

import pytest
from torch import nn

from heed.attention.hooks import hooks, plain

EVERYWHERE = nn.modules.module
OWN = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
)
GLOBAL = [f"register_module_{name.removeprefix('register_')}" for name in OWN]


def nothing(*_: Any) -> None:
    """A hook that changes nothing."""


@pytest.mark.parametrize("name", OWN)
def test_hooks_of_every_kind_are_called(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    places = hooks(net.modules())
    assert plain(net.modules())
    handle = getattr(net[1], name)(nothing)
    assert not plain(net.modules())
    assert any(places)
    handle.remove()
    assert plain(net.modules())
    assert not any(places)


@pytest.mark.parametrize("name", GLOBAL)
def test_a_global_hook_is_called_for_each_module(name: str) -> None:
    net = nn.Linear(2, 2)
    places = hooks([net])
    handle = getattr(EVERYWHERE, name)(nothing)
    try:
        assert not plain([net])
        assert any(places)
    finally:
        handle.remove()
    assert plain([net])


def test_a_subclass_with_another_forward_is_not_plain() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    net[0].forward = lambda x: 2 * x
    assert not plain(net.modules())
    assert plain([net[1]])
