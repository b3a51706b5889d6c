"""One look in C, compared with its twin in heed/kernels/single.py, forward and backward."""

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.loop import AttentionLoop
from heed.kernels import native, single
from heed.kernels.look import native as kernel

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))

SIZES = [(0, 3, 4, 5), (1, 1, 1, 1), (3, 7, 33, 64), (5, 24, 64, 17), (70, 40, 16, 130)]  # N S D R


@pytest.fixture(params=native.LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of each instruction set that this processor supports."""
    if native.LEVELS.index(request.param) > native.LEVELS.index(native.level()):
        pytest.skip(f"this processor is no {request.param}")
    for name in ("ahead", "back"):
        layout = getattr(kernel, f"_{name}").layout
        function = native.Function(f"heed_look_{name}", layout, at=request.param)
        monkeypatch.setattr(kernel, f"_{name}", function)


def drawn(N: int, S: int, D: int, R: int, scale: float = 1.0) -> list[Tensor]:
    """Queries, keys, values and a gradient; keys and values are halves of one projection."""
    q, both, by = torch.randn(N, 1, D), torch.randn(N, S, D + R), torch.randn(N, 1, R)
    return [q * scale, both[..., :D], both[..., D:], by]


def told(q: Tensor, k: Tensor, v: Tensor, by: Tensor, hidden: Tensor | None) -> list[Tensor]:
    context, weight = single._look(q, k, v, hidden, 0.7)
    return [context, weight, *single._look_back(by, k, v, weight, 0.7)]


def found(q: Tensor, k: Tensor, v: Tensor, by: Tensor, hidden: Tensor | None) -> list[Tensor]:
    context, weight = kernel.ahead(q, k, v, hidden, 0.7)
    return [context, weight, *kernel.back(by, k, v, weight, 0.7)]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1, 30])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_twins_agree(size: tuple[int, ...], scale: float, hides: bool) -> None:
    given = drawn(*size, scale)
    assert kernel.serves(*given[:3])
    hidden = torch.rand(size[0], 1, size[1]) > 0.6 if hides else None
    exact = told(*(x.double() for x in given), hidden)
    plain, ours = told(*given, hidden), found(*given, hidden)
    for i, (x, y, z) in enumerate(zip(ours, plain, exact, strict=True)):
        if not z.numel():
            assert x.shape == z.shape
            continue
        floor = 4e-7 * z.abs().max() * max(scale, 1)
        assert (x - z).abs().max() <= (2 if i < 2 else 3) * (y - z).abs().max() + floor


def test_hidden_keys_change_no_bit() -> None:
    q, k, v, by = drawn(6, 9, 20, 7)
    hidden = torch.arange(9) >= torch.tensor([9, 4, 0, 1, 8, 5])[:, None, None]
    want = found(q, k, v, by, hidden)
    k, v = (x.masked_fill(hidden.mT, torch.nan) for x in (k, v))
    context, weight = kernel.ahead(q, k, v.nan_to_num(), hidden, 0.7)
    assert torch.equal(context, want[0])
    assert torch.equal(weight, want[1])
    assert not context[2].any()


def test_nan_stays_nan() -> None:
    q, k, v, _ = drawn(2, 5, 8, 8)
    k[1, 3, 2] = torch.nan
    context, _ = kernel.ahead(q, k, v, None, 1.0)
    assert context[1].isnan().all()
    assert context[0].isfinite().all()


def test_rows_must_be_contiguous() -> None:
    x = torch.randn(3, 4, 8)
    assert kernel.serves(x, x[..., 2:])
    assert not kernel.serves(x.mT)
    assert not kernel.serves(x.double())
    assert not kernel.serves(torch._neg_view(x))  # whose signs in memory are inverted


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    given, each = drawn(70, 24, 33, 40), []
    for threads in (1, 3):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        each.append(found(*given, None))
    assert all(torch.equal(a, b) for a, b in zip(*each, strict=True))


def test_a_query_of_nan_gives_nan_beside_hidden_keys_too() -> None:
    q, k, v, _ = drawn(1, 5, 8, 8)
    hidden = (torch.arange(5) >= 3)[None, None]
    context, weight = kernel.ahead(torch.full_like(q, torch.nan), k, v, hidden, 1.0)
    assert context.isnan().all()
    assert weight[..., :3].isnan().all()
    k[:, 2] = torch.nan  # the last visible key
    assert kernel.ahead(q, k, v, hidden, 1.0)[0].isnan().all()


def test_a_mask_may_have_any_layout() -> None:
    attend, keys = heed.Attention("dot", query=8, key=8), torch.randn(3, 5, 8, requires_grad=True)
    mask = (torch.rand(5, 3) > 0.4).t()
    mask[:, 0] = True
    query = torch.randn(3, 1, 8)
    for visible in (mask, mask.contiguous()):
        got = AttentionLoop(attend, attend.remember(keys, visible=visible))(query, heed.State())
        want = attend(query, attend.remember(keys.detach(), visible=mask), heed.State())
        torch.testing.assert_close(got.context, want.context)
