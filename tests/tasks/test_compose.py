"""Composing: from a label to a text, fed once or at every step, judged by the rules of tunes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heed.data import tunes
from heed.errors import HeedError, Refused
from heed.events import finish
from heed.running.evaluate import evaluate
from heed.running.predict import predict
from heed.running.recipe import load, overridden, resolve
from heed.running.showing import show
from heed.running.train import train
from heed.storage import tensors

SMALL = [
    *("data.built_in.tunes=120", "data.built_in.held_out=12", "model.hidden=24"),
    *("model.embedding=12", "training.steps=6", "training.validate_every=3"),
    *("training.save_every=3", "training.log_every=null", "training.warmup=1"),
]


def recipe(*changes: str) -> Any:
    return resolve(overridden(load("tunes"), [*SMALL, *changes]))


@pytest.fixture(scope="module", params=["first", "every"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tunes") / "run"
    finish(train(recipe(f"model.context={request.param}"), folder, device="cpu"))
    return folder


def test_a_style_in_a_line_is_answered_by_a_text(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("jig\n\nwaltz\n")
    told = {"device": "cpu", "longest": 12}
    said = [each.line() for each in predict(run, str(tmp_path / "in.txt"), **told)]
    again = [each.line() for each in predict(run, str(tmp_path / "in.txt"), **told)]
    assert said == again  # samples follow from the seed
    assert said[0]
    assert said[1] == ""
    (tmp_path / "in.txt").write_text("jigg\n")
    with pytest.raises(HeedError, match="did you mean jig"):
        list(predict(run, str(tmp_path / "in.txt"), device="cpu"))


def test_tunes_are_judged_by_their_rules_beside_floors(run: Path) -> None:
    scores = finish(evaluate(run, device="cpu")).scores
    assert scores.texts == 12
    assert 1 < scores.perplexity < 200
    assert scores.by_chance == pytest.approx(100 / len(tunes.STYLES))
    assert [rule for rule, *_ in scores.by_rule] == list(tunes.RULES)
    assert all(0 <= share <= 100 for _, *shares in scores.by_rule for share in shares)


def test_the_chain_is_a_floor_that_writes_bars() -> None:
    styles = list(tunes.STYLES)
    found = tunes.chained(styles)
    assert found == tunes.chained(styles)
    assert all(text.endswith("|]") for text in found)


def test_without_attention_the_answer_alone_is_shown(run: Path) -> None:
    (look,) = show(run, ["reel"], device="cpu")
    assert look.source == "reel"
    assert look.takes == []


def test_a_file_of_labelled_texts_is_learnt(tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text("short\ta b\nlong\ta b c d e f\n" * 20)
    own = [f"data.folder={tmp_path}", "data.built_in=null", "data.train=own.tsv"]
    told = resolve(overridden(load("tunes"), [*SMALL[2:], *own, "data.valid=own.tsv"]))
    done = finish(train(told, tmp_path / "run", device="cpu"))
    assert done.scores["valid"].obeying is None
    (tmp_path / "odd.tsv").write_text("other\ta b\n")
    with pytest.raises(Refused, match=r"odd\.tsv:1: the label 'other' never occurs"):
        finish(evaluate(tmp_path / "run", [tmp_path / "odd.tsv"], device="cpu"))


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    finish(train(recipe(), tmp_path / "whole", device="cpu"))
    work = train(recipe(), tmp_path / "parts", device="cpu")
    for event in work:
        if getattr(event, "stage", "") == "training" and event.done == 4:  # type: ignore[union-attr]
            break
    work.close()
    finish(train(recipe(), tmp_path / "parts", device="cpu", resume=True))
    one, two = (tensors.read(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(x, two[name]) for name, x in one.items())
