"""Labels for every place: where they stand, the loss, spans, and the same alone and in a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from heed.answers.form import Example
from heed.answers.labels import Labelling, Labels, LabelsObjective, span_scores, spans
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.data.kinds.text import Text
from heed.data.kinds.words import Words
from heed.data.tokenise import Tokeniser
from heed.models import tagger
from heed.models.tagger import TaggerSettings
from heed.running.passes import one_pass
from heed.training.settings import Training

SENTENCES = [
    ("the", "stirring", "film"),
    ("films",),
    (),
    ("a", "finest", "film", "so", "long", "that", "it", "ends"),
]
CPU = torch.device("cpu")


def worker(kind: str = "gru", cut: str = "bpe", **text: Any) -> Worker:
    torch.manual_seed(0)
    pieces = Tokeniser.train(cut, (" ".join(words) for words in SENTENCES), 40)  # type: ignore[arg-type]
    size = {"layers": 1, "width": 12, "heads": 2} if kind in ("bert", "transformer") else {}
    settings = TaggerSettings.model_validate({"encoder": {"kind": kind, **size}})
    network = tagger.build(settings, symbols=pieces.size, labels=3)
    words = Words(Text(pieces, gathers=settings.gathers, **text))
    return Worker(network, {"words": words}, Labels("abc", words), CPU)


def label(at_work: Worker, sentences: list[tuple[str, ...]]) -> list[Labelling]:
    return [best[0] for best in at_work.answers([(words,) for words in sentences])]


@pytest.mark.parametrize("kind", ["gru", "transformer", "bert"])
def test_every_word_has_a_label_alone_as_in_a_batch(kind: str) -> None:
    at_work = worker(kind)
    at_work.tokens = 30
    together = label(at_work, SENTENCES)
    for words, one in zip(SENTENCES, together, strict=True):
        assert len(one.labels) == len(words) == len(one.line().split())
        (alone,) = label(at_work, [words])
        assert alone.labels == one.labels
        assert alone.shares == pytest.approx(one.shares, rel=1e-4)


@pytest.mark.parametrize("kind", ["gru", "bert"])
def test_a_label_stands_at_the_first_piece_of_its_word(kind: str) -> None:
    at_work = worker(kind)
    words: Any = at_work.kind
    example = Example((SENTENCES[0],), ("b", "a", "c"))
    ((row,), (labels,)) = words.whole([SENTENCES[0]]), at_work.form.rows([example])["labels"]
    assert len(labels) == len(row) > 5
    (places,) = words.places([SENTENCES[0]])
    assert [labels[place] for place in places] == [2, 1, 3]
    assert sum(each > 0 for each in labels) == 3
    spelt = words.spelt(row, SENTENCES[0])
    assert len(spelt) == len(row)
    assert [spelt[place][0] for place in places] == [" "] * 3
    assert "".join(spelt[kind == "bert" : -1]).split() == list(SENTENCES[0])


def test_words_beyond_what_is_read_have_no_label() -> None:
    at_work = worker(cut="word", longest=5)
    (found,) = label(at_work, [SENTENCES[3]])
    assert len(found.labels) == 4
    assert "only 4 of 8 words were read" in found.remark
    (labels,) = at_work.form.rows([Example((SENTENCES[3],), tuple("abcabcab"))])["labels"]
    assert labels == [1, 2, 3, 1, 0]


def test_the_loss_is_the_cross_entropy_of_the_words() -> None:
    at_work = worker()
    examples = [Example((SENTENCES[0],), ("b", "a", "c")), Example((SENTENCES[1],), ("c",))]
    words: Any = at_work.kind
    total, wanted = 0.0, {"b": 1, "a": 0, "c": 2}
    for (sentence,), answer, _ in examples:
        (row,), (places,) = words.rows([sentence]), words.places([sentence])
        with torch.no_grad():
            logits = at_work.model.eval()(torch.tensor([row]), torch.tensor([len(row)])).logits[0]
        gold = torch.tensor([wanted[each] for each in answer])
        total += float(cross_entropy(logits[places], gold, reduction="sum"))
    assert at_work.loss(examples) == pytest.approx(total / 4, rel=1e-5)
    rows = [torch.tensor(row) for row in at_work.form.rows(examples)["labels"]]
    padded = torch.nn.utils.rnn.pad_sequence(rows, True)
    given = at_work.given(at_work.rows([each.inputs for each in examples]))
    batch = Batch(
        {"words": given[0], "labels": padded},
        {"words": given[1], "labels": given[1]},
        torch.arange(2),
    )
    objective = LabelsObjective("words", Training(steps=1))
    assert objective.count(batch) == 4
    with torch.no_grad():
        loss = objective(at_work.model, batch).total
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_spans_are_those_that_a_reader_sees() -> None:
    assert spans(["B-a", "I-a", "O", "I-b", "B-b", "I-a"]) == {
        (0, 2, "a"),
        (3, 4, "b"),
        (4, 5, "b"),
        (5, 6, "a"),
    }
    assert spans(["S-a", "B-a", "E-a", "E-b"]) == {(0, 1, "a"), (1, 3, "a"), (3, 4, "b")}
    assert spans(["NOUN", "VERB"]) == set()
    gold, said = [["B-a", "I-a", "O", "B-b"]], [["B-a", "I-a", "O", "B-a"]]
    assert span_scores(gold, said) == (50, 50, 50)
    assert span_scores([["NOUN"]], [["NOUN"]]) == (None, None, None)
    one = span_scores([["B-a", "O"]], [["B-a", "B-a"]])
    assert one == pytest.approx((200 / 3, 50, 100))


def test_scores_by_hand() -> None:
    at_work = worker()
    examples = [Example((SENTENCES[0],), ("a", "a", "c")), Example((SENTENCES[1],), ("b",))]
    said = [Labelling("", SENTENCES[0], ("a", "b", "c")), Labelling("", SENTENCES[1], ("b",))]
    found = at_work.form.judged(at_work, examples, said)
    assert (found.sentences, found.words, found.unread) == (2, 4, 0)
    assert (found.accuracy, found.floor, found.span_f1) == (75, 50, None)


def test_the_attention_between_words_is_kept() -> None:
    at_work = worker("transformer")
    found = one_pass(at_work, (SENTENCES[0],), gold=("a", "b", "c"))
    (layer,) = found.look.takes[0].layers
    assert len(layer.keys) == len(at_work.kind.rows([SENTENCES[0]])[0])
    (path,) = found.calls
    assert found.walk(path, 0, 0).agrees
    blank = one_pass(at_work, ((),))
    assert (blank.look.text, blank.look.takes, dict(blank.calls)) == ("", [], {})
