"""Training from a recipe: the contents of the folder, and reproducibility."""

from __future__ import annotations

import errno
import json
import math
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from heed.events import finish
from heed.running.learner import Learner
from heed.running.opening import open_run
from heed.running.recipe import parse, resolve
from heed.running.train import train
from heed.storage import checkpoint, journal, tensors
from heed.storage.run_folder import RunFolder
from heed.training.fit import fit
from heed.training.progress import Progress as Standing
from tests.running import labelling
from tests.running.small import Server, small, write_recipe


def test_a_run_has_all_its_files(trained: Path) -> None:
    for name in ("config.json", "recipe.yaml", "tokenizer.json", "model.safetensors"):
        assert (trained / name).is_file()
    for part in ("valid", "test"):
        assert len((trained / f"examples/{part}.jsonl").read_text().splitlines()) == 4
    steps = sorted(checkpoint.steps(trained / "checkpoints"))
    assert steps[-1] == 12
    assert len(steps) <= 3
    scores = json.loads((trained / "scores.json").read_text())
    assert scores["steps"] == 12
    assert "tokens_per_second" not in scores  # a dozen steps are too few to tell
    assert 0 <= scores["scores"]["test"]["bleu"] <= 100


def test_every_step_is_reported_once_and_the_loss_falls(trained: Path) -> None:
    told = list(journal.read(trained / "metrics.jsonl"))
    losses = {entry["step"]: entry["train/loss"] for entry in told if "train/loss" in entry}
    assert list(losses) == list(range(1, 13))
    assert losses[12] < losses[1]
    assert [entry["step"] for entry in told if "valid/loss" in entry] == [4, 8, 12]
    assert all(math.isfinite(loss) for loss in losses.values())


def test_the_first_steps_do_not_count_as_speed() -> None:
    def speed(settled: Standing | None, **standing: Any) -> float | None:
        learner: Any = SimpleNamespace(standing=Standing(**standing), settled=settled)
        return Learner._speed(learner)

    slow = Standing(step=5, tokens=50, seconds=9.0)
    assert speed(slow, step=15, tokens=150, seconds=10.0) == 100
    assert speed(slow, step=14, tokens=140, seconds=10.0) is None
    assert speed(None, step=4, tokens=40, seconds=9.0) is None
    assert speed(None, step=200, tokens=2000, seconds=20.0) == 100  # a finished run


def test_the_best_weights_are_kept(trained: Path) -> None:
    """Here the last ones: the validation loss falls."""
    valid = [e["valid/loss"] for e in journal.read(trained / "metrics.jsonl") if "valid/loss" in e]
    assert valid == sorted(valid, reverse=True)
    last = tensors.read(trained / "checkpoints/step-12/model.safetensors")
    for name, weight in tensors.read(trained / "model.safetensors").items():
        assert torch.equal(weight, last[name])


def test_the_recipe_in_the_folder_is_complete(trained: Path) -> None:
    """Every default is written, and it is read back unchanged."""
    raw = parse((trained / "recipe.yaml").read_text())
    assert resolve(raw) == resolve(small())
    assert raw["training"]["clip"] == 1.0


def test_the_same_recipe_gives_the_same_bits(server: Server, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "again"
    assert server.run("train", trained / "recipe.yaml", "--run", run).code == 0
    expected = (trained / "model.safetensors").read_bytes()
    assert (run / "model.safetensors").read_bytes() == expected
    other = tmp_path / "other"
    done = server.run("train", trained / "recipe.yaml", "seed=2", "--run", other)
    assert (other / "model.safetensors").read_bytes() != expected, done.err


def test_starting_again_and_from_other_weights(
    server: Server, trained: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, small(steps=1, rate=1e-9))
    run = tmp_path / "run"
    for flags in ([], ["--overwrite"]):
        done = server.run("train", recipe, "--run", run, "--from", trained, *flags)
        assert done.code == 0, done.err
    begun = tensors.read(trained / "model.safetensors")
    assert f"taken from {trained}: all {len(begun)} tensors\n" in done.err
    assert [entry["step"] for entry in journal.read(run / "metrics.jsonl")] == [1, 1]
    for name, weight in tensors.read(run / "model.safetensors").items():
        torch.testing.assert_close(weight, begun[name], rtol=0, atol=1e-6)


def test_printing_the_recipe_does_nothing(server: Server, tmp_path: Path) -> None:
    words = ["demo", "training.epochs=3", "--print-config", "--attention", "dot"]
    done = server.run("train", *words, cwd=tmp_path)
    found = yaml.safe_load(done.out)
    assert (found["training"]["epochs"], found["model"]["attention"]) == (3, "dot")
    assert not list(tmp_path.iterdir())


def test_a_stop_is_handled_before_the_first_step_and_after_the_last(
    server: Server, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, small())
    words = ["train", str(recipe), "--run", str(tmp_path / "run"), "--resume"]
    done = server.call("interrupted", ["tokenising", *words]).wait()
    assert (done.code, "run the command again" in done.err) == (143, True), done.err
    assert not (tmp_path / "run").exists()
    done = server.call("interrupted", ["scoring test", *words]).wait()
    assert (done.code, "to continue: heed train" in done.err) == (143, True), done.err
    assert server.run(*words).code == 0


def without_validation(folder: Path) -> Path:
    """A recipe that is refused late: its last file, with the validation texts, is empty."""
    path = write_recipe(folder, labelling.recipe(labelling.files(folder / "data"), steps=1))
    (folder / "data/valid.tsv").write_text("")
    return path


def test_a_start_that_fails_leaves_nothing(server: Server, tmp_path: Path) -> None:
    recipe, run = without_validation(tmp_path), tmp_path / "runs" / "one"
    done = server.run("train", recipe, "--run", run)
    assert "there is no text in" in done.err
    assert "tokenising" in done.err, "the folder was already written to"
    assert not run.parent.exists()
    labelling.files(tmp_path / "data")
    assert server.run("train", recipe, "--run", run).code == 0


def test_a_start_that_fails_leaves_the_run_that_it_was_to_replace_under_its_new_name(
    server: Server, tmp_path: Path
) -> None:
    recipe, run = without_validation(tmp_path), tmp_path / "one"
    labelling.files(tmp_path / "data")
    assert server.run("train", recipe, "--run", run).code == 0
    before = contents(run)
    (tmp_path / "data/valid.tsv").write_text("")
    done = server.run("train", recipe, "--run", run, "--overwrite", "seed=5")
    assert (done.code, f"the old run is now {run}.1\n" in done.err) == (2, True)
    assert not run.exists()
    assert contents(tmp_path / "one.1") == before


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run, but the lock, which names the process that held it."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".heed.lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_a_disk_that_is_full_at_the_recipe_harms_no_run_that_was_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    finish(train(resolve(small(epochs=1)), run, device="cpu"))
    before = contents(run)
    monkeypatch.setattr(RunFolder, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        finish(train(resolve(small(epochs=1)), run, overwrite=True, device="cpu"))
    assert contents(tmp_path / "run.1") == before
    assert not run.exists()


def test_the_recipe_is_that_of_the_process_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, which is then refused, makes the same folder before this one locks it."""
    lock, seen = RunFolder.lock, []

    def late(run: RunFolder) -> Any:
        seen.append(run)
        if len(seen) == 2:  # the first is for making the folder
            (run.path / "recipe.yaml").write_text("seed: 7")
        return lock(run)

    monkeypatch.setattr(RunFolder, "lock", late)
    recipe = resolve(small(epochs=1))
    finish(train(recipe, tmp_path / "run", device="cpu"))
    assert resolve(parse((tmp_path / "run/recipe.yaml").read_text())) == recipe


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_fails_before_its_first_step_is_removed_and_a_later_one_is_kept(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        yield from islice(fit(*given, **named), steps)
        raise RuntimeError("broken")

    monkeypatch.setattr("heed.running.learner.fit", broken)
    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="broken"):
        finish(train(resolve(small(save_every=100)), run, device="cpu"))
    assert run.exists() == (run / "config.json").exists() == (steps > 0)
    if steps:  # as it is when a resumed run fails at once
        monkeypatch.setattr("heed.running.learner.fit", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finish(train(None, run, resume=True, device="cpu"))
        assert (run / "config.json").exists()


def test_a_run_that_is_replaced_is_kept_under_another_name(server: Server, tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, small(epochs=1)), tmp_path / "run"
    for n in range(3):
        done = server.run("train", recipe, "--run", run, *(["--overwrite"] if n else []))
        assert done.code == 0, done.err
        assert (f"the old run is now {run}.{n}\n" in done.err) == (n > 0)
        (run / "notes.txt").write_text(f"{n}")
    for n, place in enumerate((f"{run}.1", f"{run}.2", run)):
        assert (Path(place) / "notes.txt").read_text() == f"{n}"
        assert open_run(Path(place), torch.device("cpu"))


def test_one_checkpoint_is_not_averaged(server: Server, tmp_path: Path) -> None:
    raw = small(average=3, epochs=1, save_every=100)
    done = server.run("train", write_recipe(tmp_path, raw), "--run", tmp_path / "run")
    assert done.code == 0, done.err
    assert "mean of" not in done.err
    assert "\nthe last checkpoint: validation loss " in done.err
