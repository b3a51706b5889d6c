"""Recurrent encoder-decoders: whole texts and single steps agree, with every attention and none."""

from functools import partial
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import heed
from heed.attention.catalogue import CATALOGUE
from heed.errors import HeedError, Refused
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.recurrent import InputFeeding, Luong, Search
from heed.models.recurrent_settings import RecurrentSettings, build

B, S, T, V = 4, 7, 5, 19
LENGTHS = torch.tensor([7, 1, 4, 6])

WHOLE = [
    name
    for name, entry in CATALOGUE.items()
    if entry.claims.has_steps and entry.claims.takes_several and entry.claims.gives_context
]
JOINED = ["local-p/general", "coverage/additive", "location-aware/monotonic", "sparsemax/local-m"]
DECODERS: list[dict[str, Any]] = [
    {"decoder": "search"},
    {"decoder": "luong"},
    {"decoder": "luong", "input_feeding": False},
]
BASELINES: list[dict[str, Any]] = [
    {"decoder": "fixed", "context": "first"},
    {"decoder": "fixed", "context": "every"},
]


def network(*, longest: int = S, shared: bool = False, **settings: Any) -> EncoderDecoder:
    torch.manual_seed(1)
    small: dict[str, Any] = {"embedding": 6, "hidden": 8, "dropout": 0.0, **settings}
    chosen = RecurrentSettings(**small)
    return build(chosen, source=V, target=V, shared=shared, longest=longest).double().eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    source, inputs = torch.randint(4, V, (B, S)), torch.randint(4, V, (B, T))
    source = source.where(torch.arange(S) < LENGTHS[:, None], 0)
    inputs[:, 0] = 2
    return source, LENGTHS, inputs


def stepped(model: EncoderDecoder, carry: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Logits B T V and weights B T S, one step at a time."""
    logits, weights = [], []
    for symbols in inputs.unbind(1):
        step = model.step(carry, symbols)
        carry = step.carry
        logits.append(step.logits)
        weights.append(step.weight)
    return torch.stack(logits, 1), weights


@pytest.mark.parametrize("decoder", DECODERS, ids=["search", "feeding", "luong"])
@pytest.mark.parametrize("name", WHOLE + JOINED)
def test_single_steps_and_the_whole_pass_agree(name: str, decoder: dict[str, Any]) -> None:
    model = network(attention=name, **decoder)
    source, lengths, inputs = batch()
    whole = model(source, lengths, inputs, need="weight")
    logits, weights = stepped(model, model.begin(source, lengths, need="weight"), inputs)
    torch.testing.assert_close(logits, whole.logits)
    torch.testing.assert_close(torch.stack(weights, 1), model.alignment(whole.seen))
    assert model.alignment(whole.seen).shape == (B, T, S)


@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
@pytest.mark.parametrize("settings", DECODERS + BASELINES)
def test_steps_of_every_cell_and_stack_equal_the_whole_pass(
    cell: str, settings: dict[str, Any]
) -> None:
    model = network(cell=cell, layers=2, **settings)
    source, lengths, inputs = batch()
    logits, weights = stepped(model, model.begin(source, lengths), inputs)
    torch.testing.assert_close(logits, model(source, lengths, inputs).logits)
    assert weights == [None] * T


@pytest.mark.parametrize("settings", DECODERS + BASELINES)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_alone_equals_the_row_in_a_padded_batch(
    settings: dict[str, Any], bidirectional: bool
) -> None:
    model = network(bidirectional=bidirectional, layers=2, cell="lstm", **settings)
    source, lengths, inputs = batch()
    whole = model(source, lengths, inputs).logits
    for row, n in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :n], lengths[row : row + 1], inputs[row : row + 1])
        torch.testing.assert_close(alone.logits[0], whole[row])


def test_a_text_does_not_depend_on_the_lengths_of_its_neighbours() -> None:
    """Far keys are seen by the block, whose size once followed the longest text of the batch."""
    model = network(attention="expanded-window", options={"window": 1}, decoder="luong")
    torch.manual_seed(3)
    source, lengths, inputs = torch.randint(4, V, (2, 120)), torch.tensor([60, 120]), batch()[2][:2]
    whole = model(source, lengths, inputs).logits
    alone = model(source[:1, :60], lengths[:1], inputs[:1]).logits
    torch.testing.assert_close(alone[0], whole[0])


@pytest.mark.parametrize("settings", DECODERS + BASELINES)
def test_the_content_of_padding_changes_nothing(settings: dict[str, Any]) -> None:
    model = network(**settings)
    source, lengths, inputs = batch()
    other = source.where(torch.arange(S) < lengths[:, None], 9)
    want, got = (model(x, lengths, inputs).logits for x in (source, other))
    assert torch.equal(want, got)


@pytest.mark.parametrize(
    "name", ["additive", "coverage/additive", "monotonic", "forced-forward", "mixed", "none"]
)
@pytest.mark.parametrize("decoder", ["search", "luong"])
def test_states_of_a_beam_follow_its_rows(name: str, decoder: str) -> None:
    model = network(attention=name, decoder=decoder)
    source, lengths, inputs = batch()
    carry = model.begin(source, lengths)
    carry = model.step(carry, inputs[:, 0]).carry
    rows = torch.tensor([2, 2, 0, 3, 1, 1])
    grown = model.select(carry, rows)
    logits, _ = stepped(model, grown, inputs[rows, 1:3])
    whole = model(source, lengths, inputs).logits
    torch.testing.assert_close(logits, whole[rows, 1:3])
    # hypotheses of one sentence are exchanged: the source may stay where it is
    twins = torch.tensor([1, 0, 2, 3, 5, 4])
    stayed, copied = (model.select(grown, twins, same=same) for same in (True, False))
    for one, two in zip(
        stepped(model, stayed, inputs[rows, 1:3])[0],
        stepped(model, copied, inputs[rows, 1:3])[0],
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("settings", DECODERS + BASELINES)
@pytest.mark.parametrize("variational", [False, True])
def test_every_weight_gets_a_gradient(settings: dict[str, Any], variational: bool) -> None:
    model = network(layers=2, dropout=0.3, variational=variational, tied=False, **settings).train()
    source, lengths, inputs = batch()
    model(source, lengths, inputs).logits.square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("settings", DECODERS)
def test_a_loop_with_precomputed_products_has_the_gradients_of_the_plain_one(
    settings: dict[str, Any],
) -> None:
    model = network(**settings)
    source, lengths, inputs = batch()
    model(source, lengths, inputs).logits.square().sum().backward()
    got = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    logits, _ = stepped(model, model.begin(source, lengths), inputs)
    logits.square().sum().backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(got[name], weight.grad, msg=lambda m, n=name: f"{n}: {m}")


def taken(model: EncoderDecoder, go: Any, steps: range = range(T)) -> dict[str, Tensor]:
    """The gradients of a text written step by step, with some steps inside `go(step)`."""
    source, lengths, inputs = batch()
    carry, total = model.begin(source, lengths), torch.zeros(())

    def step(carry: Any, symbols: Tensor) -> tuple[Tensor, Any]:
        written = model.step(carry, symbols)
        return written.logits, written.carry

    for t, symbols in enumerate(inputs.unbind(1)):
        logits, carry = (go(step) if t in steps else step)(carry, symbols)
        total = total + logits.logsumexp(-1).sum() * (t + 1)
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(total, list(learning.values()), allow_unused=True)
    return {name: g for name, g in zip(learning, grads, strict=True) if g is not None}


def checkpointed(step: Any) -> Any:
    return partial(checkpoint, step, use_reentrant=False)


def on_cpu(step: Any) -> Any:
    def go(*given: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return step(*given)

    return go


@pytest.mark.parametrize("go", [checkpointed, on_cpu])
@pytest.mark.parametrize("name", ["additive", "general", "cosine", "local-p/dot", "location"])
@pytest.mark.parametrize("decoder", DECODERS, ids=["search", "feeding", "luong"])
@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
def test_single_steps_may_be_checkpointed(
    cell: str, decoder: dict[str, Any], name: str, go: Any
) -> None:
    """Alone or among others: dropout is the same when a step is recomputed."""
    model = network(cell=cell, attention=name, **decoder).float()
    want = taken(model, go, range(0))
    for steps in (range(T), range(1), range(1, 3), range(2, T)):
        got = taken(model, go, steps)
        assert got.keys() == want.keys()
        for key in want:
            torch.testing.assert_close(got[key], want[key], rtol=1e-4, atol=1e-5)


def test_a_whole_pass_may_be_checkpointed_without_warnings() -> None:
    model, (source, lengths, inputs) = network(attention="additive").float(), batch()

    def write(source: Tensor) -> Tensor:
        return model(source, lengths, inputs).logits.logsumexp(-1).sum()

    parameters = list(model.parameters())
    want = torch.autograd.grad(write(source), parameters)
    total = checkpoint(write, source, use_reentrant=False)
    nodes = [node.name() for node in behind(total)]
    assert nodes.count("_AttendBackward") == 1  # the first look; the others only store their rows
    torch.testing.assert_close(torch.autograd.grad(total, parameters), want)


def behind(x: Tensor) -> set[Any]:
    """The nodes of the graph of a tensor."""
    met, todo = set(), [x.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in met:
            met.add(node)
            todo += [after for after, _ in node.next_functions]
    return met


def test_the_search_decoder_equals_bahdanaus() -> None:
    """PyTorch's GRUCell, step by step, by the equations of the paper's appendix."""
    model = network(bidirectional=False)
    decoder = model.decoder
    assert isinstance(decoder, Search)
    source, lengths, inputs = batch()
    encoded = model.encoder(source, lengths)
    rnn, score = decoder.stack.each[0].rnn, decoder.attention.mechanism.score
    cell = nn.GRUCell(6 + 8, 8).double()
    cell.load_state_dict({n.removesuffix("_l0"): x for n, x in rnn.state_dict().items()})
    s, logits = torch.tanh(decoder.first.linear(encoded.last)), []
    hidden = torch.arange(S) >= lengths[:, None]
    for y in inputs.unbind(1):
        asked = s @ score.query_weight[0].T
        inside = torch.tanh(asked[:, None] + encoded.states @ score.key_weight[0].T)
        weight = (inside @ score.score_vector[0]).masked_fill(hidden, -torch.inf).softmax(-1)
        context = (weight[..., None] * encoded.states).sum(1)
        e = decoder.embed(y)
        s = cell(torch.cat([e, context], -1), s)
        known = torch.tanh(decoder.readout.linear(torch.cat([s, context, e], -1)))
        logits.append(decoder.out(known))
    torch.testing.assert_close(model(source, lengths, inputs).logits, torch.stack(logits, 1))


@pytest.mark.parametrize("feeding", [True, False])
def test_the_luong_decoder_equals_luongs(feeding: bool) -> None:
    """PyTorch's LSTMCell: step, look, join; h̃ is fed into the next step, or not."""
    model = network(decoder="luong", cell="lstm", input_feeding=feeding, tied=False)
    decoder = model.decoder
    assert type(decoder) is (InputFeeding if feeding else Luong)
    source, lengths, inputs = batch()
    encoded = model.encoder(source, lengths)
    rnn, W = decoder.stack.each[0].rnn, decoder.attention.mechanism.score.weight[0]
    cell = nn.LSTMCell(rnn.input_size, 8).double()
    cell.load_state_dict({n.removesuffix("_l0"): x for n, x in rnn.state_dict().items()})
    h, c = torch.tanh(decoder.first.linear(encoded.last)).chunk(2, -1)
    joined, logits = torch.zeros(B, 8).double(), []
    hidden = torch.arange(S) >= lengths[:, None]
    for y in inputs.unbind(1):
        e = decoder.embed(y)
        h, c = cell(torch.cat([e, joined], -1) if feeding else e, (h, c))
        energy = encoded.states @ W @ h[..., None]
        weight = energy.reshape(B, S).masked_fill(hidden, -torch.inf).softmax(-1)
        context = (weight[..., None] * encoded.states).sum(1)
        joined = torch.tanh(decoder.join.linear(torch.cat([context, h], -1)))
        logits.append(decoder.out(joined))
    torch.testing.assert_close(model(source, lengths, inputs).logits, torch.stack(logits, 1))


def test_embeddings_are_tied_and_shared_as_configured() -> None:
    one = network(shared=True)
    assert one.encoder.embed is one.decoder.embed
    assert one.decoder.out.weight is one.decoder.embed.weight
    two = network(shared=True, share=False, tied=False)
    assert two.encoder.embed is not two.decoder.embed
    assert two.decoder.out.weight.shape == (V, 8)
    assert network().encoder.embed is not network().decoder.embed


def test_location_is_built_for_the_longest_source() -> None:
    model = network(attention="location", longest=40)
    assert model.decoder.attention.mechanism.score.longest == 40
    chosen = network(attention="location", options={"longest": 9})
    assert chosen.decoder.attention.mechanism.score.longest == 9


def test_without_attention_there_are_no_weights() -> None:
    model = network(attention="none")
    written = model(*batch(), need="weight")
    assert written.seen == {}
    with pytest.raises(Refused, match="no attention"):
        model.alignment(written.seen)


def test_weights_that_were_not_asked_for_say_so() -> None:
    model = network()
    with pytest.raises(HeedError, match="ask for them"):
        model.alignment(model(*batch()).seen)


def test_losses_of_the_attention_are_passed_on() -> None:
    model = network(attention="coverage/sample/additive").train()
    seen = model(*batch()).seen["decoder.attention"]
    assert seen.penalty.shape == seen.log_prob.shape == (B, 1, T)


def test_a_network_can_be_watched() -> None:
    model = network()
    with heed.watch(model) as seen:
        model(*batch())
    assert [x.weight.shape for x in seen["decoder.attention"]] == [(B, 1, 1, S)] * T


@pytest.mark.parametrize("settings", DECODERS + BASELINES)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_half_precision_by_autocast(settings: dict[str, Any], cell: str) -> None:
    model = network(cell=cell, layers=2, **settings).float()
    source, lengths, inputs = batch()
    want = model(source, lengths, inputs).logits
    with torch.autocast("cpu", torch.bfloat16):
        got = model(source, lengths, inputs).logits
    got.float().sum().backward()
    torch.testing.assert_close(got.float(), want, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "static"}, "has one query for a whole text"),
        ({"attention": "pointer/dot"}, "returns no context"),
        ({"attention": "aditive"}, "additive"),
        ({"attention": "local-p", "options": {"windw": 3}}, "window"),
        ({"attention": "none", "options": {"window": 3}}, "there is none"),
        ({"decoder": "fixed", "attention": "dot"}, "search or luong"),
        ({"decoder": "luong", "readout": "maxout"}, "luong has a tanh readout"),
        ({"attention": "relative", "options": {"segments": True}}, "segments"),
        ({"hidden": 10**9}, "8192"),
        ({"attention": "local-p", "options": {"window": 10**9}}, "65536"),
        ({"hiden": 3}, "hiden"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RecurrentSettings(**settings)


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(Refused, match="must be even; got 9"):
        network(hidden=9)


@pytest.mark.parametrize("size", ["tiny", "small", "base", "big"])
def test_named_sizes_build_on_meta(size: Any) -> None:
    with torch.device("meta"):
        model = build(
            RecurrentSettings(size=size), source=8000, target=8000, shared=True, longest=60
        )
    assert all(weight.is_meta for weight in model.parameters())
