"""A sample of the cases of each parametrised test in which every pair of values still meets.

A fault nearly always shows with one value of a parameter, or with two values together. So not every
combination of three parameters or more runs, but as many as it takes for each value, and each pair
of values of two parameters, to occur. What counts as a parameter:

- the rows of one `parametrize`, which somebody chose: all of them run;
- each column of such rows if they are every combination of their columns;
- a fixture's `params`.

A value with `factors`, such as a mechanism made of parts, runs at least once; in pairs, its factors
stand for it. Ties are decided by a hash of a seed and of the case's name, so that every process
chooses the same.
"""

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, combinations, product
from typing import Any

import pytest

SEED = 0


def sample(items: list[pytest.Item], seed: int = SEED) -> list[pytest.Item]:
    """The items to run: those without parameters, and a sample of each test with them.

    Cases that a mark skips are sampled apart: what they would show counts for nothing.
    """
    tests: dict[Any, list[Any]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            test = item.nodeid.partition("[")[0], is_skipped(item)
            tests.setdefault(test, []).append(item)
    kept = set(chain.from_iterable(covering(cases, seed) for cases in tests.values()))
    return [item for item in items if not hasattr(item, "callspec") or item in kept]


def is_skipped(item: pytest.Item) -> bool:
    skips = any(all(mark.args) for mark in item.iter_markers("skipif"))
    return skips or item.get_closest_marker("skip") is not None


def covering(cases: list[Any], seed: int) -> Iterator[Any]:
    """Cases that reach every goal: at each turn the one that reaches most of those left."""
    parameters = list(parameters_of(cases))
    ranked = sorted(cases, key=lambda case: rank(case.nodeid, seed))
    reached = {case: set(goals(case, parameters)) for case in ranked}
    left = set(chain.from_iterable(reached.values()))
    while left:
        best = max(reached, key=lambda case: len(reached[case] & left))
        left -= reached.pop(best)
        yield best


def rank(name: str, seed: int) -> bytes:
    """A number of a case that is the same in every process, and says nothing of the case."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def parameters_of(cases: list[Any]) -> Iterator[tuple[str, ...]]:
    """The parameters of a test, each by the names of its arguments."""
    free = dict.fromkeys(cases[0].callspec.params)
    for mark in cases[0].iter_markers("parametrize"):
        given = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = tuple(name for name in map(str.strip, given) if name in free)
        for name in names:
            del free[name]
        rows = {values(case, names) for case in cases}
        columns = (len(set(column)) for column in zip(*rows, strict=True))
        if len(rows) == math.prod(columns):
            yield from ((name,) for name in names)
        else:
            yield names
    yield from ((name,) for name in free)


def values(case: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Which objects these arguments are: not every value can be compared."""
    return tuple(id(case.callspec.params[name]) for name in names)


def goals(case: Any, parameters: Iterable[tuple[str, ...]]) -> Iterator[Hashable]:
    """The values of a case, and its pairs of values of two parameters."""
    levels = []
    for names in parameters:
        yield (names, values(case, names))
        factors = getattr(case.callspec.params[names[0]], "factors", None)
        levels.append(
            [(names, values(case, names))]
            if factors is None
            else [(names, factor) for factor in factors.items()]
        )
    for one, other in combinations(levels, 2):
        yield from product(one, other)
