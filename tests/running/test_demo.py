"""The demo learns what it says, with every mechanism that can."""

import pytest
import torch

from heed.attention.catalogue import CATALOGUE
from heed.errors import Refused
from heed.running.demo import (
    ALPHABET,
    BLANK,
    COPIES,
    OPTIONS,
    SAMPLES,
    Demo,
    backwards,
    draw,
    is_held_out,
    numbers,
    task_for,
)

NAMES = [name for name in CATALOGUE if name != "static"]


def words_of(letters: torch.Tensor) -> list[str]:
    return ["".join(ALPHABET[letter] for letter in row) for row in letters.tolist()]


def test_backwards() -> None:
    words = torch.cat([numbers("parts"), numbers("attention")])
    assert words_of(backwards(words)) == ["strap____", "noitnetta"]


@pytest.mark.parametrize("held_out", [True, False])
def test_words_are_drawn_from_one_side_of_the_split(held_out: bool) -> None:
    words = draw(300, held_out=held_out)
    assert words.shape == (300, 9)
    assert (is_held_out(words) == held_out).all()
    assert set((words != BLANK).sum(1).tolist()) == {4, 5, 6, 7, 8, 9}


def test_the_samples_are_held_out() -> None:
    assert all(is_held_out(numbers(word)) for word in SAMPLES)


def test_the_tables_name_parts_that_exist() -> None:
    assert set(COPIES) | set(OPTIONS) <= set(CATALOGUE)


def test_a_part_that_cannot_look_back_makes_it_copy() -> None:
    assert task_for("additive").name == task_for("local-p/general").name == "reverse"
    task = task_for("additive/forward")
    assert task.name == "copy"
    assert task.why == "forward only stays or moves on by one, so it copies"
    assert (task.answer("parts"), task_for("dot").answer("parts")) == ("parts", "strap")


def test_static_is_refused() -> None:
    with pytest.raises(Refused, match="one question"):
        Demo("static/additive")


@pytest.mark.parametrize(
    "name", [*NAMES, "coverage/additive", "sample/additive", "pointer/local-m"]
)
def test_every_mechanism_trains_and_reports(name: str) -> None:
    demo = Demo(name, steps=2)
    before = [p.clone() for p in demo.network.attend.parameters()]
    moments = list(demo.learn())
    assert [moment.step for moment in moments] == [1, 2]
    assert all(moment.loss > 0 for moment in moments)
    after = demo.network.attend.parameters()
    assert all(not torch.equal(p, q) for p, q in zip(before, after, strict=True))
    report = demo.report(words=20)
    assert report.words == 20
    assert 0 <= report.right <= 20
    assert report.panel.weight.shape == (9, 9)
    assert list(report.samples) == list(SAMPLES)


def test_the_network_does_not_see_what_comes_after_a_word() -> None:
    """Alone or filled up with blanks: the attention never looks at a blank."""
    demo = Demo("additive", steps=1)
    demo.network.eval()
    words = draw(8, held_out=True)
    weight = demo.network(words, need="weight").joined("weight")
    assert weight[(words == BLANK)[:, None, None].expand_as(weight)].eq(0).all()
    assert weight[(words != BLANK)[:, None, None].expand_as(weight)].gt(0).all()


@pytest.mark.slow
def test_the_default_learns_to_reverse_and_looks_along_the_antidiagonal() -> None:
    demo = Demo()
    losses = [moment.loss for moment in demo.learn()]
    report = demo.report()
    assert losses[-1] < 0.1 < losses[0]
    assert report.accuracy >= 0.99
    assert report.samples == {word: word[::-1] for word in SAMPLES}
    assert report.panel.weight.argmax(1).tolist() == list(range(8, -1, -1))
