"""heed predict: several answers, samples, and a page to look at."""

from __future__ import annotations

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heed.cli.predict import printed
from heed.running.predict import CHUNK
from heed.storage.run_folder import RunFolder
from tests.running.writing import written

LINES = ["我 爱 我", "", "你 爱 他们", "我们 很 高兴"]


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


@pytest.fixture
def predict(command: Callable[..., Any], writer: Path, tmp_path: Path) -> Callable[..., str]:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))

    def run(*words: str) -> str:
        done = command("predict", str(writer), str(path), "--device", "cpu", *words)
        assert (done.code, done.err) == (0, "")
        return str(done.out)

    return run


def test_there_is_a_line_for_each_line(predict: Callable[..., str]) -> None:
    answers = predict().split("\n")
    assert [bool(answer) for answer in answers] == [True, False, True, True, False]


def test_a_table_is_not_translated_line_by_line(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    """A line with source and target would be read as a source."""
    path = tmp_path / "pairs.tsv"
    missing = command("predict", str(writer), str(path), "--device", "cpu")
    assert (missing.code, "No such file" in missing.err) == (2, True), missing.err
    path.write_text("a b\tc d\n")
    done = command("predict", str(writer), str(path), "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"cut -f1 {path} | heed predict RUN -" in done.err


@pytest.mark.parametrize(
    ("file", "typed", "lines"), [("-", True, 1), ("-", False, CHUNK), ("in.txt", True, CHUNK)]
)
def test_what_is_typed_is_answered_line_by_line(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, file: str, typed: bool, lines: int
) -> None:
    asked: list[int] = []

    def told(*_: Any, at_once: int, **__: Any) -> Iterator[Any]:
        asked.append(at_once)
        return iter(())

    monkeypatch.setattr("heed.running.predict.predict", told)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: typed))
    assert command("predict", "run", file).code == 0
    assert asked == [lines]


def test_several_answers_are_ordered_by_score(predict: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in predict("--best", "3", "--json").splitlines()]
    assert [row["source"] for row in rows] == LINES
    for row in rows:
        assert set(row) == {"source", "answers"}
        if row["source"]:
            texts = [answer["text"] for answer in row["answers"]]
            assert len(set(texts)) == 3  # though the run's own way is greedy, with only one
        else:
            assert row["answers"] == [{"text": "", "log_prob": 0.0}]
    plain = [line.split("\t") for line in predict("--best", "3", "--width", "5").splitlines()]
    assert [len(answers) for answers in plain] == [3, 3, 3, 3]
    first = [answers[0] for answers in plain]
    assert first == predict("--width", "5").splitlines()


def test_several_answers_need_a_beam(command: Callable[..., Any], writer: Path) -> None:
    for words in (["--method", "greedy"], ["--temperature", "0.5"]):
        done = command("predict", str(writer), *words, "--best", "2")
        assert (done.code, done.out) == (2, "")
        assert "--best 2 needs --method beam; " in done.err


def test_more_answers_than_a_beam_has_are_refused(
    command: Callable[..., Any], writer: Path
) -> None:
    done = command("predict", str(writer), str(writer / "recipe.yaml"), "--best", "1001")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--best is 1000 at most, like the width of a beam; got 1001" in done.err


def test_a_remark_names_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And is made once for a range of lines, with both ends."""
    remarks = ["", "cut", "cut", "cut", "", "cut", "long", "long"]
    answers = (SimpleNamespace(line=lambda: "", remark=each) for each in remarks)
    assert list(printed(answers, as_json=False, keep=False)) == []
    out, err = capsys.readouterr()
    assert out == "\n" * 8
    assert err.splitlines() == [
        "heed: line 2: cut",
        "heed: lines 3 to 4: the same",
        "heed: line 6: cut",
        "heed: line 7: long",
        "heed: line 8: the same",
    ]


def test_samples_depend_only_on_the_seed(predict: Callable[..., str]) -> None:
    drawn = [predict("--temperature", "2", "--seed", seed) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert predict("--method", "sample", "--temperature", "2", "--seed", "1") == drawn[0]
    assert predict("--seed", "1") != predict()  # a seed implies sampling
    assert predict("--top-k", "1") == predict("--method", "greedy") == predict()
    assert predict("--top-p", "0.001") == predict()


def outside(html: str) -> list[str]:
    """The external resources and links of a page."""
    found = re.findall(r"https?://[^\s\"'<>)]*", html)
    found += re.findall(r"(?:src|href|action|data)=[\"']?(?!#|data:)[^\s>]*", html)
    found += re.findall(r"<link\b|@import|url\((?!['\"]?(?:#|data:))", html)
    return [each for each in found if not each.startswith("http://www.w3.org/")]


def test_the_page_is_self_contained(predict: Callable[..., str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answers = predict("--html", str(page)).split("\n")
    html = page.read_text("utf-8")
    assert outside(html) == []
    assert outside('<img src="https://a.b/c.png">') != []
    maps = re.findall(r'<script type="application/json">(.*?)</script>', html)
    shown = [(source, text) for source, text in zip(LINES, answers, strict=False) if source]
    assert len(maps) == len(shown) == 3
    assert html.count('<li class="example') == 3  # and none for a blank line
    for (source, text), drawn in zip(shown, maps, strict=True):
        assert f">{source}<" in html
        assert f">{text}<" in html
        assert json.loads(drawn)["labels"][0] == text.split()


EVIL = "\x1b[2J\x9b5A\n\u202e\u200bi"


@pytest.fixture
def hostile(writer: Path, tmp_path: Path) -> Path:
    """A run each of whose words, when it is written, would control a terminal."""
    run = Path(shutil.copytree(writer, tmp_path / "hostile"))
    path = run / "target_tokenizer.json"
    told = json.loads(path.read_text())
    words = told["model"]["vocab"]
    evil = {word if n < 4 else f"{word[:1]}{n}{EVIL}": n for word, n in words.items()}
    told["model"]["vocab"] = evil
    path.write_text(json.dumps(told))
    RunFolder(run).seal()
    return run


@pytest.mark.parametrize("more", [(), ("--json",), ("--best", "2")])
def test_answers_are_data_but_on_a_terminal_they_do_not_control_it(
    command: Callable[..., Any],
    hostile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("我 爱 我\n\n你 爱 他们\n")
    words = ("predict", str(hostile), str(path), "--device", "cpu", *more)
    piped = command(*words)
    assert piped.out.count("\n") == 3, "an answer is a line, whatever the vocabulary has"
    assert "\u202e" in piped.out
    assert ("\x1b" in piped.out) == (more != ("--json",))  # JSON has its own escapes of that
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = command(*words)
    assert shown.out.count("\n") == 3
    assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in re.sub("[\n\t]", "", shown.out))
    assert r"\u202e" in shown.out


@pytest.mark.parametrize("verb", ["show", "evaluate"])
def test_what_is_printed_of_a_hostile_vocabulary_is_escaped(
    command: Callable[..., Any], hostile: Path, verb: str
) -> None:
    done = command(verb, str(hostile), "--device", "cpu")
    assert done.code == 0
    said = re.sub("\n", "", done.out + done.err)
    assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in said)
