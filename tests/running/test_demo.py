"""The demo, with a shortened training."""

from dataclasses import replace
from pathlib import Path

import pytest

from heed.answers.text_scores import EDGES
from heed.data import grammar
from heed.errors import Refused
from heed.events import Event, Progress
from heed.running.demo import COLUMNS, SENTENCES, Demo, demo, legend, reference, right, rows
from heed.running.recipe import load, resolve

SHORT = (
    "training.steps=2",
    "data.grammar.pairs=300",
    "data.grammar.longest=8",
    "data.grammar.beyond=12",
    "data.grammar.held_out=6",
    "model.hidden=16",
    "model.embedding=16",
    "training.log_every=1",
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[Event]]:
    work, events = demo(folder=tmp_path_factory.mktemp("demo"), overrides=SHORT), []
    while True:
        try:
            events.append(next(work))
        except StopIteration as stop:
            return stop.value, events


@pytest.fixture(scope="module")
def result(told: tuple[Demo, list[Event]]) -> Demo:
    return told[0]


def test_both_models_are_trained_under_names_of_their_own(told: tuple[Demo, list[Event]]) -> None:
    stages = [e.stage for e in told[1] if isinstance(e, Progress) and e.total == 2]
    assert stages == ["additive attention"] * 2 + ["one fixed vector"] * 2
    assert all(isinstance(event, Progress) for event in told[1])


def test_they_differ_only_in_the_attention(result: Demo) -> None:
    mine, other = (
        (each.folder / "recipe.yaml").read_text().splitlines() for each in result.trained.values()
    )
    different = [pair for pair in zip(mine, other, strict=True) if pair[0] != pair[1]]
    assert different == [("  attention: additive", "  attention: none")]
    examples = [each.folder / "examples" / "test.jsonl" for each in result.trained.values()]
    assert examples[0].read_bytes() == examples[1].read_bytes()


def test_sentences_come_with_their_references(result: Demo) -> None:
    own, kept = result.shown[: len(SENTENCES)], result.shown[len(SENTENCES) :]
    assert {each.source: reference(each) for each in own} == SENTENCES
    assert len(kept) == 5
    assert all(grammar.part_of(each.source) == "test" for each in kept)
    assert not right(own[0])  # two steps teach nothing
    learnt = replace(own[0], text="i love china")
    assert right(learnt)


def test_the_longer_sentences_are_new_to_the_model() -> None:
    short, *longer = SENTENCES
    assert short == "我 爱 中国"
    assert [grammar.part_of(source) for source in longer] == ["test", "test"]
    settings = resolve(load("demo")).data.grammar
    assert settings is not None
    assert all(settings.shortest <= len(s.split()) <= settings.longest for s in SENTENCES)
    sides = zip(*(each[:2] for each in grammar.draw(3000, longest=10)), strict=True)
    chinese, english = ({word for text in side for word in text} for side in sides)
    assert set(" ".join(SENTENCES).split()) <= chinese
    assert set(" ".join(SENTENCES.values()).split()) <= english


def test_trained_and_longer_sentences_are_in_different_bins() -> None:
    settings = resolve(load("demo")).data.grammar
    assert settings is not None
    assert settings.longest in EDGES
    assert settings.beyond in EDGES


def test_the_table_has_a_row_for_each_model(result: Demo) -> None:
    table = [dict(zip((c.name for c in COLUMNS), row, strict=True)) for row in rows(result)]
    assert [row["attention"] for row in table] == ["additive", "none"]
    assert table[0]["AER"] == result.trained["additive"].scores["test"].aer
    assert table[1]["AER"] is None  # nothing to align by
    assert table[0]["BLEU"] == result.bleu
    assert "6 new sentences of 3 to 8 words; longer: of 9 to 12 words" in legend(result)


def test_the_page_is_self_contained_and_complete(result: Demo) -> None:
    html = result.page.read_text("utf-8")
    assert "我 爱 中国" in html
    assert html.count('<figure class="map"') == sum(bool(each.leading) for each in result.shown)
    assert html.count("<svg") == 1
    assert "one fixed vector" in html
    assert "300 pairs of sentences, 3 to 8 Chinese words" in html
    assert "src=" not in html.replace("src=x", "")


def test_the_curve_extends_beyond_trained_lengths(result: Demo) -> None:
    assert [name for _, name in result.chart.ticks] == ["1-5", "6-10", "11-15"]
    assert [line.name for line in result.chart.lines] == ["additive attention", "one fixed vector"]


def test_without_longer_sentences_there_is_a_dash(result: Demo) -> None:
    test = {
        name: replace(t, scores={"test": t.scores["test"]}) for name, t in result.trained.items()
    }
    assert [row[2] for row in rows(replace(result, trained=test))] == [None, None]


@pytest.mark.parametrize(
    ("attention", "overrides", "says"),
    [
        ("none", (), "compares an attention with none"),
        ("aditive", (), "did you mean additive"),
        ("additive", ("training.stesp=1",), "did you mean 'training.steps'"),
        (
            "additive",
            ("data.grammar=null", "data.train.tsv=a.tsv", "data.valid.tsv=b.tsv"),
            "generates its sentences",
        ),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_written(
    attention: str, overrides: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=says):
        next(demo(attention, tmp_path / "demo", overrides))
    assert not (tmp_path / "demo").exists()
