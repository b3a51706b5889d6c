"""A GRU's step in C meets its twin, operation by operation in PyTorch."""

import pytest
import torch
from torch import Tensor

import heed
from heed.kernels import native
from heed.kernels.cell import native as kernel
from heed.models import unrolled

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))


@pytest.fixture(params=native.LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of one kind of processor after another, as far as this one has them."""
    if native.LEVELS.index(request.param) > native.LEVELS.index(native.level()):
        pytest.skip(f"this processor is no {request.param}")
    for name in ("ahead", "back"):
        layout = getattr(kernel, f"_{name}").layout
        function = native.Function(f"heed_gru_{name}", layout, at=request.param)
        monkeypatch.setattr(kernel, f"_{name}", function)


def both_ways(x: Tensor, gates: Tensor, h: Tensor, by: Tensor) -> list[Tensor]:
    """A step ahead and back: all that comes of it."""
    gates = gates.clone()
    (after,), kept = unrolled.gru_ahead(x, gates, (h,))
    room = (torch.full_like(gates, torch.nan), torch.full_like(gates, torch.nan))
    (direct,) = unrolled.gru_back((by,), (h,), kept, room)
    assert direct is not None
    return [after, *kept, *room, direct]


def drawn(B: int, H: int) -> list[Tensor]:
    """Rows of which none follows the one before it without a gap."""
    shapes = (3 * H, 3 * H, H, H)
    x, gates, h, by = ((3 * torch.randn(B, width + 3))[:, :width] for width in shapes)
    return [x, gates.contiguous(), h, by]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(("B", "H"), [(0, 4), (1, 1), (3, 7), (17, 33), (40, 16)])
def test_a_step_is_that_of_pytorch(B: int, H: int) -> None:
    given = drawn(B, H)
    assert kernel.serves(given[0])
    assert not kernel.serves(given[0].double())
    with heed.kernels.off("cell"):
        assert not kernel.serves(given[0])
    exact = both_ways(*(x.double() for x in given))
    for ours, theirs in zip(both_ways(*given), exact, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


def test_gates_far_from_zero_are_shut_or_open() -> None:
    x = torch.tensor([[-1e4, 1e4, 1e4]])
    after, new = kernel.gru_ahead(x, torch.zeros(1, 3), torch.tensor([[0.25]]))
    assert (after.item(), new.item()) == (0.25, 1)


def test_what_is_no_number_stays_one() -> None:
    x = torch.zeros(2, 3 * 5)
    x[1] = torch.tensor(0x7FC001FF, dtype=torch.int32).view(torch.float32)  # one of the many NaNs
    gates = torch.zeros_like(x)
    after, new = kernel.gru_ahead(x, gates, torch.zeros(2, 5))
    assert all(found.isnan()[1].all() and not found.isnan()[0].any() for found in (after, new))
    assert gates[1, :10].isnan().all()


def test_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = drawn(70, 24), []
    for threads in (1, 3):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        found.append(both_ways(*given))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
