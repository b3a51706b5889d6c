"""Statistics of weights, compared with results by hand and naive loops."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention import statistics as definition
from heed.attention.catalogue import CATALOGUE
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.attention.statistics import (
    Statistics,
    averages,
    entropy,
    pooled,
    received,
    statistics,
    summarise,
)
from heed.errors import NotFormed, Refused
from heed.kernels import statistics as kernel
from heed.records import Summary
from heed.viewing.measure import Tally
from heed.visible import Places
from tests.attention.cases import CASES, Case, every

DOUBLE = torch.float64


def of(*rows: list[float]) -> Statistics:
    """The statistics of one head's rows."""
    return statistics(torch.tensor([[list(rows)]], dtype=DOUBLE))


def test_a_row_by_hand() -> None:
    seen = of([0.5, 0.25, 0.25, 0.0])
    assert seen.mass.item() == 1
    assert seen.entropy.item() == pytest.approx(1.5 * math.log(2))
    assert seen.peak.item() == 0.5
    assert seen.place.item() == 0
    assert seen.expected.item() == pytest.approx(0.75)
    assert seen.spread.item() == pytest.approx(math.sqrt(0.6875))
    assert seen.received.tolist() == [[[0.5, 0.25, 0.25, 0.0]]]


def test_a_uniform_row_has_the_entropy_of_its_length() -> None:
    seen = of([0.2] * 5)
    assert seen.entropy.item() == pytest.approx(math.log(5))
    assert seen.expected.item() == pytest.approx(2)
    assert seen.spread.item() == pytest.approx(math.sqrt(2))


def test_a_one_hot_row_has_no_entropy() -> None:
    seen = of([0, 0, 0, 1])
    assert seen.entropy.item() == 0
    assert (seen.peak.item(), seen.place.item(), seen.expected.item()) == (1, 3, 3)
    assert seen.spread.item() == 0


def test_a_row_that_does_not_sum_to_one_is_normalised_and_its_mass_reported() -> None:
    part = of([0.1, 0.05, 0.05, 0.0])
    whole = of([0.5, 0.25, 0.25, 0.0])
    assert part.mass.item() == pytest.approx(0.2)
    for name in ("entropy", "peak", "place", "expected", "spread"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name))
    assert part.received.tolist() == [[[0.1, 0.05, 0.05, 0.0]]]


def test_a_row_that_sums_to_more_than_one_is_normalised_too() -> None:
    seen = of([3.0, 1.0])
    assert seen.mass.item() == 4
    assert seen.peak.item() == 0.75
    assert seen.entropy.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_row_of_zeros_has_zero_statistics(dtype: torch.dtype) -> None:
    seen = statistics(torch.zeros(1, 1, 1, 5, dtype=dtype))
    for name in ("mass", "entropy", "peak", "place", "expected", "spread"):
        assert getattr(seen, name).item() == 0
    assert not seen.received.any()


def test_averages_count_real_queries_that_look_at_something() -> None:
    row, flat, none = [0.5, 0.5, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    weight = torch.tensor([[[row, flat, none]], [[[0.2, 0.0, 0.0], flat, flat]]])  # 2 1 3 3
    seen = averages(statistics(weight), torch.tensor([3, 1]))
    assert seen["entropy"] == pytest.approx((math.log(2) + math.log(3)) / 3)
    assert seen["sharpness"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)


def test_averages_over_all_queries_are_those_of_the_page() -> None:
    torch.manual_seed(0)
    weight = torch.rand(1, 1, 5, 4) * (torch.arange(5) != 2)[:, None]
    page = Tally(5, 4)
    page.add(0, weight[0, 0].numpy())
    told = {name: x for name, x in page.result().items() if name in ("entropy", "sharpness")}
    assert averages(statistics(weight)) == pytest.approx(told)


def test_averages_of_nothing_are_zero() -> None:
    assert averages(statistics(torch.zeros(1, 2, 3, 4))) == {"entropy": 0.0, "sharpness": 0.0}


def test_shapes() -> None:
    seen = statistics(torch.rand(2, 3, 4, 5))
    for name in ("mass", "entropy", "peak", "place", "expected", "spread"):
        assert getattr(seen, name).shape == (2, 3, 4)
    assert seen.received.shape == (2, 3, 5)


def test_statistics_equal_loops() -> None:
    weight = torch.rand(2, 2, 3, 5, dtype=DOUBLE)
    seen = statistics(weight)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in (2, 2, 3))).tolist():
        row = weight[b, h, t].tolist()
        mass = sum(row)
        share = [x / mass for x in row]
        mean = sum(s * x for s, x in enumerate(share))
        at = (b, h, t)
        assert seen.mass[at].item() == pytest.approx(mass)
        assert seen.entropy[at].item() == pytest.approx(-sum(x * math.log(x) for x in share))
        assert seen.place[at].item() == share.index(max(share))
        assert seen.expected[at].item() == pytest.approx(mean)
        spread = math.sqrt(sum((s - mean) ** 2 * x for s, x in enumerate(share)))
        assert seen.spread[at].item() == pytest.approx(spread)


def test_the_entropy_of_attention_is_that_of_its_record() -> None:
    weight = heed.Attention("sparsemax", query=4)(torch.randn(2, 3, 4), need="weight").weight
    assert (weight == 0).any()  # sparse rows: 0 log 0 is 0
    want = torch.special.entr(weight).sum(-1)
    torch.testing.assert_close(entropy(weight), want)
    assert torch.isfinite(statistics(weight).entropy).all()


def test_received_sums_over_queries() -> None:
    weight = torch.tensor([[[[0.5, 0.5], [0.25, 0.0]]]])
    assert received(weight).tolist() == [[[0.75, 0.5]]]


def naive_pool(weight: Tensor, rows: int, columns: int) -> Tensor:
    """Position n of N belongs to cell floor(n · cells / N)."""
    B, H, T, S = weight.shape
    out = torch.zeros(B, H, rows, columns, dtype=weight.dtype)
    for t in range(T):
        down = t * rows // T
        sharing = sum(u * rows // T == down for u in range(T))
        for s in range(S):
            out[:, :, down, s * columns // S] += weight[:, :, t, s] / sharing
    return out


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (3, 2), (5, 7), (4, 1), (1, 5)])
def test_the_pooled_map_equals_a_loop(rows: int, columns: int) -> None:
    weight = torch.rand(2, 2, 5, 7, dtype=DOUBLE)
    small = pooled(weight, rows, columns)
    torch.testing.assert_close(small, naive_pool(weight, rows, columns))


def test_a_pooled_map_of_full_size_is_the_weights() -> None:
    weight = torch.rand(1, 2, 3, 4, dtype=DOUBLE)
    torch.testing.assert_close(pooled(weight, 3, 4), weight)


def test_the_rows_of_a_pooled_map_keep_their_sums() -> None:
    weight = torch.rand(1, 2, 7, 9, dtype=DOUBLE).softmax(-1)
    torch.testing.assert_close(pooled(weight, 3, 4).sum(-1), torch.ones(1, 2, 3, dtype=DOUBLE))


@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (2, 5)])
def test_a_map_larger_than_the_weights_is_refused(rows: int, columns: int) -> None:
    with pytest.raises(Refused, match=f"{rows} x {columns} is larger than the weights, T=3 S=4"):
        pooled(torch.rand(1, 1, 3, 4), rows, columns)


ASKED = Summary(top=3, map=(3, 4), rows=(4, 1))


def assert_same(got: Statistics, want: Statistics) -> None:
    """All but those of energies, which do not follow from weights."""
    for name, x, y in zip(got._fields, got, want, strict=True):
        if name not in ("log_sum", "largest", "top"):
            assert (x is None) == (y is None), name
            if x is not None:
                torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: n + m)


def test_the_largest_come_first_with_their_places() -> None:
    seen = statistics(torch.tensor([[[[0.1, 0.4, 0.2, 0.3]]]], dtype=DOUBLE), Summary(top=3))
    assert seen.top is not None
    assert seen.share is not None
    assert seen.top.tolist() == [[[[1, 3, 2]]]]
    assert seen.share.tolist() == [[[[0.4, 0.3, 0.2]]]]


def test_no_more_than_all_weights_are_given() -> None:
    seen = statistics(torch.rand(1, 1, 3, 2), Summary(top=5, map=(9, 9)))
    assert seen.share is not None
    assert seen.map is not None
    assert seen.share.shape == (1, 1, 3, 2)
    assert seen.map.shape == (1, 1, 3, 2)


def test_what_was_not_asked_for_is_not_formed() -> None:
    seen = statistics(torch.rand(1, 1, 3, 2))
    assert (seen.top, seen.share, seen.map, seen.rows, seen.log_sum) == (None,) * 5


def test_rows_come_in_the_requested_order() -> None:
    weight = torch.rand(2, 2, 5, 7)
    seen = statistics(weight, Summary(rows=(4, 0, 4)))
    assert seen.rows is not None
    assert torch.equal(seen.rows, weight[:, :, [4, 0, 4]])


def test_a_row_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match=r"no row 3 .* T=3"):
        statistics(torch.rand(1, 1, 3, 2), Summary(rows=(3,)))


@pytest.mark.parametrize("block", [1, 30, 100])
def test_statistics_block_by_block_are_the_same(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.rand(2, 2, 7, 9, dtype=DOUBLE).softmax(-1)
    sizes = []

    def some(start: int, stop: int) -> tuple[Tensor, None, None]:
        sizes.append(stop - start)
        return weight[:, :, start:stop], None, None

    monkeypatch.setattr(definition, "BLOCK", block)
    assert_same(summarise(some, weight.shape, ASKED, apart=True), statistics(weight, ASKED))
    assert sum(sizes) == 7
    assert max(sizes) * weight[:, :, 0].numel() <= max(block, 36)


@pytest.mark.parametrize("name", [*CATALOGUE, "local-p/general", "coverage/key-value"])
def test_statistics_of_every_mechanism_are_those_of_its_weights(name: str) -> None:
    """However they are computed: by a kernel, block by block, or from the weights themselves."""
    attend = heed.Attention(name, query=8).double().eval()
    x = torch.randn(2, 6, 8, dtype=DOUBLE)
    query, rows = (None, (0, 0)) if name == "static" else (x, (4, 1))
    asked = Summary(top=3, map=(3, 4), rows=rows)
    memory = attend.remember(x, visible=heed.lengths([6, 4]))
    seen = attend(query, memory, statistics=asked)
    want = attend(query, memory, need="weight")
    assert_same(seen.statistics, statistics(want.weight, asked))
    if attend.mechanism.claims.gives_context:
        torch.testing.assert_close(seen.context, want.context)
        with pytest.raises(NotFormed):
            _ = seen.weight


def test_statistics_are_computed_separately_if_a_kernel_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The definition, block by block, after a kernel's call: the fallback on every device."""
    monkeypatch.setattr(kernel, "refusal", lambda call, asked: "for a test")
    monkeypatch.setattr(definition, "BLOCK", 20)
    x = torch.randn(2, 6, 8, dtype=DOUBLE)
    table = torch.rand(2, 6, 6) > 0.4
    packed = heed.Visible.packed(torch.tensor([[0, 0, 0, 1, 1, 2]] * 2))
    of_one = heed.Visible.packed(packed.key_ids, torch.tensor([[0], [2]]))
    visibles = (None, heed.causal(), heed.window(1), table, packed, ~packed | heed.causal(), of_one)
    for name in ("scaled-dot", "local-m", "expanded-window", "key-value"):
        attend = heed.Attention(name, query=8).double()
        for visible in visibles:
            seen = attend(x, visible=visible, statistics=ASKED)
            weight = attend(x, visible=visible, need="weight").weight
            assert dict(seen.refusals)["statistics"]
            assert_same(seen.statistics, statistics(weight, ASKED))


def test_several_mechanisms_in_one_layer() -> None:
    x = torch.randn(2, 6, 8)
    lanes = [(build(name, query=2, key=2, value=2, heads=2), 2) for name in ("dot", "additive")]
    heads = heed.MultiHeadAttention(8, 4, mechanism=HeadGroups(lanes)).eval()
    seen, want = heads(x, statistics=ASKED), heads(x, need="weight")
    assert_same(seen.statistics, statistics(want.weight, ASKED))


def test_statistics_of_steps_can_be_joined() -> None:
    attend = heed.Attention("additive", query=8)
    x = torch.randn(2, 4, 8)
    memory, state, records = attend.remember(x), heed.State(), []
    for t in range(4):
        records.append(attend(x[:, t : t + 1], memory, state, statistics=Summary(top=2)))
        state = records[-1].state
    joined = heed.Attended.join(records)
    whole = attend(x, memory, heed.State(), statistics=Summary(top=2))
    assert_same(joined.statistics, whole.statistics)


def test_no_query_and_no_key_have_empty_statistics() -> None:
    q = torch.randn(2, 2, 0, 4)
    k = torch.randn(2, 2, 3, 4)
    seen = heed.attend(q, k, k, statistics=Summary(top=2, map=(2, 2)))
    assert seen.statistics.entropy.shape == (2, 2, 0)
    assert not seen.statistics.received.any()
    seen = heed.attend(k, q, q, statistics=Summary(rows=(2, 0)))
    assert seen.statistics.rows.shape == (2, 2, 2, 0)
    assert seen.statistics.received.shape == (2, 2, 0)
    assert not seen.statistics.entropy.any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top": -1}, "top is a whole number"),
        ({"map": 256}, "rows and columns"),
        ({"map": (0, 3)}, "1 or more"),
        ({"rows": (-1,)}, "a row is a whole number"),
        ({"received": 0}, "True or False"),
        ({"received": False, "top": 1}, "second pass"),
        ({"received": False, "map": (2, 2)}, "second pass"),
    ],
)
def test_an_invalid_summary_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        Summary(**wrong)


@pytest.mark.parametrize("name", ["scaled-dot", "additive", "local-p", "mixed", "monotonic"])
def test_statistics_of_queries_alone_are_the_same(name: str) -> None:
    attend, x = heed.Attention(name, query=8).eval(), torch.randn(2, 6, 8)
    got = attend(x, statistics=Summary(received=False, rows=(2,)))
    want = attend(x, statistics=Summary(rows=(2,))).statistics
    assert got.statistics.received is None
    assert_same(got.statistics, want._replace(received=None))
    halves = [attend(x[:, i : i + 3], x, statistics=Summary(received=False)) for i in (0, 3)]
    assert Statistics.join([half.statistics for half in halves]).received is None


def test_only_a_summary_is_accepted() -> None:
    wrong: Any = "entropy"
    with pytest.raises(Refused, match=r"True or heed\.Summary"):
        heed.attend(*(torch.randn(1, 1, 2, 4) for _ in range(3)), statistics=wrong)


def energies(case: Case) -> tuple[Any, Tensor, Tensor]:
    """Statistics of a call; the energies of that call, and which of them its queries may see."""
    attend, (q, k, v) = case.build(), case.inputs()
    ok = torch.rand(len(q), q.shape[1], k.shape[1]) > 0.3
    ok[0, 0] = False  # a query that sees nothing
    memory = attend.remember(k, v, heed.lengths([k.shape[1], 3, 0]))
    asked: dict[str, Any] = {"visible": ok, "statistics": True}
    seen = attend(q, memory, case.first, **asked)
    dense = attend(q, memory, case.first, visible=ok, need="energy")
    there = heed.lengths([k.shape[1], 3, 0]).dense(Places(1, k.shape[1], 0, 0, k.device))
    return seen, dense.energy, ok[:, None] & there


PLAIN_REACH = [
    case
    for case in CASES
    if not case.words & {"mixed", "expanded-window", "local-m", "local-p", "fixed-window"}
    and case.parts["read"] != "pointer"
]


@every(PLAIN_REACH)
def test_the_largest_energy_is_that_of_the_keys_that_are_seen(case: Case) -> None:
    """By hand from all energies, for every score, past and align; -inf where nothing is seen."""
    seen, energy, ok = energies(case)
    want = energy.masked_fill(~ok, -torch.inf).amax(-1)
    assert (want == -torch.inf).any()
    torch.testing.assert_close(seen.statistics.largest, want)


@pytest.mark.parametrize("off", [(), ("statistics",), ("statistics", "window", "sdpa", "banded")])
@pytest.mark.parametrize("size", [1.0, 40.0, 3000.0])
@pytest.mark.parametrize("reach", ["global", "local-m", "local-p", "fixed-window"])
def test_the_largest_energy_by_hand(reach: str, size: float, off: tuple[str, ...]) -> None:
    """From the formulas of Luong and Vaswani: a gain on the weights changes no energy."""
    B, H, T, S, D = 2, 3, 11, 90, 8  # long enough for the kernel of windows
    options = {} if reach == "global" else {"window": 3}
    mechanism = build(f"{reach}/scaled-dot", query=D, key=D, heads=H, **options)
    q, k = size * torch.randn(B, H, T, D), torch.randn(B, H, S, D)
    steps, keys = torch.arange(T), torch.arange(S)
    near = torch.ones(B, H, T, S, dtype=torch.bool)
    if reach == "local-m":
        near = ((keys - steps[:, None]).abs() <= 3).expand_as(near)
    if reach == "fixed-window":
        near = ((keys - steps[:, None]).abs() <= 3).expand_as(near)
    if reach == "local-p":
        part = mechanism.reach
        inside = torch.einsum("bhtm,hdm->bhtd", q, part.weight).tanh()
        centre = torch.einsum("bhtd,hd->bht", inside, part.vector[:, 0]).sigmoid() * (S - 1)
        near = (keys - centre[..., None]).abs() <= 3
    energy = (q.double() @ k.double().mT) / D**0.5
    want = energy.masked_fill(~near, -torch.inf).amax(-1)
    state = heed.State(0, origin=0)
    with torch.no_grad(), heed.kernels.off(*off) if off else contextlib.nullcontext():
        seen = mechanism(q, mechanism.remember(k), state, statistics=True)
    assert (seen.kernel == "reference") == (len(off) > 1)
    assert ("statistics" in dict(seen.refusals)) == (len(off) == 1)
    torch.testing.assert_close(seen.statistics.largest.double(), want, rtol=1e-6, atol=1e-5 * size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sharp_row_tells_its_largest_energy(dtype: torch.dtype) -> None:
    """The peak is 1 and all else is nothing; or 4096 keys are equal, and it is tiny."""
    q = torch.tensor([[[[256.0]], [[-1.0]]]], dtype=dtype)  # 1 2 1 1
    k = torch.zeros(1, 2, 4096, 1, dtype=dtype)
    k[0, 0, 7], k[0, 1] = 96.0, 2.0
    seen = heed.attend(q, k, k, "dot", statistics=True)
    torch.testing.assert_close(
        seen.statistics.largest.flatten().double(), torch.tensor([24576.0, -2.0], dtype=DOUBLE),
        rtol=1e-6, atol=0,
    )  # fmt: skip


def test_the_largest_energy_of_lanes_blocks_and_groups() -> None:
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 9, 4)
    mixed = build("mixed/scaled-dot", query=4, key=4, heads=2, window=1)
    told = mixed(q, mixed.remember(k), statistics=True).statistics.largest
    want = (q @ k.mT / 2).amax(-1)  # one of the lanes sees every key, the other no other energies
    torch.testing.assert_close(told, want)

    blocks = build("expanded-window/dot", query=4, key=4, window=0, block=3)
    first = heed.State(0, origin=0)
    told = blocks(q[:, :, :1], blocks.remember(k), first, statistics=True).statistics.largest
    single = (q[:, :, :1] @ k[:, :, :3].mT)[..., 0, :]  # the block at the window, key by key
    means = k.unflatten(2, (3, 3)).mean(3)[:, :, 1:]
    far = (q[:, :, :1] @ means.mT)[..., 0, :] + math.log(3)
    torch.testing.assert_close(told[..., 0], torch.cat([single, far], -1).amax(-1))

    groups = HeadGroups([(build(x, query=4, key=4), 1) for x in ("dot", "scaled-dot")])
    told = groups(q, groups.remember(k), statistics=True).statistics.largest
    energy = q @ k.mT * torch.tensor([1, 0.5])[:, None, None]
    torch.testing.assert_close(told, energy.amax(-1))


def test_the_largest_energy_of_no_keys_and_of_weights_alone() -> None:
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 0, 4)
    told = heed.attend(q, k, k, statistics=True).statistics.largest
    assert told is not None
    assert (told == -torch.inf).all()
    assert told.shape == (2, 2, 5)
    assert statistics(torch.rand(1, 1, 2, 3)).largest is None


def test_the_largest_energy_is_watched_joined_and_stored(tmp_path: Path) -> None:
    attend, x = heed.MultiHeadAttention(8, 2), torch.randn(2, 6, 8)
    with heed.watch(attend, statistics=True) as seen:
        whole = attend(x, visible=heed.causal(), need="energy")
        memory = attend.remember(x)
        for t in range(6):
            attend(x[:, t : t + 1], memory, heed.State(t), visible=heed.causal())
    ok = torch.ones(6, 6, dtype=torch.bool).tril()
    want = whole.energy.masked_fill(~ok, -torch.inf).amax(-1)
    first, *steps = seen[""]
    torch.testing.assert_close(first.statistics.largest, want)
    joined = heed.Attended.join(steps).statistics
    torch.testing.assert_close(joined.largest, want)
    seen.save(tmp_path / "seen")
    assert torch.equal(heed.load_watch(tmp_path / "seen")[""][0].statistics.largest, want)
