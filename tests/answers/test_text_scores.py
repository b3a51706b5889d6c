"""Scores of written texts: by hand, and without what is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from heed.answers.form import Example
from heed.answers.text_scores import TextReading, TextScores, by_length, text_scores
from heed.data.pairs import Links

GOLD = Links(frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)}))
PAIRS = [
    Example(("猫 睡",), "the cat sleeps well today", GOLD),
    Example(("a b c d e f g",), "one two three four five six seven"),
]


def judged(
    *texts: str,
    readings: list[TextReading],
    examples: Sequence[Example] = PAIRS,
    lowercase: bool = False,
) -> TextScores:
    lengths = [len(each.inputs[0].split()) for each in examples]
    return text_scores(texts, examples, readings, lengths=lengths, lowercase=lowercase)


def reading(links: list[tuple[int, int]] | None, entropy: float | None = 0.5) -> TextReading:
    return TextReading(6 * math.log(3), 6, links, entropy)


def test_perfect_translations_and_links_get_perfect_scores() -> None:
    readings = [reading([(0, 0), (1, 2), (1, 1)]), TextReading(0.0, 2, [(0, 0)], 1.5)]
    scores = judged(*(pair.answer for pair in PAIRS), readings=readings)
    assert scores.pairs == 2
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.aer == 0
    assert scores.perplexity == pytest.approx(3 ** (6 / 8))  # nats over symbols, of all pairs
    assert scores.entropy == pytest.approx((6 * 0.5 + 2 * 1.5) / 8)
    assert [each[:2] for each in scores.by_length] == [("1-5", 1), ("6-10", 1)]
    assert [each[2] for each in scores.by_length] == pytest.approx([100, 100])
    assert scores.line() == "BLEU 100.0 · chrF 100.0 · perplexity 2.28 · AER 0.000"


def test_wrong_translations_score_lower() -> None:
    readings = [reading([(1, 0), (0, 2)]), reading(None, None)]
    scores = judged("dog", "one two three four five six seven", readings=readings)
    assert 0 < scores.bleu < 100
    assert scores.aer == 1
    assert scores.entropy is None  # unknown for one of the two
    assert {label: bleu for label, _, bleu in scores.by_length}["6-10"] == pytest.approx(100)
    assert scores.by_length[0][2] < 5


def test_without_attention_or_gold_links_there_is_no_alignment_error() -> None:
    texts = "the cat", "one"
    blind = judged(*texts, readings=[reading(None, None)] * 2)
    assert (blind.aer, blind.entropy) == (None, None)
    plain = [pair._replace(gold=None) for pair in PAIRS]
    assert judged(*texts, readings=[reading([(0, 0)])] * 2, examples=plain).aer is None
    assert "AER" not in blind.line()


def test_case_matters_by_default() -> None:
    texts, readings = [pair.answer.upper() for pair in PAIRS], [reading(None, None)] * 2
    assert judged(*texts, readings=readings).bleu < 5
    lower = judged(*texts, readings=readings, lowercase=True)
    assert lower.bleu == pytest.approx(100)
    assert lower.by_length[0][2] == pytest.approx(100)
    assert "case:lc" in lower.bleu_signature


def test_a_hopeless_model_has_a_finite_perplexity() -> None:
    hopeless = [TextReading(1e6, 2)] * 2
    assert math.isfinite(judged("a", "b", readings=hopeless).perplexity)


def test_a_line_shows_what_is_known() -> None:
    scores = TextScores(3, 12.345, "", 50.0, "", 7.777, None, 0.25, [])
    assert scores.line() == "BLEU 12.3 · chrF 50.0 · perplexity 7.78 · AER 0.250"


def scored(*lengths: tuple[str, int, float]) -> TextScores:
    return TextScores(9, 1.0, "", 1.0, "", 1.0, None, None, list(lengths))


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
