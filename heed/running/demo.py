"""The demo: training and translation from end to end, on the built-in corpus, in a minute or two.

Two models learn to translate Chinese to English from the same sentences: one with attention, and
one that encodes every sentence in a single vector. The difference shows on long sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from heed.answers.text_scores import by_length
from heed.errors import Refused
from heed.events import Event, Progress, Work, relayed
from heed.running.recipe import load, overridden, resolve, with_attention
from heed.running.showing import show
from heed.running.train import Trained, train
from heed.viewing.chart import LineChart
from heed.viewing.looking import Look
from heed.viewing.page import Charts, Column, Examples, Heading, Page, Paragraph, Table

SENTENCES = {
    "我 爱 中国": "i love china",
    # Time and place come before the verb in Chinese, and after it in English.
    "她 上周 在 北京 买 了 五 本 书": "she bought five books in beijing last week",
    # A relative clause comes before its noun in Chinese, and after it in English.
    "我们 昨天 在 图书馆 看 的 电影 很 有趣": (
        "the film that we watched in the library yesterday is very interesting"
    ),
}
"""The demo's sentences, with the grammar's translations; no model trains on the longer two."""

PICTURED = len(SENTENCES) - 1  # the sentence with the longest reordering

REFERENCE = "Reference"  # the fact that has the right translation

LEAST = 90.0  # BLEU on new sentences; below it the training has failed


@dataclass(frozen=True, slots=True)
class Demo:
    """The result of the demo."""

    attention: str
    recipe: Any
    trained: dict[str, Trained]  # by the name of the model: the attention's, and "none"
    shown: list[Look]
    page: Path

    @property
    def bleu(self) -> float:
        """BLEU of the model with attention, on new sentences of the lengths it trained on."""
        return float(self.trained[self.attention].scores["test"].bleu)

    @property
    def chart(self) -> LineChart:
        """BLEU by sentence length, with and without attention."""
        longest = _drawn(self.recipe).longest
        return by_length(
            {label(name): each.scores for name, each in self.trained.items()},
            f"BLEU by sentence length; trained on up to {longest} words",
        )

    def summary(self) -> str:
        """A summary of the demo, in a few sentences."""
        drawn = _drawn(self.recipe)
        return (
            f"Two small networks learnt to translate from the same {drawn.pairs:,} pairs of "
            f"sentences, {drawn.shortest} to {drawn.longest} Chinese words long. One attends to "
            "all source words at each step; the other has one vector for the whole sentence."
        )


def _drawn(recipe: Any) -> Any:
    if recipe.data.grammar is None:
        raise Refused("the demo generates its sentences; to train on files: heed train")
    return recipe.data.grammar


def label(name: str) -> str:
    """The name of a model on the page."""
    return "one fixed vector" if name == "none" else f"{name} attention"


def reference(shown: Look) -> str:
    """The right translation."""
    return dict(shown.facts)[REFERENCE]


def right(shown: Look) -> bool:
    """Whether the translation is the reference, word for word."""
    return shown.text == reference(shown)


def demo(
    attention: str = "additive",
    folder: Path = Path("runs/demo"),
    overrides: Sequence[str] = (),
    *,
    device: str = "cpu",
) -> Work[Demo]:
    """Train with and without attention, translate, write the page."""
    if attention == "none":
        raise Refused("the demo compares an attention with none; name one, such as additive")
    raw = overridden(load("demo"), overrides)
    recipes = {name: resolve(with_attention(raw, name)) for name in (attention, "none")}
    _drawn(recipes[attention])
    trained: dict[str, Trained] = {}
    for name, recipe in recipes.items():
        work = train(recipe, folder / name.replace("/", "+"), overwrite=True, device=device)
        trained[name] = yield from relayed(work, partial(_named, name=label(name)))
    shown = translated(trained[attention].folder, device)
    result = Demo(attention, recipes[attention], trained, shown, folder / "page.html")
    page(result).write(result.page)
    return result


def _named(event: Event, name: str) -> Event | None:
    """The same event, with the training stage named by the model; notes are left out."""
    if not isinstance(event, Progress):
        return None
    return replace(event, stage=name) if event.stage == "training" else event


def translated(run: Path, device: str) -> list[Look]:
    """The demo's own sentences, and a few that the run keeps for its test."""
    own = show(run, list(SENTENCES), device=device)
    own = [replace(each, facts=[*each.facts, (REFERENCE, SENTENCES[each.source])]) for each in own]
    return own + show(run, device=device)


COLUMNS = (
    Column("attention"),
    Column("BLEU", ".1f", "high"),
    Column("BLEU, longer", ".1f", "high"),
    Column("AER", ".3f", "low"),
    Column("perplexity", ".2f", "low"),
    Column("parameters", ",d"),
    Column("seconds", ".0f"),
)


def rows(result: Demo) -> list[list[Any]]:
    """A row for each model, its values in COLUMNS."""
    table = []
    for name, each in result.trained.items():
        test, far = each.scores["test"], each.scores.get("long")
        figures = [test.bleu, far.bleu if far else None, test.aer, test.perplexity]
        table.append([name, *figures, each.parameters, each.seconds])
    return table


def legend(result: Demo) -> str:
    """A legend for the table's columns."""
    drawn = _drawn(result.recipe)
    longer = f"; longer: of {drawn.longest + 1} to {drawn.beyond} words" if drawn.beyond else ""
    scores = result.trained[result.attention].scores["test"]
    return (
        f"BLEU: on {drawn.held_out} new sentences of {drawn.shortest} to {drawn.longest} words"
        f"{longer} ({scores.bleu_signature}). "
        "AER: alignment error rate of the attention, from 0 (best) to 1."
    )


def page(result: Demo) -> Page:
    """The whole result on one page."""
    return Page(
        "Translation with and without attention",
        [
            Paragraph(result.summary()),
            Table(COLUMNS, rows(result)),
            Paragraph(legend(result)),
            Charts([result.chart]),
            Heading("Alignments"),
            Examples([each.block() for each in result.shown]),
        ],
    )
