"""Cells in a training loop: the same numbers and gradients as the cells they are made of."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.errors import Refused
from heed.models import unrolled
from heed.models.cells import CELLS, Layer
from heed.models.recurrent_encoder import RecurrentEncoder

B, T, X, F, H = 3, 4, 5, 2, 6
IN_PIECES = [name for name, cell in CELLS.items() if cell.pieces is not None]


def made(cell: str, fed: int) -> tuple[Layer, list[Tensor], dict[str, Tensor]]:
    """A layer, the input of every step, and all tensors that may have a gradient."""
    torch.manual_seed(0)
    layer = Layer(cell, X + fed, H).double()
    x = torch.randn(T, B, X).double().requires_grad_()
    more = torch.randn(T, B, max(fed, 1)).double().requires_grad_()
    first = [torch.randn(B, H).double().requires_grad_() for _ in range(CELLS[cell].slots)]
    named = {"x": x, "fed": more} | {f"first {i}": h for i, h in enumerate(first)}
    return layer, first, named | dict(layer.named_parameters())


def looped(layer: Layer, first: list[Tensor], named: dict[str, Tensor], fed: int) -> Tensor:
    """The states of a loop, each step with another weight.    T B H"""
    loop, hidden, states = layer.loop(fed), tuple(first), []
    for x, more in zip(layer.project(named["x"]), named["fed"], strict=True):
        hidden = layer.step(x, hidden, loop, more if fed else None)
        states += [torch.cat(hidden, -1)]
    return torch.stack([(t + 1) * state.sin() for t, state in enumerate(states)])


def grads(total: Tensor, named: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor | None]:
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True, **kwargs)
    return dict(zip(named, found, strict=True))


def same(got: dict[str, Tensor | None], want: dict[str, Tensor | None], times: float = 1) -> None:
    for name, grad in want.items():
        if grad is None:
            assert got[name] is None, name
        else:
            torch.testing.assert_close(got[name], times * grad, msg=lambda m, n=name: f"{n}: {m}")


def plainly(monkeypatch: pytest.MonkeyPatch, *given: Any) -> tuple[Tensor, dict[str, Any]]:
    """The loop by autograd, operation by operation."""
    with monkeypatch.context() as patch:
        patch.setattr(unrolled, "may_defer_on_cpu", lambda *_: False)
        states = looped(*given)
    return states, grads(states.sum(), given[2])


@pytest.mark.parametrize("fed", [0, F])
@pytest.mark.parametrize("cell", IN_PIECES)
def test_a_loop_has_the_numbers_and_gradients_of_the_plain_one(
    cell: str, fed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (*made(cell, fed), fed)
    want, want_grads = plainly(monkeypatch, *given)
    got = looped(*given)
    torch.testing.assert_close(got, want)
    same(grads(got.sum(), given[2]), want_grads)


@pytest.mark.parametrize("cell", IN_PIECES)
def test_a_backward_pass_that_ended_early_leaves_nothing_behind(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (*made(cell, F), F)
    _, want = plainly(monkeypatch, *given)
    total = looped(*given).sum()
    torch.autograd.grad(total, given[2]["x"], retain_graph=True)  # weights not asked for
    same(grads(total, given[2], retain_graph=True), want)
    same(grads(total, given[2]), want)  # a whole pass leaves nothing behind either


@pytest.mark.parametrize("cell", IN_PIECES)
def test_steps_may_be_unused_and_loops_may_share_weights(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, first, named = made(cell, 0)

    def total() -> Tensor:
        loop, found = layer.loop(), []
        for rows in (B, 1):  # of different sizes, and each last step is unused
            hidden = tuple(h[:rows] for h in first)
            for x in layer.project(named["x"]):
                found.append(hidden[0].sin().sum())
                hidden = layer.step(x[:rows], hidden, loop)
        return torch.stack(found).sum()

    got = grads(total(), named)
    monkeypatch.setattr(unrolled, "may_defer_on_cpu", lambda *_: False)
    same(got, grads(total(), named))


@pytest.mark.parametrize("cell", IN_PIECES)
def test_frozen_weights_get_no_gradient(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (*made(cell, F), F)
    _, want = plainly(monkeypatch, *given)
    layer, _, named = given[:3]
    layer.rnn.bias_hh_l0.requires_grad_(False)
    del named["rnn.bias_hh_l0"], want["rnn.bias_hh_l0"]
    same(grads(looped(*given).sum(), named), want)
    assert layer.rnn.bias_hh_l0.grad is None


def test_a_step_is_one_node_of_the_graph() -> None:
    layer, first, named = made("gru", F)
    found, nodes = set(), [looped(layer, first, named, F).grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found:
            found.add(node)
            nodes += [following for following, _ in node.next_functions]
    assert sum(node.name() == "_StepBackward" for node in found) == T
    assert sum(node.name() == "_SharedBackward" for node in found) == 1


def test_steps_run_operation_by_operation_if_these_must_be_visible() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    assert unrolled.may_defer_on_cpu(weight)
    assert not unrolled.may_defer_on_cpu(weight.detach())
    with torch.no_grad():
        assert not unrolled.may_defer_on_cpu(weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not unrolled.may_defer_on_cpu(weight)
    seen = []
    torch.func.vmap(lambda x: seen.append(unrolled.may_defer_on_cpu(weight)) or x)(torch.zeros(2))
    assert seen == [False]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("cell", IN_PIECES)
def test_whole_rows_equal_pytorchs_with_their_gradients(
    cell: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, first, named = made(cell, 0)
    x = torch.randn(B, T, X).double().requires_grad_()
    named = {"x": x, **{n: w for n, w in named.items() if n not in ("x", "fed")}}
    hidden = tuple(first) if given else None
    got = layer(x, hidden)
    with monkeypatch.context() as patch:
        patch.setattr(unrolled, "may_defer_on_cpu", lambda *_: False)
        want = layer(x, hidden)
    torch.testing.assert_close(got, want)
    by = torch.randn_like(want)
    same(grads(got, named, grad_outputs=by), grads(want, named, grad_outputs=by))


@pytest.mark.parametrize("cell", IN_PIECES)
def test_two_directions_together_equal_each_alone(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    encoder = RecurrentEncoder(
        torch.nn.Linear(2, X), inputs=X, hidden=2 * H, layers=2, cell=cell
    ).double()
    x, lengths = torch.randn(B, T, 2).double(), torch.tensor([T, 1, 2])
    got = encoder(x, lengths).states
    with monkeypatch.context() as patch:
        patch.setattr(unrolled, "may_defer_on_cpu", lambda *_: False)
        want = encoder(x, lengths).states
    torch.testing.assert_close(got, want)
    by, named = torch.randn_like(want), dict(encoder.named_parameters())
    same(grads(got, named, grad_outputs=by), grads(want, named, grad_outputs=by))


def in_rows(layer: Layer, first: list[Tensor], named: dict[str, Tensor], fed: int) -> Tensor:
    """The states of whole rows."""
    states: Tensor = layer(named["x"].transpose(0, 1), tuple(first))
    return states.sin()


@pytest.mark.parametrize("go", [looped, in_rows])
@pytest.mark.parametrize("cell", IN_PIECES)
def test_a_penalty_on_gradients_is_refused_and_never_dropped(cell: str, go: Any) -> None:
    layer, first, named = made(cell, 0)
    weight = layer.rnn.weight_hh_l0
    with pytest.raises(Refused, match=r"heed\.kernels\.off\(\"single\""):
        torch.autograd.grad(go(layer, first, named, 0).sum(), weight, create_graph=True)

    def steepness() -> Tensor:
        (grad,) = torch.autograd.grad(go(layer, first, named, 0).sum(), weight, create_graph=True)
        return grad.square().sum()

    with heed.kernels.off("single"):
        (got,) = torch.autograd.grad(steepness(), weight)
        by, ends = torch.randn_like(weight), []
        for sign in (1, -1):
            with torch.no_grad():
                weight.add_(by, alpha=sign * 1e-5)
            ends.append(steepness().item())
            with torch.no_grad():
                weight.sub_(by, alpha=sign * 1e-5)
    assert (got * by).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("go", [looped, in_rows])
@pytest.mark.parametrize("cell", IN_PIECES)
def test_a_backward_pass_under_autocast_changes_nothing(cell: str, go: Any) -> None:
    layer, first, named = made(cell, 0)
    layer, first = layer.float(), [h.float() for h in first]
    named = {"x": named["x"].detach().float(), "fed": named["fed"].float()}
    total = go(layer, first, named, 0).sum()
    weights = {"weight": layer.rnn.weight_hh_l0, "bias": layer.rnn.bias_hh_l0}
    want = grads(total, weights, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = grads(total, weights)
    same(got, want)


@pytest.mark.parametrize("cell", IN_PIECES)
def test_an_empty_batch_works_forward_and_backward(cell: str) -> None:
    encoder = RecurrentEncoder(torch.nn.Linear(2, X), inputs=X, hidden=2 * H, cell=cell)
    states = encoder(torch.randn(0, T, 2)).states
    assert states.shape == (0, T, 2 * H)
    states.sum().backward()
    assert all((weight.grad == 0).all() for weight in encoder.parameters())
