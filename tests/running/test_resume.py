"""Stopped, killed, damaged: a resumed run ends as if it was never interrupted, to the last bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.events import Progress, finish
from heed.running import learner as training
from heed.running.recipe import resolve
from heed.running.train import train
from heed.storage import checkpoint, journal
from tests.running.small import Job, Server, small, write_recipe

KILLS = 20


def left(run: Path) -> dict[str, Any]:
    """All results of a run that must not depend on interruptions."""
    scores = json.loads((run / "scores.json").read_text())["scores"]
    files = [run / "model.safetensors", *sorted((run / "examples").iterdir())]
    files += [*sorted((run / "samples").iterdir())]
    saved = {
        f"{folder.name}/{file.name}": file.read_bytes()
        for folder in checkpoint.steps(run / "checkpoints").values()
        for file in folder.glob("*.safetensors")
    }
    told = [
        {k: v for k, v in entry.items() if k not in ("time", "train/tokens_per_second")}
        for entry in journal.read(run / "metrics.jsonl")
    ]
    return (
        {file.name: file.read_bytes() for file in files}
        | saved
        | {
            "metrics": told,
            "scores": scores,
        }
    )


def assert_same(run: Path, undisturbed: Path) -> None:
    found, expected = left(run), left(undisturbed)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name] == value, f"{name} differs"
    steps = Counter((entry["step"], "train/loss" in entry) for entry in found["metrics"])
    assert set(steps.values()) == {1}, "a step is told twice"
    assert not list(run.rglob("*.tmp-*")), "something half-written is left"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dropout, accumulation, a warm-up; 42 steps, 21 checkpoints, the last three averaged."""
    raw = small(epochs=7, keep=3, average=3)
    return write_recipe(tmp_path_factory.mktemp("recipe"), raw)


@pytest.fixture(scope="module")
def undisturbed(server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert server.run("train", recipe, "--run", run).code == 0
    return run


def drafts(run: Path) -> set[Path]:
    return set(run.glob("checkpoints/*.tmp-*"))


def kill_somewhere(job: Job, run: Path, chance: random.Random, kind: int) -> bool:
    """Kill inside a save, a little after a step, or at any time; returns whether it still ran."""
    known, old = len(list(journal.read(run / "metrics.jsonl"))), drafts(run)
    if kind == 0:
        there = job.wait_for(lambda: bool(drafts(run) - old), pause=0.0005)
    elif kind == 1:
        more = known + chance.randint(1, 2)
        there = job.wait_for(lambda: len(list(journal.read(run / "metrics.jsonl"))) >= more)
        time.sleep(chance.uniform(0, 0.05))
    else:
        end = time.monotonic() + chance.uniform(0, 0.6)
        far = known + 2  # so that a fast machine does not finish before the twentieth kill
        there = job.wait_for(
            lambda: time.monotonic() > end or len(list(journal.read(run / "metrics.jsonl"))) >= far
        )
    job.kill()
    return there


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_with_the_same_weights(
    server: Server, recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, chance = tmp_path / "run", random.Random(7)
    inside = 0
    for i in range(KILLS):
        before = drafts(run)
        job = server.start("train", recipe, "--run", run, "--resume")
        assert kill_somewhere(job, run, chance, i % 3), f"over after {i} kills: make it longer"
        assert job.wait().code == -signal.SIGKILL
        inside += bool(drafts(run) - before)
    assert inside >= 3, "hardly any kill came inside a save"
    done = server.run("train", recipe, "--run", run, "--resume")
    assert done.code == 0, done.err
    assert_same(run, undisturbed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_saves_and_says_how_to_resume(
    server: Server, recipe: Path, undisturbed: Path, tmp_path: Path, number: int, code: int
) -> None:
    run = tmp_path / "run"
    job = server.start("train", recipe, "--run", run)
    assert job.wait_for(lambda: told(run) >= 3)
    job.kill(number)
    done = job.wait()
    assert done.code == code
    last = done.err.splitlines()[-1]
    assert last.startswith("heed: stopped and saved at step ")
    assert last.endswith(f"heed train {run} --resume")
    assert "Traceback" not in done.err
    newest = checkpoint.newest(run / "checkpoints", print)
    assert newest is not None
    assert f"step {newest.name.removeprefix('step-')};" in last
    assert server.run("train", run, "--resume").code == 0
    assert_same(run, undisturbed)


def test_a_stop_does_not_change_which_checkpoints_are_averaged(
    server: Server, recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The checkpoint of a stop is between those of an uninterrupted run."""
    run = tmp_path / "run"
    words = ["train", str(recipe), "--run", str(run), "--resume"]
    for step in (27, 29):
        assert server.call("stopped", [signal.SIGTERM, step, *words]).wait().code == 143
    assert server.run(*words).code == 0
    assert_same(run, undisturbed)


def told(run: Path) -> int:
    return max((entry["step"] for entry in journal.read(run / "metrics.jsonl")), default=0)


@pytest.fixture(scope="module")
def killed(server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed late, with some checkpoints."""
    run = tmp_path_factory.mktemp("killed") / "run"
    job = server.start("train", recipe, "--run", run)
    assert job.wait_for(lambda: told(run) >= 23)
    job.kill()
    job.wait()
    return run


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing"])
def test_a_damaged_checkpoint_is_reported_and_skipped(
    server: Server, killed: Path, undisturbed: Path, tmp_path: Path, damage: str
) -> None:
    run = Path(shutil.copytree(killed, tmp_path / "run"))
    newest, before, *_ = checkpoint.steps(run / "checkpoints").values()
    spoil(newest / "optimiser.safetensors", damage)
    done = server.run("train", run, "--resume")
    assert done.code == 0, done.err
    assert f"passing over the checkpoint {newest.name}: " in done.err
    assert "optimiser.safetensors" in done.err
    assert f"resuming from step {before.name.removeprefix('step-')}\n" in done.err
    assert_same(run, undisturbed)


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 1
    elif how == "cut off":
        del data[len(data) // 2 :]
    else:
        path.unlink()
        return
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"step": 10**30}, "progress.step"),
        ({"step": 7}, "the checkpoint is of step 7"),
        ({"place": 10**9}, "beyond the end of its epoch"),
        ({"best": float("nan")}, "progress.best"),
    ],
)
def test_a_checkpoint_with_absurd_numbers_is_refused(
    server: Server, killed: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    """Its hashes are valid: somebody has written it so."""
    run = Path(shutil.copytree(killed, tmp_path / "run"))
    newest = checkpoint.newest(run / "checkpoints", print)
    assert newest is not None
    saved = checkpoint.load(newest)
    saved.facts["progress"].update(changes)
    checkpoint.save(newest, saved.tensors, saved.facts)
    said = server.run("train", run, "--resume")
    assert (said.code, "Traceback" in said.err) == (2, False), said.err
    last = said.err.splitlines()[-1]
    assert last.startswith(f"heed: {newest}: ")
    assert says in last
    assert (run / "metrics.jsonl").read_bytes() == (killed / "metrics.jsonl").read_bytes()


def test_a_finished_run_stays_as_it_is(server: Server, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    assert server.run("train", run, "--resume").code == 0
    assert_same(run, undisturbed)


def test_two_trainings_in_one_folder_are_refused(
    server: Server, recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = server.start("train", recipe, "--run", run)
    assert job.wait_for(lambda: told(run) >= 1)
    assert (
        f"is being written by process {job.pid}" in server.run("train", run, "--resume").refused()
    )
    job.kill()
    job.wait()


def test_every_sample_is_visited_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is interrupted: here without a save, as by a kill."""
    seen: dict[int, tuple[int, list[int]]] = {}
    fit = training.fit

    def watched(*given: Any, **named: Any) -> Any:
        for moment in fit(*given, **named):
            told = (moment.epoch, moment.rows.tolist())
            assert seen.setdefault(moment.step, told) == told, "a step that was redone differs"
            yield moment

    monkeypatch.setattr(training, "fit", watched)
    recipe = resolve(small(validate_every=12))
    threads = torch.get_num_threads()
    for steps in (3, 1, 4, 2, 5):
        work = train(recipe, tmp_path, resume=True, device="cpu")
        while steps:
            event = next(work)
            steps -= isinstance(event, Progress) and event.stage == "training"
        work.close()
    finish(train(recipe, tmp_path, resume=True, device="cpu"))
    torch.set_num_threads(threads)
    assert sorted(seen) == list(range(1, max(seen) + 1))
    for epoch in range(2):
        rows = [row for at, rows in seen.values() if at == epoch for row in rows]
        assert sorted(rows) == list(range(200))
