"""The Triton passes of statistics, compared with the definition; larger on a GPU."""

import itertools
import os
from typing import Any

import pytest
import torch

import heed
from heed.attention import apply
from heed.attention.names import build
from heed.attention.position import ALiBi
from heed.attention.statistics import statistics
from heed.kernels import statistics as kernel
from heed.kernels.statistics import native, plain, plan
from heed.kernels.statistics.plan import Plan, Question, grouped, touched
from heed.records import Statistics, Summary
from heed.visible import Places, Visible

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton needs a GPU, or its interpreter", allow_module_level=True)

from heed.kernels.statistics import forward

HALF = torch.float16
B, D = 2, 8
ASKED = Summary(top=3, map=(4, 5))
VISIBLES: dict[str, Any] = {
    "everything": lambda T, S: None,
    "causal": lambda T, S: heed.causal(),
    "padded": lambda T, S: heed.lengths([(S + 1) // 2, 0]),
    "window": lambda T, S: heed.window(2),
    "gaps": lambda T, S: Visible.keys(torch.rand(B, S) > 0.4),
    "all of these": lambda T, S: heed.causal() & heed.lengths([S, S // 2]) & heed.window(3),
    "table": lambda T, S: torch.rand(B, T, S) > 0.5,
    "packed": lambda T, S: Visible.packed(
        torch.randint(3, (B, S)).sort(-1).values, torch.randint(4, (B, T)).sort(-1).values
    ),
}


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton does what the operator does on the CPU."""
    monkeypatch.setattr(native, "serves", lambda question: False)
    monkeypatch.setattr(plain, "summarise", forward.summarise)


def assert_agree(got: Statistics, weight: Any, asked: Summary, atol: float) -> None:
    """As by the definition, of weights in float64; a place must have the reported weight."""
    want, S = statistics(weight, asked), weight.shape[-1]
    for name in ("mass", "entropy", "peak", "received", "share", "map", "expected", "spread"):
        x, y = getattr(got, name), getattr(want, name)
        assert (x is None) == (y is None), name
        if y is not None:
            near = atol * (S if name in ("expected", "spread") else 1)
            torch.testing.assert_close(
                x, y, rtol=10 * atol, atol=near, check_dtype=False, msg=lambda m, n=name: n + m
            )
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    held = share.gather(-1, got.place[..., None])[..., 0]
    torch.testing.assert_close(held, want.peak, rtol=10 * atol, atol=atol)
    if got.top is not None and want.share is not None:
        held = share.gather(-1, got.top).where(want.share > 0, 0)  # or there are no more keys
        torch.testing.assert_close(held, want.share, rtol=10 * atol, atol=atol)
        named = torch.zeros_like(share).scatter_add(-1, got.top, (got.share > 0).to(held))
        assert (named[share > 0] <= 1).all()  # no key twice


def check(
    T: int, S: int, heads: tuple[int, int], name: str, asked: Summary, dtype: torch.dtype
) -> None:
    visible = VISIBLES[name](T, S)
    q, k = torch.randn(B, heads[0], T, D).to(dtype), torch.randn(B, heads[1], S, D).to(dtype)
    seen = heed.attend(q, k, k, visible=visible, statistics=asked)
    assert "statistics" not in dict(seen.refusals)
    q, k = q.double(), k.double()
    weight = heed.attend(q, k, k, visible=visible, need="weight").weight
    assert_agree(seen.statistics, weight, asked, 1e-5 if dtype == torch.float32 else 4e-4)
    energy = q @ k.repeat_interleave(heads[0] // heads[1], 1).mT * D**-0.5
    want = energy.masked_fill(weight == 0, -torch.inf).amax(-1).float()
    torch.testing.assert_close(seen.statistics.largest, want, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("name", VISIBLES)
@pytest.mark.parametrize(("T", "S"), [(1, 7), (33, 65)])
def test_the_twins_agree(name: str, T: int, S: int) -> None:
    check(T, S, (2, 1), name, ASKED, torch.float32)


@pytest.mark.parametrize("name", ["everything", "causal", "padded", "table"])
@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("long", [False, True])
def test_the_twins_agree_in_half_precision(
    name: str, top: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest and the moments are found differently from float32."""
    if long:
        monkeypatch.setattr(plan, "LONG", 16)
    check(20, 130, (1, 1), name, Summary(top=top, map=(4, 5)), HALF)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    ("name", "top"), [("everything", 8), ("everything", 1), ("causal", 4), ("padded", 2)]
)
def test_the_largest_in_half_precision(
    name: str, top: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours in a group, ties, and rows that see next to nothing: each place once, in order."""
    if long:
        monkeypatch.setattr(plan, "LONG", 16)
    T, S = 5, 150
    q, k = torch.randn(B, 2, T, D).to(HALF), torch.randn(B, 1, S, D).to(HALF)
    k[0, :, 64:128:8] = 3 * k[0, :, 64:72].mean(2, keepdim=True)  # all in the same group
    k[1, :, ::4] = k[1, :, :1]
    visible = VISIBLES[name](T, S)
    got = heed.attend(q, k, k, visible=visible, statistics=Summary(top=top)).statistics
    weight = heed.attend(q.double(), k.double(), k.double(), visible=visible, need="weight").weight
    want = weight.topk(top, -1).values
    torch.testing.assert_close(got.share, want.float(), rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(weight.gather(-1, got.top), want, rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(got.peak, want[..., 0].float(), rtol=2e-3, atol=1e-6)
    counted = torch.zeros_like(weight).scatter_add(-1, got.top, torch.ones_like(want))
    assert counted.where(weight > 0, 0).max() <= 1


@pytest.mark.parametrize("cells", [(1, 1), (2, 4), (8, 8), (16, 64), (3, 7), (16, 60)])
def test_maps_of_every_size(cells: tuple[int, int]) -> None:
    check(16, 64, (1, 1), "everything", Summary(map=cells), torch.float32)


def test_scratch_in_slabs_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(1, 1, 65, D), torch.randn(1, 1, 33, D)
    want = heed.attend(q, k, k, statistics=ASKED).statistics
    monkeypatch.setattr(forward, "SCRATCH", 1)
    got = heed.attend(q, k, k, statistics=ASKED).statistics
    for x, y in zip(got, want, strict=True):
        if x is not None:
            torch.testing.assert_close(x, y)


def test_a_known_log_sum_is_used() -> None:
    """Twice the sum halves every weight: the given value is used."""
    q, k = torch.randn(1, 2, 5, D), torch.randn(1, 2, 9, D)
    told = (None,) * 6
    numbers = (1.0, 1.0, 4, -1, 0, False, 0, 0, (0, 0))
    found, *_ = forward.summarise(Question(q, k, None, *told, *numbers))
    torch.testing.assert_close(found, (q @ k.mT).logsumexp(-1))
    more = found + torch.tensor(2.0).log()
    got = forward.summarise(Question(q, k, more, *told, *numbers))
    torch.testing.assert_close(got[3].sum(-1), torch.full((1, 2), 2.5))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_in_hidden_keys_changes_no_bit(poison: float) -> None:
    q, k = torch.randn(B, 1, 5, D), torch.randn(B, 1, 40, D)
    for visible in (heed.lengths([7, 0]), Visible.keys(torch.arange(40).expand(B, -1) % 2 == 0)):
        hidden = ~visible.dense(Places(5, 40, 0, 35, q.device))[:, :, 0, :, None]
        want = heed.attend(q, k, k, visible=visible, statistics=ASKED).statistics
        bad = k.masked_fill(hidden, poison)
        got = heed.attend(q, bad, bad, visible=visible, statistics=ASKED).statistics
        for x, y in zip(got, want, strict=True):
            assert x is None or (y is not None and torch.equal(x, y))


def test_a_gain_and_a_window_around_a_centre() -> None:
    mechanism = build("local-p/dot", query=D, key=D, value=D, heads=2, window=3).eval()
    q, memory = torch.randn(B, 2, 9, D), mechanism.remember(torch.randn(B, 2, 37, D))
    weight = mechanism(q, memory, need="weight").weight.detach()
    places = Places(9, 37, 0, 28, q.device)
    reached = mechanism.reach(q, memory, places, None)
    call = apply.call_of(mechanism, q, reached, places, "context", None)
    assert_agree(kernel.run(call, ASKED, None), weight.double(), ASKED, 1e-5)


def test_sinks_and_a_bias() -> None:
    position = ALiBi(heads=2)
    heads = heed.MultiHeadAttention(16, 2, add_bias_kv=True, position=position).eval()
    x = torch.randn(B, 9, 16)
    with torch.no_grad():
        seen = heads(x, visible=heed.causal(), statistics=ASKED)
        weight = heads(x, visible=heed.causal(), need="weight").weight
    assert_agree(seen.statistics, weight.double(), ASKED, 1e-5)


def test_a_sharp_row_far_out_has_an_accurate_spread() -> None:
    """Moments are taken around the peak: around zero, 10⁸ would be subtracted from 10⁸."""
    q = torch.full((1, 1, 1, 16), 4.0)
    k = torch.zeros(1, 1, 3000, 16)
    k[:, :, 2900] = k[:, :, 2902] = 1.0
    got = heed.attend(q, k, k, "dot", statistics=True).statistics
    assert got.expected.item() == pytest.approx(2901, abs=1e-3)
    assert got.spread.item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("tile", "of", "cells"), list(itertools.product((16, 64), (63, 64), (1, 3, 8)))
)
def test_no_tile_touches_more_cells_than_planned(tile: int, of: int, cells: int) -> None:
    cell = [n * cells // of for n in range(of)]
    for start in range(0, of, tile):
        part = cell[start : start + tile]
        assert part[-1] - part[0] + 1 <= touched(tile, of, cells)
    size = grouped(tile, of, cells)
    assert tile % size == 0
    assert all(len(set(cell[n : n + size])) == 1 for n in range(0, of, size))


def test_the_plan_does_not_depend_on_the_length() -> None:
    """Otherwise each new length would be compiled."""
    told = (None,) * 7
    numbers = (1.0, 1.0, 0, -1, 0, False, 0, 0, (0, 0))
    plans = {
        Plan.of(Question(torch.empty(1, 1, T, 64), torch.empty(1, 1, S, 64), *told, *numbers))
        for T, S in ((17, 5), (100, 1000), (1023, 1))
    }
    assert len(plans) == 1


LENGTHS = ((1, 143), (31, 587), (127, 129), (587, 1025), (1023, 1023), (2048, 65))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [8, 59, 64, 128, 256])
@pytest.mark.parametrize("shape", LENGTHS)
@pytest.mark.parametrize("name", VISIBLES)
def test_the_twins_agree_at_full_length(
    name: str, shape: tuple[int, int], width: int, dtype: torch.dtype
) -> None:
    T, S = shape
    with torch.device("cuda"):
        visible = VISIBLES[name](T, S)
        q, k = (torch.randn(B, n, m, width).to(dtype) for n, m in ((4, T), (2, S)))
    asked = Summary(top=4, map=(16, 50))
    seen = heed.attend(q, k, k, visible=visible, statistics=asked)
    assert "statistics" not in dict(seen.refusals)
    q, k = q.double(), k.double()
    weight = heed.attend(q, k, k, visible=visible, need="weight").weight
    assert_agree(seen.statistics, weight, asked, 2e-5 if dtype == torch.float32 else 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["everything", "causal", "padded"])
def test_the_twins_agree_on_long_rows(name: str, dtype: torch.dtype) -> None:
    """Their places take more bits of a weight, and their tiles are wider."""
    T, S = 70, plan.LONG + 907
    with torch.device("cuda"):
        visible = VISIBLES[name](T, S)
        q, k = torch.randn(B, 2, T, 128).to(dtype), torch.randn(B, 1, S, 128).to(dtype)
    asked = Summary(top=8, map=(16, 50))
    seen = heed.attend(q, k, k, visible=visible, statistics=asked)
    q, k = q.double(), k.double()
    weight = heed.attend(q, k, k, visible=visible, need="weight").weight
    assert_agree(seen.statistics, weight, asked, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_the_context_is_the_same_with_and_without(causal: bool) -> None:
    """The log-sum-exp comes from the same operator that PyTorch would choose."""
    q, k, v = torch.randn(3, 2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16).unbind()
    visible = heed.causal() if causal else None
    want = heed.attend(q, k, v, visible=visible)
    got = heed.attend(q, k, v, visible=visible, statistics=True)
    assert torch.equal(got.context, want.context)
    energy = (q.double() @ k.double().mT) / 8
    if causal:
        energy = energy.masked_fill(torch.ones(1024, 1024, device="cuda").triu(1).bool(), -1e9)
    assert got.statistics.log_sum is not None
    torch.testing.assert_close(
        got.statistics.log_sum.double(), energy.logsumexp(-1), rtol=1e-4, atol=1e-4
    )


@pytest.mark.gpu
def test_repeats_give_equal_bits() -> None:
    q, k = torch.randn(2, 2, 4, 1025, 64, device="cuda", dtype=torch.bfloat16).unbind()
    asked = Summary(top=4, map=(64, 64))
    want = heed.attend(q, k, k, visible=heed.causal(), statistics=asked).statistics
    for _ in range(250):
        got = heed.attend(q, k, k, visible=heed.causal(), statistics=asked).statistics
        for x, y in zip(got, want, strict=True):
            assert x is None or (y is not None and torch.equal(x, y))


@pytest.mark.gpu
def test_elements_beyond_two_to_the_31() -> None:
    T = 131_072
    q = torch.randn(1, 130, T, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 1, 64, 128, device="cuda", dtype=torch.bfloat16)
    assert q.numel() > 2**31
    asked = Summary(map=(16, 8))
    got = heed.attend(q, k, k, statistics=asked).statistics
    alone = heed.attend(q[:, -1:].contiguous(), k, k, statistics=asked).statistics
    for name in ("entropy", "expected", "received", "map"):
        # Elements read from a wrong address differ clearly; the log-sum-exp of another kernel does
        # not.
        torch.testing.assert_close(
            getattr(got, name)[:, -1:], getattr(alone, name), rtol=1e-3, atol=1e-3
        )
