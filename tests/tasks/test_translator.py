"""A model at work: the same alone and in a batch, with its own weights and probabilities.

The models are random and sharpened, in double precision: their output makes no sense but depends on
every symbol, so that rows in the wrong place would show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from heed.data.pairs import Links
from heed.data.tokenise import BOS, EOS, Tokeniser
from heed.models import building
from heed.tasks.cutting import labels
from heed.tasks.translator import (
    Decoding,
    Example,
    Tokens,
    Translation,
    Translator,
    Vocabulary,
    shifted,
)

CPU = torch.device("cpu")
SOURCE = [chr(ord("a") + i) for i in range(20)]
TARGET = [2 * letter.upper() for letter in SOURCE[:12]]
SENTENCES = ["b", "a b c d e f g", "h i", "", "j k l m n", "c c c", "  ", "t s r q p o n m l k"]
PAIRS = [
    Example("a b c", "AA BB"),
    Example("d", "CC"),
    Example("e f g h i j", "DD EE FF GG HH"),
    Example("k l", "AA AA AA AA"),
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


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    texts = [Example(" ".join(SOURCE), " ".join(TARGET))]
    return Vocabulary.train(Tokens(kind="word", size=100), lambda: iter(texts))


def translator(
    vocabulary: Vocabulary, settings: dict[str, Any], longest: int = 30, tokens: int = 4000
) -> Translator:
    torch.manual_seed(3)
    chosen: Any = TypeAdapter(building.Model).validate_python({"dropout": 0, **settings})
    model = building.build(
        chosen,
        source=vocabulary.source.size,
        target=vocabulary.target.size,
        shared=vocabulary.shared,
        longest=longest,
    ).double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(2.5)
    reads = building.reads(chosen, longest)
    return Translator(model, vocabulary, CPU, longest=reads, tokens=tokens)


def same(found: Translation, expected: Translation) -> None:
    assert (found.source, found.text) == (expected.source, expected.text)
    assert (found.columns, found.rows) == (expected.columns, expected.rows)
    assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-9)
    assert (found.weight is None) == (expected.weight is None)
    if found.weight is not None and expected.weight is not None:
        np.testing.assert_allclose(found.weight, expected.weight, atol=1e-6)


@pytest.mark.parametrize("decoding", [GREEDY, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", MODELS)
def test_a_sentence_alone_equals_the_sentence_in_a_batch(
    name: str, decoding: Decoding, vocabulary: Vocabulary
) -> None:
    model = translator(vocabulary, MODELS[name])
    together = model.translate(SENTENCES, decoding, look=True)
    assert [best[0].source for best in together] == SENTENCES
    for sentence, best in zip(SENTENCES, together, strict=True):
        same(best[0], model.translate([sentence], decoding, look=True)[0][0])
    texts = {best[0].text for best in together if best[0].source.strip()}
    assert len(texts) > 1, "the model says the same to all: nothing is shown by this"


def test_batches_of_any_size_give_the_same(vocabulary: Vocabulary) -> None:
    wide = translator(vocabulary, LOOKING["search"])
    found = wide.translate(SENTENCES, BEAM)
    for tokens in (1, 12, 25):
        narrow = Translator(wide.model, vocabulary, CPU, tokens=tokens)
        batches = list(narrow.stream(SENTENCES, BEAM))
        assert sorted(i for batch in batches for i in batch) == [0, 1, 2, 4, 5, 7]  # no blank ones
        for batch in batches:
            longest = max(len(SENTENCES[i].split()) + 1 for i in batch)
            assert len(batch) * longest <= tokens or len(batch) == 1
        for a, b in zip(narrow.translate(SENTENCES, BEAM), found, strict=True):
            same(a[0], b[0])


def test_a_blank_sentence_stays_blank(vocabulary: Vocabulary) -> None:
    model = translator(vocabulary, LOOKING["search"])
    for decoding in (GREEDY, BEAM, Decoding(method="sample")):
        found = model.translate(["", "a", " \t\u3000"], decoding, best=2, look=True)
        for i in (0, 2):
            (blank,) = found[i]
            assert (blank.text, blank.rows, blank.columns, blank.weight) == ("", [], [], None)
    assert model.translate([], BEAM) == []


def test_the_best_are_ordered_and_differ(vocabulary: Vocabulary) -> None:
    model = translator(vocabulary, LOOKING["luong"])
    even = BEAM.model_copy(update={"length_penalty": 0.0})
    for best in model.translate(["a b c", "d e f g"], even, best=5):  # more than the width
        scores = [each.log_prob for each in best]
        assert len(best) == 5
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(each.rows) for each in best}) == 5
    (one,) = model.translate(["a b c"], even, best=1)
    assert one[0].log_prob == pytest.approx(
        model.translate(["a b c"], even.model_copy(update={"width": 3}), best=1)[0][0].log_prob
    )


def test_sampling_is_reproducible_by_its_seed(vocabulary: Vocabulary) -> None:
    model = translator(vocabulary, LOOKING["search"])
    drawn = [
        [best[0].text for best in model.translate(SENTENCES, Decoding(method="sample", seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    cold = Decoding(method="sample", temperature=1e-3, longest=9)
    same(model.translate(["a b c"], cold)[0][0], model.translate(["a b c"], GREEDY)[0][0])


def test_a_source_longer_than_the_table_of_location_is_cut(vocabulary: Vocabulary) -> None:
    settings = {**RECURRENT, "attention": "location", "decoder": "luong"}
    model = translator(vocabulary, settings, longest=5)
    cut, whole = model.translate(["a b c d e f g h", "a b c d"], GREEDY, look=True)
    assert cut[0].columns == whole[0].columns == ["a", "b", "c", "d", "</s>"]
    assert cut[0].rows == whole[0].rows
    long, short = (Example(text, "AA BB") for text in ("a b c d e f g h", "a b c d"))
    assert model.read([long])[0].surprise == pytest.approx(model.read([short])[0].surprise)
    assert model.read([long])[0].links == model.read([short])[0].links
    other = translator(vocabulary, LOOKING["luong"], longest=5)
    assert len(other.translate(["a b c d e f g h"], GREEDY)[0][0].columns) == 9
    assert other.read([long])[0].surprise != pytest.approx(other.read([short])[0].surprise)


def step_by_step(model: Translator, pair: Example) -> tuple[float, torch.Tensor | None]:
    """The log-probability of a target and the weights, one symbol at a time.    T S"""
    (source,) = model.vocabulary.source.encode([pair.source])
    (target,) = model.vocabulary.target.encode([pair.target])
    carry = model.model.begin(torch.tensor([source]), torch.tensor([len(source)]), need="weight")
    total, looks = 0.0, []
    for before, symbol in zip([BOS, *target], target, strict=False):
        step = model.model.step(carry, torch.tensor([before]))
        total += float(step.logits[0].log_softmax(-1)[symbol])
        looks.append(step.weight)
        carry = step.carry
    return total, None if looks[0] is None else torch.cat(looks)


@pytest.mark.parametrize("name", MODELS)
def test_surprise_equals_that_of_single_steps(name: str, vocabulary: Vocabulary) -> None:
    model = translator(vocabulary, MODELS[name])
    with torch.inference_mode():
        for pair, reading in zip(PAIRS, model.read(PAIRS), strict=True):
            total, looks = step_by_step(model, pair)
            assert reading.surprise == pytest.approx(-total, rel=1e-5)
            assert reading.symbols == len(pair.target.split()) + 1
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
def test_batches_do_not_change_what_is_read(name: str, vocabulary: Vocabulary) -> None:
    wide = translator(vocabulary, MODELS[name])
    readings = wide.read(PAIRS)
    for tokens in (1, 14):
        narrow = Translator(wide.model, vocabulary, CPU, tokens=tokens)
        for a, b in zip(narrow.read(PAIRS), readings, strict=True):
            assert (a.symbols, a.links) == (b.symbols, b.links)
            assert a.surprise == pytest.approx(b.surprise, rel=1e-5)
            assert a.entropy == pytest.approx(b.entropy, abs=1e-5)
    blind = wide.read(PAIRS, look=False)
    assert [each.links for each in blind] == [None] * len(PAIRS)
    assert [each.surprise for each in blind] == pytest.approx([each.surprise for each in readings])


@pytest.mark.parametrize("name", LOOKING)
def test_the_weights_of_a_beam_are_those_of_the_whole_text(
    name: str, vocabulary: Vocabulary
) -> None:
    model = translator(vocabulary, LOOKING[name])
    number = {label: i for i, label in enumerate(labels(vocabulary.target, range(4, 17)), 4)}
    assert len(number) == 13
    seen = 0
    for best in model.translate([s for s in SENTENCES if s.strip()], BEAM, look=True, best=3):
        for found in best:
            source, rows = vocabulary.source.encode([found.source])[0], [*found.rows, "</s>"]
            ids = torch.tensor([[number.get(label, EOS) for label in rows]])
            lengths = torch.tensor([len(source)])
            with torch.no_grad():
                written = model.model(torch.tensor([source]), lengths, shifted(ids), need="weight")
                log_prob = written.logits.log_softmax(-1).gather(2, ids[..., None]).sum()
            expected = model.model.alignment(written.seen)[0, :-1]  # the end is not shown
            assert found.weight is not None
            assert found.weight.shape == (len(found.rows), len(source))
            np.testing.assert_allclose(found.weight, expected.numpy(), atol=1e-6)
            assert found.log_prob == pytest.approx(float(log_prob))
            seen += len(found.rows) > 1
    assert seen > 3


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
    model = Translator(torch.nn.Linear(1, 1), Vocabulary(tokeniser, tokeniser), CPU)
    assert model.links(Example("ab c", "x yz"), weight) == [(0, 0), (1, 1)]


def test_links_of_words_become_links_of_all_their_pieces() -> None:
    """Character pieces, a space before each word: _ab _c </s>, _xy _z </s>."""
    source = Tokeniser.train("character", ["ab c"], size=40)
    target = Tokeniser.train("character", ["xy z"], size=40)
    assert source.spelt(source.encode(["ab c"])[0]) == [" ", "a", "b", " ", "c", "</s>"]
    sure, possible = frozenset({(0, 1)}), frozenset({(0, 1), (1, 1)})
    found = Vocabulary(source, target).links(Example("ab c", "xy z", Links(sure, possible)))
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(s, t) for s in (0, 1, 2, 3, 4) for t in (3, 4)}
    assert Vocabulary(source, target).links(Example("ab c", "xy z")) == []
    none = Links(frozenset(), frozenset())
    assert Vocabulary(source, target).links(Example("ab c", "xy z", none)) == []


def test_uniform_attention_has_the_entropy_of_its_length(vocabulary: Vocabulary) -> None:
    """Scores of zero: each of S places gets 1/S, and -Σ 1/S log 1/S is log S."""
    model = translator(vocabulary, {**RECURRENT, "decoder": "luong", "attention": "general"})
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "attention" in name:
                weight.zero_()
    sizes = [(len(pair.source.split()) + 1, len(pair.target.split()) + 1) for pair in PAIRS]
    for reading, (S, _) in zip(model.read(PAIRS), sizes, strict=True):
        assert reading.entropy == pytest.approx(math.log(S), abs=1e-6)
    (figures,) = model.sharpness(PAIRS).values()
    rows = sum(T for _, T in sizes)
    assert figures["entropy"] == pytest.approx(sum(T * math.log(S) for S, T in sizes) / rows)
    assert figures["sharpness"] == pytest.approx(sum(T / S for S, T in sizes) / rows)


def test_every_attention_is_averaged_over_its_own_pairs(vocabulary: Vocabulary) -> None:
    """A single sentence has no padding: the mean over pairs by hand is the result."""
    model = translator(vocabulary, TRANSFORMER)
    together, alone = model.sharpness(PAIRS), [model.sharpness([pair]) for pair in PAIRS]
    assert {path.rpartition(".")[2] for path in together} >= {"cross", "self"}
    for path, figures in together.items():
        side = 0 if path.startswith("encoder") else 1
        rows = [len(pair[side].split()) + 1 for pair in PAIRS]
        for name, value in figures.items():
            mean = sum(n * each[path][name] for n, each in zip(rows, alone, strict=True))
            assert value == pytest.approx(mean / sum(rows)), (path, name)


def test_the_vocabulary_is_one_file_or_two(tmp_path: Any) -> None:
    def pairs() -> Iterator[Example]:
        yield from (Example("a b", "X Y"), Example("c", "Z"))

    paths = tmp_path / "source.json", tmp_path / "target.json"
    Vocabulary.train(Tokens(kind="word", shared=True), pairs).save(*paths)
    assert not paths[1].exists()
    joint = Vocabulary.load(*paths)
    assert joint.shared
    assert joint.source.encode(["a Z"]) == joint.target.encode(["a Z"])
    assert 1 not in joint.source.encode(["a Z"])[0]
    Vocabulary.train(Tokens(kind="word"), pairs).save(*paths)
    own = Vocabulary.load(*paths)
    assert not own.shared
    assert (own.source.decode([4, EOS]), own.target.encode(["a"])) != ("", own.source.encode(["a"]))
    assert own.source.encode(["X"])[0][0] == own.target.encode(["a"])[0][0] == 1  # unknown there


def test_the_symbols_before_each_symbol() -> None:
    labels = torch.tensor([[5, 6, EOS], [7, EOS, 0]])
    assert shifted(labels).tolist() == [[BOS, 5, 6], [BOS, 7, EOS]]
