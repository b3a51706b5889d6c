"""What a translation looked at: alignments, every head, and quality over length, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.tasks.translate import Scores
from heed.tasks.translator import Example, Translation, Translator
from heed.viewing.blocks import Column, Table
from heed.viewing.blocks import Example as Block
from heed.viewing.chart import Line, LineChart
from heed.viewing.panels import Panel
from heed.viewing.terminal import HeatMap

CURVES = 6  # lines of a chart that can be told apart


@dataclass(frozen=True, slots=True)
class Shown:
    """A translation, the reference where there is one, and every head of every attention."""

    translation: Translation
    reference: str = ""
    heads: Sequence[Panel] = ()

    @property
    def source(self) -> str:
        """What was translated."""
        return self.translation.source

    @property
    def text(self) -> str:
        """The translation."""
        return self.translation.text

    @property
    def panel(self) -> Panel | None:
        """The alignment."""
        return alignment(self.translation)

    @property
    def panels(self) -> list[Panel]:
        """The alignment, and the heads."""
        return [*([] if self.panel is None else [self.panel]), *self.heads]

    def drawn(self) -> list[HeatMap]:
        """As a terminal shows it."""
        return [HeatMap(panel) for panel in self.panels]

    def block(self, note: str = "") -> Block:
        """As a page shows it."""
        return Block(self.source, self.text, self.reference, self.panels, note)


@dataclass(frozen=True, slots=True)
class Answer:
    """The translations of a line, best first.

    best  how many were asked for; what a line has fewer of is left blank
    """

    found: list[Translation]
    best: int = 1

    def line(self) -> str:
        """With tabs between them."""
        texts = [each.text for each in self.found]
        return "\t".join(texts + [""] * (self.best - len(texts)))

    def as_data(self) -> dict[str, Any]:
        """As JSON has them."""
        answers = [{"text": each.text, "log_prob": each.log_prob} for each in self.found]
        return {"source": self.found[0].source, "answers": answers}

    def shown(self) -> Shown:
        """The best, with what was looked at."""
        return Shown(self.found[0])


def alignment(translation: Translation, title: str = "alignment") -> Panel | None:
    """Source across, target down; None without attention, or where nothing was written."""
    if translation.weight is None or not translation.rows:
        return None
    return Panel.of(title, translation.weight, translation.rows, translation.columns)


def heads(translator: Translator, translation: Translation) -> list[Panel]:
    """Every head of every attention while a translation is read again, its end included."""
    if not translation.source.strip():
        return []
    seen, sources, _ = translator.look([Example(translation.source, translation.text)])
    vocabulary = translator.vocabulary
    ids = vocabulary.source.encode([translation.source])[0][: int(sources[0])]
    across = vocabulary.source.pieces(ids, translation.source)
    down = vocabulary.target.pieces(vocabulary.target.encode([translation.text])[0])
    return [
        Panel.of(
            f"{path} · head {h}" if record.weight.shape[1] > 1 else path,
            weight,
            across if path.startswith("encoder") else down,
            down if path.startswith("decoder") and path.endswith("self") else across,
        )
        for path, record in seen.items()
        for h, weight in enumerate(record.weight[0].float().cpu().numpy())
    ]


def by_length(scores: Mapping[str, Mapping[str, Scores]], title: str = "") -> LineChart:
    """BLEU over the length of the source, a line for each model.

    scores  by model and part; a longer part follows the test. Of a range that two parts share,
            the one with more pairs counts
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
    """What can be told apart: the best on the longest sentences, and the one without attention."""
    if len(curve.lines) <= CURVES or not curve.ticks:
        return curve
    plain = [line for line in curve.lines if line.name == "none"]
    best = sorted((line for line in curve.lines if line not in plain), key=lambda line: -line.y[-1])
    lines = [*best[: CURVES - len(plain)], *plain]
    return replace(curve, title="The best on the longest sentences", lines=lines)
