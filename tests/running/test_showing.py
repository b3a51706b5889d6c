"""Panels have the labels and weights of their translation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from heed.running.stories.alignments import alignment, by_length, heads
from heed.running.stories.pairs import kept
from heed.running.stories.translate import FEW
from heed.running.stories.weighing import Shown as Weighing
from heed.tasks.labeller import Judgement
from heed.tasks.translator import Translation

from heed.running.opening import open_run
from heed.running.showing import page, show
from heed.storage.run_folder import RunFolder
from heed.tasks.translate import Scores
from tests.running.writing import written

SENTENCE = "我 爱 我"


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_without_sentences_the_run_shows_its_own(writer: Path) -> None:
    shown = show(writer, device="cpu")
    pairs = list(kept(open_run(writer, torch.device("cpu")).folder, "test"))[:FEW]
    assert [(each.translation.source, each.reference) for each in shown] == [
        (pair.source, pair.target) for pair in pairs
    ]


def test_a_panel_has_a_row_for_each_piece(writer: Path) -> None:
    (shown,) = show(writer, [SENTENCE], device="cpu")
    found = shown.panel
    assert found is not None
    assert list(found.columns) == ["我", "爱", "我", "</s>"]
    assert list(found.rows) == shown.translation.rows
    weight = np.asarray(found.weight)
    assert weight.shape == (len(found.rows), 4)
    np.testing.assert_allclose(weight.sum(-1), 1, atol=1e-5)
    assert shown.reference == ""
    assert shown.heads == ()


def test_every_head_is_computed_again_and_agrees_with_the_search(writer: Path) -> None:
    (shown,) = show(writer, [SENTENCE], every=True, device="cpu")
    (head,) = shown.heads
    assert head.title == "decoder.attention"
    assert list(head.rows) == [*shown.translation.rows, "</s>"]
    assert shown.translation.weight is not None
    rows = np.asarray(head.weight)[:-1]
    np.testing.assert_allclose(rows, shown.translation.weight, atol=1e-4)
    assert len(shown.block().panels) == 2


def test_looks_of_a_static_attention_are_shown_as_their_mean_or_one_by_one() -> None:
    looks = np.array([[0.9, 0.1], [0.3, 0.7]], np.float32)
    said = Judgement("a film", "liked", 0.9, {}, ["a", "film"], looks)
    (mean,) = Weighing(said).panels
    assert mean.title == "attention weights, mean of 2 heads"
    np.testing.assert_allclose(mean.weight, [[0.6, 0.4]], atol=1e-6)
    found = Weighing(said, every=True)
    assert [panel.title[-6:] for panel in found.panels] == ["head 0", "head 1"]
    np.testing.assert_allclose([panel.weight[0] for panel in found.panels], looks, atol=1e-6)
    assert [each.title for each in found.drawn()] == [panel.title for panel in found.panels]
    (only,) = Weighing(replace(said, looks=looks[:1]), every=True).panels
    assert only.title == "attention weights"


def test_blank_and_unknown_texts_have_no_panel(writer: Path) -> None:
    (blank,) = show(writer, ["  "], every=True, device="cpu")
    assert (blank.panel, list(blank.heads)) == (None, [])
    assert alignment(Translation("a", "b", 0.0, ["a"], ["b"], None)) is None
    nothing = Translation("a", "", 0.0, ["a"], [], np.zeros((0, 1), np.float32))
    assert alignment(nothing) is None
    run = open_run(writer, torch.device("cpu"))
    (end,) = heads(
        run.worker, Translation(SENTENCE, "", 0.0, [*SENTENCE.split(), "</s>"], [], None)
    )
    assert list(end.rows) == ["</s>"]


def test_a_page_shows_each_translation(writer: Path) -> None:
    shown = show(writer, [SENTENCE, "<b> & 我"], device="cpu")
    html = page("what it looks at", shown).html()
    assert "what it looks at" in html
    assert SENTENCE in html
    assert "<b> & 我" not in html  # text is escaped
    assert "&lt;b&gt; &amp; 我" in html


def scored(*lengths: tuple[str, int, float]) -> Scores:
    return Scores(9, 1.0, "", 1.0, "", 1.0, None, None, list(lengths))


def test_bleu_by_length_has_a_line_for_each_model_and_a_point_for_each_range() -> None:
    chart = by_length(
        {
            "dot": {"test": scored(("1-5", 3, 90.0), ("6-10", 3, 80.0))},
            "none": {"long": scored(("11-15", 3, 10.0)), "test": scored(("1-5", 3, 70.0))},
        }
    )
    assert [label for _, label in chart.ticks] == ["1-5", "6-10", "11-15"]
    found = {line.name: dict(zip(line.x, line.y, strict=True)) for line in chart.lines}
    assert found == {"dot": {0.0: 90.0, 1.0: 80.0}, "none": {0.0: 70.0, 2.0: 10.0}}
    assert chart.title == "BLEU by sentence length"
    assert by_length({}, "mine").title == "mine"


def test_a_run_without_examples_asks_for_a_sentence(writer: Path, tmp_path: Path) -> None:
    shutil.copytree(writer, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/examples")
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(ValueError, match="keeps no examples; give a sentence"):
        show(tmp_path / "run", device="cpu")
