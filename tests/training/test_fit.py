"""The loop resumes exactly, visits each sample once, and never takes a step with NaN."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from heed.errors import HeedError
from heed.storage import checkpoint
from heed.training.fit import SPACED, SPOILT, Source, apart, due, planned
from heed.training.settings import Training
from tests.training.fitting import Batches, Run, Spoilt, same

EXACT: dict[str, Any] = {
    "steps": 20,
    "accumulate": 3,
    "warmup": 5,
    "rate": 0.05,
    "weight_decay": 0.1,
    "deterministic": True,
}


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "plateau", "constant"])
@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_a_resumed_run_equals_one_that_never_stopped(
    optimiser: str, schedule: str, tmp_path: Path
) -> None:
    settings = Training.model_validate(
        {**EXACT, "optimiser": optimiser, "schedule": schedule, "plateau_patience": 1}
    )
    straight = Run(settings)
    whole = straight.go()

    first = Run(settings)
    before = first.go(until=7)
    checkpoint.save(tmp_path / "step-7", *first.save())
    del first
    second = Run(settings, seed=999)
    torch.rand(12345)  # other numbers were drawn in between
    second.load(*checkpoint.load(tmp_path / "step-7"))
    after = second.go()

    assert [m.step for m in before + after] == list(range(1, 21))
    assert [m.rate for m in before + after] == [m.rate for m in whole]
    assert [float(m.loss) for m in before + after] == [float(m.loss) for m in whole]
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(before + after, whole, strict=True))
    assert same(second.save()[0], straight.save()[0])
    facts = [run.save()[1] for run in (second, straight)]
    for each in facts:
        each["progress"].pop("seconds")
    assert facts[0] == facts[1]


@pytest.mark.parametrize("left_out", ["optimiser", "random", "objective", "schedule", "place"])
def test_each_saved_part_is_needed(left_out: str) -> None:
    """So the test above would notice if one of them were missing."""
    settings = Training.model_validate({**EXACT, "schedule": "plateau", "plateau_patience": 1})
    straight, first, second = Run(settings), Run(settings), Run(settings)
    straight.go()
    first.go(until=8)
    tensors, facts = first.save()
    other, told = Run(settings, seed=4).save()
    if left_out == "optimiser":
        tensors["optimiser"] = {n: x * 0 for n, x in tensors["optimiser"].items()}
    elif left_out == "schedule":
        facts["schedule"] = told["schedule"]
    elif left_out == "place":
        facts["progress"]["place"] = 0
    else:
        tensors[left_out] = other[left_out]
    second.load(tensors, facts)
    second.go()
    assert not same({"model": second.save()[0]["model"]}, {"model": straight.save()[0]["model"]})


def test_each_sample_is_visited_once_per_epoch_wherever_the_run_stops() -> None:
    settings = Training(epochs=3, accumulate=3, log_every=None)
    seen: list[Counter[int]] = [Counter(), Counter(), Counter()]
    saved, ends = Run(settings).save(), []
    for stop in (2, 3, 4, 7, 11, None):  # in the middle of an epoch, at its end, just after
        run = Run(settings, seed=77)
        run.load(*saved)
        for moment in run.go(until=stop):
            seen[moment.epoch].update(moment.rows.tolist())
            ends += [moment.step] * moment.at_epoch_end
        saved = run.save()
    assert all(epoch == Counter(range(37)) for epoch in seen)
    assert ends == [4, 8, 12] == [planned(settings, Batches()) // 3 * n for n in (1, 2, 3)]
    facts = saved[1]["progress"]
    assert (facts["epoch"], facts["place"], facts["step"]) == (3, 0, 12)
    assert facts["tokens"] == 3 * int((Batches().source > 0).sum())
    assert run.go() == []  # nothing is left to do


LEAST: dict[str, Any] = {"epochs": 2, "accumulate": 3, "log_every": None}  # 8 steps


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"least_steps": 5}, 8),
        ({"least_steps": 8}, 8),
        ({"least_steps": 9}, 9),
        ({"least_steps": 14}, 14),
        ({"least_steps": 14, "steps": 14}, 14),
        ({"least_steps": 5, "steps": 6}, 6),
        ({"least_steps": 11, "steps": 12}, 11),
        ({"least_steps": 11, "steps": 9}, 9),
    ],
)
def test_a_small_corpus_is_read_for_more_epochs(settings: dict[str, Any], steps: int) -> None:
    """Until the fewest steps are done, if its epochs are over before; `steps` is always the end."""
    run = Run(Training.model_validate(LEAST | settings))
    assert planned(run.settings, Batches()) == steps
    moments = run.go()
    assert [m.step for m in moments] == list(range(1, steps + 1))
    assert [m.final for m in moments] == [False] * (steps - 1) + [True]
    assert [m.epoch for m in moments] == [n // 4 for n in range(steps)]
    assert run.go() == []  # nothing is left to do


def test_a_run_resumed_beyond_its_epochs_equals_one_that_never_stopped() -> None:
    settings = Training.model_validate({**EXACT, "epochs": 2, "steps": None, "least_steps": 18})
    straight = Run(settings)
    whole = straight.go()
    assert whole[-1].step == 18
    saved, seen = Run(settings).save(), []
    for stop in (8, 9, 13, 16, None):  # where the epochs end, and three times beyond
        run = Run(settings, seed=77)
        run.load(*saved)
        seen += run.go(until=stop)
        saved = run.save()
    assert [(m.epoch, m.place) for m in seen] == [(m.epoch, m.place) for m in whole]
    assert [float(m.loss) for m in seen] == [float(m.loss) for m in whole]
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(seen, whole, strict=True))
    assert same(saved[0], straight.save()[0])
    whole_epochs = Counter(row for m in seen if m.epoch < 4 for row in m.rows.tolist())
    assert whole_epochs == Counter(dict.fromkeys(range(37), 4))


def test_fewest_steps_need_epochs() -> None:
    says = "least_steps=10 adds epochs, but epochs are not given: set least_steps=null, or give "
    with pytest.raises(ValueError, match=says):
        Training(steps=20, least_steps=10)


def test_the_loss_falls() -> None:
    settings = Training(epochs=40, rate=0.03, schedule="cosine", steps=200, warmup=20)
    moments = Run(settings, chance=False).go()
    assert float(moments[0].parts["nll"]) > 2
    assert float(moments[-1].parts["nll"]) < 0.2


def test_too_many_steps_with_nan_end_the_run_in_one_line() -> None:
    run = Run(Training(steps=100, warmup=0))
    run.goal = Spoilt(set(range(3, 1000)))
    with pytest.raises(HeedError, match=r"not finite at the last 20 steps, up to step 22.*rate"):
        run.go()
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert run.progress.spoilt == SPOILT


def test_an_empty_source_is_refused() -> None:
    run = Run(Training(steps=4))
    run.batches = Batches(rows=0)
    with pytest.raises(HeedError, match="epoch 1 has no batches"):
        run.go()


def deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_determinism_is_switched_on_for_the_loop_only(before: tuple[bool, bool]) -> None:
    """Afterwards it is as before: a user who asked for warnings only gets no errors."""
    run = Run(Training(steps=2, deterministic=True))
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        assert [deterministic() for _ in run.moments()] == [(True, False)] * 2
        assert deterministic() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_when_things_are_due() -> None:
    moments = Run(Training(epochs=2, accumulate=4)).go()
    assert [m.step for m in moments if due(2, m)] == [2, 4, 6]
    assert [m.step for m in moments if due(None, m)] == [3, 6]
    assert [m.step for m in moments if due(None, m, 2)] == [6]


@pytest.mark.parametrize(
    ("batches", "epochs"), [(0, 20), (1, 20), (5, 7), (38, 2), (39, 1), (500, 1)]
)
def test_short_epochs_are_combined(batches: int, epochs: int) -> None:
    """Two batches a step: 20 steps are 39 or 40 batches."""
    assert SPACED == 20, "docs/training.md and the recipe's own words say so"
    source = SimpleNamespace(count=lambda number: batches)
    assert apart(Training(steps=1, accumulate=2), cast(Source, source)) == epochs


def test_facts_are_json() -> None:
    run = Run(Training(steps=3, schedule="plateau"))
    run.go()
    facts = run.save()[1]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_steps_are_counted_from_one() -> None:
    moments = Run(Training(steps=4, rate=0.3, warmup=3, schedule="constant")).go()
    assert [m.step for m in moments] == [1, 2, 3, 4]
    assert [m.rate for m in moments] == pytest.approx([0.1, 0.2, 0.3, 0.3])
