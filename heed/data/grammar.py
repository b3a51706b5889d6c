"""The built-in corpus: a synchronous grammar, Chinese to English, that knows its word alignment.

    我 昨天 在 北京 看 书     ->  i read books in beijing yesterday
    我 喜欢 的 书 很 有趣     ->  the book that i like is very interesting

One derivation writes both sides, so the gold alignment comes for free. Every Chinese sentence has
one translation, since it has one derivation. The words and rules are in `lexicon.py`, the drawing
of a sentence of a wished length in `deriving.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from itertools import product
from math import prod
from random import Random
from typing import Literal, NamedTuple

from heed.data import lexicon
from heed.data.deriving import (
    Chart,
    Entry,
    Form,
    Grammar,
    Rule,
    Slot,
    Word,
    grow,
    source_of,
    target_of,
)
from heed.errors import Refused, UnknownName

Part = Literal["train", "valid", "test"]

PARTS: tuple[Part, ...] = ("train",) * 8 + ("valid", "test")
"""The last digit of a sentence's hash decides its part, whatever the seed and the size.

我 爱 中国 is in train."""

START = "Sentence"
PATIENCE = 20_000  # draws in a row that bring nothing new, before the corpus counts as used up


class Sentence(NamedTuple):
    """A sentence, its translation, and which word stands for which (source, target; from 0)."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The two sides as text, words separated by spaces."""
        return " ".join(self.source), " ".join(self.target)


def draw(
    count: int, *, shortest: int = 3, longest: int = 12, seed: int = 0, part: Part = "train"
) -> Iterator[Sentence]:
    """Different sentences of shortest to longest Chinese words, the lengths evenly spread.

    The Chinese text alone decides the part, so no sentence is in two of them.
    """
    if part not in PARTS:
        raise UnknownName("part of the corpus", part, dict.fromkeys(PARTS))
    lengths = [n for n in range(shortest, longest + 1) if _growing().total(START, n)]
    if not lengths:
        raise Refused(f"the grammar has no sentence of {shortest} to {longest} words")
    return _draw(count, lengths, Random(seed), part)


def _draw(count: int, lengths: list[int], rng: Random, part: Part) -> Iterator[Sentence]:
    chart, seen, misses = _growing(), set[int](), 0
    while len(seen) < count:
        if misses == PATIENCE:
            raise Refused(
                f"the grammar has no more than about {len(seen):,} different sentences of "
                f"{lengths[0]} to {lengths[-1]} words for '{part}'; {count:,} were asked for"
            )
        tree = grow(chart, START, lengths[int(rng.random() * len(lengths))], rng)
        source = source_of(tree)
        number = _number(" ".join(source))
        if number in seen or PARTS[number % 10] != part:
            misses += 1
            continue
        misses = 0
        seen.add(number)
        target, links = target_of(tree)
        yield Sentence(tuple(source), tuple(target), tuple(sorted(links)))


def part_of(source: str) -> Part:
    """The part that a Chinese sentence belongs to."""
    return PARTS[_number(source) % 10]


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def count(shortest: int, longest: int) -> int:
    """How many derivations have a Chinese side of that many words: exact, by dynamic programming.

    No two derivations write the same Chinese, so these are different sentences.
    """
    return sum(int(_counting().total(START, n)) for n in range(shortest, longest + 1))


@cache
def _growing() -> Chart:
    return Chart(grammar())


@cache
def _counting() -> Chart:
    return Chart(grammar(), counting=True)


def _form(english: str) -> Form:
    return tuple((word, word not in ("a", "the")) for word in english.split("+"))


def _verb(word: str, base: str, third: str, past: str) -> Entry:
    forms = dict.fromkeys(("base", "i", "you", "they"), base) | {"he": third, "past": past}
    return Entry(word, {form: _form(text) for form, text in forms.items()})


def _noun(word: str, measure: str, one: str, many: str) -> Entry:
    return Entry(word, {"": _form(one), "one": _form(one), "many": _form(many)}, measure)


def _plain(word: str, english: str) -> Entry:
    return Entry(word, {"": _form(english)})


def _named(table: str) -> Iterator[tuple[str, list[str]]]:
    """Name: a b c, d e f  ->  (Name, [a, b, c]), (Name, [d, e, f])"""
    for line in table.strip().replace("\n    ", " ").splitlines():
        name, items = line.split(":")
        yield from ((name, item.split()) for item in items.split(","))


def _kinds(name: str, table: str) -> Iterator[tuple[str, list[str]]]:
    """a b c: kind kind  ->  (name_kind, [a, b, c]) for each kind"""
    for line in table.strip().splitlines():
        item, kinds = line.split(":")
        yield from ((f"{name}_{kind}", item.split()) for kind in kinds.split())


def _entries() -> dict[str, list[Entry]]:
    found = [(f"Noun_{kind}", _noun(*item)) for kind, item in _named(lexicon.NOUNS)]
    found += [(name, _plain(*item)) for name, item in _named(lexicon.WORDS)]
    found += [(name, _verb(*item)) for name, item in _named(lexicon.VERBS)]
    verbs = {"Verb": lexicon.DEEDS, "Feel": lexicon.FEELINGS, "Change": lexicon.CHANGES}
    for name, table in verbs.items():
        found += [(symbol, _verb(*item)) for symbol, item in _kinds(name, table)]
    for name, table in {"Short": lexicon.SHORT, "Long": lexicon.LONG}.items():
        found += [(symbol, _plain(*item)) for symbol, item in _kinds(name, table)]
    entries: dict[str, list[Entry]] = {}
    for symbol, entry in found:
        entries.setdefault(symbol, []).append(entry)
    return entries


def _rules() -> dict[str, list[Rule]]:
    """Every line of the table for every value of its braces, which share the line's weight."""
    rules: dict[str, list[Rule]] = {}
    for line in lexicon.RULES.replace("\n    |", " |").split("\n"):
        if not line:
            continue
        head, source, target = re.split(r"[:|]", line)
        braces = list(dict.fromkeys(re.findall(r"{(\w+)}", line)))
        shared = prod(len(lexicon.RANGES[b]) for b in braces if f"{{{b}}}" not in head)
        for values in product(*(lexicon.RANGES[b] for b in braces)):
            filled = dict(zip(braces, values, strict=True))
            symbol, weight = head.format(**filled).split()
            rule = _rule(float(weight) / shared, source.format(**filled), target.format(**filled))
            rules.setdefault(symbol, []).append(rule)
    return {symbol: _normalised(table) for symbol, table in rules.items()}


def _normalised(table: list[Rule]) -> list[Rule]:
    total = sum(rule.weight for rule in table)
    return [replace(rule, weight=rule.weight / total) for rule in table]


def _rule(weight: float, chinese: str, english: str) -> Rule:
    names = [name for name in chinese.split() if name.isascii() and "." not in name]
    place = {name: i for i, name in enumerate(names)}
    source: list[str | int] = []
    for name in chinese.split():
        head, _, measured = name.partition(".")
        source.append(name if head not in place else ~place[head] if measured else place[head])
    target = tuple(_item(name, place, source) for name in english.split())
    children = tuple(name.rstrip("12") for name in names)
    return Rule(weight, children, tuple(source), target, len(source) - len(children))


def _item(name: str, place: dict[str, int], source: list[str | int]) -> Word | Slot:
    """What a name on the English side of a rule means."""
    head, _, form = name.partition(".")
    if head in place:
        return Slot(place[head], None if form == "*" else form)
    link = next((i for i, word in enumerate(source) if (word, head) in _counterparts()), -1)
    forms = lexicon.HELPERS[head] if form else {}
    return Word(forms.get(form, head), link, forms if form == "*" else None)


@cache
def _counterparts() -> frozenset[tuple[str, str]]:
    words = lexicon.COUNTERPARTS.split()
    return frozenset(zip(words[::2], words[1::2], strict=True))


@cache
def grammar() -> Grammar:
    """The grammar of the tables."""
    return Grammar(_rules(), _entries())
