"""The words of the literature lead to names, and are none themselves."""

import pytest
import torch

import heed
from heed.attention.catalogue import BESIDE, CATALOGUE
from heed.attention.synonyms import nearest, plain, search
from heed.errors import UnknownName

SAID = {
    "bahdanau": {"additive"},
    "Luong": {"dot", "general", "concat", "location", "local-m", "local-p"},
    "multiplicative": {"dot", "scaled-dot", "general"},
    "bilinear": {"general"},
    "mlp": {"additive", "concat"},
    "scaled dot-product attention": {"scaled-dot"},
    "soft": {"softmax"},
    "hard": {"argmax", "sample", "gumbel"},
    "stochastic": {"sample", "gumbel"},
    "local attention": {"local-m", "local-p", "fixed-window"},
    "sliding_window": {"fixed-window"},
    "hard monotonic": {"monotonic"},
    "location-sensitive": {"location-aware"},
    "gmm": {"mixture-window"},
    "ptr-net": {"pointer"},
    "sparse": {"sparsemax", "entmax"},
    "点积": {"dot", "scaled-dot"},
    "缩放点积注意力": {"scaled-dot"},
    "加性": {"additive"},
    "乘性": {"dot", "scaled-dot", "general"},
    "双线性": {"general"},
    "全局": {"global"},
    "局部": {"local-m", "local-p", "fixed-window"},
    "硬": {"argmax", "sample", "gumbel"},
    "软注意力": {"softmax"},
    "单调": {"local-m", "forward", "forced-forward", "monotonic"},
    "指针网络": {"pointer"},
    "覆盖": {"coverage"},
    "余弦": {"cosine"},
    "稀疏": {"sparsemax", "entmax"},
    "位置": {"location", "location-aware", "relative"},
}
"""What the papers and their translations call which mechanism."""


@pytest.mark.parametrize("word", SAID)
def test_a_word_of_the_literature_is_answered_with_what_it_means(word: str) -> None:
    assert set(nearest(word)) == SAID[word]
    assert {each.name for each in search(word)} >= SAID[word]
    with pytest.raises(UnknownName, match=f"no mechanism is called '{word}'; did you mean ") as no:
        heed.Attention(word, query=4)
    assert set(str(no.value).partition("mean ")[2].rstrip("?").split(" or ")) == SAID[word]


@pytest.mark.parametrize(
    ("word", "use"),
    [
        ("multi-head", "heed.MultiHeadAttention("),
        ("MultiHead Attention", "heed.MultiHeadAttention("),
        ("多头", "heed.MultiHeadAttention("),
        ("gqa", "groups="),
        ("self-attention", "heed.MultiHeadAttention("),
        ("自注意力", "attend.remember(x)"),
        ("cross-attention", "attend.remember(keys, values)"),
        ("causal", "heed.causal()"),
        ("rope", "Rotary()"),
        ("flash attention", "heed.kernels"),
    ],
)
def test_what_is_no_mechanism_is_named_as_a_user_writes_it(word: str, use: str) -> None:
    x = torch.randn(1, 1, 2, 4)
    with pytest.raises(UnknownName, match="did you mean ") as no:
        heed.attend(x, x, x, mechanism=word)
    assert use in str(no.value)
    assert any(use in each.name for each in search(word))


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_synonym_leads_to_its_entry(name: str) -> None:
    entry = CATALOGUE[name]
    assert entry.synonyms
    assert len(set(map(plain, entry.synonyms))) == len(entry.synonyms)
    for word in entry.synonyms:
        assert name in nearest(word), word
        assert entry in search(word), word
    assert entry in search(name)


def test_no_synonym_is_a_name() -> None:
    names = set(map(plain, CATALOGUE))
    assert len(names) == len(CATALOGUE)
    words = {word for each in (*CATALOGUE.values(), *BESIDE) for word in each.synonyms}
    assert all(word and word == word.strip() for word in words)
    assert names.isdisjoint(map(plain, words))


@pytest.mark.parametrize("entry", [*CATALOGUE.values(), *BESIDE], ids=lambda each: each.name)
def test_a_synonym_is_refused_as_a_name(entry) -> None:
    for word in entry.synonyms:
        with pytest.raises(UnknownName, match="no mechanism is called"):
            heed.Attention(word, query=4)


def test_a_misspelt_synonym_leads_home_too() -> None:
    assert nearest("bahdanu") == ["additive"]
    assert nearest("bilinaer")[0] == "general"
    assert nearest("gumble-softmax")[0] == "gumbel"


def test_another_spelling_of_a_name_is_that_name_alone() -> None:
    for word in ("Local_P", "local p", "local-p attention"):
        assert nearest(word) == ["local-p"]


def test_whole_words_are_searched_in_all_that_is_said_of_a_name() -> None:
    assert {each.name for each in search("raffel 2017")} == {"monotonic"}
    assert {each.name for each in search("REINFORCE")} == {"sample"}
    assert "forced-forward" not in {each.name for each in search("hard")}  # it says "hardly"
    assert search("xyzzy") == []
