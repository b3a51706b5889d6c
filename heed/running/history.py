"""The history of a run: the losses, scores and attention statistics of its validations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from heed.errors import HeedError, Refused
from heed.running.shards import is_pretrained
from heed.storage.journal import read
from heed.storage.run_folder import RunFolder
from heed.viewing.chart import INKS, Line, LineChart
from heed.viewing.history import History, Moment, panels
from heed.viewing.taking import short

PREFIX = "valid/attention/"
UNITS = {"entropy": "nats", "sharpness": "mean largest weight"}
"""The statistics that validations log; one without a name is the entropy."""
SCORES = {
    "valid/accuracy": "accuracy",
    "valid/macro_f1": "macro-F1",
    "valid/follows_accuracy": "next sentence",
}
"""The scores that validations log in percent, and their names."""
LARGEST = 4_000_000  # bytes of a saved picture that are read
HUGE = 1e300  # larger values and NaN are left out
MOST = 200  # moments; of more, some in between are left out
_STEP = re.compile(r"step-(\d{1,12})\.(svg|txt)")

Points = dict[int, float]
"""Values by step."""


def history(path: Path) -> History:
    """The time line of a run, finished or not."""
    if is_pretrained(path):
        raise Refused(
            f"{path} is a pretrained model, not a run of heed: it has no training to show"
        )
    folder = RunFolder.open(path)
    loss, scores, lines = _lines(folder)
    if not (loss or scores or lines):
        raise Refused(f"{path} has no history yet: its training has not validated once")
    charts = [_chart("validation loss", "nats", {"loss": loss})] if loss else []
    if scores:
        which = "scores" if len(scores) > 1 else next(iter(scores))
        charts.append(_chart(f"validation {which}", "%", scores))
    for name, unit in UNITS.items():
        curves = lines.get(name, {})
        called = short(curves)  # the names on pages of attention
        for n, some in enumerate(_groups(list(curves)), 1):
            which = "attention" if len(curves) > 1 else called[some[0]]
            title = f"{name} of {which}" + (f" ({n})" if len(curves) > len(INKS) else "")
            charts.append(_chart(title, unit, {called[path]: curves[path] for path in some}))
    shown = "loss and scores" if scores else "loss"
    note = "" if lines else f"This model has no attention; the charts show its {shown}."
    return History(f"{folder.path.name}: training history", charts, list(_moments(folder)), note)


def _lines(
    folder: RunFolder,
) -> tuple[Points, dict[str, Points], dict[str, dict[str, Points]]]:
    """The loss, each score, and each statistic of each attention; of a step that is logged twice,
    the last entry counts."""
    loss: Points = {}
    scores: dict[str, Points] = defaultdict(dict)
    found: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    for entry in read(folder.inside(folder.metrics)):
        for name, value in entry.items():
            if type(value) not in (int, float) or not max(abs(value), abs(entry["step"])) < HUGE:
                continue
            if name == "valid/loss":
                loss[entry["step"]] = float(value)
            if name in SCORES:
                scores[SCORES[name]][entry["step"]] = float(value)
            if name.startswith(PREFIX):
                where, _, what = name.removeprefix(PREFIX).rpartition("/")
                where, what = (where, what) if what in UNITS else (f"{where}{what}", "entropy")
                found[what][where][entry["step"]] = float(value)
    return loss, scores, found


def _groups(names: list[str]) -> Iterator[list[str]]:
    """The names in groups, of as many as a chart has colours for."""
    for i in range(0, len(names), len(INKS)):
        yield names[i : i + len(INKS)]


def _chart(title: str, unit: str, curves: dict[str, Points]) -> LineChart:
    lines = [
        Line(name, [float(step) for step in sorted(points)], [points[s] for s in sorted(points)])
        for name, points in curves.items()
    ]
    return LineChart(title, lines, x="step", y=unit)


def _moments(folder: RunFolder) -> Iterator[Moment]:
    """The samples of each step, in order; a file that cannot be read is left out."""
    where = folder.inside(folder.samples)
    names = sorted(each.name for each in where.iterdir()) if where.is_dir() else []
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for name in names:
        if match := _STEP.fullmatch(name):
            found[int(match[1])][match[2]] = name
    for step in _spread(sorted(found)):
        said = {kind: _text(folder, name) for kind, name in found[step].items()}
        drawn = panels(said.get("svg", ""))
        if drawn or said.get("txt"):
            yield Moment(step, drawn, said.get("txt", ""))


def _spread(steps: Sequence[int]) -> Sequence[int]:
    """At most `MOST` of the steps, evenly spread; the first and the last stay."""
    if len(steps) <= MOST:
        return steps
    return [steps[round(i * (len(steps) - 1) / (MOST - 1))] for i in range(MOST)]


def _text(folder: RunFolder, name: str) -> str:
    try:
        return folder.read_text(folder.samples / name, LARGEST)
    except (HeedError, OSError):
        return ""
