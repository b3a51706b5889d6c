"""The loss against its formula, written out in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heed.errors import ShapeError
from heed.records import Attended
from heed.training.objective import misaligned, sequence_loss, surprise
from heed.training.reinforce import MovingAverage

B, T, V = 3, 5, 7


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    logits = torch.randn(B, T, V, dtype=dtype) * 3
    labels = torch.randint(1, V, (B, T))
    labels[0, 2:] = 0
    labels[2] = 0  # a row of padding
    return logits.requires_grad_(), labels


def written_out(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[float, float]:
    total = nll = 0.0
    for row, right in zip(logits.tolist(), labels.tolist(), strict=True):
        for energies, label in zip(row, right, strict=True):
            if label == 0:
                continue
            norm = math.log(sum(math.exp(e) for e in energies))
            target = [smoothing / V + (1 - smoothing) * (v == label) for v in range(V)]
            total -= sum(t * (e - norm) for t, e in zip(target, energies, strict=True))
            nll -= energies[label] - norm
    return total, nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_sum_agrees_with_the_formula(smoothing: float) -> None:
    logits, labels = drawn()
    loss = sequence_loss(logits, labels, {}, smoothing=smoothing)
    total, nll = written_out(logits.detach(), labels, smoothing)
    assert loss.total.item() == pytest.approx(total, abs=1e-10)
    assert float(loss.parts["nll"]) == pytest.approx(nll, abs=1e-10)
    assert not loss.parts["nll"].requires_grad

    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=0,
        reduction="sum",
        label_smoothing=smoothing,
    )
    mine, other = (torch.autograd.grad(x, logits)[0] for x in (loss.total, theirs))
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
    assert (mine[labels == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_is_float32_whatever_the_logits(dtype: torch.dtype) -> None:
    logits, labels = drawn(dtype)
    smooth, nll = surprise(logits, labels, 0.1)
    exact = written_out(logits.detach().double(), labels, 0.1)
    assert smooth.dtype == nll.dtype == torch.float32
    assert smooth.sum().item() == pytest.approx(exact[0], rel=1e-5)
    smooth.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_a_penalty_counts_at_real_symbols_only() -> None:
    logits, labels = drawn()
    penalty = torch.rand(B, 2, T, dtype=torch.float64, requires_grad=True)
    seen = {"a": Attended(penalty=penalty), "b": Attended()}
    plain = sequence_loss(logits, labels, {})
    loss = sequence_loss(logits, labels, seen, coverage=0.5)
    expected = sum(
        penalty[b, :, t].mean().item() for b in range(B) for t in range(T) if labels[b, t]
    )
    assert float(loss.parts["penalty"]) == pytest.approx(expected)
    assert (loss.total - plain.total).item() == pytest.approx(0.5 * expected)


def chances() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits, labels = drawn()
    energy = torch.randn(B, 2, T, 4, dtype=torch.float64, requires_grad=True)
    choice = torch.randint(4, (B, 2, T, 1))
    return logits, labels, energy, energy.log_softmax(-1).gather(-1, choice)[..., 0]


def test_the_reward_of_a_look_is_the_log_probability_of_its_word() -> None:
    logits, labels, energy, log_prob = chances()
    entropy = -(energy.softmax(-1) * energy.log_softmax(-1)).sum(-1)
    baseline = MovingAverage().double()
    baseline.update(torch.tensor(-1.5, dtype=torch.float64))
    seen = {"look": Attended(log_prob=log_prob, entropy=entropy)}
    loss = sequence_loss(logits, labels, seen, reinforced=4.0, entropy_bonus=0.3, baseline=baseline)
    log_p = logits.detach().log_softmax(-1)
    expected = torch.zeros((), dtype=torch.float64)
    for b, t in (labels > 0).nonzero().tolist():
        reward = log_p[b, t, labels[b, t]]
        for h in range(2):
            expected = expected - 4 * ((reward + 1.5) * log_prob[b, h, t] + 0.3 * entropy[b, h, t])
    mine, other = (
        torch.autograd.grad(x, energy, retain_graph=True)[0] for x in (loss.total, expected)
    )
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)  # the baseline is kept in float32
    assert mine.abs().max() > 0.1


def test_the_baseline_learns_in_training_only() -> None:
    logits, labels, _, log_prob = chances()
    seen, baseline = {"look": Attended(log_prob=log_prob)}, MovingAverage()
    sequence_loss(logits, labels, seen, baseline=baseline.eval())
    assert float(baseline.count) == 0
    with torch.no_grad():
        loss = sequence_loss(logits, labels, seen, baseline=baseline.train())
    assert float(baseline.count) == 0
    assert loss.total.item() == pytest.approx(float(loss.parts["nll"]))
    loss = sequence_loss(logits, labels, seen, baseline=baseline)
    mean = -float(loss.parts["nll"]) / int((labels > 0).sum())
    assert float(baseline.value) == pytest.approx(mean)
    sequence_loss(logits * float("nan"), labels, seen, baseline=baseline)
    assert float(baseline.value) == pytest.approx(mean)  # no NaN


def test_the_baseline_learns_nothing_from_a_batch_without_symbols() -> None:
    """Such batches complete the steps of several processes; nan is of a step that is skipped."""
    logits, labels, _, log_prob = chances()
    seen, baseline = {"look": Attended(log_prob=log_prob)}, MovingAverage()
    for spoilt in (logits, logits * float("nan")):
        sequence_loss(spoilt, torch.zeros_like(labels), seen, baseline=baseline)
    sequence_loss(logits * float("nan"), labels, seen, baseline=baseline)
    assert (float(baseline.total), float(baseline.count)) == (0, 0)
    sequence_loss(logits, labels, seen, baseline=baseline)
    before = {name: x.clone() for name, x in baseline.state_dict().items()}
    sequence_loss(logits, torch.zeros_like(labels), seen, baseline=baseline)
    assert float(baseline.count) == 1
    assert all(torch.equal(x, before[name]) for name, x in baseline.state_dict().items())


def test_the_reward_of_other_looks_is_the_mean_of_their_row() -> None:
    logits, labels = drawn()
    labels[1, 1:] = 0  # one symbol, so its reward is the mean
    log_prob = torch.randn(B, 1, 4, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    loss = sequence_loss(
        logits, labels, {}, elsewhere={"encoder": (Attended(log_prob=log_prob), real)}
    )
    (gradient,) = torch.autograd.grad(loss.total, log_prob)
    log_p = logits.detach().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    for b in range(B):
        there = labels[b] > 0
        reward = float(log_p[b][there].mean()) if there.any() else 0.0
        assert gradient[b, 0].tolist() == pytest.approx((-reward * real[b]).tolist())


def test_shapes_that_do_not_fit_are_refused() -> None:
    logits, labels = drawn()
    with pytest.raises(ShapeError, match="disagree on T"):
        sequence_loss(logits, labels[:, 1:], {})
    with pytest.raises(ShapeError, match="disagree on T"):
        sequence_loss(logits, labels, {"a": Attended(log_prob=torch.zeros(B, 1, T + 1))})
    with pytest.raises(ShapeError, match="disagree on T"):
        sequence_loss(logits, labels, {"a": Attended(penalty=torch.zeros(B, 1, T + 1))})


def test_nothing_is_read_on_the_host() -> None:
    """Tensors on `meta` have no numbers: reading one fails."""
    logits = torch.zeros(B, T, V, device="meta", requires_grad=True)
    labels = torch.zeros(B, T, dtype=torch.int64, device="meta")
    log_prob = torch.zeros(B, 1, T, device="meta", requires_grad=True)
    seen = {"a": Attended(log_prob=log_prob, entropy=log_prob, penalty=log_prob)}
    baseline = MovingAverage().to("meta")
    loss = sequence_loss(logits, labels, seen, smoothing=0.1, entropy_bonus=0.1, baseline=baseline)
    loss.total.backward()
    assert logits.grad is not None


def test_guidance_is_the_cross_entropy_against_the_links() -> None:
    """Three rows: two links share theirs, one has none, one is sure."""
    rows = [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.25, 0.7, 0.05]]
    weight = torch.tensor([rows], dtype=torch.float64)
    links = torch.tensor([[[1, 0, 1], [0, 0, 0], [0, 1, 0]]]).double()
    expected = -(math.log(0.5) + math.log(0.2)) / 2 - math.log(0.7)
    assert misaligned(weight, links).item() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ShapeError):
        misaligned(weight, links[:, :2])


def test_guidance_and_its_gradient_equal_torchs() -> None:
    energy = torch.randn(B, T, 6, dtype=torch.float64, requires_grad=True)
    links = (torch.rand(B, T, 6) < 0.4).double()
    links[0, 1] = 0  # a word without a counterpart
    linked = links.sum(-1) > 0
    target = (links / links.sum(-1, keepdim=True))[linked]
    theirs = F.cross_entropy(energy[linked], target, reduction="sum")
    mine = misaligned(energy.softmax(-1), links)
    assert mine.item() == pytest.approx(theirs.item(), abs=1e-10)
    a, b = (torch.autograd.grad(each, energy)[0] for each in (mine, theirs))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_weight_of_nearly_nothing_is_still_guided(dtype: torch.dtype) -> None:
    """The gradient of the energy is a - g, however small a is; where a is 0 nothing is infinite."""
    energy = torch.tensor([[[0.0, -60.0]]], dtype=dtype, requires_grad=True)
    misaligned(energy.softmax(-1), torch.tensor([[[0.0, 1.0]]])).backward()
    assert energy.grad is not None
    torch.testing.assert_close(
        energy.grad.float()[0, 0], torch.tensor([1.0, -1.0]), rtol=0.02, atol=0
    )
    hard = torch.tensor([[[1.0, 0.0]]], dtype=dtype, requires_grad=True)
    loss = misaligned(hard, torch.tensor([[[0.0, 1.0]]]))
    loss.backward()
    assert loss.isfinite()
    assert hard.grad is not None
    assert hard.grad.isfinite().all()


def test_guidance_is_added_with_its_weight_and_reported() -> None:
    logits, labels = drawn()
    weight = torch.randn(B, T, 4, dtype=torch.float64).softmax(-1)
    links = torch.eye(T, 4).double().expand(B, T, 4)
    plain = sequence_loss(logits, labels, {})
    loss = sequence_loss(logits, labels, {}, aligned=(weight, links), guided=0.3)
    wrong = -weight.log().diagonal(dim1=1, dim2=2).sum()
    torch.testing.assert_close(loss.total, plain.total + 0.3 * wrong)
    torch.testing.assert_close(loss.parts["guided"], wrong)
    assert loss.parts["nll"] == plain.parts["nll"]
