"""Sentences end at marks, in many scripts, and memory is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.sentences import flowing, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("我爱中国。你呢？好", ["我爱中国。", "你呢？", "好"]),
        ("J. Doe et al. agree, cf. Fig. 2.", ["J. Doe et al. agree, cf. Fig. 2."]),
        ("Wait... what?! (Yes.) So", ["Wait...", "what?!", "(Yes.)", "So"]),
        ("no end", ["no end"]),
        ("   ", []),
    ],
)
def test_sentences_end_at_marks(text, sentences):
    assert split_sentences(text) == sentences


def test_text_without_marks_is_cut_at_a_bound():
    found = list(flowing(["word word"] * 100, longest=30))
    assert max(map(len, found)) <= 30 + 10
    assert " ".join(found) == " ".join(["word word"] * 100)


def test_a_sentence_continues_over_lines_and_ends_with_its_document():
    lines = ["One. Two", "goes on. Three", None, "Four", None]
    assert list(flowing(lines, 100)) == ["One.", "Two goes on.", "Three", None, "Four", None]


@given(st.text("aB1 .!?。\"'…", max_size=60))
def test_nothing_is_lost(text):
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(each and each == each.strip() for each in found)
