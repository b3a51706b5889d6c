"""Classifiers: padding has no effect, settings are closed, and each part does what it claims."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from heed.errors import Refused
from heed.models.classifier import POOLS, Classifier, ClassifierSettings, build
from heed.models.reader import ConvolutionReader
from heed.models.recurrent_encoder import RecurrentEncoder
from heed.models.text_settings import BertSettings
from heed.models.text_settings import build as build_text
from heed.models.vectors import Spelled, Vectors
from heed.models.xlnet_settings import XLNetSettings
from heed.models.xlnet_settings import build as build_xlnet

ENCODERS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "embedding": 7, "hidden": 10},
    "gru": {"kind": "gru", "embedding": 7, "hidden": 10, "layers": 2},
    "tanh": {"kind": "tanh", "embedding": 7, "hidden": 5, "bidirectional": False},
    "filtered": {"kind": "lstm", "embedding": 7, "hidden": 10, "channels": 4, "widths": (2, 3)},
    "cnn": {"kind": "cnn", "embedding": 7, "channels": 8, "widths": (1, 2, 5)},
    "cnn-3": {"kind": "cnn", "embedding": 7, "channels": 4, "widths": (2, 3), "layers": 3},
    "transformer": {"kind": "transformer", "width": 12, "feed": 20, "heads": 3},
    "bert": {"kind": "bert", "layers": 2, "width": 12, "heads": 3, "longest": 16},
    "xlnet": {"kind": "xlnet", "layers": 2, "width": 12, "heads": 3},
}
UNASKED = "encoder.streams.question"
"""What XLNet's queries begin with, which only hidden words are asked by."""

LOOKS = ("static", "static/additive", "static/sparsemax", "static/general", "static/argmax")


def network(encoder: str, pool: str, **more: Any) -> Classifier:
    torch.manual_seed(1)
    settings = ClassifierSettings(encoder=ENCODERS[encoder], pool=pool, **more)  # type: ignore[arg-type]
    return build(settings, symbols=30, labels=3)


def texts() -> tuple[Tensor, Tensor]:
    return torch.randint(4, 30, (4, 9)), torch.tensor([9, 5, 1, 3])


BOTH = [(e, p) for e in ENCODERS for p in (*POOLS, *LOOKS) if (e, p) != ("xlnet", "first")]


@pytest.mark.parametrize(("encoder", "pool"), BOTH)
def test_a_text_alone_equals_the_text_in_a_batch(encoder: str, pool: str) -> None:
    model = network(encoder, pool).eval()
    symbols, lengths = texts()
    with torch.no_grad():
        together = model(symbols, lengths).logits
        assert together is not None
        for row, length in enumerate(lengths.tolist()):
            alone = model(symbols[row : row + 1, :length], lengths[row : row + 1]).logits
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-6)
        symbols[1, 5:] = 3  # other padding
        again = model(symbols, lengths).logits
    torch.testing.assert_close(together, again, rtol=0, atol=0)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pool", ["mean", "max", "last", "static/additive"])
def test_nan_in_padding_reaches_no_gradient(encoder: str, pool: str) -> None:
    model = network(encoder, pool).eval()
    symbols, lengths = texts()
    symbols *= torch.arange(9) < lengths[:, None]
    (table,) = (
        weight
        for name, weight in model.named_parameters()
        if name.endswith(("words.table.weight", "embed.table.weight", "streams.words.weight"))
    )
    learns = [weight for name, weight in model.named_parameters() if name != UNASKED]
    found = []
    for bad in (0.5, torch.nan, torch.inf):
        with torch.no_grad():
            table[0] = bad
        said = model(symbols, lengths).logits
        assert said is not None
        found.append([said, *torch.autograd.grad(said.square().sum(), learns)])
    for spoilt in found[1:]:
        torch.testing.assert_close(spoilt, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pool", ["max", "static/additive"])
def test_every_weight_gets_a_gradient(encoder: str, pool: str) -> None:
    model = network(encoder, pool)
    said = model(*texts()).logits
    assert said is not None
    said.square().sum().backward()
    still = {
        name
        for name, weight in model.named_parameters()
        if weight.grad is None or not weight.grad.any()
    }
    assert still <= {"encoder.words.types.weight", UNASKED}  # one text has one type


def test_pools_compute_what_their_names_say() -> None:
    symbols, lengths = texts()
    for pool in ("mean", "max", "last"):
        model = network("lstm", pool).eval()
        said = model(symbols, lengths)
        assert said.pooled is not None
        for row, length in enumerate(lengths.tolist()):
            states = said.states[row, :length]
            ends = torch.cat([states[-1, :5], states[0, 5:]])
            expected = {"mean": states.mean(0), "max": states.amax(0), "last": ends}[pool]
            torch.testing.assert_close(said.pooled[row], expected)


def test_a_filter_reads_its_neighbours_only() -> None:
    model = network("cnn", "mean").eval()
    symbols, lengths = torch.full((1, 9), 5), torch.tensor([9])
    before = model(symbols, lengths).states
    symbols[0, 4] = 6
    moved = (model(symbols, lengths).states != before).any(0)  # S M, eight filters to a width
    for n, reach in enumerate([{4}, {3, 4}, {2, 3, 4, 5, 6}]):
        places = moved[:, 8 * n : 8 * n + 8].any(1).nonzero().flatten().tolist()
        assert set(places) == reach, f"width {n}"


def test_further_layers_add_to_the_states_they_read() -> None:
    """A naive loop in float64, for each position over its neighbours, without padding."""
    torch.manual_seed(2)
    reader = ConvolutionReader(Vectors(30, 7), inputs=7, channels=4, widths=(2, 3), layers=3)
    plain = ConvolutionReader(reader.embed, inputs=7, channels=4, widths=(2, 3))
    plain.filters = reader.filters
    reader, plain = reader.double().eval(), plain.double().eval()
    symbols, lengths = texts()
    read = reader(symbols, lengths)
    for row, length in enumerate(lengths.tolist()):
        states = plain(symbols, lengths).states[row, :length]
        for layer in reader.above:
            before = torch.cat([states.new_zeros(1, 8), states, states.new_zeros(1, 8)])
            weight, bias = layer.weight, layer.bias  # M M 3
            added = [
                sum(weight[..., i] @ before[t + i] for i in range(3)) + bias for t in range(length)
            ]
            states = states + torch.stack(added).clamp(min=0)
        torch.testing.assert_close(read.states[row, :length], states, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(read.last[row], states[-1], rtol=1e-12, atol=1e-12)
        assert not read.states[row, length:].any()


def test_further_layers_drop_inputs_in_training() -> None:
    torch.manual_seed(2)
    model = network("cnn-3", "max", dropout=0.5, embedding_dropout=0)
    symbols, lengths = texts()
    one, other = (model.train().encoder(symbols, lengths).states for _ in range(2))
    assert not torch.equal(one, other)
    one, other = (model.eval().encoder(symbols, lengths).states for _ in range(2))
    assert torch.equal(one, other)


def test_one_layer_without_letters_equals_earlier_versions() -> None:
    """The same names and the same random numbers, so that old runs can be opened."""
    torch.manual_seed(1)
    embed = Vectors(30, 7, dropout=0.3)
    filters = [nn.Conv1d(7, 8, width) for width in (1, 2, 5)]
    answer = nn.Linear(24, 3)
    names = [f"encoder.filters.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]
    own = network("cnn", "max").state_dict()
    assert list(own) == ["encoder.embed.table.weight", *names, "answer.weight", "answer.bias"]
    before = [embed.table.weight, *(w for each in filters for w in each.parameters())]
    for mine, weight in zip(own.values(), [*before, answer.weight, answer.bias], strict=True):
        assert torch.equal(mine, weight)


def test_an_rnn_reads_words_and_the_outputs_of_filters() -> None:
    """A naive loop in float64, a text and a direction at a time, with perturbed words."""
    model = network("filtered", "last").double().eval()
    symbols, lengths = texts()
    nudge = torch.randn(4, 9, 7, dtype=torch.float64)
    read = model.encoder(symbols, lengths, nudge=nudge)
    below, over = model.encoder.filters, model.encoder.rnn
    for row, length in enumerate(lengths.tolist()):
        words = (below.embed.table(symbols[row]) + nudge[row])[:length]
        around = torch.cat([words.new_zeros(1, 7), words, words.new_zeros(1, 7)])
        given = []
        for t in range(length):
            found = [words[t]]
            for each, first in zip(below.filters, (t + 1, t), strict=True):
                width = each.kernel_size[0]  # 2: a word and the next; 3: one on either side
                seen = sum(each.weight[..., i] @ around[first + i] for i in range(width))
                found.append((seen + each.bias).clamp(min=0))
            given.append(torch.cat(found))
        x = torch.stack(given)
        ahead, back = over.ahead[0].rnn(x[None])[0][0], over.back[0].rnn(x.flip(0)[None])[0][0]
        states = torch.cat([ahead, back.flip(0)], -1)
        torch.testing.assert_close(read.states[row, :length], states, rtol=1e-12, atol=1e-12)
        assert not read.states[row, length:].any()
        torch.testing.assert_close(read.last[row], torch.cat([ahead[-1], back[-1]]))
        torch.testing.assert_close(read.vectors[row, :length], words)


def test_an_rnn_without_filters_has_the_weights_of_the_reader_alone() -> None:
    """The same names and the same random numbers, so that old runs open."""
    torch.manual_seed(1)
    embed = Vectors(30, 7, dropout=0.3)
    reader, answer = RecurrentEncoder(embed, inputs=7, hidden=10, cell="lstm"), nn.Linear(10, 3)
    before = {f"encoder.{name}": weight for name, weight in reader.state_dict().items()}
    before |= {f"answer.{name}": weight for name, weight in answer.state_dict().items()}
    own = network("lstm", "mean").state_dict()
    assert list(own) == list(before)
    for name, weight in own.items():
        assert torch.equal(weight, before[name]), name


def spelled(encoder: str = "cnn", **more: Any) -> Classifier:
    """Thirty symbols, of which the first six have no letters."""
    torch.manual_seed(1)
    settings = ClassifierSettings(
        encoder=ENCODERS[encoder],  # type: ignore[arg-type]
        pool="max",
        letters=(3, 5),
        **more,
    )
    model = build(settings, symbols=30, labels=3, letters=(40, 5))
    assert model.spelled is not None
    model.spelled.known[6:] = torch.randint(0, 41, (24, 5))
    return model


def test_a_word_is_spelled_by_the_mean_of_its_letters() -> None:
    torch.manual_seed(3)
    part = Spelled(4, 6, letters=9, most=3).double()
    part.known.copy_(torch.tensor([[0, 0, 0], [9, 0, 0], [1, 2, 0], [3, 3, 5]]))
    table = part.table.weight
    with torch.no_grad():
        table[0] = torch.nan  # a file may contain this: it must not count
    expected = torch.stack(
        [torch.zeros(6).double(), table[9], table[1:3].mean(0), (2 * table[3] + table[5]) / 3]
    )
    found = part(torch.tensor([[0, 1], [2, 3]]))
    torch.testing.assert_close(found, expected.view(2, 2, 6))
    given = part(torch.zeros(1, 2, dtype=torch.long), torch.tensor([[[0, 0, 1], [0, 0, 0]]]))
    torch.testing.assert_close(given, torch.stack([table[1], expected[0]])[None])
    (slope,) = torch.autograd.grad(found.sum(), table)
    assert not slope[0].any()
    assert not Spelled(4, 6, letters=9, most=3).table.weight[0].any()


@pytest.mark.parametrize("encoder", ["lstm", "cnn-3"])
def test_letters_are_added_to_the_words(encoder: str) -> None:
    model = spelled(encoder).eval()
    symbols, lengths = texts()
    symbols %= 30
    there = (torch.arange(9) < lengths[:, None])[..., None]
    said = model(symbols, lengths)
    own = model.spelled
    assert own is not None
    vectors = model.encoder.embed(symbols) + own(symbols)
    torch.testing.assert_close(said.vectors, vectors.where(there, 0))
    nudge = torch.randn_like(vectors)
    moved = model(symbols, lengths, nudge=nudge)
    torch.testing.assert_close(moved.vectors, (vectors + nudge).where(there, 0))
    told = model(symbols, lengths, letters=own.known[symbols]).logits
    torch.testing.assert_close(told, said.logits, rtol=0, atol=0)
    other = model(symbols, lengths, letters=own.known[symbols] * 0)
    model.spelled = None
    torch.testing.assert_close(other.logits, model(symbols, lengths).logits)


@pytest.mark.parametrize("encoder", ["gru", "filtered", "cnn-3"])
def test_with_letters_every_weight_gets_a_gradient_and_padding_none(encoder: str) -> None:
    model = spelled(encoder, dropout=0).double().train()
    symbols, lengths = texts()
    found = []
    for filler in (7, 8):
        symbols = symbols.where(torch.arange(9) < lengths[:, None], filler)
        said = model(symbols, lengths).logits
        found.append([said, *torch.autograd.grad(said.square().sum(), list(model.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-14)
    assert all(slope.any() for slope in found[0][1:])


def test_a_look_returns_its_weights_which_are_zero_on_padding() -> None:
    symbols, lengths = texts()
    said = network("lstm", "static/additive").eval()(symbols, lengths, need="weight")
    weight = said.seen["pool"].weight  # B 1 1 S
    assert weight.shape == (4, 1, 1, 9)
    torch.testing.assert_close(weight.sum(-1), torch.ones(4, 1, 1))
    assert not weight[1, ..., 5:].any()
    pooled = (weight[:, 0] @ said.states)[:, 0]
    assert said.pooled is not None
    torch.testing.assert_close(said.pooled, pooled)
    layers = network("bert", "first").eval()(symbols, lengths, need="weight").seen
    assert {path: tuple(x.weight.shape) for path, x in layers.items()} == {
        "0.self": (4, 3, 9, 9),
        "1.self": (4, 3, 9, 9),
    }


@pytest.mark.parametrize("pool", LOOKS)
def test_several_looks_equal_single_ones_side_by_side(pool: str) -> None:
    """As many attentions with one look each and the same weights."""
    symbols, lengths = texts()
    model = network("lstm", pool, heads=3).eval()
    said = model(symbols, lengths, need="weight")
    weight = said.seen["pool"].weight  # B H 1 S
    assert weight.shape == (4, 3, 1, 9)
    assert said.pooled is not None
    looks = said.pooled.split(10, -1)
    assert not torch.equal(looks[0], looks[1])
    many = model.state_dict()
    for head, look in enumerate(looks):
        single = network("lstm", pool).eval()
        single.load_state_dict(
            {
                name: many[name] if many[name].shape == own.shape else many[name][head : head + 1]
                for name, own in single.state_dict().items()
                if name != "answer.weight"
            }
            | {"answer.weight": many["answer.weight"][:, :10]}
        )
        alone = single(symbols, lengths, need="weight")
        torch.testing.assert_close(alone.seen["pool"].weight[:, 0], weight[:, head])
        torch.testing.assert_close(alone.pooled, look)


def test_whole_words_are_dropped_in_training_only() -> None:
    model = network("lstm", "mean", word_dropout=0.5, embedding_dropout=0, dropout=0)
    embed: nn.Module = model.encoder.embed
    symbols = torch.randint(4, 30, (50, 40))
    gone = (embed.train()(symbols) == 0).all(-1)
    assert 0.45 < gone.float().mean() < 0.55
    kept = embed(symbols)
    there = (kept != 0).any(-1)
    torch.testing.assert_close(kept[there], embed.eval()(symbols)[there])  # nothing is scaled
    assert not (embed(symbols) == 0).all(-1).any()


def test_a_bert_has_the_names_and_numbers_of_one_with_a_head() -> None:
    """So that weights can be exchanged."""
    model = network("bert", "first", dropout=0.1).eval()
    facts = {key: value for key, value in ENCODERS["bert"].items() if key != "kind"}
    whole = build_text(BertSettings(**facts, symbols=30, head="classify", labels=3)).eval()
    whole.load_state_dict(model.state_dict())
    symbols, lengths = texts()
    torch.testing.assert_close(whole(symbols, lengths).logits, model(symbols, lengths).logits)


def test_an_xlnet_has_the_numbers_of_one_with_a_head() -> None:
    """Its vector of a text is the summary of the last symbol, which has a third type."""
    facts: dict[str, Any] = {**ENCODERS["xlnet"], "initial": 0.3}
    settings = ClassifierSettings(encoder=facts, pool="last", dropout=0.1)  # type: ignore[arg-type]
    model = build(settings, symbols=30, labels=3).eval()
    whole = build_xlnet(XLNetSettings(**facts, symbols=30, head="classify", labels=3)).eval()
    own = model.state_dict()
    whole.load_state_dict({name.removeprefix("encoder."): own[name] for name in own})
    symbols, lengths = texts()
    types = 2 * (torch.arange(9) == lengths[:, None] - 1)
    expected = whole(symbols, lengths, types).logits
    torch.testing.assert_close(model(symbols, lengths).logits, expected)
    assert (expected - whole(symbols, lengths).logits).abs().max() > 1e-3
    layers = model(symbols, lengths, need="weight").seen
    assert {path: tuple(x.weight.shape) for path, x in layers.items()} == {
        "0.content": (4, 3, 9, 9),
        "1.content": (4, 3, 9, 9),
    }


def test_a_bert_that_names_its_symbols_needs_a_matching_vocabulary() -> None:
    bert = {**ENCODERS["bert"], "symbols": 30}
    settings = ClassifierSettings(encoder=bert, pool="first")  # type: ignore[arg-type]
    assert len(build(settings, symbols=20, labels=3).encoder.words.table.weight) == 30
    with pytest.raises(Refused, match="vocabulary has 31 symbols, and the model 30"):
        build(settings, symbols=31, labels=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pool": "additive"}, "a text needs a single one: static/additive"),
        ({"pool": "statik"}, "did you mean static"),
        ({"pool": "mean", "options": {"width": 3}}, "'mean' is not"),
        ({"pool": "mean", "heads": 2}, "'mean' is not; set heads=1"),
        ({"pool": "static", "options": {"widht": 3}}, "option of 'static'"),
        ({"encoder": {"kind": "bert", "head": "masked"}}, "leave it out"),
        ({"encoder": {"kind": "bert"}, "word_dropout": 0.1}, "use encoder.dropout"),
        ({"encoder": {"kind": "xlnet", "head": "language"}}, "leave it out"),
        ({"encoder": {"kind": "xlnet"}, "pool": "first"}, "in the last symbol: model.pool=last"),
        ({"encoder": {"kind": "lstm", "hidden": 10**9}}, "less than or equal"),
        ({"encoder": {"kind": "cnn", "widths": []}}, "at least 1"),
        ({"encoder": {"kind": "lstm", "widths": [0]}}, "greater than or equal to 1"),
        ({"encoder": {"kind": "gru", "widths": [64]}}, "less than or equal to 63"),
        ({"encoder": {"kind": "lstm", "widths": [2], "channels": 0}}, "greater than or equal to 1"),
        ({"encoder": {"kind": "os"}}, "does not match any of the expected tags"),
        ({"encoder": {"kind": "cnn", "layers": 0}}, "greater than or equal to 1"),
        ({"encoder": {"kind": "cnn", "layers": 10}}, "less than or equal to 9"),
        ({"encoder": {"kind": "transformer"}, "word_dropout": 0.1}, "use encoder.dropout"),
        ({"encoder": {"kind": "transformer", "attention": "additve"}}, "did you mean additive"),
        ({"encoder": {"kind": "transformer", "options": {"width": 3}}}, "option of these"),
        ({"letters": (5, 3)}, "a shortest and a longest run"),
        ({"letters": (0, 3)}, "greater than or equal to 1"),
        ({"letters": (3, 9)}, "less than or equal to 8"),
        ({"letters": (3,)}, "letters"),
        ({"encoder": {"kind": "bert"}, "letters": (3, 5)}, "which BERT does not read"),
        ({"dropout": 1}, "less than 1"),
        ({"poool": "mean"}, "Extra inputs"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ClassifierSettings(**given)


NUMBERED = ("lstm", "gru", "tanh", "filtered", "cnn", "cnn-3", "transformer")


@pytest.mark.parametrize("pool", ["mean", "max", "last", "static/additive"])
@pytest.mark.parametrize("encoder", NUMBERED)
def test_real_numbers_are_read_as_words_are(encoder: str, pool: str) -> None:
    """By a linear map in place of a table: its rows as numbers 0 and 1 give the words' vectors."""
    words = network(encoder, pool).eval()
    torch.manual_seed(1)
    settings = ClassifierSettings(encoder=ENCODERS[encoder], pool=pool)  # type: ignore[arg-type]
    model = build(settings, features=30, labels=3).eval()
    own = words.state_dict()
    for name, weight in model.state_dict().items():
        if name.endswith((".embed.linear.weight", ".words.linear.weight")):
            scale = 12**0.5 if encoder == "transformer" else 1
            weight.copy_(scale * own[name.replace("linear", "table")].T)
        else:
            weight.copy_(own[name] if name in own else torch.zeros_like(weight))
    symbols, lengths = texts()
    numbers = nn.functional.one_hot(symbols, 30).float()
    found = model(numbers, lengths)
    torch.testing.assert_close(found.logits, words(symbols, lengths).logits)
    there = (torch.arange(9) < lengths[:, None])[..., None]
    learns = list(model.parameters())
    slopes = []
    for bad in (0.5, torch.nan, torch.inf):
        said = model(numbers.where(there, bad), lengths).logits
        assert said is not None
        slopes.append([said, *torch.autograd.grad(said.square().sum(), learns)])
    for spoilt in slopes[1:]:
        torch.testing.assert_close(spoilt, slopes[0], rtol=0, atol=0)
    assert all(slope.any() for slope in slopes[0])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"encoder": {"kind": "bert"}}, "BERT reads words; real numbers need lstm"),
        ({"encoder": {"kind": "xlnet"}}, "XLNet reads words"),
        ({"letters": (3, 5)}, "letters belongs to words"),
        ({"word_dropout": 0.1}, "word_dropout belongs to words"),
    ],
)
def test_parts_for_words_refuse_real_numbers(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        build(ClassifierSettings(**given), features=4, labels=3)


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_a_network_that_reads_neither_words_nor_numbers_is_refused(encoder: str) -> None:
    settings = ClassifierSettings(encoder={"kind": encoder})  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"symbols=\.\.\. of a vocabulary, or features="):
        build(settings, labels=3)


def test_the_longest_input_is_known() -> None:
    reads = {
        (encoder, pool): ClassifierSettings(encoder=ENCODERS[encoder], pool=pool).reads  # type: ignore[arg-type]
        for encoder in ("lstm", "transformer", "bert", "xlnet")
        for pool in ("mean", "static/location")
    }
    assert reads == {
        ("lstm", "mean"): None,
        ("lstm", "static/location"): 100,
        ("transformer", "mean"): None,
        ("transformer", "static/location"): 100,
        ("bert", "mean"): 16,
        ("bert", "static/location"): 16,
        ("xlnet", "mean"): None,
        ("xlnet", "static/location"): 100,
    }
