"""Recognition of series, from a file to what a person sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.data import motifs
from heed.errors import Refused
from heed.events import Note, finish
from heed.running.evaluate import evaluate
from heed.running.predict import predict
from heed.running.recipe import load, overridden, resolve
from heed.running.showing import show
from heed.running.train import train
from heed.running.walking import walk
from heed.storage import tensors


def recipe(folder: Path, **training: Any) -> dict[str, Any]:
    rows = motifs.draw(240, noise=0.05, shortest=20, longest=30)
    lines = [json.dumps({"values": row.values.tolist(), "label": row.label}) for row in rows]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "task": "recognise",
        "data": {"folder": str(folder), "train": "train.jsonl", "held_out": 0.1},
        "model": {"encoder": {"kind": "gru", "embedding": 16, "hidden": 32}, "dropout": 0},
        "training": {"steps": 100, "batch_tokens": 800, "rate": 0.01, "warmup": 5} | training,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("series")
    notes: list[str] = []
    work = train(resolve(recipe(folder)), folder / "run", device="cpu")
    done = finish(work, lambda e: notes.append(e.text) if isinstance(e, Note) else None)
    assert done.scores["test"].accuracy > 80
    assert "2 channels, 4 labels" in notes
    return folder / "run"


def test_a_series_in_a_line_has_a_label(run: Path, tmp_path: Path) -> None:
    (row,) = motifs.draw(1, noise=0.05, shortest=20, longest=30, part="test")
    (tmp_path / "in.txt").write_text(json.dumps(row.values.tolist()) + "\n")
    (said,) = predict(run, str(tmp_path / "in.txt"), device="cpu", look=True)
    told = said.as_data()
    assert told["series"].startswith(f"{len(row.values)} steps × 2")
    assert sum(told["probabilities"].values()) == pytest.approx(1)
    assert "Series" in said.shown().block().html()
    (tmp_path / "in.txt").write_text("no series\n")
    with pytest.raises(Refused, match="a series is given as JSON in a line"):
        list(predict(run, str(tmp_path / "in.txt"), device="cpu"))


def test_the_attention_is_over_time(run: Path) -> None:
    look = show(run, device="cpu")[0]
    (weighed,) = look.weighed
    steps = int(look.source.partition(" ")[0])
    assert list(weighed.words) == [str(t) for t in range(steps)]
    assert sum(weighed.weights) == pytest.approx(1, abs=1e-3)
    (told,) = walk(run, device="cpu")
    assert told.agrees


def test_a_file_is_scored_with_its_floor(run: Path) -> None:
    found = finish(evaluate(run, [run.parent / "train.jsonl"], device="cpu"))
    facts = {name: (figure, remark) for name, figure, remark in found.facts()}
    assert facts["series"][0] == "240"
    assert found.scores.accuracy > 80 > found.scores.floor > 25
    assert "by the commonest label" in facts["accuracy"][1]
    (run.parent / "odd.jsonl").write_text('{"values": [[1, 2]], "label": "unseen"}\n')
    with pytest.raises(Refused, match=r"odd\.jsonl:1: the label 'unseen' never occurs"):
        finish(evaluate(run, [run.parent / "odd.jsonl"], device="cpu"))
    (run.parent / "odd.jsonl").write_text('{"values": [[1, 2, 3]], "label": "wave"}\n')
    with pytest.raises(Refused, match="3 channels"):
        finish(evaluate(run, [run.parent / "odd.jsonl"], device="cpu"))


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    told = recipe(tmp_path, steps=8, validate_every=4, save_every=2)
    finish(train(resolve(told), tmp_path / "whole", device="cpu"))
    work = train(resolve(told), tmp_path / "parts", device="cpu")
    for event in work:
        if getattr(event, "stage", "") == "training" and event.done == 3:  # type: ignore[union-attr]
            break
    work.close()
    finish(train(resolve(told), tmp_path / "parts", device="cpu", resume=True))
    one, two = (tensors.read(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(x, two[name]) for name, x in one.items())


def test_the_built_in_motifs_have_their_gold(tmp_path: Path) -> None:
    changes = ["data.built_in.series=40", "data.built_in.held_out=10", "training.epochs=1"]
    done = finish(
        train(resolve(overridden(load("motifs"), changes)), tmp_path / "run", device="cpu")
    )
    share, even = done.scores["test"].attended
    assert 0 < even < 0.5
    assert 0 < share < 1
    kept = json.loads((tmp_path / "run/examples/test.jsonl").read_text().splitlines()[0])
    assert 12 <= kept["gold"][1] - kept["gold"][0] <= 20
