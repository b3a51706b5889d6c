"""Scores of hidden words and of next sentences, by hand."""

import math

import numpy as np
import pytest

from heed.answers.hidden_scores import HiddenReading, HiddenWordScores, unigram


def test_scores_by_hand() -> None:
    first = HiddenReading(3.0, 3, 1, np.array([0, 2, 0, 1]), 0.5, 1, 2)
    second = HiddenReading(1.0, 1, 0, np.array([0, 0, 0, 1]), 0.3, 2, 2)
    scores = HiddenWordScores.of([first, second])
    assert (scores.words, scores.loss, scores.accuracy) == (4, 1.0, 25.0)
    assert scores.perplexity == pytest.approx(math.e)
    assert scores.words_entropy == pytest.approx(math.log(2))
    assert scores.unigram_loss is None
    assert (scores.pairs, scores.follows_accuracy) == (4, 75.0)
    assert scores.follows_loss == pytest.approx(0.2)
    assert scores.total == pytest.approx(1.2)
    told = "loss 1.2000 = words 1.0000 (entropy of these words 0.6931) + next sentence 0.2000 · "
    assert scores.line().startswith(told)  # the sum is what training and its history show
    assert scores.line().endswith("next sentence 75.0 %")
    alone = HiddenWordScores.of([HiddenReading(2.0, 2, 1, np.array([0, 2]))])
    assert alone.follows_loss is None
    assert alone.total == 1.0
    beside = HiddenWordScores.of([first, second], np.array([0.0, 0.125, 0.0, 0.875]))
    assert beside.unigram_loss == pytest.approx((2 * math.log(8) + 2 * math.log(8 / 7)) / 4)
    assert "words 1.0000 (unigram 1.1065) + " in beside.line()
    assert alone.line().startswith("loss 1.0000 (entropy of these words ")
    assert "next" not in alone.line()
    assert alone.words_entropy == 0


def test_unigrams_are_those_of_the_training_text() -> None:
    plain = np.array([False, True, True, True, True])
    found = unigram(np.array([9, 3, 1, 0, 0]), plain)  # 2 kinds, 4 symbols, 2 kinds never seen
    assert found[1:] == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6])
    assert unigram(np.array([9, 3, 1, 2, 2]), plain)[1:] == pytest.approx(
        np.array([3, 1, 2, 2]) / 8
    )
    assert unigram(np.array([9, 0, 0, 0, 0]), plain)[1:] == pytest.approx(1 / 4)
    for counts in ([0, 7, 0, 0, 0], [0, 1, 2, 3, 4], [5, 0, 0, 9, 1]):
        assert unigram(np.array(counts), plain)[plain].sum() == pytest.approx(1)


def test_a_short_text_costs_by_unigrams_what_the_training_text_says() -> None:
    """The entropy of three words is at most log 3, however rare they are."""
    plain = np.ones(1000, bool)
    targets = np.zeros(1000, np.int64)
    targets[:3] = 1
    scores = HiddenWordScores.of(
        [HiddenReading(9.0, 3, 0, targets)], unigram(np.ones(1000, np.int64), plain)
    )
    assert scores.words_entropy == pytest.approx(math.log(3))
    assert scores.unigram_loss == pytest.approx(math.log(1000))
