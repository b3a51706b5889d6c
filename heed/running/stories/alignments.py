"""Pictures of translations: alignments, every head, and quality by sentence length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.data.tokenise import BOS
from heed.tasks.cutting import labels
from heed.tasks.looking import looked
from heed.tasks.translate import Scores
from heed.tasks.translator import Example, Translation, Translator
from heed.viewing.atlas import Kind, Take
from heed.viewing.blocks import Column, Table
from heed.viewing.blocks import Example as Block
from heed.viewing.chart import Line, LineChart
from heed.viewing.looking import Look
from heed.viewing.panels import Panel
from heed.viewing.taking import layers
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
        """The source."""
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
        """What a terminal shows."""
        return [HeatMap(panel) for panel in self.panels]

    def block(self, note: str = "") -> Block:
        """What a page shows."""
        return Block(self.source, self.text, self.reference, self.panels, note)


@dataclass(frozen=True, slots=True)
class Answer:
    """The translations of a line, best first.

    best  the number of translations requested; missing ones are left blank
    """

    found: list[Translation]
    best: int = 1

    def line(self) -> str:
        """The texts in one line, with tabs between them."""
        texts = [each.text for each in self.found]
        return "\t".join(texts + [""] * (self.best - len(texts)))

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        answers = [{"text": each.text, "log_prob": each.log_prob} for each in self.found]
        return {"source": self.found[0].source, "answers": answers}

    def shown(self) -> Shown:
        """The best translation, with its alignment."""
        return Shown(self.found[0])


def alignment(translation: Translation, title: str = "alignment") -> Panel | None:
    """Source across, target down; None without attention or without output."""
    if translation.weight is None or not translation.rows:
        return None
    return Panel.of(title, translation.weight, translation.rows, translation.columns)


def heads(translator: Translator, translation: Translation) -> list[Panel]:
    """Every head of every attention while a translation is read again, its end included."""
    if not translation.source.strip():
        return []
    seen, *_ = translator.look([Example(translation.source, translation.text)])
    words = words_of(translator, translation)
    return [
        Panel.of(f"{path} · head {h}" if record.weight.shape[1] > 1 else path, weight, *words(path))
        for path, record in seen.items()
        for h, weight in enumerate(record.weight[0].float().cpu().numpy())
    ]


def words_of(
    translator: Translator, translation: Translation
) -> Callable[[str], tuple[list[str], list[str]]]:
    """The words of an attention's queries, and those of its keys, by its path.

    A row of the decoder is the step that chooses a word: it cannot attend to that word, only to
    those before it.
    """
    across, target = translation.columns, translator.vocabulary.target
    ids = target.encode([translation.text])[0][: translator.writes]
    down, before = labels(target, ids), labels(target, [BOS, *ids[:-1]])

    def words(path: str) -> tuple[list[str], list[str]]:
        if path.startswith("encoder"):
            return across, across
        return down, before if _kind(path) == "self" else across

    return words


def _kind(path: str) -> Kind:
    """The kind of an attention, by its path among a model's modules or in its records."""
    inside = path.endswith("self") or (".layers." in path and not path.endswith("cross"))
    return "self" if inside or path.startswith("encoder") else "cross"


def take(translator: Translator, translation: Translation, name: str = "") -> list[Take]:
    """The maps of every attention while a translation is read again; none without attention."""
    if not translation.source.strip():
        return []
    pair = [Example(translation.source, translation.text)]
    _, seen = looked(translator.model, lambda: translator.read(pair, look=False))
    words = words_of(translator, translation)
    kinds: dict[str, Kind] = {path: _kind(path) for path in seen}
    found = list(layers(seen, words, kinds=kinds).values())
    crossing = [n for n, layer in enumerate(found) if layer.kind == "cross"]
    chosen = getattr(translator.model.decoder, "alignment_layer", -1)
    opens = crossing[chosen] if crossing else None
    return (
        [Take(name, found, score=translation.log_prob, written=True, opens=opens)] if found else []
    )


def look(
    translator: Translator, found: Sequence[Translation], reference: str, given: Sequence[str] = ()
) -> Look:
    """Translations of one sentence, best first, with the attention for each.

    given  translations by another model: the attention is shown for these instead
    """
    best = found[0]
    read = [replace(best, text=text, log_prob=math.nan) for text in given] or found
    takes = [
        one
        for n, each in enumerate(read, 1)
        for one in take(translator, each, f"{n} · {each.text}" if len(read) > 1 else "")
    ]
    # The explorer opens with the alignment: a second, smaller map above it would be redundant.
    facts = [("Source", best.source), ("Translation", best.text)]
    facts += [("Reference", reference)] if reference else []
    return Look(best.source, best.text, takes, facts, readings=[each.text for each in found])


def by_length(scores: Mapping[str, Mapping[str, Scores]], title: str = "") -> LineChart:
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
