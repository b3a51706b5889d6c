"""heed demo, with a training that is cut short."""

import json

import pytest
import torch

from heed.cli.demo import EXAMPLES
from heed.running.demo import Demo

SHORT = ["--steps", "2"]


def test_a_person_sees_score_words_and_picture(command) -> None:
    done = command("demo", *SHORT)
    assert done.code == 0
    assert done.out.startswith("additive learns to reverse words\n")
    assert "of 1000 held-out words right" in done.out
    assert "Learnt only in part" in done.out
    assert "attention →" in done.out
    assert "wrong: noitnetta" in done.out  # two steps teach nothing
    assert "   a   t   t   e   n   t   i   o   n" in done.out
    assert done.err.splitlines()[-1].startswith("step 2 of 2, loss ")
    assert "\x1b" not in done.out + done.err


def test_json_is_all_that_is_printed(command) -> None:
    done = command("demo", *SHORT, "--attention", "general", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    assert (data["mechanism"], data["task"], data["steps"]) == ("general", "reverse", 2)
    assert 0 <= data["accuracy"] <= 1
    assert data["seconds"] > 0
    assert len(data["samples"]["attention"]) == 9
    weights = data["drawn"]["weights"]
    assert [sum(row) for row in weights] == pytest.approx([1] * 9, abs=1e-4)
    assert "".join(data["drawn"]["columns"]) == "attention"


def test_what_never_looks_back_copies_and_says_so(command) -> None:
    done = command("demo", *SHORT, "--attention", "monotonic/additive")
    assert done.code == 0
    first = "monotonic/additive learns to copy words (monotonic never looks back, so it copies)"
    assert done.out.splitlines()[0] == first


def test_the_seed_decides(command) -> None:
    one, same, other = (
        json.loads(command("demo", *SHORT, "--json", "--seed", seed).out)["drawn"] for seed in "112"
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("aditive", "did you mean additive"),
        ("local-p/genral", "did you mean general"),
        ("dot/additive", "two parts for the slot score"),
        ("static", "asks one question of a whole text"),
        ("", "empty part"),
    ],
)
def test_a_wrong_mechanism_is_one_line_and_two(command, name: str, says: str) -> None:
    done = command("demo", "--attention", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("heed: ")
    assert done.err.count("\n") == 1
    assert says in done.err


def test_an_interrupt_is_130(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Demo, words: torch.Tensor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Demo, "losses", interrupted)
    done = command("demo")
    assert (done.code, done.err) == (130, "")


def test_the_examples_can_be_pasted(command) -> None:
    for line in EXAMPLES.split("\n\n"):
        _, *words = line.split()
        assert command(*words, *SHORT).code == 0
