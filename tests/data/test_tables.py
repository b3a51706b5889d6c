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
        ("1;a, b\n0;c, d\n", [["1", "a, b"], ["0", "c, d"]]),
        ('"a; b\n",1\n', [["a; b\n", "1"]]),  # the first line ends within a cell
        ('"a; b\n";1\n', [["a; b\n", "1"]]),
        ('"a, b";c\n"d, e";1\n', [["a, b", "c"], ["d, e", "1"]]),
        ('"a; b",c\n"d; e",1\n', [["a; b", "c"], ["d; e", "1"]]),
        ('"a"";"",b";c\n', [['a";",b', "c"]]),
        ("a, b;c\nd;1\n", [["a, b", "c"], ["d", "1"]]),
        (
            "value;text\n1,5;good\n-2,25;bad\n",
            [["value", "text"], ["1,5", "good"], ["-2,25", "bad"]],
        ),
        ("label\ttext\n1\tgood, short; new\n", [["label", "text"], ["1", "good, short; new"]]),
        ("label, text\n1, good\n", [["label", " text"], ["1", " good"]]),
        ("alone\na;b\n", [["alone"], ["a;b"]]),
        ('"alone, in a cell"\n"a, b"\n', [["alone, in a cell"], ["a, b"]]),
        ("\n\na;b\n1;2\n", [[], [], ["a", "b"], ["1", "2"]]),
        ("a;b\n" * 30 + '"never closed";c\n', [["a", "b"]] * 30 + [["never closed", "c"]]),
        ("a,b,\n1,2\n1,2,,,\n", [["a", "b", ""], ["1", "2"], ["1", "2", "", "", ""]]),
        ("", []),
    ],
)
def test_the_first_lines_show_what_separates_columns(
    tmp_path: Path, text: str, rows: list[list[str]]
) -> None:
    assert [cells for _, cells in csv_rows(written(tmp_path, "a.csv", text))] == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,5;2,5\n3,5;4,5\n", "a.csv: its first lines can be cut into columns in several ways"),
        ("1\ta,b\n", "in several ways"),
        (
            "text\nI came\nI came, I saw\n",
            "a.csv:3: 2 columns separated by commas .*first row has 1;",
        ),
        (
            "5,fine\n4,fine, really\n",
            "a.csv:2: 3 columns separated by commas .*first row has 2; quote",
        ),
        ("5;fine\n4;fine; really\n", "3 columns separated by semicolons .*quote the cells"),
        ('a,b\n1,"c\n', r"a.csv:2: not CSV \(unexpected end of data\)"),
        ('a,b\n1,"c" d\n', "a.csv:2: not CSV"),
    ],
)
def test_a_table_that_could_be_misread_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        list(csv_rows(written(tmp_path, "a.csv", text)))
    assert "\n" not in str(refused.value)


def test_long_cells_at_the_beginning_are_read(tmp_path: Path) -> None:
    """Longer than the limit that Python sets, and than what shows the separator."""
    text = f'"{"long, " * 300_000}";1\n"b";2\n'
    found = [cells for _, cells in csv_rows(written(tmp_path, "a.csv", text))]
    assert [row[1] for row in found] == ["1", "2"]
    assert len(found[0][0]) == 1_800_000


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
