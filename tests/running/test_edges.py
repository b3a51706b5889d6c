"""Former faults of runs: other data, epochs of different lengths, position tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.answers.text import Decoding
from heed.data import plan
from heed.events import finish
from heed.running.opening import open_run
from heed.running.recipe import resolve
from heed.running.train import train
from heed.storage import checkpoint, journal
from tests.running.writing import recipe, written

CPU = torch.device("cpu")


def changed(data: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    raw = recipe(**training)
    raw["data"]["grammar"] |= data or {}
    return raw


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_starting_from_a_run_takes_its_tokens(run: Path, tmp_path: Path) -> None:
    raw = changed({"seed": 7}, steps=1, rate=1e-9, validate_every=1)
    finish(train(resolve(raw), tmp_path / "next", start=run, device="cpu"))
    before, after = (open_run(path, CPU) for path in (run, tmp_path / "next"))
    assert after.worker.kind.fingerprint == before.worker.kind.fingerprint
    assert after.worker.form.fingerprint == before.worker.form.fingerprint
    sentence = [("我 爱 中国",)]
    texts = [x.worker.answers(sentence, x.config.decoding)[0][0].text for x in (before, after)]
    assert texts[0] == texts[1]


def test_the_last_step_is_validated_and_saved_for_any_length_of_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "POOL", 40)  # so that epochs differ in their number of batches
    raw = changed(steps=None, epochs=5, batch_tokens=60, validate_every=1000, save_every=1000)
    trained = finish(train(resolve(raw), tmp_path / "run", device="cpu"))
    assert list(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [trained.steps]
    steps = [line["step"] for line in journal.read(tmp_path / "run" / "metrics.jsonl")]
    assert steps[-1] == trained.steps


def test_validating_does_not_count_as_training_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from heed.running import validating

    def slow(self: Any, step: int) -> Any:
        time.sleep(0.3)
        return validating.Validated(1.0, {"loss": 1.0}, "")

    monkeypatch.setattr(validating.Validator, "judge", slow)
    raw = changed(steps=4, validate_every=1)
    trained = finish(train(resolve(raw), tmp_path / "run", device="cpu"))
    assert trained.seconds < 4 * 0.3


def test_samples_differ_from_batch_to_batch(run: Path) -> None:
    worker = open_run(run, CPU).worker
    worker.tokens = 40
    warm = Decoding(method="sample", temperature=3.0)
    texts = [best[0].text for best in worker.answers([("我 爱 中国",)] * 60, warm)]
    again = [best[0].text for best in worker.answers([("我 爱 中国",)] * 60, warm)]
    assert texts == again
    assert len(set(texts)) > 40


@pytest.mark.parametrize("model", [{"position": "learned"}, {"decoder_attention": "location"}])
def test_texts_beyond_a_position_table_are_cut(model: dict[str, Any], tmp_path: Path) -> None:
    raw = changed(steps=2, validate_every=1, log_every=1)
    raw["data"]["longest"] = 9
    tiny = {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "feed": 16, "heads": 2}
    raw["model"] = {"kind": "transformer", "longest": 9, **tiny, **model}
    raw["decoding"] = {"method": "greedy", "longest": 200}
    trained = finish(train(resolve(raw), tmp_path / "run", device="cpu"))
    ((found,),) = open_run(tmp_path / "run", CPU).worker.answers([("我 爱",)], Decoding())
    assert len(found.symbols) < 9
    assert math.isfinite(trained.perplexity)


def test_links_outside_their_pair_are_dropped_and_reported(
    run: Path, tmp_path: Path, capsys
) -> None:
    from heed.data.pairs import Report
    from heed.tasks.translate import files_of, from_files

    (tmp_path / "pairs.tsv").write_text("我 爱\ti love\n", "utf-8")
    (tmp_path / "gold").write_text("0-0 1-1 2-2\n")
    report = Report()
    (pair,) = from_files(files_of([tmp_path / "pairs.tsv"], tmp_path / "gold"), report)
    assert pair.gold.sure == {(0, 0), (1, 1)}
    told = f"1 link to words that are not there left out, the first at {tmp_path / 'gold'}:1: 2-2"
    assert told in str(report)


def test_a_longer_test_must_be_longer() -> None:
    with pytest.raises(ValueError, match="beyond=4 is a length in words"):
        resolve(changed({"beyond": 4}))


def test_the_scores_of_a_run_tell_how_texts_were_cut(run: Path) -> None:
    scores = json.loads((run / "scores.json").read_text())["scores"]["test"]
    assert "tok:13a" in scores["bleu_signature"]
