"""Which modules attend through transformers' interface is read from their code, on any version."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import heed
from heed.integrations.interface import attends, attends_alone, handed
from heed.integrations.torch import replace


def eager_attention_forward(module: nn.Module, q: Tensor, k: Tensor, **more: Any) -> Tensor:
    return softmax(q @ k.mT, -1)


def weighed(q: Tensor, k: Tensor) -> Tensor:
    """What some modules call for their weights."""
    return torch.einsum("btd,bsd->bts", q, k)


def is_flash_attention_requested(config: Any) -> bool:
    return False


class Handing(nn.Module):
    """Asks for the attention in a method beside its forward."""

    def __init__(self, sinks: Any = None) -> None:
        super().__init__()
        self.sinks, self.config = sinks, None
        self.part = nn.Module()
        self.part.scale = 2.0

    def forward(self, x: Tensor, indices: Any = None, **more: Any) -> Any:
        return self.attend(x, indices, **more)

    def attend(self, x: Tensor, indices: Any, **more: Any) -> Any:
        attention_interface: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            "eager", eager_attention_forward
        )
        if is_flash_attention_requested(self.config):
            return attention_interface(self, x, x, cu_seq_lens_q=indices)
        elif self.config is not None:
            return attention_interface(self, x, x, chosen=indices)
        return attention_interface(
            self, x, x, s_aux=self.sinks, scaling=self.part.scale, dropout=0.0, **more
        )


class OwnAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return weighed(x, x) @ x


class InheritedAttn(OwnAttention):
    pass


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x)


class Router(nn.Module):
    """A softmax, but no attention."""

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x @ x.mT, -1)


class AttentionNorm(nn.Module):
    """Named for what it stands beside."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm()


class AroundAttention(nn.Module):
    """Has an attention inside, and computes none itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def test_a_module_that_asks_for_its_attention_attends() -> None:
    assert attends(Handing())
    assert not attends_alone(Handing())


@pytest.mark.parametrize(
    "module", [OwnAttention(), InheritedAttn(), Fused(), nn.MultiheadAttention(4, 2)]
)
def test_a_module_that_computes_attention_attends_alone(module: nn.Module) -> None:
    assert attends_alone(module)
    assert not attends(module)


@pytest.mark.parametrize(
    "module",
    [
        Router(),
        AttentionNorm(),
        AroundAttention(OwnAttention()),
        nn.Softmax(-1),
        heed.Attention("scaled-dot", query=4),
        replace(nn.MultiheadAttention(4, 2)),
    ],
)
def test_other_modules_do_neither(module: nn.Module) -> None:
    assert not attends(module)
    assert not attends_alone(module)


def test_what_a_module_hands_to_its_attention() -> None:
    given = handed(Handing())
    assert given == {"s_aux": None, "scaling": 2.0, "dropout": 0.0, "chosen": True}
    sinks = torch.ones(3)
    assert handed(Handing(sinks))["s_aux"] is sinks
