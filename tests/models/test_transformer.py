"""The Transformer: torch's numbers, causality, and single steps that equal the whole pass."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import heed
from heed.attention.head_groups import head_groups
from heed.errors import HeedError, Refused, UnknownName
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.plain_carry import PlainCarry, regroup
from heed.models.plain_encoder import encode
from heed.models.transformer_settings import SIZES, TransformerSettings, build, build_decoder
from heed.records import Need

SYMBOLS, B, S, T = 20, 3, 9, 7
MECHANISMS = [
    "scaled-dot",
    "additive",
    "local-p/general",
    "local-m/dot",
    "location",
    "relative",
    "mixed",
    "entmax",
    "monotonic/additive",
    "forward",
    "forced-forward",
    "mixture-window",
    "coverage/additive",
    "location-aware/additive",
    "coverage/monotonic/additive",
    "2*additive + 2*scaled-dot",
    "1*monotonic + 1*coverage/additive + 1*location + 1*local-m",
]


def network(shared: bool = True, **choices: Any) -> EncoderDecoder:
    small = {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "feed": 32, "heads": 4}
    settings = TransformerSettings(**{**small, **choices})
    made = build(settings, source=SYMBOLS, target=SYMBOLS, shared=shared, longest=S)
    return made.double().eval()


def texts() -> tuple[Tensor, Tensor, Tensor]:
    source, inputs = (torch.randint(4, SYMBOLS, (B, n)) for n in (S, T))
    return source, torch.tensor([S, 5, 7]), inputs


def test_lengths_may_be_a_list_and_are_no_mask() -> None:
    net, (source, lengths, inputs) = network(), texts()
    mask = torch.arange(S) < lengths[:, None]
    expected = net(source, lengths, inputs).logits
    assert torch.equal(net(source, lengths.tolist(), inputs).logits, expected)
    with torch.no_grad():
        steps = [net.step(net.begin(source, n), inputs[:, 0]) for n in (lengths, lengths.tolist())]
    assert torch.equal(steps[0].logits, steps[1].logits)
    for wrong in (mask, mask.long()):
        for read in (lambda n: net(source, n, inputs), lambda n: net.begin(source, n)):
            with pytest.raises(HeedError, match=r"attention mask has them as mask\.sum\(-1\)$"):
                read(wrong)


def stepped(net: EncoderDecoder, rows: Tensor, texts: Tensor, carry: Any) -> tuple[Tensor, Tensor]:
    """Logits and weights of hypotheses written symbol by symbol, each pair swapped in between."""
    swap = torch.arange(len(rows)).view(-1, 2).flip(1).flatten()
    order = torch.arange(len(rows))  # where each row is
    logits, weights = [], []
    for t in range(texts.shape[1]):
        step = net.step(carry, texts[order, t])
        back = order.argsort()
        logits.append(step.logits[back])
        weights.append(step.weight[back])
        order, carry = order[swap], net.select(step.carry, swap, same=True)
    return torch.stack(logits, 1), torch.stack(weights, 1)


def agree_step_by_step(net: EncoderDecoder) -> None:
    """Two hypotheses per sentence, of different symbols, swapped after each step."""
    source, lengths, _ = texts()
    rows = torch.arange(B).repeat_interleave(2)
    inputs = torch.randint(4, SYMBOLS, (2 * B, T))
    at_once = net(source[rows], lengths[rows], inputs, need="weight")
    carry = net.select(net.begin(source, lengths, need="weight"), rows)
    logits, weight = stepped(net, rows, inputs, carry)
    torch.testing.assert_close(logits, at_once.logits)
    torch.testing.assert_close(weight, net.alignment(at_once.seen))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_single_steps_equal_the_whole_pass(norm: str, position: str) -> None:
    agree_step_by_step(network(norm=norm, position=position))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@torch.no_grad()
def test_any_mechanism_reads_the_source_step_by_step(mechanism: str) -> None:
    agree_step_by_step(network(cross_attention=mechanism, options={}))


@pytest.mark.parametrize(
    "mechanism", [m for m in MECHANISMS if m not in ("local-p/general", "mixed")]
)
@torch.no_grad()
def test_any_mechanism_is_causal_step_by_step(mechanism: str) -> None:
    net = network(decoder_attention=mechanism)
    agree_step_by_step(net)
    blind_to_the_future(net)


def test_gradients_flow_through_steps() -> None:
    net = network()
    source, lengths, inputs = texts()
    carry, logits = net.begin(source, lengths), []
    for t in range(T):
        step = net.step(carry, inputs[:, t])
        carry = step.carry
        logits.append(step.logits)
    by_step = torch.autograd.grad(torch.stack(logits, 1).square().sum(), list(net.parameters()))
    loss = net(source, lengths, inputs).logits.square().sum()
    at_once = torch.autograd.grad(loss, list(net.parameters()))
    torch.testing.assert_close(by_step, at_once)


def blind_to_the_future(net: EncoderDecoder) -> None:
    source, lengths, inputs = texts()
    other = inputs.clone()
    other[:, 4:] = torch.randint(4, SYMBOLS, (B, T - 4))
    one, two = (net(source, lengths, x).logits for x in (inputs, other))
    torch.testing.assert_close(one[:, :4], two[:, :4], rtol=0, atol=1e-12)
    assert not torch.allclose(one[:, 4:], two[:, 4:])


@torch.no_grad()
def test_a_later_symbol_changes_nothing_before_it() -> None:
    blind_to_the_future(network())


@pytest.mark.parametrize("mechanism", ["scaled-dot", "local-p", "mixed", "additive", "monotonic"])
@torch.no_grad()
def test_a_padded_row_equals_the_row_alone(mechanism: str) -> None:
    net = network(encoder_attention=mechanism, cross_attention=mechanism)
    source, lengths, inputs = texts()
    together = net(source, lengths, inputs, need="weight")
    alone = net(source[1:2, :5], lengths[1:2], inputs[1:2], need="weight")
    torch.testing.assert_close(alone.logits, together.logits[1:2])
    weight = net.alignment(together.seen)[1]
    torch.testing.assert_close(net.alignment(alone.seen)[0], weight[:, :5])
    assert weight[:, 5:].eq(0).all()


@torch.no_grad()
def test_blocks_of_far_symbols_do_not_depend_on_the_neighbours() -> None:
    net = network(encoder_attention="expanded-window", options={"window": 2})
    torch.manual_seed(3)
    source, lengths, (_, _, inputs) = torch.randint(4, SYMBOLS, (2, 120)), [60, 120], texts()
    together = net(source, torch.tensor(lengths), inputs[:2]).logits
    alone = net(source[:1, :60], torch.tensor(lengths[:1]), inputs[:1]).logits
    torch.testing.assert_close(alone[0], together[0])


def torch_twin(net: EncoderDecoder, norm: str, layers: int) -> nn.Transformer:
    """torch's module with the same weights; the paper's post-norm has no last norm."""
    makers = {
        "encoder": (nn.TransformerEncoderLayer, nn.TransformerEncoder),
        "decoder": (nn.TransformerDecoderLayer, nn.TransformerDecoder),
    }
    halves = {}
    for end, (layer, stack) in makers.items():
        first = layer(16, 4, 32, 0.0, batch_first=True, norm_first=norm == "pre")
        more = {"enable_nested_tensor": False} if end == "encoder" else {}
        halves[end] = stack(first, layers, nn.LayerNorm(16) if norm == "pre" else None, **more)
    theirs = nn.Transformer(
        16, 4, batch_first=True, custom_encoder=halves["encoder"], custom_decoder=halves["decoder"]
    ).double()  # before the weights are loaded, which float32 would round
    for end in makers:
        ours, twin = getattr(net, end).stack, getattr(theirs, end)
        for mine, other in zip(ours.layers, twin.layers, strict=True):
            pairs = [
                (mine.attention, other.self_attn),
                (mine.around_attention.norm, other.norm1),
                (mine.feed[0], other.linear1),
                (mine.feed[3], other.linear2),
                (mine.around_feed.norm, other.norm2 if end == "encoder" else other.norm3),
            ]
            if end == "decoder":
                pairs += [(mine.cross, other.multihead_attn), (mine.around_cross.norm, other.norm2)]
            for one, two in pairs:
                two.load_state_dict(one.state_dict())
        if norm == "pre":
            twin.norm.load_state_dict(ours.norm.state_dict())
    return theirs.eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_numbers_and_gradients_equal_torchs(norm: str) -> None:
    net = network(norm=norm)
    for parameter in net.parameters():  # with biases of 0 and norms of 1 a swap would not show
        nn.init.normal_(parameter, std=0.3)
    theirs = torch_twin(net, norm, layers=2)
    source, lengths, inputs = texts()
    hidden = torch.arange(S) >= lengths[:, None]
    words = net.decoder.words
    y = theirs(
        words(source),
        words(inputs),
        tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    expected = y @ words.table.weight.T
    logits = net(source, lengths, inputs).logits
    torch.testing.assert_close(logits, expected)
    table = words.table.weight
    ours, twin = (torch.autograd.grad(x.square().sum(), table)[0] for x in (logits, expected))
    torch.testing.assert_close(ours, twin)


class NoLookAtNumbers(TorchDispatchMode):
    """Refuses whatever would copy a number, or a size that depends on one, to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        stops = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")
        assert name not in stops, name
        assert "unique" not in name, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mechanism", ["scaled-dot", "additive", "local-p", "monotonic/additive"])
def test_training_never_waits_for_the_device(mechanism: str) -> None:
    net = network(cross_attention=mechanism, position="rotary", attention_dropout=0.1).train()
    batch = texts()
    with NoLookAtNumbers():
        net(*batch).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoLookAtNumbers():
        batch[1].sum().item()


@torch.no_grad()
def test_hypotheses_may_grow_shrink_and_reorder() -> None:
    for mechanism in ("scaled-dot", "coverage/additive"):
        net = network(cross_attention=mechanism)
        source, lengths, _ = texts()
        carry = net.begin(source, lengths, need="weight")
        written = torch.zeros(B, 0, dtype=torch.long)
        owner = torch.arange(B)
        for rows in ([0, 0, 1, 1, 2, 2], [1, 0, 2, 3, 4, 5], [4, 4, 5, 0, 1], [2, 3, 1], [1]):
            rows = torch.tensor(rows)
            carry, owner = net.select(carry, rows), owner[rows]
            written = torch.cat([written[rows], torch.randint(4, SYMBOLS, (len(rows), 1))], 1)
            step = net.step(carry, written[:, -1])
            carry = step.carry
            expected = net(source[owner], lengths[owner], written, need="weight")
            torch.testing.assert_close(step.logits, expected.logits[:, -1])
            torch.testing.assert_close(step.weight, net.alignment(expected.seen)[:, -1])


@torch.no_grad()
def test_hypotheses_of_a_sentence_share_its_memory() -> None:
    net = network(cross_attention=["scaled-dot", "forward"])
    source, lengths, inputs = texts()
    carry = net.select(net.begin(source, lengths), torch.arange(B).repeat_interleave(5))
    rows = [kept.source.k.shape[0] for kept in carry.layers]
    assert rows == [B, 5 * B]  # one that continues from earlier steps needs a row for each
    after = net.select(net.step(carry, inputs[:, 0].repeat(5)).carry, torch.arange(15), same=True)
    for one, two in zip(carry.layers, after.layers, strict=True):
        assert one.source is two.source


def test_consecutive_layers_with_one_length_are_grouped() -> None:
    kept, sentence = regroup(torch.tensor([2, 2, 0, 0]))
    assert (kept.tolist(), sentence.tolist()) == ([2, 0], [0, 0, 1, 1])
    kept, sentence = regroup(torch.tensor([2, 2, 0]))
    assert (kept.tolist(), sentence.tolist()) == ([2, 2, 0], [0, 1, 2])


PLAIN: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post", "activation": "gelu"},
    {"position": "learned", "tied": False},
    {"alignment_layer": 0, "decoder_layers": 3, "norm": "post"},
]


def both_roads(net: Any, *begun: Any) -> list[Any]:
    """A carry of the fast path, and one of the general path."""
    with torch.no_grad():
        short = net.begin(*begun)
    with torch.enable_grad():
        general = net.begin(*begun)
    assert isinstance(short, PlainCarry)
    assert not isinstance(general, PlainCarry)
    return [short, general]


def agree_on_both_roads(net: Any, carries: list[Any], choices: list[Any]) -> None:
    """Select rows and step, repeatedly; some selections keep every sentence in its place."""
    N = B
    for rows, same in choices:
        if rows is not None and not same:  # two selections between steps are one
            back = torch.arange(N).flip(0)
            carries = [net.select(carry, back) for carry in carries]
        if rows is not None:
            carries = [net.select(carry, torch.tensor(rows), same) for carry in carries]
            N = len(rows)
        symbols = torch.randint(4, SYMBOLS, (N,))
        short, general = (net.step(carry, symbols) for carry in carries)
        torch.testing.assert_close(short.logits, general.logits, rtol=0, atol=1e-12)
        assert (short.weight is None) == (general.weight is None)
        if short.weight is not None:
            torch.testing.assert_close(short.weight, general.weight, rtol=0, atol=1e-12)
        carries = [short.carry, general.carry]


def random_choices(count: int) -> list[Any]:
    """Beams of three that reorder, sentences that finish, random rows, and steps without any."""
    beams = torch.arange(B).repeat_interleave(3)
    choices: list[Any] = [(None, False), (beams.tolist(), False)]
    for _ in range(count):
        chosen = torch.randint(0, 3, (B, 3)) + 3 * torch.arange(B)[:, None]
        choices.append((chosen.flatten().tolist(), True))
    choices += [([6, 8, 7, 0, 0, 1], False), ([1, 1, 0, 4, 5, 3], True), (None, False)]
    choices += [(torch.randint(0, 6, (7,)).tolist(), False), ([6, 0], False), ([1], False)]
    return choices + [(None, False)] * 3


@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("choices", PLAIN, ids=str)
@torch.no_grad()
def test_the_fast_path_agrees_with_the_general_one(
    choices: dict[str, Any], padded: bool, need: Need
) -> None:
    net = network(**choices)
    for parameter in net.parameters():  # with biases of zero, swapped ones would not show
        nn.init.normal_(parameter, std=0.3)
    source, lengths, _ = texts()
    lengths = lengths if padded else torch.full_like(lengths, S)
    agree_on_both_roads(net, both_roads(net, source, lengths, need), random_choices(10))


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_the_fast_path_encodes_a_source_to_the_same_numbers(norm: str, padded: bool) -> None:
    net = network(norm=norm)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    source, lengths, _ = texts()
    lengths = lengths if padded else torch.full_like(lengths, S)
    found = encode(net.encoder, net.encoder.words(source), heed.lengths(lengths))
    wanted = net.encoder(source, lengths, need="weight")
    assert found is not None
    there = torch.arange(S) < lengths[:, None]
    torch.testing.assert_close(found[0][there], wanted.states[there])
    assert found[1].keys() == wanted.seen.keys()
    got = net.encoder(source, lengths)
    torch.testing.assert_close(got.states, wanted.states)
    torch.testing.assert_close(got.last, wanted.last)


@torch.no_grad()
def test_an_encoder_that_is_not_plain_takes_the_general_path() -> None:
    source, lengths, _ = texts()

    def taken(net: EncoderDecoder, lengths: Tensor = lengths) -> bool:
        return encode(net.encoder, net.encoder.words(source), heed.lengths(lengths)) is not None

    net = network()
    assert taken(net) is source.is_cpu
    assert not taken(net, lengths * 0)
    assert not taken(network(position="rotary"))
    assert not taken(network(encoder_attention="local-m/scaled-dot"))
    with torch.enable_grad():
        assert not taken(net)
    with heed.watch(net) as seen:
        net.begin(source, lengths)
    assert seen["encoder.stack.layers.1.attention"][0].weight.shape == (B, 4, S, S)
    net.encoder.stack.layers[0].feed[3] = Shrunk(32, 16)
    assert not taken(net)
    assert not taken(network().train())


@torch.no_grad()
def test_a_language_model_takes_the_fast_path_after_its_prompt() -> None:
    settings = TransformerSettings(width=16, feed=32, heads=4, decoder_layers=2)
    model = build_decoder(settings, symbols=SYMBOLS, longest=S).double().eval()
    for length in (0, 3, 8):
        prompt = torch.randint(4, SYMBOLS, (B, length))
        agree_on_both_roads(model, both_roads(model, prompt), random_choices(6))


@torch.no_grad()
def test_a_carry_of_the_fast_path_may_be_used_again() -> None:
    net = network()
    source, lengths, inputs = texts()
    carry = net.step(net.begin(source, lengths), inputs[:, 0]).carry
    first = net.step(carry, inputs[:, 1])
    other = net.step(carry, inputs[:, 2])  # writes another symbol at the same position
    for step, written in ((first, [0, 1, 3]), (other, [0, 2, 3])):
        at_once = net(source, lengths, inputs[:, written]).logits
        torch.testing.assert_close(step.logits, at_once[:, 1])
        again = net.step(step.carry, inputs[:, 3])
        torch.testing.assert_close(again.logits, at_once[:, 2])


class Shrunk(nn.Linear):
    """A linear map that the fast path does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


@torch.no_grad()
def test_parts_that_are_not_plain_take_the_general_path() -> None:
    source, lengths, _ = texts()
    for choices in (
        {"position": "rotary"},
        {"cross_attention": ["scaled-dot", "additive"]},
        {"decoder_attention": "local-m/scaled-dot"},
        {"cross_attention": "sparsemax"},
        {"decoder_attention": "2*dot + 2*scaled-dot"},
    ):
        assert not isinstance(network(**choices).begin(source, lengths), PlainCarry)
    net = network()
    assert isinstance(net.begin(source, lengths), PlainCarry)
    assert not isinstance(net.begin(source, lengths * 0), PlainCarry)  # an empty source
    with torch.autocast("cpu", torch.bfloat16):
        assert not isinstance(net.float().begin(source, lengths), PlainCarry)
    with heed.watch(net) as seen:
        net.step(net.begin(source, lengths), source[:, 0])
    assert seen["decoder.stack.layers.1.cross"][0].weight.shape == (B, 4, 1, S)
    net.decoder.stack.layers[0].feed[3] = Shrunk(32, 16)
    assert not isinstance(net.begin(source, lengths), PlainCarry)
    assert not isinstance(network().train().begin(source, lengths), PlainCarry)


@torch.no_grad()
def test_learned_positions_are_bounded_on_the_fast_path_too() -> None:
    net = network(position="learned", longest=S)
    source, lengths, inputs = texts()
    carry = net.begin(source, lengths)
    for _ in range(S):
        carry = net.step(carry, inputs[:, 0]).carry
    with pytest.raises(Refused, match=f"end at {S}; this text reaches {S + 1}"):
        net.step(carry, inputs[:, 0])


@torch.no_grad()
def test_a_decoder_alone_is_a_language_model() -> None:
    settings = TransformerSettings(width=16, feed=32, heads=4, decoder_layers=2)
    model = build_decoder(settings, symbols=SYMBOLS, longest=S).double().eval()
    _, _, inputs = texts()
    logits = model(inputs).logits
    carry = model.begin(inputs[:, :3])  # a prompt, read in one pass
    for t in range(3, T):
        step = model.step(carry, inputs[:, t])
        carry = step.carry
        torch.testing.assert_close(step.logits, logits[:, t])
    assert step.weight is None


def test_embeddings_are_tied_once() -> None:
    shared, apart, untied = network(), network(shared=False), network(tied=False)
    tables = [
        [n for n, p in x.named_parameters() if len(p) == SYMBOLS] for x in (shared, apart, untied)
    ]
    assert tables == [
        ["encoder.words.table.weight"],
        ["encoder.words.table.weight", "decoder.words.table.weight"],
        ["encoder.words.table.weight", "decoder.words.table.weight", "decoder.output.weight"],
    ]
    for net in (shared, apart, untied):
        pointers = [x.data_ptr() for x in net.state_dict().values()]
        assert len(set(pointers)) == len(list(net.parameters()))
    assert shared.encoder.words is shared.decoder.words


def test_sizes_are_those_of_the_literature() -> None:
    """65 M of base: Vaswani 2017 table 3, with 37,000 shared symbols."""
    assert SIZES["tiny"] == (4, 128, 256, 4)
    with torch.device("meta"):
        base = build(
            TransformerSettings(size="base", norm="post"),
            source=37_000,
            target=37_000,
            shared=True,
            longest=100,
        )
    assert sum(p.numel() for p in base.parameters()) == pytest.approx(63.1e6, rel=0.01)


def test_every_attention_can_be_watched() -> None:
    net = network(cross_attention="coverage/additive")
    written = net(*texts())
    ends = ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross"]
    assert list(written.seen)[:4] == ends
    assert written.seen["decoder.1.cross"].penalty.shape == (B, 4, T)
    with heed.watch(net) as seen:
        net(*texts())
    assert seen["decoder.stack.layers.0.cross"][0].weight.shape == (B, 4, T, S)


@torch.no_grad()
def test_heads_of_different_kinds_do_not_interact() -> None:
    """Beside additive heads, dot heads give the same as among themselves."""
    x = torch.randn(B, S, 16, dtype=torch.double)
    alike = network(encoder_attention="scaled-dot").encoder.stack.layers[0].attention
    kinds = ["scaled-dot", "scaled-dot", "additive", "local-m"]
    grouped = network(encoder_attention=[kinds, kinds], options={"window": 1})
    among = grouped.encoder.stack.layers[0].attention
    among.load_state_dict(alike.state_dict(), strict=False)
    one, two = (a(x, visible=heed.causal(), need="weight") for a in (alike, among))
    torch.testing.assert_close(two.weight[:, :2], one.weight[:, :2])
    assert not torch.allclose(two.weight[:, 2], one.weight[:, 2])
    assert not torch.allclose(two.weight[:, 3], one.weight[:, 3])


def test_heads_must_add_up() -> None:
    assert head_groups("additive", 4) == [("additive", 4)]
    assert head_groups("2*additive + 2*dot", 4) == [("additive", 2), ("dot", 2)]
    assert head_groups(["dot", "dot", "additive"], 3) == [("dot", 2), ("additive", 1)]
    for wrong in (
        "3*additive + 2*dot",
        "additive + dot",
        ["dot"],
        "x*dot",
        "0*dot + 4*dot",
        "-1*dot",
    ):
        with pytest.raises(Refused, match="heads"):
            head_groups(wrong, 4)


REFUSALS = [
    ({"encoder_attention": "pointer"}, "'pointer' does not work inside the heads"),
    ({"cross_attention": "static"}, "'static' does not work inside the heads"),
    ({"decoder_attention": "local-p"}, "the text's length"),
    ({"cross_attention": "fixed-window"}, "within one text"),
    ({"cross_attention": "aditive"}, "did you mean additive"),
    ({"cross_attention": ["additive"] * 3}, "2 layers, and 3 mechanisms"),
    ({"options": {"windw": 3}, "cross_attention": "local-m"}, "did you mean window"),
    ({"width": 18}, "width=18 does not split"),
    ({"alignment_layer": 2}, "the layers are 0 to 1"),
]


@pytest.mark.parametrize(("choices", "says"), REFUSALS)
def test_impossible_settings_are_refused(choices: dict[str, Any], says: str) -> None:
    with pytest.raises(HeedError, match=says):
        network(**choices)


def test_settings_are_closed_and_bounded() -> None:
    for wrong in (
        {"widht": 3},
        {"width": 10**9},
        {"dropout": 1.0},
        {"size": "huge"},
        {"options": {"window": 10**9}},
    ):
        with pytest.raises(ValidationError):
            TransformerSettings(**wrong)
    with pytest.raises(UnknownName):
        network(options={"window": 3})  # no mechanism here has a window
    reach = network(options={"window": 3}, cross_attention="local-m").decoder.stack.layers[0].cross
    assert reach.mechanism.reach.window == 3


def test_it_learns_to_copy() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "width": 32, "feed": 64}
    net = network(dropout=0.0, **sizes).float().train()
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    lengths = torch.full((32,), 5)
    for _ in range(130):
        source = torch.randint(4, SYMBOLS, (32, 5))
        inputs = torch.cat([torch.full((32, 1), 2), source[:, :-1]], 1)
        logits = net(source, lengths, inputs).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.7  # chance is log 16 = 2.8


@pytest.mark.parametrize("mechanism", ["scaled-dot", "cosine", "general", "additive", "relative"])
def test_a_rotated_text_behind_padding_is_as_alone_or_refused(mechanism: str) -> None:
    """Rotation changes the energies of `general` and the like by where a text stands."""
    torch.manual_seed(0)
    settings = TransformerSettings(
        encoder_layers=1, decoder_layers=1, width=16, feed=32, heads=4,
        decoder_attention=mechanism, position="rotary",
    )  # fmt: skip
    net = build_decoder(settings, symbols=20, longest=30).double().eval()
    ids = torch.randint(1, 20, (1, 6))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    if mechanism in ("scaled-dot", "cosine"):
        torch.testing.assert_close(net(padded, first=[5]).logits[:, 5:], net(ids).logits)
        return
    for read in (net, net.begin):
        with pytest.raises(Refused, match="texts of one length together"):
            read(padded, first=[5])
