"""The kernels of walks, compared with their twins, the loops of `heed.attention.moving_aligns`.

Contract 5: the error against float64 is at most twice (gradients three times) that of the loop in
the same dtype, or a few epsilons at that magnitude, whichever is larger.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import heed
from heed.attention import moving_aligns
from heed.attention.align import Align
from heed.attention.score import Dot
from heed.kernels import native as library
from heed.kernels import scan
from heed.kernels.scan import native, operator
from tests.kernels.levels import LEVELS

DOUBLE = torch.float64
DTYPES = (torch.float32, DOUBLE)
SHAPES = ((1, 1), (1, 7), (3, 2), (5, 13), (9, 33), (3, 130))
WALKS = ("monotonic", "hard", "forward", "agent", "forced")
B, H = 3, 2

# How many epsilons of the largest number are tolerated.
OUT, GRAD = 8, 24

pytestmark = pytest.mark.skipif(library.missing() is not None, reason="no native library")


def everything(T: int, S: int) -> None:
    return None


def padded(T: int, S: int) -> Tensor:
    """One row is complete, one is half, one has no keys; only the keys' axis is not expanded."""
    return (torch.arange(S) < torch.tensor([S, (S + 1) // 2, 0])[:, None])[:, None, None]


def causal(T: int, S: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)[None, None]


def random(T: int, S: int) -> Tensor:
    """Gaps to cross, and steps that see nothing."""
    table = torch.rand(B, H, T, S) > 0.4
    table[0, :, T // 2] = False
    table[1, 0, 0] = False
    return table


def by_step(T: int, S: int) -> Tensor:
    """Whole rows at a time: the keys' axis is expanded."""
    return (torch.rand(B, 1, T, 1) > 0.3).expand(B, 1, T, S)


TABLES: dict[str, Callable[[int, int], Tensor | None]] = {
    f.__name__: f for f in (everything, padded, causal, random, by_step)
}
CASES = list(itertools.product(WALKS, TABLES, SHAPES, (False, True), DTYPES))


def walk_inputs(walk: str, table: str, T: int, S: int, given: bool) -> tuple[str, list[Any]]:
    """The kind, and energies, visibility, initial state, coverage, and moves."""
    ok = TABLES[table](T, S)
    ok = None if ok is None else ok.expand(B, H, T, S)
    energy = 2 * torch.randn(B, H, T, S, dtype=DOUBLE)
    before = torch.zeros(B, H, S, dtype=DOUBLE)
    before[..., 0] = 1
    covered = torch.zeros_like(before)
    if given:
        before = torch.randn_like(before).softmax(-1) * 0.9
        covered = torch.rand_like(before) * 1.2
    move = torch.rand(B, H, T, dtype=DOUBLE) if walk == "agent" else None
    kind = "forward" if walk == "agent" else walk
    return kind, [energy, ok, before, covered if kind == "forced" else None, move]


def learning(inputs: list[Any], dtype: torch.dtype) -> list[Any]:
    """Leaves of a dtype."""
    return [
        x if x is None or x.dtype == torch.bool else x.detach().to(dtype).requires_grad_()
        for x in inputs
    ]


def with_gradients(f: Callable[..., Any], kind: str, inputs: list[Any]) -> list[Tensor]:
    """The weights and the final state; and the gradients of all inputs, the initial state too."""
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    found = [x for x in f(kind, *inputs) if x.is_floating_point() and x.numel()]
    slopes = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x).sin() * 3 for x in found]
    if not found[0].requires_grad:
        return found
    grads = torch.autograd.grad(found, leaves, slopes, allow_unused=True, materialize_grads=True)
    return [*(x.detach() for x in found), *grads]


def outputs(kind: str) -> int:
    return 3 if kind == "forced" else 2


def assert_near(got: list[Tensor], plain: list[Tensor], exact: list[Tensor], n: int) -> None:
    """Contract 5, for n outputs and then their gradients."""
    assert len(got) == len(plain) == len(exact) > n
    for i, (x, y, z) in enumerate(zip(got, plain, exact, strict=True)):
        assert x.dtype == y.dtype
        assert x.isfinite().all()
        times, epsilons = (2, OUT) if i < n else (3, GRAD)
        if x.dtype == DOUBLE:  # the loop is the measure itself: only rounding differs
            epsilons *= 20
        if n == 3:  # forced: the gradient divides by the unused share, 1 - cov
            epsilons *= 4
        floor = epsilons * torch.finfo(x.dtype).eps * z.abs().max().clamp(min=1).item()
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        assert (x.double() - z).abs().max().item() <= allowed, f"number {i}"


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 600


@pytest.mark.parametrize(("walk", "table", "shape", "given", "dtype"), CASES)
def test_the_twins_agree(
    walk: str, table: str, shape: tuple[int, int], given: bool, dtype: torch.dtype
) -> None:
    kind, inputs = walk_inputs(walk, table, *shape, given)
    twin = operator.TWINS["scan"]
    inputs = [x if x is None or x.dtype == torch.bool else x.to(dtype) for x in inputs]
    exact = with_gradients(twin, kind, learning(inputs, DOUBLE))
    plain = with_gradients(twin, kind, learning(inputs, dtype))
    got = with_gradients(operator.scan, kind, learning(inputs, dtype))
    assert_near(got, plain, exact, outputs(kind))
    ok = inputs[1]
    if ok is not None:
        assert not got[0].masked_select(~ok).any()
        assert not got[outputs(kind)].masked_select(~ok).any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("walk", WALKS)
def test_every_instruction_set_agrees(
    walk: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, inputs = walk_inputs(walk, "random", 5, 77, True)
    want = with_gradients(operator.scan, kind, learning(inputs, torch.float32))
    for name, function in (("_walk", "heed_scan_forward"), ("_walk_back", "heed_scan_backward")):
        monkeypatch.setattr(native, name, library.Function(function, "27q", at=level))
    got = with_gradients(operator.scan, kind, learning(inputs, torch.float32))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("walk", ["monotonic", "forward", "agent", "forced"])
@pytest.mark.parametrize("table", ["everything", "random", "padded"])
def test_the_gradient_is_the_derivative(walk: str, table: str) -> None:
    kind, inputs = walk_inputs(walk, table, 3, 5, True)
    leaves = learning(inputs, DOUBLE)

    def walked(*_: Tensor) -> tuple[Tensor, ...]:
        return operator.scan(kind, *leaves)[: outputs(kind)]  # type: ignore[arg-type]

    asked = [x for x in leaves if x is not None and x.requires_grad]
    assert gradcheck(walked, asked)
    assert gradgradcheck(walked, asked, fast_mode=True)


@pytest.mark.parametrize("walk", WALKS)
def test_any_layout_is_accepted(walk: str) -> None:
    kind, inputs = walk_inputs(walk, "random", 4, 9, True)
    energy, ok, before, covered, move = inputs
    want = operator.scan(kind, *inputs)  # type: ignore[arg-type]
    turned = [
        energy.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
        ok.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0),
        before.mT.contiguous().mT,
        None if covered is None else covered.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        None if move is None else move.mT.contiguous().mT,
    ]
    assert energy.stride() != turned[0].stride()
    for x, y in zip(want, operator.scan(kind, *turned), strict=True):  # type: ignore[arg-type]
        assert torch.equal(x, y)
    slack = torch.empty(B, 2 * H, 4, 11, dtype=DOUBLE)
    slack[:, ::2, :, 1:10] = energy
    again = operator.scan(kind, slack[:, ::2, :, 1:10], *inputs[1:])  # type: ignore[arg-type]
    for x, y in zip(want, again, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("walk", WALKS)
def test_nan_in_hidden_keys_changes_no_bit(walk: str, dtype: torch.dtype, poison: float) -> None:
    kind, inputs = walk_inputs(walk, "random", 5, 19, True)
    inputs = learning(inputs, dtype)
    bad = [inputs[0].detach().masked_fill(~inputs[1], poison).requires_grad_(), *inputs[1:]]
    want, got = (with_gradients(operator.scan, kind, x) for x in (inputs, bad))
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("size", [30.0, 1e2, 1e4, 1e30])
@pytest.mark.parametrize("walk", WALKS)
def test_extreme_energies(walk: str, size: float) -> None:
    kind, inputs = walk_inputs(walk, "random", 6, 21, False)
    inputs[0] = (inputs[0] * size).float().double()
    twin = operator.TWINS["scan"]
    plain = with_gradients(twin, kind, learning(inputs, torch.float32))
    got = with_gradients(operator.scan, kind, learning(inputs, torch.float32))
    for x in got:
        assert x.isfinite().all()
    torch.testing.assert_close(got[0], plain[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("walk", ["forward", "forced"])
def test_a_very_unlikely_key_does_not_become_impossible(walk: str) -> None:
    """Weights below the smallest normal number count as that number, here and in the loop."""
    kind, inputs = walk_inputs(walk, "everything", 3, 4, False)
    energy = torch.zeros(1, 1, 3, 4)
    energy[..., 0, 1:] = torch.tensor([-95.0, -88.0, -101.0])
    energy[..., 1, 1:] = torch.tensor([50.0, 40.0, 30.0])
    energy[..., 2, :] = torch.tensor([0.0, 150.0, 140.0, 155.0])
    before = torch.tensor([[[1.0, 0, 0, 0]]])
    covered = None if inputs[3] is None else torch.zeros(1, 1, 4)
    got = operator.scan(kind, energy, None, before, covered, None)[0]  # type: ignore[arg-type]
    want = operator.TWINS["scan"](kind, energy, None, before, covered, None)[0]
    assert 0 < got[0, 0, 0, 1] < 2e-38
    torch.testing.assert_close(got[..., 2, :], want[..., 2, :], rtol=1e-4, atol=1e-7)
    assert got[0, 0, 2, 1:].sum() > 0.5


def test_nan_in_a_visible_key_is_not_swallowed() -> None:
    for walk in ("monotonic", "forward", "forced"):
        kind, inputs = walk_inputs(walk, "everything", 2, 9, False)
        inputs[0][0, 0, 0, 0] = torch.nan
        weight = operator.scan(kind, *inputs)[0]  # type: ignore[arg-type]
        assert weight[0, 0, 0].isnan().any()
        assert weight[1].isfinite().all()


def made(walk: str, dtype: torch.dtype = DOUBLE) -> Any:
    part: Any = {
        "monotonic": lambda: moving_aligns.Monotonic(heads=H, noise=0.0).train(),
        "hard": lambda: moving_aligns.Monotonic(heads=H).eval(),
        "forward": lambda: moving_aligns.Forward(query=4, heads=H),
        "agent": lambda: moving_aligns.Forward(query=4, heads=H, agent=True),
        "forced": lambda: moving_aligns.ForcedForward(),
        "mixture": lambda: moving_aligns.MixtureWindow(query=4, heads=H, components=3),
    }[walk]()
    return part.to(dtype)


def part_inputs(T: int, S: int, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    """Energies, visibility, and queries of width 4."""
    energy = torch.randn(B, H, T, S, dtype=dtype, requires_grad=True)
    return [energy, random(T, S), torch.randn(B, H, T, 4, dtype=dtype, requires_grad=True)]


def learnt(aligned: Any, leaves: list[Tensor]) -> list[Tensor]:
    """Weights, final state, gradients."""
    slot = aligned.after if isinstance(aligned.after, tuple) else (aligned.after,)
    found = [x for x in (aligned.weight, *slot) if x.requires_grad]
    slopes = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x) for x in found]
    if not found:
        return [aligned.weight, *slot]
    grads = torch.autograd.grad(found, leaves, slopes, allow_unused=True, materialize_grads=True)
    return [aligned.weight.detach(), *(x.detach() for x in slot), *grads]


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("walk", [*WALKS, "mixture"])
def test_the_parts_give_the_same_with_and_without_the_kernel(walk: str, masked: bool) -> None:
    part = made(walk)
    energy, ok, query = part_inputs(5, 11)
    leaves = [energy, query, *part.parameters()]
    fast = learnt(part.by_kernel(energy, ok if masked else None, None, query), leaves)
    slow = learnt(part(energy, ok if masked else None, None, query), leaves)
    for x, y in zip(fast, slow, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("walk", [*WALKS, "mixture"])
def test_splitting_the_steps_agrees_with_gradients_through_the_state(walk: str) -> None:
    part = made(walk)
    energy, ok, query = part_inputs(7, 11)
    ok[:, :, 0, 0] = True
    leaves = [energy, query, *part.parameters()]
    whole = learnt(part.by_kernel(energy, ok, None, query), leaves)
    for cut in (1, 3, 6):
        first = part.by_kernel(energy[:, :, :cut], ok[:, :, :cut], None, query[:, :, :cut])
        then = part.by_kernel(energy[:, :, cut:], ok[:, :, cut:], first.after, query[:, :, cut:])
        then.weight = torch.cat([first.weight, then.weight], 2)
        for x, y in zip(learnt(then, leaves), whole, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_a_state_of_another_width_or_of_one_row_is_accepted() -> None:
    part = made("agent")
    energy, ok, query = part_inputs(3, 8)
    slot = torch.rand(1, H, 5)
    fast = part.by_kernel(energy, ok, slot, query)
    slow = part(energy, ok, slot, query)
    torch.testing.assert_close(fast.weight, slow.weight)


@pytest.mark.parametrize("name", sorted(scan.ALIGNS))
def test_the_record_names_the_kernel_that_aligned(name: str) -> None:
    attend, x = heed.Attention(name, query=4), torch.randn(2, 5, 4)
    seen = attend(x, x, need="weight")
    assert seen.kernel == "scan"
    assert seen.why.startswith("served by scan")
    assert "scan" not in dict(seen.refusals)
    with heed.kernels.off("scan"):
        seen = attend(x, x)
    assert seen.kernel == "reference"
    assert dict(seen.refusals)["scan"] == "it is switched off"
    told = dict(heed.Attention("entmax", query=4)(x, x).refusals)["scan"]
    assert told == "it moves along the keys; entmax does not"


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel must not be called."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(scan, "walk", refuse)
    monkeypatch.setattr(scan, "mix", refuse)


class Mine(moving_aligns.Forward):
    """A walk that halves its moves."""

    def walk(
        self, energy: Tensor, ok: Tensor | None, before: Tensor, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight = moving_aligns.forward_step(energy, before, ok, energy.new_full((), 0.1))
        return weight, weight


def weights(part: Any, keys: Tensor, ok: Tensor | None, query: Tensor) -> Tensor:
    """Those of a whole call: B H S 4, visible, B H T 4 -> B H T S"""
    mechanism = heed.Mechanism(score=Dot(query=4, key=4), align=part)
    mechanism.train(part.training)
    seen = mechanism(query, mechanism.remember(keys), heed.State(), visible=ok, need="weight")
    return seen.weight


@pytest.mark.usefixtures("untouched")
def test_a_walk_of_your_own_uses_its_own_loop() -> None:
    energy, ok, query = part_inputs(3, 5)
    assert weights(Mine(query=4), energy.new_ones(B, H, 5, 4), ok, query).isfinite().all()
    assert scan.refusal_of(Mine.name, DOUBLE, energy.device) == f"it does not support {Mine.name}"


@pytest.mark.usefixtures("untouched")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("walk", [*WALKS, "mixture"])
def test_transforms_use_the_loop(walk: str) -> None:
    part = made(walk)
    _, ok, query = (x.detach() for x in part_inputs(3, 5))
    keys = torch.randn(B, H, 5, 4, dtype=DOUBLE)

    def weight(keys: Tensor) -> Tensor:
        return weights(part, keys, ok, query)

    _, slope = torch.func.jvp(weight, (keys,), (torch.ones_like(keys),))
    assert slope.isfinite().all()
    many = torch.func.vmap(weight)(torch.stack([keys, keys + 1]))
    assert many.shape == (2, B, H, 3, 5)


def test_half_precision_energies_are_refused() -> None:
    told = scan.refusal_of("forward", torch.bfloat16, torch.device("cpu"))
    assert told == "it computes in float32 or float64, not in bfloat16"


@pytest.mark.parametrize("walk", WALKS)
def test_the_operators_pass_opcheck(walk: str) -> None:
    kind, inputs = walk_inputs(walk, "random", 3, 5, True)
    leaves = learning(inputs, torch.float32)
    torch.library.opcheck(torch.ops.heed.scan, (kind, *leaves))
    weight, last, used, stand = (x.detach() for x in torch.ops.heed.scan(kind, *leaves))
    flat = [x if x is None else x.detach() for x in leaves]
    found = (weight, stand, weight, last, used if kind == "forced" else None)
    torch.library.opcheck(torch.ops.heed.scan_backward, (kind, *flat, *found))


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("walk", [*WALKS, "mixture"])
def test_compiles_as_one_graph(walk: str) -> None:
    part = made(walk, torch.float32)
    energy, ok, query = part_inputs(4, 7, torch.float32)
    leaves = [energy, query, *part.parameters()]
    compiled = torch.compile(part.by_kernel, backend="aot_eager", fullgraph=True)
    got, want = (learnt(f(energy, ok, None, query), leaves) for f in (compiled, part.by_kernel))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


class Weights(torch.nn.Module):
    """Tensors in, tensors out."""

    def __init__(self, part: Align) -> None:
        super().__init__()
        self.part = part

    def forward(self, energy: Tensor, ok: Tensor, query: Tensor) -> Tensor:
        weight: Tensor = self.part.by_kernel(energy, ok, None, query).weight
        return weight


@pytest.mark.parametrize("walk", ["hard", "agent", "forced", "mixture"])
def test_exports_as_one_operator(walk: str) -> None:
    module = Weights(made(walk, torch.float32)).eval()
    inputs = tuple(x.detach() for x in part_inputs(4, 7, torch.float32))
    program = torch.export.export(module, inputs)
    torch.testing.assert_close(program.module()(*inputs), module(*inputs))
    names = [str(node.target) for node in program.graph.nodes]
    assert any(name.startswith("heed.") for name in names)
    assert len(names) < 50  # not a loop over T


def test_threads_and_repeats_change_no_bit() -> None:
    kind, inputs = walk_inputs("agent", "random", 20, 300, True)
    leaves = learning(inputs, torch.float32)
    threads = torch.get_num_threads()
    want = with_gradients(operator.scan, kind, leaves)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for _ in range(20):
                for x, y in zip(with_gradients(operator.scan, kind, leaves), want, strict=True):
                    assert torch.equal(x, y)
    finally:
        torch.set_num_threads(threads)


def windows(K: int, T: int, dtype: torch.dtype, spread: float = 9.0) -> list[Tensor]:
    """Height, sharpness and centre of windows, some beyond either end."""
    height, sharpness = (torch.randn(2, B, H, T, K, dtype=DOUBLE) * 2).exp().to(dtype)
    centre = (torch.rand(B, H, T, K, dtype=DOUBLE) * 2 - 0.5).mul(spread).to(dtype)
    return [height, sharpness, centre]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("K", [1, 3])
def test_mixtures_agree(K: int, table: str, dtype: torch.dtype) -> None:
    for T, S in SHAPES:
        ok = TABLES[table](T, S)
        ok = None if ok is None else ok.expand(B, H, T, S)
        inputs = windows(K, T, dtype, spread=S)
        results = []
        for f, kind in (
            (operator.mixture, dtype),
            (moving_aligns._twin_mixture, dtype),
            (moving_aligns._twin_mixture, DOUBLE),
        ):
            leaves = [x.detach().to(kind).requires_grad_() for x in inputs]
            weight = f(*leaves, ok, S)
            slope = torch.linspace(-1, 1, weight.numel(), dtype=kind).view_as(weight)
            results.append([weight.detach(), *torch.autograd.grad(weight, leaves, slope)])
        assert_near(*results, n=1)
        if ok is not None:
            assert not results[0][0].masked_select(~ok).any()


def test_the_gradient_of_a_mixture_is_its_derivative() -> None:
    ok = random(3, 7)
    leaves = [x.requires_grad_() for x in windows(2, 3, DOUBLE, spread=7)]
    leaves[0] = leaves[0].detach().clamp(max=2).requires_grad_()
    assert gradcheck(lambda *x: operator.mixture(*x, ok, 7), leaves)
    assert gradgradcheck(lambda *x: operator.mixture(*x, ok, 7), leaves, fast_mode=True)


def test_the_operators_of_mixtures_pass_opcheck() -> None:
    leaves = [x.requires_grad_() for x in windows(2, 3, torch.float32)]
    torch.library.opcheck(torch.ops.heed.mixture, (*leaves, random(3, 7), 7))
    flat = [x.detach() for x in leaves]
    grad = torch.randn(B, H, 3, 7)
    torch.library.opcheck(torch.ops.heed.mixture_backward, (*flat, random(3, 7), grad))


@pytest.mark.parametrize("centre", [-1e30, -1e6, 1e6, 1e30])
@pytest.mark.parametrize("sharpness", [0.0, 1e-38, 1.0, 3e6])
def test_windows_of_any_centre_and_width_are_finite(centre: float, sharpness: float) -> None:
    parts = [torch.full((1, 1, 1, 1), x) for x in (2.0, sharpness, centre)]
    weight = operator.mixture(*parts, None, 5)
    torch.testing.assert_close(weight, moving_aligns._twin_mixture(*parts, None, 5))
