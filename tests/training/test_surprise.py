"""The loss without logits, compared with the loss of logits and with finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heed.errors import ShapeError
from heed.records import Attended
from heed.training import surprise as room
from heed.training.objective import Loss, sequence_loss
from heed.training.reinforce import MovingAverage
from heed.training.surprise import surprise, surprise_of

B, T, M, V = 3, 5, 4, 11


class Unformed(NamedTuple):
    known: Tensor
    weight: Tensor
    bias: Tensor | None


def drawn(
    dtype: torch.dtype = torch.float64, bias: bool = True, scale: float = 2.0
) -> tuple[Unformed, Tensor]:
    known, weight = torch.randn(B, T, M, dtype=dtype) * scale, torch.randn(V, M, dtype=dtype)
    offset = torch.randn(V, dtype=dtype) if bias else None
    for x in (known, weight, offset):
        if x is not None:
            x.requires_grad_()
    labels = torch.randint(1, V, (B, T))
    labels[0, 2:] = 0
    labels[2] = 0  # a row of padding
    return Unformed(known, weight, offset), labels


def gradients(loss: Tensor, of: Unformed) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 0.37, [x for x in of if x is not None])


@pytest.fixture(params=[1, 2 * V, 4 * V, 1000 * V])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time, a few, or all at once."""
    monkeypatch.setitem(room.HELD, "cpu", request.param)


@pytest.fixture(params=[False, True], ids=["in parts", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logits formed some rows at a time, or all in one graph (here without compilation)."""
    monkeypatch.setattr(room, "_graph", lambda: room._formed)
    with room.compiled(request.param):
        yield


@pytest.mark.usefixtures("held", "way")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_it_equals_the_loss_of_the_logits(smoothing: float, bias: bool) -> None:
    parts, labels = drawn(bias=bias)
    smooth, nll = surprise(F.linear(*parts), labels, smoothing)
    total, each = surprise_of(parts, labels, smoothing)
    torch.testing.assert_close(total, smooth.sum(), rtol=0, atol=1e-12)
    torch.testing.assert_close(each, nll.detach(), rtol=0, atol=1e-12)
    assert not each.requires_grad
    for mine, theirs in zip(gradients(total, parts), gradients(smooth.sum(), parts), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_its_gradient_agrees_with_finite_differences() -> None:
    parts, labels = drawn(scale=0.5)
    inputs = [parts.known, parts.weight, parts.bias]
    assert torch.autograd.gradcheck(
        lambda *x: surprise_of(Unformed(*x), labels, 0.2)[0], inputs, atol=1e-7
    )


def test_a_tied_weight_gets_gradients_from_both_uses() -> None:
    _, labels = drawn()
    weight = torch.randn(V, M, dtype=torch.float64, requires_grad=True)
    known = F.embedding(labels, weight).tanh()
    total, _ = surprise_of(Unformed(known, weight, None), labels)
    smooth, _ = surprise(known @ weight.t(), labels)
    mine, theirs = (
        torch.autograd.grad(x, weight, retain_graph=True)[0] for x in (total, smooth.sum())
    )
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_improbable_symbols_have_a_finite_loss() -> None:
    parts, labels = drawn(torch.float32, scale=200.0)  # p underflows, its log does not
    smooth, nll = surprise(F.linear(*parts), labels, 0.1)
    total, each = surprise_of(parts, labels, 0.1)
    assert nll.max() > 120
    torch.testing.assert_close(total, smooth.sum())
    torch.testing.assert_close(each, nll.detach())


@pytest.mark.usefixtures("way")
def test_padding_is_never_read() -> None:
    parts, labels = drawn()
    known = parts.known.detach().masked_fill((labels == 0)[..., None], float("nan"))
    total, nll = surprise_of(parts._replace(known=known.requires_grad_()), labels, 0.1)
    gradient, weight = torch.autograd.grad(total, [known, parts.weight])
    assert total.isfinite()
    assert weight.isfinite().all()
    assert (nll[labels == 0] == 0).all()
    assert (gradient[labels == 0] == 0).all()
    assert gradient[labels != 0].abs().min() > 0
    total, nll = surprise_of(parts, torch.zeros_like(labels))
    assert total == 0
    assert all((x == 0).all() for x in gradients(total, parts))


def test_autocast_uses_its_dtype_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(room.HELD, "cpu", 4 * V)
    parts, labels = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        total, nll = surprise_of(parts, labels, 0.1)
        smooth, theirs = surprise(F.linear(*parts), labels, 0.1)
    assert total.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(nll, theirs.detach())
    torch.testing.assert_close(total, smooth.sum())
    for mine, other in zip(gradients(total, parts), gradients(smooth.sum(), parts), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=0.03, atol=0.03)


def test_the_graph_can_be_retained_but_not_differentiated_twice() -> None:
    parts, labels = drawn()
    total, _ = surprise_of(parts, labels)
    once, again = (torch.autograd.grad(total, parts.weight, retain_graph=True)[0] for _ in "ab")
    assert torch.equal(once, again)
    (first,) = torch.autograd.grad(total * total, parts.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, labels = drawn()
    expected, _ = surprise_of(parts, labels, 0.1)
    monkeypatch.setattr(room._Rows, "learn", lambda *_: pytest.fail("learnt"))
    with torch.no_grad():
        total, _ = surprise_of(parts, labels, 0.1)
    assert not total.requires_grad
    torch.testing.assert_close(total, expected.detach())


def test_only_some_rows_of_logits_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(room.HELD, "cpu", 4 * V)
    formed: list[int] = []
    judge = room._Rows.judge
    monkeypatch.setattr(room._Rows, "judge", lambda *a: formed.append(len(a[2])) or judge(*a))
    parts, labels = drawn()
    surprise_of(parts, labels)
    assert sum(formed) == int((labels != 0).sum())
    assert max(formed) <= 4


def test_a_sequence_loss_accepts_logits_or_states() -> None:
    parts, labels = drawn()
    log_prob = torch.randn(B, 2, T, dtype=torch.float64, requires_grad=True)
    seen = {"look": Attended(log_prob=log_prob, penalty=log_prob.exp())}

    def loss(logits: Tensor | Unformed) -> tuple[Loss, MovingAverage]:
        baseline = MovingAverage()
        return sequence_loss(logits, labels, seen, smoothing=0.1, baseline=baseline), baseline

    (mine, one), (theirs, other) = loss(parts), loss(F.linear(*parts))
    torch.testing.assert_close(mine.total, theirs.total)
    torch.testing.assert_close(mine.parts, theirs.parts)
    torch.testing.assert_close(one.value, other.value)
    found, expected = (
        torch.autograd.grad(x.total, log_prob, retain_graph=True)[0] for x in (mine, theirs)
    )
    torch.testing.assert_close(found, expected)
    with pytest.raises(ShapeError, match="disagree on T"):
        sequence_loss(parts, labels[:, 1:], {})


def test_nothing_is_read_on_the_host() -> None:
    """Tensors on `meta` have no numbers: reading one fails."""
    known = torch.zeros(B, T, M, device="meta", requires_grad=True)
    weight, bias = torch.zeros(V, M, device="meta"), torch.zeros(V, device="meta")
    labels = torch.zeros(B, T, dtype=torch.int64, device="meta")
    total, nll = surprise_of(Unformed(known, weight, bias), labels, 0.1)
    total.backward()
    assert known.grad is not None
    assert nll.shape == labels.shape


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_may_have_another_number_than_0(smoothing: float) -> None:
    """The same result as with every number one higher and 0 as padding."""
    torch.manual_seed(2)
    known, weight = torch.randn(3, 5, 4), torch.randn(7, 4)
    labels = torch.randint(0, 7, (3, 5))
    labels[0, 0], labels[1, 3:], labels[2] = 0, -1, -1
    there = labels >= 0
    p = (known @ weight.t()).log_softmax(-1)
    expected = -(1 - smoothing) * p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    expected = ((expected - smoothing * p.mean(-1)) * there).sum()
    parts = Unformed(known.clone().requires_grad_(), weight.clone().requires_grad_(), None)
    total, nll = surprise_of(parts, labels, smoothing, -1)
    smooth, each = surprise(known @ weight.t(), labels, smoothing, -1)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(smooth.sum(), expected)
    torch.testing.assert_close(nll, each)
    assert (nll[~there] == 0).all()
    assert nll[0, 0] > 0
    total.backward()
    assert parts.known.grad is not None
    assert (parts.known.grad[~there] == 0).all()
    assert parts.known.grad[0, 0].abs().sum() > 0
    loss = sequence_loss(parts, labels, {}, smoothing=smoothing, none=-1)
    torch.testing.assert_close(loss.total, total)
