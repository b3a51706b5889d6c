"""A labeller: alone and in company alike, blank stays blank, and what is cut is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from heed.data.labelled import Labelled
from heed.data.tokenise import BOS, EOS, Tokeniser
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


def test_as_many_answers_as_texts_and_blank_ones_stay_blank() -> None:
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
def test_alone_and_in_company_alike(kind: str) -> None:
    worker = labeller(kind=kind, framed=kind == "bert", longest=12)
    worker.tokens = 20
    together = worker.label(TEXTS, look=True)
    for text, one in zip(TEXTS, together, strict=True):
        (alone,) = worker.label([text], look=True)
        assert alone.label == one.label
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)
        if one.weight is not None and alone.weight is not None:
            np.testing.assert_allclose(alone.weight, one.weight, atol=1e-6)


def test_the_weights_are_those_of_the_words_that_were_read() -> None:
    first, *_, long, _ = labeller(longest=6).label(TEXTS, look=True)
    assert first.pieces == ["a", "fine", "film", "</s>"]
    assert first.weight is not None
    assert first.weight.shape == (4,)
    assert first.weight.sum() == pytest.approx(1)
    assert (first.cut, first.remark) == (False, "")
    assert long.cut
    assert long.pieces == ["a", "film", "so", "long", "that", "</s>"]
    assert "only 6 of 13 symbols were read" in long.remark
    assert labeller().label(TEXTS[:1])[0].weight is None  # nobody asked
    several = labeller(heads=3)
    (said,) = several.label(TEXTS[:1], look=True)
    looks = several._said(several.words.encode(TEXTS[:1]), look=True).seen["pool"].weight
    assert looks.shape == (1, 3, 1, 4)
    assert said.weight is not None
    np.testing.assert_allclose(said.weight, looks[0, :, 0].mean(0), atol=1e-6)


def test_every_head_of_a_transformer_is_there() -> None:
    worker = labeller("first", "bert", framed=True, longest=12)
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


def test_how_sharp_each_attention_is() -> None:
    found = labeller().sharpness(TEXTS[:1])["pool"]
    (judgement,) = labeller().label(TEXTS[:1], look=True)
    weight = judgement.weight
    assert weight is not None
    assert found["sharpness"] == pytest.approx(weight.max(), rel=1e-5)
    assert found["entropy"] == pytest.approx(-(weight * np.log(weight)).sum(), rel=1e-4)


def test_a_frame_and_a_cut() -> None:
    words = labeller(framed=True, longest=4).words
    (whole,) = words.whole(["a fine film"])
    assert (whole[0], whole[-1], len(whole)) == (BOS, EOS, 5)
    assert words.encode(["a fine film"]) == [[*whole[:3], EOS]]
    others = [labeller(framed=True, longest=5).words, labeller(longest=4).words]
    assert len({each.fingerprint for each in (words, *others)}) == 3


def test_a_pretrained_vocabulary_cuts_as_its_own_rules_say(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    wordpiece = tokenizers.BertWordPieceTokenizer(
        {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "fine": 5, "##st": 6}
    )
    (tmp_path / "tokenizer.json").write_text(wordpiece.to_str())
    cutting = load_cutting(tmp_path / "tokenizer.json")
    assert cutting.framed
    assert cutting.encode(["Finest"]) == [[2, 5, 6, 3]]
    assert cutting.pieces([2, 5, 6, 3]) == ["[CLS]", "fine", "##st", "[SEP]"]
    words = Words(cutting, ("a", "b"), framed=True)
    assert words.encode(["finest"]) == [[2, 5, 6, 3]]  # it has a frame of its own
    cutting.save(tmp_path / "again.json")
    assert load_cutting(tmp_path / "again.json").fingerprint == cutting.fingerprint


def test_what_is_no_tokeniser_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refused, match=r"tokenizer\.json"):
        load_cutting(tmp_path / "tokenizer.json")
    (tmp_path / "large.json").write_bytes(b" " * (2**20 + 256 * 10 + 1))
    with pytest.raises(Refused, match="too large for a tokeniser of 10 symbols"):
        load_cutting(tmp_path / "large.json", 10)
    with pytest.raises(Refused, match="No such file"):
        load_cutting(tmp_path / "nowhere.json")
