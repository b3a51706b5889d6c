"""Additive attention on the CPU, compared with the plain computation against float64.

Contract 5: the error is at most twice (gradients three times) that of plain PyTorch in the same
dtype with a float32 softmax, or a few epsilons at that magnitude, whichever is larger.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

from heed.kernels import native as library
from heed.kernels.additive import native
from heed.kernels.additive.plan import Plan
from tests.kernels.levels import LEVELS

needs_library = pytest.mark.skipif(library.missing() is not None, reason=library.missing() or "")


@pytest.fixture(params=[pytest.param("library", marks=needs_library), "plain"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the library, or with PyTorch as if there were no library."""
    if request.param == "plain":
        monkeypatch.setattr(library, "missing", lambda: "it is not there")
    return str(request.param)


DOUBLE = torch.float64
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = ((1, 1), (1, 7), (2, 33), (7, 31), (9, 8), (33, 65), (65, 33))
WIDTHS = ((8, 3), (16, 8), (21, 21), (59, 64), (64, 111), (256, 40))
HEADS = ((1, 1), (4, 2), (3, 1))
B = 3

# How many epsilons of the largest number are tolerated.
OUT, GRAD = 4, 12

Table = Callable[[int, int, int], tuple[Plan, Tensor]]
"""H T S -> what the operator is told, and the same as a table that was made here."""


def everything(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    return Plan(), torch.ones(B, H, T, S, dtype=torch.bool)


def causal(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    table = torch.arange(S) <= torch.arange(T)[:, None] + S - T
    return Plan(first=S - T, causal=True), table.expand(B, H, T, S)


def padded(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    """One row is complete, one is half, one has no keys."""
    count = torch.tensor([S, (S + 1) // 2, 0], dtype=torch.int32)
    return Plan(stop=count), (torch.arange(S) < count[:, None])[:, None, None].expand(B, H, T, S)


def existing(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    exists = torch.rand(B, S) > 0.4
    exists[1] = False
    return Plan(exists=exists), exists[:, None, None].expand(B, H, T, S)


def near(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    away = torch.arange(S) - torch.arange(T)[:, None] - 1
    return Plan(first=1, half=2), (away.abs() <= 2).expand(B, H, T, S)


def random(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    table = torch.rand(B, H, T, S) > 0.5
    table[0, :, 0] = False
    return Plan(table=table), table


def random_for_all_heads(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    table = torch.rand(B, 1, T, S) > 0.5
    return Plan(table=table), table.expand(B, H, T, S)


def predicted(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    """Windows around centres anywhere, some out of range."""
    centre = torch.rand(B, H, T) * (S + 10) - 5
    centre[0, 0, 0] = 1e30
    away = torch.arange(S) - centre[..., None]
    return Plan(centre=centre, radius=2), away.abs() <= 2


def many(H: int, T: int, S: int) -> tuple[Plan, Tensor]:
    parts = [f(H, T, S) for f in (causal, padded, random_for_all_heads)]
    plan = parts[0][0]._replace(stop=parts[1][0].stop, table=parts[2][0].table)
    return plan, parts[0][1] & parts[1][1] & parts[2][1]


TABLES: dict[str, Table] = {
    f.__name__: f  # type: ignore[attr-defined]
    for f in (
        everything,
        causal,
        padded,
        existing,
        near,
        random,
        random_for_all_heads,
        predicted,
        many,
    )
}


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    centre: Tensor | None = None,
    *,
    ok: Tensor,
    sigma: float = 1.0,
    factor: Tensor | None = None,
) -> Tensor:
    """The plain computation: everything in the input's dtype, the softmax in float32."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    inside = torch.tanh(q[:, :, :, None] + k[:, :, None])
    energy = (inside @ w[:, None, :, None])[..., 0]
    energy = energy.to(torch.promote_types(q.dtype, torch.float32))
    sighted = ok.any(-1, keepdim=True)
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1)
    if centre is not None:
        away = (torch.arange(k.shape[2]) - centre[..., None]) / sigma
        weight = weight * torch.exp(-0.5 * away * away)
    if factor is not None:
        weight = weight * factor
    return weight.to(q.dtype) @ v * sighted


def by_autograd(f: Callable[..., Tensor], inputs: list[Tensor], loss: Tensor) -> list[Tensor]:
    """The output, and the gradients of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = f(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, loss.to(out.dtype))]


def by_library(
    inputs: list[Tensor],
    loss: Tensor,
    plan: Plan,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    prepared: Tensor | None = None,
) -> list[Tensor]:
    context, log_sum = native.forward(*inputs, plan, dropout, seed, prepared)  # type: ignore[misc]
    grads = native.backward(
        loss,
        *inputs,  # type: ignore[misc]
        context,
        log_sum,
        plan,
        dropout,
        seed,
        prepared,
    )
    return [context, *(x for x in grads if x is not None)]


def assert_near(got: list[Tensor], plain: list[Tensor], exact: list[Tensor]) -> None:
    """Contract 5, for an output and then its gradients."""
    for i, (x, y, z) in enumerate(zip(got, plain, exact, strict=True)):
        assert x.dtype == y.dtype
        assert x.shape == z.shape
        assert torch.isfinite(x).all()
        times, epsilons = (2, OUT) if i == 0 else (3, GRAD)
        if library.missing():  # PyTorch rounds at every step where the library need not
            epsilons *= 2
        floor = epsilons * torch.finfo(x.dtype).eps * z.abs().max().clamp(min=1).item()
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        assert (x.double() - z).abs().max().item() <= allowed


def draw(
    H: int,
    G: int,
    T: int,
    S: int,
    D: int,
    R: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> list[Tensor]:
    shapes = ((B, H, T, D), (B, G, S, D), (B, G, S, R), (H, D))
    q, k, v, w = (torch.randn(shape, dtype=DOUBLE) for shape in shapes)
    return [x.to(dtype) for x in (q * scale, k * scale, v, w * D**-0.5)]


def compared(inputs: list[Tensor], plan: Plan, ok: Tensor) -> list[Tensor]:
    """The library's result, checked against the plain one."""
    q, _, v, _ = inputs
    loss = torch.randn(*q.shape[:3], v.shape[3], dtype=DOUBLE).to(q.dtype)
    exact = by_autograd(lambda *x: plain(*x, ok=ok), [x.double() for x in inputs], loss)
    by_hand = by_autograd(lambda *x: plain(*x, ok=ok), inputs, loss)
    got = by_library(inputs, loss, plan)
    assert_near(got, by_hand, exact)
    return got


CASES = [
    (table, lengths, widths, heads, dtype)
    for i, (table, lengths, widths) in enumerate(itertools.product(TABLES, LENGTHS, WIDTHS))
    for heads, dtype in ((HEADS[i % 3], DTYPES[0]), (HEADS[(i + 1) % 3], DTYPES[1 + i % 2]))
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_twins_agree(table: str, lengths: tuple[int, int], served: str) -> None:
    for name, (T, S), (D, R), (H, G), dtype in CASES if served == "library" else CASES[::5]:
        if (name, (T, S)) == (table, lengths):
            plan, ok = TABLES[table](H, T, S)
            got = compared(draw(H, G, T, S, D, R, dtype), plan, ok)
            hidden = ~ok.any(-1)
            assert not got[0][hidden].any()  # exactly zero, and so are its gradients
            assert not got[1][hidden].any()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 600


@pytest.mark.parametrize("scale", [0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 10.0, 1e3, 1e4])
@pytest.mark.parametrize("norm", [1.0, 8.0])
def test_any_magnitude_is_accurate(scale: float, norm: float, served: str) -> None:
    """Every form is used: addition, fours, pairs, exact."""
    for dtype, (D, R) in itertools.product(DTYPES, ((21, 8), (128, 16))):
        q, k, v, w = draw(2, 2, 9, 17, D, R, dtype, scale)
        compared([q, k, v, w * norm], *everything(2, 9, 17))


@pytest.mark.parametrize("scale", [1e-3, 0.01, 0.05])
def test_small_numbers_are_accurate(scale: float, served: str) -> None:
    """A large score vector shows what (x - 1) / (x + 1) loses where x is nearly one."""
    for D in (21, 256):
        q, k, v, w = draw(2, 2, 9, 17, D, 8, scale=scale)
        compared([q, k, v, w * 5 / scale], *everything(2, 9, 17))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e4])
def test_sums_that_cancel_are_accurate(scale: float, served: str) -> None:
    """Keys that nearly cancel a query: the small difference must be accurate."""
    for offset in (0.0, 0.01, 1.0):
        _, _, v, w = draw(1, 1, 5, 12, 40, 8)
        q = (torch.randn(B, 1, 1, 40) * scale).expand(B, 1, 5, 40)
        k = -q[:, :, :1] + offset * torch.randn(B, 1, 12, 40)
        compared([q, k, v, w], *everything(1, 5, 12))


@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_keys_of_every_form_side_by_side(scale: float, served: str) -> None:
    """Each key in its own form, in runs of every length."""
    q, k, v, w = draw(2, 1, 20, 41, 37, 8)
    k = k * torch.tensor([0.01, 1.0, 10.0, 1e3])[torch.randint(4, (B, 1, 41, 1))]
    compared([q * scale, k, v, w], *many(2, 20, 41))


def test_a_large_or_empty_score_vector(served: str) -> None:
    q, k, v, w = draw(1, 1, 4, 9, 24, 8, scale=3.0)
    for factor in (0.0, 1e-30, 1e5):
        compared([q, k, v, w * factor], *everything(1, 4, 9))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 6e4])
@pytest.mark.parametrize("table", ["padded", "existing", "random", "many", "predicted", "causal"])
def test_nan_in_hidden_keys_changes_no_bit(
    table: str, poison: float, dtype: torch.dtype, served: str
) -> None:
    T, S = 11, 40
    plan, ok = TABLES[table](4, T, S)
    q, k, v, w = draw(4, 2, T, S, 21, 13, dtype)
    unseen = ~ok.any(2).unflatten(1, (2, 2)).any(2)[..., None]  # B G S 1
    bad = [x.masked_fill(unseen, poison) for x in (k, v)]
    loss = torch.randn(B, 4, T, 13).to(dtype)
    want = by_library([q, k, v, w], loss, plan)
    got = by_library([q, *bad, w], loss, plan)
    assert all(torch.equal(x, y) for x, y in zip(want, got, strict=True))
    for grad in got[2:4]:
        assert not grad.masked_select(unseen).any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 6), (B, 1, 6), (B, 4, 6)])
@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_a_gain_and_the_gradient_of_its_centre(
    shape: tuple[int, int, int], sigma: float, served: str
) -> None:
    T, S = shape[2], 33
    centre = torch.rand(shape) * S
    ok = ((torch.arange(S) - centre[..., None]).abs() <= 6).expand(B, 4, T, S)
    plan = Plan(centre=centre, radius=6, gain_centre=centre, sigma=sigma)
    inputs = [*draw(4, 2, T, S, 24, 10), centre]
    loss = torch.randn(B, 4, T, 10)

    def weighed(*x: Tensor) -> Tensor:
        return plain(*x, ok=ok, sigma=sigma)

    exact = by_autograd(weighed, [x.double() for x in inputs], loss)
    got = by_library(inputs[:4], loss, plan)
    assert_near(got, by_autograd(weighed, inputs, loss), exact)


def test_a_centre_of_nan_does_not_spread_from_a_row_without_keys(served: str) -> None:
    """0 · NaN is NaN: a gain must not be multiplied onto weights that are hidden."""
    T, S = 5, 33
    centre = torch.rand(B, 4, T) * S
    centre[1] = torch.nan
    stop = torch.tensor([S, 0, 7], dtype=torch.int32)
    inputs = draw(4, 2, T, S, 24, 10)
    got = by_library(inputs, torch.randn(B, 4, T, 10), Plan(stop=stop, gain_centre=centre, sigma=2))
    for x in got[:4]:  # the context, and the gradients of queries, keys and values
        assert not x[1].any()
        assert x.isfinite().all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_the_same_forward_and_backward(p: float, served: str) -> None:
    """Compared with the plain computation under the same dropout mask."""
    inputs, seed = draw(4, 2, 10, 37, 24, 10), torch.tensor([1234567890123])
    plan, ok = many(4, 10, 37)
    factor = native.kept((B, 4, 10, 37), p, seed)
    loss = torch.randn(B, 4, 10, 10)

    def dropped(*x: Tensor) -> Tensor:
        return plain(*x, ok=ok, factor=factor.to(x[0].dtype))

    exact = by_autograd(dropped, [x.double() for x in inputs], loss)
    assert_near(by_library(inputs, loss, plan, p, seed), by_autograd(dropped, inputs, loss), exact)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
def test_dropout_keeps_the_right_share(p: float, served: str) -> None:
    shape = (4, 2, 100, 250)
    factor = native.kept(shape, p, torch.tensor([7]))
    kept = factor > 0
    spread = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - p)) <= 5 * spread
    assert torch.equal(factor[kept].unique(), torch.tensor([1 / (1 - p)] if p < 1 else []))
    rows = kept.flatten(0, 2).double()
    if 0.1 <= p <= 0.5:  # rows, keys and seeds are independent
        around = (rows - (1 - p)) / (p * (1 - p)) ** 0.5
        assert (around[1:] * around[:-1]).mean().abs() <= 5 * rows.numel() ** -0.5
        assert (around[:, 1:] * around[:, :-1]).mean().abs() <= 5 * rows.numel() ** -0.5
        other = native.kept(shape, p, torch.tensor([8])).flatten(0, 2) > 0
        other_around = (other.double() - (1 - p)) / (p * (1 - p)) ** 0.5
        assert (around * other_around).mean().abs() <= 5 * rows.numel() ** -0.5


def test_the_log_sum_includes_every_constant(served: str) -> None:
    plan, ok = padded(2, 5, 9)
    q, k, v, w = draw(2, 2, 5, 9, 16, 8)
    _, log_sum = native.forward(q, k, v, w, plan)
    energy = (torch.tanh(q[:, :, :, None] + k[:, :, None]) @ w[:, None, :, None])[..., 0]
    want = energy.masked_fill(~ok, -torch.inf).logsumexp(-1)
    assert torch.equal(log_sum.isinf(), want.isinf())
    torch.testing.assert_close(log_sum, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_prepared_keys_give_the_same_bits(scale: float, dtype: torch.dtype, served: str) -> None:
    inputs = draw(4, 2, 3, 33, 40, 8, dtype, scale)
    plan, _ = many(4, 3, 33)
    loss = torch.randn(B, 4, 3, 8).to(dtype)
    prepared = native.prepare(inputs[1])
    want, got = by_library(inputs, loss, plan), by_library(inputs, loss, plan, prepared=prepared)
    assert all(torch.equal(x, y) for x, y in zip(want, got, strict=True))


@pytest.fixture(params=[torch.float64, torch.bfloat16, "meta"], ids=str)
def by_default(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Makes new tensors in another dtype, or on another device, once it is called."""
    other = request.param
    with ExitStack() as stack:

        def change() -> None:
            if other == "meta":
                stack.enter_context(torch.device(other))
            else:
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(other)

        yield change


def test_the_default_dtype_and_device_do_not_matter(
    served: str, by_default: Callable[[], None]
) -> None:
    inputs, loss = draw(4, 2, 10, 37, 24, 10), torch.randn(B, 4, 10, 10)
    centre, seed = torch.rand(B, 4, 10) * 37, torch.tensor([7])
    plan = many(4, 10, 37)[0]._replace(centre=centre, radius=6, gain_centre=centre)

    def answers() -> list[Tensor]:
        kept = native.kept((B, 4, 10, 37), 0.5, seed)
        return [*by_library(inputs, loss, plan, 0.5, seed, native.prepare(inputs[1])), kept]

    want = answers()
    by_default()
    assert all(torch.equal(x, y) for x, y in zip(answers(), want, strict=True))


@needs_library
def test_they_do_not_matter_for_energies_and_steps(by_default: Callable[[], None]) -> None:
    q, k, v, w = draw(4, 2, 1, 37, 24, 10)
    grad, loss, log_sum = torch.randn(B, 4, 1, 37), torch.randn(B, 4, 1, 10), torch.rand(B, 4, 1)

    def answers() -> list[Tensor]:
        energies = native.energies(q, k, w), *native.energies_backward(grad, q, k, w)
        sums, keys = native.step_sums(k, v), native.prepare(k)
        step = native.backward_step(loss, q, k, v, w, log_sum, Plan(), keys, sums, False)
        return [*energies, *step, *(x[..., :10] for x in sums)]

    want = answers()
    by_default()
    assert all(torch.equal(x, y) for x, y in zip(answers(), want, strict=True))


@needs_library
def test_prepared_keys_can_be_selected_and_joined_like_keys() -> None:
    k = torch.randn(4, 2, 9, 21) * torch.tensor([0.1, 1.0, 50.0])[torch.randint(3, (4, 2, 9, 1))]
    rows, width = torch.tensor([2, 0, 2]), 21
    chosen = native.prepare(k)[rows]
    assert torch.equal(native.prepare(k[rows])[..., :width], chosen[..., :width])
    joined = torch.cat([native.prepare(k[:, :, :4]), native.prepare(k[:, :, 4:])], 2)
    w, v = torch.randn(2, 21), torch.randn(4, 2, 9, 3)
    q = torch.randn(4, 2, 1, 21)
    want = native.forward(q, k, v, w, Plan())[0]
    assert torch.equal(native.forward(q, k, v, w, Plan(), prepared=joined)[0], want)


@needs_library
def test_exponentials_are_accurate_to_the_last_place() -> None:
    """Two units for e^{2k}, not counting the rounding of k; three for tanh."""
    for low, high, form in ((-38.0, 38.0, 1), (-0.5, 0.5, 2), (-0.001, 0.001, 2)):
        k = torch.linspace(low, high, 1 << 16).reshape(1, 1, -1, 64)
        prepared = native.prepare(k)
        got = prepared[..., :64][prepared[..., 65] == form]
        want = k[prepared[..., 65] == form].double()
        want = (2 * want).exp() if form == 1 else want.tanh()
        assert len(got)
        assert ((got - want).abs() / want.abs()).nan_to_num(0).max() <= 2.0**-23 * form


def awkward(x: Tensor) -> Tensor:
    """The same numbers with gaps, or in another order."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] * 2), torch.nan, dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaps": awkward,
    "heads last": lambda x: x.transpose(-2, 0).contiguous().transpose(-2, 0),
    "negated": lambda x: torch._neg_view(-x),  # as of conj().imag
    "a part": lambda x: torch.nn.functional.pad(x, (3, 5), value=torch.nan)[..., 3:-5],
}


@needs_library
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_same_bits(layout: str) -> None:
    inputs = draw(4, 2, 9, 17, 21, 13)
    plan, _ = random(4, 9, 17)
    loss = torch.randn(B, 4, 9, 13)
    want = by_library(inputs, loss, plan)
    change = LAYOUTS[layout]
    assert plan.table is not None
    moved = plan._replace(table=plan.table.transpose(-1, 0).contiguous().transpose(-1, 0))
    got = by_library([change(x) for x in inputs], change(loss), moved)
    assert all(torch.equal(x, y) for x, y in zip(want, got, strict=True))


@needs_library
def test_repeats_give_equal_bits() -> None:
    inputs, loss = draw(4, 2, 30, 40, 64, 24), torch.randn(B, 4, 30, 24)
    plan, _ = many(4, 30, 40)
    first = by_library(inputs, loss, plan)
    for _ in range(250):
        again = by_library(inputs, loss, plan)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@needs_library
@pytest.mark.parametrize("level", LEVELS)
def test_every_instruction_set_agrees(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forward", "backward", "prepare"):
        was = getattr(native, f"_{name}")
        other = library.Function(f"heed_additive_{name}", was.layout, level)
        monkeypatch.setattr(native, f"_{name}", other)
    for scale, (D, R) in itertools.product((0.1, 1.0, 5.0, 100.0), ((64, 16), (21, 5))):
        compared(draw(4, 2, 9, 33, D, R, scale=scale), *many(4, 9, 33))


@needs_library
def test_calls_it_cannot_serve_are_refused() -> None:
    q, k, v, _ = draw(1, 1, 2, 3, 8, 8)
    assert native.refusal(q, k, v) is None
    assert native.refusal(q.half(), k.half(), v.half()) is None
    assert "float64" in (native.refusal(q.double(), k.double(), v.double()) or "")


def test_without_the_library_small_calls_are_left_to_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "missing", lambda: "it is not there")
    assert "it is not there" in (native.refusal(*draw(1, 1, 1, 30, 64, 8)[:3]) or "")
    assert native.refusal(*draw(1, 1, 64, 64, 256, 8)[:3]) is None
