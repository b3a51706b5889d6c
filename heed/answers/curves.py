"""Quality by the length of the input: a line for each model, as a chart and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heed.viewing.blocks import Column, Table
from heed.viewing.chart import Line, LineChart

CURVES = 6  # lines of a chart that can be told apart


def by_length(scores: Mapping[str, Mapping[str, Any]], title: str = "") -> LineChart:
    """BLEU by the length of the source, a line for each model.

    scores  by model and part; a longer part follows the test. If two parts share a range, the one
            with more pairs counts
    """
    curves: dict[str, dict[str, float]] = {}
    for name, parts in scores.items():
        ranges = [each for part in parts.values() for each in part.by_length]
        most = {label: max(n for other, n, _ in ranges if other == label) for label, *_ in ranges}
        curves[name] = {label: bleu for label, n, bleu in ranges if n == most[label]}
    labels = list(dict.fromkeys(label for curve in curves.values() for label in curve))
    return LineChart(
        title or "BLEU by sentence length",
        [
            Line(
                name,
                [float(i) for i, label in enumerate(labels) if label in curve],
                [curve[label] for label in labels if label in curve],
            )
            for name, curve in curves.items()
        ],
        x="source words",
        y="BLEU",
        ticks=[(float(i), label) for i, label in enumerate(labels)],
        low=0.0,
    )


def lengths(curve: LineChart) -> Table:
    """Every line of the curve as a row."""
    columns = [Column(label, ".1f", "high") for _, label in curve.ticks]
    places = [x for x, _ in curve.ticks]
    rows = [
        [line.name, *map(dict(zip(line.x, line.y, strict=True)).get, places)]
        for line in curve.lines
    ]
    return Table([Column("mechanism"), *columns], rows)


def few(curve: LineChart) -> LineChart:
    """As many lines as can be told apart: the best on the longest sentences, and "none"."""
    if len(curve.lines) <= CURVES or not curve.ticks:
        return curve
    plain = [line for line in curve.lines if line.name == "none"]
    best = sorted((line for line in curve.lines if line not in plain), key=lambda line: -line.y[-1])
    lines = [*best[: CURVES - len(plain)], *plain]
    return replace(curve, title="The best on the longest sentences", lines=lines)
