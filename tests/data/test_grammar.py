"""The built-in corpus: one translation per sentence, correct links, parts, given lengths."""

import re
from collections import Counter
from functools import cache
from hashlib import sha256
from itertools import product

import pytest

from heed.data import grammar, lexicon
from heed.data.derivation import Chart, Entry, Grammar, Rule, Slot, Token, Tree
from heed.data.grammar import Language, Sentence, draw, draw_tagged
from heed.errors import Refused, UnknownName

VARIED = ("Verb", "Feel", "Change", "Short", "Long")


Item = str | tuple[int, str] | None


def derivations(words: tuple[str, ...], language: str = "zh", wide: bool = False) -> list[Tree]:
    """Every derivation of a sentence: a chart parser that shares only the tables with the
    generator."""
    rules, entries = grammar.grammar(wide)
    measures = {entry.measure for table in entries.values() for entry in table}
    words = tuple("a" if word == "an" else word for word in words)

    @cache
    def symbol(name: str, form: str, i: int, j: int) -> list[Tree]:
        if name in entries:
            found = words[i:j]
            return [Tree(e, []) for e in entries[name] if entry_words(e, form, language) == found]
        each = ((rule, rest(rule, form, 0, i, j)) for rule in rules.get(name, ()))
        return [Tree(rule, branches) for rule, every in each for branches in every]

    @cache
    def side(rule: Rule, form: str) -> list[Item]:
        return rule_items(rule, form, language)

    @cache
    def rest(rule: Rule, form: str, item: int, i: int, j: int) -> list[list[Tree]]:
        items = side(rule, form)
        left = len(items) - item
        if left == 0 or j - i < left:
            return [[Tree(rule, [])] * len(rule.children)] if left == 0 and i == j else []
        first = items[item]
        if not isinstance(first, tuple):
            fits = words[i] in measures if first is None else words[i] == first
            return rest(rule, form, item + 1, i + 1, j) if fits else []
        (child, inner), found = first, []
        name = rule.children[child]
        last = i + 1 if language == "zh" and name in entries else j - left + 1
        for k in range(j if left == 1 else i + 1, last + 1):
            if after := rest(rule, form, item + 1, k, j):
                for one in symbol(name, inner, i, k):
                    found += [[*more[:child], one, *more[child + 1 :]] for more in after]
        return found

    return symbol("Sentence", "", 0, len(words))


def entry_words(entry: Entry, form: str, language: str) -> tuple[str, ...]:
    if language == "zh":
        return (entry.word,)
    return tuple(token.text for token, _ in entry.forms[form])


def rule_items(rule: Rule, form: str, language: str) -> list[Item]:
    """A right-hand side: words, places of children with their forms, None for a measure word."""
    if language == "zh":
        return [
            item.text if isinstance(item, Token) else (item, "") if item >= 0 else None
            for item in rule.source
        ]
    return [
        (item.child, form if item.form is None else item.form)
        if isinstance(item, Slot)
        else (item.forms[form] if item.forms else item.text)
        for item in rule.target
    ]


def texts(tokens: list[Token]) -> tuple[str, ...]:
    return tuple(token.text for token in tokens)


def some(count: int, **wishes: int) -> list[Sentence]:
    return list(draw(count, **wishes))


@pytest.mark.parametrize(("count", "shortest", "longest"), [(60, 2, 12), (5, 13, 30)])
def test_every_sentence_has_one_derivation(count: int, shortest: int, longest: int) -> None:
    for sentence in draw(count, shortest=shortest, longest=longest, seed=7):
        (tree,) = derivations(sentence.source)
        assert texts(grammar.source_of(tree)) == sentence.source
        target, links = grammar.target_of(tree)
        assert (texts(target), tuple(sorted(links))) == sentence[1:]


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


def small(wide: bool = False) -> Grammar:
    """The grammar with a word or two for each symbol; words of several symbols stay shared."""
    rules, entries = grammar.grammar(wide)
    kept = grammar.ambiguous("zh") if wide else ("我", "他", "北京", "看", "喜欢", "年轻", "好")
    few = {
        name: [entry for entry in table if entry.word in kept] or table[:1]
        for name, table in entries.items()
    }
    return Grammar(rules, few)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_no_two_derivations_give_the_same_chinese_and_the_count_is_exact(n: int) -> None:
    given = small() if n > 3 else grammar.grammar()
    every = [texts(grammar.source_of(tree)) for tree in trees(given, "Sentence", n)]
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
    assert list(texts(grammar.source_of(tree))) == words
    tokens, links = grammar.target_of(tree)
    target = texts(tokens)
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
    many = "|".join(e.forms["many"][0][0].text for kind in lexicon.COUNTED for e in nouns(kind))
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


def test_the_words_for_tagging_change_no_translation() -> None:
    """Runs and figures depend on these draws."""
    drawn = list(draw(500, seed=3, shortest=2, longest=30))
    assert (
        sha256(repr([tuple(sentence) for sentence in drawn]).encode()).hexdigest()[:16]
        == "631c4ecdb7ced259"
    )


# Each word with its only possible part of speech.
TAGGED = {
    "zh": """
        他/PRON 在/VERB 北京/PROPN
        他/PRON 在/ADP 北京/PROPN 工作/VERB
        他/PRON 喜欢/VERB 我/PRON 的/PART 工作/NOUN
        我/PRON 只/ADV 喜欢/VERB 一/NUM 只/NOUN 猫/NOUN
        他/PRON 把/ADP 这/DET 把/NOUN 雨伞/NOUN 卖掉/VERB 了/AUX
        他/PRON 把/ADP 书/NOUN 放/VERB 在/ADP 桌子/NOUN 上/ADP 了/PART
        我/PRON 昨天/NOUN 没有/AUX 看/VERB 书/NOUN
        我/PRON 没有/VERB 书/NOUN
        虽然/SCONJ 他/PRON 唱歌/VERB ，/PUNCT 但是/ADV 我/PRON 跳舞/VERB
        他/PRON 唱歌/VERB ，/PUNCT 但是/CCONJ 我/PRON 跳舞/VERB
        她/PRON 每天/NOUN 和/ADP 小明/PROPN 工作/VERB
        小明/PROPN 和/CCONJ 小红/PROPN 跳舞/VERB
    """,
    "en": """
        i/PRON think/VERB that/SCONJ that/DET cook/NOUN sings/VERB
        the/DET two/NUM cooks/NOUN that/PRON she/PRON guards/VERB sing/VERB
        he/PRON cooks/VERB rice/NOUN
        he/PRON watches/VERB plays/NOUN
        he/PRON plays/VERB tennis/NOUN
        do/AUX they/PRON want/VERB to/PART do/VERB sports/NOUN ?/PUNCT
        he/PRON lent/VERB the/DET book/NOUN to/ADP her/PRON
        tom/PROPN is/AUX like/ADP his/PRON father/NOUN
        this/PRON is/AUX an/DET orange/NOUN
        i/PRON read/VERB books/NOUN two/NUM days/NOUN ago/ADV
    """,
}
LINES = [
    (name, line) for name, block in TAGGED.items() for line in block.split("\n") if line.strip()
]


def tags_by_derivation(words: tuple[str, ...], language: Language) -> set[tuple[str, ...]]:
    found = set()
    for tree in derivations(words, language, wide=True):
        source, (target, _) = grammar.source_of(tree), grammar.target_of(tree)
        found.add(tuple(token.tag for token in (source if language == "zh" else target)))
    return found


@pytest.mark.parametrize(("language", "line"), LINES)
def test_parts_of_speech(language: Language, line: str) -> None:
    words, tags = zip(*(word.split("/") for word in line.split()), strict=True)
    assert tags_by_derivation(words, language) == {tags}


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_text_alone_decides_its_tags(language: Language) -> None:
    for sentence in draw_tagged(25, language=language, shortest=2, longest=9, seed=5):
        assert tags_by_derivation(sentence.words, language) == {sentence.tags}


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_no_short_text_can_be_tagged_in_two_ways(n: int) -> None:
    given, chinese, english = small(wide=True), set(), {}
    for tree in trees(given, "Sentence", n):
        chinese.add(texts(grammar.source_of(tree)))
        target = grammar.target_of(tree)[0]
        tags = tuple(token.tag for token in target)
        assert english.setdefault(texts(target), tags) == tags
    assert len(chinese) == Chart(given, counting=True).total("Sentence", n)


@pytest.mark.parametrize(("language", "count"), [("zh", 20), ("en", 34)])
def test_ambiguous_words_occur_with_each_of_their_tags(language: Language, count: int) -> None:
    assert len(grammar.ambiguous(language)) == count
    found: dict[str, set[str]] = {}
    for words, tags in draw_tagged(20_000, language=language):
        for word, tag in zip(words, tags, strict=True):
            found.setdefault(word, set()).add(tag)
    several = {word: tuple(sorted(tags)) for word, tags in found.items() if len(tags) > 1}
    assert several == grammar.ambiguous(language)


def test_tagged_sentences_are_drawn_as_the_others() -> None:
    for language in ("zh", "en"):
        parts = {
            part: {s.words for s in draw_tagged(200, language=language, seed=seed, part=part)}
            for seed, part in enumerate(("train", "valid", "test"))
        }
        for part, texts_of_part in parts.items():
            assert len(texts_of_part) == 200
            assert {grammar.part_of(" ".join(words)) for words in texts_of_part} == {part}
        again = [list(draw_tagged(20, language=language, seed=seed)) for seed in (3, 3, 4)]
        assert again[0] == again[1] != again[2]
    with pytest.raises(UnknownName, match="no language of the corpus is called 'de'"):
        draw_tagged(1, language="de")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="no sentence of 0 to 1 words"):
        draw_tagged(1, shortest=0, longest=1)
