"""What drawings share: escaped text, round numbers, files written completely."""

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from heed.errors import Refused
from heed.viewing import drawing
from heed.viewing.panels import Panel


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
        ("a\x1b[31m\x00", "a\\x1b[31m\\x00"),
        ("one\ntwo\u3000three", "one two three"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("می\u200cخواهم 我 👩\u200d🔬", "می\u200cخواهم 我 👩\u200d🔬"),
    ],
)
def test_text_is_escaped(text: str, safe: str) -> None:
    assert drawing.written(text) == safe
    ElementTree.fromstring(f"<a>{drawing.written(text)}</a>".encode())


def test_colours_follow_the_scale() -> None:
    stops = drawing.colours(np.linspace(0, 1, len(drawing.INK)))
    assert [tuple(stop) for stop in stops.tolist()] == list(drawing.INK)
    middle = drawing.colours(np.array(0.1)).tolist()
    assert middle == pytest.approx(np.add(drawing.INK[0], drawing.INK[1]) / 2, abs=0.51)


def test_shares_are_between_the_lowest_and_the_highest() -> None:
    shares = drawing.shares(Panel.of("t", [[-1.0, 0.0, 3.0]], "a", "bcd"))
    assert shares.tolist() == [[0, 0.25, 1]]
    assert drawing.shares(Panel.of("t", [[0.0, 0.0]], "a", "bc")).tolist() == [[0, 0]]
    assert drawing.shares(Panel.of("t", [[0.2, 0.4]], "a", "bc")).tolist() == [[0.5, 1]]


@pytest.mark.parametrize("low", [-7.3, 0.0, 0.02, 55.0, 1e5])
@pytest.mark.parametrize("long", [1e-4, 0.3, 1.0, 9.99, 77.0, 1e6])
@pytest.mark.parametrize("about", [3, 5, 8])
def test_steps_are_round_and_enclose(low: float, long: float, about: int) -> None:
    steps = drawing.steps(low, low + long, about)
    step = steps[1] - steps[0]
    assert steps[0] <= low + 1e-6 * long
    assert steps[-1] >= low + long - 1e-6 * long
    assert 2 <= len(steps) <= about + 2
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 1e-3


def test_numbers_are_short() -> None:
    values = [0, 27.44, 0.0312, 12000, 1234567, 100, math.nan, -3.5]
    said = ["0", "27.4", "0.0312", "12,000", "1,234,567", "100", "–", "-3.5"]
    assert [drawing.number(value) for value in values] == said
    assert [drawing.figure(w) for w in (0.934, 0.05, 0.999, 1.0, 12.34)] == [
        *(".93", ".05", "1.0", "1.0", "12")
    ]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([2.41, 2.415, 2.42], ["2.410", "2.415", "2.420"]),
        ([2.4, 2.425, 2.45], ["2.400", "2.425", "2.450"]),  # not 2.42
        ([0, 0.5, 1], ["0.0", "0.5", "1.0"]),
        ([0, 20, 100], ["0", "20", "100"]),
        ([12000, 12001], ["12,000", "12,001"]),
        ([-0.1, 0.1 - 0.1, 0.1], ["-0.1", "0.0", "0.1"]),
        ([1e-9, 2e-9], ["1e-09", "2e-09"]),
        ([1e12, 2e12], ["1e+12", "2e+12"]),
        ([1.0, 1.0000000000000002], ["1.0", "1.0000000000000002"]),
        ([60], ["60"]),
        ([], []),
    ],
)
def test_marks_of_an_axis_have_different_labels(values: list[float], names: list[str]) -> None:
    assert drawing.ticks(values) == names


def test_a_file_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "a.html"
    drawing.write(path, b"first")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(Refused, match=r"cannot write '.*a\.html': No space left on device"):
        drawing.write(path, b"second")
    assert path.read_bytes() == b"first"
    assert [file.name for file in path.parent.iterdir()] == ["a.html"]


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot write"):
        drawing.write(tmp_path / "file" / "a.svg", b"")
    with pytest.raises(Refused, match="cannot write"):
        drawing.write(tmp_path, b"")


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([0.325, 0.26, 0.0493], ["0.325", "0.260", "0.049"]),
        ([0.0941, 0.073], ["0.0941", "0.0730"]),
        ([100.0, 97.42], ["100.0", "97.4"]),
        ([1.0, 0.0], ["1", "0"]),
        ([0.5, 0.25, float("nan")], ["0.50", "0.25", "–"]),
        ([0.9, -0.00042], ["0.9000", "-0.0004"]),
        ([12_000.0, 3.0], ["12,000", "3"]),
        ([0.5, 1e-9], ["0.5", "1e-09"]),
        ([0.0, float("inf")], ["0", "–"]),
        ([], []),
    ],
)
def test_numbers_below_each_other_have_as_many_decimals(
    values: list[float], want: list[str]
) -> None:
    assert drawing.alike(values) == want
