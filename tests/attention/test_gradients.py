"""Gradients: each mechanism has the one it claims."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import heed
from heed.attention.catalogue import CATALOGUE
from tests.attention.cases import ALONE, CASES, Case, close, every, main

LENGTHS = heed.lengths([3, 2])


def small(case: Case) -> tuple[Any, tuple[Tensor, ...]]:
    """A mechanism, and all tensors its result depends on; one of two rows is padded."""
    attend = case.build()
    return attend, (*case.inputs(B=2, T=min(case.T, 2), S=3, grad=True), *attend.parameters())


def ask(case: Case, attend: Any, q: Tensor, k: Tensor, v: Tensor) -> heed.Attended:
    return attend(q, attend.remember(k, v, LENGTHS), case.first, need="weight")


@every(CASES, gradient="exact")
def test_the_gradient_is_the_derivative(case: Case) -> None:
    attend, inputs = small(case)

    def outputs(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        seen = ask(case, attend, q, k, v)
        found = (seen.formed.context, seen.weight, seen.penalty)
        return tuple(x for x in found if x is not None and x.requires_grad)

    # Entry by entry for the names themselves, along random directions for combinations of them.
    assert gradcheck(outputs, inputs, fast_mode=case.heads > 0 or len(case.words) > 1)


@every([c for c in CASES if "blend" in c.parts.values()], gradient="exact")
def test_the_gradient_of_a_call_without_weights_is_the_same(case: Case) -> None:
    attend, inputs = small(case)
    q, k, v = inputs[:3]
    seen = attend(q, attend.remember(k, v, LENGTHS), case.first)
    slope = torch.randn_like(seen.context)
    fast = torch.autograd.grad(seen.context, inputs, slope, materialize_grads=True)
    slow = torch.autograd.grad(
        ask(case, attend, q, k, v).context, inputs, slope, materialize_grads=True
    )
    for x, y in zip(fast, slow, strict=True):
        close(x, y)


@every(ALONE, gradient="exact")
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(grad=True)
    question = None if "static" in case.words else q
    out = main(attend(question, attend.remember(k, v), case.first))
    (out * torch.randn_like(out)).sum().backward()
    untaught = [n for n, p in attend.named_parameters() if p.grad is None or not p.grad.any()]
    assert untaught == []


@every(ALONE, gradient="straight-through")
def test_a_straight_through_gradient_is_that_of_the_soft_twin(case: Case) -> None:
    hard = {word for word in case.words if not CATALOGUE[word].claims.is_differentiable}
    twin = Case("/".join("softmax" if word in hard else word for word in case.name.split("/")))
    attend, inputs = small(case)
    soft, _ = small(twin)
    soft.load_state_dict(attend.state_dict())
    q, k, v, *_ = inputs
    weight, soft_weight = (ask(case, x, q, k, v).weight for x in (attend, soft))
    assert set(weight.unique().tolist()) == {0.0, 1.0}
    assert ((soft_weight > 0) & (soft_weight < 1)).any()
    slope = torch.randn_like(weight)
    mine, its = (
        torch.autograd.grad(x, [q, k, *m.parameters()], slope, materialize_grads=True)
        for x, m in ((weight, attend), (soft_weight, soft))
    )
    assert mine[0].any()
    for x, y in zip(mine, its, strict=True):
        close(x, y)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@every(CASES, gradient="score-function")
def test_the_gradient_of_a_draw_is_that_of_its_log_probability(case: Case, train: bool) -> None:
    attend, inputs = small(case)
    q, k, v, *_ = inputs
    seen = ask(case, attend.train(train), q, k, v)
    assert seen.log_prob is not None
    assert seen.entropy is not None
    if "local-p" not in case.words:  # whose Gaussian has a gradient of its own
        assert not seen.weight.requires_grad
        assert set(seen.weight.unique().tolist()) == {0.0, 1.0}
    for fact in (seen.log_prob, seen.entropy):
        assert torch.autograd.grad(fact.sum(), q, retain_graph=True)[0].any()
    assert seen.log_prob.max() <= 0
    assert seen.entropy.min() >= 0


@pytest.mark.parametrize("soft", [0.0, 1.0])
def test_some_draws_may_be_replaced_by_expected_weights(soft: float) -> None:
    attend = Case("sample/additive").build(soft=soft).train()
    q, k, v = Case("sample/additive").inputs(grad=True)
    seen = attend(q, attend.remember(k, v), need="weight")
    assert seen.weight.requires_grad == bool(soft)
    assert seen.log_prob is not None
    assert bool(seen.log_prob.any()) != bool(soft)


TWICE = [
    *(Case(name) for name in ("scaled-dot", "additive", "local-p/general", "cosine", "relative")),
    *(Case(name) for name in ("coverage/additive", "forward/additive", "monotonic/additive")),
    *(Case(name) for name in ("sparsemax", "entmax", "mixture-window", "mixed/general")),
    Case("key-value", 4, 2),
]


@every(TWICE)
def test_the_second_derivative(case: Case) -> None:
    attend, inputs = small(case)

    def outputs(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return attend(q, attend.remember(k, v, LENGTHS), case.first).context

    with heed.kernels.off(*heed.kernels.KERNELS):
        assert gradgradcheck(outputs, inputs, fast_mode=True)


@every(CASES)
def test_a_second_backward_is_finite_beside_padding(case: Case) -> None:
    attend, inputs = small(case)
    q, k, v, *_ = inputs
    with heed.kernels.off(*heed.kernels.KERNELS):
        seen = attend(q, attend.remember(k, v, heed.lengths([3, 0])), case.first)
    out = seen.log_prob if seen.log_prob is not None else main(seen)
    slopes = torch.autograd.grad(
        (out * out).sum(), inputs, create_graph=True, materialize_grads=True
    )
    total = sum((x * x).sum() for x in slopes)
    again = torch.autograd.grad(total, inputs, materialize_grads=True)
    assert all(x.isfinite().all() for x in (*slopes, *again))
    assert any(x.any() for x in slopes)
