"""BERT and GPT-2 as settings: sizes, initial weights, any attention by name, batched prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import heed
from heed.errors import HeedError, Refused, ShapeError
from heed.kernels import native
from heed.models import plain_carry
from heed.models.native_carry import NativeCarry
from heed.models.plain_carry import GROWTH, PlainCarry
from heed.models.text_settings import (
    BertSettings,
    GPT2Settings,
    build,
    build_bert,
    build_gpt2,
    with_symbols,
)
from heed.models.transformer import Decoder, DecoderCarry
from heed.models.xlnet_settings import XLNetSettings

SYMBOLS, B, T = 20, 3, 9
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "feed": 33, "heads": 4, "symbols": SYMBOLS}
CAUSAL = [
    "scaled-dot",
    "additive",
    "local-m/dot",
    "location",
    "relative",
    "entmax",
    "fixed-window",
    "monotonic/additive",
    "coverage/additive",
    "2*additive + 2*scaled-dot",
    [["scaled-dot", "additive", "scaled-dot", "entmax"], "sparsemax"],
]
ENCODING = [*CAUSAL, "local-p/general", "mixed", "expanded-window"]


def random_weights(network: Any) -> Any:
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def writer(**choices: Any) -> Decoder:
    settings = GPT2Settings(**{**SMALL, "longest": 30, **choices})
    return random_weights(build_gpt2(settings)).double().eval()


def options(mechanism: Any) -> dict[str, Any]:
    known = {"expanded-window": {"block": 3, "window": 1}, "fixed-window": {"window": 2}}
    return known.get(mechanism, {}) if isinstance(mechanism, str) else {}


PUBLISHED = {
    "bert": {"tiny": 4_385_920, "mini": 11_170_560, "base": 109_482_240, "large": 335_141_888},
    "gpt2": {"small": 124_439_808, "medium": 354_823_168, "large": 774_030_080, "xl": 1557611200},
}


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (BertSettings(size="tiny", head="pretraining"), 11),
        (GPT2Settings(layers=1, width=12, heads=3, tied=False, multiple=64), 64),
        (GPT2Settings(layers=1, width=12, heads=3, symbols=20), 20),
        (XLNetSettings(size="tiny"), 11),
    ],
    ids=["bert", "multiple", "named", "xlnet"],
)
def test_settings_get_the_size_of_the_vocabulary(settings: Any, rows: int) -> None:
    known = with_symbols(settings, 11)
    assert known.rows == rows
    assert known.model_dump(exclude={"symbols"}) == settings.model_dump(exclude={"symbols"})


def test_a_vocabulary_must_fit_the_model() -> None:
    with pytest.raises(HeedError, match="vocabulary has 21 symbols, and the model 20"):
        with_symbols(GPT2Settings(symbols=20), 21)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_named_sizes_have_the_published_number_of_weights(kind: str) -> None:
    for size, count in PUBLISHED[kind].items():
        with torch.device("meta"):
            if kind == "bert":
                network: nn.Module = build(BertSettings(size=size, symbols=30522))
            else:
                network = build(GPT2Settings(size=size, symbols=50257))
        assert sum(p.numel() for p in network.parameters()) == count


def test_initial_weights_are_smaller_where_many_layers_are_added() -> None:
    torch.manual_seed(0)
    made = build_gpt2(GPT2Settings(symbols=500, width=128, layers=8, heads=4))
    layer = made.stack.layers[5]
    for weight in (layer.attention.in_proj_weight, layer.feed[0].weight, made.words.table.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    for added in (layer.attention.out_proj, layer.feed[3]):
        assert float(added.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.05)
        assert added.bias.eq(0).all()
    read = build_bert(BertSettings(symbols=500, size="tiny", head="pretraining", initial=0.1))
    spread = {n: float(p.detach().std()) for n, p in read.named_parameters() if p.ndim == 2}
    few = {"encoder.words.types.weight", "follows.weight"}
    for name, found in spread.items():
        assert found == pytest.approx(0.1, rel=0.2 if name in few else 0.05), name


def test_the_table_may_be_padded() -> None:
    settings = GPT2Settings(**{**SMALL, "symbols": 50257, "multiple": 64})
    with torch.device("meta"):
        assert build_gpt2(settings).words.table.weight.shape == (50304, 16)
        masked = build_bert(BertSettings(**SMALL, multiple=64, head="masked"))
    assert masked.words.bias.shape == masked.table.shape[:1] == (64,)


@pytest.mark.parametrize("mechanism", ENCODING, ids=str)
@torch.no_grad()
def test_any_attention_reads_a_padded_row_as_if_alone(mechanism: Any) -> None:
    choices = {"attention": mechanism, "options": options(mechanism), "longest": T}
    net = random_weights(build_bert(BertSettings(**SMALL, **choices, head="classify")))
    net = net.double().eval()
    x, types = torch.randint(1, SYMBOLS, (B, T)), torch.randint(0, 2, (B, T))
    lengths = torch.tensor([T, 4, 6])
    together = net(x, lengths, types, need="weight")
    table = net(x, torch.arange(T) < lengths[:, None], types)
    torch.testing.assert_close(table.logits, together.logits)
    alone = net(x[1:2, :4], None, types[1:2, :4])
    torch.testing.assert_close(alone.states[0], together.states[1, :4])
    torch.testing.assert_close(alone.logits[0], together.logits[1])
    assert list(together.seen) == ["0.self", "1.self"]
    assert together.seen["1.self"].weight[1, ..., 4:].eq(0).all()


@pytest.mark.parametrize("mechanism", CAUSAL, ids=str)
@torch.no_grad()
def test_any_attention_writes_step_by_step_as_in_one_pass(mechanism: Any) -> None:
    net = writer(attention=mechanism, options=options(mechanism))
    x = torch.randint(1, SYMBOLS, (B, T))
    at_once, carry = net(x).logits, net.begin(x[:, :3])
    for t in range(3, T):
        step = net.step(carry, x[:, t])
        carry = step.carry
        torch.testing.assert_close(step.logits, at_once[:, t])


def roads(net: Decoder, x: Tensor, **padding: Any) -> dict:
    """The same prompts on the general path, the fast one, and the one in C."""
    with torch.enable_grad():
        found: dict[type, Any] = {DecoderCarry: (net, net.begin(x, **padding))}
    found[PlainCarry] = (net, net.begin(x, **padding))
    if native.missing() is None:
        single = writer().float()
        single.load_state_dict(net.state_dict())
        found[NativeCarry] = (single, single.begin(x, **padding))
    for kind, (_, carry) in found.items():
        assert type(carry) is kind
    return found


@pytest.mark.parametrize("mechanism", CAUSAL, ids=str)
@torch.no_grad()
def test_lengths_stand_for_padding_behind_in_a_writer_too(mechanism: Any) -> None:
    """As for `heed.lengths`, BERT and XLNet: a text begins in the first column of its row."""
    net = writer(attention=mechanism, options=options(mechanism))
    x, lengths = torch.randint(1, SYMBOLS, (B, T)), torch.tensor([T, 2, 5])
    there = torch.arange(T) < lengths[:, None]
    for told in (lengths, there, there.long(), heed.lengths(lengths)):
        said = net(x, lengths=told).logits
        for row, n in enumerate(lengths.tolist()):
            alone = net(x[row : row + 1, :n]).logits[0]
            torch.testing.assert_close(said[row, :n], alone)


@pytest.mark.parametrize("side", ["behind", "in front", "both"])
@torch.no_grad()
def test_batched_prompts_continue_as_if_alone(side: str) -> None:
    """Three lengths, one of them zero; rows are selected, repeated and dropped."""
    net = writer()
    x, lengths = torch.randint(1, SYMBOLS, (B, 6)), torch.tensor([6, 0, 3])
    first = {"behind": 0 * lengths, "in front": 6 - lengths, "both": (6 - lengths) // 2}[side]
    place = torch.arange(6)
    there = (place >= first[:, None]) & (place < (first + lengths)[:, None])
    padding = {"behind": {"lengths": lengths}, "in front": {"first": first}}
    for kind, (model, carry) in roads(net, x, **padding.get(side, {"lengths": there})).items():
        bound = 1e-4 if kind is NativeCarry else 1e-10
        texts = [row[own] for row, own in zip(x, there, strict=True)]
        for rows in ([0, 1, 2], [2, 1, 0], [0, 0, 2, 1], [3, 1, 0], [2], [0]):
            carry = model.select(carry, torch.tensor(rows))
            written = torch.randint(1, SYMBOLS, (len(rows),))
            texts = [torch.cat([texts[i], s[None]]) for i, s in zip(rows, written, strict=True)]
            step = model.step(carry, written)
            carry = step.carry
            for text, logits in zip(texts, step.logits, strict=True):
                wanted = net(text[None]).logits[0, -1]
                torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize(
    "mechanism", ["additive", "relative", "fixed-window", "entmax", "2*additive + 2*scaled-dot"]
)
@torch.no_grad()
def test_other_attentions_continue_batched_prompts_too(mechanism: str) -> None:
    net = writer(attention=mechanism, options=options(mechanism))
    x, lengths = torch.randint(1, SYMBOLS, (B, 6)), torch.tensor([6, 2, 3])
    written = torch.randint(1, SYMBOLS, (B, 4))
    behind, in_front = net.begin(x, lengths=lengths), net.begin(x, first=6 - lengths)
    for t in range(4):
        steps = net.step(behind, written[:, t]), net.step(in_front, written[:, t])
        behind, in_front = (step.carry for step in steps)
        for row, n in enumerate(lengths.tolist()):
            for step, prompt in zip(steps, (x[row, :n], x[row, 6 - n :]), strict=True):
                text = torch.cat([prompt, written[row, : t + 1]])
                torch.testing.assert_close(step.logits[row], net(text[None]).logits[0, -1])


@pytest.mark.parametrize("side", ["behind", "in front"])
@torch.no_grad()
def test_padding_changes_no_bit(side: str) -> None:
    net = writer()
    x, lengths = torch.randint(1, SYMBOLS, (B, 6)), torch.tensor([6, 2, 3])
    there = torch.arange(6) < lengths[:, None]
    told = {"lengths": lengths}
    if side == "in front":
        there, told = there.flip(1), {"first": 6 - lengths}
    other = x.where(there, 7)
    assert not torch.equal(x, other)
    for write in (lambda y: net(y, **told).logits[there], lambda y: begun(net, y, **told)):
        assert torch.equal(write(x), write(other))


def begun(net: Decoder, x: Tensor, **padding: Any) -> Tensor:
    return net.step(net.begin(x, **padding), torch.tensor([4, 5, 6])[: len(x)]).logits


@pytest.mark.parametrize("mechanism", ["location", "local-m", "monotonic", "coverage/additive"])
def test_an_attention_that_counts_from_the_front_refuses_padding_there(mechanism: str) -> None:
    net = writer(attention=mechanism)
    x = torch.ones(2, 5, dtype=torch.long)
    for told in ({"lengths": [5, 3]}, {"first": [0, 2]}):
        with pytest.raises(Refused, match="texts of one length together"):
            net.begin(x, **told)
    with pytest.raises(Refused, match="texts of one length together"):
        net(x, first=[0, 2])
    assert torch.equal(begun(net, x, lengths=[5, 5]), begun(net, x))


def test_lengths_that_do_not_fit_are_refused() -> None:
    net, x = writer(), torch.ones(2, 5, dtype=torch.long)
    for read in (net, net.begin):
        for name in ("lengths", "first"):
            for wrong in (torch.tensor([5]), torch.tensor([5.0, 3.0]), torch.tensor([True, True])):
                with pytest.raises(HeedError, match=f"{name} takes one whole number for each of 2"):
                    read(x, **{name: wrong})
            for beyond in ([6, 3], [5, -1]):
                with pytest.raises(HeedError, match=f"0 to 5 of the 5 symbols.*; {name} has"):
                    read(x, **{name: torch.tensor(beyond)})
        with pytest.raises(
            HeedError, match=r"an attention mask has them as \(mask == 0\)\.sum\(-1\)"
        ):
            read(x, first=torch.ones_like(x))
        with pytest.raises(HeedError, match="booleans, or 0 and 1"):
            read(x, lengths=torch.ones(2, 5))
        with pytest.raises(
            Refused, match="padding behind the texts, or first for padding in front"
        ):
            read(x, lengths=[5, 3], first=[0, 2])
    for told, same in (({"lengths": [3, 1]}, [3, 1]), ({"first": [0, 2]}, [0, 2])):
        (name,) = told
        tensor = {name: torch.tensor(same)}
        assert torch.equal(net(x[:, :3], **told).logits, net(x[:, :3], **tensor).logits)
        assert torch.equal(begun(net, x[:, :3], **told), begun(net, x[:, :3], **tensor))
    with pytest.raises(Refused, match="positions end at 30; this text reaches 40"):
        net.begin(x.repeat(1, 8), lengths=torch.tensor([40, 3]))


@pytest.mark.parametrize(
    "attention", ["scaled-dot", "relative", "fixed-window", "2*additive + 2*scaled-dot"]
)
@pytest.mark.parametrize("head", ["pretraining", "classify", "label"])
@torch.no_grad()
def test_a_padded_text_equals_the_text_alone(head: str, attention: str) -> None:
    told = {"longest": T, "labels": 3, "attention": attention, "options": options(attention)}
    net = random_weights(build_bert(BertSettings(**SMALL, head=head, **told))).double().eval()
    x, types = torch.randint(0, SYMBOLS, (B, T)), torch.randint(0, 2, (B, T))
    exists = torch.arange(T) < torch.tensor([T, 5, 1])[:, None]
    together = net(x, exists, types)
    for row in range(B):
        own = exists[row]
        alone = net(x[row : row + 1, own], types=types[row : row + 1, own])
        torch.testing.assert_close(together.states[row, own], alone.states[0])
        if head == "label":
            torch.testing.assert_close(together.logits[row, own], alone.logits[0])
            continue
        torch.testing.assert_close(together.pooled[row], alone.pooled[0])
        found = together.logits if head == "classify" else together.follows
        wanted = alone.logits if head == "classify" else alone.follows
        torch.testing.assert_close(found[row], wanted[0])


@torch.no_grad()
def test_a_text_padded_in_front_is_pooled_at_its_first_symbol() -> None:
    """Positions count columns as in Hugging Face's BERT; that one, however, pools padding."""
    net = random_weights(build_bert(BertSettings(**SMALL, longest=T, head="classify"))).eval()
    x, first = torch.randint(0, SYMBOLS, (B, T)), torch.tensor([0, 3, T - 1])
    said = net(x, torch.arange(T) >= first[:, None])
    wanted = torch.tanh(net.pool.dense(said.states[torch.arange(B), first]))
    torch.testing.assert_close(said.pooled, wanted)


@pytest.mark.parametrize("given", ["lengths", "keys", "one for all", "nothing there"])
@torch.no_grad()
def test_masks_of_any_kind_are_accepted(given: str) -> None:
    net = random_weights(build_bert(BertSettings(**SMALL, longest=T, head="classify"))).eval()
    x, lengths = torch.randint(0, SYMBOLS, (B, T)), torch.tensor([4, 4, 4])
    there = torch.arange(T) < lengths[:, None]
    wanted = net(x[:, :4]).logits
    if given == "nothing there":
        there[1] = False
        said = net(x, there).logits
        assert said.isfinite().all()
        torch.testing.assert_close(said[[0, 2]], wanted[[0, 2]])
        return
    table = there[:1] if given == "one for all" else there
    told = heed.lengths(lengths) if given == "lengths" else heed.Visible.keys(table)
    torch.testing.assert_close(net(x, told).logits, wanted)


@torch.no_grad()
def test_positions_end_with_the_text_and_not_its_row() -> None:
    net, x = writer(longest=6), torch.randint(1, SYMBOLS, (2, 8))
    said = net(x, first=torch.tensor([4, 2])).logits
    torch.testing.assert_close(said[:1, 4:], net(x[:1, 4:]).logits)
    with pytest.raises(Refused, match="positions end at 6; this text reaches 7"):
        net(x, first=torch.tensor([4, 1]))
    for model, bound in ((net, 1e-10), (writer(longest=6).float(), 1e-4)):
        model.load_state_dict(net.state_dict())
        carry = model.begin(x[:, :5], first=torch.tensor([4, 3]))
        for t in range(5, 8):  # the row is longer than positions reach, but no text is
            step = model.step(carry, x[:, t])
            carry = step.carry
        for row, n in ((0, 4), (1, 5)):
            wanted = net(x[row : row + 1, 8 - n :]).logits[0, -1]
            torch.testing.assert_close(step.logits[row].double(), wanted, rtol=0, atol=bound)
        carry = model.step(carry, x[:, 0]).carry
        with pytest.raises(Refused, match="positions end at 6"):
            model.step(carry, x[:, 0])


@torch.no_grad()
def test_a_grown_carry_leaves_earlier_ones_unchanged() -> None:
    """More steps than there was room for at first; then others, from every earlier carry."""
    net, x = writer(), torch.randint(1, SYMBOLS, (B, 2 * GROWTH + 5))
    carries = [net.begin(x[:, :2])]
    for t in range(2, x.shape[1]):
        carries.append(net.step(carries[-1], x[:, t]).carry)
    assert carries[0].own[0] is carries[-1].own[0]
    for t, carry in enumerate(carries, 2):
        other = torch.full((B,), 4)
        wanted = net(torch.cat([x[:, :t], other[:, None]], 1)).logits[:, -1]
        torch.testing.assert_close(net.step(carry, other).logits, wanted)


@pytest.mark.parametrize("wrong", [-1, SYMBOLS])
def test_symbols_outside_the_table_are_refused(wrong: int) -> None:
    x = torch.ones(2, 5, dtype=torch.long)
    x[1, 3] = wrong
    for net in (writer(), build(BertSettings(**SMALL))):
        with pytest.raises(ShapeError, match=f"symbols are 0 to 19; got {wrong}"):
            net(x)
    with pytest.raises(ShapeError, match="symbols are whole numbers"):
        writer()(x.double())


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_training_compiles_as_one_graph(kind: str) -> None:
    """Forward and backward: a break in the graph would slow training down."""
    torch._dynamo.reset()
    plain = {**SMALL, "layers": 1, "dropout": 0.0, "attention_dropout": 0.0, "longest": T}
    x, wanted = torch.randint(1, SYMBOLS, (B, T)), torch.randint(1, SYMBOLS, (B, T))
    if kind == "gpt2":
        net: Any = random_weights(build_gpt2(GPT2Settings(**plain)))
        arguments: tuple[Any, ...] = (x,)
    else:
        net = random_weights(build_bert(BertSettings(**plain, head="pretraining")))
        arguments = (x, torch.tensor([T, 4, 2]), torch.randint(0, 2, (B, T)))

    def loss(model: Any) -> Tensor:
        said = model(*arguments)
        logits = said.logits if kind == "gpt2" else said.words.form()
        total = cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return total if kind == "gpt2" else total + said.follows.square().sum()

    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    found = []
    for model in (compiled, net):
        net.zero_grad()
        total = loss(model)
        total.backward()
        found.append([total, *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


class NoLookAtNumbers(TorchDispatchMode):
    """Refuses whatever would copy a number, or a size that depends on one, to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stops = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")
        assert func.overloadpacket.__name__ not in stops
        return func(*args, **(kwargs or {}))


def test_training_never_waits_for_the_device() -> None:
    x, lengths = torch.randint(1, SYMBOLS, (B, T)), torch.tensor([T, 4, 6])
    read, write = build(BertSettings(**SMALL, head="masked")), build(GPT2Settings(**SMALL))
    asked = torch.tensor([[0, 3], [1, 1], [5, 2]])
    with NoLookAtNumbers():
        read(x, lengths, asked=asked).words.form().square().mean().backward()
        write(x, lengths=lengths).logits.square().mean().backward()
    for network in (read, write):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm")
        return func(*args, **(kwargs or {}))


def test_a_layer_takes_four_products_and_one_fused_attention() -> None:
    net, x = writer(), torch.randint(1, SYMBOLS, (B, T))
    with Products() as products:
        written = net(x)
    assert products.count == 2 * 4  # queries, keys and values at once; join; widen; narrow
    assert {look.kernel for look in written.seen.values()} == {"sdpa"}


@pytest.mark.parametrize("mechanism", ["scaled-dot", "additive", "key-value", "relative"])
def test_one_product_equals_three(mechanism: str) -> None:
    net = writer(attention=mechanism)
    own, x = net.stack.layers[0].attention, torch.randn(B, T, 16, dtype=torch.double)
    twin = heed.MultiHeadAttention(16, 4, mechanism=mechanism).double().eval()
    twin.load_state_dict(own.state_dict())
    for visible in (None, heed.causal(), heed.lengths([T, 3, 5])):
        one, two = (a(x, visible=visible, need="weight") for a in (own, twin))
        torch.testing.assert_close(one.context, two.context)
        torch.testing.assert_close(one.weight, two.weight)
    with pytest.raises(HeedError, match="17 wide"):
        own(torch.randn(B, T, 17))
    with pytest.raises(HeedError, match="visible=~mask"):
        own(x, attn_mask=torch.ones(T, T, dtype=torch.bool))


def test_settings_are_closed_and_bounded() -> None:
    for wrong in (
        {"widht": 3},
        {"width": 10**9},
        {"symbols": 10**12},
        {"size": "huge"},
        {"dropout": 1.0},
        {"head": "tail"},
        {"longest": 10**9},
    ):
        for kind in (BertSettings, GPT2Settings):
            with pytest.raises(ValidationError):
                kind(**wrong)
    with pytest.raises(Refused, match="symbols="):
        build(BertSettings(size="tiny"))
    with pytest.raises(HeedError, match="did you mean window"):
        build(GPT2Settings(**SMALL, attention="local-m", options={"windw": 3}))
    with pytest.raises(HeedError, match="2 layers, and 1 mechanisms"):
        build(GPT2Settings(**SMALL, attention=["additive"]))
    with pytest.raises(Refused, match="the text's length"):
        build(GPT2Settings(**SMALL, attention="local-p"))
    with pytest.raises(Refused, match="without token types"):
        writer().words(torch.ones(1, 2, dtype=torch.long), types=torch.ones(1, 2).long())


@torch.no_grad()
def test_every_layer_can_be_watched() -> None:
    net = writer()
    with heed.watch(net) as seen:
        net(torch.randint(1, SYMBOLS, (B, T)))
    assert seen["stack.layers.1.attention"][0].weight.shape == (B, 4, T, T)


def test_it_learns_to_copy() -> None:
    torch.manual_seed(1)
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "longest": 11}
    net = build_gpt2(GPT2Settings(layers=2, width=32, heads=2, symbols=SYMBOLS, **plain))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(120):
        first = torch.randint(4, SYMBOLS, (64, 5))
        text = torch.cat([first, torch.full((64, 1), 2), first], 1)
        logits = net(text[:, :-1]).logits[:, 5:]
        loss = cross_entropy(logits.flatten(0, 1), first.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 1.0  # chance is log 16 = 2.8


def test_the_fast_path_refuses_parts_it_does_not_know() -> None:
    """Types and a norm of the embeddings are not among them."""
    net = writer()
    assert plain_carry._plain(net)
    net.words.norm = nn.LayerNorm(16).eval()
    assert not plain_carry._plain(net)


def poisoned(network: nn.Module, table: Tensor, ask: Any) -> list[list[Tensor]]:
    """Outputs and gradients with symbol 0, which is padding, as a number, NaN and infinity."""
    found = []
    for bad in (0.5, torch.nan, torch.inf):
        with torch.no_grad():
            table[0] = bad
        said = ask()
        back = torch.autograd.grad(said.square().sum(), list(network.parameters()))
        found.append([said, *back])
    return found


@pytest.mark.parametrize("layer", ["encoder.words", "encoder.stack.layers.1.attention.out_proj"])
def test_tools_that_exchange_what_a_layer_gave_get_its_gradient(layer: str) -> None:
    """As captum's layer methods do: integrated gradients add up to the change of the answer."""
    settings = BertSettings(**SMALL, longest=T, head="classify", labels=3)
    net = random_weights(build_bert(settings)).double().eval()
    x, lengths, gave = torch.randint(1, SYMBOLS, (B, T)), torch.tensor([T, 4, 6]), []
    module = net.get_submodule(layer)

    def logits(given: Tensor) -> Tensor:
        with module.register_forward_hook(lambda *_: given):
            answers: Tensor = net(x, lengths).logits[:, 1]
            return answers

    with module.register_forward_hook(lambda _, __, out: gave.append(out.detach())):
        wanted = net(x, lengths).logits[:, 1]
    (end,) = gave
    torch.testing.assert_close(logits(end), wanted)
    steps, share = 400, torch.zeros_like(end)
    for i in range(steps):
        at = (end * (i + 0.5) / steps).requires_grad_()
        share += torch.autograd.grad(logits(at).sum(), at)[0] * end / steps
    change = wanted - logits(torch.zeros_like(end))
    assert change.abs().max() > 1e-2
    torch.testing.assert_close(share.flatten(1).sum(1), change, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attention", ["scaled-dot", "additive"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_in_padding_reaches_no_gradient_of_bert(side: str, attention: str) -> None:
    settings = BertSettings(**SMALL, longest=T, head="label", attention=attention)
    network = random_weights(build_bert(settings)).double()
    network.eval()
    lengths = torch.tensor([T, 5, 1])
    exists = torch.arange(T) < lengths[:, None]
    exists = exists if side == "right" else exists.flip(1)
    symbols = torch.randint(1, SYMBOLS, (B, T)).where(exists, 0)
    clean, *spoilt = poisoned(
        network, network.table, lambda: network(symbols, exists).logits[exists]
    )
    for found in spoilt:
        torch.testing.assert_close(found, clean, rtol=0, atol=0)


def test_nan_in_padding_reaches_no_gradient_of_gpt2() -> None:
    network = writer(tied=False)  # else the padding's row would be one of the logits
    lengths = torch.tensor([T, 5, 1])
    exists = torch.arange(T) >= T - lengths[:, None]
    symbols = torch.randint(1, SYMBOLS, (B, T)).where(exists, 0)
    clean, *spoilt = poisoned(
        network,
        network.words.table.weight,
        lambda: network(symbols, first=T - lengths).logits[exists],
    )
    for found in spoilt:
        torch.testing.assert_close(found, clean, rtol=0, atol=0)
