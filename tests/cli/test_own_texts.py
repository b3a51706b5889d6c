"""classify and translate: one key names a file of your own; the commands of the docs work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heed.data.grammar import draw
from heed.data.held_out import HeldOut, side
from tests.running.labelling import lines

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/training.md"]
COMMANDS = [
    line.partition("  ")[0]
    for page in PAGES
    for line in re.findall(
        r"^    heed (train (?:classify|translate)\b.*)$", page.read_text("utf-8"), re.M
    )
]

HELD = HeldOut(valid=0.2, test=0.2)
FEW = ("training.epochs=1", "training.least_steps=2", "--device", "cpu")
SMALL = {
    "classify": ("model.encoder={kind: gru, embedding: 8, hidden: 8}", *FEW),
    "translate": ("model.embedding=8", "model.hidden=8", "data.tokens.size=300", *FEW),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the commands of the docs name, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEED_DATA", raising=False)
    labelled = [line.split("\t") for line in lines()]
    rows = [f'{label},"{text}"\n' for label, text in labelled]
    Path("reviews.csv").write_text("label,text\n" + "".join(rows))
    Path("other.csv").write_text("label,text\n" + "".join(rows[::7]))
    named = "".join(f"{n};{text};{label}\n" for n, (label, text) in enumerate(labelled))
    Path("shop.csv").write_text(f"id;review;stars\n{named}")
    drawn = draw(120, shortest=3, longest=5, seed=1, part="train")
    pairs = ["\t".join(each.pair) + "\n" for each in drawn]
    Path("pairs.tsv").write_text("".join(pairs), "utf-8")
    Path("other.tsv").write_text("".join(pairs[::7]), "utf-8")
    return tmp_path


def kept(run: str, part: str) -> int:
    return Path(run, f"examples/{part}.jsonl").read_text("utf-8").count("\n")


@pytest.mark.parametrize(
    ("recipe", "file", "count"),
    [
        ("classify", "reviews.csv", 96),
        ("classify", "shop.csv", 96),
        ("translate", "pairs.tsv", 120),
    ],
)
def test_one_key_trains_on_one_file(
    command: Callable[..., Any], here: Path, recipe: str, file: str, count: int
) -> None:
    """Parts of it are held out to validate and test on; it is then no longer needed."""
    words = ["train", recipe, f"data.train={file}"]
    if file == "shop.csv":  # as its refusal says
        refused = command(*words, *SMALL[recipe])
        assert refused.code == 2
        assert "Line 1 of" in refused.err
        assert "has: id, review, stars; choose with data.train.text=COLUMN" in refused.err
        words += ["data.train.text=review", "data.train.label=stars"]
    done = command(*words, *SMALL[recipe], "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    run = f"runs/{recipe}"
    assert (found["folder"], found["steps"]) == (run, 2)
    held = kept(run, "valid") + kept(run, "test")
    assert 0 < held < count / 2
    assert json.loads(Path(run, "cache/ready.json").read_text()).popitem()[1] == count - held
    Path(file).unlink()
    assert command("evaluate", run, "--device", "cpu").code == 0
    assert command("show", run, "--device", "cpu").code == 0
    if recipe == "classify":  # as the docs show it
        answers = command("predict", run, "other.csv", "--text", "text", "--device", "cpu")
        assert (answers.code, answers.out.count("\n")) == (0, 14)


@pytest.mark.parametrize("given", COMMANDS)
def test_the_commands_of_the_docs_work(command: Callable[..., Any], here: Path, given: str) -> None:
    words = shlex.split(given)
    done = command(*words, *SMALL[words[1]])
    assert done.code == 0, done.err


def test_the_docs_show_both_recipes() -> None:
    for page in PAGES:
        assert "heed train classify data.train=" in page.read_text("utf-8")
        assert "heed train translate data.train=" in page.read_text("utf-8")
    assert len(COMMANDS) >= 6


def test_thirty_lines_and_a_rare_label_are_accepted(
    command: Callable[..., Any], here: Path
) -> None:
    """A text that is held out does not stop the training if no other text has its label."""
    texts = [f"the film number {n} is {('good', 'bad')[n % 2]}" for n in range(30)]
    rare = next(text for n in range(99) if side(text := f"rare {n}", HELD) == "valid")
    rows = [f"{n % 2},{text}\n" for n, text in enumerate(texts)]
    Path("few.csv").write_text("".join([*rows, f"7,{rare}\n"]))
    done = command(
        "train", "classify", "data.train=few.csv", "data.held_out=0.2", *SMALL["classify"]
    )
    assert done.code == 0, done.err
    assert "kept + 1 dropped (1 with a label of no training text)" in done.err
    assert json.loads(Path("runs/classify/config.json").read_text())["labels"] == ["0", "1"]
