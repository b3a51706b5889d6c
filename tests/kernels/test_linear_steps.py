"""A linear map in a training loop: the same numbers and gradients as by autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

import heed
from heed.attention.read import Join
from heed.errors import Refused, ShapeError
from heed.kernels import native
from heed.kernels.linear import steps
from tests.kernels.levels import LEVELS

T = 4
SIZES = [(1, 1, (1,)), (3, 7, (5,)), (40, 33, (20, 16)), (70, 16, (17, 64)), (0, 5, (3, 2))]
Step = Callable[..., Tensor]


@pytest.fixture(params=[None, *LEVELS])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, and with each instruction set that this processor supports."""
    if request.param is None:
        monkeypatch.setattr(steps.library, "reads", lambda *_: False)
        return
    for name in ("ahead", "back"):
        layout = getattr(steps.native, f"_{name}").layout
        function = native.Function(f"heed_linear_{name}", layout, at=request.param)
        monkeypatch.setattr(steps.native, f"_{name}", function)


def drawn(B: int, N: int, widths: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """A weight, and the inputs of T steps, whose rows have gaps between them."""
    parts = [torch.randn(T, B, K + 3)[..., :K] for K in widths]
    return torch.randn(N, sum(widths)) * sum(widths) ** -0.5, parts


def plain(bends: bool, weight: Tensor) -> Step:
    def go(*parts: Tensor) -> Tensor:
        y = linear(torch.cat(parts, -1), weight)
        return y.tanh() if bends else y

    return go


def in_steps(bends: bool, weight: Tensor) -> Step:
    go = steps.mapping(weight, bends=bends)
    assert go is not None
    return go


def both_ways(made: Any, bends: bool, weight: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Each step takes the result of the last one, if it fits; all results and gradients."""
    weight, *parts = (x.detach().clone().requires_grad_() for x in (weight, *parts))
    go, found = made(bends, weight), []
    for t in range(T):
        found.append((t + 1) * go(*(x[t] for x in parts)))
    total = torch.stack(found)
    return [total.detach(), *torch.autograd.grad(total.sin().sum(), (weight, *parts))]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("bends", [False, True])
@pytest.mark.parametrize(("B", "N", "widths"), SIZES)
def test_a_loop_equals_pytorchs(B: int, N: int, widths: tuple[int, ...], bends: bool) -> None:
    weight, parts = drawn(B, N, widths)
    exact = both_ways(plain, bends, weight.double(), [x.double() for x in parts])
    for ours, theirs in zip(both_ways(in_steps, bends, weight, parts), exact, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)


def test_tensors_with_lazy_negation_are_accepted() -> None:
    weight, parts = drawn(3, 4, (5, 6))
    x, z = (part[0] for part in parts)
    weight.requires_grad_()
    negated = torch._neg_view(-x)
    y = in_steps(False, weight)(negated, z)
    torch.testing.assert_close(y, plain(False, weight)(x, z))
    (got,) = torch.autograd.grad(y, weight, torch._neg_view(-torch.ones_like(y)), retain_graph=True)
    (want,) = torch.autograd.grad(y, weight, torch.ones_like(y))
    torch.testing.assert_close(got, want)


def test_a_backward_pass_that_ended_early_leaves_nothing_behind() -> None:
    weight, (x, z) = drawn(3, 4, (5, 6))
    weight, x = weight.requires_grad_(), x.clone().requires_grad_()
    go = in_steps(True, weight)
    total = torch.stack([go(x[t], z[t]) for t in range(T)]).sin().sum()
    torch.autograd.grad(total, x, retain_graph=True)  # the weight's gradient was not asked for
    want = torch.autograd.grad(
        torch.stack([plain(True, weight)(x[t], z[t]) for t in range(T)]).sin().sum(), weight
    )
    for _ in range(2):
        got = torch.autograd.grad(total, weight, retain_graph=True)
        torch.testing.assert_close(got, want)


def test_the_weight_may_have_other_uses() -> None:
    weight, (x,) = drawn(3, 4, (5,))
    weight.requires_grad_()
    total = in_steps(False, weight)(x[0]).sum() + weight.square().sum()
    (got,) = torch.autograd.grad(total, weight)
    torch.testing.assert_close(got, x[0].sum(0).expand(4, 5) + 2 * weight.detach())


def test_pytorch_serves_if_operations_must_be_visible() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    assert steps.mapping(weight) is not None
    assert steps.mapping(weight.detach()) is None
    with torch.no_grad():
        assert steps.mapping(weight) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert steps.mapping(weight) is None
    with heed.kernels.off("single"):
        assert steps.mapping(weight) is None


def test_second_derivatives_are_refused_and_never_dropped() -> None:
    weight, (x,) = drawn(3, 4, (5,))
    weight.requires_grad_()
    total = in_steps(True, weight)(x[0]).sin().sum()
    with pytest.raises(Refused, match=r"heed\.kernels\.off\(\"single\""):
        torch.autograd.grad(total, weight, create_graph=True)


def test_a_join_with_a_hook_is_called() -> None:
    join = Join(context=5, query=6, width=4)
    assert join.in_steps() is not None
    seen: list[Tensor] = []
    handle = join.linear.register_forward_hook(lambda *given: seen.append(given[2]))
    assert join.in_steps() is None
    handle.remove()
    assert join.in_steps() is not None
    join.activation = torch.nn.ReLU()
    assert join.in_steps() is None


def test_a_join_in_steps_equals_the_join() -> None:
    join = Join(context=5, query=6, width=4)
    context, query = torch.randn(3, 5), torch.randn(3, 6)
    go = join.in_steps()
    assert go is not None
    torch.testing.assert_close(go(context, query), join(context, query))


def test_other_dtypes_than_the_weights_are_refused() -> None:
    weight = torch.nn.Parameter(torch.randn(2, 3))
    go = in_steps(True, weight)
    with pytest.raises(Refused if native.missing() is None else RuntimeError):
        go(torch.randn(4, 3).double())


@pytest.mark.parametrize("shapes", [((4, 3), (2, 4)), ((2, 1), (2, 2)), ((2, 1, 3), (2, 1, 4))])
def test_rows_that_do_not_fit_are_refused_and_never_read(shapes: Any) -> None:
    go = in_steps(True, torch.randn(5, 7, requires_grad=True))
    with pytest.raises(ShapeError, match="7 columns"):
        go(*(torch.ones(shape) for shape in shapes))


def test_a_weight_updated_within_the_loop_is_used_as_it_is() -> None:
    weight, x = torch.nn.Parameter(torch.randn(5, 7)), torch.randn(2, 7)
    go = in_steps(True, weight)
    go(x).sum().backward()
    with torch.no_grad():
        weight.mul_(2)
        torch.testing.assert_close(go(x), (x @ weight.t()).tanh())
    weight.grad = None
    go(x).sum().backward()
    (want,) = torch.autograd.grad((x @ weight.t()).tanh().sum(), weight)
    torch.testing.assert_close(weight.grad, want)


def test_steps_may_split_the_columns_differently() -> None:
    weight, x = torch.randn(5, 7, requires_grad=True), torch.randn(2, 7)
    go, found = in_steps(True, weight), []
    for widths in ((3, 4), (5, 2), (7,)):
        found.append(go(*x.split(widths, 1)))
        torch.testing.assert_close(found[-1], (x @ weight.t()).tanh())
    (got,) = torch.autograd.grad(sum(y.sum() for y in found), weight)
    (want,) = torch.autograd.grad(3 * (x @ weight.t()).tanh().sum(), weight)
    torch.testing.assert_close(got, want)


def test_a_join_that_was_replaced_is_called() -> None:
    class Other(Join):
        def forward(self, context: Tensor, query: Tensor) -> Tensor:
            return context

    assert Other(context=5, query=6, width=4).in_steps() is None
    join = Join(context=5, query=6, width=4)
    join.forward = lambda context, query: context  # type: ignore[method-assign]
    assert join.in_steps() is None
