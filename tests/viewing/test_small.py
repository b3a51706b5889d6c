"""Small maps side by side: which cell is drawn where, in characters and in colours."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from heed.viewing.panels import Panel
from heed.viewing.small import SmallMaps, small


def panel(title: str, weight: list[list[float]]) -> Panel:
    rows, columns = (map(str, range(n)) for n in np.shape(weight))
    return Panel.of(title, weight, rows, columns)


def printed(panels: list[Panel], width: int = 20, **how) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **how).print(SmallMaps(panels))
    return file.getvalue()


def test_as_many_maps_side_by_side_as_fit() -> None:
    one, two = panel("a", [[1.0, 0.0], [0.25, 0.75]]), panel("second", [[0.05]])
    assert printed([one, two]) == "a       second\n█       ░\n▒█\n\n"
    assert printed([one, two], width=9) == "a\n█\n▒█\n\nsecond\n░\n\n"
    assert printed([]) == ""
    assert printed([panel("\x1b[1m\u202e", [[1.0]])]).startswith("\\x1b[1m\\u202e")


def test_a_row_with_weight_is_never_blank() -> None:
    even = np.tril(np.ones((24, 24))) / np.arange(1, 25)[:, None] / 10  # a long text, pooled
    even[:, 23] = 1e-9
    lines = printed([panel("a", even.tolist()), panel("b", [[0.0]])], 60).splitlines()[1:-1]
    assert [line.rstrip() for line in lines[2:23]] == ["░" * n for n in range(3, 24)]
    sharp = printed([panel("c", [[0.9, 0.03, 0.03]])]).splitlines()[1]
    assert sharp.rstrip() == "█"  # small weights beside a large one stay blank


def test_in_colour_each_row_takes_half_a_line() -> None:
    found = printed([panel("a", [[1.0], [0.0], [0.5]])], force_terminal=True, color_system="256")
    assert found.count("▀") == 2
    assert "\x1b" in found


@pytest.mark.parametrize("colour", [None, "256"])
@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_an_empty_panel_has_only_its_title(shape: tuple[int, int], colour: str | None) -> None:
    empty = Panel.of("a", np.zeros(shape), "r" * shape[0], "c" * shape[1])
    found = printed([empty], force_terminal=colour is not None, color_system=colour)
    assert re.sub(r"\x1b\[\d*m", "", found).split() == ["a"]


@pytest.mark.parametrize(("count", "kept"), [(3, 3), (24, 24), (25, 24), (100, 24)])
def test_cells_that_share_a_place_show_the_largest(count: int, kept: int) -> None:
    weight = np.eye(count)
    found = small(weight)
    assert found.shape == (kept, kept)
    assert (found.diagonal() == 1).all()
    assert found.sum() >= min(count, kept)
