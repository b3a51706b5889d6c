"""Written texts: the same alone and in a batch, and with the model's own probabilities.

The models are random and sharpened, in double precision: their output makes no sense but depends on
every symbol, so that rows in the wrong place would show.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from heed.answers.form import Example
from heed.answers.text import Decoding, Text, WrittenText, shifted
from heed.answers.worker import Worker
from heed.data.kinds.text import Text as TextKind
from heed.data.pairs import Links
from heed.data.tokenise import BOS, EOS, Tokeniser
from heed.errors import Refused
from heed.models import building
from heed.running.passes import one_pass

CPU = torch.device("cpu")
SOURCE = [chr(ord("a") + i) for i in range(20)]
TARGET = [2 * letter.upper() for letter in SOURCE[:12]]
SENTENCES = ["b", "a b c d e f g", "h i", "", "j k l m n", "c c c", "  ", "t s r q p o n m l k"]
PAIRS = [
    Example(("a b c",), "AA BB"),
    Example(("d",), "CC"),
    Example(("e f g h i j",), "DD EE FF GG HH"),
    Example(("k l",), "AA AA AA AA"),
]
RECURRENT: dict[str, Any] = {"kind": "recurrent", "embedding": 12, "hidden": 16}
SMALL = {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "feed": 24, "heads": 2}
TRANSFORMER: dict[str, Any] = {"kind": "transformer", **SMALL}
STATEFUL = {
    "coverage": {**RECURRENT, "attention": "coverage/additive"},
    "monotonic": {**RECURRENT, "attention": "monotonic"},
    "location-aware": {**RECURRENT, "attention": "location-aware", "decoder": "luong"},
}
LOOKING = {
    "search": {**RECURRENT, "decoder": "search"},
    "luong": {**RECURRENT, "decoder": "luong", "cell": "lstm"},
    "plain luong": {**RECURRENT, "decoder": "luong", "input_feeding": False},
    "local-p": {**RECURRENT, "decoder": "luong", "attention": "local-p/general"},
    "transformer": TRANSFORMER,
    "post-norm transformer": {**TRANSFORMER, "norm": "post", "cross_attention": "additive"},
    **STATEFUL,
}
MODELS = {**LOOKING, "fixed": {**RECURRENT, "decoder": "fixed"}}
GREEDY = Decoding(method="greedy", longest=9)
BEAM = Decoding(method="beam", width=3, longest=9)


SOURCES = Tokeniser.train("word", [" ".join(SOURCE)], 100)
TARGETS = Tokeniser.train("word", [" ".join(TARGET)], 100)


def worker_of(settings: dict[str, Any], longest: int = 30, tokens: int = 4000) -> Worker:
    torch.manual_seed(3)
    chosen: Any = TypeAdapter(building.Model).validate_python({"dropout": 0, **settings})
    sizes = {"source": SOURCES.size, "target": TARGETS.size, "longest": longest}
    model = building.build(chosen, shared=False, **sizes).double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(2.5)
    source = TextKind(SOURCES, longest=building.reads(chosen, longest))
    form = Text(TextKind(TARGETS), writes=building.writes(chosen, longest))
    return Worker(model, {"source": source}, form, CPU, tokens)


def narrower(worker: Worker, tokens: int) -> Worker:
    return Worker(worker.model, worker.inputs, worker.form, CPU, tokens)


def written(
    worker: Worker, sentences: list[str], decoding: Decoding, best: int = 1, first: int = 0
) -> list[list[WrittenText]]:
    return worker.answers([(sentence,) for sentence in sentences], decoding, best, first)


def same(found: WrittenText, expected: WrittenText) -> None:
    assert (found.source, found.text) == (expected.source, expected.text)
    assert found.symbols == expected.symbols
    assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-9)


@pytest.mark.parametrize("decoding", [GREEDY, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", MODELS)
def test_a_sentence_alone_equals_the_sentence_in_a_batch(name: str, decoding: Decoding) -> None:
    worker = worker_of(MODELS[name])
    together = written(worker, SENTENCES, decoding)
    assert [best[0].source for best in together] == SENTENCES
    for sentence, best in zip(SENTENCES, together, strict=True):
        same(best[0], written(worker, [sentence], decoding)[0][0])
    texts = {best[0].text for best in together if best[0].source.strip()}
    assert len(texts) > 1, "the model says the same to all: nothing is shown by this"


def test_batches_of_any_size_give_the_same() -> None:
    wide = worker_of(LOOKING["search"])
    found = written(wide, SENTENCES, BEAM)
    for tokens in (1, 12, 25):
        narrow = narrower(wide, tokens)
        batches = list(narrow.stream([(sentence,) for sentence in SENTENCES], BEAM))
        assert sorted(i for batch in batches for i in batch) == [0, 1, 2, 4, 5, 7]  # no blank ones
        for batch in batches:
            longest = max(len(SENTENCES[i].split()) + 1 for i in batch)
            assert len(batch) * longest <= tokens or len(batch) == 1
        for a, b in zip(written(narrow, SENTENCES, BEAM), found, strict=True):
            same(a[0], b[0])


def test_a_blank_sentence_stays_blank() -> None:
    worker = worker_of(LOOKING["search"])
    for decoding in (BEAM, Decoding(method="sample")):
        found = written(worker, ["", "a", " \t\u3000"], decoding, best=2)
        assert [len(each) for each in found] == [1, 2, 1]
        for (blank,) in (found[0], found[2]):
            assert (blank.text, blank.symbols, blank.log_prob, blank.line()) == ("", (), 0, "")
    assert written(worker, [], BEAM) == []


def test_the_best_are_ordered_and_differ() -> None:
    worker = worker_of(LOOKING["luong"])
    even = BEAM.model_copy(update={"length_penalty": 0.0})
    for best in written(worker, ["a b c", "d e f g"], even, best=5):  # more than the width
        scores = [each.log_prob for each in best]
        assert len(best) == 5
        assert scores == sorted(scores, reverse=True)
        assert len({each.symbols for each in best}) == 5
        told = worker.form.as_json(best)
        assert told["source"] == best[0].source
        assert told["answers"] == [{"text": b.text, "log_prob": b.log_prob} for b in best]
    with pytest.raises(Refused, match="greedy search has one answer, not 2"):
        written(worker, ["a b c"], GREEDY, best=2)


def test_a_sample_depends_on_the_seed_and_the_number_of_its_input_alone() -> None:
    worker = worker_of(LOOKING["search"])
    drawn = [
        [best[0].text for best in written(worker, SENTENCES, Decoding(method="sample", seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    warm = Decoding(method="sample", temperature=3.0, longest=9)
    found = written(worker, ["a b c"] * 40, warm, best=2)
    assert len({each.text for some in found for each in some}) > 60
    for n in (0, 17):
        (alone,) = written(narrower(worker, 1), ["a b c"], warm, best=2, first=n)
        for one, other in zip(alone, found[n], strict=True):
            same(one, other)
    cold = Decoding(method="sample", temperature=1e-3, longest=9)
    same(written(worker, ["a b c"], cold)[0][0], written(worker, ["a b c"], GREEDY)[0][0])


@pytest.mark.parametrize(
    ("options", "changes", "many", "says"),
    [
        ({}, {}, 1, None),
        ({"best": 3}, {"method": "beam"}, 3, None),
        ({"samples": 3, "seed": 2}, {"method": "sample", "seed": 2}, 3, None),
        (
            {"best": 2, "method": "sample"},
            {},
            0,
            "--best 2 needs --method beam; to sample: --samples 2",
        ),
        ({"best": 2, "method": "greedy"}, {}, 0, "beam; greedy search has one answer"),
        ({"best": 2, "samples": 2}, {}, 0, "--best 2 is for beam search, --samples 2 for samp"),
        ({"best": 1001}, {}, 0, "--best is 1000 at most"),
    ],
)
def test_several_answers_are_the_best_of_a_beam_or_samples(
    options: dict[str, Any], changes: dict[str, Any], many: int, says: str | None
) -> None:
    if says is None:
        assert Text.asked(dict(options)) == (changes, many)
        return
    with pytest.raises(Refused, match=says):
        Text.asked(dict(options))


def test_a_text_is_bounded_by_its_input_or_by_the_settings_alone() -> None:
    worker = worker_of(LOOKING["search"])
    endless = Decoding(method="greedy", longest=60)
    with torch.no_grad():
        worker.model.decoder.out.bias[EOS] = -1e9  # the text never ends by itself
    ((text,),) = written(worker, ["a b"], endless)
    assert len(text.symbols) == 20 + 2 * 3
    worker.form.bounded = False
    ((text,),) = written(worker, ["a b"], endless)
    assert len(text.symbols) == 60


def test_a_source_longer_than_the_table_of_location_is_cut() -> None:
    settings = {**RECURRENT, "attention": "location", "decoder": "luong"}
    worker = worker_of(settings, longest=5)
    cut, whole = written(worker, ["a b c d e f g h", "a b c d"], GREEDY)
    assert worker.words((cut[0].source,)) == ["a", "b", "c", "d", "</s>"]
    assert cut[0].symbols == whole[0].symbols
    pairs = [Example((text,), "AA BB") for text in ("a b c d e f g h", "a b c d")]
    long, short = worker.read(pairs, look=True)
    assert long.nats == pytest.approx(short.nats)
    assert long.links == short.links
    assert (long.whole, short.whole) == (False, True)
    other = worker_of(LOOKING["luong"], longest=5)
    assert len(other.words((cut[0].source,))) == 9
    long, short = other.read(pairs, look=True)
    assert long.nats != pytest.approx(short.nats)
    assert long.whole


def step_by_step(worker: Worker, pair: Example) -> tuple[float, torch.Tensor | None]:
    """The log-probability of a target and the weights, one symbol at a time.    T S"""
    (source,), (target,) = SOURCES.encode(list(pair.inputs)), TARGETS.encode([pair.answer])
    carry = worker.model.begin(torch.tensor([source]), torch.tensor([len(source)]), need="weight")
    total, looks = 0.0, []
    for before, symbol in zip([BOS, *target], target, strict=False):
        step = worker.model.step(carry, torch.tensor([before]))
        total += float(step.logits[0].log_softmax(-1)[symbol])
        looks.append(step.weight)
        carry = step.carry
    return total, None if looks[0] is None else torch.cat(looks)


@pytest.mark.parametrize("name", MODELS)
def test_surprise_equals_that_of_single_steps(name: str) -> None:
    worker = worker_of(MODELS[name])
    with torch.inference_mode():
        for pair, reading in zip(PAIRS, worker.read(PAIRS, look=True), strict=True):
            total, looks = step_by_step(worker, pair)
            assert reading.nats == pytest.approx(-total, rel=1e-5)
            assert reading.count == len(pair.answer.split()) + 1
            if looks is None:
                assert reading.links is None
                assert reading.entropy is None
                continue
            places = looks[:-1, :-1].argmax(1).tolist()  # words are symbols here, except the ends
            assert reading.links == [(i, j) for j, i in enumerate(places)]
            share = looks / looks.sum(1, keepdim=True).clamp(min=1e-30)
            spread = -torch.special.xlogy(share, share).sum(1).mean()
            assert reading.entropy == pytest.approx(float(spread), abs=1e-5)


@pytest.mark.parametrize("name", ["search", "monotonic", "transformer"])
def test_batches_do_not_change_what_is_read(name: str) -> None:
    wide = worker_of(MODELS[name])
    readings = wide.read(PAIRS, look=True)
    for tokens in (1, 14):
        for a, b in zip(narrower(wide, tokens).read(PAIRS, look=True), readings, strict=True):
            assert (a.count, a.links) == (b.count, b.links)
            assert a.nats == pytest.approx(b.nats, rel=1e-5)
            assert a.entropy == pytest.approx(b.entropy, abs=1e-5)
    blind = wide.read(PAIRS)
    assert [each.links for each in blind] == [None] * len(PAIRS)
    assert [each.nats for each in blind] == pytest.approx([each.nats for each in readings])
    assert wide.loss(PAIRS) == pytest.approx(
        sum(each.nats for each in readings) / sum(each.count for each in readings)
    )


def test_right_texts_count_in_the_size_of_a_batch() -> None:
    """A text may be much longer than its input."""
    worker, sizes = worker_of(LOOKING["search"], tokens=20), []
    worker.model.register_forward_pre_hook(lambda _, given: sizes.append(given[2].shape))
    worker.read([Example(("a",), " ".join(TARGET[:9]))] * 5)
    assert sizes == [(2, 10), (2, 10), (1, 10)]


@pytest.mark.parametrize("name", LOOKING)
def test_the_alignment_is_that_of_the_whole_text(name: str) -> None:
    worker, seen = worker_of(LOOKING[name]), 0
    for sentence in ("b", "a b c d e f g", "t s r q p o n m l k"):
        look = one_pass(worker, (sentence,), choice=BEAM, best=3).look
        (source,) = SOURCES.encode([sentence])
        for found, take in zip(look.readings, look.takes, strict=True):
            ids, lengths = torch.tensor([[*found.symbols, EOS]]), torch.tensor([len(source)])
            with torch.no_grad():
                said = worker.model(torch.tensor([source]), lengths, shifted(ids), need="weight")
                log_prob = said.logits.log_softmax(-1).gather(2, ids[..., None]).sum()
            assert found.log_prob == take.score == pytest.approx(float(log_prob))
            expected = worker.model.alignment(said.seen)[0].numpy()
            shown = np.mean([panel.weight for panel in take.layers[take.opens].panels()], 0)
            np.testing.assert_allclose(shown, expected, atol=1e-4)
            seen += len(found.symbols) > 1
        (panel,) = look.leading
        best = look.readings[0]
        assert panel.title == "alignment"
        assert panel.rows == tuple(worker.labels(worker.form.target, best.symbols, None))
        assert panel.columns == (*sentence.split(), "</s>")  # the end of the text is left out
    assert seen > 3


def test_another_models_text_is_read_in_its_own_symbols() -> None:
    worker = worker_of(LOOKING["luong"])
    theirs = WrittenText("a b", "CC AA", -1.0, (9, 9, 9, 9))
    look = one_pass(worker, ("a b",), choice=BEAM, given=[theirs]).look
    (take,) = look.takes
    assert take.layers[0].queries == ("CC", "AA", "</s>")
    assert math.isnan(take.score)
    assert look.text != "CC AA"


def test_weights_of_pieces_are_summed_by_word() -> None:
    """The largest weight is on `c`, but more of it on the two pieces of `ab`."""
    tokeniser = Tokeniser.train("character", ["ab c", "x yz"], size=40)
    source, target = tokeniser.words("ab c"), tokeniser.words("x yz")
    weight = np.zeros((len(target), len(source)), np.float32)
    across = [np.flatnonzero(np.equal(source, word)) for word in (0, 1, -1)]
    down = [np.flatnonzero(np.equal(target, word)) for word in (0, 1, -1)]
    for row in down[0]:
        weight[row, across[0][-2:]] = 0.3  # a and b: 0.6 together
        weight[row, across[1][-1]] = 0.4
    weight[down[1][-2], across[1][-1]] = 0.5  # y: c, but mostly the end, which is not a word
    weight[down[1][-2], across[2]] = 0.9
    weight[down[1][-1], across[0][-1]] = 0.4  # z: b, less than y looks at c
    weight[down[2], across[0][0]] = 5.0  # the weights of the target's end count for no word
    kind = TextKind(tokeniser)
    worker = Worker(torch.nn.Linear(1, 1), {"source": kind}, Text(kind), CPU)
    found = worker.form.aligned(worker, Example(("ab c",), "x yz"), weight)
    assert found == [(0, 0), (1, 1)]


def test_links_of_words_become_links_of_all_their_pieces() -> None:
    """Character pieces, a space before each word: _ab _c </s>, _xy _z </s>."""
    source = Tokeniser.train("character", ["ab c"], size=40)
    target = Tokeniser.train("character", ["xy z"], size=40)
    assert source.spelt(source.encode(["ab c"])[0]) == [" ", "a", "b", " ", "c", "</s>"]
    form = Text(TextKind(target), guide=TextKind(source), longest=9)
    sure, possible = frozenset({(0, 1)}), frozenset({(0, 1), (1, 1)})
    example = Example(("ab c",), "xy z", Links(sure, possible))
    found = form.links(example)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(s, t) for s in (0, 1, 2, 3, 4) for t in (3, 4)}
    assert form.rows([example])["links"] == [found]
    assert form.links(example._replace(gold=None)) == []
    assert form.links(example._replace(gold=Links(frozenset(), frozenset()))) == []
    assert list(Text(TextKind(target)).rows([example])) == ["target"]
    assert form.gold_of_data(form.gold_as_data(example.gold)) == example.gold


def test_uniform_attention_has_the_entropy_of_its_length() -> None:
    """Scores of zero: each of S places gets 1/S, and -Σ 1/S log 1/S is log S."""
    worker = worker_of({**RECURRENT, "decoder": "luong", "attention": "general"})
    with torch.no_grad():
        for name, weight in worker.model.named_parameters():
            if "attention" in name:
                weight.zero_()
    sizes = [(len(pair.inputs[0].split()) + 1, len(pair.answer.split()) + 1) for pair in PAIRS]
    for reading, (S, _) in zip(worker.read(PAIRS, look=True), sizes, strict=True):
        assert reading.entropy == pytest.approx(math.log(S), abs=1e-6)
    (figures,) = worker.sharpness(PAIRS).values()
    rows = sum(T for _, T in sizes)
    assert figures["entropy"] == pytest.approx(sum(T * math.log(S) for S, T in sizes) / rows)
    assert figures["sharpness"] == pytest.approx(sum(T / S for S, T in sizes) / rows)


def test_every_attention_is_averaged_over_its_own_pairs() -> None:
    """A single sentence has no padding: the mean over pairs by hand is the result."""
    worker = worker_of(TRANSFORMER)
    together, alone = worker.sharpness(PAIRS), [worker.sharpness([pair]) for pair in PAIRS]
    assert {path.rpartition(".")[2] for path in together} >= {"cross", "self"}
    for path, figures in together.items():
        inside = path.startswith("encoder")
        rows = [len((e.inputs[0] if inside else e.answer).split()) + 1 for e in PAIRS]
        for name, value in figures.items():
            mean = sum(n * each[path][name] for n, each in zip(rows, alone, strict=True))
            assert value == pytest.approx(mean / sum(rows)), (path, name)


def test_the_symbols_before_each_symbol() -> None:
    labels = torch.tensor([[5, 6, EOS], [7, EOS, 0]])
    assert shifted(labels).tolist() == [[BOS, 5, 6], [BOS, 7, EOS]]
