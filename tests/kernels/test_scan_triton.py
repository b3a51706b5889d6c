"""The Triton kernels of walks, compared with their twins; in the interpreter without a GPU.

The interpreter is slow, so lengths are small, and tiles so narrow that rows have several.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from heed.attention import moving_aligns
from heed.kernels import scan
from heed.kernels.scan import operator

pytest.importorskip("triton")

from heed.kernels.scan import backward, forward

DOUBLE = torch.float64
WALKS = ("monotonic", "hard", "forward", "agent", "forced")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHORT = ((1, 1, 128), (2, 7, 128), (3, 33, 16), (2, 65, 32))
"""T and S, and how many keys are taken at a time."""

# How many epsilons of the largest number are tolerated.
OUT, GRAD = 16, 64


Tile = Callable[[int], None]


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch) -> Tile:
    """Set how many keys are taken at a time."""

    def take(width: int) -> None:
        for module in (forward, backward):
            for name in ("tile", "mixture_tile"):
                monkeypatch.setattr(module, name, lambda S: {"BLOCK": width, "num_warps": 1})

    return take


def inputs(walk: str, B: int, T: int, S: int, masked: bool, given: bool) -> tuple[str, list[Any]]:
    """The kind; energies, visibility, initial state, coverage, moves.    H = 1"""
    energy = 2 * torch.randn(B, 1, T, S, device=DEVICE)
    ok = torch.rand(B, 1, T, S, device=DEVICE) > 0.4 if masked else None
    if ok is not None:
        ok[:, :, 0, 12:20] = ok[:, :, 0, 30:40] = False  # gaps between tiles
        ok[0, :, T // 2] = False
    before = torch.zeros(B, 1, S, device=DEVICE)
    before[..., 0] = 1
    covered = torch.zeros_like(before)
    if given:
        before, covered = torch.randn_like(before).softmax(-1) * 0.9, torch.rand_like(before) * 1.2
    kind = "forward" if walk == "agent" else walk
    move = torch.rand(B, 1, T, device=DEVICE) if walk == "agent" else None
    return kind, [energy, ok, before, covered if kind == "forced" else None, move]


def by_twin(kind: str, given: list[Any], dtype: torch.dtype) -> list[Tensor]:
    """Weights and final state, then the gradients of all inputs."""
    given = [
        x if x is None or x.dtype == torch.bool else x.to(dtype).requires_grad_() for x in given
    ]
    found = operator.TWINS["scan"](kind, *given)
    leaves = [x for x in given if x is not None and x.requires_grad]
    slopes = [slope(x) for x in found]
    grads = torch.autograd.grad(found, leaves, slopes, allow_unused=True, materialize_grads=True)
    return [*(x.detach() for x in found), *grads]


def by_kernel(kind: str, given: list[Any]) -> list[Tensor]:
    """The same by the launchers."""
    weight, last, used, stand = forward.walk(kind, *given)
    d_used = slope(used) if used.numel() else None
    grads = backward.walk(kind, *given, weight, stand, slope(weight), slope(last), d_used)
    return [x for x in (weight, last, used, *grads) if x.numel()]


def slope(x: Tensor) -> Tensor:
    return (
        torch.linspace(-1, 1, x.numel(), dtype=DOUBLE, device=x.device).view_as(x).sin().to(x.dtype)
    )


def moved(kind: str, given: list[Any], exact: list[Tensor]) -> list[float]:
    """How far a last bit of the inputs moves each of the exact results."""
    most = [0.0] * len(exact)
    for _ in range(4):
        near = [
            x if x is None or x.dtype == torch.bool else x.double() * (1 + 2**-24 * signs(x))
            for x in given
        ]
        found = zip(by_twin(kind, near, DOUBLE), exact, strict=True)
        most = [max(m, (x - z).abs().max().item()) for m, (x, z) in zip(most, found, strict=True)]
    return most


def signs(x: Tensor) -> Tensor:
    return torch.randint(2, x.shape, device=x.device) * 2 - 1


def assert_near(
    got: list[Tensor],
    plain: list[Tensor],
    exact: list[Tensor],
    n: int,
    bits: list[float] | None = None,
) -> None:
    """Contract 5, for n outputs and then their gradients.

    bits  for forced: 1 - cov cancels, so its error is a last bit divided by a small number, and
    either of two computations can be the better one; this is how far a last bit of the inputs moves
    the exact results
    """
    forced, bits = bits is not None, bits or [0.0] * len(got)
    for i, (x, y, z) in enumerate(zip(got, plain, exact, strict=True)):
        assert x.isfinite().all()
        times, epsilons = (2, OUT) if i < n else (3, GRAD)
        epsilons *= 4 if forced else 1
        floor = epsilons * torch.finfo(x.dtype).eps * z.abs().max().clamp(min=1).item()
        allowed = max(times * (y.double() - z).abs().max().item(), times * bits[i], floor)
        assert (x.double() - z).abs().max().item() <= allowed, f"number {i}"


def check(walk: str, B: int, T: int, S: int, masked: bool, given: bool) -> None:
    kind, asked = inputs(walk, B, T, S, masked, given)
    got = by_kernel(kind, asked)
    exact, plain = by_twin(kind, asked, DOUBLE), by_twin(kind, asked, torch.float32)
    forced = kind == "forced"
    bits = moved(kind, asked, exact) if forced else None
    assert_near(got, plain, exact, 3 if forced else 2, bits)
    ok = asked[1]
    if ok is not None:
        assert not got[0].masked_select(~ok).any()
        assert not got[3 if forced else 2].masked_select(~ok).any()


@pytest.mark.parametrize("given", [False, True], ids=["first", "given"])
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("shape", SHORT)
@pytest.mark.parametrize("walk", WALKS)
def test_the_twins_agree(
    walk: str, shape: tuple[int, int, int], masked: bool, given: bool, tile: Tile
) -> None:
    T, S, width = shape
    tile(width)
    check(walk, 1, T, S, masked, given)


@pytest.mark.parametrize("walk", WALKS)
def test_nan_in_hidden_keys_changes_no_bit(walk: str, tile: Tile) -> None:
    tile(16)
    kind, asked = inputs(walk, 1, 2, 21, True, True)
    bad = [asked[0].masked_fill(~asked[1], torch.nan), *asked[1:]]
    for x, y in zip(by_kernel(kind, bad), by_kernel(kind, asked), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("walk", WALKS)
def test_any_layout_is_accepted(walk: str, tile: Tile) -> None:
    tile(16)
    kind, asked = inputs(walk, 2, 2, 18, True, True)
    turned = [x if x is None else x.mT.contiguous().mT for x in asked]
    for x, y in zip(by_kernel(kind, turned), by_kernel(kind, asked), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize(("K", "T", "S"), [(1, 1, 1), (3, 2, 33), (2, 3, 65)])
def test_mixtures_agree(K: int, T: int, S: int, masked: bool, tile: Tile) -> None:
    tile(32)
    height, sharpness, centre = torch.rand(3, 2, 1, T, K, device=DEVICE)
    parts = [height, sharpness, centre * S]
    ok = (torch.rand(2, 1, T, S, device=DEVICE) > 0.4) if masked else None
    results = [[forward.mix(*parts, ok, S)]]
    results[0] += backward.mix(*parts, ok, slope(results[0][0]))
    for dtype in (torch.float32, DOUBLE):
        leaves = [x.to(dtype).requires_grad_() for x in parts]
        weight = moving_aligns._twin_mixture(*leaves, ok, S)
        grads = torch.autograd.grad(weight, leaves, slope(weight))
        results.append([weight.detach(), *grads])
    assert_near(*results, n=1)


LONG = list(
    itertools.product(
        WALKS,
        (1, 2, 7, 31, 33, 63, 65, 127, 129, 143, 513, 587, 1025, 2048, 5000),
        (1, 8),
        (False, True),
        (False, True),
    )
)


@pytest.mark.gpu
@pytest.mark.parametrize(("walk", "S", "B", "masked", "given"), LONG)
def test_the_twins_agree_at_full_length(
    walk: str, S: int, B: int, masked: bool, given: bool
) -> None:
    for T in (1, 5, 12):
        check(walk, B, T, S, masked, given)


@pytest.mark.gpu
@pytest.mark.parametrize("walk", WALKS)
def test_repeats_give_equal_bits(walk: str) -> None:
    kind, asked = inputs(walk, 8, 20, 300, True, True)
    want = by_kernel(kind, asked)
    for _ in range(250):
        for x, y in zip(by_kernel(kind, asked), want, strict=True):
            assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("walk", ["monotonic", "agent", "forced"])
def test_offsets_beyond_32_bits(walk: str) -> None:
    kind, asked = inputs(walk, 2, 2, 32768, False, True)
    B = 2**31 // (2 * 32768) + 100
    many = [
        None if x is None else torch.cat([x[:1].expand(B - 1, *x.shape[1:]), x[1:]]) for x in asked
    ]
    weight, last, used, stand = forward.walk(kind, *many)
    assert weight.numel() > 2**31
    few = forward.walk(kind, *asked)
    assert torch.equal(weight[-1], few[0][1])
    one = slope(few[0][1:])
    zero = [torch.zeros_like(last), torch.zeros_like(used) if used.numel() else None]
    grads = backward.walk(kind, *many, weight, stand, one.expand_as(weight).contiguous(), *zero)
    alone = [None if x is None else x[1:] for x in asked]
    slots = [None if x is None else x[:1] for x in zero]
    want = backward.walk(kind, *alone, few[0][1:], few[3][1:], one, *slots)
    for x, y in zip(grads, want, strict=True):
        assert torch.equal(x[-1:], y[-1:])


@pytest.mark.gpu
@pytest.mark.parametrize("walk", ["monotonic", "forward", "forced"])
def test_the_parts_are_served_on_a_gpu(walk: str) -> None:
    part: Any = {
        "monotonic": lambda: moving_aligns.Monotonic(noise=0.0).train(),
        "forward": lambda: moving_aligns.Forward(query=4, agent=True),
        "forced": lambda: moving_aligns.ForcedForward(),
    }[walk]()
    part = part.to(DEVICE)
    assert scan.refusal_of(part.name, torch.float32, torch.device(DEVICE)) is None
    energy = torch.randn(2, 1, 9, 40, device=DEVICE, requires_grad=True)
    query = torch.randn(2, 1, 9, 4, device=DEVICE)
    ok = torch.rand(2, 1, 9, 40, device=DEVICE) > 0.3

    def learnt(f: Any, dtype: torch.dtype) -> Tensor:
        part.to(dtype)
        weight = f(energy.to(dtype), ok, None, query.to(dtype)).weight
        return torch.autograd.grad(weight.square().sum(), energy)[0]

    slow = learnt(part, DOUBLE)
    for fast in (part.by_kernel, torch.compile(part.by_kernel, fullgraph=True)):
        torch.testing.assert_close(learnt(fast, torch.float32), slow, rtol=1e-4, atol=1e-5)
