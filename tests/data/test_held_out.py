"""Held-out texts: chosen by their words alone, in the given shares, and never in two parts."""

from __future__ import annotations

import pytest

from heed.data.held_out import HeldOut, check, side
from heed.data.pairs import Report
from heed.errors import Refused


def test_texts_are_held_out_by_their_words() -> None:
    texts = [f"text number {n} of many" for n in range(3000)]
    held = HeldOut(valid=0.2, test=0.1)
    sides = [side(text, held) for text in texts]
    assert 250 < sides.count("test") < 350
    assert 520 < sides.count("valid") < 680
    assert sides == [side(f" {text}  ", held) for text in texts]
    assert sides != [side(text, HeldOut(valid=0.2, test=0.1, key="other")) for text in texts]
    fewer = [side(text, HeldOut(test=0.1)) for text in texts]
    assert [a == "test" for a in fewer] == [a == "test" for a in sides]
    assert side("text number 7 of many", HeldOut()) == "train"


def test_the_parts_are_the_same_on_every_machine() -> None:
    """These exact parts: a release with others would test old runs on their training data."""
    held = HeldOut(valid=0.3, test=0.3)
    sides = [side(text, held) for text in ("我 爱 中国", "i love china", "a", "c", "d")]
    assert sides == ["valid", "valid", "test", "valid", "train"]


def test_without_shares_every_text_is_in_every_part() -> None:
    assert HeldOut().only("train") is None


def test_every_text_is_in_its_part_only() -> None:
    held = HeldOut(valid=0.3, test=0.3)
    for part in ("train", "valid", "test"):
        only = held.only(part)
        assert only is not None
        assert [only(str(n)) for n in range(40)] == [side(str(n), held) == part for n in range(40)]


@pytest.mark.parametrize(
    ("held", "files", "says"),
    [
        ({}, {}, r"^data\.valid is missing: cats to validate .* data\.held_out\.valid=0\.05$"),
        ({"test": 0.1}, {}, "data.valid is missing"),
        ({"valid": 0.1}, {"valid": "a"}, "data.valid=null or data.held_out.valid=0"),
        ({"valid": 0.1, "test": 0.1}, {"test": "a"}, "^data.test is given, so .*_out.test=0$"),
        ({"valid": 0.1, "test": 0.1}, {"valid": "a", "test": "b"}, "or data.held_out=null$"),
    ],
)
def test_a_part_has_one_source(held: dict[str, float], files: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(HeldOut(**held), **{"valid": None, "test": None} | files, what="cats", share=0.05)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "files"),
    [({"valid": 0.1}, {}), ({}, {"valid": "a"}), ({"test": 0.1}, {"valid": "a"})],
)
def test_validation_data_alone_is_enough(held: dict[str, float], files: dict[str, str]) -> None:
    check(HeldOut(**held), **{"valid": None, "test": None} | files, what="cats", share=0.05)  # type: ignore[arg-type]


def test_an_empty_part_is_refused_with_the_remedy() -> None:
    held = HeldOut(valid=0.1)
    with pytest.raises(Refused, match=r"data\.valid: 0 pairs read.*hold more out, or name a file"):
        held.lacks("valid", Report())
    with pytest.raises(Refused, match=r"data\.train: .*hold less out: data\.held_out"):
        held.lacks("train", Report())
