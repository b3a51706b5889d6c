"""Tagging, from a file to what a person sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.errors import Refused
from heed.events import Note, finish
from heed.running.evaluate import evaluate
from heed.running.predict import predict
from heed.running.recipe import load, overridden, resolve
from heed.running.showing import show
from heed.running.train import train
from heed.storage import tensors

SENTENCES = [
    ("john", "B-PER"), ("smith", "I-PER"), ("saw", "O"), ("paris", "B-LOC"), (".", "O"), None,
    ("mary", "B-PER"), ("left", "O"), ("new", "B-LOC"), ("york", "I-LOC"), (".", "O"), None,
]  # fmt: skip


def columns(path: Path, copies: int = 12) -> Path:
    path.write_text(
        "".join("\n" if row is None else " ".join(row) + "\n" for row in SENTENCES * copies)
    )
    return path


def raw(folder: Path, encoder: dict[str, Any], **training: Any) -> dict[str, Any]:
    columns(folder / "train.conll")
    return {
        "task": "tag",
        "data": {"folder": str(folder), **dict.fromkeys(("train", "valid"), "train.conll")},
        "model": {"encoder": encoder, "dropout": 0},
        "training": {"steps": 80, "batch_tokens": 100, "rate": 0.02, "warmup": 2} | training,
    }


SMALL: list[dict[str, Any]] = [
    {"kind": "lstm", "embedding": 16, "hidden": 16},
    {"kind": "transformer", "layers": 1, "width": 16, "feed": 32, "heads": 2},
    {"kind": "bert", "layers": 1, "width": 16, "feed": 32, "heads": 2, "longest": 16},
]


@pytest.mark.parametrize("encoder", SMALL, ids=lambda encoder: encoder["kind"])
def test_names_are_found_in_columns(tmp_path: Path, encoder: dict[str, Any]) -> None:
    notes: list[str] = []
    work = train(resolve(raw(tmp_path, encoder)), tmp_path / "run", device="cpu")
    done = finish(work, lambda e: notes.append(e.text) if isinstance(e, Note) else None)
    scores = done.scores["valid"]
    assert (scores.accuracy, scores.span_f1) == (100, 100)
    assert any("24 sentences read = 24 kept" in note for note in notes)
    assert any("validation accuracy" in note for note in notes)
    (tmp_path / "in.txt").write_text("john smith saw paris .\n\nunseen words\n")
    said = list(predict(tmp_path / "run", str(tmp_path / "in.txt"), device="cpu", look=True))
    assert said[0].line() == "B-PER I-PER O B-LOC O"
    assert said[1].line() == ""
    assert len(said[2].as_data()["labels"]) == 2
    assert "Labels" in said[0].shown().block().html()
    found = finish(evaluate(tmp_path / "run", [tmp_path / "train.conll"], device="cpu"))
    assert found.scores.span_f1 == 100
    assert found.answers()[0] == "B-PER I-PER O B-LOC O"
    assert bool(show(tmp_path / "run", device="cpu")[0].takes) == (encoder["kind"] != "lstm")


def test_an_unseen_label_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    finish(train(resolve(raw(tmp_path, SMALL[0], steps=1)), tmp_path / "run", device="cpu"))
    (tmp_path / "other.conll").write_text("john B-PER\nran VERB\n")
    with pytest.raises(Refused, match=r"other\.conll:2: the label 'VERB' never occurs"):
        finish(evaluate(tmp_path / "run", [tmp_path / "other.conll"], device="cpu"))
    (tmp_path / "other.conll").write_text("john B-PER\nran\n")
    with pytest.raises(Refused, match=r"other\.conll:2"):
        finish(evaluate(tmp_path / "run", [tmp_path / "other.conll"], device="cpu"))


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    told = raw(tmp_path, SMALL[0], steps=12, validate_every=6, save_every=3)
    finish(train(resolve(told), tmp_path / "whole", device="cpu"))
    work = train(resolve(told), tmp_path / "parts", device="cpu")
    for event in work:
        if getattr(event, "stage", "") == "training" and event.done == 5:  # type: ignore[union-attr]
            break
    work.close()
    finish(train(resolve(told), tmp_path / "parts", device="cpu", resume=True))
    one, two = (tensors.read(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(x, two[name]) for name, x in one.items())


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_recipe_draws_its_sentences(tmp_path: Path, language: str) -> None:
    changes = ["data.built_in.sentences=60", "data.built_in.held_out=20", "training.epochs=1"]
    recipe = resolve(overridden(load("tags"), [*changes, f"data.built_in.language={language}"]))
    done = finish(train(recipe, tmp_path / "run", device="cpu"))
    assert done.scores["test"].sentences == 20
    told = json.loads((tmp_path / "run/examples/test.jsonl").read_text().splitlines()[0])
    assert len(told["words"]) == len(told["labels"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("data.train=null", "give the sentences as data.train, or draw them by data.built_in"),
        ("data.valid=null", "hold some out"),
        ("model.encoder.kind=gpt2", "model.encoder"),
    ],
)
def test_impossible_recipes_are_refused(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        resolve(raw(tmp_path, SMALL[0]), [change])
