"""Classify: from labelled texts to a model that says what a text is.

    a stirring , funny and finally transporting film  ->  positive

Data     Labelled texts from files (`data/labelled.py`). Where there is one file only, a share of it
         is held out, chosen by the texts alone. Tokenisers are trained on the training texts, or
         come with the weights that training starts from.
Model    `models/classifier.py`: a BiLSTM, filters, BERT or XLNet, and a static attention or another
         pool.
Judged   Accuracy, macro-F1, precision and recall of each label, what is taken for what.
A good run  The recipe `sst2` gets 82 % of the test right in two minutes; docs/results.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from heed.data.held_out import Held, HeldOut, Part, check, without_files
from heed.data.labelled import Labelled, LabelledFiles, TextReport, fits_a_line, read_labelled
from heed.data.tokenise import Kind
from heed.errors import Refused
from heed.settings import Settings
from heed.tasks.labeller import Judgement


class Tokens(Settings):
    """How text is cut into symbols."""

    kind: Kind = "word"
    size: int = Field(20_000, ge=16, le=1_000_000, description="Symbols in the vocabulary.")
    lowercase: bool = True
    least: int = Field(1, ge=1, le=1_000_000, description="Rarer words are all one: unknown.")


class Data(Settings):
    """Where the texts come from."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: LabelledFiles
    valid: LabelledFiles | None = None
    test: LabelledFiles | None = None
    held_out: Held = HeldOut()
    names: dict[str, str] = Field(
        default_factory=dict, max_length=1000, description="What labels of the files are called."
    )
    tokens: Tokens = Tokens()
    longest: int = Field(256, ge=4, le=100_000, description="Longer texts (in symbols) are cut.")

    @model_validator(mode="before")
    @classmethod
    def _shares(cls, given: Any) -> Any:
        return without_files(given)

    @model_validator(mode="after")
    def _judged_by_something(self) -> Data:
        check(self.held_out, valid=self.valid, test=self.test, what="texts", share=0.1)
        if len(set(self.names.values())) != len(self.names):
            raise ValueError("data.names has one name for two labels")
        odd = next((name for name in self.names.values() if not fits_a_line(name)), None)
        if odd is not None:
            raise ValueError(f"data.names: {odd!r} has a tab, a line's end or the like")
        return self

    def parts(self) -> list[Part]:
        """The parts that there are beside the training texts."""
        return ["valid", "test"] if self.test or self.held_out.test else ["valid"]


def examples(
    data: Data, part: Part, root: Path, report: TextReport, labels: Sequence[str] | None = None
) -> Iterator[Labelled]:
    """The texts of one part; what is read, kept and dropped is counted in the report.

    labels  those of the training texts, by name: any other is refused, with its line
    """
    own: LabelledFiles | None = getattr(data, part)
    files = (own or data.train).under(root / data.folder)
    known = None if labels is None else _known(data.names, labels)
    only = data.held_out.only(part) if own is None or part == "train" else None
    key = f"data.{'train' if own is None else part}"
    named: dict[str, Any] = {"labels": known, "options": (f"{key}.text", f"{key}.label")}
    for row in read_labelled(files, only=only, report=report, **named):
        yield row._replace(label=data.names.get(row.label, row.label))
    if not report.kept:
        data.held_out.lacks(part, report)


def check_names(names: Mapping[str, str], labels: Sequence[str]) -> None:
    """Refuse names that were meant for labels of other texts."""
    odd = [f"'{label}' ({name})" for label, name in names.items() if name not in labels]
    if odd:
        raise Refused(
            f"data.names: no training text has the label {odd[0]}{' and others' * (len(odd) > 1)}"
            f"; there are {', '.join(labels[:10])}{' and more' * (len(labels) > 10)}: "
            "data.names={} takes them as they stand"
        )


def _known(names: Mapping[str, str], labels: Sequence[str]) -> dict[str, str]:
    """Labels as files may have them, by code or already by name, and what they are called."""
    return {name: name for name in labels} | {
        label: name for label, name in names.items() if name in labels
    }


@dataclass(frozen=True, slots=True)
class LabelScores:
    """How well one label is recognised: precision of the texts that got it, recall of its own."""

    label: str
    texts: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class Scores:
    """How good the labels are."""

    texts: int
    accuracy: float  # per cent
    macro_f1: float  # per cent; the mean over labels that occur or were given
    loss: float  # nats per text
    by_label: list[LabelScores]
    labels: list[str]
    confusion: list[list[int]]  # how many texts of each label (rows) got which (columns)
    cut: int  # texts that were too long to be read to their end

    def line(self) -> str:
        """The scores in one line."""
        return (
            f"accuracy {self.accuracy:.2f} % · macro-F1 {self.macro_f1:.2f} · loss {self.loss:.4f}"
        )


def judged(
    rows: Sequence[Labelled], said: Sequence[Judgement], labels: Sequence[str], loss: float
) -> Scores:
    """The scores of what the model said of the texts."""
    numbers = {label: c for c, label in enumerate(labels)}
    confusion = [[0] * len(labels) for _ in labels]
    for row, judgement in zip(rows, said, strict=True):
        confusion[numbers[row.label]][numbers[judgement.label]] += 1
    by_label = [_label_scores(label, c, confusion) for label, c in numbers.items()]
    given = [sum(row[c] for row in confusion) for c in range(len(labels))]
    present = [each for each, n in zip(by_label, given, strict=True) if each.texts or n]
    right = sum(confusion[c][c] for c in range(len(labels)))
    return Scores(
        len(rows),
        100 * right / max(1, len(rows)),
        100 * sum(each.f1 for each in present) / max(1, len(present)),
        loss,
        by_label,
        list(labels),
        confusion,
        sum(each.cut for each in said),
    )


def _label_scores(label: str, c: int, confusion: list[list[int]]) -> LabelScores:
    right, texts, given = confusion[c][c], sum(confusion[c]), sum(row[c] for row in confusion)
    precision, recall = right / max(1, given), right / max(1, texts)
    f1 = 2 * right / max(1, texts + given)
    return LabelScores(label, texts, precision, recall, f1)
