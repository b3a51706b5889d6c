"""Scores of texts that go on, by hand."""

import math

import pytest

from heed.answers.continuation_scores import LanguageScores, PredictedText


def test_scores_by_hand() -> None:
    """Two texts of 3 and 1 symbols, e nats in all; the second has a letter of two bytes."""
    readings = [PredictedText(2.0, 3, 6, 6, 0), PredictedText(1.0, 1, 2, 3, 1)]
    scores = LanguageScores.of(readings, context=8, overlap=2)
    assert scores.loss == pytest.approx(0.75)
    assert scores.perplexity == pytest.approx(math.exp(0.75))
    assert scores.bits_per_character == pytest.approx(3 / math.log(2) / 8)
    assert scores.bits_per_byte == pytest.approx(3 / math.log(2) / 9)
    assert (scores.symbols, scores.unknown) == (4, 1)
    assert "loss 0.7500" in scores.line()
