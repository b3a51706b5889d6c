"""The fused kernel, compared with its twin, the reference: outputs and gradients against float64.

Contract 5: the error is at most twice (gradients three times) that of plain PyTorch in the same
dtype with a float32 softmax, or a few epsilons at that magnitude, whichever is larger.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed import Visible
from heed.attention.names import build
from heed.attention.position import ALiBi
from heed.kernels import KERNELS, sdpa

DOUBLE = torch.float64
DTYPES = (torch.float32, torch.bfloat16, torch.float16, DOUBLE)
SHAPES = ((1, 1), (1, 7), (3, 3), (5, 13), (13, 13), (13, 5), (17, 33))
HEADS = ((1, 1), (4, 2), (3, 1))
B, D, R = 3, 5, 6

# How many epsilons of the largest number are tolerated.
OUT, GRAD = 4, 12

Table = Callable[[int, int, int], tuple[Visible | Tensor | None, Tensor]]
"""H T S -> what is handed to heed, and the same as a table that was made here."""


def off() -> AbstractContextManager[None]:
    """The reference alone."""
    return heed.kernels.off(*KERNELS)


def everything(H: int, T: int, S: int) -> tuple[None, Tensor]:
    return None, torch.ones(B, H, T, S, dtype=torch.bool)


def causal(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    table = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return heed.causal(), table.expand(B, H, T, S)


def padded(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    """One row is complete, one is half, one has no keys."""
    count = torch.tensor([S, (S + 1) // 2, 0])
    return heed.lengths(count), (torch.arange(S) < count[:, None])[:, None, None].expand(B, H, T, S)


def near(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    away = torch.arange(S) - torch.arange(T)[:, None] - (S - T)
    return heed.window(2), (away.abs() <= 2).expand(B, H, T, S)


def random(H: int, T: int, S: int) -> tuple[Tensor, Tensor]:
    """A mask per row and query; some queries see nothing."""
    table = torch.rand(B, T, S) > 0.5
    table[0, 0] = False
    table[1, -1] = False
    return table, table[:, None].expand(B, H, T, S)


def random_per_head(H: int, T: int, S: int) -> tuple[Tensor, Tensor]:
    table = torch.rand(B, H, T, S) > 0.5
    table[:, 0, 0] = False
    return table, table


def packed(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    ids = torch.randint(3, (B, S)).sort(-1).values
    queries = torch.randint(4, (B, T)).sort(-1).values  # text 3 has queries but no keys
    return Visible.packed(ids, queries), (queries[:, :, None] == ids[:, None])[:, None].expand(
        B, H, T, S
    )


def causal_and_padded(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    (one, x), (two, y) = causal(H, T, S), padded(H, T, S)
    return one & two, x & y


def near_or_padded_out(H: int, T: int, S: int) -> tuple[Visible, Tensor]:
    (one, x), (two, y) = near(H, T, S), padded(H, T, S)
    return one | ~two, x | ~y


TABLES: dict[str, Table] = {
    f.__name__: f  # type: ignore[attr-defined]
    for f in (
        everything,
        causal,
        padded,
        near,
        random,
        random_per_head,
        packed,
        causal_and_padded,
        near_or_padded_out,
    )
}
CASES = list(itertools.product(TABLES, SHAPES, HEADS, DTYPES))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 600


def plain(q: Tensor, k: Tensor, v: Tensor, ok: Tensor) -> Tensor:
    """The plain computation: everything in the input's dtype, the softmax in float32."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    energy = (q @ k.mT * D**-0.5).to(torch.promote_types(q.dtype, torch.float32))
    sighted = ok.any(-1, keepdim=True)
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1)
    return weight.to(q.dtype) @ v * sighted


def with_gradients(
    f: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor], loss: Tensor
) -> list[Tensor]:
    """The output, and the gradients of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = f(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, loss.to(out.dtype))]


def assert_near(got: list[Tensor], plain: list[Tensor], exact: list[Tensor]) -> None:
    """Contract 5, for an output and then its gradients."""
    for i, (x, y, z) in enumerate(zip(got, plain, exact, strict=True)):
        assert x.dtype == y.dtype
        assert torch.isfinite(x).all()
        times, epsilons = (2, OUT) if i == 0 else (3, GRAD)
        floor = epsilons * torch.finfo(x.dtype).eps * z.abs().max().clamp(min=1).item()
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        assert (x.double() - z).abs().max().item() <= allowed


def random_inputs(H: int, G: int, T: int, S: int, dtype: torch.dtype) -> list[Tensor]:
    shapes = ((B, H, T, D), (B, G, S, D), (B, G, S, R))
    return [torch.randn(shape, dtype=DOUBLE).to(dtype) for shape in shapes]


@pytest.mark.parametrize(("table", "shape", "heads", "dtype"), CASES)
def test_the_twins_agree(
    table: str, shape: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype
) -> None:
    (T, S), (H, G) = shape, heads
    visible, ok = TABLES[table](H, T, S)
    inputs = random_inputs(H, G, T, S, dtype)
    loss = torch.randn(B, H, T, R, dtype=DOUBLE).to(dtype)
    exact = with_gradients(lambda q, k, v: plain(q, k, v, ok), [x.double() for x in inputs], loss)
    by_hand = with_gradients(lambda q, k, v: plain(q, k, v, ok), inputs, loss)
    hidden = ~ok.any(-1)
    for switch, kernel in ((nullcontext(), "sdpa"), (off(), "reference")):
        with switch:
            assert heed.attend(*inputs, visible=visible).kernel == kernel  # type: ignore[misc]
            got = with_gradients(
                lambda q, k, v: heed.attend(q, k, v, visible=visible).context, inputs, loss
            )
        assert_near(got, by_hand, exact)
        assert not got[0][hidden].any()  # exactly zero, and so are its gradients
        assert not got[1][hidden].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_nan_in_padding_changes_no_bit(
    shape: tuple[int, int], dtype: torch.dtype, poison: float
) -> None:
    T, S = shape
    q, k, v = random_inputs(4, 2, T, S, dtype)
    for name in ("padded", "causal_and_padded", "random", "random_per_head", "near_or_padded_out"):
        visible, ok = TABLES[name](4, T, S)
        unseen = ~ok.any(2).any(1)[:, None, :, None]
        bad = [x.masked_fill(unseen, poison) for x in (k, v)]
        want = heed.attend(q, k, v, visible=visible)
        got = heed.attend(q, *bad, visible=visible)
        assert got.kernel == "sdpa"
        assert torch.equal(got.context, want.context)
        leaves = [x.requires_grad_() for x in bad]
        grads = torch.autograd.grad(heed.attend(q, *leaves, visible=visible).context.sum(), leaves)
        for grad in grads:
            assert torch.isfinite(grad).all()
            assert not grad.masked_select(unseen).any()


def biased(
    name: str, dtype: torch.dtype, H: int, visible: Visible | Tensor | None = None
) -> Callable[[Tensor, Tensor, Tensor], heed.Attended]:
    """Attention with something added to its energies."""
    window = {"window": 1, "block": 3} if name == "expanded-window" else {}
    mechanism = build("scaled-dot" if name == "alibi" else name, query=D, key=D, value=R, **window)
    position = ALiBi(heads=H).to(dtype) if name == "alibi" else None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> heed.Attended:
        memory = mechanism.remember(k, v)
        seen: heed.Attended = mechanism(q, memory, visible=visible, position=position)
        return seen

    return attend


def context_of(attend: Callable[..., heed.Attended]) -> Callable[..., Tensor]:
    return lambda q, k, v: attend(q, k, v).context


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table", ["everything", "causal", "padded", "random", "causal_and_padded"])
@pytest.mark.parametrize("name", ["alibi", "expanded-window"])
def test_the_twins_agree_under_a_bias(name: str, table: str, dtype: torch.dtype) -> None:
    for (T, S), (H, G) in zip(SHAPES, itertools.cycle(HEADS), strict=False):
        visible, ok = TABLES[table](H, T, S)
        inputs = random_inputs(H, G, T, S, dtype)
        loss = torch.randn(B, H, T, R, dtype=DOUBLE).to(dtype)
        attend, wide = (biased(name, x, H, visible) for x in (dtype, DOUBLE))
        with off():
            exact = with_gradients(context_of(wide), [x.double() for x in inputs], loss)
            slow = with_gradients(context_of(attend), inputs, loss)
        assert attend(*inputs).kernel == "sdpa"
        fast = with_gradients(context_of(attend), inputs, loss)
        assert_near(fast, slow, exact)
        assert not fast[0][~ok.any(-1)].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_over_long_distances_is_not_rounded(dtype: torch.dtype) -> None:
    """A bfloat16 bias of 1001 slopes would move the energies."""
    T, S, H = 2, 1025, 4
    inputs = random_inputs(H, H, T, S, dtype)
    with off():
        exact = biased("alibi", DOUBLE, H)(*(x.double() for x in inputs)).context
        slow = biased("alibi", dtype, H)(*inputs).context
    fast = biased("alibi", dtype, H)(*inputs)
    assert fast.kernel == "sdpa"
    assert_near([fast.context], [slow], [exact])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table", ["everything", "causal_and_padded"])
def test_the_bias_is_passed_on_in_full_precision(
    table: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded to bfloat16, log 3 would be off by a quarter of a percent."""
    handed = []

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *more: Any, **named: Any) -> Tensor:
        handed.append(mask)
        return fused(q, k, v, mask, *more, **named)

    fused = sdpa.scaled_dot_product_attention
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", spy)
    inputs = random_inputs(3, 1, 7, 7, dtype)
    biased("expanded-window", dtype, 3, TABLES[table](3, 7, 7)[0])(*inputs)
    (mask,) = handed
    assert mask.dtype == torch.promote_types(dtype, torch.float32)
    assert (mask == torch.tensor(3.0, dtype=mask.dtype).log()).any()


@pytest.mark.parametrize("origin", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 4), (4, 4), (3, 4)])
def test_queries_not_at_the_end_of_the_keys(T: int, S: int, origin: int) -> None:
    """As many queries as keys, but elsewhere: PyTorch's square causal mask would be wrong."""
    q, k, v = random_inputs(2, 2, T, S, DOUBLE)
    for state in (heed.State(0, origin), heed.State(2, origin - 2)):
        table = torch.arange(S) <= torch.arange(T)[:, None] + origin
        exact = plain(q, k, v, table.expand(B, 2, T, S))
        got = heed.attend(q, k, v, visible=heed.causal(), state=state)
        assert got.kernel == "sdpa"
        torch.testing.assert_close(got.context, exact)
        with off():
            slow = heed.attend(q, k, v, visible=heed.causal(), state=state)
        torch.testing.assert_close(slow.context, exact)


@pytest.mark.parametrize("T", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("zero", [True, False])
def test_sinks_are_seen_under_every_mask(T: int, zero: bool) -> None:
    """A causal mask is square only without them, and not where they compensate for missing keys."""
    attend = heed.MultiHeadAttention(8, 2, add_bias_kv=True, add_zero_attn=zero).double().eval()
    x, query = torch.randn(3, 5, 8, dtype=DOUBLE), torch.randn(3, T, 8, dtype=DOUBLE)
    memory = attend.remember(x)
    hidden = torch.zeros(T, 5, dtype=torch.bool)
    for visible in (None, heed.causal(), heed.lengths([5, 2, 0]), heed.window(0), hidden):
        fast = attend(query, memory, visible=visible)
        with off():
            slow = attend(query, memory, visible=visible)
        assert fast.kernel == "sdpa"
        torch.testing.assert_close(fast.context, slow.context)


@pytest.mark.parametrize("name", ["general", "key-value", "cosine", "local-m", "fixed-window"])
def test_the_rest_of_the_dot_family_agrees(name: str) -> None:
    attend = heed.Attention(name, query=D).double()
    q, k = (torch.randn(2, n, D, dtype=DOUBLE) for n in (4, 9))
    for visible in (None, heed.causal(), heed.lengths([9, 3])):
        fast = attend(q, k, visible=visible)
        with off():
            slow = attend(q, k, visible=visible)
        assert (fast.kernel, slow.kernel) == ("sdpa", "reference")
        torch.testing.assert_close(fast.context, slow.context)


def dropping(p: float, dtype: torch.dtype = torch.float32) -> heed.Attention:
    return heed.Attention("scaled-dot", query=D, value=R, dropout=p).to(dtype).train()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("on", [True, False])
def test_dropout_is_right_on_average(p: float, on: bool) -> None:
    draws = 20_000
    attend = dropping(p)
    q, k, v = torch.randn(1, 2, D), torch.randn(1, 4, D), torch.randn(1, 4, R)
    many = [x.expand(draws, -1, -1) for x in (q, k, v)]
    with nullcontext() if on else off():
        seen = attend(many[0], attend.remember(*many[1:]))
    still = attend.eval()(q, attend.remember(k, v), need="weight")
    assert seen.kernel == ("sdpa" if on else "reference")
    # Each term a v is kept with probability 1 - p and scaled by 1 / (1 - p): its variance is known.
    squares = still.weight[0, 0].square() @ v[0].square()
    spread = (squares * p / (1 - p) / draws).sqrt()
    away = (seen.context.mean(0) - still.context[0]).abs()
    assert (away <= 5 * spread).all()
    assert seen.context.std(0).min() > 0  # something was dropped


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("p", [0.999, 1.0])
def test_dropping_nearly_all_weights_gives_finite_numbers(p: float, on: bool) -> None:
    attend, x = dropping(p), torch.randn(2, 3, D, requires_grad=True)
    memory = attend.remember(x, torch.randn(2, 3, R))
    with nullcontext() if on else off():
        seen = attend(x, memory, visible=heed.causal())
    assert torch.isfinite(seen.context).all()
    (grad,) = torch.autograd.grad(seen.context.sum(), x)
    assert torch.isfinite(grad).all()
    if p == 1:
        assert not seen.context.any()


def test_the_reported_weights_are_those_before_dropout() -> None:
    attend, x = dropping(0.5), torch.randn(2, 7, D)
    memory = attend.remember(x, torch.randn(2, 7, R))
    seen = attend(x, memory, need="weight")
    still = attend.eval()(x, memory, need="weight")
    assert torch.equal(seen.weight, still.weight)
    assert not torch.allclose(seen.context, still.context)


def test_evaluation_drops_nothing() -> None:
    attend, x = dropping(0.9).eval(), torch.randn(2, 7, D)
    memory = attend.remember(x, torch.randn(2, 7, R))
    assert torch.equal(attend(x, memory).context, attend(x, memory).context)
    with off():
        torch.testing.assert_close(attend(x, memory).context, attend(x, memory).context)


def test_a_hidden_row_stays_zero_under_dropout() -> None:
    attend, x = dropping(0.5), torch.randn(2, 7, D)
    seen = attend(x, attend.remember(x, torch.randn(2, 7, R), visible=heed.lengths([7, 0])))
    assert seen.kernel == "sdpa"
    assert not seen.context[1].any()
    assert seen.context[0].any()


@pytest.mark.parametrize("groups", [4, 2])
def test_it_compiles_for_unknown_sizes(groups: int) -> None:
    torch._dynamo.reset()
    mechanism = build("scaled-dot", query=8, key=8, value=8)

    def both(q: Tensor, k: Tensor) -> Tensor:
        return heed.attend(q, k, k, mechanism, heed.causal()).context

    compiled = torch.compile(both, backend="eager", fullgraph=True, dynamic=True)
    for T in (5, 9):
        q, k = torch.randn(2, 4, T, 8), torch.randn(2, groups, T, 8)
        torch.testing.assert_close(compiled(q, k), both(q, k))
    torch._dynamo.reset()
