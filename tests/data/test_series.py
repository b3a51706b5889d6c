"""Series out of .ts files, tables and JSON lines: what is missing stays so, errors name a place."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.held_out import HeldOut
from heed.data.series import Series, SeriesFiles, SeriesReport, read_series
from heed.errors import Refused

HEAD = (
    "# made by hand\n@problemName x\n@timeStamps false\n@dimensions 2\n@classLabel true up down\n"
)
TS = HEAD + "@data\n0.5,0.7,?:1,2,3:up\n-1e-1, NaN :2,2:down\n"
CSV = "label,x,series,y\nup,0.5,a,1\nup,0.7,a,2\nup,,a,3\ndown,-0.1,b,2\ndown,nan,b,2\n"
JSON = (
    '{"values": [[0.5, 1], [0.7, 2], [null, 3]], "label": "up"}\n\n'
    '{"values": [[-0.1, 2], [NaN, 2]], "label": "down"}\n'
)
NAN = float("nan")
UP = np.array([[0.5, 1], [0.7, 2], [NAN, 3]], np.float32)
DOWN = np.array([[-0.1, 2], [NAN, 2]], np.float32)


def file(folder: Path, text: str, name: str = "a.ts") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def read(path: Path, report: SeriesReport | None = None, **wishes: Any) -> list[Series]:
    files = SeriesFiles.model_validate({"path": path, **wishes})
    return list(read_series(files, report=report))


def same(found: list[Series], *expected: tuple[Any, str]) -> None:
    assert [series.label for series in found] == [label for _, label in expected]
    for series, (values, _) in zip(found, expected, strict=True):
        assert series.values.dtype == np.float32
        np.testing.assert_array_equal(series.values, values)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.ts", TS),
        ("a.csv", CSV),
        ("a.csv", CSV.replace(",", ";")),
        ("a.tsv", CSV.replace(",", "\t")),
        ("a.jsonl", JSON),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path, report = file(tmp_path, text, name), SeriesReport()
    if packed:
        path = path.rename(path.with_name(name + ".gz"))
        path.write_bytes(gzip.compress(path.read_bytes()))
    same(read(path, report), (UP, "up"), (DOWN, "down"))
    says = "2 sequences read = 2 kept + 0 dropped; 5 steps, 2 values missing"
    assert str(report) == says


def test_columns_and_keys_can_be_chosen(tmp_path: Path) -> None:
    path = file(tmp_path, "a,1,x,0.5,7\na,2,x,0.7,8\nb,1,y,-1,9\n", "a.csv")
    rows = read(path, series=0, label=2, channels=(4, 3))
    same(rows, ([[7, 0.5], [8, np.float32(0.7)]], "x"), ([[9, -1]], "y"))
    assert read(path, series=0, label=2)[0].values.shape == (2, 3)
    path = file(tmp_path, "id,class,time,v\n1,x,0,5\n", "a.csv")
    same(read(path, series="id", label="class", channels=("v",)), ([[5]], "x"))
    path = file(tmp_path, '{"x": [1, null, 3], "y": 7, "z": 0}\n', "a.jsonl")
    same(read(path, values="x", label="y"), ([[1], [NAN], [3]], "7"))


def test_a_ts_file_may_have_one_channel_and_any_label(tmp_path: Path) -> None:
    text = "@univariate true\n@CLASSLABEL TRUE\n\n@Data\n1.5:a b\n\n2,3:1.0\n".replace("\n", "\r\n")
    same(read(file(tmp_path, text)), ([[1.5]], "a b"), ([[2], [3]], "1.0"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1,2:up\n", ":1: a .ts file begins with lines such as @classLabel, and @data"),
        ("@data\n1:a\n", ":1: the series have no labels: there is no line @classLabel true"),
        ("@classLabel false\n@data\n1:\n", ":2: the series have no labels"),
        ("@timeStamps true\n", ":1: time stamps are not read; write values at even steps"),
        (TS + "1:up\n", ":9: 1 channel where @dimensions says 2"),
        ("@classLabel true\n@data\n1,2\n", ":3: 0 channels before the last colon"),
        (TS + "1:2:left\n", ":9: the label 'left' is not one of @classLabel: up, down"),
        (TS + "1,2:1,x,3:up\n", ":9: channel 2, value 2: 'x' is not a number"),
        (TS + "1,2:1,2,3:up\n", ":9: channel 2 has 3 values, channel 1 has 2; all must be as long"),
        (TS + "::up\n", ":9: an empty series"),
        (TS + "1,2:3,-inf:up\n", ":9: the value of channel 2 at step 2 is infinite, or too large"),
        (TS + "1,1e39:3,4:up\n", ":9: the value of channel 1 at step 2 is infinite, or too large"),
        ("@classLabel true\n@data\n1:a\n1:1:b\n", ":4: 2 channels, but the series before have 1"),
        ("@classLabel true\n@data\n1:a\x1bb\n", ":3: 'a\\x1bb' is no label"),
        ("@classLabel true\n@data\n", "there is no series in"),
    ],
)
def test_bad_ts_files_name_their_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        read(file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("series,x\n", ":1: the first line has no column 'label'; it has: series, x; choose with"),
        (CSV + "up,1,a,1\n", ":7: rows of the series 'a' stand above, too; sort the table by ser"),
        (CSV + "up,1,b,1\n", ":7: the series 'b' has two labels: down, up"),
        (CSV + "up,x,c,1\n", ":7: column x: 'x' is not a number"),
        (CSV + "up,1,c\n", ":7: 3 columns (up, 1, c), where the first line has 4"),
        (CSV + "up,1,c,inf\n", ":7: the value of channel 2 at step 1 is infinite"),
        ("series,label\na,x\n", ":2: an empty series"),
        ("series,label,x\n", "there is no series in"),
        ("", "there is no series in"),
    ],
)
def test_bad_tables_name_their_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        read(file(tmp_path, text, "a.csv"))


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "a\tx\t1\nb\ty\tz\n", "a.tsv")
    with pytest.raises(Refused, match=r":1: 3 columns \(a, x, 1\), and 3 is asked for, counted"):
        read(path, series=0, label=3)
    with pytest.raises(Refused, match=r":2: column 2: 'z' is not a number"):
        read(path, series=0, label=1)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object with the keys values and label"),
        ('{"values": [[1, 2]]}', "the key 'label' is missing; it has: values"),
        ('{"values": 1, "label": "a"}', "the key 'values' is not a list"),
        ('{"values": [[1, 2], [1]], "label": "a"}', "step 2 has 1 value, step 1 has 2"),
        ('{"values": [[1, 2], [1, "x"]], "label": "a"}', "step 2, channel 2: 'x' is not a number"),
        ('{"values": [[1, true]], "label": "a"}', "step 1, channel 2: 'True' is not a number"),
        ('{"values": [[1, [2]]], "label": "a"}', "step 1, channel 2: '[2]' is not a number"),
        ('{"values": [[1, Infinity]], "label": "a"}', "channel 2 at step 1 is infinite"),
        (f'{{"values": [[1, 1{"0" * 400}]], "label": "a"}}', "channel 2 at step 1 is infinite"),
        ('{"values": [], "label": "a"}', "an empty series"),
        ('{"values": [[]], "label": "a"}', "an empty series"),
        ('{"values": [1], "label": "a"}', "1 channel, but the series before have 2"),
        ('{"values": [[1, 2]], "label": 1.5}', "the key 'label' is neither a text nor a whole"),
        ('{"values": [[1, 2]], "label": true}', "the key 'label' is neither a text nor a whole"),
    ],
)
def test_bad_json_names_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = file(tmp_path, JSON + line + "\n", "a.jsonl")
    with pytest.raises(Refused, match=re.escape(f"{path}:4: ") + ".*" + re.escape(told)):
        read(path)


def test_what_is_dropped_is_counted(tmp_path: Path) -> None:
    lines = [{"values": [1.0] * n, "label": label} for n, label in ((3, "a"), (5, "b"), (2, None))]
    files = SeriesFiles(jsonl=file(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl"))
    report = SeriesReport()
    found = list(read_series(files, longest=4, report=report))
    assert [series.label for series in found] == ["a"]
    assert report.dropped == {"too long": 1, "without a label": 1}
    assert report.read == 3 == report.kept + sum(report.dropped.values())
    with pytest.raises(Refused, match=r"there is no series in .*2 too long, 1 without a label"):
        list(read_series(files, longest=1))


def test_a_label_not_seen_in_training_is_refused_with_its_line(tmp_path: Path) -> None:
    files = SeriesFiles(ts=file(tmp_path, TS))
    says = r"a\.ts:8: the label 'down' never occurs .*, which has up, dawn; did you mean dawn\?$"
    with pytest.raises(Refused, match=says):
        list(read_series(files, labels=("up", "dawn")))
    report = SeriesReport()
    assert len(list(read_series(files, labels=("up",), only=lambda _: True, report=report))) == 1
    assert report.dropped == {"with a label of no training series": 1}


def test_the_values_decide_what_is_held_out(tmp_path: Path) -> None:
    lines = [json.dumps({"values": [n, 1], "label": n % 2}) for n in range(300)]
    files = SeriesFiles(jsonl=file(tmp_path, "\n".join(lines), "a.jsonl"))
    held = HeldOut(valid=0.1, test=0.1)
    parts = [
        {series.text for series in read_series(files, only=held.only(part))}
        for part in ("train", "valid", "test")
    ]
    assert sum(map(len, parts)) == 300 == len(set.union(*parts))
    assert 200 < len(parts[0]) < 280


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ts": "a", "csv": "b"},
        {"jsonl": "a", "label": 1},
        {"csv": "a", "label": 1},
        {"csv": "a", "series": 1, "label": 1},
        {"csv": "a", "channels": ("x", "x")},
        {"path": "a.arff"},
        {"ts": "a", "length": 3},
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SeriesFiles.model_validate(settings)


def test_paths_are_relative_to_a_folder(tmp_path: Path) -> None:
    files = SeriesFiles.model_validate("a.ts.gz").under(tmp_path)
    assert (files.ts, str(files)) == (tmp_path / "a.ts.gz", str(tmp_path / "a.ts.gz"))


value = st.floats(width=32, allow_infinity=False) | st.just(NAN)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, F: int
) -> None:
    step = st.lists(value, min_size=F, max_size=F)
    series = data.draw(st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4))
    rows = [
        ":".join(",".join(str(step[i]) for step in steps) for i in range(F)) for steps in series
    ]
    text = "@classLabel true\n@data\n" + "".join(f"{row}:x\n" for row in rows)
    folder = tmp_path_factory.mktemp("s")
    same(read(file(folder, text)), *((np.float32(steps), "x") for steps in series))
    table = "".join(
        "\t".join([str(n), "x", *map(str, step)]) + "\n"
        for n, steps in enumerate(series)
        for step in steps
    )
    found = read(file(folder, table, "a.tsv"), series=0, label=1)
    same(found, *((np.float32(steps), "x") for steps in series))
