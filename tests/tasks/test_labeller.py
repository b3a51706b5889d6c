"""A labeller: the same alone and in a batch, blank texts stay blank, and cut texts are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from heed.data.labelled import Labelled
from heed.data.letters import MOST
from heed.data.tokenise import BOS, EOS, UNK, Tokeniser
from heed.errors import Refused
from heed.models.classifier import ClassifierSettings, build
from heed.tasks.cutting import Cutting, Words, load_cutting
from heed.tasks.labeller import Labeller

TEXTS = [
    "a fine film",
    "",
    "dull",
    "  ",
    "a film so long that it ends here . . . .",
    "zzz \x1b[31m",
]
CPU = torch.device("cpu")


def labeller(
    pool: str = "static/additive", kind: str = "gru", heads: int = 1, **words: Any
) -> Labeller:
    torch.manual_seed(0)
    tokeniser = Tokeniser.train("word", TEXTS[:5], 50)
    size = {"layers": 1, "width": 12, "heads": 2, "longest": 12} if kind == "bert" else {}
    settings = ClassifierSettings(encoder={"kind": kind, **size}, pool=pool, heads=heads)  # type: ignore[arg-type]
    model = build(settings, symbols=tokeniser.size, labels=3)
    return Labeller(model, Words(Cutting(tokeniser), ("a", "b", "c"), **words), CPU)


def test_there_is_an_answer_for_each_text_and_blank_ones_stay_blank() -> None:
    found = labeller().label(TEXTS, look=True)
    assert [each.text for each in found] == TEXTS
    assert [bool(each.label) for each in found] == [bool(text.strip()) for text in TEXTS]
    assert found[1] == found[1].__class__("")
    for each in found:
        if each.label:
            assert sum(each.shares.values()) == pytest.approx(1)
            assert each.probability == max(each.shares.values()) == each.shares[each.label]
            assert list(each.shares.values()) == sorted(each.shares.values(), reverse=True)


@pytest.mark.parametrize("kind", ["gru", "cnn", "bert"])
def test_a_text_alone_equals_the_text_in_a_batch(kind: str) -> None:
    worker = labeller(kind=kind, gathers="first" if kind == "bert" else None, longest=12)
    worker.tokens = 20
    together = worker.label(TEXTS, look=True)
    for text, one in zip(TEXTS, together, strict=True):
        (alone,) = worker.label([text], look=True)
        assert alone.label == one.label
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)
        if one.weight is not None and alone.weight is not None:
            np.testing.assert_allclose(alone.weight, one.weight, atol=1e-6)


def test_the_weights_are_of_the_words_that_were_read() -> None:
    first, *_, long, _ = labeller(longest=6).label(TEXTS, look=True)
    assert first.pieces == ["a", "fine", "film", "</s>"]
    assert first.weight is not None
    assert first.weight.shape == (4,)
    assert first.weight.sum() == pytest.approx(1)
    assert (first.cut, first.remark) == (False, "")
    assert long.cut
    assert long.pieces == ["a", "film", "so", "long", "that", "</s>"]
    assert "only 6 of 13 symbols were read" in long.remark
    assert labeller().label(TEXTS[:1])[0].weight is None  # not asked for
    several = labeller(heads=3)
    (said,) = several.label(TEXTS[:1], look=True)
    looks = several._said(several.words.encode(TEXTS[:1]), TEXTS[:1], look=True).seen["pool"].weight
    assert looks.shape == (1, 3, 1, 4)
    assert said.weight is not None
    np.testing.assert_allclose(said.weight, looks[0, :, 0].mean(0), atol=1e-6)


def test_every_head_of_a_transformer_is_returned() -> None:
    worker = labeller("first", "bert", gathers="first", longest=12)
    first, *_ = worker.label(TEXTS, look=True)
    assert first.weight is None
    assert first.pieces == ["<s>", "a", "fine", "film", "</s>"]
    assert {path: weight.shape for path, weight in first.heads.items()} == {"0.self": (2, 5, 5)}


def test_surprise_is_cross_entropy() -> None:
    worker = labeller()
    rows = [Labelled(text, label) for text, label in zip(TEXTS[::2], "abc", strict=True)]
    ids = worker.words.encode([row.text for row in rows])
    total = 0.0
    for n, each in enumerate(ids):
        logits = worker.model.eval()(torch.tensor([each]), torch.tensor([len(each)])).logits
        total += float(cross_entropy(logits.detach(), torch.tensor([n])))
    assert worker.surprise(rows) == pytest.approx(total / 3, rel=1e-5)


def test_the_sharpness_of_each_attention() -> None:
    found = labeller().sharpness(TEXTS[:1])["pool"]
    (judgement,) = labeller().label(TEXTS[:1], look=True)
    weight = judgement.weight
    assert weight is not None
    assert found["sharpness"] == pytest.approx(weight.max(), rel=1e-5)
    assert found["entropy"] == pytest.approx(-(weight * np.log(weight)).sum(), rel=1e-4)


SPELT = ["a fine film", "finest films", "fine", "films"]


def spelling(kind: str = "cnn") -> Labeller:
    torch.manual_seed(0)
    tokeniser = Cutting(Tokeniser.train("word", SPELT, 50))
    settings = ClassifierSettings(encoder={"kind": kind}, letters=(2, 4))  # type: ignore[arg-type]
    letters = tokeniser.letters(2, 4)
    model = build(settings, symbols=tokeniser.size, labels=3, letters=(letters.size, MOST))
    assert model.spelled is not None
    model.spelled.known.copy_(letters.known)
    with torch.no_grad():
        model.spelled.table.weight *= 20  # as if they had been trained
    words = Words(tokeniser, ("a", "b", "c"), longest=6, letters=letters)
    return Labeller(model, words, CPU)


@torch.no_grad()
def plainly(worker: Labeller, text: str) -> float:
    """The first label's share, given the symbols of a text."""
    ids = torch.tensor(worker.words.encode([text]))
    logits = worker.model.eval()(ids, torch.tensor([ids.shape[1]])).logits
    return float(logits.softmax(-1)[0, 0])


def test_unknown_words_are_read_by_their_letters() -> None:
    worker = spelling()
    finer, filmy, bare = worker.label(["a finer film", "a filmy film", "a ??? film"])
    assert finer.pieces == ["a", "finer", "film", "</s>"]
    assert finer.shares["a"] != pytest.approx(filmy.shares["a"], rel=1e-3)
    (ids,) = worker.words.encode(["a finer film"])
    assert [i == UNK for i in ids] == [False, True, False, False]
    # Without its letters it is unknown.
    blind = plainly(worker, "a finer film")
    assert finer.shares["a"] != pytest.approx(blind, rel=1e-3)
    assert bare.pieces[1:4] == ["?", "?", "?"]  # punctuation shares no letters with any word
    assert bare.shares["a"] == pytest.approx(plainly(worker, "a ??? film"), rel=1e-4)


@pytest.mark.parametrize("kind", ["gru", "cnn"])
def test_unknown_words_alone_and_in_a_batch(kind: str) -> None:
    worker = spelling(kind)
    texts = ["a finer film", "films", "", "Refined filmy finesse  fills films at last", "ñ fine"]
    together = worker.label(texts)
    assert together[3].cut
    for text, one in zip(texts, together, strict=True):
        (alone,) = worker.label([text])
        assert alone.pieces == one.pieces
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)
    rows = [Labelled(each.text, each.label) for each in together if each.label]
    expected = [-np.log(each.probability) for each in together if each.label]
    assert worker.surprise(rows) == pytest.approx(np.mean(expected), rel=1e-4)


def test_subwords_are_not_spelled() -> None:
    pieces = Cutting(Tokeniser.train("bpe", SPELT * 3, 50))
    with pytest.raises(Refused, match="letters need whole words, but the tokens are bpe"):
        pieces.letters(3, 5)


def test_special_symbols_and_a_cut() -> None:
    words = labeller(gathers="first", longest=4).words
    (whole,) = words.whole(["a fine film"])
    assert (whole[0], whole[-1], len(whole)) == (BOS, EOS, 5)
    assert words.encode(["a fine film"]) == [[*whole[:3], EOS]]
    others = [labeller(gathers="first", longest=5).words, labeller(longest=4).words]
    assert len({each.fingerprint for each in (words, *others)}) == 3


def test_a_pretrained_vocabulary_cuts_by_its_own_rules(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    wordpiece = tokenizers.BertWordPieceTokenizer(
        {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "fine": 5, "##st": 6}
    )
    (tmp_path / "tokenizer.json").write_text(wordpiece.to_str())
    cutting = load_cutting(tmp_path / "tokenizer.json")
    assert cutting.framed
    assert cutting.encode(["Finest"]) == [[2, 5, 6, 3]]
    assert cutting.pieces([2, 5, 6, 3]) == ["[CLS]", "fine", "##st", "[SEP]"]
    words = Words(cutting, ("a", "b"), gathers="first")
    assert words.encode(["finest"]) == [[2, 5, 6, 3]]  # it adds its own special symbols
    cutting.save(tmp_path / "again.json")
    assert load_cutting(tmp_path / "again.json").fingerprint == cutting.fingerprint


def test_an_invalid_tokeniser_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refused, match=r"tokenizer\.json"):
        load_cutting(tmp_path / "tokenizer.json")
    (tmp_path / "large.json").write_bytes(b" " * (2**20 + 256 * 10 + 1))
    with pytest.raises(Refused, match="too large for a tokeniser of 10 symbols"):
        load_cutting(tmp_path / "large.json", 10)
    with pytest.raises(Refused, match="No such file"):
        load_cutting(tmp_path / "nowhere.json")
