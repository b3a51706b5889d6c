"""Additive attention one query at a time: the steps of a loop sum the gradients of its memory.

The twin is the operator, called with all queries at once.
"""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from heed.errors import Refused
from heed.kernels import native as library
from heed.kernels.additive import native, operator, steps
from heed.kernels.additive.plan import Plan
from heed.kernels.deferred_gradients import share

pytestmark = pytest.mark.skipif(library.missing() is not None, reason=library.missing() or "")

B, G, T, S = 3, 2, 4, 9


def drawn(heads: int, D: int, R: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the score's vector."""
    torch.manual_seed(0)
    H = heads * G
    q, k, v = (torch.randn(B, *shape) for shape in ((H, T, D), (G, S, D), (G, S, R)))
    w = torch.randn(H, D)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), w.requires_grad_()


def hidden() -> Plan:
    """One complete row, one with gaps, and one without visible keys."""
    exists = torch.ones(B, S, dtype=torch.bool)
    exists[1, ::2] = exists[2] = False
    return Plan(exists=exists)


def stepped(q: Tensor, k: Tensor, v: Tensor, w: Tensor, seen: Plan) -> Tensor:
    k, v = share(k, v)
    look = steps.looking(k, v, w, seen, native.prepare(k.detach()))
    assert look is not None
    return torch.cat([look(each) for each in q.split(1, 2)], 2)


@pytest.mark.parametrize("seen", [Plan(), hidden()], ids=["all", "some"])
@pytest.mark.parametrize(("heads", "D", "R"), [(1, 16, 32), (2, 21, 5)])
def test_steps_have_the_gradients_of_one_call(
    heads: int, D: int, R: int, seen: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = native.step_sums
    poisoned = [x.fill_(torch.nan) for x in room(*drawn(heads, D, R)[1:3])]
    monkeypatch.setattr(native, "step_sums", lambda k, v: [x.clone() for x in poisoned])
    given = drawn(heads, D, R)
    want = operator.attend(*given, seen)
    got = stepped(*given, seen)
    torch.testing.assert_close(got, want)
    wanted = torch.autograd.grad(want.sin().sum(), given)
    torch.autograd.grad(got[:, :, -1].sum(), given[:1], retain_graph=True)  # a pass that ends early
    for _ in range(2):
        found = torch.autograd.grad(got.sin().sum(), given, retain_graph=True)
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two)


def test_a_memory_may_have_other_uses() -> None:
    q, k, v, w = drawn(1, 16, 8)
    held = share(k, v)
    look = steps.looking(*held, w, Plan(), native.prepare(k.detach()))
    assert look is not None
    plain = operator.attend(q[:, :, :1], k, v, w, Plan()).sum() + k.pow(2).sum()
    want = torch.autograd.grad(plain, (k, v))
    got = torch.autograd.grad(look(q[:, :, :1]).sum() + held[0].pow(2).sum(), (k, v))
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two)


def test_second_derivatives_are_refused_and_never_dropped() -> None:
    given = drawn(1, 16, 8)
    total = stepped(*given, Plan()).sin().sum()
    with pytest.raises(Refused, match=r"heed\.kernels\.off\(\"single\", \"sdpa\", \"additive\""):
        torch.autograd.grad(total, given[1], create_graph=True)


def test_memories_not_made_for_steps_are_left_to_the_operator() -> None:
    _, k, v, w = drawn(1, 16, 8)
    keys = native.prepare(k.detach())
    assert steps.looking(k, v, w, Plan(), keys) is None  # not made for steps
    assert steps.looking(*share(k.double(), v.double()), w, Plan(), keys) is None
    assert steps.looking(*share(k, v), w, Plan(), None) is None
    with FlopCounterMode(display=False):  # a dispatch mode must see every operation
        assert steps.looking(*share(k, v), w, Plan(), keys) is None
