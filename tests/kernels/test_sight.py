"""Visibility as kernels take it: what does not fit the attention is refused before C reads it."""

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.memory import Memory
from heed.attention.reach import Reach, Reached
from heed.attention.score import Additive, ScaledDot
from heed.errors import ShapeError
from heed.kernels.choose import NAMES, off
from heed.visible import Gaussian, Near, Places, Visible, both

B, H, T, S, D = 2, 2, 150, 200, 4


class Around(Reach):
    """A reach of one's own: a window around given places, and a Gaussian."""

    def __init__(self, centre: Tensor, gain: Tensor) -> None:
        super().__init__()
        self.centre, self.gain = centre, gain

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        return Reached(memory, both(visible, Near(self.centre, 9)), Gaussian(self.gain, 5.0))


def made(score: type, centre: tuple[int, ...], gain: tuple[int, ...]) -> heed.Mechanism:
    around = Around(*(95 + 5 * torch.rand(shape) for shape in (centre, gain)))
    return heed.Mechanism(score=score(query=D, key=D), reach=around)


@pytest.mark.parametrize("score", [ScaledDot, Additive])
@pytest.mark.parametrize("shape", [(B, H, T), (1, 1, T), (B, 1, 1), (1, H, 1), (1, 1, 1)], ids=str)
def test_one_centre_may_serve_all(score: type, shape: tuple[int, ...]) -> None:
    query, keys = torch.randn(B, H, T, D), torch.randn(B, H, S, D)
    for shapes in ((shape, (B, H, T)), ((B, H, T), shape)):
        mechanism = made(score, *shapes)
        ours = mechanism(query, mechanism.remember(keys), statistics=True)
        with off(*NAMES):
            theirs = mechanism(query, mechanism.remember(keys), statistics=True)
        assert ours.kernel == ("window" if score is ScaledDot else "additive")
        torch.testing.assert_close(ours.context, theirs.context, rtol=1e-4, atol=1e-5)
        for x, y in zip(ours.statistics[:6], theirs.statistics[:6], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("score", [ScaledDot, Additive])
@pytest.mark.parametrize("shape", [(B, H, T - 1), (B, 3, T), (3, H, T), (B, H, 2)], ids=str)
def test_centres_that_do_not_fit_are_refused(score: type, shape: tuple[int, ...]) -> None:
    query, keys = torch.randn(B, H, T, D), torch.randn(B, H, S, D)
    for shapes in ((shape, (B, H, T)), ((B, H, T), shape)):
        mechanism = made(score, *shapes)
        with pytest.raises(ShapeError):
            mechanism(query, mechanism.remember(keys))
