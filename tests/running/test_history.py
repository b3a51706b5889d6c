"""The history of a run, from its journal and its samples, which may be anybody's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from heed.errors import Refused
from heed.running import history as room
from heed.running.history import history
from heed.viewing.image import svg
from heed.viewing.panels import Panel
from tests.running import labelling, writing


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(writing.written(tmp_path_factory), tmp_path / "run")
    return tmp_path / "run"


def tell(run: Path, *entries: dict[str, object]) -> None:
    lines = [json.dumps({"time": 0.0, **entry}) + "\n" for entry in entries]
    (run / "metrics.jsonl").write_text("".join(lines), "utf-8")


def test_a_run_has_lines_and_maps(run: Path) -> None:
    found = history(run)
    titles = [chart.title for chart in found.charts]
    assert titles == [
        "validation loss",
        "entropy of decoder.attention",
        "sharpness of decoder.attention",
    ]
    (moment,) = found.moments
    assert moment.step == 60
    assert moment.text.startswith("source")
    panel = moment.panels[0]
    assert panel.weight.sum(1) == pytest.approx(1, abs=0.01)


def test_a_classifier_has_the_words_it_weighed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (moment,) = history(labelling.labelled(tmp_path_factory)).moments
    assert len(moment.panels) == 5
    first = moment.panels[0]
    assert first.columns[:4] == ("the", "film", "is", "good")
    assert first.rows == ("liked",)  # its label
    assert first.title == "the film is good ."
    assert first.weight.sum() == pytest.approx(1, abs=0.01)


def test_validation_scores_are_listed_beside_the_loss(run: Path) -> None:
    tell(
        run,
        {"step": 1, "valid/loss": 2.0, "valid/accuracy": 50.0, "valid/macro_f1": 40.0},
        {"step": 2, "valid/loss": 2.1, "valid/accuracy": 75.0, "valid/macro_f1": 60.0},
    )
    found = history(run)
    loss, scores = found.charts
    assert (loss.title, scores.title, scores.y) == ("validation loss", "validation scores", "%")
    told = {line.name: (list(line.x), list(line.y)) for line in scores.lines}
    assert told == {"accuracy": ([1, 2], [50.0, 75.0]), "macro-F1": ([1, 2], [40.0, 60.0])}
    assert found.note == "This model has no attention; the charts show its loss and scores."
    tell(run, {"step": 1, "valid/follows_accuracy": 50.0})
    assert [chart.title for chart in history(run).charts] == ["validation next sentence"]


def test_every_form_of_the_journal_is_read(run: Path) -> None:
    tell(
        run,
        {"step": 1, "train/loss": 9.0, "valid/attention/0.self": 2.0},
        {"step": 1, "valid/attention/0.self": 1.5, "valid/attention/a/entropy": 1.0},
        {"step": 2, "valid/attention/0.self": None, "valid/attention/a/entropy": "x"},
        {"step": 3, "valid/attention/0.self": 0.5, "valid/attention/a/entropy": True},
        {"step": 4, "valid/attention/0.self": 10**400, "valid/attention/a/entropy": float("nan")},
        {"step": 10**400, "valid/attention/0.self": 1.0},
    )
    (chart,) = history(run).charts
    own, other = chart.lines
    assert (own.name, list(own.x), list(own.y)) == ("layer 0 self", [1, 3], [1.5, 0.5])
    assert (other.name, list(other.x), list(other.y)) == ("a", [1], [1.0])


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["0.content", "1.content"], ["layer 0", "layer 1"]),  # XLNet
        (["0.content", "1.content", "pool"], ["layer 0 content", "layer 1 content", "pool"]),
        (["0.self", "1.self"], ["layer 0", "layer 1"]),
        (["encoder.0.self", "decoder.0.cross"], ["encoder 0 self", "decoder 0 cross"]),
    ],
)
def test_curves_have_names_to_read(run: Path, paths: list[str], names: list[str]) -> None:
    tell(run, {"step": 1} | {f"valid/attention/{path}/entropy": 1.0 for path in paths})
    (chart,) = history(run).charts
    assert [line.name for line in chart.lines] == names
    tell(run, {"step": 1, "valid/attention/0.content/entropy": 1.0})
    assert history(run).charts[0].title == "entropy of layer 0"


def test_many_attentions_take_several_charts(run: Path) -> None:
    tell(run, {"step": 1} | {f"valid/attention/{n}/entropy": 1.0 for n in range(8)})
    charts = history(run).charts
    assert [(chart.title, len(chart.lines)) for chart in charts] == [
        ("entropy of attention (1)", 6),
        ("entropy of attention (2)", 2),
    ]


def test_hostile_samples_do_no_harm(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "samples")
    (run / "samples").mkdir()
    drawn = svg(Panel.of("p", [[1.0]], ["<script>"], ["b"]))
    (run / "samples" / "step-0000002.svg").write_text(drawn)
    (run / "samples" / "step-0000001.svg").write_text("<svg onload='alert(1)'/>")
    (run / "samples" / "step-0000003.txt").write_bytes(b"\xff\xfe")
    (run / "samples" / "step-x.svg").write_text(drawn)
    (tmp_path / "secret.txt").write_text("secret")
    (run / "samples" / "step-0000004.txt").symlink_to(tmp_path / "secret.txt")
    found = history(run)
    assert [moment.step for moment in found.moments] == [2]
    html = found.page().html()
    assert "secret" not in html
    assert "onload" not in html


def test_of_many_moments_the_first_and_last_are_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST", 3)
    for step in range(1, 10):
        (run / "samples" / f"step-{step:07d}.txt").write_text("said")
    assert [moment.step for moment in history(run).moments] == [1, 5, 60]


def test_a_run_that_never_validated_is_refused(run: Path) -> None:
    tell(run, {"step": 1, "train/loss": 2.0})
    with pytest.raises(Refused, match="not validated once"):
        history(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(Refused, match="not validated once"):
        history(run)


def test_a_pretrained_folder_has_no_history(tmp_path: Path) -> None:
    """It will never have one, while a run that has just begun will."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(Refused, match=r"is a pretrained model, not a run of heed: .* no training"):
        history(tmp_path)
