"""Panels have the labels and weights of their translation."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from heed.running.showing import page, show
from heed.storage.run_folder import RunFolder
from heed.tasks.translate import TASK
from tests.running.kept import kept
from tests.running.writing import written

SENTENCE = "我 爱 我"


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_without_sentences_the_run_shows_its_own(writer: Path) -> None:
    shown = show(writer, device="cpu")
    pairs = kept(writer, "test")[: TASK.few]
    assert [(each.source, dict(each.facts)["Reference"]) for each in shown] == [
        (pair.inputs[0], pair.answer) for pair in pairs
    ]


def test_a_panel_has_a_row_for_each_piece(writer: Path) -> None:
    (shown,) = show(writer, [SENTENCE], device="cpu")
    (found,) = shown.panels
    assert list(found.columns) == ["我", "爱", "我", "</s>"]
    assert list(found.rows) == shown.text.split()
    weight = np.asarray(found.weight)
    assert weight.shape == (len(found.rows), 4)
    np.testing.assert_allclose(weight.sum(-1), 1, atol=1e-4)
    assert shown.facts == [("Source", SENTENCE), ("Translation", shown.text)]


def test_every_head_has_the_end_of_the_text_too(writer: Path) -> None:
    (shown,) = show(writer, [SENTENCE], every=True, device="cpu")
    alignment, head = shown.panels
    assert (alignment.title, head.title) == ("alignment", "decoder.attention")
    assert list(head.rows) == [*shown.text.split(), "</s>"]
    np.testing.assert_allclose(head.weight[:-1], alignment.weight, atol=1e-6)
    assert len(shown.drawn()) == 2


def test_blank_texts_have_no_panel(writer: Path) -> None:
    (blank,) = show(writer, ["  "], every=True, device="cpu")
    assert (list(blank.panels), blank.drawn(), blank.text) == ([], [], "")


def test_a_page_shows_each_translation(writer: Path) -> None:
    shown = show(writer, [SENTENCE, "<b> & 我"], device="cpu")
    html = page("what it looks at", shown).html()
    assert "what it looks at" in html
    assert SENTENCE in html
    assert "<b> & 我" not in html  # text is escaped
    assert "&lt;b&gt; &amp; 我" in html


def test_a_run_without_examples_asks_for_a_sentence(writer: Path, tmp_path: Path) -> None:
    shutil.copytree(writer, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/examples")
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(ValueError, match="keeps no examples; give a text"):
        show(tmp_path / "run", device="cpu")
