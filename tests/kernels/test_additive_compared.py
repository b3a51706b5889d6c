"""Additive energies alone in Triton, compared with the definition in float64.

Without a GPU, in Triton's interpreter, which replaces the CPU's implementation here.
"""

import copy
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.score import additive as reference
from heed.attention.score import per_head
from heed.kernels import additive
from heed.kernels.additive import comparing, scene, tuned
from heed.records import Summary

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton needs a GPU, or its interpreter", allow_module_level=True)

from heed.kernels.additive import compared, device, forward

# Values that a kernel computes and discards may overflow; numpy, which interprets it, warns.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SINGLE = torch.finfo(torch.float32).eps

# How many epsilons of the largest number are tolerated, as for the fused kernel.
OUT, GRAD = 8, 12

LENGTHS = [(1, 33), (2, 7), (7, 65), (31, 2), (33, 31), (65, 7), (33, 1), (1, 1)]
SCALES = (0.01, 1.0, 30.0, 1e4)
CASES = [
    (T, S, D, scale)
    for i, ((T, S), D) in enumerate(zip(LENGTHS, itertools.cycle((8, 21, 32, 16)), strict=False))
    for scale in (SCALES[i % 4], SCALES[(i + 1 + i // 4) % 4])
]


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if DEVICE == "cpu":
        monkeypatch.setattr(comparing.native, "energies", compared.energies)
        monkeypatch.setattr(comparing.native, "energies_backward", compared.backward)
    with torch.device(DEVICE):
        yield


def drawn(
    B: int, H: int, G: int, T: int, S: int, D: int, scale: float = 1.0
) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and score vector; and the gradients of their energies."""
    q, k = torch.randn(B, H, T, D) * scale, torch.randn(B, G, S, D) * scale
    return [q, k, torch.randn(H, D) * D**-0.5], torch.randn(B, H, T, S)


def plainly(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return reference(q, per_head(k, q.shape[1]), w)


def both_ways(energies: Any, given: list[Tensor], grad: Tensor) -> list[Tensor]:
    learned = [x.detach().requires_grad_() for x in given]
    energy = energies(*learned)
    return [energy.detach(), *torch.autograd.grad(energy, learned, grad.to(energy.dtype))]


def introduce(given: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The kernel's result, checked against float64 by contract 5; plain means the definition in
    float32.

    The floor is for the largest term and the number of terms, whose rounding errors add like a
    random walk; half precision subtracts a constant Σw from an energy, so all D count.
    """
    ours = both_ways(additive.energies, given, grad)
    plain = both_ways(plainly, [x.float() for x in given], grad)
    exact = both_ways(plainly, [x.double() for x in given], grad)
    assert ours[0].dtype == torch.float32
    (B, H, T, D), (G, S) = given[0].shape, given[1].shape[1:3]
    scores, risen = given[2].abs().max().item(), grad.abs().max().item()
    walk = [D if given[0].dtype.itemsize < 4 else D**0.5]
    walk += [n**0.5 * largest for n, largest in ((S, risen), (T * H // G, risen))]
    terms = [walk[0] * scores, walk[1] * scores, walk[2] * scores, (B * T * S) ** 0.5 * risen]
    for i, (x, y, z) in enumerate(zip(ours, plain, exact, strict=True)):
        assert i == 0 or x.dtype == given[i - 1].dtype
        assert x.shape == z.shape
        largest = z.abs().max().item()
        floor = (GRAD if i else OUT) * SINGLE * max(largest, terms[i])
        floor += torch.finfo(x.dtype).eps * largest  # the result is rounded to that dtype
        allowed = (3 if i else 2) * (y.double() - z).abs().max().item() + floor
        assert (x.double() - z).abs().max().item() <= allowed, i
    return ours


@pytest.mark.parametrize(("T", "S", "D", "scale"), CASES)
def test_the_twins_agree(T: int, S: int, D: int, scale: float) -> None:
    introduce(*drawn(1, 2, 1, T, S, D, scale))


@pytest.mark.parametrize("scale", [1.0, 3.0, 30.0])
@pytest.mark.parametrize("T", [3, 20])
def test_the_twins_agree_in_half_precision(T: int, scale: float) -> None:
    given, grad = drawn(1, 4, 2, T, 18, 6, scale)
    introduce([x.half() for x in given[:2]] + given[2:], grad)


@pytest.mark.parametrize("T", [5, 20])
@pytest.mark.parametrize("layout", ["a slice", "reversed", "expanded", "no last axis"])
def test_unusual_memory_layouts(layout: str, T: int) -> None:
    (q, k, w), grad = drawn(2, 2, 2, T, 9, 8)
    if layout == "a slice":
        q, k = (torch.randn(*x.shape[:3], 19)[..., 3:11] for x in (q, k))
    elif layout == "reversed":
        q, k = (x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (q, k))
    elif layout == "expanded":
        q, k, w = q[:1].expand(2, -1, -1, -1), k[:1].expand(2, -1, -1, -1), w[:1].expand(2, -1)
        grad = grad[..., :1].expand(-1, -1, -1, 9)
    else:
        q, k = (x.mT.contiguous().mT for x in (q, k))
    introduce([q, k, w], grad)


@pytest.mark.parametrize("T", [6, 20])
@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_sums_that_cancel_are_accurate(T: int, scale: float) -> None:
    (q, _, w), grad = drawn(1, 1, 1, T, T, 8, scale)
    introduce([q, -q, w], grad)
    introduce([q, -q + torch.randn_like(q), w], grad)


def test_small_numbers_are_accurate() -> None:
    """1 / b - 1/2 loses digits where b is nearly two, and the gradient of w depends on it."""
    given, grad = drawn(1, 1, 1, 20, 20, 8, 0.01)
    got = introduce(given, grad)[3]
    want = both_ways(plainly, [x.double() for x in given], grad)[3]
    torch.testing.assert_close(got.double(), want, rtol=0, atol=15 * SINGLE * want.abs().max())


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("T", [5, 20])
def test_a_key_of_nan_spoils_only_its_column(T: int, scale: float) -> None:
    """On a GPU the maximum of NaN and -20 is -20, which has a finite tanh."""
    given, grad = drawn(1, 2, 1, T, 20, 8, scale)
    want = both_ways(additive.energies, given, grad)
    given[1][0, 0, 7, 3] = torch.nan
    got = both_ways(additive.energies, given, grad)
    others = torch.arange(20) != 7
    assert got[0][..., 7].isnan().all()
    assert torch.equal(got[0][..., others], want[0][..., others])
    assert got[2][0, 0, 7, 3].isnan()
    torch.testing.assert_close(got[2][:, :, others], want[2][:, :, others], rtol=1e-4, atol=1e-5)
    given[0][0, 1, 2, 5] = torch.nan
    assert torch.equal(additive.energies(*given)[0, 1, 2].isnan(), torch.ones(20).bool())


@pytest.mark.parametrize("empty", ["B", "T", "S", "D"])
def test_empty_inputs(empty: str) -> None:
    shape = {"B": 2, "H": 2, "G": 1, "T": 3, "S": 4, "D": 5} | {empty: 0}
    given, grad = drawn(**{**shape, "D": max(1, shape["D"])})
    given = [x[..., : shape["D"]] for x in given]
    for x, y in zip(
        both_ways(additive.energies, given, grad), both_ways(plainly, given, grad), strict=True
    ):
        assert x.shape == y.shape
        assert not x.any()


@pytest.mark.parametrize(("B", "D", "scratch"), [(2, 8, 1), (3, 12, 4 << 12)])
def test_stretches_add_up_to_the_whole(
    B: int, D: int, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scratch for one block of queries at a time, or for some rows; and a width in slices."""
    given, grad = drawn(B, 2, 1, 20, 19, D)
    whole = additive.energies(*given)
    monkeypatch.setattr(tuned, "SCRATCH", scratch)
    monkeypatch.setattr(tuned, "depth", lambda D, _: 4)
    monkeypatch.setattr(forward, "layout", scene.layout.__wrapped__)  # without cached layouts
    keys = (B, 19), True, None, False, False
    assert len(scene.layout.__wrapped__((B, 2, 20, D), *keys).parts) > 1
    torch.testing.assert_close(additive.energies(*given), whole)
    introduce(given, grad)
    assert torch.equal(additive.energies(*given), additive.energies(*given))
    given[1][0, 0, 3, 2] = given[0][0, 1, 5, 2] = torch.nan
    spoilt = torch.zeros_like(whole, dtype=torch.bool)
    spoilt[0, :, :, 3] = spoilt[0, 1, 5] = True
    assert torch.equal(additive.energies(*given).isnan(), spoilt)


def test_the_operators_pass_opcheck() -> None:
    (q, k, w), grad = drawn(1, 2, 1, 3, 4, 5)
    for T in (3, 17) if DEVICE == "cuda" else (3,):
        q, grad = torch.randn(1, 2, T, 5), torch.randn(1, 2, T, 4)
        given = [x.detach().requires_grad_() for x in (q, k, w)]
        torch.library.opcheck(comparing.operator, given)
        torch.library.opcheck(comparing.backward, (grad, *given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_second_derivatives_are_those_of_the_definition(dtype: torch.dtype) -> None:
    given, _ = drawn(1, 2, 1, 3, 4, 5)
    given = [x.to(dtype) for x in given]

    def twice(energies: Any, kind: torch.dtype) -> list[Tensor]:
        learned = [x.detach().to(kind).requires_grad_() for x in given]
        first = torch.autograd.grad(energies(*learned).square().sum(), learned, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), learned))

    near = 1e-4 if dtype == torch.float32 else 2e-2
    ours, exact = twice(additive.energies, dtype), twice(plainly, torch.float64)
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=near, atol=near * y.abs().max().item())


def test_shapes_that_do_not_fit_are_refused() -> None:
    (q, k, w), grad = drawn(1, 2, 1, 3, 4, 5)
    for others in ((q, k, w[:1]), (q, k[..., :4], w), (q, k.expand(2, -1, -1, -1), w)):
        with pytest.raises(heed.HeedError, match="additive energies take"):
            compared.energies(*others)
    with pytest.raises(heed.HeedError, match="additive energies take"):
        compared.backward(grad, q, k, w[:1])


def test_which_calls_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided by a tensor's properties alone: GPU tensors are faked where there is no GPU."""
    assert comparing.WIDEST == additive.WIDEST == 64 * device.SLICES.value
    monkeypatch.setattr(comparing, "no_triton", lambda device: None)

    def given(dtype: torch.dtype, D: int = 8, place: str = "cuda:0") -> Any:
        class Told:
            pass

        told: Any = Told()
        told.device, told.dtype, told.shape = torch.device(place), dtype, (1, 1, 3, D)
        return told

    single, half, brief = torch.float32, torch.float16, torch.bfloat16
    for dtype in (single, half, brief):
        assert additive.compares(given(dtype), given(dtype))
    assert not additive.compares(given(half), given(single))
    assert not additive.compares(given(torch.float64), given(torch.float64))
    assert not additive.compares(given(single), given(single, place="cuda:1"))
    assert not additive.compares(given(single), given(single, place="cpu"))
    assert not additive.compares(given(half, place="cpu"), given(half, place="cpu"))
    assert not additive.compares(given(single, 2049), given(single, 2049))
    monkeypatch.setattr(comparing, "no_triton", lambda device: "there is none")
    assert not additive.compares(given(single), given(single))


FAKED = """
import torch
from triton.runtime.jit import JITFunction
from heed.kernels import launching
from heed.kernels.additive import compared

launched, again = set(), set()

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

JITFunction.__getitem__ = faked
torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: 0

def run(T, S, H):
    q, k, w = torch.randn(2, H, T, 16), torch.randn(2, 1, S, 16), torch.randn(H, 16)
    compared.energies(q, k, w)
    compared.backward(torch.randn(2, H, T, S), q, k, w)

run(3, 70, 2)
run(70, 3, 2)
missing = {x for n, x in vars(compared).items() if n.endswith("_kernel")} - launched
assert not missing, missing
known = len(launching._compiled)
for T in (1, 4, 16, 17, 64, 65, 128):  # whatever Triton likes to compile for
    for S in (1, 5, 16, 32, 64, 65):
        for H in (1, 2, 16):
            run(T, S, H)
kinds = {key[4] for key in launching._compiled}
assert len(launching._compiled) == len(kinds) <= known + 3, launching._compiled.keys()
print("done", flush=True)

launching._compiled.clear()
[p.__dict__.update(do_not_specialize=False) for p in compared.sum_kernel.params]
run(3, 70, 2)
"""


def test_a_new_length_compiles_nothing() -> None:
    """Launched from a fresh process, as on a GPU, except for compiling and running."""
    done = subprocess.run(
        [sys.executable, "-c", FAKED],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stderr
    assert "sum_kernel's N is a number that Triton would specialise for" in done.stderr


ALL_LENGTHS = [1, 2, 7, 31, 33, 63, 65, 127, 129, 143, 587, 1023, 1025]
ALL_WIDTHS = [8, 16, 21, 32, 59, 64, 96, 111, 128, 192, 256]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", ALL_WIDTHS)
def test_the_twins_agree_at_every_length(D: int, dtype: torch.dtype) -> None:
    pick = torch.Generator(device="cpu").manual_seed(D)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=pick, device="cpu"))]

    for _ in range(40):
        T, S, (H, G) = one_of(*ALL_LENGTHS), one_of(*ALL_LENGTHS), one_of((1, 1), (4, 2), (3, 1))
        B = one_of(1, 8)
        if B * H * T * S * D > 1 << 26:  # what float64 by hand can hold, in a dozen processes
            B, H, G = 1, 1, 1
        if T * S * D > 1 << 26:
            S = 143
        given, grad = drawn(B, H, G, T, S, D, one_of(0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 1e4))
        assert additive.compares(*(x.to(dtype) for x in given[:2]))
        introduce([x.to(dtype) for x in given[:2]] + given[2:], grad)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [1, 16, 17, 143])
def test_repeats_give_equal_bits(T: int, dtype: torch.dtype) -> None:
    given, grad = drawn(2, 4, 2, T, 257, 128)  # in slices of the width, too
    given = [x.to(dtype) for x in given[:2]] + given[2:]
    first = both_ways(additive.energies, given, grad)
    for _ in range(50):
        for x, y in zip(both_ways(additive.energies, given, grad), first, strict=True):
            assert torch.equal(x, y)


@pytest.mark.gpu
def test_a_width_in_slices() -> None:
    given, grad = drawn(1, 1, 1, 65, 63, 512)
    one = scene.layout((1, 1, 65, 512), (1, 63), True, None, False, False)
    assert one.sliced == 4
    introduce(given, grad)


@pytest.mark.gpu
def test_elements_beyond_two_to_the_31() -> None:
    T, S, last = 70_000, 32_768, slice(70_000 // 64 * 64 - 64, 70_000)
    given, _ = drawn(1, 1, 1, T, S, 8)
    part = torch.randn(1, 1, last.stop - last.start, S)
    grad = torch.zeros(1, 1, T, S)
    grad[:, :, last] = part
    assert grad.numel() > 1 << 31
    got = both_ways(additive.energies, given, grad)
    q, k, w = given
    alone = both_ways(additive.energies, [q[:, :, last], k, w], part)
    torch.testing.assert_close(got[0][:, :, last], alone[0])
    torch.testing.assert_close(got[1][:, :, last], alone[1])
    assert not got[1][:, :, : last.start].any()
    torch.testing.assert_close(got[2], alone[2])
    torch.testing.assert_close(got[3], alone[3], rtol=1e-4, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("T", [1, 70])
@pytest.mark.parametrize("name", ["additive", "monotonic/additive", "sparsemax/concat"])
def test_every_caller_of_energies_gets_them_here(
    name: str, T: int, lowered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, statistics and gradients as by the definition: in float64, or as under autocast."""
    asked: list[torch.dtype] = []
    inner = comparing._compare

    def noted(*given: Tensor) -> Tensor:
        asked.append(given[0].dtype)
        return inner(*given)

    monkeypatch.setattr(comparing, "_compare", noted)
    attend = heed.Attention(name, query=32, key=24).eval()
    q, k = torch.randn(2, T, 32), torch.randn(2, 90, 24)
    visible, summary = heed.lengths([90, 41]), Summary(top=4, map=(min(T, 8), 8))

    def look(attend: Any, q: Tensor, k: Tensor) -> list[Tensor]:
        q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=lowered):
            memory = attend.remember(k, visible=visible)
            seen = attend(q, memory, need="weight")
            told = attend(q, memory, statistics=summary).statistics
        learned = (q, k, *attend.parameters())
        loss = (seen.weight.float().square().sum() + seen.context.float().square().sum()) * 10
        grads = torch.autograd.grad(loss, learned, allow_unused=True)
        found = [seen.weight, told.entropy, told.share, told.map, seen.context, *grads]
        return [x for x in found if x is not None]

    ours = look(attend, q, k)
    assert asked
    assert set(asked) == {torch.float32}
    asked.clear()
    with heed.kernels.off("additive"):
        if lowered:
            want = look(attend, q, k)
        else:
            want = look(copy.deepcopy(attend).double(), q.double(), k.double())
    assert not asked
    for i, (x, y) in enumerate(zip(ours, want, strict=True)):
        near = 1e-3 if i > 4 else 1e-4
        near = 2e-2 if lowered and i > 3 else near  # contexts and gradients are bfloat16 then
        largest = y.abs().max().item()
        torch.testing.assert_close(x.double(), y.double(), rtol=near, atol=near * largest)
