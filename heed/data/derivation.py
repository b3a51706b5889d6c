"""Derivations of a synchronous grammar, grown to a wished length, and their two sides in writing.

A chart has the weight with which each symbol fills n words (the inside weights of Baker 1979, by
length instead of by words), so a sentence of n words is drawn from top to bottom without ever
failing.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple, TypeAlias, TypeVar


class Token(NamedTuple):
    """A written word and its part of speech."""

    text: str
    tag: str


MEASURE = "NOUN"
"""The part of speech of a measure word, as in UD."""
Form: TypeAlias = tuple[tuple[Token, bool], ...]
"""The English words of one form, and whether each has a counterpart."""


class Entry(NamedTuple):
    """A word of the lexicon with its English forms; an article in them has no counterpart."""

    word: str
    tag: str
    forms: Mapping[str, Form]
    measure: str = ""


class Word(NamedTuple):
    """An English word of a rule and the Chinese word of the rule that it stands for, or -1.

    forms: those of a helping verb, by the form that the rule is asked for.
    """

    text: str
    tag: str
    link: int
    forms: Mapping[str, str] | None = None


class Slot(NamedTuple):
    """The place and the form of a child in English; None hands on the rule's own form."""

    child: int
    form: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Two right-hand sides with the same children.

    source: a word, the place i of a child, or ~i for the measure word of child i.
    """

    weight: float  # its probability among the rules of its symbol
    children: tuple[str, ...]
    source: tuple[Token | int, ...]
    target: tuple[Word | Slot, ...]
    words: int  # of Chinese, besides the children


class Grammar(NamedTuple):
    """The rules of each symbol, and its words in the lexicon."""

    rules: Mapping[str, list[Rule]]
    entries: Mapping[str, list[Entry]]


class Chart:
    """The weight with which each symbol fills n Chinese words, computed as far as it is asked for.

    counting: every rule and every word weighs one, so that the weight is a number of derivations.
    """

    def __init__(self, grammar: Grammar, counting: bool = False) -> None:
        self.grammar = grammar
        self.counting = counting
        self._filled = 0
        self._totals: dict[tuple[str, int], float] = {}
        self._rests: dict[tuple[Rule, int, int], float] = {}
        self._choices: dict[tuple[str, int], tuple[list[Rule], list[float]]] = {}
        self._spans: dict[tuple[Rule, int, int], tuple[list[int], list[float]]] = {}

    def total(self, symbol: str, n: int) -> float:
        """The weight with which the symbol fills n words; an exact integer when counting."""
        while self._filled < n:  # short before long, so that nothing recurses deeply
            self._filled += 1
            for name in self.grammar.rules:
                self._total(name, self._filled)
        return self._total(symbol, n)

    def _total(self, symbol: str, n: int) -> float:
        if entries := self.grammar.entries.get(symbol):
            return (len(entries) if self.counting else 1) if n == 1 else 0
        key = symbol, n
        if key not in self._totals:
            rules = self.grammar.rules.get(symbol, ())
            self._totals[key] = sum(self._weigh(rule, n) for rule in rules)
        return self._totals[key]

    def _weigh(self, rule: Rule, n: int) -> float:
        rest = self._rest(rule, 0, n - rule.words)
        return rest if self.counting else rule.weight * rest

    def _rest(self, rule: Rule, i: int, n: int) -> float:
        """The weight with which the children of a rule from the i-th on fill n words."""
        if i == len(rule.children) or n <= 0:
            return int(i == len(rule.children) and n == 0)
        key = rule, i, n
        if key not in self._rests:
            self._rests[key] = sum(self._fill(rule, i, n, k) for k in self._lengths(rule, i, n))
        return self._rests[key]

    def _fill(self, rule: Rule, i: int, n: int, k: int) -> float:
        """That weight where child i takes k of the words."""
        rest = self._rest(rule, i + 1, n - k)
        return rest and rest * self._total(rule.children[i], k)

    def _lengths(self, rule: Rule, i: int, n: int) -> Iterable[int]:
        if rule.children[i] in self.grammar.entries:
            return (1,)
        return (n,) if i + 1 == len(rule.children) else range(1, n)

    def rule(self, symbol: str, n: int, rng: Random) -> Rule:
        """A rule for the symbol, drawn by the weight with which it fills n words."""
        key = symbol, n
        if key not in self._choices:
            self._choices[key] = _heaped((r, self._weigh(r, n)) for r in self.grammar.rules[symbol])
        return _pick(self._choices[key], rng)

    def span(self, rule: Rule, i: int, n: int, rng: Random) -> int:
        """The number of words that child i takes of the n that are left, drawn by weight."""
        key = rule, i, n
        if key not in self._spans:
            lengths = self._lengths(rule, i, n)
            self._spans[key] = _heaped((k, self._fill(rule, i, n, k)) for k in lengths)
        return _pick(self._spans[key], rng)


T = TypeVar("T")


def _heaped(weighed: Iterable[tuple[T, float]]) -> tuple[list[T], list[float]]:
    """The items whose weight is not 0, with the running sums that `_pick` looks into."""
    kept = [(item, weight) for item, weight in weighed if weight]
    return [item for item, _ in kept], list(accumulate(weight for _, weight in kept))


def _pick(heap: tuple[list[T], list[float]], rng: Random) -> T:
    items, sums = heap
    if len(items) == 1:
        return items[0]
    return items[bisect(sums, rng.random() * sums[-1], hi=len(items) - 1)]


class Tree:
    """A derivation. `at`: where its own Chinese words stand once the source is written."""

    __slots__ = ("at", "branches", "node")

    def __init__(self, node: Rule | Entry, branches: list[Tree]) -> None:
        self.node = node
        self.branches = branches
        self.at: list[int] = []


def grow(chart: Chart, symbol: str, n: int, rng: Random) -> Tree:
    """A derivation of the symbol whose Chinese side has exactly n words."""
    words = chart.grammar.entries
    if entries := words.get(symbol):
        return Tree(entries[int(rng.random() * len(entries))], [])
    rule = chart.rule(symbol, n, rng)
    left, branches = n - rule.words, []
    last = len(rule.children) - 1
    for i, child in enumerate(rule.children):
        k = 1 if child in words else left if i == last else chart.span(rule, i, left, rng)
        branches.append(grow(chart, child, k, rng))
        left -= k
    return Tree(rule, branches)


def _write_source(tree: Tree, words: list[Token]) -> None:
    node = tree.node
    if isinstance(node, Entry):
        tree.at = [len(words)]
        words.append(Token(node.word, node.tag))
        return
    tree.at = []
    for item in node.source:
        tree.at.append(len(words))
        if isinstance(item, Token):
            words.append(item)
        elif item >= 0:
            _write_source(tree.branches[item], words)
        else:
            words.append(Token(_measure(tree.branches[~item]), MEASURE))


def _measure(tree: Tree) -> str:
    """The measure word of the noun in which a phrase ends."""
    while tree.branches:
        tree = tree.branches[-1]
    assert isinstance(tree.node, Entry)
    return tree.node.measure


def _write_target(tree: Tree, form: str, words: list[Token], links: list[tuple[int, int]]) -> None:
    node = tree.node
    if isinstance(node, Entry):
        for token, linked in node.forms[form]:
            if linked:
                links.append((tree.at[0], len(words)))
            words.append(token)
        return
    for item in node.target:
        if isinstance(item, Slot):
            inner = form if item.form is None else item.form
            _write_target(tree.branches[item.child], inner, words, links)
            continue
        if item.link >= 0:
            links.append((tree.at[item.link], len(words)))
        words.append(Token(item.forms[form] if item.forms else item.text, item.tag))


def source_of(tree: Tree) -> list[Token]:
    """The Chinese words; the tree now knows where they stand."""
    words: list[Token] = []
    _write_source(tree, words)
    return words


def target_of(tree: Tree) -> tuple[list[Token], list[tuple[int, int]]]:
    """The English words and the links, once the source is written."""
    words: list[Token] = []
    links: list[tuple[int, int]] = []
    _write_target(tree, "", words, links)
    for j, word in enumerate(words):
        if word.text == "a" and words[j + 1].text[0] in "aeiou":
            words[j] = Token("an", word.tag)
    return words, links
