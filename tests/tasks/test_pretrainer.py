"""Hidden words are predicted: the same alone and in a batch, and never by looking at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heed.data.masked_words import with_mask
from heed.data.pretraining_batches import Remade
from heed.data.tokenise import BOS, EOS, Tokeniser
from heed.models.text_settings import BertSettings
from heed.models.xlnet_settings import XLNetSettings
from heed.tasks.pretrain import Hidden, Ordered, build, judged, maker
from heed.tasks.pretrainer import Pretrainer, ask

CPU = torch.device("cpu")
TEXTS = ["the cat sat on the mat .", "a dog came , too !", "dogs and cats run away ; we stay ."]
DOCUMENTS = [TEXTS[:2], TEXTS[2:] * 2, [TEXTS[1], TEXTS[0], TEXTS[2]]] * 4
LINES = [
    "the [MASK] sat on the [MASK] .",
    "",
    "a dog <mask>",
    "no mask at all",
    "the cat [MASK] on the mat . we [MASK] away ; the dogs and the cats [MASK] .",
]
OBJECTIVES: dict[str, Any] = {
    "pairs": Hidden(),
    "masked": Hidden(next_sentence=False),
    "permutation": Ordered(),
}


@pytest.fixture(scope="module")
def tokeniser() -> Tokeniser:
    return with_mask(Tokeniser.train("bpe", TEXTS * 3, 60))


@pytest.fixture(params=list(OBJECTIVES))
def objective(request: pytest.FixtureRequest) -> Any:
    return OBJECTIVES[request.param]


def worker(tokeniser: Tokeniser, objective: Any, **kept: Any) -> Pretrainer:
    """Random and sharp, so that every symbol matters."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"layers": 2, "width": 12, "heads": 2, "initial": 0.5}
    ordered = isinstance(objective, Ordered)
    model: Any = XLNetSettings(**sizes) if ordered else BertSettings(longest=40, **sizes)
    network = build(model, objective, symbols=tokeniser.size, longest=40).double()
    pairs = not ordered and objective.next_sentence
    kept = {"places": None if ordered else 40, **kept}
    return Pretrainer(network, tokeniser, CPU, ordered=ordered, pairs=pairs, **kept)


def test_a_line_alone_equals_the_line_in_a_batch(tokeniser: Tokeniser, objective: Any) -> None:
    found = worker(tokeniser, objective).fill(LINES)
    small = worker(tokeniser, objective, tokens=1)
    assert [each.source for each in found] == LINES
    for line, filled in zip(LINES, found, strict=True):
        (alone,) = small.fill([line])
        assert alone.text == filled.text
        assert len(filled.words) == line.count("[MASK]") + line.count("<mask>")
        for one, other in zip(alone.words, filled.words, strict=True):
            assert [w for w, _ in one] == [w for w, _ in other]
            assert [p for _, p in one] == pytest.approx([p for _, p in other], rel=1e-4)
        for named in filled.words:
            assert len(named) == 5
            assert [p for _, p in named] == sorted((p for _, p in named), reverse=True)
            assert not {w for w, _ in named} & {"<pad>", "<unk>", "<s>", "</s>", "<mask>"}
    assert found[1].text == ""
    assert found[3].text == "no mask at all"
    assert "[MASK]" not in found[4].text
    assert found[0].text.split()[0] == "the"


def test_punctuation_after_a_mask_has_no_space(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    mask = given.symbols.mask
    spaced, close = (given._row(f"a [MASK]{end}").ids for end in (" .", "."))
    assert spaced[-2] == tokeniser.encode(["."])[0][0]
    assert close[-3:-1] == [mask, tokeniser.encode(["a."])[0][-2]]
    assert close[-2] != spaced[-2]
    assert (close[0], close[-1]) == (BOS, EOS)


def test_a_piece_that_continues_a_word_is_marked_but_not_in_the_text(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    every = int(given.symbols.plain.sum())
    (words,) = given.fill(["a do[MASK]"], best=every)[0].words
    assert {"##s", "the", "."} <= {word for word, _ in words}
    for line in ("a do[MASK]", "the [MASK]", "a [MASK] sat"):
        (found,) = given.fill([line], best=1)
        assert found.text == line.replace("[MASK]", found.words[0][0][0].removeprefix("##"))
    (read,) = given.fill(["the doggy sat"])
    assert "".join(read.pieces).count("##") == len(read.pieces) - 5  # a beginning, an end, 3 words


def test_two_texts_with_a_tab_between_them_are_a_pair(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["pairs"])
    row = given._row("the cat\ta [MASK]")
    middle = row.ids.index(EOS)
    assert row.segments == [0] * (middle + 1) + [1] * (len(row.ids) - middle - 1)
    pair, turned, single = given.fill(["the cat\ta [MASK]", "a [MASK]\tthe cat", "the cat"])
    assert pair.follows is not None
    assert turned.follows is not None
    assert 0 < pair.follows < 1
    assert abs(pair.follows - turned.follows) > 1e-4
    assert single.follows is None
    assert not any(found.joined for found in (pair, turned, single))
    plain = worker(tokeniser, OBJECTIVES["masked"])
    (one,) = plain.fill(["the cat\ta [MASK]"])
    assert one.follows is None
    assert one.joined
    half = given.fill(["\ta dog"])[0]  # one of the two is blank: no pair
    assert half.follows is None


def test_texts_beyond_the_positions_are_cut_and_reported(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    line = "the [MASK] " + "cat " * 60 + "[MASK]"
    (found,) = given.fill([line])
    assert found.unread > 0
    assert len(found.pieces) == 40
    assert len(found.words) == 1
    assert found.text.endswith("[MASK]")
    assert worker(tokeniser, OBJECTIVES["permutation"]).fill([line])[0].unread == 0
    few = worker(tokeniser, OBJECTIVES["permutation"], places=10)
    (found,) = few.fill([line])
    assert len(found.pieces) == 10
    assert found.pieces[-2:] == ["</s>", "<s>"]
    assert found.unread == len(few._coded(line)) - 8


def test_the_score_of_a_text_sums_over_its_hidden_symbols(
    tokeniser: Tokeniser, objective: Any
) -> None:
    given = worker(tokeniser, objective)
    make = maker(given.documents(DOCUMENTS), given.symbols, objective, 24)
    batches = Remade(make, tokens=100, seed=1, fixed=True)
    scores = judged(list(given.read(batches.epoch(0))))
    surprise = right = words = wrong = pairs = 0.0
    seen: list[int] = []
    with torch.inference_mode():
        for batch in batches.epoch(0):
            for i in range(len(batch.rows)):
                if batch.rows[i] < 0:
                    continue
                n = int(batch.lengths["text"][i])
                wide = {"text", "segments", "order", "predicted"}
                tokens = {
                    k: v[i : i + 1, :n] if k in wide else v[i : i + 1]
                    for k, v in batch.tokens.items()
                }
                said = ask(given.model, tokens, torch.tensor([n]))
                log_p = said.words.form()[0].log_softmax(-1)
                for k, label in enumerate(tokens["labels"][0].tolist()):
                    if label:
                        surprise -= float(log_p[k, label])
                        right += int(log_p[k].argmax()) == label
                        seen.append(label)
                        words += 1
                if said.follows is not None:
                    label = int(tokens["follows"]) - 1
                    wrong -= float(said.follows[0].log_softmax(-1)[label])
                    pairs += 1
    assert scores.words == words
    assert scores.loss == pytest.approx(surprise / words, rel=1e-5)
    assert scores.accuracy == pytest.approx(100 * right / words)
    share = np.unique(seen, return_counts=True)[1] / words
    assert scores.words_entropy == pytest.approx(-(share * np.log(share)).sum())
    assert scores.unigram_loss is None
    assert scores.pairs == pairs
    if pairs:
        assert scores.follows_loss == pytest.approx(wrong / pairs, rel=1e-5)


def test_no_prediction_depends_on_the_symbol_that_is_predicted(tokeniser: Tokeniser) -> None:
    """XLNet reads the whole text: only the order hides what a row predicts."""
    given = worker(tokeniser, OBJECTIVES["permutation"])
    make = maker(given.documents(DOCUMENTS), given.symbols, OBJECTIVES["permutation"], 24)
    batch = next(Remade(make, tokens=200, seed=1).epoch(0))
    given.model.eval()
    lengths = batch.lengths["text"]
    with torch.inference_mode():
        before = ask(given.model, batch.tokens, lengths).words.form()
        for k in range(batch.tokens["places"].shape[1]):
            places = batch.tokens["places"][:, k]
            real = places >= 0
            text = batch.tokens["text"].clone()
            text[real, places[real]] = 5 + (text[real, places[real]] - 4) % (tokeniser.size - 6)
            after = ask(given.model, {**batch.tokens, "text": text}, lengths).words.form()
            assert torch.equal(after[real, k], before[real, k])
            order = batch.tokens["order"].gather(1, batch.tokens["places"].clamp(min=0))
            later = (order > order[:, k : k + 1]) & (batch.tokens["places"] >= 0) & real[:, None]
            if later.any():
                assert not torch.equal(after[later], before[later])


def test_where_a_prediction_looked(tokeniser: Tokeniser, objective: Any) -> None:
    given = worker(tokeniser, objective)
    found = given.fill(LINES, look=True)[0]
    assert len(found.heads) == 2
    for weight in found.heads.values():
        assert weight.shape == (2, len(found.pieces), len(found.pieces))
        assert weight.sum(-1) == pytest.approx(1, abs=1e-5)
    sharp = given.sharpness(LINES[:1])
    assert set(sharp) == set(found.heads)
    assert all(0 < each["sharpness"] <= 1 for each in sharp.values())
