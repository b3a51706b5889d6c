"""Hidden words are predicted: the same alone and in a batch, and never by looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from heed.answers.form import Example
from heed.answers.hidden import Filled, Hidden, HiddenWords, Ordered, ask
from heed.answers.hidden_scores import HiddenWordScores
from heed.answers.worker import Worker
from heed.data.documents import Documents
from heed.data.kinds.text import MaskedText
from heed.data.masked_words import with_mask
from heed.data.pretraining_batches import Remade
from heed.data.tokenise import BOS, EOS, Tokeniser
from heed.models.text_settings import BertSettings
from heed.models.xlnet_settings import XLNetSettings
from heed.tasks.pretrain import build

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


def worker(
    tokeniser: Tokeniser, objective: Any, places: int | None = 40, tokens: int | None = None
) -> Worker:
    """Random and sharp, so that every symbol matters."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"layers": 2, "width": 12, "heads": 2, "initial": 0.5}
    ordered = isinstance(objective, Ordered)
    model: Any = XLNetSettings(**sizes) if ordered else BertSettings(longest=40, **sizes)
    network = build(model, objective, symbols=tokeniser.size, longest=40).double()
    places = None if ordered and places == 40 else places
    form = HiddenWords(tokeniser, objective, longest=24, places=places)
    kind = MaskedText(tokeniser, form.symbols.mask, paired=form.is_paired)
    return Worker(network, {"text": kind}, form, CPU, tokens)


def filled(given: Worker, lines: Sequence[str], best: int = 5) -> list[Filled]:
    return [found[0] for found in given.answers([(line,) for line in lines], None, best)]


def framed(given: Worker, line: str) -> Any:
    ((sides,),) = given.rows([(line,)])
    return given.form.framed(sides)


def documents(given: Worker) -> Documents:
    texts = (given.kind.pieces.encode(text) for text in DOCUMENTS)
    return Documents.of([ids[:-1] for ids in text] for text in texts)


def test_a_line_alone_equals_the_line_in_a_batch(tokeniser: Tokeniser, objective: Any) -> None:
    found = filled(worker(tokeniser, objective), LINES)
    small = worker(tokeniser, objective, tokens=1)
    assert [each.source for each in found] == LINES
    for line, one_of_many in zip(LINES, found, strict=True):
        (alone,) = filled(small, [line])
        assert alone.filled == one_of_many.filled
        assert len(one_of_many.words) == line.count("[MASK]") + line.count("<mask>")
        for one, other in zip(alone.words, one_of_many.words, strict=True):
            assert [w for w, _ in one] == [w for w, _ in other]
            assert [p for _, p in one] == pytest.approx([p for _, p in other], rel=1e-4)
        for named in one_of_many.words:
            assert len(named) == 5
            assert [p for _, p in named] == sorted((p for _, p in named), reverse=True)
            assert not {w for w, _ in named} & {"<pad>", "<unk>", "<s>", "</s>", "<mask>"}
    assert found[1].filled == ""
    assert found[3].filled == "no mask at all"
    assert "[MASK]" not in found[4].filled
    assert found[0].filled.split()[0] == "the"


def test_punctuation_after_a_mask_has_no_space(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    mask = given.form.symbols.mask
    spaced, close = (framed(given, f"a [MASK]{end}").ids for end in (" .", "."))
    assert spaced[-2] == tokeniser.encode(["."])[0][0]
    assert close[-3:-1] == [mask, tokeniser.encode(["a."])[0][-2]]
    assert close[-2] != spaced[-2]
    assert (close[0], close[-1]) == (BOS, EOS)


def test_a_piece_that_continues_a_word_is_marked_but_not_in_the_text(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    every = int(given.form.symbols.plain.sum())
    (words,) = filled(given, ["a do[MASK]"], best=every)[0].words
    assert {"##s", "the", "."} <= {word for word, _ in words}
    for line in ("a do[MASK]", "the [MASK]", "a [MASK] sat"):
        (found,) = filled(given, [line], best=1)
        assert found.filled == line.replace("[MASK]", found.words[0][0][0].removeprefix("##"))
    (read,) = filled(given, ["the doggy sat"])
    assert "".join(read.pieces).count("##") == len(read.pieces) - 5  # a beginning, an end, 3 words


def test_two_texts_with_a_tab_between_them_are_a_pair(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["pairs"])
    row = framed(given, "the cat\ta [MASK]")
    middle = row.ids.index(EOS)
    assert row.segments == [0] * (middle + 1) + [1] * (len(row.ids) - middle - 1)
    pair, turned, single = filled(given, ["the cat\ta [MASK]", "a [MASK]\tthe cat", "the cat"])
    assert pair.follows is not None
    assert turned.follows is not None
    assert 0 < pair.follows < 1
    assert abs(pair.follows - turned.follows) > 1e-4
    assert single.follows is None
    assert not any(found.joined for found in (pair, turned, single))
    plain = worker(tokeniser, OBJECTIVES["masked"])
    (one,) = filled(plain, ["the cat\ta [MASK]"])
    assert one.follows is None
    assert one.joined
    half = filled(given, ["\ta dog"])[0]  # one of the two is blank: no pair
    assert half.follows is None


def test_texts_beyond_the_positions_are_cut_and_reported(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    line = "the [MASK] " + "cat " * 60 + "[MASK]"
    (found,) = filled(given, [line])
    assert found.unread > 0
    assert len(found.pieces) == 40
    assert len(found.words) == 1
    assert found.filled.endswith("[MASK]")
    assert filled(worker(tokeniser, OBJECTIVES["permutation"]), [line])[0].unread == 0
    few = worker(tokeniser, OBJECTIVES["permutation"], places=10)
    (found,) = filled(few, [line])
    assert len(found.pieces) == 10
    assert found.pieces[-2:] == ["</s>", "<s>"]
    assert found.unread == len(few.kind.whole([line])[0][0]) - 8


def test_the_score_of_a_text_sums_over_its_hidden_symbols(
    tokeniser: Tokeniser, objective: Any
) -> None:
    given = worker(tokeniser, objective)
    batches = Remade(given.form.maker(documents(given)), tokens=100, seed=1, fixed=True)
    scores = HiddenWordScores.of(list(given.form.read(given, (), batches)))
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
    batch = next(Remade(given.form.maker(documents(given)), tokens=200, seed=1).epoch(0))
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


def test_documents_are_read_the_same_each_time(tokeniser: Tokeniser, objective: Any) -> None:
    """As a validation reads them: once coded, the same words are hidden."""
    given = worker(tokeniser, objective)
    examples = [Example((tuple(sentences),), True) for sentences in DOCUMENTS]
    first, again = given.read(examples), given.read(list(examples))
    assert [each.nats for each in first] == [each.nats for each in again]
    scores = HiddenWordScores.of(first)
    assert scores.words == sum(each.count for each in first) > 20
    assert given.loss(examples) == scores.total
    assert (scores.follows_loss is not None) == given.form.is_paired


def test_what_is_seen_while_a_line_is_read(tokeniser: Tokeniser, objective: Any) -> None:
    given = worker(tokeniser, objective)
    examples = [Example((line,), None) for line in (LINES[0], LINES[4])]
    rows = given.rows([each.inputs for each in examples])
    seen = given.form.seen(given, examples, rows)
    assert len(seen) == 2
    lengths = [len(each.pieces) for each in filled(given, [LINES[0], LINES[4]])]
    for record, counts in seen.values():
        assert counts.tolist() == lengths
        weight = record.weight[0, :, : lengths[0], : lengths[0]]
        assert weight.shape == (2, lengths[0], lengths[0])
        torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight[..., 0]))
    sharp = given.sharpness(examples[:1])
    assert set(sharp) == set(seen)
    assert all(0 < each["sharpness"] <= 1 for each in sharp.values())


def test_the_first_hidden_word_asks(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["masked"])
    for line in (LINES[0], "no mask at all"):
        (found,) = filled(given, [line])
        first = given.form.first(given, found)
        assert found.pieces[first] == ("<mask>" if "[MASK]" in line else "<s>")


def test_a_line_lists_words_only_if_several_are_asked_for(tokeniser: Tokeniser) -> None:
    given = worker(tokeniser, OBJECTIVES["pairs"])
    for best, cells in ((1, 1), (3, 3)):
        (found,) = filled(given, [LINES[0]], best)
        line = given.form.as_line([found], best)
        assert line == found.line()
        assert len(line.split("\t")) == cells
        assert [len(named) for named in found.words] == [best, best]
    (pair,) = filled(given, ["a\tb [MASK]"], 1)
    assert pair.text.split("\t")[-1].startswith("follows 0.")
