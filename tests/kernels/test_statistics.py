"""Statistics from queries and keys alone, compared with those of the reference's weights.

Here the operator runs on the CPU; `test_statistics_triton` runs the same cases in Triton.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention import apply
from heed.attention.names import build
from heed.attention.position import ALiBi
from heed.attention.statistics import statistics
from heed.kernels import statistics as kernel
from heed.kernels.statistics import native, plain
from heed.kernels.statistics.operator import statistics as operator
from heed.records import Attended, Statistics, Summary
from heed.visible import Places, Visible

DOUBLE = torch.float64
B, D = 2, 8
SHAPES = ((1, 1), (1, 7), (5, 13), (13, 13), (13, 5), (17, 33))
HEADS = ((1, 1), (4, 2), (3, 1))
ASKED = Summary(top=3, map=(4, 5), rows=(0,))

VISIBLES: dict[str, Any] = {
    "everything": lambda T, S: None,
    "causal": lambda T, S: heed.causal(),
    "padded": lambda T, S: heed.lengths([(S + 1) // 2, 0]),
    "window": lambda T, S: heed.window(2),
    "gaps": lambda T, S: Visible.keys(torch.rand(B, S) > 0.4),
    "all of these": lambda T, S: heed.causal() & heed.lengths([S, S // 2]) & heed.window(3),
    "table": lambda T, S: torch.rand(B, T, S) > 0.5,
    "table per head": lambda T, S: torch.rand(B, 1, T, S) > 0.5,
    "packed": lambda T, S: Visible.packed(
        torch.randint(3, (B, S)).sort(-1).values, torch.randint(4, (B, T)).sort(-1).values
    ),
    "either": lambda T, S: heed.window(1) | ~heed.lengths([S // 2, 1]),
}
CASES = list(itertools.product(VISIBLES, SHAPES, HEADS))


def ask(q: Tensor, k: Tensor, visible: Any, asked: Summary, name: str = "scaled-dot") -> Attended:
    return heed.attend(q, k, k, name, visible, statistics=asked)


def twin(q: Tensor, k: Tensor, visible: Any, asked: Summary, name: str = "scaled-dot") -> Any:
    """The weights in float64, and their statistics by the definition."""
    q, k = q.double(), k.double()
    weight = heed.attend(q, k, k, name, visible, need="weight").weight
    return weight, statistics(weight, asked)


def assert_agree(got: Statistics, weight: Tensor, want: Statistics, atol: float = 2e-6) -> None:
    """All but places, which must have the reported weights: there may be ties."""
    close: dict[str, Any] = {"rtol": 20 * atol, "atol": atol, "check_dtype": False}
    for name in ("mass", "entropy", "peak", "received", "share", "map", "rows"):
        x, y = getattr(got, name), getattr(want, name)
        assert (x is None) == (y is None), name
        if y is not None:
            torch.testing.assert_close(x, y, **close, msg=lambda m, n=name: f"{n}: {m}")
    S = weight.shape[-1]
    for name in ("expected", "spread"):
        torch.testing.assert_close(
            getattr(got, name), getattr(want, name), rtol=20 * atol, atol=30 * atol * S,
            check_dtype=False, msg=lambda m, n=name: f"{n}: {m}",
        )  # fmt: skip
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    held = share.gather(-1, got.place[..., None])[..., 0]
    torch.testing.assert_close(held, want.peak, **close)
    if got.top is not None:
        assert want.share is not None
        torch.testing.assert_close(share.gather(-1, got.top), want.share, **close)
        ones = torch.ones_like(got.top, dtype=share.dtype)
        once = torch.zeros_like(share).scatter_add(-1, got.top, ones)
        assert (once[share > 0] <= 1).all()  # no place twice


def assert_largest(got: Statistics, q: Tensor, k: Tensor, weight: Tensor) -> None:
    """The largest energy is that of the keys with weight, compared in float64."""
    energy = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT * D**-0.5
    want = energy.masked_fill(weight == 0, -torch.inf).amax(-1)
    torch.testing.assert_close(got.largest, want, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.fixture(params=["as it is", "without the library"])
def serving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C, if it was built; and in PyTorch, in several blocks."""
    if request.param == "without the library":
        monkeypatch.setattr(native, "serves", lambda question: False)
        monkeypatch.setattr(plain, "BLOCK", 200)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("name", "shape", "heads"), CASES)
def test_the_twins_agree(name: str, shape: tuple[int, int], heads: tuple[int, int]) -> None:
    (T, S), (H, G) = shape, heads
    visible = VISIBLES[name](T, S)
    q, k = torch.randn(B, H, T, D), torch.randn(B, G, S, D)
    seen = ask(q, k, visible, ASKED)
    assert "statistics" not in dict(seen.refusals)
    weight, want = twin(q, k, visible, ASKED)
    assert_agree(seen.statistics, weight, want)
    assert_largest(seen.statistics, q, k, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, DOUBLE])
@pytest.mark.parametrize("name", ["everything", "causal", "table"])
def test_every_dtype_is_compared_in_float32_or_better(name: str, dtype: torch.dtype) -> None:
    visible = VISIBLES[name](9, 11)
    q, k = torch.randn(B, 2, 9, D).to(dtype), torch.randn(B, 2, 11, D).to(dtype)
    got = ask(q, k, visible, ASKED).statistics
    assert got.entropy.dtype == torch.promote_types(dtype, torch.float32)
    assert_agree(got, *twin(q, k, visible, ASKED))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VISIBLES)
def test_asking_for_statistics_changes_no_bit_of_the_context(name: str, dtype: torch.dtype) -> None:
    visible = VISIBLES[name](9, 9)
    q, k = torch.randn(B, 4, 9, D).to(dtype), torch.randn(B, 2, 9, D).to(dtype)
    want = heed.attend(q, k, k, visible=visible)
    assert torch.equal(ask(q, k, visible, ASKED).context, want.context)
    with pytest.raises(heed.HeedError, match="statistics=True"):
        _ = want.statistics


def test_log_sum_is_that_of_the_energies() -> None:
    q, k = torch.randn(B, 2, 5, D), torch.randn(B, 2, 9, D)
    got = ask(q, k, heed.lengths([9, 0]), Summary()).statistics
    want = (q[0] @ k[0].mT * D**-0.5).logsumexp(-1)
    assert got.log_sum is not None
    torch.testing.assert_close(got.log_sum[0], want)
    assert (got.log_sum[1] == -torch.inf).all()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["padded", "gaps", "table"])
def test_nan_in_hidden_keys_changes_no_bit(name: str, poison: float) -> None:
    visible = VISIBLES[name](7, 9)
    q, k = torch.randn(B, 2, 7, D), torch.randn(B, 2, 9, D)
    weight, _ = twin(q, k, visible, ASKED)
    unseen = (weight == 0).all(2).all(1)[:, None, :, None]
    assert unseen.any()
    want = ask(q, k, visible, ASKED).statistics
    got = ask(q, k.masked_fill(unseen, poison), visible, ASKED).statistics
    for x, y in zip(got, want, strict=True):
        assert x is None or (y is not None and torch.equal(x, y))


@pytest.mark.usefixtures("serving")
def test_a_query_that_sees_nothing_has_zero_statistics() -> None:
    q, k = torch.randn(B, 2, 3, D), torch.randn(B, 2, 5, D)
    got = ask(q, k, heed.lengths([5, 0]), Summary(top=2, map=(2, 2), rows=(1,))).statistics
    for name in ("mass", "entropy", "peak", "place", "expected", "spread", "received"):
        assert not getattr(got, name)[1].any(), name
    for x in (got.share, got.map, got.rows):
        assert x is not None
        assert not x[1].any()


@pytest.mark.usefixtures("serving")
def test_a_mask_of_one_column_is_for_all_keys() -> None:
    q, k = torch.randn(B, 2, 40, D), torch.randn(B, 2, 40, D)
    visible = Visible.mask(torch.rand(B, 40, 1) < 0.5) & heed.causal()
    assert_agree(ask(q, k, visible, ASKED).statistics, *twin(q, k, visible, ASKED))


@pytest.mark.parametrize("half", [2**31, 2**63 - 1, 2**64])
def test_a_window_wider_than_any_text_hides_nothing(half: int) -> None:
    q, k = torch.randn(B, 2, 5, D), torch.randn(B, 2, 9, D)
    got = ask(q, k, heed.window(half), ASKED).statistics
    assert_agree(got, *twin(q, k, None, ASKED))


@pytest.mark.usefixtures("serving")
def test_sinks_are_keys_too() -> None:
    heads = heed.MultiHeadAttention(8, 2, add_bias_kv=True, add_zero_attn=True).eval()
    x = torch.randn(B, 5, 8)
    for visible in (None, heed.causal(), heed.lengths([5, 2])):
        seen = heads(x, visible=visible, statistics=ASKED)
        weight = heads(x, visible=visible, need="weight").weight.double()
        assert "statistics" not in dict(seen.refusals)
        assert_agree(seen.statistics, weight, statistics(weight, ASKED))


@pytest.mark.usefixtures("serving")
def test_a_bias_counts() -> None:
    mechanism = build("scaled-dot", query=D, key=D, value=D)
    q, k = torch.randn(B, 4, 6, D), torch.randn(B, 4, 6, D)
    told: dict[str, Any] = {"position": ALiBi(heads=4), "visible": heed.causal()}
    seen = mechanism(q, mechanism.remember(k), statistics=ASKED, **told)
    weight = mechanism(q, mechanism.remember(k), need="weight", **told).weight.double()
    assert "statistics" not in dict(seen.refusals)
    assert_agree(seen.statistics, weight, statistics(weight, ASKED))


@pytest.mark.usefixtures("serving")
def test_a_gain_and_a_window_around_a_centre() -> None:
    """As in `local-p`, called directly: whichever kernel serves its context."""
    mechanism = build("local-p/dot", query=D, key=D, value=D, heads=2, window=3).eval()
    q, memory = torch.randn(B, 2, 9, D), mechanism.remember(torch.randn(B, 2, 17, D))
    weight = mechanism(q, memory, need="weight").weight.detach()
    places = Places(9, 17, 0, 8, q.device)
    reached = mechanism.reach(q, memory, places, None)
    call = apply.call_of(mechanism, q, reached, places, "context", None)
    asked = Summary(top=2, map=(3, 4))
    assert kernel.refusal(call, asked) is None
    assert_agree(kernel.run(call, asked, None), weight.double(), statistics(weight, asked))


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("additive", Summary(), "not additive scores"),
        ("sparsemax", Summary(), "by softmax, not sparsemax"),
        ("scaled-dot", Summary(top=9), "at most the 8 largest"),
    ],
)
def test_a_refusal_gives_its_reason(name: str, asked: Summary, reason: str) -> None:
    mechanism = build(name, query=D, key=D, value=D)
    q, memory = torch.randn(B, 1, 3, D), mechanism.remember(torch.randn(B, 1, 12, D))
    places = Places(3, 12, 0, 9, q.device)
    reached = mechanism.reach(q, memory, places, None)
    call = apply.call_of(mechanism, q, reached, places, "context", None)
    assert reason in str(kernel.refusal(call, asked))
    seen = mechanism(q, memory, statistics=asked)
    weight = mechanism(q, memory, need="weight").weight
    assert_agree(seen.statistics, weight.double(), statistics(weight, asked))


def test_no_gradient_flows_through_statistics() -> None:
    q = torch.randn(B, 2, 5, D, requires_grad=True)
    seen = ask(q, torch.randn(B, 2, 5, D), None, ASKED)
    assert seen.context.requires_grad
    for x in seen.statistics:
        assert x is None or not x.requires_grad


def question(**more: Any) -> tuple[Any, ...]:
    q, k = torch.randn(B, 4, 5, D), torch.randn(B, 2, 9, D)
    told: dict[str, Any] = {
        "log_sum": None,
        "stop": torch.tensor([9, 3], dtype=torch.int32),
        "exists": None,
        "centre": torch.rand(B, 1, 5) * 9,
        "table": None,
        "bias": torch.randn(1, 4, 5, 9),
        "gain": torch.rand(B, 1, 5) * 9,
        "scale": 0.3,
        "sigma": 2.0,
        "first": 4,
        "half": -1,
        "radius": 4,
        "causal": True,
        "sinks": 0,
        "top": 2,
        "rows": 2,
        "columns": 3,
    }
    return q, k, *{**told, **more}.values()


@pytest.mark.parametrize("top", [0, 2])
def test_the_operator_passes_opcheck(top: int) -> None:
    torch.library.opcheck(operator, question(top=top))
    torch.library.opcheck(operator, question(top=top, rows=0, columns=0, bias=None, gain=None))


def test_it_is_one_node_of_a_compiled_graph() -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    mechanism = build("scaled-dot", query=D, key=D, value=D)

    def both(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Any]:
        asked = Summary(top=2)
        seen = heed.attend(q, k, k, mechanism, heed.causal(), statistics=asked)
        return seen.context, seen.statistics.entropy, seen.statistics.top

    q, k = torch.randn(B, 2, 6, D), torch.randn(B, 2, 6, D)
    got = torch.compile(both, backend=backend, fullgraph=True)(q, k)
    for x, y in zip(got, both(q, k), strict=True):
        torch.testing.assert_close(x, y)
    assert any("heed.statistics" in str(node.target) for node in graphs[0].graph.nodes)
    torch._dynamo.reset()


def test_it_can_be_exported() -> None:
    heads = heed.MultiHeadAttention(8, 2).eval()
    x = torch.randn(B, 5, 8)
    told = {"statistics": Summary(top=2, map=(2, 2))}
    exported = torch.export.export(heads, (x,), told)
    got, want = exported.module()(x, **told), heads(x, **told)
    torch.testing.assert_close(got.statistics.map, want.statistics.map)


def test_autocast_compares_like_the_fused_kernel() -> None:
    q, k = torch.randn(B, 2, 5, D), torch.randn(B, 2, 9, D)
    with torch.autocast("cpu", torch.bfloat16):
        got = ask(q, k, None, Summary()).statistics
    want = ask(q.bfloat16(), k.bfloat16(), None, Summary()).statistics
    torch.testing.assert_close(got.entropy, want.entropy)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_under_vmap_the_definition_serves() -> None:
    q, k = torch.randn(3, B, 2, 5, D), torch.randn(3, B, 2, 5, D)

    def entropy(q: Tensor, k: Tensor) -> Tensor:
        return ask(q, k, heed.causal(), Summary()).statistics.entropy

    got = torch.func.vmap(entropy)(q, k)
    torch.testing.assert_close(got[1], entropy(q[1], k[1]))
