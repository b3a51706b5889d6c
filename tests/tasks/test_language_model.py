"""Text to parts, settings that fit it, and scores by hand."""

import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from heed.errors import Refused
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.tasks.language_model import (
    Data,
    Tokens,
    between,
    build,
    judged,
    places,
    texts,
    vocabulary,
)
from heed.tasks.writer import Reading


def joined(data: Data, root: Path) -> dict[str, list[str]]:
    found = texts(data, root)
    return {part: ["".join(document()) for document in some] for part, some in found.items()}


def test_the_end_of_one_file_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "a.txt").write_text(text)
    parts = joined(Data(train="a.txt"), tmp_path)
    assert parts == {"train": [text[:711]], "valid": [text[711:]]}  # int(0.9 · 790)
    parts = joined(Data(folder=str(tmp_path), train="a.txt", held_out=0.5), Path("/"))
    assert parts["train"][0] + parts["valid"][0] == text


def test_of_several_files_the_end_of_the_last(tmp_path: Path) -> None:
    for name, size in (("a", 80), ("b", 20)):
        (tmp_path / name).write_text(name * (size - 1) + "\n")
    parts = joined(Data(train=["a", "b"], held_out=0.05), tmp_path)
    assert [len(each) for each in (*parts["train"], *parts["valid"])] == [80, 15, 5]
    parts = joined(Data(train=["a", "b"], held_out=0.5), tmp_path)
    assert [len(each) for each in (*parts["train"], *parts["valid"])] == [80, 10, 10]


def test_files_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    parts = joined(Data(train=["a"], valid="b", test=["c", "a"]), tmp_path)
    assert parts == {"train": ["a\n"], "valid": ["b\n"], "test": ["c\n", "a\n"]}
    with pytest.raises(ValidationError, match="names a file twice"):
        Data(train=["a", "a"])
    with pytest.raises(Refused, match="cannot read"):
        joined(Data(train="none"), tmp_path)


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [(0, 4, ["abc", "d"]), (1, 3, ["bc"]), (3, None, ["de", "f"]), (4, 5, ["e"]), (6, None, [])],
)
def test_between(start: int, end: int | None, wanted: list[str]) -> None:
    assert list(between(iter(["abc", "de", "f"]), start, end)) == wanted


def test_the_vocabulary_is_that_of_the_training_text() -> None:
    found = vocabulary(Tokens(), [lambda: iter(["ab"]), lambda: iter(["b\n"])])
    assert found.size == 4 + 3


def test_settings_that_do_not_fit_the_text() -> None:
    gpt = GPT2Settings(layers=1, width=8, heads=2, longest=16)
    assert build(gpt, symbols=9, context=16).words.table.weight.shape == (9, 8)
    assert (places(gpt), places(RecurrentLanguageSettings())) == (16, None)
    for settings, message in (
        (gpt, r"set model.longest=17"),
        (gpt.model_copy(update={"symbols": 7}), "the vocabulary has 9"),
        (gpt.model_copy(update={"head": "none"}), "head 'language'"),
        (RecurrentLanguageSettings(tied=True, embedding=3, hidden=4), "must agree"),
    ):
        with pytest.raises(Refused, match=message):
            build(settings, symbols=9, context=17)


def test_scores_by_hand() -> None:
    """Two texts of 3 and 1 symbols, e nats in all; the second has a letter of two bytes."""
    scores = judged([Reading(2.0, 3, 6, 6, 0), Reading(1.0, 1, 2, 3, 1)], context=8, overlap=2)
    assert scores.loss == pytest.approx(0.75)
    assert scores.perplexity == pytest.approx(math.exp(0.75))
    assert scores.bits_per_character == pytest.approx(3 / math.log(2) / 8)
    assert scores.bits_per_byte == pytest.approx(3 / math.log(2) / 9)
    assert (scores.symbols, scores.unknown) == (4, 1)
    assert "loss 0.7500" in scores.line()
