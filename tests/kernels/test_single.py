"""The kernel `single`, one query at a time, compared with the reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.loop import AttentionLoop
from heed.errors import Refused
from heed.kernels import single
from heed.kernels.deferred_gradients import share
from heed.records import Call, Claims
from heed.visible import Causal, Keys, Places

B, S, D, R, T = 3, 5, 4, 6, 4
LENGTHS = torch.tensor([5, 0, 3])  # one row sees nothing


def drawn(H: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((B, H, T, D), (B, H, S, D), (B, H, S, R))
    q, k, v = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
    return q, k, v


def table(hide: bool) -> Keys | None:
    return Keys(torch.arange(S) < LENGTHS[:, None]) if hide else None


def call(q: Tensor, k: Tensor, v: Tensor, visible: Any = None, **changes: Any) -> Call:
    given: dict[str, Any] = {
        "family": "dot",
        "scale": 0.7,
        "vector": None,
        "visible": visible,
        "gain": None,
        "bias": None,
        "places": Places(q.shape[2], k.shape[2], 0, 0, q.device),
        "claims": Claims(),
        "align": "softmax",
        "read": "blend",
        "dropout": 0.0,
        "need": "context",
        "clean": True,
    }
    return Call(q=q, k=k, v=v, **{**given, **changes})


def reference(q: Tensor, k: Tensor, v: Tensor, visible: Keys | None) -> Tensor:
    """All T queries at once, by the definition."""
    energy = q @ k.mT * 0.7
    if visible is None:
        return energy.softmax(-1) @ v
    ok = visible.table[:, None, None]
    weight = energy.masked_fill(~ok, -1e30).softmax(-1) * ok
    return weight @ v


def stepped(q: Tensor, k: Tensor, v: Tensor, visible: Keys | None) -> Tensor:
    rows = [single.run(call(q[:, :, t : t + 1], k, v, visible)) for t in range(T)]
    return torch.cat(rows, 2)


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("H", [1, 2])
def test_steps_equal_the_reference_with_gradients(H: int, hide: bool) -> None:
    q, k, v = drawn(H)
    want = reference(q, k, v, table(hide))
    got = stepped(q, *share(k, v), table(hide))
    torch.testing.assert_close(got, want)
    by = torch.randn_like(want)
    for one, two in zip(
        torch.autograd.grad(got, (q, k, v), by),
        torch.autograd.grad(want, (q, k, v), by),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


def test_a_row_that_sees_nothing_is_zero_with_zero_gradients() -> None:
    q, k, v = drawn(1, torch.float32)
    got = stepped(q, *share(k, v), table(True))
    got.square().sum().backward()
    assert (got[1] == 0).all()
    assert all((x.grad[1] == 0).all() and x.grad.isfinite().all() for x in (q, k, v))


def test_a_query_of_nan_gives_nan_beside_hidden_keys_too() -> None:
    q, k, v = drawn(1)
    hidden = Keys(torch.arange(S) < torch.tensor([[5], [3], [2]]))
    got = single.run(call(torch.full_like(q[:, :, :1], torch.nan), *share(k, v), hidden))
    assert got.isnan().all()


def test_a_mask_may_have_any_layout() -> None:
    attend, keys = heed.Attention("dot", query=8, key=8), torch.randn(B, S, 8, requires_grad=True)
    mask = (torch.rand(S, B) > 0.4).t()
    mask[:, 0] = True
    query = torch.randn(B, 1, 8)
    for visible in (mask, mask.contiguous()):
        got = AttentionLoop(attend, attend.remember(keys, visible=visible))(query, heed.State())
        want = attend(query, attend.remember(keys.detach(), visible=mask), heed.State())
        assert got.kernel == "single"
        torch.testing.assert_close(got.context, want.context)


def test_a_backward_pass_that_ended_early_leaves_nothing_behind() -> None:
    q, k, v = drawn(1)
    total = stepped(q, *share(k, v), None).sin().sum()
    want = torch.autograd.grad(reference(q, k, v, None).sin().sum(), (q, k, v))
    torch.autograd.grad(total, q, retain_graph=True)  # the gradient of the memory was not asked for
    for _ in range(2):
        got = torch.autograd.grad(total, (q, k, v), retain_graph=True)
        for one, two in zip(got, want, strict=True):
            torch.testing.assert_close(one, two)


def test_a_shared_memory_may_have_other_uses() -> None:
    q, k, v = drawn(1)
    held = share(k, v)
    total = stepped(q, *held, None).sum() + (held[0].sum(-1) * held[1].sum(-1)).sum()
    want = reference(q, k, v, None).sum() + (k.sum(-1) * v.sum(-1)).sum()
    for one, two in zip(
        torch.autograd.grad(total, (k, v)), torch.autograd.grad(want, (k, v)), strict=True
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"family": "additive"}, "dot products"),
        ({"need": "weight"}, "the weight was requested"),
        ({"align": "sparsemax"}, "softmax"),
        ({"dropout": 0.1}, "dropout"),
        ({"bias": torch.zeros(1, 1, 1, S)}, "bias"),
        ({"sinks": 1}, "sinks"),
        ({"visible": Causal()}, "no other mask"),
        ({"visible": Keys(torch.ones(B, S) > 0), "clean": False}, "no other mask"),
    ],
)
def test_a_refusal_gives_its_reason(changes: dict[str, Any], reason: str) -> None:
    q, k, v = drawn(1)
    assert "a loop that learns" in (single.refusal(call(q[:, :, :1], k, v)) or "")
    k, v = share(k, v)
    assert single.refusal(call(q[:, :, :1], k, v)) is None
    refusal = single.refusal(call(q[:, :, :1], k, v, **changes))
    assert refusal is not None
    assert reason in refusal
    assert "one query" in (single.refusal(call(q, k, v)) or "")
    narrow = (q.bfloat16()[:, :, :1], *share(k.bfloat16(), v.bfloat16()))
    assert "float" in (single.refusal(call(*narrow)) or "")


@pytest.mark.parametrize("name", ["general", "scaled-dot", "additive", "local-p/general"])
def test_asking_a_memory_again_equals_attending_again(name: str) -> None:
    torch.manual_seed(0)
    attend = heed.Attention(name, query=4, key=4).double()
    query = torch.randn(B, T, 4).double().requires_grad_()
    keys = torch.randn(B, S, 4).double().requires_grad_()
    lengths = heed.lengths(torch.tensor([5, 1, 3]))
    inputs = (query, keys, *attend.parameters())
    results = []
    for short in (False, True):
        memory, state, rows = attend.remember(keys, visible=lengths), heed.State(), []
        ask = AttentionLoop(attend, memory)
        for t in range(T):
            q = query[:, t : t + 1]
            seen = ask(q, state) if short else attend(q, memory, state)
            state = seen.state
            rows.append(seen.context)
        assert state.step == T
        context = torch.cat(rows, 1)
        results.append((context, *torch.autograd.grad(context.sin().sum(), inputs)))
        assert (ask.look is not None) == (short and name in ("general", "scaled-dot"))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_hooks_see_every_call() -> None:
    attend = heed.Attention("general", query=4, key=4)
    memory, state = attend.remember(torch.randn(B, S, 4)), heed.State()
    with heed.watch(attend, need="context") as seen:
        ask = AttentionLoop(attend, memory)
        for _ in range(T):
            state = ask(torch.randn(B, 1, 4), state).state
    assert len(seen[""]) == T


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ["general", "additive"])
def test_hooks_added_later_see_every_later_call(name: str, learns: bool) -> None:
    attend, query = heed.Attention(name, query=4, key=4), torch.randn(B, 1, 4)
    keys = torch.randn(B, S, 4, requires_grad=True)
    with torch.set_grad_enabled(learns):
        ask, state = AttentionLoop(attend, attend.remember(keys)), heed.State()
        for _ in range(2):
            state = ask(query, state).state
        with heed.watch(attend, need="context") as seen:
            for _ in range(T):
                state = ask(query, state).state
        assert len(seen[""]) == T
        assert state.step == T + 2


def test_an_attention_of_your_own_is_called_every_time() -> None:
    class Twice(heed.Attention):
        def forward(self, *given: Any, **more: Any) -> heed.Attended:
            seen = super().forward(*given, **more)
            return seen.replace(context=2 * seen.context)

    attend, query = Twice("additive", query=4, key=4), torch.randn(B, 1, 4)
    ask = AttentionLoop(attend, attend.remember(torch.randn(B, S, 4)))
    first, again = (ask(query, heed.State()).context for _ in range(2))
    torch.testing.assert_close(again, first)


def test_other_rows_and_shapes_are_checked_again() -> None:
    attend = heed.Attention("general", query=4, key=4)
    keys, query = torch.randn(B, S, 4), torch.randn(B, 1, 4)
    ask = AttentionLoop(attend, attend.remember(keys))
    state = ask(query, heed.State()).state
    rows = torch.tensor([2, 0])
    got = ask.select(rows)(query[rows], state).context
    torch.testing.assert_close(got, ask(query, state).context[rows])
    with pytest.raises(heed.HeedError):
        ask(query[:2], state)


def test_second_derivatives_are_refused_and_never_dropped() -> None:
    q, k, v = drawn(1)
    total = stepped(q, *share(k, v), None).sin().sum()
    with pytest.raises(Refused, match=r"heed\.kernels\.off\(\"single\""):
        torch.autograd.grad(total, k, create_graph=True)


def test_batched_gradients_are_refused() -> None:
    q, k, v = drawn(1)
    total = stepped(q, *share(k, v), None).sin().sum((0, 2, 3))
    with pytest.raises(Refused, match="one gradient at a time"):
        torch.autograd.grad(total, k, torch.ones(2, *total.shape), is_grads_batched=True)


@pytest.mark.parametrize("name", ["general", "scaled-dot", "additive"])
def test_with_the_kernel_off_a_loop_has_second_derivatives(name: str) -> None:
    torch.manual_seed(0)
    attend = heed.Attention(name, query=4, key=4).double()
    query = torch.randn(1, 2, 4).double().requires_grad_()
    keys = torch.randn(1, 3, 4).double().requires_grad_()

    def loop(query: Tensor, keys: Tensor) -> Tensor:
        ask, state, rows = AttentionLoop(attend, attend.remember(keys)), heed.State(), []
        for q in query.split(1, 1):
            seen = ask(q, state)
            state = seen.state
            rows.append(seen.context)
        return torch.cat(rows, 1)

    with heed.kernels.off("single", "sdpa", "additive"):
        assert torch.autograd.gradgradcheck(loop, (query, keys))


def test_other_uses_of_a_shared_memory_have_second_derivatives() -> None:
    _, k, v = drawn(1)
    held = share(k, v)
    (grad,) = torch.autograd.grad(held[0].pow(3).sum(), k, create_graph=True)
    (got,) = torch.autograd.grad(grad.sum(), k)
    torch.testing.assert_close(got, 6 * k)


def test_a_backward_pass_under_autocast_changes_nothing() -> None:
    q, k, v = drawn(1, torch.float32)
    total = stepped(q, *share(k, v), None).sin().sum()
    want = torch.autograd.grad(total, (q, k, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(total, (q, k, v))
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two)


def test_an_empty_batch_works_forward_and_backward() -> None:
    q, k, v = (x.detach()[:0].requires_grad_() for x in drawn(2))
    got = stepped(q, *share(k, v), None)
    assert got.shape == (0, 2, T, R)
    got.sum().backward()
    assert all(x.grad.shape == x.shape for x in (q, k, v))
