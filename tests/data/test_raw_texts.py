"""Texts of any length, cut by the pieces that they come in."""

import pytest

from heed.data.raw_texts import Piece, between


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [(0, 4, ["abc", "d"]), (1, 3, ["bc"]), (3, None, ["de", "f"]), (4, 5, ["e"]), (6, None, [])],
)
def test_a_part_between_two_positions(start: int, end: int | None, wanted: list[str]) -> None:
    pieces = [Piece("abc", True), Piece("de", False), Piece("f", True)]
    found = list(between(iter(pieces), start, end))
    assert [piece.text for piece in found] == wanted
    assert all(piece.opens for piece in found[:1])
