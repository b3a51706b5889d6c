"""heed demo, with a shortened training."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heed.cli import following
from heed.cli.demo import EXAMPLES, tell
from heed.events import finish
from heed.running.demo import LEAST, SENTENCES, Demo, demo, reference
from heed.viewing.looking import Look

SHORT = (
    "training.steps=2",
    "data.grammar.pairs=300",
    "data.grammar.longest=8",
    "data.grammar.beyond=12",
    "data.grammar.held_out=6",
    "model.hidden=16",
    "model.embedding=16",
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return finish(demo(folder=tmp_path_factory.mktemp("demo"), overrides=SHORT))


def printed(result: Demo, **terminal: Any) -> str:
    file = StringIO()
    tell(result, Console(file=file, width=100, highlight=False, **terminal))
    return file.getvalue()


def learnt(result: Demo) -> Demo:
    """The results of a real training."""
    trained = {
        name: replace(each, scores={**each.scores, "test": replace(each.scores["test"], bleu=98.0)})
        for name, each in result.trained.items()
    }
    return replace(result, trained=trained, shown=[_right(each) for each in result.shown])


def _right(shown: Look) -> Look:
    return replace(shown, text=reference(shown))


def test_translations_map_table_curve_and_page_are_printed_in_this_order(
    result: Demo,
) -> None:
    out = printed(result)
    signs = [
        "Two small networks learnt",
        "我 爱 中国\n",
        "wrong; reference: i love china",
        "source across, target down",
        "BLEU, longer",
        "AER: alignment error rate",
        "BLEU by sentence length",
        str(result.page),
    ]
    places = [out.index(sign) for sign in signs]
    assert places == sorted(places)
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()[:-1]) <= 100


def test_only_wrong_translations_are_marked_as_wrong(result: Demo) -> None:
    assert printed(result).count("wrong;") == len(SENTENCES) + 5
    out = printed(learnt(result))
    assert "wrong" not in out
    assert "  → i love china\n" in out


def test_text_is_never_read_as_markup(result: Demo) -> None:
    hostile = replace(result.shown[0], text="[red]i[/]")
    assert "→ [red]i[/]" in printed(replace(result, shown=[hostile, *result.shown[1:]]))


def test_a_terminal_gets_colours(result: Demo) -> None:
    assert "\x1b[48;" in printed(result, force_terminal=True, color_system="truecolor")


def test_a_model_without_success_ends_with_code_1(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    done = command("demo", "--run", str(tmp_path / "demo"), *SHORT)
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("heed: additive attention reached BLEU ")
    assert last.endswith("on new sentences; it should reach 90")
    assert "training" not in done.out
    assert (tmp_path / "demo" / "page.html").exists()


@pytest.mark.parametrize(("bleu", "code"), [(LEAST, 0), (LEAST - 0.1, 1)])
def test_with_json_nothing_else_is_printed(
    bleu: float,
    code: int,
    command: Callable[..., Any],
    result: Demo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = result.trained["additive"]
    scores = {**mine.scores, "test": replace(mine.scores["test"], bleu=bleu)}
    judged = replace(result, trained={**result.trained, "additive": replace(mine, scores=scores)})
    monkeypatch.setattr(following, "follow", lambda work, quiet: judged if quiet else None)
    done = command("demo", "--json")
    assert done.code == code
    data = json.loads(done.out)
    assert set(data["trained"]) == {"additive", "none"}
    assert data["trained"]["additive"]["scores"]["test"]["bleu"] == bleu
    assert list(data["translations"])[: len(SENTENCES)] == list(SENTENCES)
    assert data["page"] == str(result.page)
    assert bool(done.err) == bool(code)


def test_bad_input_is_one_line_and_code_2(command: Callable[..., Any], tmp_path: Path) -> None:
    for words, says in (
        (["--attention", "aditive"], "did you mean additive"),
        (["--attention", "none"], "name one, such as additive"),
        (["training.stesp=3"], "did you mean 'training.steps'"),
    ):
        done = command("demo", "--run", str(tmp_path / "demo"), *words)
        assert done.code == 2
        assert says in done.err
        assert len(done.err.splitlines()) == 1


def test_its_help_has_examples(command: Callable[..., Any]) -> None:
    done = command("demo", "--help")
    assert done.code == 0
    assert all(line in done.out for line in EXAMPLES.split("\n\n"))
