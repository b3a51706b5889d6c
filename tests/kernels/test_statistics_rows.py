"""Context and statistics of rows in one pass, compared with the reference; larger on a GPU.

On the CPU this kernel is never chosen; the tests make it run in the interpreter.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.position import ALiBi
from heed.attention.statistics import statistics
from heed.kernels import statistics as kernel
from heed.kernels.statistics.operator import rows as operator
from heed.records import Attended, Statistics, Summary
from heed.visible import Near, Places, Visible, as_visible

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton needs a GPU, or its interpreter", allow_module_level=True)

from heed.kernels.statistics import rows
from heed.kernels.statistics.plan import Question

HALVES = (torch.bfloat16, torch.float16)
HERE = (torch.float32, *HALVES[0 if torch.cuda.is_available() else 1 :])
"""Triton's interpreter does not multiply bfloat16."""
B, D = 2, 8
ROWS = Summary(received=False)
NAMES = ("mass", "entropy", "peak", "expected", "spread", "log_sum")
VISIBLES: dict[str, Any] = {
    "everything": lambda T, S: None,
    "causal": lambda T, S: heed.causal(),
    "padded": lambda T, S: heed.lengths([(S + 1) // 2, 0]),
    "window": lambda T, S: heed.window(2),
    "wide window": lambda T, S: heed.window(2**35),
    "gaps": lambda T, S: Visible.keys(torch.rand(B, S) > 0.4),
    "all of these": lambda T, S: heed.causal() & heed.lengths([S, S // 2]) & heed.window(3),
    "near": lambda T, S: Near(torch.rand(B, 1, T) * S, 3),
    "table": lambda T, S: torch.rand(B, T, S) > 0.5,
    "nobody": lambda T, S: torch.zeros(B, T, S, dtype=torch.bool),
    "packed": lambda T, S: Visible.packed(
        torch.randint(3, (B, S)).sort(-1).values, torch.randint(4, (B, T)).sort(-1).values
    ),
}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these tensors were on a GPU, and no other kernel were better for windows."""
    real = kernel.apart

    def apart(call: Any, name: str, asked: Summary) -> str | None:
        reason = real(call, "sdpa", asked)
        return None if reason is not None and "CUDA" in reason else reason

    if not torch.cuda.is_available():
        monkeypatch.setattr(kernel, "apart", apart)


def assert_agree(got: Attended, q: Tensor, k: Tensor, v: Tensor, visible: Any, atol: float) -> None:
    """As by the reference in float64; a place must have the reported weight."""
    want = heed.attend(*(x.double() for x in (q, k, v)), visible=visible, need="weight")
    weight, said, S = want.weight, got.statistics, k.shape[2]
    told = statistics(weight)
    near = {"rtol": 10 * atol, "check_dtype": False}
    loose = atol if q.dtype == torch.float32 else 8 * torch.finfo(q.dtype).eps
    torch.testing.assert_close(got.context, want.context, atol=loose, rtol=loose, check_dtype=False)
    for name in NAMES[:5]:
        x, y = getattr(said, name), getattr(told, name)
        far = atol * (S if name in ("expected", "spread") else 1)
        torch.testing.assert_close(x, y, atol=far, **near, msg=lambda m, n=name: n + m)
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    held = share.gather(-1, said.place[..., None])[..., 0]
    torch.testing.assert_close(held, told.peak, rtol=10 * atol, atol=atol)
    energy = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    largest = (energy * q.shape[-1] ** -0.5).masked_fill(weight == 0, -torch.inf).amax(-1)
    torch.testing.assert_close(said.largest, largest, rtol=2e-5, atol=5e-5, check_dtype=False)
    blind = weight.sum(-1) == 0
    assert not got.context[blind].any()
    assert (said.place[blind] == 0).all()
    ok = None if visible is None else heed.attend(q, k, v, visible=visible, need="energy")
    if ok is None:
        energy = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        sums = (energy * q.shape[-1] ** -0.5).logsumexp(-1)
        assert said.log_sum is not None
        torch.testing.assert_close(said.log_sum, sums, atol=atol, rtol=1e-5, check_dtype=False)


def check(
    T: int, S: int, heads: tuple[int, int], name: str, dtype: torch.dtype, widths: tuple[int, int]
) -> None:
    visible = VISIBLES[name](T, S)
    q, k, v = (
        torch.randn(B, h, n, d).to(dtype)
        for h, n, d in (
            (heads[0], T, widths[0]),
            (heads[1], S, widths[0]),
            (heads[1], S, widths[1]),
        )
    )
    seen = heed.attend(q, k, v, visible=visible, statistics=ROWS)
    assert seen.kernel == "statistics", seen.why
    assert_agree(seen, q, k, v, visible, 1e-5 if dtype == torch.float32 else 1e-4)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("name", VISIBLES)
@pytest.mark.parametrize(("T", "S"), [(1, 7), (33, 65), (65, 31)])
def test_the_twins_agree(name: str, T: int, S: int) -> None:
    check(T, S, (2, 1), name, torch.float32, (D, D))


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("name", ["everything", "causal", "padded", "window", "table"])
@pytest.mark.parametrize("late", [False, True])
def test_the_twins_agree_in_half_precision(
    name: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest and the moments are found differently from float32; and for bfloat16 the scale is
    in the exponent."""
    monkeypatch.setattr(rows, "_late", lambda question: late)
    check(20, 150, (1, 1), name, torch.float16, (D, D))


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("widths", [(8, 32), (21, 5), (32, 16)])
def test_values_of_other_widths(widths: tuple[int, int]) -> None:
    check(9, 33, (3, 3), "causal", torch.float32, widths)


@pytest.mark.usefixtures("chosen")
def test_any_layout_is_accepted_and_the_context_has_that_of_the_queries() -> None:
    q, k, v = (torch.randn(B, n, 2, D).transpose(1, 2) for n in (5, 9, 9))
    seen = heed.attend(q, k, v, statistics=ROWS)
    assert seen.context.stride() == q.stride()
    assert_agree(seen, q, k, v, None, 1e-5)
    odd = torch.randn(B, 2, D, 9).mT
    assert_agree(heed.attend(q, odd, odd, statistics=ROWS), q, odd, odd, None, 1e-5)
    one = torch.randn(B, 1, 5, D).expand(-1, 2, -1, -1)
    assert_agree(heed.attend(one, k, v, statistics=ROWS), one, k, v, None, 1e-5)


@pytest.mark.usefixtures("chosen")
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # by the interpreter
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_in_hidden_keys_changes_no_bit(poison: float) -> None:
    """Also where no memory could clean it: keys outside every query's window."""
    q, k, v = torch.randn(B, 1, 5, D), torch.randn(B, 1, 40, D), torch.randn(B, 1, 40, D)
    table = torch.rand(B, 5, 40) > 0.5
    table[:, :, 7:9] = False
    every: tuple[Any, ...] = (heed.lengths([7, 0]), heed.window(2), as_visible(table))
    for visible in every:
        ok = visible.dense(Places(5, 40, 0, 35, q.device)).expand(B, 1, 5, 40)
        hidden = ~ok.any(2)[..., None]
        want = heed.attend(q, k, v, visible=visible, statistics=ROWS)
        bad = (x.masked_fill(hidden, poison) for x in (k, v))
        got = heed.attend(q, *bad, visible=visible, statistics=ROWS)
        assert torch.equal(got.context, want.context)
        for x, y in zip(got.statistics, want.statistics, strict=True):
            assert x is None or (y is not None and torch.equal(x, y))


@pytest.mark.usefixtures("chosen")
def test_sinks_and_a_bias() -> None:
    heads = heed.MultiHeadAttention(16, 2, add_bias_kv=True, position=ALiBi(heads=2)).eval()
    x = torch.randn(B, 9, 16)
    with torch.no_grad():
        seen = heads(x, visible=heed.causal(), statistics=ROWS)
        want = heads(x, visible=heed.causal(), need="weight")
    assert seen.kernel == "statistics"
    torch.testing.assert_close(seen.context, want.context)
    told = statistics(want.weight)
    for name in NAMES[:5]:
        torch.testing.assert_close(
            getattr(seen.statistics, name), getattr(told, name), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("dtype", HERE)
def test_a_bias_of_minus_infinity_hides(dtype: torch.dtype) -> None:
    """Minus infinity times a weight of zero is NaN, and must not be summed."""
    q, k, v = (torch.randn(1, 1, n, D).to(dtype) for n in (3, 9, 9))
    bias = torch.randn(1, 1, 3, 9)
    bias[..., 4:] = -torch.inf
    bias[:, :, 1] = -torch.inf
    context, facts, place = operator(
        q, k, v, None, None, None, None, bias, 1.0, 6, -1, 0, False, 0, True
    )
    weight = (q.double() @ k.double().mT + bias.double()).softmax(-1).nan_to_num(0)
    told = statistics(weight)
    for x, name in zip(facts, NAMES[:5], strict=False):
        torch.testing.assert_close(x.double(), getattr(told, name), rtol=1e-3, atol=1e-3)
    assert place.tolist() == told.place.tolist()
    assert not context[:, :, 1].any()
    assert facts[5, 0, 0, 1] == -torch.inf


@pytest.mark.parametrize("dtype", HERE)
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_extreme_magnitudes(dtype: torch.dtype, scale: float) -> None:
    """Energies of 10⁹ give one-hot rows, wherever the scale is applied."""
    q, k, v = (torch.randn(1, 1, n, 16).to(dtype) for n in (20, 150, 150))
    q, k = q * 5e3, k * 5e3
    context, facts, place = operator(
        q, k, v, None, None, None, None, None, scale, 130, -1, 0, True, 0, True
    )
    energy = q.double() @ k.double().mT * scale
    hidden = torch.ones(20, 150, dtype=torch.bool).triu(131)
    weight = energy.masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(context.double(), weight @ v.double(), rtol=1e-2, atol=1e-2)
    told = statistics(weight)
    assert place.tolist() == told.place.tolist()
    torch.testing.assert_close(facts[2].double(), told.peak, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(facts[3].double(), told.expected, rtol=0, atol=0.05)
    assert facts.isfinite().all()


@pytest.mark.parametrize("dtype", HERE)
def test_rows_with_very_low_energies(dtype: torch.dtype) -> None:
    """Where all energies are far below zero, the initial sums must not grow."""
    q = torch.full((1, 1, 2, 16), -30.0, dtype=dtype)
    k = torch.full((1, 1, 70, 16), 30.0, dtype=dtype)
    context, facts, _ = operator(q, k, k, *(None,) * 5, 1.0, 68, -1, 0, False, 0, True)
    torch.testing.assert_close(context, torch.full_like(context, 30.0))
    torch.testing.assert_close(facts[1], torch.full((1, 1, 2), 70.0).log())
    torch.testing.assert_close(facts[5], -14400 + torch.full((1, 1, 2), 70.0).log())


@pytest.mark.parametrize("dtype", HERE)
def test_a_sharp_row_far_out_has_an_accurate_spread(dtype: torch.dtype) -> None:
    """Moments are taken around the peak: around zero, 10⁸ would be subtracted from 10⁸."""
    q = torch.full((1, 1, 1, 16), 4.0, dtype=dtype)
    k = torch.zeros(1, 1, 3000, 16, dtype=dtype)
    k[:, :, 2900] = k[:, :, 2902] = 1.0
    k[:, :, 5] = 0.5  # the peak so far, from which moments must be shifted
    _, facts, place = operator(q, k, k, *(None,) * 5, 1.0, 2999, -1, 0, False, 0, True)
    assert place.item() in (2900, 2902)
    assert facts[3].item() == pytest.approx(2901, abs=1e-3)
    assert facts[4].item() == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("dtype", HERE)
def test_the_same_kernel_without_statistics_gives_the_same_context(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, n, D).to(dtype) for n in (33, 65, 65))
    told: tuple[Any, ...] = (None,) * 7
    question = Question(q, k, *told, 0.3, 1.0, 32, -1, 0, True, 0, 0, (0, 0))
    with_them, *_ = rows.attend(question, v, True)
    without, *_ = rows.attend(question, v, True, said=False)
    assert torch.equal(with_them, without)


def question(**more: Any) -> tuple[Any, ...]:
    q, k = torch.randn(1, 2, 5, D), torch.randn(1, 1, 9, D)
    told = {"stop": None, "exists": None, "centre": None, "table": None, "bias": None}
    rest = {"scale": 0.3, "first": 4, "half": -1, "radius": 0, "causal": True, "sinks": 0}
    return q, k, k.clone(), *{**told, **rest, "clean": True, **more}.values()


def test_the_operator_passes_opcheck() -> None:
    torch.library.opcheck(operator, question())
    torch.library.opcheck(operator, question(stop=torch.tensor([4], dtype=torch.int32)))
    q, k, _, *more = question()
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    torch.library.opcheck(operator, (turned, k, k[..., :3].contiguous(), *more))
    torch.library.opcheck(operator, (q.mT.contiguous().mT, k, k.clone(), *more))


def test_it_is_not_chosen_for_calls_it_cannot_serve() -> None:
    """Nothing is dropped silently: two passes serve, and the record says why."""

    def why(q: Tensor, k: Tensor, asked: Summary = ROWS, name: str = "scaled-dot") -> str:
        seen = heed.attend(q, k, k, name, statistics=asked)
        assert seen.kernel != "statistics"
        return dict(seen.refusals).get("one pass", "")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k = torch.randn(B, 2, 5, D, device=device), torch.randn(B, 2, 9, D, device=device)
    assert device == "cuda" or "it runs on a CUDA device" in why(q, k)
    assert "queries" not in why(q, k, Summary())
    assert "more than" in why(q, k, Summary(received=False, rows=(1,)))
    assert "one pass" not in dict(heed.attend(q, k, k, statistics=True).refusals)
    with heed.kernels.off("statistics"):
        assert why(q, k) == "it is switched off"


@pytest.mark.usefixtures("chosen")
def test_with_gradients_there_are_two_passes() -> None:
    q, k = torch.randn(B, 2, 5, D, requires_grad=True), torch.randn(B, 2, 9, D)
    real = heed.attend(q, k, k, statistics=ROWS)
    assert real.kernel != "statistics"
    assert real.context.requires_grad
    with torch.no_grad():
        assert heed.attend(q, k, k, statistics=ROWS).kernel == "statistics"


OTHERS = ("all of these", "near")
"""Windows, which have a kernel of their own on a GPU; it gives the context."""

LENGTHS = ((1, 143), (31, 587), (65, 129), (587, 1025), (1023, 1023), (2048, 65))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("width", [8, 59, 64, 128, 256])
@pytest.mark.parametrize("shape", LENGTHS)
@pytest.mark.parametrize("name", [n for n in VISIBLES if "window" not in n and n not in OTHERS])
def test_the_twins_agree_at_full_length(
    name: str, shape: tuple[int, int], width: int, dtype: torch.dtype
) -> None:
    with torch.device("cuda"):
        check(*shape, (4, 2), name, dtype, (width, width))


@pytest.mark.gpu
def test_with_gradients_there_are_two_passes_on_a_gpu() -> None:
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    seen = heed.attend(q, q, q, statistics=ROWS)
    assert seen.kernel == "sdpa"
    assert "gradient" in dict(seen.refusals)["one pass"]
    seen.context.sum().backward()
    assert q.grad is not None


@pytest.mark.gpu
def test_autocast_and_a_compiled_graph() -> None:
    q, k = torch.randn(2, 1, 2, 100, 64, device="cuda").unbind()

    def both(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        seen = heed.attend(q, k, k, visible=heed.causal(), statistics=ROWS)
        return seen.context, seen.statistics.entropy

    torch._dynamo.reset()
    for x, y in zip(torch.compile(both, backend="aot_eager")(q, k), both(q, k), strict=True):
        torch.testing.assert_close(x, y)
    torch._dynamo.reset()
    with torch.autocast("cuda", torch.bfloat16):
        context, entropy = both(q, k)
    assert context.dtype == torch.bfloat16
    torch.testing.assert_close(entropy, both(q.bfloat16(), k.bfloat16())[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_repeats_give_equal_bits(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 2, 4, 1025, 64, device="cuda", dtype=dtype).unbind()
    want = heed.attend(q, k, v, visible=heed.causal(), statistics=ROWS)
    assert want.kernel == "statistics"
    for _ in range(250):
        got = heed.attend(q, k, v, visible=heed.causal(), statistics=ROWS)
        assert torch.equal(got.context, want.context)
        for x, y in zip(got.statistics, want.statistics, strict=True):
            assert x is None or (y is not None and torch.equal(x, y))


def _last(said: Statistics) -> list[Tensor]:
    return [said._asdict()[name][:, -1:] for name in NAMES]


@pytest.mark.gpu
def test_elements_beyond_two_to_the_31() -> None:
    T = 131_072
    q = torch.randn(1, 130, T, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 1, 64, 128, device="cuda", dtype=torch.bfloat16)
    assert q.numel() > 2**31
    got = heed.attend(q, k, k, statistics=ROWS)
    alone = heed.attend(q[:, -1:].contiguous(), k, k, statistics=ROWS)
    assert got.kernel == "statistics"
    assert torch.equal(got.context[:, -1:], alone.context)
    for x, y in zip(_last(got.statistics), _last(alone.statistics), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(got.statistics.place[:, -1:], alone.statistics.place)
