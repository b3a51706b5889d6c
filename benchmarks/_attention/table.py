"""Rows of figures as tables: for a terminal, and for docs/performance.md with its pictures."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _page import DOCS, markdown_table, put

from _attention.cases import BOTH, COMPILED, EAGER, FORWARD, OURS, Row

HEADINGS = {
    "additive": "Additive attention (B·H × T × S × D)",
    "local": "Windows (B × H × T × D, ± half a window)",
    "dot": "The plain dot product (B × H × T × D)",
    "inside": "Looking inside (B × H × T × D)",
    "walks": "Walks along the keys, hard and sparse aligns (B × T × S × D)",
    "starting": "The first call of a fresh process, and calls of other lengths",
}


@dataclass
class Report:
    """All that one run found on one device."""

    device: str
    machine: str
    rows: list[Row] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Report":
        """A report from what `saved` gave."""
        rows = [Row(**row) for row in saved.pop("rows")]
        return cls(rows=rows, **saved)

    def saved(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return asdict(self)

    def of_section(self, section: str) -> list[Row]:
        """The rows of a section."""
        return [row for row in self.rows if row.section == section]


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table of a section, headings first; a column for every contender that is there."""
    found = {name for row in rows for name in (*row.seconds, *row.failed)}
    order = [OURS, EAGER, COMPILED]
    names = [name for name in order if name in found] + sorted(found.difference(order))
    remembered = any(row.bytes for row in rows)
    limited = any(row.share is not None for row in rows)
    head = ["case", "pass", *(f"{name}, ms" for name in names)]
    head += ["MiB, heed / eager"] * remembered + ["of the limit"] * limited + ["served by", "aim"]
    lines = [head]
    for row in rows:
        line = [
            ", ".join(filter(None, (row.case, row.dtype))),
            row.way,
            *(_time(row, name) for name in names),
        ]
        line += [_memory(row)] * remembered
        line += ["" if row.share is None else f"{row.share:.0%}"] * limited
        lines.append([*line, row.kernel, _aims(row)])
    return lines


def _time(row: Row, name: str) -> str:
    if name in row.failed:
        return row.failed[name]
    if name not in row.seconds:
        return ""
    time = short(1e3 * row.seconds[name])
    alone = name == OURS or OURS not in row.seconds
    return time if alone else f"{time} ({short(row.ratio(name))}×)"


def short(x: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def _memory(row: Row) -> str:
    def mib(name: str) -> str:
        return short(row.bytes[name] / 2**20) if name in row.bytes else "–"

    return f"{mib(OURS)} / {mib(EAGER)}" if row.bytes else ""


def _aims(row: Row) -> str:
    return ", ".join(f"{said}: {'met' if met else 'MISSED'}" for said, met in row.targets)


def printed(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    lines = cells(rows)
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(report: Report) -> str:
    """Every section of a report, as Markdown."""
    parts = [f"Measured on {report.machine}."]
    for section, heading in HEADINGS.items():
        rows = report.of_section(section)
        if rows:
            parts += [f"### {heading}", markdown_table(cells(rows), words=2)]
            said = [f"- {note}" for note in report.notes.get(section, [])]
            parts += ["\n".join(said)] if said else []
    return "\n\n".join(parts)


def write(report: Report, folder: Path = DOCS) -> None:
    """Put the tables and pictures of a device into performance.md, the rest of it kept."""
    pictures = []
    for name, (about, svg) in charts(report).items():
        file = folder / f"performance-{report.device}-{name}.svg"
        file.write_text(svg, encoding="utf-8")
        pictures.append(f"![{about}]({file.name})")
    body = "\n\n".join([markdown(report), *pictures])
    put(folder / "performance.md", report.device, "benchmarks/attention.py", body)


def charts(report: Report) -> dict[str, tuple[str, str]]:
    """Pictures by name: what each is about, and the text of its SVG file."""
    made = {"speed": _speed(report), "length": _length(report)}
    return {name: picture for name, picture in made.items() if picture is not None}


def _speed(report: Report) -> tuple[str, str] | None:
    """How many times faster than plain PyTorch additive attention and predicted windows are."""
    from heed.viewing.chart import BarChart, Bars

    found: dict[str, dict[str, float]] = {}
    for row in report.rows:
        shown = row.section == "additive" or row.case.startswith("local-p, places")
        for rival in (EAGER, COMPILED) if shown and row.way in (FORWARD, BOTH) else ():
            if {OURS, rival} <= row.seconds.keys():
                short = "compiled" if rival == COMPILED else rival
                way = f"{short} + backward" if row.way == BOTH else short
                found.setdefault(_label(row), {})[way] = row.ratio(rival)
    if not found:
        return None
    names = sorted({name for ratios in found.values() for name in ratios})
    bars = [Bars(name, [ratios.get(name, math.nan) for ratios in found.values()]) for name in names]
    title = "How many times faster than plain PyTorch"
    return title, BarChart(title, list(found), bars, unit="times").svg()


def _label(row: Row) -> str:
    """A case in few letters: 8×4096²×128 where T = S."""
    name = re.sub(r" × (\d+) × \1 × ", r"×\1²×", row.case).replace(" × ", "×")
    name = name.partition(", ±")[0].replace(", places", "").replace(" the text:", "")
    name = name.replace("anywhere:", "anywhere")
    name = name.replace("a step of decoding:", "step").replace(", causal", " causal")
    return name if row.dtype != "fp32" else f"{name} fp32"


def _length(report: Report) -> tuple[str, str] | None:
    """Time for each query as texts grow longer: a level line is linear time."""
    from heed.viewing.chart import Line, LineChart

    lines = []
    for name in ("fixed-window", "expanded-window"):
        rows = [r for r in report.rows if r.case.startswith(name) and r.way == FORWARD]
        for contender in (OURS, "SDPA, no window") if name == "fixed-window" else (OURS,):
            known = [(r, float(r.case.split(" × ")[2])) for r in rows if contender in r.seconds]
            each = [1e6 * row.seconds[contender] / T for row, T in known]
            label = f"{name}, heed" if contender == OURS else contender
            lines.append(Line(label, [math.log2(T) for _, T in known], each))
    if not any(line.x for line in lines):
        return None
    places = sorted({x for line in lines for x in line.x})
    ticks = [(x, f"{2**x / 1024:g}k") for x in places]
    title = "Time per query as texts grow longer"
    return title, LineChart(title, lines, x="T", y="µs", ticks=ticks, low=0).svg()
