"""One query per head within a window: alone, and in a loop that sums the gradients of its memory.

In Triton's interpreter without a GPU. The twin is the reference, query by query.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.loop import AttentionLoop
from heed.errors import Refused
from heed.kernels import window
from heed.kernels.deferred_gradients import share
from heed.kernels.window import plain as formula
from heed.kernels.window import steps
from heed.kernels.window.geometry import Geometry, by_rows
from heed.records import Call
from tests.kernels.windows import TABLES, Case, introduce, plain, with_gradients

triton = pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REACHES = ("local-p", "local-m", "fixed-window")  # blocks are for tiles of queries
SHAPES = [  # S, heads, widths
    (1, (1, 1), (8, 8)),
    (33, (2, 1), (7, 3)),
    (140, (2, 1), (16, 21)),
    (20, (1, 1), (300, 257)),
    (12, (1, 1), (8, 512)),
]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN."""
    torch.use_deterministic_algorithms(DEVICE == "cpu")
    yield
    torch.use_deterministic_algorithms(False)


class Alone(torch.autograd.Function):
    """Both launchers, tied together."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, peak: Tensor, see: Geometry) -> Tensor:
        from heed.kernels.window import row

        q, k, v = (by_rows(x) for x in (q, k, v))
        assert row.serves(q, see)
        context, lse = row.forward(q, k, v, see)
        ctx.save_for_backward(q, k, v, context, lse)
        ctx.see = see
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from heed.kernels.window import row

        *found, moved = row.gradients(*ctx.saved_tensors, by_rows(grad), ctx.see)
        if moved is not None:
            moved = moved.sum_to_size(ctx.see.peak.shape)
        return *found, moved, None


def alone(call: Call, seed: int | None = None) -> Tensor:
    see = window.geometry(call)
    if seed is not None:
        see.seed = torch.tensor([seed], device=call.q.device)
    peak = see.peak if see.peak is not None else call.q.new_zeros(())
    context: Tensor = Alone.apply(call.q, call.k, call.v, peak, see)  # type: ignore[no-untyped-call]
    return context


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reach", REACHES)
def test_the_twins_agree(reach: str, table: str, shape: Any) -> None:
    S, heads, widths = shape
    introduce(Case(reach, table, 1, S, heads, widths, half=9, B=2, device=DEVICE), alone)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("reach", REACHES)
def test_hidden_keys_change_no_bit(reach: str, poison: float) -> None:
    case = Case(reach, "holes", 1, 40, (1, 1), (300, 16), device=DEVICE)
    leaves = case.leaves()
    ok = case.call(*leaves).dense_visible()
    assert ok is not None
    unseen = ~ok.any(2).any(1)[:, None, :, None]
    bad = [leaves[0], *(x.masked_fill(unseen, poison) for x in leaves[1:3]), leaves[3]]
    loss = torch.randn(2, 1, 1, 16, device=DEVICE)
    for x, y in zip(
        *(with_gradients(lambda *x: alone(case.call(*x)), y, loss) for y in (leaves, bad)),
        strict=True,
    ):
        assert torch.equal(x, y)


def test_dropout_drops_what_its_mask_says() -> None:
    case = Case("local-p", "padded", 1, 40, (2, 1), half=15, dropout=0.4, device=DEVICE)
    leaves, seed = case.leaves(), 2**61 + 12345
    see = window.geometry(case.call(*leaves))
    see.seed = torch.tensor([seed], device=DEVICE)
    kept = formula.kept(see, 2, 2, 1, 40)
    loss = torch.randn(2, 2, 1, 8, device=DEVICE)
    got = with_gradients(lambda *x: alone(case.call(*x), seed), leaves, loss)
    want = with_gradients(lambda *x: plain(case.call(*x), kept), leaves, loss)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def looped(case: Case, how: Callable[[Call], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Four queries to the same keys and values, each with a centre; and all gradients."""
    q, k, v, centre = (x.detach().clone().requires_grad_() for x in leaves)
    held = share(k, v)
    context = [how(case.call(*each)) for each in _queries(q, *held, centre)]
    loss = torch.cat(context, 2).float().sin().sum()
    return [torch.cat(context, 2).detach(), *torch.autograd.grad(loss, (q, k, v, centre))]


def _queries(q: Tensor, k: Tensor, v: Tensor, centre: Tensor) -> list[tuple[Tensor, ...]]:
    pairs = zip(q.split(1, 2), centre.split(1, 2), strict=True)
    return [(one, k, v, place) for one, place in pairs]


def stepped(call: Call) -> Tensor:
    rows = steps.deferred_of(call.k, call.v)
    assert rows is not None
    return steps.attend(rows, call.q, call.k, call.v, window.geometry(call), call.v.dtype)


@pytest.mark.parametrize("heads", [(1, 1), (4, 2)])
@pytest.mark.parametrize("widths", [(16, 8), (300, 257)])
def test_steps_have_the_gradients_of_the_reference(heads: Any, widths: Any) -> None:
    case = Case("local-p", "padded", 4, 20, heads, widths, device=DEVICE)
    leaves = case.leaves()
    single = Case(**{**case.__dict__, "T": 1})
    for x, y in zip(looped(single, stepped, leaves), looped(single, plain, leaves), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)


def test_queries_with_nearly_one_hot_weights_have_accurate_gradients() -> None:
    case = Case("local-p", "everything", 1, 20, (1, 1), (64, 64), half=9, device=DEVICE)
    q, *others = case.leaves()
    leaves = [200 * q, *others]
    exact = looped(case, plain, [x.double() for x in leaves])
    told = [looped(case, how, leaves) for how in (stepped, plain)]
    for x, y, z in zip(*told, exact, strict=True):
        assert (x - z).abs().max() <= 3 * (y - z).abs().max() + 1e-6 * z.abs().max()


def test_a_step_reads_tensors_without_casting() -> None:
    """Under autocast only keys may have half precision: nothing is cast or kept twice."""
    case = Case("local-p", "everything", 1, 20, (1, 1), (16, 8), device=DEVICE)
    q, k, v, centre = case.leaves()
    leaves = [q, k.bfloat16(), v.bfloat16(), centre]
    want = looped(case, plain, [x.float() for x in leaves])
    got = looped(case, stepped, leaves)
    assert [x.dtype for x in got[:4]] == [torch.bfloat16, torch.float32, *[torch.bfloat16] * 2]
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.float(), y, atol=3e-2, rtol=3e-2)


def test_second_derivatives_are_refused_and_never_dropped() -> None:
    case = Case("local-p", "everything", 1, 20, (1, 1), device=DEVICE)
    q, k, v, centre = (x.requires_grad_() for x in case.leaves())
    context = stepped(case.call(q, *share(k, v), centre))
    with pytest.raises(Refused, match=r"heed\.kernels\.off\(\"single\""):
        torch.autograd.grad(context.sin().sum(), k, create_graph=True)


def test_memories_not_made_for_steps_are_left_to_the_operator() -> None:
    case = Case("local-p", "everything", 1, 20, (1, 1))
    _, k, v, _ = (x.requires_grad_() for x in case.leaves())
    assert steps.deferred_of(k, v) is None  # not made for a loop
    assert steps.deferred_of(share(k, v)[0], share(k, v)[1]) is None  # made for two loops
    assert steps.deferred_of(*share(k, v)) is not None


def asked(
    attend: heed.Attention, queries: Tensor, keys: Tensor, again: bool = True
) -> tuple[str, list[Tensor]]:
    """A loop over queries, as in decoders or by plain calls; and all gradients."""
    count = torch.tensor([keys.shape[1], 7, 0], device=keys.device)
    memory = attend.remember(keys, visible=heed.lengths(count))
    ask = (
        AttentionLoop(attend, memory)
        if again
        else lambda query, state: attend(query, memory, state)
    )
    state, found = heed.State(), []
    for query in queries.split(1, 1):
        seen = ask(query, state)
        found.append(seen.context)
        state = seen.state
    context = torch.cat(found, 1)
    learned = (queries, keys, *attend.parameters())
    return seen.kernel, [context, *torch.autograd.grad(context.sin().sum(), learned)]


@pytest.mark.parametrize("name", ["local-p/general", "local-p/additive", "local-m/dot"])
def test_a_loop_computes_the_length_of_its_memory_once(name: str) -> None:
    """The result is the same as for a memory that is asked each time."""
    attend = heed.Attention(name, query=8, window=2)
    keys, queries = (torch.randn(3, n, 8, requires_grad=True) for n in (12, 5))
    _, got = asked(attend, queries, keys)
    _, want = asked(attend, queries, keys, again=False)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 257, 512, 1024])
def test_a_loop_on_the_device(width: int) -> None:
    attend = heed.Attention("local-p/general", query=width, window=4).cuda()
    keys = torch.randn(3, 30, width, device="cuda", requires_grad=True)
    queries = torch.randn(3, 5, width, device="cuda", requires_grad=True)
    kernel, got = asked(attend, queries, keys)
    assert kernel == "window"
    with heed.kernels.off("window"):
        kernel, plain = asked(attend, queries, keys, again=False)
        wide = (x.detach().double().requires_grad_() for x in (queries, keys))
        _, exact = asked(attend.double(), *wide, again=False)
    assert kernel == "reference"
    for x, y, z in zip(got, plain, exact, strict=True):  # weights of wide heads are nearly one-hot
        floor = 1e-5 * z.abs().max() + 1e-6
        assert (x - z).abs().max() <= 3 * (y - z).abs().max() + floor
