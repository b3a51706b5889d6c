"""The Triton kernels of additive attention, compared with the plain computation in float64.

Without a GPU they run in Triton's interpreter, which is slow: lengths and widths are small here.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from heed.kernels.additive.plan import Plan

pytest.importorskip("triton")

from heed.kernels.additive import backward, forward, scene, tuned

# Values that a kernel computes and discards may overflow; numpy, which interprets it, warns.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DOUBLE = torch.float64

# How many epsilons of the largest number are tolerated.
OUT, GRAD = 8, 12

LENGTHS = [(5, 7), (7, 33), (17, 2), (33, 20), (65, 9), (6, 65), (31, 16), (9, 1)]
WIDTHS = [(8, 4), (21, 3), (2, 21), (1, 1), (30, 8)]
SCALES = [1.0, 0.01, 6.0, 40.0]
CASES = [
    (*lengths, *widths, scale)
    for i, (lengths, widths) in enumerate(zip(LENGTHS, itertools.cycle(WIDTHS), strict=False))
    for scale in (SCALES[i % 4], SCALES[(i + 1 + i // 4) % 4])[: 2 if DEVICE == "cuda" else 1]
]


@pytest.fixture(autouse=True)
def on_the_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def table(seen: Plan, B: int, H: int, T: int, S: int) -> Tensor:
    """The visibility of a plan, computed independently.    B H T S"""
    s, t = torch.arange(S), torch.arange(T)[:, None] + seen.first
    ok = torch.ones(B, H, T, S, dtype=torch.bool)
    if seen.causal:
        ok = ok & (s <= t)
    if seen.half >= 0:
        ok = ok & ((s - t).abs() <= seen.half)
    if seen.stop is not None:
        ok = ok & (s < seen.stop[:, None, None, None])
    if seen.exists is not None:
        ok = ok & seen.exists[:, None, None]
    if seen.centre is not None:
        ok = ok & ((s - seen.centre[..., None]).abs() <= seen.radius)
    return ok if seen.table is None else ok & seen.table


def plain(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, centre: Tensor | None, seen: Plan, kept: Tensor
) -> Tensor:
    """The plain computation: everything in the input's dtype, the softmax in float32."""
    B, H, T, _ = q.shape
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    energy = (torch.tanh(q[:, :, :, None] + k[:, :, None]) * w[:, None, None].to(q.dtype)).sum(-1)
    ok = table(seen, B, H, T, k.shape[2])
    sighted = ok.any(-1, keepdim=True)
    energy = energy.to(torch.promote_types(q.dtype, torch.float32))
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1) * sighted
    if centre is not None:
        away = (torch.arange(k.shape[2]) - centre[..., None]) / seen.sigma
        weight = weight * torch.exp(-0.5 * away * away)
    return (weight * kept).to(q.dtype) @ v


def by_hand(inputs: list[Tensor], grad: Tensor, seen: Plan, kept: Tensor) -> list[Tensor]:
    """The output and the gradients of q, k, v, w and the centres of the gain."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    centre = leaves[4] if len(leaves) > 4 else None
    out = plain(*leaves[:4], centre, seen, kept.to(inputs[0].dtype))  # type: ignore[arg-type]
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


def by_triton(
    inputs: list[Tensor], grad: Tensor, seen: Plan, p: float = 0.0, seed: Tensor | None = None
) -> list[Tensor]:
    q, k, v, w = inputs[:4]
    context, log_sum = forward.forward(q, k, v, w, seen, p, seed)
    grads = backward.backward(grad, q, k, v, w, context, log_sum, seen, p, seed)
    return [context, *(x for x in grads if x is not None)]


def random_inputs(
    H: int, G: int, T: int, S: int, D: int, R: int, scale: float = 1.0, B: int = 1
) -> tuple[list[Tensor], Tensor]:
    q, k = torch.randn(B, H, T, D) * scale, torch.randn(B, G, S, D) * scale
    v, w = torch.randn(B, G, S, R), torch.randn(H, D) * D**-0.5
    return [q, k, v, w], torch.randn(B, H, T, R)


def assert_near(
    got: list[Tensor],
    plain: list[Tensor],
    exact: list[Tensor],
    size: float = 1.0,
    width: int = 1,
) -> None:
    """Contract 5, for an output and then its gradients.

    size   the largest |grad·v|: slopes are differences of such numbers
    width  of the queries: an energy sums that many numbers, whose errors add like a random walk
    """
    for i, (x, y, z) in enumerate(zip(got, plain, exact, strict=True)):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert torch.isfinite(x).all()
        times, epsilons = (2, max(OUT, width**0.5)) if i == 0 else (3, GRAD)
        if i == 4:  # a sum over all queries, whose errors add like a random walk
            epsilons *= got[0][..., 0].numel() ** 0.5
        eps = max(torch.finfo(x.dtype).eps, torch.finfo(got[0].dtype).eps)
        largest = z.abs().max().clamp(min=size if i in (1, 2, 4) else 1).item()
        floor = epsilons * eps * largest
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        assert (x.double() - z).abs().max().item() <= allowed, i


def introduce(inputs: list[Tensor], grad: Tensor, seen: Plan, p: float = 0.0) -> list[Tensor]:
    """The kernel's results, checked against the plain ones."""
    q, k = inputs[:2]
    shape = (*q.shape[:3], k.shape[2])
    seed = torch.randint(1 << 62, (1,)) if p else None
    kept = torch.ones(shape) if seed is None else forward.kept(shape, p, seed)
    got = by_triton(inputs, grad, seen, p, seed)
    exact = by_hand([x.double() for x in inputs], grad, seen, kept)
    values = inputs[2].repeat_interleave(q.shape[1] // k.shape[1], 1)
    size = max(1.0, (grad.double() @ values.double().mT).abs().max().item())
    assert_near(got, by_hand(inputs, grad, seen, kept), exact, size, q.shape[3])
    hidden = ~table(seen, *shape).any(-1)
    assert not got[0][hidden].any()  # exactly zero, and so are its gradients
    assert not got[1][hidden].any()
    return got


@pytest.mark.parametrize(("T", "S", "D", "R", "scale"), CASES)
def test_the_twins_agree(T: int, S: int, D: int, R: int, scale: float) -> None:
    """In each form for float32: addition, curves, plain sums."""
    H = 2 if T < 8 else 1
    introduce(*random_inputs(H, 1, T, S, D, R, scale), Plan(first=S - T))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        # The interpreter's bfloat16 rounds differently.
        pytest.param(torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("scale", SCALES)
def test_the_twins_agree_in_half_precision(scale: float, dtype: torch.dtype) -> None:
    """In each form: by fours, by pairs, plain sums."""
    inputs, grad = random_inputs(2, 1, 5, 20, 6, 4, scale)
    introduce([x.to(dtype) for x in inputs[:3]] + inputs[3:], grad.to(dtype), Plan())


@pytest.mark.parametrize(
    ("T", "S", "scale"),
    [(1, 1, 1.0), (1, 33, 0.01), (1, 33, 40.0), (3, 7, 0.01), (3, 7, 1.0), (3, 7, 40.0)],
)
def test_one_or_a_few_queries(T: int, S: int, scale: float) -> None:
    introduce(*random_inputs(2, 2, T, S, 21, 5, scale, B=2), Plan(first=S - T))
    introduce(*random_inputs(2, 1, T, S, 6, 8, scale, B=1), Plan(first=S - T))


def plans(T: int, S: int) -> dict[str, Plan]:
    """Every kind of mask, for two rows and two heads; some queries see nothing."""
    random = torch.rand(2, 1, T, S) > 0.5
    random[0, 0, 0] = False
    centre = torch.rand(2, 2, T) * S
    return {
        "causal": Plan(causal=True, first=S - T),
        "causal, too early": Plan(causal=True, first=-1),
        "window": Plan(half=2, first=S - T),
        "causal window": Plan(causal=True, half=3, first=S - T),
        "lengths": Plan(stop=torch.tensor([S // 2, 0], dtype=torch.int32)),
        "holes": Plan(exists=torch.rand(2, S) > 0.4),
        "table": Plan(table=random),
        "local-m": Plan(centre=torch.arange(T).float().expand(2, 1, T), radius=3),
        "local-p": Plan(centre=centre, gain_centre=centre, sigma=2.5, radius=5),
        "shared centres": Plan(
            centre=centre[:1, :1], gain_centre=centre[:1, :1], sigma=1.5, radius=3
        ),
        "all": Plan(
            stop=torch.tensor([S, S - 1], dtype=torch.int32),
            exists=torch.rand(2, S) > 0.2,
            table=random,
            causal=True,
            first=S - T,
            centre=centre,
            gain_centre=centre,
            sigma=4.0,
            radius=8,
        ),
    }


SLOW = {"causal", "lengths", "table", "local-p", "all"}  # enough for the slow interpreter
SEEN = [(name, 1, 12) for name in plans(1, 2)]
SEEN += [(name, 6, 20) for name in plans(1, 2) if DEVICE == "cuda" or name in SLOW]


@pytest.mark.parametrize(("name", "T", "S"), SEEN)
def test_the_twins_agree_on_visibility(name: str, T: int, S: int) -> None:
    seen = plans(T, S)[name]
    G = 2 if T == 1 else 1
    inputs, grad = random_inputs(2, G, T, S, 4, 3, B=2)
    if seen.gain_centre is not None:
        inputs.append(seen.gain_centre)
    introduce(inputs, grad, seen)


def poisoned(x: Tensor, where: Tensor) -> Tensor:
    """NaN, which spoils sums, and infinity, which wins a maximum, at every other key."""
    even = torch.arange(x.shape[2])[:, None] % 2 == 0
    return torch.where(where, torch.where(even, torch.nan, torch.inf), x)


@pytest.mark.parametrize(("T", "S"), [(6, 9), (1, 12)])
def test_nan_in_hidden_keys_changes_no_bit(T: int, S: int) -> None:
    (q, k, v, w), grad = random_inputs(2, 2, T, S, 5, 4, B=2)
    for name in ("lengths", "table", "all"):
        seen = plans(T, S)[name]
        unseen = ~table(seen, 2, 2, T, S).any(2)[..., None]
        blind = ~table(seen, 2, 2, T, S).any(3)[..., None]
        bad = [poisoned(q, blind), *(poisoned(x, unseen) for x in (k, v))]
        want, got = (by_triton([*x, w], grad, seen) for x in ((q, k, v), bad))
        assert torch.equal(got[0], want[0])
        for x, y, hidden in zip(got[1:4], want[1:4], (blind, unseen, unseen), strict=True):
            assert torch.isfinite(x).all()  # nearly: neighbours share a reciprocal, hidden or not
            torch.testing.assert_close(x, y)
            assert not x.masked_select(hidden).any()
        torch.testing.assert_close(got[4], want[4])


def test_sums_that_cancel_are_accurate() -> None:
    """q and k are large, q + k is small."""
    q = torch.randn(1, 1, 6, 8) * 1e4
    k = -q[:, :, [0, 3, 3, 5, 1]] + torch.randn(1, 1, 5, 8)
    introduce([q, k, torch.randn(1, 1, 5, 3), torch.rand(1, 8)], torch.randn(1, 1, 6, 3), Plan())


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize(("T", "S"), [(6, 9), (1, 12)])
def test_dropout_is_the_same_forward_and_backward(T: int, S: int, p: float) -> None:
    inputs, grad = random_inputs(2, 2, T, S, 4, 3, B=2)
    if p < 1:
        introduce(inputs, grad, Plan(), p)
    centre = torch.rand(2, 2, T) * S
    seen = Plan(centre=centre, gain_centre=centre, sigma=2.0, radius=4)
    introduce([*inputs, centre], grad, seen, p)


def test_dropout_keeps_the_right_share() -> None:
    kept = forward.kept((1, 2, 12, 64), 0.25, torch.tensor([7]))
    assert kept.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (kept > 0).float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert not torch.equal(kept[0, 0], kept[0, 1])
    few, same, others = (forward.kept((1, 1, 2, 32), 0.25, torch.tensor([i])) for i in (7, 7, 8))
    assert torch.equal(few, same)
    assert not torch.equal(few, others)


@pytest.mark.parametrize("layout", ["a slice", "reversed", "expanded"])
def test_unusual_memory_layouts(layout: str) -> None:
    (q, k, v, w), grad = random_inputs(2, 2, 5, 9, 8, 8, B=2)
    if layout == "a slice":
        q, k, v = (torch.randn(*x.shape[:3], 19)[..., 3:11] for x in (q, k, v))
    elif layout == "reversed":
        q, k, v = (x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (q, k, v))
    else:
        q, k, v = (x[:1].expand(2, -1, -1, -1) for x in (q, k, v))
    introduce([q, k, v, w], grad, Plan())


def test_stretches_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch for the energies of one block of queries at a time, and a width in slices."""
    inputs, grad = random_inputs(2, 1, 40, 9, 8, 3)  # slices divide the width: tuned.depth
    whole = by_triton(inputs, grad, Plan())
    monkeypatch.setattr(tuned, "SCRATCH", 1)
    monkeypatch.setattr(tuned, "SCRATCH_BACK", 1)
    monkeypatch.setattr(tuned, "depth", lambda D, _: 4)
    monkeypatch.setattr(forward, "layout", scene.layout.__wrapped__)  # without cached layouts
    centre = torch.rand(1, 2, 40) * 9
    seen = Plan(centre=centre, gain_centre=centre, sigma=2.0, radius=9)
    for x, y in zip(by_triton(inputs, grad, Plan()), whole, strict=True):
        torch.testing.assert_close(x, y)
    introduce([*inputs, centre], grad, seen)


def test_stretches_cover_every_query_once() -> None:
    for B, H, blocks, budget in itertools.product((1, 3), (1, 2), (1, 5), (1, 7, 100)):
        taken = torch.zeros(B, blocks, dtype=torch.int64, device="cpu")
        for b0, rows, block0, many in scene.stretches(B, H, blocks, 2, budget):
            assert rows * many * H * 2 <= max(budget, H * 2)
            taken[b0 : b0 + rows, block0 : block0 + many] += 1
        assert (taken == 1).all()


ALL_LENGTHS = [1, 2, 7, 31, 33, 63, 65, 127, 129, 143, 587, 1023, 1025, 2048]
ALL_WIDTHS = [8, 16, 21, 32, 59, 64, 96, 111, 128, 192, 256]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", ALL_WIDTHS)
def test_the_twins_agree_at_every_length(D: int, dtype: torch.dtype) -> None:
    pick = torch.Generator(device="cpu").manual_seed(D)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=pick, device="cpu"))]

    for _ in range(60):
        T, S, (H, G) = one_of(*ALL_LENGTHS), one_of(*ALL_LENGTHS), one_of((1, 1), (4, 2), (3, 1))
        B = one_of(1, 8)
        if B * H * T * S * D > 1 << 26:  # what float64 by hand can hold, in a dozen processes
            B, H, G = 1, 1, 1
        if B * H * T * S * D > 1 << 26:
            S = 143
        scale = one_of(0.01, 0.1, 1.0, 3.0, 10.0, 1e3, 1e4)
        seen = one_of(
            Plan(first=S - T),
            Plan(first=S - T, causal=True),
            Plan(first=S - T, half=20),
            Plan(stop=torch.randint(S + 1, (B,), dtype=torch.int32)),
        )
        inputs, grad = random_inputs(H, G, T, S, D, D, scale, B)
        introduce([x.to(dtype) for x in inputs[:3]] + inputs[3:], grad.to(dtype), seen)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 143])
def test_repeats_give_equal_bits(T: int) -> None:
    inputs, grad = random_inputs(4, 4 if T == 1 else 2, T, 257, 64, 64, B=2)
    inputs = [x.bfloat16() for x in inputs[:3]] + inputs[3:]
    first = by_triton(inputs, grad.bfloat16(), Plan())
    for _ in range(250):
        for x, y in zip(by_triton(inputs, grad.bfloat16(), Plan()), first, strict=True):
            assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 8])
def test_offsets_beyond_two_to_the_31(T: int) -> None:
    far = torch.empty(40_000, 65_536, dtype=torch.bfloat16)
    far[::5000, :32] = torch.randn(8, 32, dtype=torch.bfloat16)
    rows = far[None, None, ::5000]
    assert rows.stride(2) * 7 > 1 << 31
    q, k, v = rows[:, :, 8 - T :, :8], rows[..., 8:16], rows[..., 16:32]
    w, grad = torch.randn(1, 8), torch.randn(1, 1, T, 16, dtype=torch.bfloat16)
    near = by_triton([*(x.contiguous() for x in (q, k, v)), w], grad, Plan())
    for x, y in zip(by_triton([q, k, v, w], grad, Plan()), near, strict=True):
        assert torch.equal(x, y)


FAKED = """
import torch
from triton.runtime.jit import JITFunction
from heed.kernels import launching
from heed.kernels.additive import backward, forward, operator, row
from heed.kernels.additive.plan import Plan

launched, everything = set(), set()

class Made:
    function = packed_metadata = None
    def run(self, *arguments):
        addresses = arguments[9:]
        assert all(x is None or isinstance(x, (int, float)) for x in addresses), addresses

def faked(kernel, grid):
    def launch(*values, num_warps, num_stages, maxnreg=None):
        assert len(values) == len(kernel.params), kernel.__name__
        launched.add(kernel)
        return Made()
    return launch

warmed = set()

def warm(kernel, *values, grid, **options):
    assert len(values) == len(kernel.params), kernel.__name__
    warmed.add(kernel)

JITFunction.__getitem__ = faked
JITFunction.warmup = warm
torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: 0
for T, H, dtype in ((1, 2, torch.float32), (70, 2, torch.float32), (70, 4, torch.bfloat16)):
    q, k, v = torch.randn(1, H, T, 16), torch.randn(1, 2, 90, 16), torch.randn(1, 2, 90, 32)
    q, k, v, w = (x.to(dtype) for x in (q, k, v, torch.randn(H, 16)))
    centre = torch.rand(1, H, T)
    for seen in (Plan(), Plan(centre=centre, gain_centre=centre, radius=3)):
        launched.clear()
        warmed.clear()
        operator.compile_ahead(q, k, v, w, seen, 0.0, None, back=True)
        assert not launched
        for _ in range(2):  # the second time by what was compiled
            context, log_sum = forward.forward(q, k, v, w, seen, 0.0, None)
            backward.backward(context, q, k, v, w, context, log_sum, seen, 0.0, None)
        assert warmed == launched, warmed ^ launched
        everything |= launched
kernels = {x for m in (forward, backward, row) for n, x in vars(m).items() if n.endswith("_kernel")}
missing = kernels - everything - {forward.kept_kernel}
assert not missing, missing
print("done", flush=True)

launching._compiled.clear()
[p.__dict__.update(do_not_specialize=False) for p in forward.read_kernel.params]
forward.forward(q, k, v, w, Plan(), 0.0, None)
"""


def test_triton_specialises_on_no_number_of_a_launch() -> None:
    """Every kernel launched from a fresh process, as on a GPU, except for compiling and running.

    Triton's own description of a kernel's parameters exists only without the interpreter. A number
    that it would specialise on is named.
    """
    done = subprocess.run(
        [sys.executable, "-c", FAKED],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stderr
    assert (
        "AssertionError: read_kernel's T is a number that Triton would specialise for"
        in done.stderr
    )
