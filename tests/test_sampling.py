"""Of a test with many parameters, a sample of the cases runs in which every pair still meets."""

from itertools import combinations, product
from typing import Any

import pytest

from tests.sampling import sample

pytest_plugins = ["pytester"]

CONFTEST = "from tests.conftest import pytest_addoption, pytest_collection_modifyitems"
SIZES = {"a": range(5), "b": range(4), "c": range(3), "d": range(2)}
STACKED = [f"@pytest.mark.parametrize('{name}', {list(SIZES[name])})" for name in SIZES]
AT_ONCE = [f"@pytest.mark.parametrize('a, b, c, d', {[*product(*SIZES.values())]})"]


@pytest.fixture
def collected(pytester: pytest.Pytester) -> Any:
    """collected(source, "--thorough") -> items"""

    def collect(lines: list[str], *options: str) -> list[Any]:
        pytester.makeconftest(CONFTEST)
        pytester.makeini("[pytest]\nmarkers = gpu")
        pytester.makepyfile(test_it="\n".join(["import pytest", *lines]))
        caught = Caught()
        pytester.inline_run("--collect-only", "-q", *options, plugins=[caught])
        return caught.items

    return collect


class Caught:
    """The tests that a session would run."""

    items: list[Any]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def pairs(items: list[Any]) -> set[Any]:
    told = [item.callspec.params.items() for item in items]
    return {pair for each in told for pair in combinations(each, 2)}


@pytest.mark.parametrize("marks", [STACKED, AT_ONCE], ids=["stacked", "at once"])
def test_every_pair_of_values_occurs(collected: Any, marks: list[str]) -> None:
    source = [*marks, "def test(a, b, c, d): pass"]
    everything, kept = collected(source, "--thorough"), collected(source)
    assert len(everything) == 120
    assert 20 <= len(kept) <= 25  # each of twenty pairs of a and b needs a case of its own
    assert pairs(kept) == pairs(everything)


def test_rows_that_somebody_chose_run_all(collected: Any) -> None:
    rows = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
    marks = [f"@pytest.mark.parametrize('a, b, c', {rows})", STACKED[3]]
    assert len(collected([*marks, "def test(a, b, c, d): pass"])) == 10


def test_cases_that_are_skipped_count_for_nothing(collected: Any) -> None:
    gone = "pytest.param(2, marks=pytest.mark.skip), pytest.param(3, marks=pytest.mark.gpu)"
    away = "pytest.param(4, marks=pytest.mark.skipif(True, reason=''))"
    marks = [*STACKED[:3], f"@pytest.mark.parametrize('d', [0, 1, {gone}, {away}])"]
    source = [*marks, "def test(a, b, c, d): pass"]
    run, whole = (
        [item for item in items if item.callspec.params["d"] < 2]
        for items in (collected(source), collected(source, "--thorough"))
    )
    assert len(run) < len(whole) / 4
    assert pairs(run) == pairs(whole)


def test_factors_stand_for_their_value(collected: Any) -> None:
    """Eight values of three factors and eight of another: 64 pairs, but at most 16 of a factor."""
    source = [
        "from itertools import product",
        "class Made(tuple):",
        "    factors = property(lambda self: dict(enumerate(self)))",
        "@pytest.mark.parametrize('made', [*map(Made, product('ab', 'cd', 'ef'))])",
        "@pytest.mark.parametrize('other', range(8))",
        "def test(made, other): pass",
    ]
    kept = [item.callspec.params for item in collected(source)]
    assert len({each["made"] for each in kept}) == 8
    assert {(x, each["other"]) for each in kept for x in each["made"]} == {
        *product("abcdef", range(8))
    }
    assert len(kept) < 30


def test_the_choice_depends_on_the_seed_alone(collected: Any) -> None:
    items = collected([*STACKED, "def test(a, b, c, d): pass"], "--thorough")
    kept = sample(items)
    assert {*sample(items[::-1])} == {*kept}
    assert {*sample(items, seed=1)} != {*kept}


def test_a_case_that_is_named_runs(collected: Any) -> None:
    source = [*STACKED, "def test(a, b, c, d): pass", "def test_alone(): pass"]
    names = [item.nodeid for item in collected(source, "--thorough")]
    assert {len(collected(source, name)) for name in names[::17]} == {1}
    assert len(collected(source, "-k", "1-2-3-4 or alone")) == 2
