"""Validation of a translation model: scores are those of the pairs, and samples are kept."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from heed.running.opening import open_run
from heed.running.validating import Validator
from heed.storage import journal
from heed.storage.run_folder import RunFolder
from heed.tasks.translate import TASK
from tests.running.kept import kept
from tests.running.writing import written

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_a_validation_can_be_reproduced_exactly(writer: Path, tmp_path: Path) -> None:
    """The kept weights are those of the last validation: they write the same translations."""
    run = open_run(writer, CPU)
    pairs = kept(writer, "valid")
    validator = Validator(TASK, run.worker, pairs, RunFolder.create(tmp_path / "again"))
    found = validator.judge(60)
    *_, told = (entry for entry in journal.read(writer / "metrics.jsonl") if "valid/loss" in entry)
    assert told["step"] == 60
    assert found.loss == pytest.approx(told["valid/loss"], rel=1e-5)
    assert found.figures["perplexity"] == pytest.approx(math.exp(found.loss))
    assert found.figures["loss"] == found.loss == validator.loss()
    for name in ("txt", "svg"):
        again = tmp_path / f"again/samples/step-0000060.{name}"
        assert again.read_text() == (writer / f"samples/step-0000060.{name}").read_text()


def test_the_loss_is_per_symbol_over_all_pairs(writer: Path, tmp_path: Path) -> None:
    run = open_run(writer, CPU)
    pairs = kept(writer, "valid")
    total, symbols = 0.0, 0
    for pair in pairs:
        (reading,) = run.worker.read([pair])
        total += reading.nats
        symbols += len(pair.answer.split()) + 1
    validator = Validator(TASK, run.worker, pairs, RunFolder.create(tmp_path / "run"))
    assert validator.loss() == pytest.approx(total / symbols, rel=1e-5)


def test_samples_are_what_the_model_writes(writer: Path, tmp_path: Path) -> None:
    run = open_run(writer, CPU)
    pairs = kept(writer, "test")
    found = Validator(TASK, run.worker, pairs, RunFolder.create(tmp_path / "run")).judge(7)
    blocks = (tmp_path / "run/samples/step-0000007.txt").read_text().strip().split("\n\n")
    assert len(blocks) == TASK.sampled
    texts = [run.worker.answers([pair.inputs])[0][0].text for pair in pairs]
    for block, pair, text in zip(blocks, pairs, texts, strict=False):
        assert [line[13:] for line in block.splitlines()] == [*pair.inputs, text, pair.answer]
    perplexity = found.figures["perplexity"]
    assert found.line() == (
        f"validation perplexity {perplexity:.2f} · {pairs[0].inputs[0]} -> {texts[0]}"
    )
    ElementTree.parse(tmp_path / "run/samples/step-0000007.svg")
    (figures,) = found.figures["attention"].values()
    assert figures["entropy"] > 0
    assert 0 < figures["sharpness"] < 1
