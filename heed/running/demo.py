"""The demo: the main job from end to end, on the built-in corpus, in a minute or two.

Two models learn to translate Chinese to English from the same sentences: one with attention, and
one that has to press every sentence into a single vector. What that costs shows on long sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.running.events import Progress, Work
from heed.running.recipe import load, overridden, resolve, with_attention
from heed.running.showing import Shown, by_length, show
from heed.running.train import Trained, train
from heed.viewing.chart import LineChart
from heed.viewing.page import Charts, Column, Examples, Heading, Page, Paragraph, Table

SENTENCES = (
    "我 爱 中国",
    "她 昨天 在 北京 买 了 三 本 书",
)


@dataclass(frozen=True, slots=True)
class Demo:
    """What came of it."""

    attention: str
    trained: dict[str, Trained]  # by the name of the model: the attention's, and "none"
    shown: list[Shown]
    page: Path

    @property
    def chart(self) -> LineChart:
        """BLEU over the length of the sentence, with and without attention."""
        names = {"none": "a fixed vector"}
        return by_length(
            {names.get(name, name): each.scores for name, each in self.trained.items()}
        )


def demo(
    attention: str = "additive",
    folder: Path = Path("runs/demo"),
    overrides: Sequence[str] = (),
    *,
    device: str = "cpu",
) -> Work[Demo]:
    """Train with and without attention, translate, write the page."""
    raw = overridden(load("demo"), overrides)
    trained: dict[str, Trained] = {}
    for name in (attention, "none"):
        recipe = resolve(with_attention(raw, name))
        stage = "without attention" if name == "none" else f"with {name} attention"
        place = folder / name.replace("/", "+")
        work = train(recipe, place, overwrite=True, device=device)
        trained[name] = yield from _renamed(work, stage)
    shown = show(trained[attention].folder, SENTENCES, device=device)
    shown += show(trained[attention].folder, device=device)
    result = Demo(attention, trained, shown, folder / "page.html")
    page(result).write(result.page)
    return result


def _renamed(work: Work[Trained], stage: str) -> Work[Trained]:
    """Training under a name that tells the two apart; what each says beside is left out."""
    while True:
        try:
            event = next(work)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if isinstance(event, Progress) and event.stage == "training":
            yield Progress(stage, event.done, event.total, event.note)
        elif isinstance(event, Progress):
            yield event


COLUMNS = (
    Column("model"),
    Column("BLEU", ".1f", "high"),
    Column("BLEU, longer sentences", ".1f", "high"),
    Column("AER", ".3f", "low"),
    Column("perplexity", ".2f", "low"),
    Column("parameters", ",d"),
    Column("seconds", ".0f"),
)


def rows(result: Demo) -> list[list[Any]]:
    """As in COLUMNS, a row for each model."""
    table = []
    for name, each in result.trained.items():
        test, far = each.scores["test"], each.scores["long"]
        label = "without attention" if name == "none" else f"with {name} attention"
        figures = [test.bleu, far.bleu, test.aer, test.perplexity]
        table.append([label, *figures, each.parameters, each.seconds])
    return table


def page(result: Demo) -> Page:
    """All of it on one page."""
    return Page(
        "heed: what attention buys",
        [
            Paragraph(
                "Two small recurrent networks learnt to translate Chinese into English from the "
                "same sentences. One may look back at every source word while it writes; the "
                "other has to remember the whole sentence in one vector."
            ),
            Table(COLUMNS, rows(result)),
            Charts([result.chart]),
            Heading("Where it looked"),
            Examples([each.block() for each in result.shown]),
        ],
    )
