"""Tables: what separates the columns of CSV, and the texts of one column."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.data.labelled import Labelled, LabelledFiles, read_labelled
from heed.data.tables import csv_rows, read_texts
from heed.errors import Refused


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("label;text\n1;good, and short\n", [["label", "text"], ["1", "good, and short"]]),
        ('1;"a; b"\n', [["1", "a; b"]]),
        ("1,a; b\n", [["1", "a; b"]]),
        ('"a; b\n",1\n', [["a; b\n", "1"]]),  # the first line ends within a cell
        ("alone\na;b\n", [["alone"], ["a;b"]]),
        ("", []),
    ],
)
def test_the_first_line_shows_what_separates_columns(
    tmp_path: Path, text: str, rows: list[list[str]]
) -> None:
    assert [cells for _, cells in csv_rows(written(tmp_path, "a.csv", text))] == rows


def test_labelled_texts_are_read_from_csv_with_semicolons(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "label;text\n1;good, and short\n0;bad\n")
    found = [Labelled("good, and short", "1"), Labelled("bad", "0")]
    assert list(read_labelled(LabelledFiles(csv=path))) == found


@pytest.mark.parametrize(
    ("name", "text", "column", "says"),
    [
        (
            "a.csv",
            "id,review\n",
            "text",
            "a.csv:1: the first line has no column 'text'; it has: id",
        ),
        ("a.csv", "a,a\n", "a", "more than one column 'a'"),
        ("a.tsv", "a\tb\nc\n", 1, "a.tsv:2: 1 column (c), but the text is in column 1"),
        ("a.jsonl", '{"a": 3}\n', "a", "a.jsonl:1: the key 'a' is not a text"),
        ("a.jsonl", '{"a": "b"}\n', "text", "'text' is missing; it has: a; choose one: --text"),
        ("a.jsonl", "[]\n", "text", "a.jsonl:1: not a JSON object with the key text"),
        ("a.jsonl", "{\n", "text", "a.jsonl:1: not JSON"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "text", "half a surrogate pair"),
    ],
)
def test_a_row_without_the_column_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, column: int | str, says: str
) -> None:
    with pytest.raises(Refused) as told:
        list(read_texts(written(tmp_path, name, text), column))
    assert says in str(told.value)
