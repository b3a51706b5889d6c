"""The verbs on a classification run, and bad input reported in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running.labelling import files, labelled, recipe

CPU = ("--device", "cpu")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(labelled(tmp_path_factory))


def test_evaluate_prints_a_table(command: Callable[..., Any], run: str) -> None:
    done = command("evaluate", run, *CPU)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["accuracy", "100.00", "%", "50.00", "%", "by", "the", "commonest", "label"] in lines
    assert ["disliked", "48", "1.000", "1.000", "1.000"] in lines
    assert ["liked", "0", "48"] in lines  # of the confusion table


def test_evaluate_accepts_a_file(command: Callable[..., Any], run: str, tmp_path: Path) -> None:
    """With labels as in the training file, or as the recipe names them."""
    path = tmp_path / "more.tsv"
    path.write_text("1\tit was good\nliked\tit was fine\n\n0\tit was lovely\n")
    done = command("evaluate", run, str(path), "--json", "--out", str(tmp_path / "out"), *CPU)
    found = json.loads(done.out)
    assert found["confusion"] == [[0, 1], [0, 2]]
    assert found["accuracy"] == pytest.approx(200 / 3)
    assert (tmp_path / "out").read_text() == "liked\n" * 3


def test_a_column_of_many_digits_is_a_name(
    command: Callable[..., Any], run: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("1\tit was good\n")
    done = command("evaluate", run, str(path), "--text", "9" * 5000, *CPU)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("heed: ")


def test_evaluate_accepts_other_columns_for_a_file(
    command: Callable[..., Any], run: str, tmp_path: Path
) -> None:
    """They may differ from those of the training: here numbers."""
    rows = [("it was good", "1"), ("it was dull", "0")]
    lines = [json.dumps({"review": text, "stars": label}) for text, label in rows]
    path = tmp_path / "more.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    done = command("evaluate", run, str(path), *CPU)
    assert done.code == 2
    assert "more.jsonl:1: the key 'text' is missing; it has: review, stars; choose with" in done.err
    named = ("--text", "review", "--label", "stars", "--json", *CPU)
    assert json.loads(command("evaluate", run, str(path), *named).out)["texts"] == 2
    table = tmp_path / "more.csv"
    table.write_text("id,review,stars\n" + "".join(f"7,{text},{x}\n" for text, x in rows))
    assert json.loads(command("evaluate", run, str(table), *named).out)["texts"] == 2
    table.write_text("".join(f"7,{text},{x}\n" for text, x in rows))
    numbered = ("--text", "1", "--label", "2", "--json", *CPU)
    assert json.loads(command("evaluate", run, str(table), *numbered).out)["texts"] == 2
    mixed = command("evaluate", run, str(table), "--text", "review", "--label", "2", *CPU)
    assert mixed.code == 2
    assert "give both columns by number, or both by the names of the first line" in mixed.err
    kept = command("evaluate", run, "--text", "review", *CPU)
    assert kept.code == 2
    assert "--text needs a file; name one" in kept.err


def test_predict_answers_every_line(command: Callable[..., Any], run: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("it was good\n\n   \nit was dull\n" + "word " * 50 + "\n")
    done = command("predict", run, str(path), "--html", str(tmp_path / "page.html"), *CPU)
    assert done.code == 0, done.err
    first, *blank, last, _ = done.out.split("\n")[:-1]
    label, probability = first.split("\t")
    assert label == "liked"
    assert 0.5 < float(probability) <= 1
    assert blank == ["", ""]
    assert last.startswith("disliked\t")
    assert "only 20 of 51 symbols were read" in done.err
    html = (tmp_path / "page.html").read_text()
    assert "it was good" in html
    assert "only 20 of 51" in html
    rows = command("predict", run, str(path), "--json", *CPU).out.splitlines()
    found = [json.loads(row) for row in rows]
    assert [each["label"] for each in found[:3]] == ["liked", None, None]
    assert found[0]["probabilities"].keys() == {"liked", "disliked"}
    assert [each["cut"] for each in found] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("name", "written", "column"),
    [
        ("a.csv", 'label,Review\n0,it was good\n\n1,"it was dull, indeed"\n', "review"),
        ("a.csv", "label;review\n0;it was good\n;\n1;it was dull, indeed\n", "review"),
        ("a.tsv", "it was good\t0\n\nit was dull, indeed\t1\n", "0"),
        ("a.txt", "x\treview\n0\tit was good\n0\t\n1\tit was dull, indeed\n", "review"),
        (
            "a.jsonl",
            '{"7": "it was good"}\n\n{"7": "it was dull, indeed", "label": 1}\n',
            "7",
        ),
    ],
    ids=["csv", "semicolons", "tsv", "txt", "jsonl"],
)
def test_predict_reads_the_column_of_a_table(
    command: Callable[..., Any], run: str, tmp_path: Path, name: str, written: str, column: str
) -> None:
    path = tmp_path / name
    path.write_text(written)
    done = command("predict", run, str(path), "--text", column, *CPU)
    assert done.code == 0, done.err
    plain = tmp_path / "plain"
    plain.write_text("it was good\n\nit was dull, indeed\n")
    assert done.out == command("predict", run, str(plain), *CPU).out
    missing = command("predict", run, str(path), "--text", "99" if column == "0" else "stars", *CPU)
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "--text" in missing.err
    assert name in missing.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.csv", "has the ending of a table; say where the text is: --text COLUMN, "),
        ("a.tsv.gz", "has the ending of a table; say where the text is: "),
        ("a.jsonl", "has the ending of JSON lines; say where the text is: --text KEY; "),
    ],
)
def test_predict_asks_where_the_text_of_a_table_is(
    command: Callable[..., Any], run: str, tmp_path: Path, name: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text("it was good\n")
    done = command("predict", run, str(path), *CPU)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert f"heed predict RUN - < {path}\n" in done.err


def test_show_prints_the_weight_of_each_word(
    command: Callable[..., Any], run: str, tmp_path: Path
) -> None:
    done = command("show", run, "it was [/] lovely \x1b[31m", *CPU)
    assert done.code == 0, done.err
    assert "→ liked" in done.out
    assert done.out.count("lovely") == 2  # the text, and a bar
    assert "attention weights" in done.out
    assert "\x1b[31m" not in done.out
    pictures = ("--html", "--svg")
    for option in pictures:
        path = tmp_path / f"look.{option[2:]}"
        assert command("show", run, "a <b>good</b> one", option, str(path), *CPU).code == 0
        assert "<b>good" not in path.read_text()
    own = command("show", run, *CPU)
    assert own.out.count("→") == 5


def test_train_accepts_a_recipe_file(command: Callable[..., Any], tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"), steps=2, validate_every=2)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    words = ("--run", str(tmp_path / "run"), "--attention", "mean", "--json", *CPU)
    done = command("train", str(tmp_path / "mine.yaml"), *words)
    assert done.code == 0, done.err
    assert json.loads(done.out)["scores"]["test"]["texts"] == 96
    shown = command("show", str(tmp_path / "run"), "good", *CPU)
    assert "no attention to show" in shown.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2\tnever seen", "valid.tsv:97: the label '2' never occurs in the training data"),
        (
            "no tab",
            "choose with data.valid.text=COLUMN data.valid.label=COLUMN",
        ),
    ],
)
def test_bad_labels_are_reported_with_file_and_line(
    command: Callable[..., Any], tmp_path: Path, line: str, says: str
) -> None:
    data = files(tmp_path / "data")
    with (data / "valid.tsv").open("a") as file:
        file.write(f"{line}\n")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe(data)))
    done = command("train", str(tmp_path / "mine.yaml"), "--run", str(tmp_path / "run"), *CPU)
    assert done.code == 2
    assert says in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            "stars\tsentence",
            "train.tsv:1: the first line is read as a text with the label 'stars'",
        ),
        ("Label\t Text", None),
    ],
)
def test_a_header_is_recognised_or_reported(
    command: Callable[..., Any], tmp_path: Path, header: str, says: str | None
) -> None:
    data = files(tmp_path / "data")
    lines = (data / "train.tsv").read_text()
    (data / "train.tsv").write_text(f"{header}\n{lines}")
    raw = recipe(data, steps=2, validate_every=2)
    raw["data"]["train"] |= {"text": 1, "label": 0}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    done = command("train", str(tmp_path / "mine.yaml"), "--run", str(tmp_path / "run"), *CPU)
    assert done.code == 0, done.err
    told = [line for line in done.err.splitlines() if "first line" in line]
    labels = json.loads((tmp_path / "run/config.json").read_text())["labels"]
    if says is None:
        assert (told, labels) == ([], ["disliked", "liked"])
    else:
        (line,) = told  # once
        assert says in line
        assert "name its columns: data.train.text=sentence data.train.label=stars" in line
        assert labels == ["disliked", "liked", "stars"]


def test_label_names_that_do_not_fit_are_reported_with_the_remedy(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    """A ready recipe names its codes, and own texts have other labels."""
    data = files(tmp_path / "data")
    for file in data.iterdir():
        lines = file.read_text().replace("0\t", "dull\t").replace("1\t", "fine\t")
        file.write_text(lines)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe(data, steps=2, validate_every=2)))
    words = ("train", str(tmp_path / "mine.yaml"), "--run", str(tmp_path / "run"), *CPU)
    done = command(*words)
    assert done.code == 2
    assert done.err == (
        "heed: data.names: no training text has the label '0' (disliked) and others; there are "
        "dull, fine: data.names={} takes them as they stand\n"
    )
    assert command(*words, "data.names={}").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evaluate", "RUN", "nowhere.tsv"], "cannot read nowhere.tsv"),
        (["evaluate", "RUN", "a.tsv", "b.tsv"], "give one file of labelled texts"),
        (["evaluate", "RUN", "--part", "long"], "keeps no long texts"),
        (["evaluate", "RUN", "--width", "2"], "not for runs of the task classify"),
        (["evaluate", "RUN", "--links", "x"], "--links is not for runs of the task classify"),
        (["predict", "RUN", "a.csv"], "cannot read a.csv: No such file"),
        (["predict", "RUN", "--method", "greedy"], "not for runs of the task classify"),
        (["train", "sst2", "model.pool=dott"], "did you mean dot"),
        (["train", "sst2", "model.pool=additive"], "static/additive"),
        (["train", "sst2", "data.longset=3"], "did you mean 'data.longest'"),
        (["train", "sst2", "model.encoder.hiden=3"], "did you mean"),
    ],
)
def test_bad_arguments_are_refused(
    command: Callable[..., Any],
    run: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*(run if word == "RUN" else word for word in words), *CPU)
    assert done.code == 2
    assert says in done.err.splitlines()[-1], done.err
    assert "labelling 96" not in done.err  # it was refused before it started
