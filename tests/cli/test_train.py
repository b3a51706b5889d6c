"""heed train: what is printed, and where the run is."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.summary.writer.record_writer import RecordWriter

from heed.data.grammar import draw
from heed.running.recipe import resolve
from tests.running.writing import recipe

QUICK = {"steps": 2, "validate_every": 2, "save_every": 2}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(recipe(**QUICK)))
    return tmp_path


def test_a_recipe_is_printed_in_full_and_nothing_else_is_done(
    command: Callable[..., Any], here: Path
) -> None:
    done = command("train", "mine.yaml", "seed=7", "--attention", "dot", "--print-config")
    assert done.code == 0
    found = yaml.safe_load(done.out)
    assert resolve(found) == resolve(recipe(**QUICK), ["seed=7", "model.attention=dot"])
    assert found["training"]["betas"] == [0.9, 0.98]
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


def test_the_result_as_json_and_the_folder_of_the_run(
    command: Callable[..., Any], here: Path
) -> None:
    done = command("train", "mine.yaml", "--json", "--device", "cpu", "seed=7", "training.steps=1")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == {
        "folder",
        "parameters",
        "steps",
        "seconds",
        "perplexity",
        "scores",
    }
    assert (found["folder"], found["steps"]) == ("runs/mine", 1)
    assert found == json.loads((here / "runs/mine/scores.json").read_text())
    assert set(found["scores"]) == {"test", "long"}
    assert yaml.safe_load((here / "runs/mine/recipe.yaml").read_text())["seed"] == 7
    again = command("train", "runs/mine", "--resume", "--device", "cpu")
    assert again.code == 0
    assert again.out == f"runs/mine: {found['parameters']:,} parameters, 1 steps\n"
    assert "resuming from step 1\n" in again.err
    assert again.err.endswith("\nnext: heed predict runs/mine FILE\n      heed show runs/mine\n")
    shown = command("show", "runs/mine", "--device", "cpu")  # as printed
    assert shown.code == 0, shown.err


def test_a_path_with_spaces_can_be_pasted(command: Callable[..., Any], here: Path) -> None:
    done = command("train", "mine.yaml", "--run", "my run", "--device", "cpu", "training.steps=1")
    assert "next: heed predict 'my run' FILE\n      heed show 'my run'\n" in done.err


def test_lines_report_what_happens(command: Callable[..., Any], here: Path) -> None:
    done = command("train", "mine.yaml", "--run", "out", "--attention", "none", "--device", "cpu")
    assert done.code == 0
    lines = done.err.splitlines()
    assert "training pairs: 150 pairs read = 150 kept + 0 dropped" in lines
    assert any(line.startswith("training 2/2") for line in lines)
    assert any(line.startswith("step 2: validation perplexity ") for line in lines)
    assert any(line.startswith("test: BLEU ") for line in lines)
    assert done.out.startswith("out: ")
    assert json.loads((here / "out/scores.json").read_text())["scores"]["test"]["aer"] is None


def test_one_file_of_pairs_is_enough(command: Callable[..., Any], here: Path) -> None:
    """A share of it is held out for validation and test; resuming holds out the same."""
    drawn = draw(80, shortest=3, longest=5, seed=1, part="train")
    Path("pairs.tsv").write_text("".join("\t".join(each.pair) + "\n" for each in drawn), "utf-8")
    raw = recipe(**QUICK | {"steps": 1})
    raw["data"] = {"train": {"tsv": "pairs.tsv"}, "tokens": {"kind": "word", "size": 200}}
    Path("own.yaml").write_text(yaml.safe_dump(raw))
    refused = command("train", "own.yaml", "--device", "cpu")
    assert refused.code == 2
    assert "or hold some out: data.held_out.valid=0.05" in refused.err
    done = command("train", "own.yaml", "data.held_out.valid=0.2", "--device", "cpu")
    assert done.code == 0, done.err
    kept = Path("runs/own/examples/valid.jsonl").read_text("utf-8")
    held = kept.count("\n")
    assert f"training pairs: {80 - held} pairs read = {80 - held} kept + 0 dropped\n" in done.err
    assert f"valid pairs: {held} pairs read = {held} kept + 0 dropped\n" in done.err
    scores = json.loads(Path("runs/own/scores.json").read_text())["scores"]
    assert {part: each["pairs"] for part, each in scores.items()} == {"valid": held}
    found = command("evaluate", "runs/own", "--json", "--device", "cpu")
    assert json.loads(found.out)["bleu"] == pytest.approx(scores["valid"]["bleu"])
    Path("pairs.tsv").unlink()
    again = command("train", "runs/own", "--resume", "--device", "cpu")
    assert again.code == 0, again.err
    assert Path("runs/own/examples/valid.jsonl").read_text("utf-8") == kept


@pytest.mark.parametrize("more", [["training.steps=9"], ["--attention", "dot"], ["--overwrite"]])
def test_resuming_with_another_recipe_is_refused(
    command: Callable[..., Any], tmp_path: Path, more: list[str]
) -> None:
    done = command("train", str(tmp_path), "--resume", *more)
    assert done.code == 2
    assert "is resumed with its own recipe" in done.err


def test_resuming_with_the_same_recipe_is_accepted(command: Callable[..., Any], here: Path) -> None:
    """So schedulers can use one command to start and to resume."""
    words = ("train", "mine.yaml", "--run", "my run", "--resume", "--device", "cpu")
    assert command(*words).code == 0
    assert "resuming from step 2\n" in command(*words).err
    assert "resuming" in command(*words, "good=told otherwise by a later version").err
    model = (here / "my run/model.safetensors").read_bytes()
    more = command(*words, "training.steps=4")
    assert (more.code, more.out, more.err.count("\n")) == (2, "", 1)
    assert "my run has another recipe: training.steps=4 (there 2); to resume with" in more.err
    assert "give one" in command(*words, "--overwrite").err
    assert "heed train 'my run' --resume" in more.err
    assert "heed train RECIPE --from 'my run' --run" in more.err
    raw = recipe(**QUICK)
    raw["model"] = {"kind": "transformer", "size": "tiny"}
    (here / "other.yaml").write_text(yaml.safe_dump(raw))
    other = command("train", "other.yaml", *words[2:], "seed=3", "training.rate=0.5")
    assert other.code == 2
    assert "model.kind=" in other.err
    assert " more keys; to resume with" in other.err
    assert (here / "my run/model.safetensors").read_bytes() == model


def test_events_that_cannot_be_written_do_not_stop_a_training(
    command: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(records: Any, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "write", full)
    done = command("train", "mine.yaml", "--device", "cpu", "training.log_every=1")
    assert done.code == 0
    assert done.err.count("no more TensorBoard events: runs/mine/events.out.tfevents.") == 1
    assert "Traceback" not in done.err
    assert len((here / "runs/mine/metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_metrics_that_cannot_be_written_stop_a_training_that_can_be_resumed(
    command: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """In a line that names the file; the resumed run ends as one that was never stopped."""
    words = ["mine.yaml", "--device", "cpu", "training.steps=5", "training.log_every=1"]
    write, left = os.write, [3]

    def full(file: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith("metrics.jsonl"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(code, os.strerror(code))
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        done = command("train", *words)
    assert done.code == 1
    assert done.err.endswith(f"\nheed: runs/mine/metrics.jsonl: {os.strerror(code)}\n")
    assert "Traceback" not in done.err
    assert command("train", "runs/mine", "--resume", "--device", "cpu").code == 0
    assert command("train", *words, "--run", "whole").code == 0
    found = [(here / run / "model.safetensors").read_bytes() for run in ("runs/mine", "whole")]
    assert found[0] == found[1]
