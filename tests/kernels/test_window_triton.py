"""The Triton kernels of windows, compared with their twin; in the interpreter without a GPU."""

import pytest
import torch
from torch import Tensor

from heed.kernels import window
from heed.kernels.window import plain as formula
from heed.kernels.window.geometry import Geometry, by_rows
from heed.kernels.window.tuned import Tile
from heed.records import Call
from tests.kernels.windows import REACHES, TABLES, Case, introduce, plain, with_gradients

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU has its own tests")

TILE = Tile(16, 16, 4, 1)
SHAPES = [(1, 1), (2, 7), (17, 49)]  # the interpreter is slow: one tile, or two by four


def launched(call: Call, order: bool = True, seed: int | None = None) -> Tensor:
    """The context, with gradients by backward; small tiles throughout."""
    see = window.geometry(call)
    if seed is not None:
        see.seed = torch.tensor([seed])
    peak = see.peak if see.peak is not None else call.q.new_zeros(())
    context: Tensor = Launched.apply(call.q, call.k, call.v, peak, see, order)
    return context


class Launched(torch.autograd.Function):
    """Both launchers, tied together."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        peak: Tensor,
        see: Geometry,
        order: bool,
    ) -> Tensor:
        from heed.kernels.window import forward

        q, k, v = (by_rows(x) for x in (q, k, v))
        if order and see.centre is not None and not see.rising:
            see.order, see.ranked = forward.ordered(see.centre, see.S(k))
        context, lse = forward.forward(q, k, v, see, TILE)
        ctx.save_for_backward(q, k, v, context, lse)
        ctx.see = see  # type: ignore[attr-defined]
        return context

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        from heed.kernels.window import backward

        sizes = dict.fromkeys(("queries", "keys", "keys in order"), TILE)
        saved = ctx.saved_tensors  # type: ignore[attr-defined]
        see = ctx.see  # type: ignore[attr-defined]
        return *backward.backward(*saved, by_rows(grad), see, sizes), None, None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reach", REACHES)
def test_the_twins_agree(reach: str, table: str, shape: tuple[int, int]) -> None:
    heads = {1: (1, 1), 2: (2, 1), 17: (1, 1)}[shape[0]]
    widths = {1: (8, 8), 2: (21, 5), 17: (16, 32)}[shape[0]]
    introduce(Case(reach, table, *shape, heads, widths, B=1 + (shape[0] == 17)), launched)


WIDE = [(257, 300), (300, 16), (8, 512), (512, 257)]  # of keys, of values, of both


@pytest.mark.parametrize(("D", "R"), WIDE)
@pytest.mark.parametrize("reach", REACHES)
def test_wide_heads_are_cut(reach: str, D: int, R: int) -> None:
    table = dict(zip(REACHES, ("padded", "causal", "holes", "causal and padded"), strict=True))
    introduce(Case(reach, table[reach], 5, 20, (2, 1), (D, R), B=1), launched)


def test_dropout_of_wide_heads_drops_what_its_mask_says() -> None:
    """Each program that sums a slice must draw the same mask."""
    case = Case("local-p", "causal", 9, 9, (1, 1), (300, 300), dropout=0.3, B=1)
    leaves, loss = case.leaves(), torch.randn(1, 1, 9, 300)
    see = window.geometry(case.call(*leaves))
    see.seed = torch.tensor([77])
    kept = formula.kept(see, 1, 1, 9, 9)
    got = with_gradients(lambda *x: launched(case.call(*x), seed=77), leaves, loss)
    want = with_gradients(lambda *x: plain(case.call(*x), kept), leaves, loss)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("table", TABLES)
def test_queries_in_any_order(table: str) -> None:
    """Few queries are not sorted: windows far apart are in one tile."""
    introduce(Case("local-p", table, 17, 40, (1, 1), B=2), lambda call: launched(call, order=False))


@pytest.mark.parametrize("half", [1, 20])
@pytest.mark.parametrize("reach", REACHES)
def test_narrow_and_wide_windows(reach: str, half: int) -> None:
    introduce(Case(reach, "causal and padded", 20, 33, (1, 1), half=half), launched)


def test_a_centre_near_an_edge_sees_what_the_reference_sees() -> None:
    """|s - p| is compared as float32 rounds it, at all positions where rounding could matter."""
    centre = torch.tensor([121.99999237, 128.0, 5.0000005, -3.0, 1e9, torch.nan, 0.5, 250.5])
    case = Case("local-p", "everything", 8, 260, (1, 1), B=1, half=128)
    q, k, v, _ = case.leaves()
    call = case.call(q, k, v, centre.view(1, 1, 8))
    see = window.geometry(call)
    ok = formula.seen(see, 8, 260, q.device)
    call.gain = None
    torch.testing.assert_close(launched(call, order=False), plain(call))
    assert torch.equal(ok, call.dense_visible())
    assert ok.any(-1).tolist() == [[[True, True, True, True, False, False, True, True]]]


@pytest.mark.parametrize(("reach", "p"), [*((reach, 0.3) for reach in REACHES), ("local-p", 1.0)])
def test_dropout_drops_what_its_mask_says(reach: str, p: float) -> None:
    case = Case(reach, "causal", 20, 20, (2, 1), dropout=p, B=1)
    leaves = case.leaves()
    see = window.geometry(case.call(*leaves))
    see.seed = torch.tensor([2**61 + 12345])
    kept = formula.kept(see, 1, 2, 20, case.call(*leaves).k.shape[2])
    assert abs(kept.float().mean().item() - (1 - p)) < 0.06
    loss = torch.randn(1, 2, 20, 8)
    got = with_gradients(lambda *x: launched(case.call(*x), seed=2**61 + 12345), leaves, loss)
    if p == 1:
        assert not any(x.any() for x in got)
        return
    want = with_gradients(lambda *x: plain(case.call(*x), kept), leaves, loss)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("reach", "table", "order"),
    [
        ("local-p", "padded", True),
        ("local-p", "padded", False),
        ("local-p", "everything", True),
        ("local-p", "causal", False),
        ("fixed-window", "padded", True),
        ("fixed-window", "causal", True),
    ],
)
def test_hidden_keys_change_no_bit(reach: str, table: str, order: bool) -> None:
    """NaN, which spoils sums, and infinity, which wins a maximum, at every other key."""
    case = Case(reach, table, 18, 40, (1, 1))
    leaves = case.leaves()
    leaves[3] = leaves[3] // 15 * 15 + 0.5  # few centres, with gaps between windows
    ok = case.call(*leaves).dense_visible()
    assert ok is not None
    unseen = ~ok.any(2).any(1)[:, None, :, None]
    assert unseen.any()
    poison = torch.tensor([torch.nan, torch.inf]).repeat(20)[:, None]
    bad = [leaves[0], *(torch.where(unseen, poison, x) for x in leaves[1:3]), leaves[3]]
    loss = torch.randn(2, 1, 18, 8)
    clean, dirty = (
        with_gradients(lambda *x: launched(case.call(*x), order=order), y, loss)
        for y in (leaves, bad)
    )
    for x, y in zip(clean, dirty, strict=True):
        assert torch.equal(x, y)


def test_unusual_memory_layouts() -> None:
    """Heads after time, every other row, and the last axis far apart."""
    case = Case("local-p", "padded", 17, 20)
    q, k, v, centre = case.leaves()
    want = plain(case.call(q, k, v, centre))
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k = torch.stack([k, k], 3).flatten(2, 3)[:, :, ::2]
    v = v.mT.contiguous().mT
    torch.testing.assert_close(launched(case.call(q, k, v, centre)), want)
