"""Learning rates at known steps; which weights decay; steps skipped without a synchronisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from heed.errors import HeedError
from heed.training.optimise import build, schedule, step
from heed.training.settings import Training
from tests.training.fitting import Network


def training(**options: Any) -> Training:
    return Training.model_validate({"steps": 1000, **options})


def test_inverse_sqrt_is_that_of_the_paper() -> None:
    """Vaswani 2017 §5.3: d^-0.5 · min(n^-0.5, n · w^-1.5), whose peak is at n = w."""
    d, w = 512, 4000
    peak = d**-0.5 * w**-0.5
    rate = schedule(training(schedule="inverse-sqrt", rate=peak, warmup=w))
    for n in (1, 100, 3999, 4000, 4001, 100_000):
        assert rate(n) == pytest.approx(d**-0.5 * min(n**-0.5, n * w**-1.5))


def test_cosine_falls_from_rate_to_floor() -> None:
    rate = schedule(training(schedule="cosine", rate=1.0, floor=0.1, warmup=200), total=1000)
    assert rate(100) == pytest.approx(0.5)
    assert rate(200) == pytest.approx(1.0)
    assert rate(600) == pytest.approx(0.55)  # half way
    assert rate(1000) == rate(5000) == pytest.approx(0.1)
    every = [rate(n) for n in range(200, 1001)]
    assert every == sorted(every, reverse=True)


def test_constant_warms_up_and_stays() -> None:
    rate = schedule(training(schedule="constant", rate=0.3, warmup=3))
    assert [rate(n) for n in (1, 2, 3, 4, 999)] == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])
    assert schedule(training(schedule="constant", rate=0.3, warmup=0))(1) == 0.3


def test_cosine_needs_its_last_step() -> None:
    with pytest.raises(HeedError, match="needs its last step"):
        schedule(Training(epochs=3, schedule="cosine"))


def test_plateau_lowers_the_rate_when_nothing_improves() -> None:
    settings = training(
        schedule="plateau", rate=1.0, warmup=0, floor=0.2, plateau_patience=2, plateau_factor=0.5
    )
    rate = schedule(settings)
    said = []
    for score in (3.0, 2.0, 2.5, 1.9, 1.9, math.nan, 1.8, 2, 2, 2, 2, 2, 2):
        rate.judge(score)
        said.append(rate(10))
    assert said == pytest.approx([1.0] * 5 + [0.5] * 3 + [0.25] * 2 + [0.2] * 3)
    other = schedule(settings)
    other.restore(rate.facts())
    assert (other.facts(), other(10)) == (rate.facts(), rate(10))
    with pytest.raises(HeedError, match="plateau"):
        schedule(training()).restore(rate.facts())
    with pytest.raises(HeedError, match="plateau"):
        other.restore({})


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_only_matrices_decay(kind: str) -> None:
    model = Network()
    optimiser = build(model, training(optimiser=kind, weight_decay=0.5))
    names = {id(p): name for name, p in model.named_parameters()}
    decay = {
        names[id(p)]: group["weight_decay"]
        for group in optimiser.param_groups
        for p in group["params"]
    }
    assert decay.keys() == set(names.values())
    assert {n for n, d in decay.items() if d} == {"hidden.weight", "score.weight"}
    assert type(optimiser).__name__.lower() == kind


def test_frozen_weights_are_left_out() -> None:
    model = Network()
    model.hidden.requires_grad_(False)
    count = sum(len(g["params"]) for g in build(model, training()).param_groups)
    assert count == len(list(model.parameters())) - 2
    model.requires_grad_(False)
    with pytest.raises(HeedError, match="no trainable parameters"):
        build(model, training())


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_step_is_that_of_the_paper(kind: str) -> None:
    """Kingma 2015, Algorithm 1; Loshchilov 2019, Algorithm 2: in float64, by hand."""
    model = nn.Linear(1, 1, bias=False).double()
    settings = training(optimiser=kind, weight_decay=0.1, betas=(0.8, 0.9), epsilon=1e-6)
    optimiser = build(model, settings)
    x, m, v = model.weight.item(), 0.0, 0.0
    for n, (gradient, rate) in enumerate([(0.3, 0.1), (-2.0, 0.05), (0.7, 0.2)], start=1):
        model.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        step(optimiser, rate, torch.tensor(False))
        if kind == "adam":
            gradient += 0.1 * x
        else:
            x -= rate * 0.1 * x
        m, v = 0.8 * m + 0.2 * gradient, 0.9 * v + 0.1 * gradient**2
        x -= rate * (m / (1 - 0.8**n)) / (math.sqrt(v / (1 - 0.9**n)) + 1e-6)
        assert model.weight.item() == pytest.approx(x, rel=1e-9)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_skipped_step_changes_nothing(kind: str) -> None:
    model = nn.Linear(3, 3)
    optimiser = build(model, training(optimiser=kind, weight_decay=0.1))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    step(optimiser, 0.1, torch.tensor(False))
    before = [p.clone() for p in model.parameters()]
    state = [{n: x.clone() for n, x in optimiser.state[p].items()} for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, math.inf)
    step(optimiser, 0.1, torch.tensor(True))
    for p, was, kept in zip(model.parameters(), before, state, strict=True):
        assert torch.equal(p, was)
        assert all(torch.equal(x, kept[n]) for n, x in optimiser.state[p].items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": None}, "epochs or steps"),
        ({"rate": 0}, "greater than 0"),
        ({"rate": float("inf")}, "less than or equal"),
        ({"betas": (0.9, 1.0)}, "less than 1"),
        ({"clip": float("nan")}, "clip"),
        ({"accumulate": 0}, "accumulate"),
        ({"optimiser": "sgd"}, "adamw"),
        ({"average": 5, "keep": 3}, "keep=5"),
        ({"floor": 1.0, "rate": 0.1}, "above rate"),
        ({"learning_rate": 1.0}, "learning_rate"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        training(**options)
