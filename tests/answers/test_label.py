"""Labels: the same alone and in a batch, blank texts stay blank, and cut texts are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from heed.answers.form import Example
from heed.answers.label import Judgement
from heed.answers.worker import Worker
from heed.data.kinds.text import Text, load
from heed.data.letters import MOST
from heed.data.tokenise import BOS, EOS, UNK, Tokeniser
from heed.errors import Refused
from heed.models.classifier import ClassifierSettings, build
from heed.running.passes import one_pass
from heed.tasks.classify import TextLabel, letters_of

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
) -> Worker:
    torch.manual_seed(0)
    tokeniser = Tokeniser.train("word", TEXTS[:5], 50)
    size = {"layers": 1, "width": 12, "heads": 2, "longest": 12} if kind == "bert" else {}
    settings = ClassifierSettings(encoder={"kind": kind, **size}, pool=pool, heads=heads)  # type: ignore[arg-type]
    model = build(settings, symbols=tokeniser.size, labels=3)
    return Worker(model, {"text": Text(tokeniser, **words)}, TextLabel("abc"), CPU)


def label(worker: Worker, texts: list[str]) -> list[Judgement]:
    return [best[0] for best in worker.answers([(text,) for text in texts])]


def test_there_is_an_answer_for_each_text_and_blank_ones_stay_blank() -> None:
    found = label(labeller(), TEXTS)
    assert [each.source for each in found] == TEXTS
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
    together = label(worker, TEXTS)
    for text, one in zip(TEXTS, together, strict=True):
        (alone,) = label(worker, [text])
        assert alone.label == one.label
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)


def test_the_weights_are_of_the_words_that_were_read() -> None:
    worker = labeller(longest=6)
    (weighed,) = one_pass(worker, (TEXTS[0],)).look.weighed
    assert list(weighed.words) == ["a", "fine", "film", "</s>"]
    assert sum(weighed.weights) == pytest.approx(1, abs=1e-3)  # as maps are kept
    first, long = label(worker, [TEXTS[0], TEXTS[4]])
    assert (first.cut, first.remark) == (False, "")
    assert long.cut
    assert "only 6 of 13 symbols were read" in long.remark
    (weighed,) = one_pass(worker, (TEXTS[4],)).look.weighed
    assert list(weighed.words) == ["a", "film", "so", "long", "that", "</s>"]
    several = labeller(heads=3)
    mean, *heads = one_pass(several, (TEXTS[0],)).look.weighed
    given = several.given(several.rows([(TEXTS[0],)]))
    with torch.inference_mode():
        looks = several.model(*given, need="weight").seen["pool"].weight
    assert looks.shape == (1, 3, 1, 4)
    np.testing.assert_allclose([head.weights for head in heads], looks[0, :, 0], atol=1e-4)
    np.testing.assert_allclose(mean.weights, looks[0, :, 0].mean(0), atol=1e-4)


def test_every_head_of_a_transformer_is_shown() -> None:
    worker = labeller("first", "bert", gathers="first", longest=12)
    look = one_pass(worker, (TEXTS[0],)).look
    assert not look.weighed
    (layer,) = look.takes[0].layers
    assert layer.keys == ("<s>", "a", "fine", "film", "</s>")
    assert [head.shape for head in layer.heads] == [(5, 5), (5, 5)]


def test_surprise_is_cross_entropy() -> None:
    worker = labeller()
    rows = [Example((text,), label) for text, label in zip(TEXTS[::2], "abc", strict=True)]
    ids = [row[0] for row in worker.rows([each.inputs for each in rows])]
    total = 0.0
    for n, each in enumerate(ids):
        logits = worker.model.eval()(torch.tensor([each]), torch.tensor([len(each)])).logits
        total += float(cross_entropy(logits.detach(), torch.tensor([n])))
    assert worker.loss(rows) == pytest.approx(total / 3, rel=1e-5)


def test_the_sharpness_of_each_attention() -> None:
    found = labeller().sharpness([Example((TEXTS[0],), "a")])["pool"]
    (weighed,) = one_pass(labeller(), (TEXTS[0],)).look.weighed
    weight = np.array(weighed.weights)
    assert found["sharpness"] == pytest.approx(weight.max(), rel=1e-3)
    assert found["entropy"] == pytest.approx(-(weight * np.log(weight)).sum(), rel=1e-3)


SPELT = ["a fine film", "finest films", "fine", "films"]


def spelling(kind: str = "cnn") -> Worker:
    torch.manual_seed(0)
    tokeniser = Tokeniser.train("word", SPELT, 50)
    settings = ClassifierSettings(encoder={"kind": kind}, letters=(2, 4))  # type: ignore[arg-type]
    letters = letters_of(tokeniser, 2, 4)
    model = build(settings, symbols=tokeniser.size, labels=3, letters=(letters.size, MOST))
    assert model.spelled is not None
    model.spelled.known.copy_(letters.known)
    with torch.no_grad():
        model.spelled.table.weight *= 20  # as if they had been trained
    return Worker(model, {"text": Text(tokeniser, longest=6)}, TextLabel("abc", letters), CPU)


@torch.no_grad()
def plainly(worker: Worker, text: str) -> float:
    """The first label's share, given the symbols of a text."""
    ids = torch.tensor(worker.kind.rows([text]))
    logits = worker.model.eval()(ids, torch.tensor([ids.shape[1]])).logits
    return float(logits.softmax(-1)[0, 0])


def test_unknown_words_are_read_by_their_letters() -> None:
    worker = spelling()
    finer, filmy, bare = label(worker, ["a finer film", "a filmy film", "a ??? film"])
    assert worker.words(("a finer film",)) == ["a", "finer", "film", "</s>"]
    assert finer.shares["a"] != pytest.approx(filmy.shares["a"], rel=1e-3)
    (ids,) = worker.kind.rows(["a finer film"])
    assert [i == UNK for i in ids] == [False, True, False, False]
    # Without its letters it is unknown.
    blind = plainly(worker, "a finer film")
    assert finer.shares["a"] != pytest.approx(blind, rel=1e-3)
    assert worker.words(("a ??? film",))[1:4] == [
        "?",
        "?",
        "?",
    ]  # punctuation shares no letters with any word
    assert bare.shares["a"] == pytest.approx(plainly(worker, "a ??? film"), rel=1e-4)


@pytest.mark.parametrize("kind", ["gru", "cnn"])
def test_unknown_words_alone_and_in_a_batch(kind: str) -> None:
    worker = spelling(kind)
    texts = ["a finer film", "films", "", "Refined filmy finesse  fills films at last", "ñ fine"]
    together = label(worker, texts)
    assert together[3].cut
    for text, one in zip(texts, together, strict=True):
        (alone,) = label(worker, [text])
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)
    rows = [Example((each.source,), each.label) for each in together if each.label]
    expected = [-np.log(each.probability) for each in together if each.label]
    assert worker.loss(rows) == pytest.approx(np.mean(expected), rel=1e-4)


def test_subwords_are_not_spelled() -> None:
    pieces = Tokeniser.train("bpe", SPELT * 3, 50)
    with pytest.raises(Refused, match="letters need whole words, but the tokens are bpe"):
        letters_of(pieces, 3, 5)


def test_special_symbols_and_a_cut() -> None:
    pieces = Tokeniser.train("word", TEXTS[:5], 50)
    kind = Text(pieces, gathers="first", longest=4)
    (whole,) = kind.whole(["a fine film"])
    assert (whole[0], whole[-1], len(whole)) == (BOS, EOS, 5)
    assert kind.rows(["a fine film"]) == [[*whole[:3], EOS]]
    others = [Text(pieces, gathers="first", longest=5), Text(pieces, longest=4)]
    assert len({each.fingerprint for each in (kind, *others)}) == 3


def test_a_pretrained_vocabulary_cuts_by_its_own_rules(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    wordpiece = tokenizers.BertWordPieceTokenizer(
        {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "fine": 5, "##st": 6}
    )
    (tmp_path / "tokenizer.json").write_text(wordpiece.to_str())
    pieces = load(tmp_path / "tokenizer.json")
    kind = Text(pieces, gathers="first")
    assert kind.is_framed
    assert kind.rows(["Finest"]) == [[2, 5, 6, 3]]  # it adds its own special symbols
    assert Worker.labels(kind, [2, 5, 6, 3], "Finest") == ["[CLS]", "fine", "##st", "[SEP]"]
    pieces.save(tmp_path / "again.json")
    assert load(tmp_path / "again.json").fingerprint == pieces.fingerprint


def test_an_invalid_tokeniser_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refused, match=r"tokenizer\.json"):
        load(tmp_path / "tokenizer.json")
    (tmp_path / "large.json").write_bytes(b" " * (2**20 + 256 * 10 + 1))
    with pytest.raises(Refused, match="too large for a tokeniser of 10 symbols"):
        load(tmp_path / "large.json", 10)
    with pytest.raises(Refused, match="No such file"):
        load(tmp_path / "nowhere.json")
