"""Classification: what is held out, what is refused, and scores by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from heed.answers.form import Example
from heed.answers.label import Judgement, Label
from heed.data.labelled import TextReport
from heed.errors import Refused
from heed.tasks.classify import TASK, Data
from heed.tasks.task import Codec

LABELS = Codec({}, Label(["bad", "good"]))
LINES = ["1\tfine film", "0\tdull film", "1\t ", "0\tpoor thing", "\tno label", "1\tlovely one"]


def data(folder: Path, **more: Any) -> Data:
    (folder / "train.tsv").write_text("".join(f"{line}\n" for line in LINES))
    given: dict[str, Any] = {"train": {"tsv": "train.tsv"}, "valid": {"tsv": "valid.tsv"}}
    return Data.model_validate({**given, "folder": str(folder), **more})


def test_blank_texts_are_counted_and_dropped(tmp_path: Path) -> None:
    report = TextReport()
    rows = list(TASK.examples(data(tmp_path, names={"1": "good"}), "train", tmp_path, report))
    assert [row.answer for row in rows] == ["good", "0", "0", "good"]
    assert str(report) == ("6 texts read = 4 kept + 2 dropped (1 blank text, 1 without a label)")


def test_a_label_not_seen_in_training_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("1\tfine\n2\twhat\n")
    given = data(tmp_path, names={"0": "bad", "1": "good"})
    with pytest.raises(
        Refused, match=r"valid\.tsv:2: the label '2' never occurs .* 0 \(bad\), 1 \(good\)$"
    ):
        list(TASK.examples(given, "valid", tmp_path, TextReport(), LABELS))


def test_texts_may_have_the_names_of_their_labels(tmp_path: Path) -> None:
    """As training accepts them: a ready recipe can be used with own files that name its codes."""
    (tmp_path / "valid.tsv").write_text("good\tfine\n0\twhat\n")
    given = data(tmp_path, names={"0": "bad", "1": "good", "2": "so so"})
    rows = TASK.examples(given, "valid", tmp_path, TextReport(), LABELS)
    assert [row.answer for row in rows] == ["good", "bad"]


def test_the_parts_of_one_file_are_disjoint(tmp_path: Path) -> None:
    """Blank texts too, so that all parts together are the file, line by line."""
    lines = [f"{n % 2}\tsentence {n}" for n in range(200)]
    given = data(tmp_path, valid=None, held_out={"valid": 0.2, "test": 0.2})
    (tmp_path / "train.tsv").write_text("".join(f"{line}\n" for line in [*lines, "", "1\t "]))
    parts, read = {}, 0
    for part in ("train", "valid", "test"):
        report = TextReport()
        parts[part] = [row.inputs[0] for row in TASK.examples(given, part, tmp_path, report)]  # type: ignore[arg-type]
        assert report.kept == len(parts[part]) > 0
        assert report.read == report.kept + sum(report.dropped.values())
        read += report.read
    assert read == 202
    shared = sorted(text for texts in parts.values() for text in texts)
    assert shared == sorted(line[2:] for line in lines)
    assert TASK.parts(given) == ["valid", "test"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"valid": None}, "hold some out"),
        ({"held_out": {"valid": 0.1}}, "nothing is held out"),
        ({"names": {"0": "a", "1": "a"}}, "one name for two"),
        ({"names": {"0": "a\tb"}}, "has a tab"),
        ({"held_out": {"test": 0.9}}, "less than or equal to 0.5"),
        ({"train": {}}, "error, give one of: tsv; csv; jsonl"),
        ({"tokens": {"kind": "words"}}, "Input should be"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=says):
        data(tmp_path, **given)


def test_scores_by_hand() -> None:
    """Five texts of a, two of b, none of c; c was predicted once."""
    right = ["a", "a", "a", "a", "a", "b", "b"]
    said = ["a", "a", "a", "b", "c", "b", "a"]
    worker: Any = SimpleNamespace(form=Label("abcd"), loss=lambda examples: 0.5)
    found = TASK.judged(
        worker,
        [Example((str(n),), label) for n, label in enumerate(right)],
        [Judgement(str(n), label, positions=1 + (n == 0), read=1) for n, label in enumerate(said)],
    )
    assert found.confusion == [[3, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert found.accuracy == pytest.approx(100 * 4 / 7)
    a, b, c, d = found.by_label
    assert (a.texts, a.precision, a.recall) == (5, 3 / 4, 3 / 5)
    assert a.f1 == pytest.approx(2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5))
    assert (b.precision, b.recall, b.f1) == (1 / 2, 1 / 2, 1 / 2)
    assert (c.precision, c.recall, c.f1) == (0, 0, 0) == (d.precision, d.recall, d.f1)
    assert found.macro_f1 == pytest.approx(100 * (a.f1 + b.f1 + 0) / 3)  # d never occurs
    assert (found.loss, found.cut, found.texts) == (0.5, 1, 7)
    assert found.line() == f"accuracy 57.14 % · macro-F1 {found.macro_f1:.2f} · loss 0.5000"
