"""Texts of any length, cut by the pieces that they come in."""

from pathlib import Path

import pytest

from heed.data.raw_texts import Piece, between, parted
from heed.data.sources import TextFiles, each_file


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [(0, 4, ["abc", "d"]), (1, 3, ["bc"]), (3, None, ["de", "f"]), (4, 5, ["e"]), (6, None, [])],
)
def test_a_part_between_two_positions(start: int, end: int | None, wanted: list[str]) -> None:
    pieces = [Piece("abc", True), Piece("de", False), Piece("f", True)]
    found = list(between(iter(pieces), start, end))
    assert [piece.text for piece in found] == wanted
    assert all(piece.opens for piece in found[:1])


def test_a_changed_file_is_parted_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("abcd\n" * 20, "a\n" * 20):
        path.write_text(text)
        train, held = parted(each_file(TextFiles(text=(path,))), 0.25)
        found = ["".join(piece.text for piece in part.pieces()) for part in (train, held)]
        assert found == [text[: len(text) * 3 // 4], text[len(text) * 3 // 4 :]]
