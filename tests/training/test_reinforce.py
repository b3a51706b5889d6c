"""The score-function estimate is unbiased: exactly, and in the mean of many draws."""

from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from heed.attention.align import Sample, log_choice
from heed.errors import HeedError
from heed.training.reinforce import MovingAverage, reinforce

ENERGY = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64)
REWARD = torch.tensor([2.0, 7.0, 3.5, 4.0], dtype=torch.float64)  # of each position
BASELINES = [0.0, 3.7, torch.tensor([-50.0])]  # none, a number, one per row


def energies(*shape: int) -> Tensor:
    """Different energies for each head and step, ready to be differentiated.    *shape S"""
    scale = 1 - 0.7 * torch.arange(torch.Size(shape).numel()).view(*shape, 1)
    return (scale * ENERGY).requires_grad_()


def estimate(energy: Tensor, loss: Tensor) -> Tensor:
    return torch.autograd.grad(loss, energy, retain_graph=True)[0]


def moments(chance: list[Tensor], each: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance, over the choices, of an estimate."""
    p = torch.stack(chance).detach()
    x = torch.stack(each).flatten(1)
    mean = p @ x
    return mean, p @ (x - mean).square()


@pytest.mark.parametrize("baseline", BASELINES, ids=["none", "number", "rows"])
def test_one_choice_in_expectation(baseline: Tensor | float) -> None:
    energy = energies(1, 1, 1)
    p = energy.softmax(-1)[0, 0, 0]
    each = [
        estimate(energy, reinforce(log_choice(energy, None, s), REWARD[s].view(1), baseline))
        for s in torch.arange(4).view(4, 1, 1, 1, 1)
    ]
    exact = -estimate(energy, p @ REWARD).flatten()
    torch.testing.assert_close(moments(list(p), each)[0], exact, rtol=0, atol=1e-10)
    assert exact.abs().max() > 0.1


@pytest.mark.parametrize("baseline", BASELINES, ids=["none", "number", "rows"])
def test_several_places_in_expectation(baseline: Tensor | float) -> None:
    """Two positions drawn in order, without replacement: p_i · p_j / (1 - p_i)."""
    energy = energies(1, 1, 1)
    p = energy.softmax(-1)[0, 0, 0]
    chance, each, expected = [], [], torch.zeros((), dtype=torch.float64)
    for i, j in permutations(range(4), 2):
        reward = REWARD[i] * 2 - REWARD[j] ** 2  # order matters
        log_prob = log_choice(energy, None, torch.tensor([[[[i, j]]]]))
        chance.append(p[i] * p[j] / (1 - p[i]))
        each.append(estimate(energy, reinforce(log_prob, reward.view(1), baseline)))
        expected = expected + chance[-1] * reward
    assert sum(x.item() for x in chance) == pytest.approx(1)
    exact = -estimate(energy, expected).flatten()
    torch.testing.assert_close(moments(chance, each)[0], exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("baseline", BASELINES, ids=["none", "number", "rows"])
def test_all_choices_of_a_row_share_its_reward(baseline: Tensor | float) -> None:
    """Two heads, two steps, and a reward that depends on the four choices together."""
    energy = energies(1, 2, 2)
    p = energy.softmax(-1)
    worth = torch.randn(4, 4, 4, 4, dtype=torch.float64)
    chance, each, expected = [], [], torch.zeros((), dtype=torch.float64)
    for choice in product(range(4), repeat=4):
        chosen = torch.tensor(choice).view(1, 2, 2, 1)
        chance.append(p.gather(-1, chosen).prod())
        loss = reinforce(log_choice(energy, None, chosen), worth[choice].view(1), baseline)
        each.append(estimate(energy, loss))
        expected = expected + chance[-1] * worth[choice]
    exact = -estimate(energy, expected).flatten()
    torch.testing.assert_close(moments(chance, each)[0], exact, rtol=0, atol=1e-10)


def test_rewards_per_step_and_rewards_to_go_are_unbiased() -> None:
    """The first choice limits what the second can earn; both forms have the same mean."""
    energy = energies(1, 1, 2)
    p = energy.softmax(-1)
    worth = torch.randn(4, 4, dtype=torch.float64)
    chance, by_row, by_step, expected = [], [], [], torch.zeros((), dtype=torch.float64)
    for i, j in product(range(4), repeat=2):
        chosen = torch.tensor([i, j]).view(1, 1, 2, 1)
        log_prob = log_choice(energy, None, chosen)
        reward = torch.stack([REWARD[i], worth[i, j]])[None]
        to_come = reward.flip(1).cumsum(1).flip(1)
        chance.append(p.gather(-1, chosen).prod())
        by_row.append(estimate(energy, reinforce(log_prob, reward.sum(1))))
        by_step.append(estimate(energy, reinforce(log_prob, to_come)))
        expected = expected + chance[-1] * reward.sum()
    exact = -estimate(energy, expected).flatten()
    for each in (by_row, by_step):
        torch.testing.assert_close(moments(chance, each)[0], exact, rtol=0, atol=1e-10)
    assert moments(chance, by_step)[1].sum() < moments(chance, by_row)[1].sum()


@pytest.mark.parametrize("count", [1, 2])
def test_the_draws_of_sample_agree_in_the_mean(count: int) -> None:
    """20 000 estimates from `sample` itself: their mean is within 4 standard errors."""
    rows = 20_000
    energy = ENERGY.expand(rows, 1, 1, 4).clone().requires_grad_()
    drawn = Sample(count=count).train()(energy, None, None, energy)
    reward = (drawn.weight[:, 0, 0] @ REWARD).square()
    loss = reinforce(drawn.log_prob, reward, REWARD.mean().square())
    each = estimate(energy, rows * loss)[:, 0, 0]  # the loss is a mean over rows

    free = ENERGY.clone().requires_grad_()
    p, expected = free.softmax(-1), torch.zeros((), dtype=torch.float64)
    for places in permutations(range(4), count):
        chance = p[places[0]] * (1 if count == 1 else p[places[1]] / (1 - p[places[0]]))
        expected = expected + chance * REWARD[list(places)].mean().square()
    exact = -torch.autograd.grad(expected, free)[0]
    error = each.std(0) / rows**0.5
    assert ((each.mean(0) - exact).abs() < 4 * error).all()
    assert (error < exact.abs().max() / 20).all(), "too few draws to tell anything"


def test_the_baseline_lowers_the_variance() -> None:
    baseline = MovingAverage()
    energy = energies(1, 1, 1)
    p = energy.softmax(-1)
    for _ in range(3):
        baseline.update(REWARD[p[0, 0, 0].detach().multinomial(500, replacement=True)])
    spread = []
    for level in (torch.zeros(()), baseline.value):
        each = [
            estimate(energy, reinforce(log_choice(energy, None, s), REWARD[s].view(1), level))
            for s in torch.arange(4).view(4, 1, 1, 1, 1)
        ]
        spread.append(moments(list(p[0, 0, 0]), each)[1].sum())
    assert spread[1] < spread[0] / 2


def test_the_entropy_bonus_flattens_the_distribution() -> None:
    energy = energies(1, 1, 1)
    drawn = Sample().train()(energy, None, None, energy)
    assert drawn.entropy is not None
    before = drawn.entropy
    loss = reinforce(drawn.log_prob, torch.zeros(1), entropy=before, bonus=0.5)
    assert loss.item() == pytest.approx(-0.5 * before.item())
    with torch.no_grad():
        moved = energy - 0.1 * estimate(energy, loss)
    after = Sample()(moved, None, None, moved).entropy
    assert after is not None
    assert after > before


def test_rows_with_expected_weights_made_no_choice() -> None:
    energy = ENERGY.expand(200, 1, 1, 4).clone().requires_grad_()
    drawn = Sample(soft=0.5).train()(energy, None, None, energy)
    moved = estimate(energy, reinforce(drawn.log_prob, torch.ones(200))).abs().sum((1, 2, 3)) > 0
    hard = (drawn.weight == 1).any(-1).flatten()
    assert moved.tolist() == hard.tolist()
    assert 50 < int(moved.sum()) < 150


def test_no_gradient_reaches_the_reward_or_the_baseline() -> None:
    log_prob, reward, level = (torch.randn(2, 1, 1).requires_grad_() for _ in range(3))
    loss = reinforce(log_prob, reward[:, 0, 0], level[:, 0, 0])
    loss.backward()
    assert log_prob.grad is not None
    assert reward.grad is None
    assert level.grad is None


def test_a_reward_may_be_boolean() -> None:
    right = torch.tensor([True, False])
    log_prob = torch.tensor([-1.0, -2.0]).view(2, 1, 1)
    assert float(reinforce(log_prob, right)) == 0.5
    baseline = MovingAverage()
    baseline.update(right)
    assert float(baseline.value) == 0.5


def test_the_moving_average_of_the_baseline() -> None:
    baseline = MovingAverage(decay=0.5)
    assert float(baseline.value) == 0
    baseline.update(torch.tensor([1.0, 3.0], requires_grad=True))
    assert float(baseline.value) == 2  # not biased by the zero it began with
    baseline.update(torch.tensor(8.0))
    assert float(baseline.value) == pytest.approx((0.5 * 2 + 8) / 1.5)
    assert not baseline.value.requires_grad
    other = MovingAverage(decay=0.5)
    other.load_state_dict(baseline.state_dict())
    assert float(other.value) == float(baseline.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"log_prob": None}, "only 'sample'"),
        ({"log_prob": torch.zeros(2, 3)}, "log_prob must have 3 axes"),
        ({"reward": torch.zeros(3)}, "disagree on B"),
        ({"reward": torch.zeros(2, 4)}, "disagree on T"),
        ({"reward": torch.zeros(2, 1, 5)}, "reward must have 2 axes"),
        ({"baseline": torch.zeros(5)}, "baseline must have 2 axes"),
        ({"baseline": torch.zeros(2, 4)}, "disagree on T"),
        ({"entropy": torch.zeros(2, 2, 5), "bonus": 1.0}, "disagree on H"),
        ({"bonus": 0.1}, "entropy=seen.entropy"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Tensor], said: str) -> None:
    fitting = {"log_prob": torch.zeros(2, 1, 5), "reward": torch.zeros(2, 5)}
    assert float(reinforce(**fitting)) == 0
    with pytest.raises(HeedError, match=said):
        reinforce(**{**fitting, **given})


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(HeedError, match="decay"):
        MovingAverage(decay)
