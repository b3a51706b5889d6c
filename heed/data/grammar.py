"""The built-in corpus: a synchronous grammar, Chinese to English, that knows its word alignment.

    我 昨天 在 北京 看 书     ->  i read books in beijing yesterday
    我 喜欢 的 书 很 有趣     ->  the book that i like is very interesting

One derivation writes both sides, so the gold alignment comes for free. Every Chinese sentence has
one translation, since it has one derivation. The words and rules are in `lexicon.py`, the drawing
of a sentence of a wished length in `derivation.py`.

The derivation also knows the part of speech of each word. `draw_tagged` draws from a wider grammar,
with the words of `ambiguous.py`, whose part of speech only the words around them tell:

    我/PRON 没有/AUX 看/VERB 书/NOUN     我/PRON 没有/VERB 书/NOUN
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from itertools import product
from math import prod
from random import Random
from typing import Literal, NamedTuple

from heed.data import ambiguous as ambiguities
from heed.data import lexicon
from heed.data.derivation import (
    MEASURE,
    Chart,
    Entry,
    Form,
    Grammar,
    Rule,
    Slot,
    Token,
    Tree,
    Word,
    grow,
    source_of,
    target_of,
)
from heed.data.tagged import Tagged
from heed.errors import Refused, UnknownName

Part = Literal["train", "valid", "test"]
Language = Literal["zh", "en"]

PARTS: tuple[Part, ...] = ("train",) * 8 + ("valid", "test")
"""The last digit of a sentence's hash decides its part, whatever the seed and the size.

我 爱 中国 is in train."""

START = "Sentence"
HELPERS = lexicon.HELPERS | ambiguities.HELPERS
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
    drawn = _draw(_growing(), count, range(shortest, longest + 1), seed, part, source_of)
    return (_sentence(tree, source) for tree, source in drawn)


def _sentence(tree: Tree, source: list[Token]) -> Sentence:
    target, links = target_of(tree)
    return Sentence(_texts(source), _texts(target), tuple(sorted(links)))


def draw_tagged(
    count: int,
    *,
    language: Language = "zh",
    shortest: int = 3,
    longest: int = 12,
    seed: int = 0,
    part: Part = "train",
) -> Iterator[Tagged]:
    """Different sentences of one language with the part of speech of each word.

    The lengths are those of the Chinese sentence. The text alone decides its part and its tags.
    About one word in six is ambiguous: its most frequent tag is right for 83 % of these words in
    Chinese and 73 % in English, 97 % and 95 % of all words.
    """
    if language not in WRITERS:
        raise UnknownName("language of the corpus", language, WRITERS)
    chart, write = _growing(wide=True), WRITERS[language]
    drawn = _draw(chart, count, range(shortest, longest + 1), seed, part, write)
    return (Tagged(_texts(words), tuple(word.tag for word in words)) for _, words in drawn)


def _texts(words: list[Token]) -> tuple[str, ...]:
    return tuple(word.text for word in words)


def _english(tree: Tree) -> list[Token]:
    source_of(tree)
    return target_of(tree)[0]


WRITERS: dict[Language, Callable[[Tree], list[Token]]] = {"zh": source_of, "en": _english}


def _draw(
    chart: Chart,
    count: int,
    lengths: range,
    seed: int,
    part: Part,
    write: Callable[[Tree], list[Token]],
) -> Iterator[tuple[Tree, list[Token]]]:
    """Derivations that write different sentences of one part, and what they write."""
    if part not in PARTS:
        raise UnknownName("part of the corpus", part, dict.fromkeys(PARTS))
    possible = [n for n in lengths if chart.total(START, n)]
    if not possible:
        raise Refused(f"the grammar has no sentence of {lengths[0]} to {lengths[-1]} words")
    return _grown(chart, count, possible, Random(seed), part, write)


def _grown(
    chart: Chart,
    count: int,
    lengths: list[int],
    rng: Random,
    part: Part,
    write: Callable[[Tree], list[Token]],
) -> Iterator[tuple[Tree, list[Token]]]:
    seen, misses = set[int](), 0
    while len(seen) < count:
        if misses == PATIENCE:
            raise Refused(
                f"the grammar has no more than about {len(seen):,} different sentences of "
                f"{lengths[0]} to {lengths[-1]} words for '{part}'; {count:,} were asked for"
            )
        tree = grow(chart, START, lengths[int(rng.random() * len(lengths))], rng)
        words = write(tree)
        number = _number(" ".join(_texts(words)))
        if number in seen or PARTS[number % 10] != part:
            misses += 1
            continue
        misses = 0
        seen.add(number)
        yield tree, words


def ambiguous(language: Language) -> dict[str, tuple[str, ...]]:
    """The words of `draw_tagged` that have several parts of speech, and these, in order."""
    found: dict[str, set[str]] = {}
    for word, tag in _tokens(language):
        found.setdefault(word, set()).add(tag)
    return {word: tuple(sorted(tags)) for word, tags in sorted(found.items()) if len(tags) > 1}


def _tokens(language: Language) -> Iterator[Token]:
    """Every word that the wider grammar may write, with every part of speech that it may have."""
    wide = grammar(wide=True)
    for entry in (entry for entries in wide.entries.values() for entry in entries):
        if language == "zh":
            yield from (Token(entry.word, entry.tag), Token(entry.measure, MEASURE))
        else:
            yield from (token for form in entry.forms.values() for token, _ in form)
    for rule in (rule for rules in wide.rules.values() for rule in rules):
        if language == "zh":
            yield from (item for item in rule.source if isinstance(item, Token))
            continue
        for item in rule.target:
            if isinstance(item, Word):
                texts = item.forms.values() if item.forms else (item.text,)
                yield from (Token(text, item.tag) for text in texts)


def part_of(source: str) -> Part:
    """The part that a Chinese sentence belongs to."""
    return PARTS[_number(source) % 10]


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def count(shortest: int, longest: int) -> int:
    """The number of derivations whose Chinese side has that many words, by dynamic programming.

    No two derivations write the same Chinese, so these are different sentences.
    """
    return sum(int(_counting().total(START, n)) for n in range(shortest, longest + 1))


@cache
def _growing(wide: bool = False) -> Chart:
    return Chart(grammar(wide))


@cache
def _counting() -> Chart:
    return Chart(grammar(), counting=True)


def _token(written: str, tag: str) -> Token:
    """A word of a table, which may name its own part of speech: ago/ADV."""
    text, _, own = written.partition("/")
    return Token(text, own or tag)


def _form(english: str, tag: str) -> Form:
    tokens = (_token(word, tag) for word in english.split("+"))
    return tuple((token, token.text not in ("a", "the")) for token in tokens)


def _verb(word: str, base: str, third: str, past: str) -> Entry:
    forms = dict.fromkeys(("base", "i", "you", "they"), base) | {"he": third, "past": past}
    return Entry(word, "VERB", {form: _form(text, "VERB") for form, text in forms.items()})


def _noun(tag: str, word: str, measure: str, one: str, many: str) -> Entry:
    forms = {"": one, "one": one, "many": many}
    return Entry(word, tag, {name: _form(text, tag) for name, text in forms.items()}, measure)


def _plain(tag: str, word: str, english: str) -> Entry:
    return Entry(word, tag, {"": _form(english, tag)})


def _named(table: str) -> Iterator[tuple[str, list[str]]]:
    """Name: a b c, d e f  ->  (Name, [a, b, c]), (Name, [d, e, f])"""
    for line in filter(None, table.replace("\n    ", " ").splitlines()):
        name, items = line.split(":")
        yield from ((name, item.split()) for item in items.split(","))


def _kinds(name: str, table: str) -> Iterator[tuple[str, list[str]]]:
    """a b c: kind kind  ->  (name_kind, [a, b, c]) for each kind"""
    for line in filter(None, table.splitlines()):
        item, kinds = line.split(":")
        yield from ((f"{name}_{kind}", item.split()) for kind in kinds.split())


def _table(name: str, wide: bool) -> str:
    """A table of the lexicon, and below it that of the ambiguous words."""
    table: str = getattr(lexicon, name) + (getattr(ambiguities, name) if wide else "")
    return table


def _entries(wide: bool) -> dict[str, list[Entry]]:
    found = []
    for name, item in _named(_table("NOUNS", wide)):
        kind, tag = _token(name, "NOUN")
        found.append((f"Noun_{kind}", _noun(tag, *item)))
    for name, item in _named(_table("WORDS", wide)):
        symbol, tag = _token(name, "")
        found.append((symbol, _plain(tag, *item)))
    found += [(name, _verb(*item)) for name, item in _named(_table("VERBS", wide))]
    for name, table in {"Verb": "DEEDS", "Feel": "FEELINGS", "Change": "CHANGES"}.items():
        found += [(symbol, _verb(*item)) for symbol, item in _kinds(name, _table(table, wide))]
    for name, table in {"Short": "SHORT", "Long": "LONG"}.items():
        items = _kinds(name, _table(table, wide))
        found += [(symbol, _plain("ADJ", *item)) for symbol, item in items]
    entries: dict[str, list[Entry]] = {}
    for symbol, entry in found:
        entries.setdefault(symbol, []).append(entry)
    return entries


def _rules(wide: bool) -> dict[str, list[Rule]]:
    """Every line of the table for every value of its braces, which share the line's weight."""
    rules: dict[str, list[Rule]] = {}
    for line in filter(None, _table("RULES", wide).replace("\n    |", " |").splitlines()):
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
    source: list[Token | int] = []
    for name in chinese.split():
        head, _, measured = name.partition(".")
        if head in place:
            source.append(~place[head] if measured else place[head])
        else:
            source.append(_written(name))
    target = tuple(_item(name, place, source) for name in english.split())
    children = tuple(name.rstrip("12") for name in names)
    return Rule(weight, children, tuple(source), target, len(source) - len(children))


def _item(name: str, place: dict[str, int], source: list[Token | int]) -> Word | Slot:
    """The meaning of a name on the English side of a rule."""
    head, _, form = name.partition(".")
    if head in place:
        return Slot(place[head], None if form == "*" else form)
    text, tag = _written(head)
    meant = (isinstance(word, Token) and (word.text, text) in _counterparts() for word in source)
    link = next((i for i, is_meant in enumerate(meant) if is_meant), -1)
    forms = HELPERS[text] if form else {}
    return Word(forms.get(form, text), tag, link, forms if form == "*" else None)


def _written(name: str) -> Token:
    """A word that a rule writes."""
    return _token(name, _tags().get(name, ""))


@cache
def _tags() -> dict[str, str]:
    rows = (row.split(":") for row in _table("TAGS", wide=True).splitlines() if row)
    return {word: tag for tag, words in rows for word in words.split()}


@cache
def _counterparts() -> frozenset[tuple[str, str]]:
    words = lexicon.COUNTERPARTS.split()
    return frozenset(zip(words[::2], words[1::2], strict=True))


@cache
def grammar(wide: bool = False) -> Grammar:
    """The grammar of the tables; the wide one has the ambiguous words, too."""
    return Grammar(_rules(wide), _entries(wide))
