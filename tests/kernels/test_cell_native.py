"""GRUs in C, compared with their twins in PyTorch: steps of a loop, and whole rows."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import heed
from heed.errors import Refused, ShapeError
from heed.kernels import native
from heed.kernels.cell import native as kernel
from heed.models.cells import Layer, together
from tests.kernels.levels import LEVELS

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))

T = 4
SIZES = [(0, 4, 0), (1, 1, 1), (3, 7, 0), (17, 33, 20), (40, 16, 5), (70, 24, 0)]  # B H F
Learn = Callable[[list[Layer], Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of each instruction set that this processor supports."""
    for name in ("ahead", "back"):
        layout = getattr(kernel, f"_{name}").layout
        function = native.Function(f"heed_gru_{name}", layout, at=request.param)
        monkeypatch.setattr(kernel, f"_{name}", function)


def drawn(B: int, H: int, F: int) -> tuple[list[Layer], list[Tensor]]:
    """Two layers; the input of every step, what is fed back, and the first state."""
    layers = [Layer("gru", 5 + F, H) for _ in range(2)]
    given = [3 * torch.randn(T, B, 5), torch.randn(T, B, F + 2)[..., :F], torch.randn(B, H)]
    return layers, given


def stepped(layers: list[Layer], x: Tensor, fed: Tensor, first: Tensor) -> Tensor:
    """The states of a loop, each with another weight in the loss."""
    loop, hidden, found = layers[0].loop(fed.shape[2]), (first,), []
    for t, part in enumerate(layers[0].project(x)):
        hidden = layers[0].step(part, hidden, loop, fed[t] if fed.shape[2] else None)
        found.append((t + 1) * hidden[0])
    return torch.stack(found)


def in_rows(layers: list[Layer], x: Tensor, fed: Tensor, first: Tensor) -> Tensor:
    """Whole rows through both layers at once."""
    whole = torch.cat([x, fed], 2).transpose(0, 1)
    return torch.stack(together(layers, [whole, whole.flip(1)], (first,)))


def both_ways(go: Learn, layers: list[Layer], given: list[Tensor]) -> list[Tensor]:
    """The states, and the gradients of all inputs and parameters."""
    given = [x.detach().clone().requires_grad_() for x in given]
    states = go(layers, *given)
    learned = [*given, *(w for layer in layers for w in layer.parameters())]
    grads = torch.autograd.grad(states.sin().sum(), learned, allow_unused=True)
    return [states.detach(), *(g for g in grads if g is not None)]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("go", [stepped, in_rows])
@pytest.mark.parametrize(("B", "H", "F"), SIZES)
def test_a_gru_equals_pytorchs(B: int, H: int, F: int, go: Learn) -> None:
    layers, given = drawn(B, H, F)
    wide = [copy.deepcopy(layer).double() for layer in layers]
    exact = both_ways(go, wide, [x.double() for x in given])
    for ours, theirs in zip(both_ways(go, layers, given), exact, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=2e-5)


def test_which_calls_are_served() -> None:
    x = torch.randn(3, 4)
    assert kernel.serves(x, torch.nn.Parameter(x))
    assert not kernel.serves(x, x.double())
    with heed.kernels.off("cell"):
        assert not kernel.serves(x)


def one_step(x: Tensor, h: Tensor) -> tuple[Tensor, kernel.Kept]:
    """With weights of zero, so that the gates are the input."""
    B, H = h.shape
    by = kernel.Panels.of(torch.zeros(1, 3 * H, H), torch.zeros(1, 3 * H))
    after = torch.full((1, 1, B, H), torch.nan)
    kept = kernel.ahead(x, h, after, by)
    return after[0, 0], kept


def test_gates_far_from_zero_saturate() -> None:
    after, kept = one_step(torch.tensor([[-1e4, 1e4, 1e4]]), torch.tensor([[0.25]]))
    assert (after.item(), kept.new.item()) == (0.25, 1)


def test_nan_stays_nan() -> None:
    x = torch.zeros(2, 3 * 5)
    x[1] = torch.tensor(0x7FC001FF, dtype=torch.int32).view(torch.float32)  # one of the many NaNs
    after, kept = one_step(x, torch.zeros(2, 5))
    found = (after, kept.new[0, 0], kept.gates[0, 0, :, :10])
    assert all(each[1].isnan().all() and not each[0].isnan().any() for each in found)


@pytest.mark.parametrize("go", [stepped, in_rows])
def test_the_number_of_threads_changes_no_bit(go: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, given = drawn(70, 24, 3)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        found.append(both_ways(go, layers, given))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_row_alone_equals_the_row_in_a_batch() -> None:
    layers, (x, fed, first) = drawn(40, 16, 5)
    every = both_ways(stepped, layers, [x, fed, first])
    alone = both_ways(stepped, layers, [x[:, 37:38], fed[:, 37:38], first[37:38]])
    assert torch.equal(every[0][:, 37:38], alone[0])


def test_other_dtypes_than_the_weights_are_refused() -> None:
    layers, (x, fed, first) = drawn(3, 7, 5)
    with pytest.raises(Refused, match=r"float32 weights on cpu, .* float64"):
        stepped(layers, x, fed, first.double())


@pytest.mark.parametrize("changed", ["x", "fed", "first"])
def test_rows_that_do_not_fit_are_refused_and_never_read(changed: str) -> None:
    layers, (x, fed, first) = drawn(3, 7, 5)
    given = {"x": x, "fed": fed, "first": first}
    given[changed] = given[changed][..., :1, :]
    with pytest.raises(ShapeError, match="as large as its state"):
        stepped(layers, *given.values())
