"""Error messages are in the user's words."""

import pytest

from heed.errors import HeedError, NotFormed, Refused, ShapeError, UnknownName


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(ShapeError, ValueError), (Refused, ValueError), (NotFormed, RuntimeError)],
)
def test_errors_are_heed_errors_and_a_built_in_kind(
    kind: type[HeedError], builtin: type[Exception]
) -> None:
    error = kind("say what to do")
    assert isinstance(error, HeedError)
    assert isinstance(error, builtin)
    assert str(error) == "say what to do"


def test_an_unknown_name_gets_the_nearest_one() -> None:
    error = UnknownName("mechanism", "aditive", ["additive", "general", "dot"])
    assert isinstance(error, HeedError)
    assert isinstance(error, LookupError)
    assert str(error) == "no mechanism is called 'aditive'; did you mean additive?"


def test_an_unknown_name_gets_up_to_three_near_ones_best_first() -> None:
    known = ["concat", "concat-identity", "concats", "concate", "dot"]
    told = str(UnknownName("mechanism", "concatt", known))
    near = told.split("did you mean ")[1].rstrip("?").split(" or ")
    assert len(near) == 3
    assert set(near) == {"concat", "concats", "concate"}


def test_a_name_of_any_length_is_told_in_a_line() -> None:
    told = str(UnknownName("mechanism", "a" * 100_000, ["additive"]))
    assert told == f"no mechanism is called '{'a' * 100}…'; known: additive"


def test_a_name_near_to_none_gets_the_whole_list() -> None:
    told = str(UnknownName("need", "xyzzy", iter(("context", "weight"))))
    assert told == "no need is called 'xyzzy'; known: context, weight"


@pytest.mark.parametrize("name", [None, 3, ("a",)])
def test_a_name_that_is_not_a_string_is_shown(name: object) -> None:
    assert f"'{name}'" in str(UnknownName("need", name, ["context"]))


def test_an_unknown_name_reads_as_a_sentence() -> None:
    """A bare KeyError would print its message in quotes."""
    assert not isinstance(UnknownName("need", "x", ["y"]), KeyError)
    assert str(UnknownName("need", "x", ["y"])).startswith("no need")
