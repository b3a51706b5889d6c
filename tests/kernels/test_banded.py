"""Fixed windows in blocks, compared with their twin, the reference under the same mask."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import heed
from heed.kernels import KERNELS


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Without the kernel that would serve such calls first."""
    with heed.kernels.off(*KERNELS.keys() & {"window"}):
        yield


SHAPES = [  # T, half, H, G
    (257, 0, 1, 1),
    (300, 5, 2, 2),
    (333, 63, 2, 1),
    (513, 64, 4, 2),
    (587, 100, 3, 3),
    (1023, 65, 2, 2),
]


def tensors(T: int, H: int, G: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(2, H, T, 8), (2, G, T, 8), (2, G, T, 5)]
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def both_ways(
    q: Tensor, k: Tensor, v: Tensor, visible: heed.Visible
) -> tuple[list[Tensor], list[Tensor]]:
    """Context and gradients in blocks, and by the reference in float64."""
    pull = torch.randn(*q.shape[:3], v.shape[3])

    def outcome(q: Tensor, k: Tensor, v: Tensor, kernel: str) -> list[Tensor]:
        seen = heed.attend(q, k, v, visible=visible)
        assert seen.kernel == kernel
        return [
            seen.context,
            *torch.autograd.grad((seen.context * pull.to(q.dtype)).sum(), (q, k, v)),
        ]

    ours = outcome(q, k, v, "banded")
    with heed.kernels.off("banded", "sdpa"):
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        return ours, outcome(*wide, kernel="reference")


@pytest.mark.parametrize(("T", "half", "H", "G"), SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_it_agrees_with_the_reference(T: int, half: int, H: int, G: int, causal: bool) -> None:
    visible = heed.window(half) & heed.lengths([T, T // 3])
    ours, exact = both_ways(*tensors(T, H, G), visible & heed.causal() if causal else visible)
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_errs_no_more_than_its_rounding(dtype: torch.dtype) -> None:
    ours, exact = both_ways(*tensors(401, 2, 2, dtype), heed.window(7))
    eps = torch.finfo(dtype).eps
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine.double() - theirs).abs().max() <= 2 * eps * theirs.abs().max()


def test_rows_that_see_nothing_are_zero_and_padding_may_hold_nan() -> None:
    q, k, v = (x.detach() for x in tensors(300, 2, 2))
    visible = heed.window(3) & heed.lengths([300, 100])
    clean = heed.attend(q, k, v, visible=visible).context
    k[1, :, 100:] = torch.nan
    v[1, :, 100:] = torch.inf
    poisoned = heed.attend(q, k, v, visible=visible).context
    assert torch.equal(clean, poisoned)
    assert clean[1, :, 103:].eq(0).all()  # more than 3 positions after the end
    assert clean[1, :, :103].ne(0).all()


def test_it_serves_heads_by_name() -> None:
    layer = heed.MultiHeadAttention(16, 4, mechanism="fixed-window", window=9)
    x = torch.randn(2, 400, 16)
    seen = layer(x)
    assert seen.kernel == "banded"
    with heed.kernels.off("banded", "sdpa"):
        torch.testing.assert_close(seen.context, layer(x).context)


@pytest.mark.parametrize(
    ("visible", "T", "S", "words"),
    [
        (heed.causal(), 300, 300, "there is no fixed window"),
        (heed.window(5), 250, 250, "short enough for one mask"),
        (heed.window(5), 300, 400, "T = S"),
        (heed.window(5) | heed.causal(), 300, 300, "there is no fixed window"),
        (heed.window(5) & ~heed.causal(), 300, 300, "no other mask"),
    ],
)
def test_a_refusal_gives_its_reason(visible: heed.Visible, T: int, S: int, words: str) -> None:
    q, k = torch.randn(1, 1, T, 4), torch.randn(1, 1, S, 4)
    with heed.kernels.off("sdpa"):
        seen = heed.attend(q, k, k, visible=visible)
    assert seen.kernel == "reference"
    assert words in seen.why


def test_memory_grows_with_the_length_not_its_square() -> None:
    T = 262_144  # a mask of T² booleans would take 64 gigabytes
    q = torch.randn(1, 1, T, 4)
    assert heed.attend(q, q, q, visible=heed.window(16)).kernel == "banded"
