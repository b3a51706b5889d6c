"""Files of several formats as one corpus: settings in a recipe, and what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from heed.data.sources import MOST, FilesReport, TextFiles, each_file, text_lines, told
from heed.errors import Refused

check = told(TextFiles)


def test_the_format_follows_from_the_ending() -> None:
    assert check(["a.txt", "b.txt"]) == TextFiles(text=("a.txt", "b.txt"))
    assert check("a.ndjson.gz") == check([{"jsonl": "a.ndjson.gz"}])
    mixed = ["a.txt", "b.jsonl", {"text": "c.tsv", "column": 1}]
    found = check(mixed)
    assert [each.paths[0].name for each in found] == ["a.txt", "b.jsonl", "c.tsv"]
    assert [bool(each.jsonl) for each in found] == [False, True, False]
    assert check(found) == found
    assert check({"path": "c.tsv", "column": 1}) == check({"text": "c.tsv", "column": 1})
    assert check([{"path": "b.jsonl", "key": "x"}]) == check({"jsonl": "b.jsonl", "key": "x"})
    for wrong in (
        [],
        ["a", 3],
        ["a", ["b"]],
        3,
        {"text": "a", "jsonl": "b"},
        [{"texts": "a"}],
        {"path": 3},
    ):
        with pytest.raises(ValidationError):
            check(wrong)


def test_a_missing_file_is_refused_before_any_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("not JSON")
    with pytest.raises(Refused, match=r"cannot read .*/b\.txt: No such file"):
        each_file(check(["a.jsonl", "b.txt"]), tmp_path)


def test_a_line_with_too_few_columns_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("0\tone\n1\n")
    lines = text_lines(tmp_path / "a.tsv", 1)
    assert next(lines) == "one"
    with pytest.raises(Refused, match=r"a\.tsv:2: 1 column, and `column` is 1"):
        next(lines)


def test_of_very_many_files_only_some_are_reported() -> None:
    report = FilesReport()
    for number in range(MOST + 2):
        report.add(f"{number}.txt", FilesReport(3, 2, {"blank": 1}))
    *each, together = report.told("text")
    assert len(each) == MOST
    assert together.startswith("text, together, with 2 files more: 66 pairs read = 44 kept + 22")
