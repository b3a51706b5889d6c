"""Letters: the runs that words share, by hand; deterministic, and for unknown words too."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.letters import LARGEST, LONGEST, MOST, Letters
from heed.errors import Refused


def of(letters: Letters, word: str) -> set[int]:
    return set(letters.rows([word])[0].tolist()) - {0}


def test_runs_by_hand() -> None:
    """<ab> and <abc> share <a, ab and <ab; bc is in one word only."""
    letters = Letters(["", "ab", "abc", "x"], 2, 3)
    assert letters.size == 3
    expected = torch.zeros(4, MOST, dtype=torch.int32)
    expected[1, :3] = expected[2, :3] = torch.tensor([1, 2, 3])
    assert torch.equal(letters.known, expected)
    assert torch.equal(letters.rows(["ab", "zabz"])[:, :2], torch.tensor([[1, 2], [3, 0]]))


def test_a_word_counts_a_run_once_and_case_is_ignored() -> None:
    assert Letters(["banana"], 2, 3).size == 0  # an and na are twice in it, and it is one word
    letters = Letters(["Ana", "ANA", "▁ana"], 2, 2)
    assert letters.size == 4  # <a an na a>
    assert torch.equal(letters.known[0], letters.known[2])


def test_a_word_of_one_letter() -> None:
    assert Letters(["a", "b"], 3, 5).size == 0
    letters = Letters(["a", "A", "about"], 2, 3)
    assert len(of(letters, "a")) == 3  # <a a> <a>
    assert len(of(letters, "about")) == 1  # <a
    assert not of(letters, "")
    assert not of(letters, "▁")


def test_equal_characters_have_one_form() -> None:
    """The same accent as one character or two; characters beyond the BMP work too."""
    words = ["café", "cafés", "𝔘𝔫", "𝔘𝔫𝔦", "İstanbul", "İzmir", "日本", "日本語"]
    letters = Letters(words, 1, 3)
    assert of(letters, unicodedata.normalize("NFD", "CAFÉ")) == of(letters, "café")
    assert of(letters, "𝔘𝔫𝔰")
    assert of(letters, "İ")
    assert of(letters, "日")


def test_of_too_many_runs_some_of_every_frequency_are_kept() -> None:
    word = "abcdefghijklmnopqrstuvwxyz"
    words = [word[:n] for n in range(1, len(word) + 1)]
    letters = Letters([*words, word], 1, 1)
    assert letters.size == 28
    (row,) = letters.rows([word])
    assert len(row) == len(of(letters, word)) == MOST
    # "z" is in two words, "<", ">" and "a" in all: the rarest and the most frequent are kept.
    numbers = {mark: i for i, mark in enumerate(sorted(f"<{word}>"), 1)}
    assert row[0] == numbers["z"]
    assert row[-1] == numbers["a"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=12), max_size=12), st.integers(1, 4), st.integers(0, 4))
def test_numbers_are_rows_of_the_table(words: list[str], least: int, more: int) -> None:
    letters = Letters(words, least, least + more)
    assert letters.known.shape == (len(words), MOST)
    assert torch.equal(letters.known, letters.rows(words).int())
    assert 0 <= int(letters.known.max() if words else 0) <= letters.size
    assert set(letters.known.unique().tolist()) - {0} == set(range(1, letters.size + 1)) or any(
        len(of(letters, word)) == MOST for word in words
    )
    for row in letters.known.tolist():  # each once, and zeros after them
        some = [number for number in row if number]
        assert len(set(some)) == len(some)
        assert row[: len(some)] == some


def test_every_process_numbers_them_alike() -> None:
    """Whatever the order of its sets."""
    code = (
        "from heed.data.letters import Letters\n"
        "words = 'where there here other mother brother the then them'.split()\n"
        "print(Letters(words, 1, 5).known.tolist())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_long_words_and_large_vocabularies_are_fast() -> None:
    letters = Letters(["x" * 10**6 + "y", "x" * LONGEST, "İ" * 10**6], 1, 8)
    assert of(letters, "x" * 10**7) == of(letters, "x" * LONGEST)
    many = [f"{i:064}" for i in range(LARGEST // 480)]
    with pytest.raises(Refused, match="runs of 1 to 8 letters, and 4,194,304 can be counted"):
        Letters(many, 1, 8)
