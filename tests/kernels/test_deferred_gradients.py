"""Gradients of what the steps of a loop share: sums of products of rows, whatever the steps are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heed
from heed.kernels.deferred_gradients import (
    Deferred,
    first_derivatives_only,
    may_defer,
    may_defer_on_cpu,
    share,
)

B, T, N, K = 3, 4, 5, 2


class Product(torch.autograd.Function):
    """A step y = x Wᵀ + b of each row of a batch, which defers the gradients of W and b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.deferred = Deferred.of(weight, bias)
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias[:, None]

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.deferred.add((by, x), (by, None))
        return by @ weight, None, None


class InPlace(torch.autograd.Function):
    """The same step, which adds gradients to padded sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.deferred, ctx.room = Deferred.of(weight, bias), ((B, N, K + 3), (B, N + 1))
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias[:, None]

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (of_weight, of_bias), more = ctx.deferred.added(
            lambda: tuple(x.new_full(shape, torch.nan) for shape in ctx.room)
        )
        own = (by.mT @ x, by.sum(1))
        for total, each in zip((of_weight[..., :K], of_bias[..., :N]), own, strict=True):
            total.copy_(total + each if more else each)
        return by @ weight, None, None


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all steps, a weight and a bias for each row of the batch."""
    shapes = ((T, B, 1, K), (B, N, K), (B, N))
    x, weight, bias = (torch.randn(shape).double().requires_grad_() for shape in shapes)
    return x, weight, bias


def looped(steps: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The steps by turns."""
    return torch.stack([steps[t % len(steps)].apply(x[t], weight, bias) for t in range(T)]).sin()


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x @ weight.mT + bias[:, None]).sin()


@pytest.mark.parametrize("steps", [(Product,), (InPlace,), (Product, InPlace)], ids=str)
def test_sums_equal_autograds(steps: tuple[Any, ...]) -> None:
    given = drawn()
    shared = share(*given[1:])
    total, want = looped(steps, given[0], *shared), plain(*given)
    torch.testing.assert_close(total, want)
    by = torch.randn_like(want)
    wanted = torch.autograd.grad(want, given, by)
    torch.autograd.grad(total[-1], given[:1], by[-1], retain_graph=True)  # a pass that ends early
    for _ in range(2):
        found = torch.autograd.grad(total, given, by, retain_graph=True)
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two)
    left = Deferred.of(*shared)
    assert left is not None
    assert not left.left
    assert left.sums is None


@pytest.mark.parametrize("steps", [(Product,), (InPlace,)], ids=str)
def test_what_needs_no_gradient_has_no_sum(
    steps: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = drawn()
    take, taken = Deferred.take, []
    monkeypatch.setattr(Deferred, "take", lambda *given: taken.append(take(*given)) or taken[0])
    total = looped(steps, x, *share(weight.detach(), bias)).sum()
    (want,) = torch.autograd.grad(plain(x, weight, bias).sum(), bias)
    torch.testing.assert_close(torch.autograd.grad(total, bias)[0], want)
    assert taken[0][0] is None


def test_other_uses_add_their_gradients() -> None:
    x, weight, bias = drawn()
    shared = share(weight, bias)
    total = looped((Product,), x, *shared).sum() + shared[0].pow(2).sum()
    want = torch.autograd.grad(plain(x, weight, bias).sum() + weight.pow(2).sum(), (weight, bias))
    for one, two in zip(torch.autograd.grad(total, (weight, bias)), want, strict=True):
        torch.testing.assert_close(one, two)


def test_only_tensors_of_one_loop_have_its_sums() -> None:
    _, weight, bias = drawn()
    one, other = share(weight, bias), share(weight, bias)
    assert Deferred.of(*one) is not None
    assert Deferred.of(one[0], other[1]) is None
    assert Deferred.of(weight, bias) is None
    assert Deferred.of(weight * 2) is None


@pytest.mark.parametrize("may", [may_defer, may_defer_on_cpu])
def test_nothing_is_deferred_where_operations_must_be_visible(may: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    assert may(weight)
    assert may(weight.detach(), weight) == may(weight)
    assert not may(weight.detach())
    assert not may(weight.to("meta"))
    on_gpu: Any = SimpleNamespace(is_cpu=False, device=torch.device("cuda"), requires_grad=True)
    assert may(on_gpu) == (may is may_defer)
    with torch.no_grad():
        assert not may(weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert may(weight) == (may is may_defer)
    with heed.kernels.off("single"):
        assert not may(weight)
    with FlopCounterMode(display=False):
        assert not may(weight)
    seen = []
    torch.func.vmap(lambda x: seen.append(may(weight)) or x)(torch.zeros(2))
    assert seen == [False]
