"""Two processes started by torchrun train as one does, resume, and stop together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from heed.errors import HeedError
from heed.storage import checkpoint
from heed.training.distributed import Distributed, idle, join
from heed.training.settings import Training
from tests.training.fitting import Goal, Run

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, os, signal, sys, warnings, weakref
from pathlib import Path
import torch
from heed.storage import checkpoint
from heed.training.distributed import join
from heed.training.settings import Training
from heed.training.signals import listening
from tests.training.fitting import Run

torch.set_num_threads(1)
warnings.simplefilter("error")
folder = Path(sys.argv[1])

def save(name, run):
    saved = run.save()
    if run.crew.main:
        checkpoint.save(folder / name, *saved)

with join("cpu") as crew:
    group = weakref.ref(torch.distributed.group.WORLD)
    said = {"sum": crew.sum(crew.rank + 1, 10), "greatest": crew.greatest(5 - crew.rank)}
    said["share"] = crew.share({"run": "α", "rank": crew.rank})
    said["collect"] = [float(x) for x in crew.collect(torch.tensor(crew.rank + 0.5))]

    # as one process: no chance, one parameter that takes no part
    settings = Training(steps=12, warmup=3, rate=0.02, weight_decay=0.1)
    run = Run(settings, crew, seed=1 + crew.rank, chance=False, idle=True)
    if not crew.main:
        with torch.no_grad():
            [p.zero_() for p in run.model.parameters()]  # begins with the weights of the main one
    moments = run.go()
    save("two", run)
    said["loss"] = [float(m.loss) for m in moments]
    said["tokens"] = [m.tokens for m in moments]
    said["rows"] = [m.rows.tolist() for m in moments]

    # going on: with chance, which is different at each process
    settings = Training(steps=9, accumulate=3, warmup=3, rate=0.02, deterministic=True)
    straight = Run(settings, crew, seed=10 + crew.rank)
    straight.go()
    save("straight", straight)
    first = Run(settings, crew, seed=10 + crew.rank)
    first.go(until=4)
    save("first", first)
    crew.greatest(0)  # until it is written
    second = Run(settings, crew, seed=99)
    second.load(*checkpoint.load(folder / "first"))
    second.go()
    save("second", second)

    # a signal at one process stops both at the same step
    with listening() as stop:
        run = Run(Training(steps=1000), crew)
        steps = 0
        for moment in run.moments():
            steps = moment.step
            if crew.rank == 1 and steps == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            if code := crew.greatest(stop.code):
                break
    said["stopped"] = [steps, code]

said["left"] = group() is None
(folder / f"said-{crew.rank}.json").write_text(json.dumps(said))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left in their folder."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(folder / "script.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def said(folder: Path) -> list[dict[str, list[float]]]:
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_train_as_one_with_the_same_batches(two: Path) -> None:
    """37 rows, four at a time: the last batch of an epoch has no row for one process."""
    settings = Training(steps=12, warmup=3, rate=0.02, weight_decay=0.1)
    alone = Run(settings, chance=False, idle=True)
    moments = alone.go()
    both = checkpoint.load(two / "two").tensors
    weights = alone.model.state_dict()
    assert both["model"].keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(both["model"][name], tensor, rtol=1e-4, atol=1e-6)
    for one in said(two):
        assert one["loss"] == pytest.approx([float(m.loss) for m in moments], rel=1e-4)
        assert one["tokens"] == [m.tokens for m in moments]
    rows = zip(*(one["rows"] for one in said(two)), strict=True)
    for mine, (first, second) in zip(moments, rows, strict=True):
        assert sorted(mine.rows.tolist()) == sorted(first + second)
    assert not any(name.startswith("idle") for name in both["optimiser"])


@pytest.mark.slow
def test_two_processes_resume_exactly(two: Path) -> None:
    straight, second = (checkpoint.load(two / name) for name in ("straight", "second"))
    for group, named in straight.tensors.items():
        assert named.keys() == second.tensors[group].keys()
        assert all(torch.equal(x, second.tensors[group][n]) for n, x in named.items()), group
    random = straight.tensors["random"]
    assert not torch.equal(random["0.cpu"], random["1.cpu"])
    assert straight.facts["progress"]["step"] == second.facts["progress"]["step"] == 9


@pytest.mark.slow
def test_processes_share_values_and_stop_together(two: Path) -> None:
    for one in said(two):
        assert one["sum"] == [3, 20]
        assert one["greatest"] == 5
        assert one["share"] == {"run": "α", "rank": 0}
        assert one["collect"] == [0.5, 1.5]
        assert one["stopped"] == [5, 143]


@pytest.mark.slow
def test_leaving_ends_the_threads_that_carried_numbers(two: Path) -> None:
    """With a wrapped model alive: else a process is aborted as it ends, once in some thousands."""
    assert all(one["left"] for one in said(two))


@pytest.mark.slow
def test_another_number_of_processes_is_refused(two: Path) -> None:
    with pytest.raises(HeedError, match=r"saved by 2 processes, .* --nproc-per-node 2"):
        Run(Training(steps=9)).load(*checkpoint.load(two / "first"))


def test_one_process_needs_no_communication() -> None:
    with join("cpu") as crew:
        assert crew == Distributed()
        assert crew.main
        assert crew.sum(3, 4) == [3, 4]
        assert crew.greatest(7) == 7
        assert crew.share({"a": 1}) == {"a": 1}
        model = nn.Linear(2, 2)
        assert crew.wrap(model) is model
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"WORLD_SIZE": "two"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2")],
)
def test_a_broken_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HeedError, match=said), join("cpu"):
        pass


def test_a_rehearsal_finds_unused_parameters_and_changes_nothing() -> None:
    run = Run(Training(steps=1), idle=True)
    assert run.model.idle is not None
    run.model.idle(torch.zeros(3)).sum().backward()  # an old gradient must not count
    run.model.eval()
    before, random = run.save()[0], torch.get_rng_state()
    batch = next(run.batches.epoch(0))
    names = idle(run.model, lambda model: Goal()(model, batch).total.backward())
    assert names == ["idle.weight", "idle.bias"]
    assert run.model.hidden.weight.grad is None
    assert not run.model.training
    assert torch.equal(random, torch.get_rng_state())
    after = run.save()[0]
    assert all(torch.equal(x, after[g][n]) for g in before for n, x in before[g].items())
