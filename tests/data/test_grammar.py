"""The built-in corpus: one translation per sentence, correct links, parts, given lengths."""

import re
from collections import Counter
from functools import cache
from itertools import product

import pytest

from heed.data import grammar, lexicon
from heed.data.deriving import Chart, Entry, Grammar, Rule, Tree
from heed.data.grammar import Sentence, draw
from heed.errors import Refused, UnknownName

MEASURES = {entry.measure for table in grammar.grammar().entries.values() for entry in table}

VARIED = ("Verb", "Feel", "Change", "Short", "Long")


def derivations(words: tuple[str, ...]) -> list[Tree]:
    """Every derivation of a Chinese sentence: a chart parser that shares only the tables with the
    generator."""
    rules, entries = grammar.grammar()

    @cache
    def symbol(name: str, i: int, j: int) -> list[Tree]:
        if name in entries:
            return [Tree(e, []) for e in entries[name] if j == i + 1 and e.word == words[i]]
        return [Tree(rule, each) for rule in rules.get(name, ()) for each in rest(rule, 0, i, j)]

    @cache
    def rest(rule: Rule, item: int, i: int, j: int) -> list[list[Tree]]:
        left = len(rule.source) - item
        if left == 0 or j - i < left:
            return [[]] if left == 0 and i == j else []
        first = rule.source[item]
        if isinstance(first, str) or first < 0:
            fits = words[i] == first if isinstance(first, str) else words[i] in MEASURES
            return rest(rule, item + 1, i + 1, j) if fits else []
        name, found = rule.children[first], []
        last = i + 1 if name in entries else j - left + 1
        for k in range(j if left == 1 else i + 1, last + 1):
            if after := rest(rule, item + 1, k, j):
                found += [[one, *more] for one in symbol(name, i, k) for more in after]
        return found

    return symbol("Sentence", 0, len(words))


def some(count: int, **wishes: int) -> list[Sentence]:
    return list(draw(count, **wishes))


@pytest.mark.parametrize(("count", "shortest", "longest"), [(60, 2, 12), (5, 13, 30)])
def test_every_sentence_has_one_derivation(count: int, shortest: int, longest: int) -> None:
    for sentence in draw(count, shortest=shortest, longest=longest, seed=7):
        (tree,) = derivations(sentence.source)
        assert tuple(grammar.source_of(tree)) == sentence.source
        target, links = grammar.target_of(tree)
        assert (tuple(target), tuple(sorted(links))) == sentence[1:]


def trees(given: Grammar, symbol: str, n: int) -> list[Tree]:
    """Every derivation of n words, by exhaustive search."""
    if symbol in given.entries:
        return [Tree(entry, []) for entry in given.entries[symbol] if n == 1]
    found = []
    for rule in given.rules.get(symbol, ()):
        spans = product(range(1, n + 1), repeat=len(rule.children))
        for lengths in (each for each in spans if sum(each) == n - rule.words):
            branches = [trees(given, *part) for part in zip(rule.children, lengths, strict=True)]
            found += [Tree(rule, list(each)) for each in product(*branches)]
    return found


def small() -> Grammar:
    """The grammar with a word or two for each symbol; words of several symbols stay shared."""
    rules, entries = grammar.grammar()
    kept = ("我", "他", "北京", "看", "喜欢", "年轻", "好")
    few = {
        name: [entry for entry in table if entry.word in kept] or table[:1]
        for name, table in entries.items()
    }
    return Grammar(rules, few)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_no_two_derivations_give_the_same_chinese_and_the_count_is_exact(n: int) -> None:
    given = small() if n > 3 else grammar.grammar()
    every = [" ".join(grammar.source_of(tree)) for tree in trees(given, "Sentence", n)]
    assert len(set(every)) == len(every) == Chart(given, counting=True).total("Sentence", n)


def test_there_are_more_than_a_million_short_sentences() -> None:
    assert grammar.count(3, 6) > 1_000_000
    assert grammar.count(3, 12) > 10**12


def test_a_sentence_always_has_the_same_translation() -> None:
    said: dict[tuple[str, ...], Sentence] = {}
    for seed in range(6):
        for sentence in draw(1500, shortest=3, longest=5, seed=seed):
            assert said.setdefault(sentence.source, sentence) == sentence
    assert len(said) < 6 * 1500


def test_sentences_differ_and_lengths_are_evenly_distributed() -> None:
    drawn = some(3000, shortest=5, longest=14)
    assert len({sentence.source for sentence in drawn}) == 3000
    lengths = Counter(len(sentence.source) for sentence in drawn)
    assert set(lengths) == set(range(5, 15))
    assert max(lengths.values()) < 1.4 * min(lengths.values())


def test_long_sentences_can_be_grown() -> None:
    drawn = some(50, shortest=55, longest=62)
    assert all(55 <= len(sentence.source) <= 62 for sentence in drawn)


def test_the_same_seed_draws_the_same_sentences() -> None:
    assert some(50, seed=3) == some(50, seed=3)
    assert some(50, seed=3) != some(50, seed=4)
    assert some(20, seed=3) == some(50, seed=3)[:20]


def test_the_parts_are_disjoint() -> None:
    parts = {
        part: {s.source for s in draw(300, shortest=3, longest=4, seed=seed, part=part)}
        for seed, part in enumerate(("train", "valid", "test"))
    }
    assert not parts["train"] & parts["valid"] | parts["train"] & parts["test"]
    assert not parts["valid"] & parts["test"]
    for part, sources in parts.items():
        assert {grammar.part_of(" ".join(source)) for source in sources} == {part}


def test_a_sentence_is_always_in_the_same_part() -> None:
    assert grammar.part_of("我 爱 中国") == "train"
    assert grammar.part_of("我 昨天 在 北京 看 书") == "train"


def test_each_target_word_has_at_most_one_link_and_links_are_in_range() -> None:
    for sentence in draw(500, shortest=3, longest=30):
        targets = [j for _, j in sentence.links]
        assert len(targets) == len(set(targets)) > 0
        assert {i for i, _ in sentence.links} <= set(range(len(sentence.source)))
        assert set(targets) <= set(range(len(sentence.target)))


def test_function_words_have_no_link() -> None:
    for sentence in draw(500, shortest=3, longest=20):
        for i, j in sentence.links:
            assert sentence.source[i] not in {"的", "吗", "了", "把", "本", "位", "那么"}
            assert sentence.target[j] not in {"the", "do", "does", "did", "?"}


# The expected translation, and the links as (Chinese word, English word).
EXAMPLES = {
    "我 爱 中国": ("i love china", "我-i 爱-love 中国-china"),
    "她 爱 中国": ("she loves china", "她-she 爱-loves 中国-china"),
    "我 昨天 在 北京 看 书": (
        "i read books in beijing yesterday",
        "我-i 昨天-yesterday 在-in 北京-beijing 看-read 书-books",
    ),
    "他 爱 我 喜欢 的 书": (
        "he loves the book that i like",
        "他-he 爱-loves 我-i 喜欢-like 书-book",
    ),
    "你 喜欢 三 本 书 吗": ("do you like three books ?", "你-you 喜欢-like 三-three 书-books"),
    "他 不 喜欢 茶": ("he does not like tea", "他-he 不-not 喜欢-like 茶-tea"),
    "我 昨天 没 看 书": (
        "i did not read books yesterday",
        "我-i 昨天-yesterday 没-not 看-read 书-books",
    ),
    "他 把 书 放 在 桌子 上 了": (
        "he put the book on the table",
        "他-he 书-book 放-put 桌子-table 上-on",
    ),
    "她 有 一 个 苹果": ("she has an apple", "她-she 有-has 一-an 苹果-apple"),
    "我 看 电影": ("i watch films", "我-i 看-watch 电影-films"),
    "因为 他 唱歌 ， 所以 我们 跳舞": (
        "we dance because he sings",
        "因为-because 他-he 唱歌-sings 我们-we 跳舞-dance",
    ),
    "我 喜欢 茶 ， 但是 他 工作": (
        "i like tea , but he works",
        "我-i 喜欢-like 茶-tea ，-, 但是-but 他-he 工作-works",
    ),
    "谁 喜欢 喝 茶": ("who likes to drink tea ?", "谁-who 喜欢-likes 喝-drink 茶-tea"),
}


@pytest.mark.parametrize("chinese", EXAMPLES)
def test_examples(chinese: str) -> None:
    english, pairs = EXAMPLES[chinese]
    words = chinese.split()
    (tree,) = derivations(tuple(words))
    assert grammar.source_of(tree) == words
    target, links = grammar.target_of(tree)
    assert " ".join(target) == english
    assert " ".join(f"{words[i]}-{target[j]}" for i, j in sorted(links)) == pairs


def test_measure_words_fit_their_nouns() -> None:
    """Before a counted noun there is its measure word, with or without adjectives."""
    own = {entry.word: entry.measure for kind in lexicon.COUNTED for entry in nouns(kind)}
    for sentence in draw(300, shortest=4, longest=8):
        for i, word in enumerate(sentence.source[:-2]):
            if word in {"三", "五", "十"} and sentence.source[i + 1] != "杯":
                noun = next(w for w in sentence.source[i + 2 :] if w in own)
                assert sentence.source[i + 1] == own[noun]


def nouns(kind: str) -> list[Entry]:
    return grammar.grammar().entries[f"Noun_{kind}"]


def test_english_is_inflected() -> None:
    many = "|".join(e.forms["many"][0][0] for kind in lexicon.COUNTED for e in nouns(kind))
    wrong = re.compile(
        r"^(i|you|we|they) (is|has|does|wants|likes|loves|reads)\b"
        r"|^(he|she) (am|are|have|do|want|like|love|read [^.]* every)\b"
        r"|^(does|is) (you|they|we)\b|^(do|are) (he|she)\b|\ba [aeiou]|\ban [^aeiou]"
        rf"|\b(this|a|an) (\w+ )?({many})\b"
    )
    for text in ("a apple", "she read books every day", "this old cats", "does you sing ?"):
        assert wrong.search(text)
    for sentence in draw(3000, shortest=3, longest=15):
        assert not wrong.search(sentence.pair[1]), sentence.pair


def test_every_symbol_of_a_rule_exists() -> None:
    rules, entries = grammar.grammar()
    used = {child for table in rules.values() for rule in table for child in rule.children}
    unknown = used - set(rules) - set(entries)
    kinds = {f"{name}_{kind}" for name in VARIED for kind in lexicon.RANGES["kind"]}
    assert unknown <= kinds  # no verb of some class takes some kind
    assert set(entries) <= used
    assert set(rules) - used == {"Sentence"}


def test_impossible_numbers_of_sentences_are_refused() -> None:
    with pytest.raises(Refused, match="no sentence of 0 to 1 words"):
        draw(1, shortest=0, longest=1)
    with pytest.raises(Refused, match="1,000 were asked for"):
        list(draw(1000, shortest=2, longest=2))
    with pytest.raises(UnknownName, match="did you mean test"):
        draw(1, part="tests")  # type: ignore[arg-type]
