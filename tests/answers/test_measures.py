"""The measures compared with results by hand and with sacreBLEU."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from heed.answers import measures
from heed.answers.measures import (
    alignment_error,
    bleu,
    by_length,
    check_tokeniser,
    chrf,
    lengths,
    links,
    of_words,
    tokeniser_for,
)
from heed.data.pairs import Links, read_alignments
from heed.errors import Refused, ShapeError, UnknownName

SAID = ["the cat sat on the mat .", "a Dog runs in the park today", "hello world again and again"]
MEANT = ["the cat sat on a mat .", "a dog runs in the park today", "hello world , once again"]


def test_bleu_and_chrf_equal_sacrebleu() -> None:
    assert bleu(SAID, MEANT).value == sacrebleu.corpus_bleu(SAID, [MEANT], force=True).score
    assert chrf(SAID, MEANT).value == sacrebleu.corpus_chrf(SAID, [MEANT]).score
    assert bleu(SAID, SAID).value == pytest.approx(100)


def test_bleu_by_hand() -> None:
    # 1- to 4-gram precisions 5/5, 4/4, 3/3, 2/2, and a reference of 6 words: exp(1 − 6/5).
    value = bleu(["a b c d e"], ["a b c d e f"]).value
    assert value == pytest.approx(100 * np.exp(-0.2))


def test_lowercase_and_the_tokeniser_affect_the_score_and_its_signature() -> None:
    plain, low = bleu(SAID, MEANT), bleu(SAID, MEANT, lowercase=True)
    assert low.value > plain.value
    assert "case:mixed" in plain.signature
    assert "case:lc" in low.signature
    assert "tok:13a" in plain.signature
    assert f"version:{sacrebleu.__version__}" in plain.signature
    chinese = bleu(["我爱中国和茶"], ["我爱中国和茶"], tokenise="zh")
    assert chinese.value == pytest.approx(100)  # 13a would see one word, and no 4-gram
    assert "tok:zh" in chinese.signature
    assert "case:lc" in chrf(SAID, MEANT, lowercase=True).signature


def test_texts_that_cannot_be_scored_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"3 translations .* 2 references"):
        bleu(SAID, MEANT[:2])
    with pytest.raises(Refused, match="no translations"):
        chrf([], [])
    with pytest.raises(UnknownName, match="13b"):
        bleu(SAID, MEANT, tokenise="13b")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(Refused, match=r"pip install heed-attention\[translate\]"):
        bleu(SAID, MEANT)


def test_a_length_on_a_border_belongs_to_the_shorter_range() -> None:
    said, meant = SAID * 2, MEANT * 2
    found = by_length(said, meant, [5, 6, 1, 10, 40, 7], [5, 10, 20])
    assert [(name, count) for name, count, _ in found] == [("1-5", 2), ("6-10", 3), ("21+", 1)]
    assert found[0][2] == bleu([said[0], said[2]], [meant[0], meant[2]]).value
    assert by_length(said, meant, [1] * 6, []) == [("all", 6, bleu(said, meant).value)]
    with pytest.raises(Refused, match="one length"):
        by_length(said, meant, [1], [5])


def test_links_are_the_largest_weights_source_first() -> None:
    assert links([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]) == [(1, 0), (0, 1)]
    assert links(np.zeros((0, 3))) == []
    with pytest.raises(ShapeError, match="T S"):
        links(np.zeros((2, 3, 4)))


def test_weights_of_pieces_are_summed_over_the_source_and_averaged_over_the_target() -> None:
    weight = np.array([[0.4, 0.3, 0.2, 0.1], [0.0, 0.2, 0.5, 0.3], [0.1, 0.1, 0.1, 0.7]])
    words = of_words(weight, target=[0, 0, -1], source=[0, 1, 1, -1])
    np.testing.assert_allclose(words, [[0.2, 0.6]])
    assert links(weight)[0] == (0, 0)
    assert links(words)[0] == (1, 0)  # the pieces of a word are averaged together
    np.testing.assert_allclose(of_words(weight, [0, 1, 2], [0, 1, 2, 3]), weight)
    with pytest.raises(ShapeError, match="2 target"):
        of_words(weight, [0, 1], [0, 1, 2, 3])


def test_alignment_error_by_hand() -> None:
    gold = Links(frozenset({(0, 0), (1, 2)}), frozenset({(2, 1)}))
    found = [(0, 0), (2, 1), (2, 2), (0, 3)]  # target word 3 has no link: not counted
    # A = 3, S = 2, A∩S = 1, A∩P = 2, since sure links are also possible.
    assert alignment_error([found], [gold]) == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert alignment_error([[(0, 0), (1, 1)]], [[(0, 0), (1, 1)]]) == 0
    assert alignment_error([[(1, 0), (0, 1)]], [[(0, 0), (1, 1)]]) == 1


def test_sure_and_possible_links_count_as_in_och_and_ney(tmp_path: Path) -> None:
    """Two sentences, counted on paper: A = 4 + 2, S = 2 + 1, A∩S = 1 + 1, A∩P = 3 + 2."""
    path = tmp_path / "gold"
    path.write_text("0-0-S 1-1-P 2-1-P 3-2 0-3-P\n0-0 1-1-P\n")
    found = [[(0, 0), (2, 1), (1, 2), (0, 3)], [(0, 0), (1, 1)]]
    gold = list(read_alignments(path))
    assert alignment_error(found, gold) == pytest.approx(1 - (2 + 5) / (6 + 3))
    # Possible links alone: none is missed, and a link outside them is an error.
    only = [Links(frozenset(), frozenset({(0, 0), (1, 1)}))]
    assert alignment_error([[(0, 0)]], only) == pytest.approx(1 - 1 / 1)
    assert alignment_error([[(1, 0)]], only) == 1


def test_alignment_error_counts_links_not_sentences() -> None:
    found = [[(0, 0)], [(1, 0), (1, 1), (2, 2)]]
    gold = [[(1, 0)], [(1, 0), (1, 1), (2, 2)]]
    assert alignment_error(found, gold) == pytest.approx(1 - 6 / 8)
    with pytest.raises(ValueError, match="shorter"):
        alignment_error(found, gold[:1])
    with pytest.raises(Refused, match="the gold alignment is empty"):
        alignment_error([[(0, 0)]], [[]])


def test_a_link_to_a_source_word_without_a_counterpart_is_an_error() -> None:
    assert alignment_error([[(5, 0), (1, 1)]], [[(0, 0), (1, 1)]]) == pytest.approx(0.5)


def test_the_baselines() -> None:
    assert measures.diagonal(4, 4) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert measures.diagonal(2, 4) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert measures.diagonal(5, 1) == [(2, 0)]
    assert measures.diagonal_error([(2, 2)], [[(0, 0), (0, 1)]]) == pytest.approx(0.5)
    # Each of the two aligned words is right once in four times.
    assert measures.uniform_error([(4, 9)], [[(0, 0), (1, 5)]]) == pytest.approx(0.75)


def test_the_uniform_baseline_equals_the_mean_of_random_links() -> None:
    rng = np.random.default_rng(0)
    gold = [[(int(rng.integers(6)), j) for j in range(5)] for _ in range(4000)]
    drawn = [[(int(rng.integers(6)), j) for j in range(5)] for _ in gold]
    expected = measures.uniform_error([(6, 5)] * len(gold), gold)
    assert alignment_error(drawn, gold) == pytest.approx(expected, abs=0.01)


def test_pharaoh_is_source_first_and_in_order() -> None:
    assert measures.to_pharaoh([(1, 2), (0, 0), (1, 1)]) == "0-0 1-1 1-2"
    assert measures.to_pharaoh([]) == ""


WRITTEN = {
    "Chinese": (["我爱中国，也爱喝茶。", "他昨天在北京买了三本书。"], "zh"),
    "Japanese": (["私は昨日、東京で本を三冊買いました。", "猫がテーブルの下で寝ている。"], "char"),
    "Japanese, few kana": (["東京都知事選挙の投票結果発表", "新型車両の運転開始"], "char"),
    "Thai": (["เมื่อวานฉันซื้อหนังสือสามเล่มที่กรุงเทพ", "แมวนอนอยู่ใต้โต๊ะ"], "char"),
    "Lao": (["ມື້ວານນີ້ຂ້ອຍຊື້ປຶ້ມສາມຫົວຢູ່ວຽງຈັນ"], "char"),
    "Khmer": (["ម្សិលមិញខ្ញុំបានទិញសៀវភៅបីក្បាលនៅភ្នំពេញ"], "char"),
    "Burmese": (["မနေ့က ကျွန်တော် ရန်ကုန်မှာ စာအုပ်သုံးအုပ် ဝယ်ခဲ့တယ်။"], "char"),
    "Tibetan": (["ཁ་སང་ང་ལྷ་སར་དེབ་གསུམ་ཉོས་པ་ཡིན།"], "char"),
    "Korean": (["저는 어제 서울에서 책을 세 권 샀습니다."], "13a"),
    "English": (["I bought three books in Tokyo yesterday."], "13a"),
    "Hindi": (["मैंने कल दिल्ली में तीन किताबें खरीदीं।"], "13a"),
    "Arabic": (["اشتريت ثلاثة كتب في القاهرة أمس."], "13a"),
    "English with Chinese": (["I love 中国 very much."], "13a"),
    "Chinese with English": (["我昨天在北京的书店买了三本关于USB的新书。"], "zh"),
    "Chinese with a kana": (
        ["我昨天在北京的書店買了三本關於茶の歷史與文化的新書，今天開始讀。"],
        "zh",
    ),
    "mostly English lines": (["我爱喝茶。", "The tea is good.", "We all drink it here."], "13a"),
    "English with much Thai": (["ประเทศไทย is a nice place."], "13a"),
    "Thai with Chinese": (["ร้านหนังสือในกรุงปักกิ่ง(北京)"], "char"),
    "Chinese with numbers": (["圆周率=3.14159265358979"], "zh"),
    "numbers alone": (["2024 3.14"], "13a"),
    "nothing": ([], "13a"),
}


@pytest.mark.parametrize("script", WRITTEN)
def test_bleu_cuts_words_by_the_script_of_most_letters(script: str) -> None:
    references, tokeniser = WRITTEN[script]
    assert tokeniser_for(references) == tokeniser


@pytest.mark.parametrize("script", ["Japanese", "Thai", "Lao", "Khmer", "Tibetan"])
def test_a_translation_into_an_unspaced_script_that_is_nearly_right_has_a_bleu(script: str) -> None:
    meant = WRITTEN[script][0]
    said = [text[:-2] + text[-1] for text in meant]  # a character is missing
    assert bleu(said, meant).value < 1e-9  # a word a line, and none of them the same
    found = bleu(said, meant, tokenise=tokeniser_for(meant))
    parted = [[" ".join(text) for text in texts] for texts in (said, meant)]
    theirs = sacrebleu.corpus_bleu(parted[0], [parted[1]], tokenize="none", force=True)
    assert found.value == pytest.approx(theirs.score)
    assert found.value > 70
    assert "tok:char" in found.signature


@pytest.mark.parametrize(
    ("name", "package", "cure"),
    [("ja-mecab", "MeCab", "sacrebleu[ja]"), ("ko-mecab", "mecab_ko", "sacrebleu[ko]")],
)
def test_a_tokeniser_whose_package_is_missing_is_refused_with_the_cure(
    name: str, package: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in [each for each in sys.modules if each.startswith("sacrebleu.tokenizers.")]:
        monkeypatch.delitem(sys.modules, module)  # it may have been imported with the package
    with pytest.raises(Refused, match=rf"{name} needs .*pip install '{re.escape(cure)}'") as error:
        check_tokeniser(name)
    assert "\n" not in str(error.value)
    check_tokeniser("char")
    with pytest.raises(UnknownName, match="ja-mecab"):
        check_tokeniser("mecab")


def test_lengths_are_words_or_characters_if_there_are_no_spaces() -> None:
    assert lengths(["i love china", "yes"]) == [3, 1]
    assert lengths(["我 爱 中国", "她 昨天 在 北京"]) == [3, 4]
    assert lengths(["我爱中国和你", "我昨天买了USB 线"]) == [6, 7]
