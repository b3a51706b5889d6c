"""Showing: what a model looked at while it wrote, as panels and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from heed.errors import Refused
from heed.running.devices import chosen
from heed.running.opening import Run, open_run
from heed.running.preparing import kept
from heed.tasks.translate import Scores
from heed.tasks.translator import Example, Translation
from heed.viewing import page as pages
from heed.viewing.chart import Line, LineChart
from heed.viewing.page import Page
from heed.viewing.panels import Panel

FEW = 5  # examples that are shown when no input is given


@dataclass(frozen=True, slots=True)
class Shown:
    """A translation, the reference where there is one, and every head of every attention."""

    translation: Translation
    reference: str = ""
    heads: Sequence[Panel] = ()

    @property
    def panel(self) -> Panel | None:
        """The alignment."""
        return panel(self.translation)

    def block(self, note: str = "") -> pages.Example:
        """As a page shows it."""
        source, text = self.translation.source, self.translation.text
        panels = [self.panel] if self.panel is not None else []
        return pages.Example(source, text, self.reference, [*panels, *self.heads], note)


def panel(translation: Translation, title: str = "alignment") -> Panel | None:
    """Source across, target down; None without attention, or where nothing was written."""
    if translation.weight is None or not translation.rows:
        return None
    return Panel.of(title, translation.weight, translation.rows, translation.columns)


def show(
    path: Path, sentences: Sequence[str] = (), *, every: bool = False, device: str = "auto"
) -> list[Shown]:
    """Translations of sentences, or of a few pairs that the run keeps, with their attention.

    every  each head of each attention too, while what was written is read again
    """
    run = open_run(path, chosen(device))
    pairs = [Example(sentence, "") for sentence in sentences] or examples_of(run)
    sources = [pair.source for pair in pairs]
    found = run.translator.translate(sources, run.config.decoding, look=True)
    return [
        Shown(best[0], pair.target, heads(run, best[0]) if every else ())
        for pair, best in zip(pairs, found, strict=True)
    ]


def examples_of(run: Run, count: int = FEW) -> list[Example]:
    """The first few pairs that the run keeps for tests, or else for validation."""
    for part in ("test", "valid"):
        if (run.folder.examples / f"{part}.jsonl").is_file():
            return list(islice(kept(run.folder, part), count))
    raise Refused(f"{run.folder.path} keeps no examples; give a sentence")


def heads(run: Run, translation: Translation) -> list[Panel]:
    """Every head of every attention while a translation is read again, its end included."""
    if not translation.source.strip():
        return []
    seen, sources, _ = run.translator.look([Example(translation.source, translation.text)])
    vocabulary = run.translator.vocabulary
    ids = vocabulary.source.encode([translation.source])[0][: int(sources[0])]
    across = vocabulary.source.pieces(ids)
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


def page(title: str, shown: Sequence[Shown]) -> Page:
    """A page with every translation and its alignment."""
    return Page(title, [pages.Examples([each.block() for each in shown])])


def by_length(scores: dict[str, dict[str, Scores]], title: str = "") -> LineChart:
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
