"""Labels of pieces: a reader can see where words are cut."""

import pytest

from heed.viewing.pieces import labels, sign


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([" a", " stir", "ring", " film", "."], ["a", "stir", "##ring", "film", "."]),
        ([" 20", "24", " 3", ".", "5"], ["20", "##24", "3", ".", "5"]),
        ([" don", "'", "t", " (", "we", ")"], ["don", "'", "t", "(", "we", ")"]),
        ([" e\u0301", "te\u0301", "\u0301s"], ["e\u0301", "##te\u0301", "##\u0301s"]),
        ([" при", "вет", " 한", "글"], ["при", "##вет", "한", "##글"]),
        ([" 我", "爱", "ok", "ok", "我"], ["我", "爱", "ok", "##ok", "我"]),
        ([" カタ", "ｶﾅ", "ー", "กำ", "ลัง"], ["カタ", "ｶﾅ", "ー", "กำ", "ลัง"]),
        ([" می", "\u200cخواهم"], ["می", "##\u200cخواهم"]),
        ([" क्\u200d", "ष", "\u200d", "क"], ["क्\u200d", "##ष", "\u200d", "##क"]),
        (["👩", "\u200d", "👩", "a"], ["👩", "\u200d", "👩", "a"]),
        ([" stir", "", "ring"], ["stir", "", "##ring"]),
        (["<s>", "stir", "ring", "</s>"], ["<s>", "stir", "##ring", "</s>"]),
        ([" ", "stir", "ring"], ["␣", "stir", "##ring"]),
        (["To", " be", "\n", "or", "\t", "x", "  "], ["To", "be", "↵", "or", "⇥", "x", "␣␣"]),
        (["", "stir"], ["", "stir"]),
        ([], []),
    ],
)
def test_a_piece_within_a_word_is_marked(pieces: list[str], expected: list[str]) -> None:
    assert labels(pieces) == expected


def test_what_cannot_be_seen_becomes_a_sign() -> None:
    assert list(map(sign, [" the", "\n", " \t", "  ", ""])) == [" the", "↵", " ⇥", "␣␣", ""]
