"""What is saved is checked before it is used."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from heed.errors import HeedError
from heed.training.progress import Progress
from heed.training.settings import Training
from tests.training.fitting import Run

SETTINGS = Training(steps=10, warmup=0, schedule="plateau")
Edit = Callable[[dict[str, Any], dict[str, Any]], object]


def run() -> Run:
    made = Run(SETTINGS)
    made.go(until=3)
    return made


def test_the_optimiser_is_saved_by_name() -> None:
    tensors, facts = run().save()
    assert {n.rpartition(".")[0] for n in tensors["optimiser"]} == set(facts["optimiser"]["moved"])
    assert {n.rpartition(".")[2] for n in tensors["optimiser"]} == {"step", "exp_avg", "exp_avg_sq"}
    assert "embed.weight.exp_avg" in tensors["optimiser"]
    assert not any(n.startswith("say.") for n in tensors["optimiser"])  # tied, so saved once


def test_the_order_of_parameters_does_not_matter() -> None:
    one, two = run(), Run(SETTINGS, seed=2)
    groups = two.optimiser.param_groups
    for group in groups:
        group["params"].reverse()
    two.load(*one.save())
    for name, p in two.model.named_parameters():
        mine = dict(one.model.named_parameters())[name]
        assert torch.equal(p, mine)
        assert torch.equal(two.optimiser.state[p]["exp_avg"], one.optimiser.state[mine]["exp_avg"])


def test_a_parameter_that_was_never_updated_has_no_state() -> None:
    one, two = Run(SETTINGS, idle=True), Run(SETTINGS, idle=True, seed=2)
    one.go(until=3)
    tensors, _ = one.save()
    assert not any(n.startswith("idle") for n in tensors["optimiser"])
    two.load(*one.save())
    assert two.model.idle is not None
    assert two.model.idle.weight not in two.optimiser.state


CASES: list[tuple[Edit, str]] = [
    (lambda t, f: t.pop("model"), "lacks 'model'"),
    (lambda t, f: t.pop("random"), "lacks 'random'"),
    (lambda t, f: f.pop("progress"), "lacks 'progress'"),
    (lambda t, f: f.pop("world"), "lacks 'world'"),
    (lambda t, f: f.update(world=4), "saved by 4 processes, but there are 1"),
    (lambda t, f: t["model"].pop("hidden.bias"), "weights .* lack hidden.bias"),
    (lambda t, f: t["model"].update(other=torch.zeros(1)), "hold other"),
    (lambda t, f: t["model"].update({"hidden.bias": torch.zeros(9)}), r"hidden.bias: \(9,\)"),
    (lambda t, f: t["model"].update({"hidden.bias": torch.zeros(8).half()}), "float16"),
    (lambda t, f: t["optimiser"].pop("hidden.bias.exp_avg"), "lack hidden.bias.exp_avg"),
    (lambda t, f: t["optimiser"].update({"hidden.bias.step": torch.zeros(2)}), "bias.step"),
    (lambda t, f: f["optimiser"].update(kind="Adam"), "state of Adam, not AdamW"),
    (lambda t, f: f["optimiser"]["moved"].pop(), "which is not wanted"),
    (lambda t, f: f["optimiser"]["moved"].append("ghost"), "ghost"),
    (lambda t, f: f["optimiser"].update(moved=3), "valid optimiser.moved"),
    (lambda t, f: f["optimiser"].update(moved=[{}]), "valid optimiser.moved"),
    (lambda t, f: f["optimiser"].update(kind=10**30), "valid optimiser.kind"),
    (lambda t, f: f.update(world=10**30), "valid world"),
    (lambda t, f: t["objective"].pop("0.baseline.total"), "lack baseline.total"),
    (lambda t, f: t["random"].pop("0.cpu"), "lack cpu"),
    (lambda t, f: t["random"].update({"0.cpu": torch.zeros(3, dtype=torch.uint8)}), "cpu"),
    (lambda t, f: t["random"]["0.cpu"].fill_(170), "no valid random numbers: Invalid mt19937"),
    (lambda t, f: f["progress"].update(step=-1), "valid progress"),
    (lambda t, f: f["progress"].update(step="7"), "valid progress"),
    (lambda t, f: f["progress"].update(best=math.inf), "valid progress"),
    (lambda t, f: f["progress"].update(surplus=1), "valid progress"),
    (lambda t, f: f["progress"].pop("tokens"), "lacks 'tokens'"),
    (lambda t, f: f["progress"].update(step=10**30), "valid progress.step"),
    (lambda t, f: f["progress"].update(epoch=10**15), "steps cannot have"),
    (lambda t, f: f["progress"].update(bad=10**15), "steps cannot have"),
    (lambda t, f: f["progress"].update(seconds=math.nan), "valid progress.seconds"),
    (lambda t, f: f.update(skips=[1]), "valid skips"),
    (lambda t, f: f.update(skips=[2, 5]), "steps cannot have"),
    (lambda t, f: f.update(skips=[-1, 0]), "valid skips.0"),
    (lambda t, f: f.update(skips=[10**30, 0]), "valid skips.0"),
    (lambda t, f: f.update(skips=[math.inf, 0]), "valid skips.0"),
    (lambda t, f: f.update(schedule={}), "plateau"),
    (lambda t, f: f.update(schedule=[]), "plateau"),
    (lambda t, f: f["schedule"].update(drops=-(10**30)), "valid schedule=plateau.drops"),
    (lambda t, f: f["schedule"].update(bad=math.inf), "valid schedule=plateau.bad"),
    (lambda t, f: f["schedule"].update(best=math.nan), "valid schedule=plateau.best"),
]


@pytest.mark.parametrize(("edit", "said"), CASES, ids=[said for _, said in CASES])
def test_a_state_that_does_not_fit_is_refused_in_one_line(edit: Edit, said: str) -> None:
    made = run()
    tensors, facts = made.save()
    facts = copy.deepcopy(facts)
    edit(tensors, facts)
    with pytest.raises(HeedError, match=said) as caught:
        Run(SETTINGS, seed=2).load(tensors, facts)
    assert "\n" not in str(caught.value)


def test_scores_are_judged() -> None:
    progress = Progress(step=5)
    assert progress.judge(3.0)
    assert not progress.judge(3.0)
    assert not progress.judge(math.nan)
    assert (progress.best, progress.bad) == (3.0, 2)
    assert progress.tired(2)
    assert not progress.tired(3)
    assert not progress.tired(None)
    assert progress.judge(2.0)
    assert progress.bad == 0
