"""Two processes started by torchrun learn the same as one, and resume like one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from heed.events import finish
from heed.running.preparing import prepare
from heed.running.recipe import resolve
from heed.storage import checkpoint, journal
from heed.storage.run_folder import RunFolder
from heed.storage.tensors import read
from heed.tasks import task_of
from heed.training.objective import Several
from tests.running import labelling, test_pretrain
from tests.running.small import Job, Server, small, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout, which each process draws independently."""
    raw = small()
    raw["model"]["dropout"] = 0.0
    return write_recipe(tmp_path_factory.mktemp("recipe"), raw)


@pytest.fixture(scope="module")
def alone(server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    assert server.run("train", recipe, "--run", run).code == 0
    return run


@pytest.fixture(scope="module")
def together(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real torchrun."""
    run = tmp_path_factory.mktemp("together") / "run"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    # Without the "--" torchrun would take --run for an abbreviation of its own option.
    command = ["--", sys.executable, "-c", "from heed.cli import main; main()"]
    done = subprocess.run(
        [sys.executable, *launch, *command, "train", recipe, "--run", run],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "only one of them speaks"
    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.newest(run / "checkpoints", print)
    assert newest is not None
    return read(newest / "model.safetensors")


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(alone: Path, together: Path) -> None:
    for name, weight in weights(alone).items():
        torch.testing.assert_close(weights(together)[name], weight, rtol=1e-4, atol=1e-5)
    one, two = (
        [e["train/loss"] for e in journal.read(run / "metrics.jsonl") if "train/loss" in e]
        for run in (alone, together)
    )
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=1e-4, atol=1e-5)


def pair(server: Server, *words: str | Path) -> list[Job]:
    """Two processes with the environment of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [
        server.start(*words, environment={**meet, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]


def told(run: Path) -> int:
    return max((entry["step"] for entry in journal.read(run / "metrics.jsonl")), default=0)


@pytest.mark.slow
def test_stopped_and_killed_processes_end_with_the_same_weights(
    server: Server, recipe: Path, together: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    jobs = pair(server, "train", recipe, "--run", run)
    assert jobs[0].wait_for(lambda: told(run) >= 3)
    jobs[1].kill(signal.SIGTERM)  # whichever gets the signal, both stop
    done = [job.wait() for job in jobs]
    assert [each.code for each in done] == [143, 143]
    assert "stopped and saved at step" in done[0].err

    jobs = pair(server, "train", run, "--resume")
    assert jobs[0].wait_for(lambda: told(run) >= 7)
    for job in jobs:
        job.kill()
    assert [job.wait().code for job in jobs] == [-signal.SIGKILL] * 2

    done = [job.wait() for job in pair(server, "train", run, "--resume")]
    assert [each.code for each in done] == [0, 0], done
    for name, weight in weights(together).items():
        assert torch.equal(weights(run)[name], weight), name
    assert (run / "model.safetensors").read_bytes() == (together / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_one_process_cannot_resume_for_two(server: Server, together: Path) -> None:
    assert "torchrun --nproc-per-node 2" in server.run("train", together, "--resume").err


@pytest.mark.slow
def test_a_start_of_two_that_fails_leaves_nothing(server: Server, tmp_path: Path) -> None:
    raw = small()
    raw["data"]["longest"] = 2
    jobs = pair(server, "train", write_recipe(tmp_path, raw), "--run", tmp_path / "runs" / "one")
    done = [job.wait() for job in jobs]
    assert "there is nothing to train on" in done[0].err
    assert 0 not in [each.code for each in done]
    assert not (tmp_path / "runs").exists()


def classify(folder: Path) -> dict[str, Any]:
    raw = labelling.recipe(labelling.files(folder))
    raw["training"] |= {"adversarial": 0.2}
    return raw


def pretrain(folder: Path) -> dict[str, Any]:
    objective = {"kind": "masked", "next_sentence": True}
    found: dict[str, Any] = yaml.safe_load(
        test_pretrain.small(folder, test_pretrain.BERT, objective).read_text()
    )
    return found


def language_model(folder: Path) -> dict[str, Any]:
    (folder / "input.txt").write_text("to be, or not to be: that is the question.\n" * 20)
    return {
        "task": "language-model",
        "data": {"folder": str(folder), "train": "input.txt", "context": 16},
        "model": {"kind": "gpt2", "layers": 1, "width": 16, "heads": 2, **test_pretrain.STILL},
        "training": {"steps": 1, "batch_tokens": 80},  # five rows: one more for the first
    }


@pytest.mark.parametrize("made", [classify, pretrain, language_model])
def test_the_parts_of_a_batch_add_up(made: Any, tmp_path: Path) -> None:
    """Over two processes: the number of symbols, the loss and the gradients of each batch."""
    recipe = resolve(made(tmp_path))
    told = task_of(recipe.task)
    prepared = finish(prepare(told, recipe, RunFolder.create(tmp_path / "run")))
    torch.manual_seed(0)
    model = told.describe(recipe, prepared).build().double().train()
    codec = prepared.codec
    objective = codec.form.objective(list(codec.inputs), recipe.training)
    weights = list(model.parameters())

    def batches(rank: int, world: int) -> list[Any]:
        source = told.batches(recipe, prepared, shard=(rank, world), fixed=False)
        return list(islice(source.epoch(0), 4))

    def learnt(rank: int, world: int) -> list[list[torch.Tensor]]:
        found = []
        for batch, whole in zip(batches(rank, world), batches(0, 1), strict=True):
            if isinstance(objective, Several):
                objective.balance([whole], lambda *counts: list(counts))
            total = objective(model, batch).total
            back = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
            found.append([torch.tensor(objective.count(batch)), total.detach(), *back])
        return found

    for whole, *parts in zip(learnt(0, 1), learnt(0, 2), learnt(1, 2), strict=True):
        added = [sum(each) for each in zip(*parts, strict=True)]
        torch.testing.assert_close(added, whole, rtol=1e-5, atol=1e-7)
