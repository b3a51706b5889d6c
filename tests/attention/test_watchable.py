"""Full backward hooks and checkpointing on modules that return a record."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import heed
from heed.errors import Refused

B, T, S, M = 2, 3, 5, 8

MAKE: dict[str, Callable[[], heed.Attention | heed.MultiHeadAttention]] = {
    "Attention": lambda: heed.Attention("additive", query=M),
    "dot": lambda: heed.Attention("dot", query=M),
    "heads": lambda: heed.MultiHeadAttention(M, 2),
    "entmax": lambda: heed.MultiHeadAttention(M, 2, mechanism="entmax"),
}


@pytest.fixture(params=MAKE)
def attend(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return MAKE[request.param]()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(B, T, M, requires_grad=True), torch.randn(B, S, M, requires_grad=True)


def test_a_full_backward_hook_gets_the_gradients_of_arguments_and_context(attend: Any) -> None:
    """Compared with autograd.grad of the same call without hooks."""
    query, keys = inputs()
    slope = torch.randn(B, T, M)
    wanted = torch.autograd.grad(attend(query, keys).context, (query, keys), slope)
    heard = []
    with attend.register_full_backward_hook(lambda *told: heard.append(told)):
        attend(query, keys).context.backward(slope)
    ((module, arguments, outputs),) = heard
    assert module is attend
    torch.testing.assert_close(arguments, wanted)
    assert torch.equal(outputs[0], slope)
    attend(query, keys).context.backward(slope)
    assert len(heard) == 1  # removed


def test_torchs_own_attention_hears_the_same() -> None:
    theirs = nn.MultiheadAttention(M, 2, batch_first=True)
    ours, (query, keys), heard = heed.MultiHeadAttention.from_torch(theirs), inputs(), []
    for module in (theirs, ours):
        module.register_full_backward_hook(lambda *told: heard.append(told[1:]))
        module.register_full_backward_pre_hook(lambda _, outputs: (2 * outputs[0], *outputs[1:]))
    theirs(query, keys, keys, need_weights=False)[0].sum().backward()
    ours(query, ours.remember(keys)).context.sum().backward()
    ((query_theirs, *_), (out_theirs, *_)), ((query_ours, *_), (out_ours, *_)) = heard
    torch.testing.assert_close(query_ours, query_theirs)
    assert torch.equal(out_ours, out_theirs)


def test_a_hook_may_change_gradients(attend: Any) -> None:
    query, keys = inputs()
    plain = torch.autograd.grad(attend(query, keys).context.sum(), (query, keys))
    attend.register_full_backward_hook(lambda _, arguments, __: (3 * arguments[0], arguments[1]))
    attend.register_full_backward_pre_hook(lambda _, outputs: (2 * outputs[0],))
    found = torch.autograd.grad(attend(query, keys).context.sum(), (query, keys))
    torch.testing.assert_close(found, (6 * plain[0], 2 * plain[1]))


def test_weights_that_were_formed_have_gradients_too(attend: Any) -> None:
    query, keys = inputs()
    heard = []
    attend.register_full_backward_hook(lambda *told: heard.append(told[2]))
    seen = attend(query, keys, need="energy")
    (seen.context.sum() + 3 * seen.weight.sum() + 5 * seen.energy.sum()).backward()
    assert [x.unique().tolist() for x in heard[0]] == [[1], [3], [5]]


def test_a_hook_outlives_a_call_that_failed_and_copies_have_their_own(attend: Any) -> None:
    heard: list[nn.Module] = []
    handle = attend.register_full_backward_hook(lambda module, *_: heard.append(module))
    with pytest.raises(heed.HeedError):
        attend(torch.randn(B, T, M + 1, requires_grad=True))
    query, keys = inputs()
    twin = copy.deepcopy(attend)
    for module in (attend, twin, attend):
        module(query, keys).context.sum().backward()
    assert [each is twin for each in heard] == [False, True, False]
    handle.remove()
    pickle.dumps(attend)
    attend(query, keys).context.sum().backward()
    assert len(heard) == 3


class Reads(nn.Module):
    """A model that contains an attention, and returns a tensor."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        context: Tensor = self.attend(query, keys).context
        return context.tanh()


def test_a_model_with_attention_inside_has_hooks_of_its_own(attend: Any) -> None:
    model, (query, keys), heard = Reads(attend), inputs(), []
    for module in (model, model.attend):
        module.register_full_backward_hook(lambda module, *_: heard.append(module))
    model(query, keys).sum().backward()
    assert heard == [attend, model]  # a hook waits for the gradients of the arguments


def gradients(attend: Any, run: Callable[..., Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    given = inputs()
    found = torch.autograd.grad(run(*given).square().sum(), (*given, *attend.parameters()))
    return list(found)


RUNS: dict[str, Callable[[Any, dict[str, Any], Tensor, Tensor], Tensor]] = {
    "a module": lambda a, how, x, y: checkpoint(a, x, y, **how).context,
    "its context": lambda a, how, x, y: checkpoint(lambda x, y: a(x, y).context, x, y, **how),
    "a memory": lambda a, how, x, y: a(x, checkpoint(a.remember, y, **how)).context,
    "asks a memory": lambda a, how, x, y: checkpoint(
        lambda x, memory: a(x, memory).context, x, a.remember(y), **how
    ),
}


@pytest.mark.parametrize("run", RUNS)
def test_checkpointing_that_is_not_reentrant_gives_the_same_gradients(
    attend: Any, run: str
) -> None:
    plain = gradients(attend, lambda x, y: attend(x, y).context)
    how = {"use_reentrant": False}
    torch.testing.assert_close(gradients(attend, lambda *xy: RUNS[run](attend, how, *xy)), plain)


def test_reentrant_checkpointing_is_refused_where_a_gradient_would_be_lost(attend: Any) -> None:
    how = {"use_reentrant": True}
    query, keys = inputs()
    for run, what in (("a module", "record"), ("a memory", "memory")):
        with pytest.raises(Refused, match=f"this {what} comes .* use_reentrant=False"):
            RUNS[run](attend, how, query, keys)
    record = checkpoint(lambda x, y: attend(x, y, need="weight"), query, keys, **how)
    with pytest.raises(Refused, match="this record"):
        _ = record.replace(log_prob=None).weight
    with torch.no_grad():  # to look at it only
        torch.testing.assert_close(record.context, attend(query, keys).context)
    with pytest.raises(Refused, match="this memory"):
        attend(query, checkpoint(attend.remember, keys, **how).select(torch.arange(B)))


@pytest.mark.parametrize("run", ["its context", "asks a memory"])
def test_reentrant_checkpointing_of_tensors_is_served(attend: Any, run: str) -> None:
    """A tensor goes in and comes out: PyTorch passes its gradient on."""
    wanted, found = [], []
    for how, kept in (({"use_reentrant": False}, wanted), ({"use_reentrant": True}, found)):
        torch.manual_seed(1)
        given = inputs()
        RUNS[run](attend, how, *given).square().sum().backward()
        kept += [x.grad.clone() for x in (*given, *attend.parameters()) if x.grad is not None]
        attend.zero_grad()
    torch.testing.assert_close(found, wanted)


def test_a_state_from_reentrant_checkpointing_is_refused() -> None:
    attend = heed.Attention("monotonic/additive", query=M)
    query, keys = inputs()
    memory = attend.remember(keys)

    def step(query: Tensor) -> tuple[Tensor, heed.State]:
        seen = attend(query, memory, heed.State())
        return seen.context, seen.state

    for how in ({"use_reentrant": False}, {}):
        _, state = checkpoint(step, query, **how) if how else step(query)
        attend(query, memory, state)
    _, state = checkpoint(step, query, use_reentrant=True)
    for cut in (state, state.select(torch.arange(B))):
        with pytest.raises(Refused, match="this state"):
            attend(query, memory, cut)


def test_records_made_without_gradients_on_purpose_can_be_read() -> None:
    attend, (query, keys) = heed.Attention("dot", query=M), inputs()
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            seen, memory = attend(query, keys), attend.remember(keys)
        assert seen.context.shape == (B, T, M)
        if off is torch.no_grad:
            attend(query, memory)
