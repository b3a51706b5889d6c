"""Cross entropy in C, compared with its twin `surprise`, and autograd."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import heed
from heed.kernels import native
from heed.kernels.surprise import native as kernel
from heed.models.written import Unformed
from heed.training import surprise as room
from heed.training.surprise import surprise, surprise_of
from tests.kernels.levels import LEVELS

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of each instruction set that this processor supports."""
    monkeypatch.setattr(kernel, "_judge", native.Function("heed_surprise", "8qd", request.param))


def twin(
    logits: Tensor, bias: Tensor | None, right: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each row, and the gradients of their sum for the logits and the bias."""
    logits = logits.double().requires_grad_()
    offset = torch.zeros(logits.shape[1]) if bias is None else bias
    offset = offset.double().requires_grad_()
    smooth, nll = surprise((logits + offset)[None], right[None], smoothing, none=-1)
    return nll[0].detach(), *torch.autograd.grad(smooth.sum(), (logits, offset))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "V"), [(1, 1), (2, 3), (17, 37), (33, 200)])
def test_it_equals_the_loss_and_its_gradient(n: int, V: int, bias: bool, smoothing: float) -> None:
    logits, offset = 5 * torch.randn(n, V), torch.randn(V) if bias else None
    right = torch.randint(V, (n,))
    nll, by_logits, by_bias = twin(logits, offset, right, smoothing)
    got, even, d_bias = kernel.judge(logits, offset, right, smoothing, True)
    for ours, exact in ((got, nll), (logits, by_logits), (d_bias, by_bias)):
        torch.testing.assert_close(ours, exact.float(), rtol=2e-6, atol=4e-6)
    assert even.shape == (n,)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("held", [1, 300, 10**6])
def test_a_network_passes_it_to_its_loss(
    held: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(room.HELD, "cpu", held)
    given = [torch.randn(*shape, requires_grad=True) for shape in ((3, 7, 5), (37, 5), (37,))]
    labels = torch.randint(37, (3, 7))
    labels[0, 3:] = 0
    written = Unformed(*given)
    assert written.judge is kernel.judge
    total, nll = surprise_of(written, labels, smoothing)
    want, each = surprise(written.form(), labels, smoothing)
    torch.testing.assert_close((total, nll), (want.sum(), each.detach()), rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(3 * total, given)
    for ours, theirs in zip(grads, torch.autograd.grad(3 * want.sum(), given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, bias, right = torch.randn(100, 333), torch.randn(333), torch.randint(333, (100,))
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        here = logits.clone()
        found.append([here, *kernel.judge(here, bias, right, 0.1, True)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nan_stays_in_its_row() -> None:
    logits = torch.randn(3, 50)
    logits[1, 7] = torch.nan
    nll, _, d_bias = kernel.judge(logits, None, torch.tensor([1, 2, 3]), 0.0, True)
    assert nll.isnan().tolist() == [False, True, False]
    assert logits.isnan().all(1).tolist() == [False, True, False]
    assert d_bias.isnan().all()


@pytest.mark.parametrize("label", [-1, 9])
def test_labels_outside_of_the_vocabulary_are_refused(label: int) -> None:
    with pytest.raises(IndexError, match="from 0 to 8"):
        kernel.judge(torch.randn(2, 9), None, torch.tensor([0, label]), 0.0, True)


def test_other_logits_are_left_to_pytorch() -> None:
    with heed.kernels.off("surprise"):
        assert kernel.judging(torch.randn(2, 3)) is None
    assert kernel.judging(torch.randn(2, 3).double()) is None
    with FakeTensorMode():
        assert kernel.judging(torch.empty(2, 3)) is None
    assert torch.func.vmap(lambda w: w + (kernel.judging(w) is None))(torch.zeros(2)).all()
