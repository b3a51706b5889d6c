"""XLNet: Hugging Face's numbers, no leaks, memories, and single steps that equal the whole pass."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

import heed
from heed.decoding.greedy import greedy
from heed.errors import HeedError, Refused, ShapeError, UnknownName
from heed.models.layouts.xlnet import names, settings, stored
from heed.models.xlnet_answers import LanguageModel, XLNetAnswerer
from heed.models.xlnet_settings import XLNetSettings, build
from heed.models.xlnet_sights import Memories, picked, placed, spread
from tests.models.layouts.walking import given, same_network

SYMBOLS, B, T = 40, 3, 9
CONFIGS = [
    {},
    {"d_model": 20, "n_head": 5, "attn_type": "uni"},
    {"d_model": 18, "n_head": 3, "clamp_len": 4, "ff_activation": "relu", "n_layer": 3},
    {"d_model": 14, "n_head": 7, "mem_len": 5, "reuse_len": 6, "ff_activation": "gelu_new"},
    {"d_model": 16, "n_head": 1, "mem_len": 4, "layer_norm_eps": 1e-5, "attn_type": "uni"},
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=[str(i) for i in range(len(CONFIGS))])


def theirs(kind: str = "XLNetLMHeadModel", **config: Any) -> Any:
    small = {"d_model": 12, "n_head": 3, "n_layer": 2, "d_inner": 26, "initializer_range": 0.4}
    config = {"vocab_size": SYMBOLS, "mem_len": None, "num_labels": 4, **small, **config}
    made = getattr(transformers, kind)(transformers.XLNetConfig(**config)).eval()
    for name, weight in made.named_parameters():
        if "bias" in name or "norm" in name:  # biases start at zero, where errors would not show
            torch.nn.init.normal_(weight, std=0.3)
    return made


def network(head: str = "language", **choices: Any) -> Any:
    small = {"layers": 2, "width": 16, "feed": 24, "heads": 4, "symbols": SYMBOLS, "initial": 0.4}
    return build(XLNetSettings(**{**small, "head": head, **choices})).double().eval()


def near(ours: Tensor, other: Tensor) -> None:
    """Within 1e-5 of the largest magnitude."""
    assert ours.shape == other.shape
    assert (ours - other).abs().max() <= 1e-5 * other.abs().max()


def padding(side: str) -> Tensor:
    """Which symbols exist.    B T"""
    ahead = torch.arange(T) < torch.tensor([T, 4, 6])[:, None]
    return {"left": ahead.flip(1), "right": ahead, "none": torch.ones(B, T, dtype=torch.bool)}[side]


def order(rows: int = B, places: int = T) -> tuple[Tensor, Tensor]:
    """The visibility of a random order for each row, and the rank of each symbol.    B T T, B T"""
    rank = torch.stack([torch.randperm(places) for _ in range(rows)])
    return rank[:, :, None] > rank[:, None], rank


def their_mask(visible: Tensor) -> Tensor:
    """What they hide: from a target, itself too.    B T T"""
    return (~(visible & ~torch.eye(visible.shape[-1], dtype=torch.bool))).float()


@pytest.mark.parametrize("side", ["none", "left", "right"])
@each_config
def test_the_content_stream_equals_theirs_over_several_segments(
    config: dict[str, Any], side: str
) -> None:
    other = theirs("XLNetModel", **config)
    ours = same_network(other)
    assert isinstance(ours, XLNetAnswerer)
    rows = 1 if side != "none" and other.config.attn_type == "uni" else B  # theirs fails with more
    exists, mems, memories = padding(side)[-rows:], None, None
    for segment in range(3):
        symbols = torch.randint(0, SYMBOLS, (rows, T))
        types = torch.randint(0, 3, (rows, T)) if segment else None
        mask = None if side == "none" else exists.float()
        said = other(symbols, attention_mask=mask, token_type_ids=types, mems=mems)
        read = ours(symbols, None if side == "none" else exists, types, memories=memories)
        near(read.states, said.last_hidden_state)
        mems = said.mems
        for kept, layer in zip(mems, read.memories.layers, strict=True):
            near(layer, kept.transpose(0, 1))
            assert not layer.requires_grad
        # They let every query see remembered padding; heed must be told to.
        memories = read.memories._replace(exists=None)


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("with_types", [False, True], ids=["plain", "types"])
@each_config
def test_targets_losses_and_gradients_equal_theirs(
    config: dict[str, Any], with_types: bool, side: str
) -> None:
    other = theirs(**config)
    ours = same_network(other)
    rows = 1 if other.config.attn_type == "uni" else B  # theirs fails with several rows
    exists = padding(side)[-rows:]
    mems = memories = None
    for _ in range(2):
        symbols = torch.randint(0, SYMBOLS, (rows, T))
        visible, _ = order(rows)
        targets = torch.stack([torch.randperm(T)[:4] for _ in range(rows)])
        targets[0, -1] = -1
        labels = torch.where(targets < 0, -100, torch.randint(0, SYMBOLS, targets.shape))
        types = torch.randint(0, 2, (rows, T)) if with_types else None
        said = other(
            symbols,
            attention_mask=None if side == "none" else exists.float(),
            perm_mask=their_mask(visible),
            target_mapping=one_hot(targets.clamp(min=0), T).float() * (targets >= 0)[..., None],
            token_type_ids=types,
            mems=mems,
            labels=labels,
        )
        predicted = ours(
            symbols,
            targets=targets,
            visible=visible,
            lengths=None if side == "none" else exists,
            types=types,
            memories=memories,
        )
        near(predicted.logits, said.logits)
        mems, memories = said.mems, predicted.memories._replace(exists=None)
    loss = cross_entropy(predicted.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, said.loss, rtol=1e-6, atol=0)
    gradients_are_theirs(other, ours, said.loss, loss)


def gradients_are_theirs(other: Any, ours: Any, their_loss: Tensor, our_loss: Tensor) -> None:
    """Within 1e-4 of each weight's largest gradient."""
    their_loss.backward()
    our_loss.backward()
    made = settings(other.config.to_dict(), "language")
    back = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in ours.named_parameters()
    }
    back = given(names(made), back, stored(made))
    largest = max(x.abs().max() for x in back.values())
    for name, weight in other.named_parameters():
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        away = (back[name] - grad).abs().max()
        assert away <= 1e-4 * grad.abs().max() + 1e-7 * largest, name


def test_a_query_that_sees_nothing_reads_zero_or_as_theirs() -> None:
    other = theirs()
    symbols, targets = torch.randint(0, SYMBOLS, (B, T)), torch.tensor([[2, 5]] * B)
    visible = torch.ones(B, T, T, dtype=torch.bool)
    visible[:, 2] = False
    told = {"perm_mask": their_mask(visible), "target_mapping": one_hot(targets, T).float()}
    said = other(symbols, **told, output_attentions=True)
    ours = same_network(other)
    seen = ours(symbols, "weight", targets=targets, visible=visible)
    near(seen.logits, said.logits)
    for i, (_, query) in enumerate(said.attentions):
        near(seen.seen[f"{i}.query"].weight, query[:, :, [2, 5]])
    made = settings(other.config.to_dict(), "language")
    zero = build(made.model_copy(update={"blind": "zero"})).eval()
    zero.load_state_dict(ours.state_dict())
    seen = zero(symbols, "weight", targets=targets, visible=visible)
    assert not seen.seen["1.query"].context[:, 0].any()
    assert not seen.seen["1.query"].weight[:, :, 0].any()
    assert seen.seen["1.query"].context[:, 1].any()
    (back,) = torch.autograd.grad(seen.logits[:, 0].sum(), zero.streams.layers[0].feed[0].weight)
    assert back.isfinite().all()


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize(
    "config",
    [{}, {"clamp_len": 4, "n_layer": 3}, {"attn_type": "uni", "clamp_len": 6}],
    ids=["plain", "clamped", "left to right"],
)
def test_the_gradients_of_a_query_that_sees_nothing_equal_theirs(
    config: dict[str, Any], side: str
) -> None:
    """The first in the order, in a text without memories: its energies have gradients as well."""
    other = theirs(**config)
    rows = 1 if other.config.attn_type == "uni" else B  # theirs fails at several rows
    exists = padding(side)[-rows:]
    ours, symbols = same_network(other), torch.randint(0, SYMBOLS, (rows, T))
    visible, rank = order(rows)
    rank = rank.where(exists, T)  # existing symbols come first, so that one of them sees nothing
    visible = rank[:, :, None] > rank[:, None]
    targets = rank.argsort(1)[:, :3]
    assert not visible.gather(1, targets[:, :1, None].expand(-1, -1, T)).any()
    labels = symbols.gather(1, targets)
    said = other(
        symbols,
        attention_mask=exists.float(),
        perm_mask=their_mask(visible),
        target_mapping=one_hot(targets, T).float(),
        labels=labels,
    )
    logits = ours(symbols, targets=targets, visible=visible, lengths=exists).logits
    near(logits, said.logits)
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    gradients_are_theirs(other, ours, said.loss, loss)


@pytest.mark.parametrize(
    ("summary", "side"), [("last", "none"), ("last", "left"), ("first", "right"), ("mean", "none")]
)
def test_the_label_of_a_text_equals_theirs(summary: str, side: str) -> None:
    """Where theirs does not read padding as symbols."""
    other = theirs("XLNetForSequenceClassification", summary_type=summary)
    ours, symbols, exists = same_network(other), torch.randint(0, SYMBOLS, (B, T)), padding(side)
    types = torch.randint(0, 2, (B, T))
    said = other(symbols, attention_mask=exists.float(), token_type_ids=types)
    answered = ours(symbols, exists, types)
    near(answered.logits, said.logits)


@pytest.mark.parametrize("which", ["last", "first", "mean"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_output(side: str, which: str) -> None:
    ours, exists = network("classify", summary=which), padding(side)
    symbols = torch.randint(0, SYMBOLS, (B, T))
    together = ours(symbols, exists).logits
    for b in range(B):
        alone = ours(symbols[b : b + 1, exists[b]]).logits
        torch.testing.assert_close(together[b : b + 1], alone)


@pytest.mark.parametrize("attention", ["relative", "scaled-dot"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_in_padding_reaches_nothing(poison: float, side: str, attention: str) -> None:
    """No output, gradient or memory; with padded memories too."""
    exists, symbols = padding(side), torch.randint(1, SYMBOLS, (B, T))
    symbols = symbols.where(exists, 0)
    targets = torch.stack([row.nonzero()[:2, 0] for row in exists])
    for ask in ({"ahead": True}, {"targets": targets}, {}):
        ours = network("none", attention=attention, blind="uniform").streams
        found = []
        for bad in (0.5, poison):
            with torch.no_grad():
                ours.words.weight[0] = bad
            before = ours(symbols, exists).memories
            assert all(layer.isfinite().all() for layer in before.layers)
            spoilt = [x.where(before.exists[..., None], bad) for x in before.layers]
            read = ours(symbols, exists, memories=Memories(tuple(spoilt), before.exists), **ask)
            said = read.states if "targets" in ask else read.states[exists]
            weights = [ours.words.weight, *ours.layers.parameters(), ours.question]
            back = torch.autograd.grad(said.square().sum(), weights, materialize_grads=True)
            assert not back[0][0].any()
            kept = [x[read.memories.exists] for x in read.memories.layers]
            found.append([said, *back, *kept])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_in_the_padding_of_a_prompt_reaches_no_step(side: str) -> None:
    ours, exists = network().streams, padding(side)
    symbols = torch.randint(1, SYMBOLS, (B, T)).where(exists, 0)
    found = []
    for bad in (0.5, float("nan")):
        with torch.no_grad():
            ours.words.weight[0] = bad
        state, _ = ours.further(torch.ones(B, dtype=torch.long), ours.begin(symbols, exists))
        found.append([state, *torch.autograd.grad(state.square().sum(), ours.words.weight)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("which", ["last", "first", "mean"])
def test_padding_told_as_visible_is_padding(side: str, which: str) -> None:
    """In the summary, in what is read, and in what is remembered."""
    ours, exists = network("classify", summary=which), padding(side)
    symbols = torch.randint(0, SYMBOLS, (B, T))
    expected = ours(symbols, exists)
    order = torch.rand(B, T, T) < 0.7
    ordered = ours(symbols, exists, visible=order)
    assert not torch.allclose(ours(symbols).logits, expected.logits)
    told: list[tuple[dict[str, Any], Any]] = [
        ({"visible": heed.Visible.keys(exists)}, expected),
        ({"lengths": exists.long()}, expected),
        ({"visible": heed.Visible.keys(exists) & order}, ordered),
        ({"lengths": exists, "visible": heed.Visible.keys(exists) & order}, ordered),
    ]
    if side == "right":
        count = exists.sum(-1)
        told += [
            ({"visible": heed.lengths(count)}, expected),
            ({"lengths": count.tolist()}, expected),
        ]
    for words, said in told:
        found = ours(symbols, **words)
        torch.testing.assert_close(found.logits, said.logits)
        assert torch.equal(found.memories.exists, exists)
    with pytest.raises(HeedError, match="do not fit"):
        ours(symbols, visible=heed.Visible.keys(exists[:, 1:]))
    with pytest.raises(HeedError, match=r"heed\.Visible\.keys\(attention_mask\.bool\(\)\)"):
        ours(symbols, visible=exists.long())


@pytest.mark.parametrize("which", ["last", "first", "mean"])
def test_nan_in_padding_reaches_no_summary(which: str) -> None:
    pool = network("classify", summary=which).pool
    exists, states = padding("right"), torch.randn(B, T, 16, dtype=torch.double)
    spoilt = states.where(exists[..., None], float("nan")).requires_grad_()
    known = pool(spoilt, exists)
    torch.testing.assert_close(known, pool(states, exists))
    (back,) = torch.autograd.grad(known.sum(), spoilt)
    assert not back[~exists].any()


def test_an_empty_text_is_finite_or_refused() -> None:
    for which in ("last", "first", "mean"):
        ours = network("classify", summary=which)
        symbols = torch.ones(2, 4, dtype=torch.long)
        assert ours(symbols, torch.tensor([0, 3])).logits.isfinite().all()
        with pytest.raises(ShapeError, match="at least one symbol"):
            ours(symbols[:, :0])


@pytest.mark.parametrize(
    ("kind", "labels"), [("XLNetForTokenClassification", 5), ("XLNetForQuestionAnsweringSimple", 2)]
)
def test_labels_and_spans_equal_theirs(kind: str, labels: int) -> None:
    other = theirs(kind, num_labels=labels)
    symbols, exists = torch.randint(0, SYMBOLS, (B, T)), padding("left")
    said = other(symbols, attention_mask=exists.float())
    answered = same_network(other)(symbols, exists)
    if labels == 2:
        near(answered.logits[..., 0], said.start_logits)
        near(answered.logits[..., 1], said.end_logits)
    else:
        near(answered.logits, said.logits)


@pytest.mark.parametrize("remembered", [0, 4])
def test_a_query_never_sees_its_own_symbol(remembered: int) -> None:
    """Nor any later in the order, through any number of layers; the content stream does."""
    ours = network(layers=3)
    visible, rank = order()
    visible |= torch.eye(T, dtype=torch.bool)  # even if the caller allows it
    targets = torch.arange(T).expand(B, T)
    symbols = torch.randint(0, SYMBOLS // 2, (B, T))
    memories = None
    if remembered:
        memories = ours.streams(torch.randint(0, SYMBOLS, (B, remembered))).memories
    before = ours(symbols, targets=targets, visible=visible, memories=memories).logits
    content = ours.streams(symbols, visible=visible, memories=memories).states
    for place in range(T):
        other = symbols.clone()
        other[:, place] = SYMBOLS - 1
        after = ours(other, targets=targets, visible=visible, memories=memories).logits
        changed = (after != before).any(-1)
        later = rank > rank[:, place : place + 1]
        assert not changed[~later].any()
        assert changed[later].all()
        own = ours.streams(other, visible=visible, memories=memories).states
        assert (own != content)[:, place].any(-1).all()


def test_no_gradient_reaches_the_symbols_to_be_predicted() -> None:
    ours = network()
    visible, rank = order(1)
    visible |= torch.eye(T, dtype=torch.bool)
    symbols = torch.randperm(SYMBOLS)[None, :T]  # each once: a row of the table is a position
    for place in range(T):
        read = ours.streams(symbols, targets=torch.tensor([[place]]), visible=visible)
        (back,) = torch.autograd.grad(
            read.states.sum() + read.states.square().sum(), ours.streams.words.weight
        )
        reached = back[symbols[0]].ne(0).any(-1)
        assert not reached[rank[0] >= rank[0, place]].any()
        assert reached[rank[0] < rank[0, place]].all()


@pytest.mark.parametrize("direction", ["both", "left-to-right"])
def test_targets_without_an_order_are_hidden_from_all(direction: str) -> None:
    """Otherwise a query would learn its symbol from others that saw it, one layer later."""
    ours = network(layers=3, direction=direction)
    symbols, targets = torch.randint(0, SYMBOLS - 1, (B, T)), torch.tensor([[3, 6, -1]] * B)
    before = ours(symbols, targets=targets).logits
    other = symbols.clone()
    other[:, 6] = SYMBOLS - 1
    assert torch.equal(ours(other, targets=targets).logits, before)
    other[:, 3] = SYMBOLS - 1
    after = ours(other, targets=targets).logits
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(after[:, 1], before[:, 1]) == (direction == "both")
    other[:, 1] = SYMBOLS - 1
    assert (ours(other, targets=targets).logits != before)[:, :2].any(-1).all()


def test_next_symbols_equal_those_predicted_as_targets() -> None:
    other = theirs()
    ours, symbols = same_network(other), torch.randint(0, SYMBOLS, (B, T))
    more = torch.cat([symbols, symbols[:, :1]], 1)  # one more position, which no query sees
    visible = torch.ones(T + 1, T + 1, dtype=torch.bool).tril(-1).expand(B, -1, -1)
    targets = torch.arange(1, T + 1).expand(B, -1)
    said = other(
        more, perm_mask=their_mask(visible), target_mapping=one_hot(targets, T + 1).float()
    )
    near(ours(symbols).logits, said.logits)
    near(ours(more, targets=targets, visible=visible).logits, said.logits)


MECHANISMS = [
    "relative",
    "scaled-dot",
    "additive",
    "entmax/general",
    "fixed-window",
    "2*additive + 2*relative",
    ["relative", "cosine"],
]
each_mechanism = pytest.mark.parametrize("attention", MECHANISMS, ids=str)


def stepped(ours: LanguageModel, carry: Any, symbols: Tensor) -> Tensor:
    """Logits written symbol by symbol, with the rows reversed at every step.    N T -> N T V"""
    rows, logits = torch.arange(len(symbols)), []
    turn = torch.arange(len(symbols)).roll(1)
    for t in range(symbols.shape[1]):
        step = ours.step(carry, symbols[rows, t])
        logits.append(step.logits[rows.argsort()])
        carry, rows = ours.select(step.carry, turn), rows[turn]
    return torch.stack(logits, 1)


@pytest.mark.parametrize("direction", ["both", "left-to-right"])
@each_mechanism
def test_single_steps_equal_the_whole_pass(attention: Any, direction: str) -> None:
    ours = network(attention=attention, direction=direction)
    symbols = torch.randint(0, SYMBOLS, (B, T))
    written = stepped(ours, ours.begin(symbols[:, :0]), symbols)
    torch.testing.assert_close(written, ours(symbols).logits)


@pytest.mark.parametrize("with_types", [False, True], ids=["plain", "types"])
@pytest.mark.parametrize("direction", ["both", "left-to-right"])
def test_a_continuation_is_predicted_in_the_order_of_its_prompt(
    direction: str, with_types: bool
) -> None:
    """The prompt is only read, in full or in part; the rest is predicted from left to right."""
    ours, n = network(direction=direction), 4
    symbols = torch.randint(0, SYMBOLS, (B, T))
    types = torch.cat([torch.zeros(B, 2), torch.ones(B, T - 2)], 1).long() if with_types else None
    earlier = ours(torch.randint(0, SYMBOLS, (B, 5))).memories
    visible = torch.ones(T, T, dtype=torch.bool).tril(-1)
    if direction == "both":
        visible[:n, :n] = True
    targets = torch.arange(n + 1, T).expand(B, -1)
    whole = ours(
        symbols, targets=targets, visible=visible[None], types=types, memories=earlier
    ).logits
    told = None if types is None else types[:, :n]
    carry = ours.begin(symbols[:, :n], types=told, memories=earlier)
    torch.testing.assert_close(stepped(ours, carry, symbols[:, n:-1]), whole)


@each_mechanism
def test_prompts_of_different_lengths_continue_as_if_alone(attention: Any) -> None:
    ours = network(attention=attention)
    prompts, more = torch.randint(0, SYMBOLS, (B, T)), torch.randint(0, SYMBOLS, (B, 4))
    types = torch.randint(0, 2, (B, T))
    lengths = torch.tensor([T, 1, 6])
    behind = stepped(ours, ours.begin(prompts, lengths=lengths, types=types), more)
    in_front = stepped(ours, ours.begin(prompts, first=T - lengths, types=types), more)
    for b, n in enumerate(lengths.tolist()):
        for together, where in ((behind, slice(n)), (in_front, slice(T - n, T))):
            own = ours.begin(prompts[b : b + 1, where], types=types[b : b + 1, where])
            alone = stepped(ours, own, more[b : b + 1])
            torch.testing.assert_close(together[b : b + 1], alone)


def test_searches_can_write_with_it() -> None:
    ours, symbols = network(), torch.randint(4, SYMBOLS, (B, 5))
    with torch.no_grad():
        found = greedy(ours, ours.begin(symbols), count=B, begin=1, end=2, longest=6)
        for b in range(B):
            carry = ours.begin(symbols[b : b + 1])
            alone = greedy(ours, carry, count=1, begin=1, end=2, longest=6)
            assert found[b].symbols == alone[0].symbols


def test_memories_have_the_requested_length() -> None:
    ours = network(memory=7, reuse=4)
    memories = None
    for length in (4, 7, 7):
        read = ours(torch.randint(0, SYMBOLS, (B, T)), memories=memories)
        memories = read.memories
        assert memories.length == length
        assert memories.exists is None
        assert not any(layer.requires_grad for layer in memories.layers)
    rows = memories.select(torch.tensor([2, 0]))
    assert torch.equal(rows.layers[1], memories.layers[1][[2, 0]])
    padded = ours(torch.zeros(B, T, dtype=torch.long), lengths=torch.tensor([1, 2, 3])).memories
    assert padded.select(torch.tensor([2, 0])).exists.tolist() == [
        [True, True, True, False],
        [True, False, False, False],
    ]
    assert network(memory=None)(torch.zeros(1, 3, dtype=torch.long)).memories.length == 3


def test_a_segment_after_padding_equals_the_segment_alone() -> None:
    """Unlike theirs, remembered padding stays hidden."""
    ours, exists = network(memory=None), padding("left")
    first, second = torch.randint(0, SYMBOLS, (2, B, T))
    together = ours.streams(second, memories=ours.streams(first, exists).memories)
    assert torch.equal(together.memories.exists, torch.cat([exists, torch.ones_like(exists)], 1))
    for b in range(B):
        memories = ours.streams(first[b : b + 1, exists[b]]).memories
        alone = ours.streams(second[b : b + 1], memories=memories).states
        torch.testing.assert_close(together.states[b : b + 1], alone)


def test_a_remembered_state_affects_what_is_read() -> None:
    ours, symbols = network(), torch.randint(0, SYMBOLS, (B, T))
    one, other = (ours(torch.randint(0, SYMBOLS, (B, T))).memories for _ in range(2))
    assert not torch.allclose(ours(symbols, memories=one).logits, ours(symbols).logits)
    assert not torch.allclose(
        ours(symbols, memories=one).logits, ours(symbols, memories=other).logits
    )


def test_no_targets_give_no_targets() -> None:
    g = torch.arange(1.0, 13).view(2, 3, 2)
    targets = torch.tensor([[3, -1, 0], [-1, -1, 2]])
    placed = spread(g, targets, 4)
    assert placed[0].tolist() == [[5, 6], [0, 0], [0, 0], [1, 2]]
    assert placed[1].tolist() == [[0, 0], [0, 0], [11, 12], [0, 0]]
    assert torch.equal(picked(placed, targets), g * (targets >= 0)[..., None])


@pytest.mark.parametrize("need", ["weight", "energy"])
def test_weights_are_returned_for_each_target(need: Any) -> None:
    ours, targets = network(), torch.tensor([[4, 0, -1]] * B)
    visible, _ = order()
    predicted = ours(torch.randint(0, SYMBOLS, (B, T)), need, targets=targets, visible=visible)
    assert set(predicted.seen) == {f"{i}.{stream}" for i in "01" for stream in ("content", "query")}
    weight = predicted.seen["0.query"].weight
    assert weight.shape == (B, 4, 3, T)
    for b in range(B):
        assert not weight[b, :, 0, ~visible[b, 4]].any()
    assert not weight[:, :, 2].any()
    content = predicted.seen["0.content"].weight
    assert (content.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.parametrize("blind", ["zero", "uniform"])
def test_it_compiles_as_one_graph(blind: str) -> None:
    ours = network(layers=1, blind=blind).float()
    symbols, targets = torch.randint(0, SYMBOLS, (B, T)), torch.tensor([[1, 4]] * B)
    visible, _ = order()
    memories = ours(symbols).memories
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    told = {"targets": targets, "visible": visible, "memories": memories}
    torch.testing.assert_close(compiled(symbols, **told).logits, ours(symbols, **told).logits)


def test_the_permutation_loss_falls() -> None:
    """Every symbol is its neighbour's successor, so that any visible one determines all others."""
    small = {"width": 32, "feed": 64, "symbols": 8, "initial": 0.1}
    ours = network(**small, dropout=0, attention_dropout=0).float().train()
    adam = torch.optim.Adam(ours.parameters(), 5e-3)
    for _ in range(60):
        symbols = (torch.randint(0, 8, (16, 1)) + torch.arange(T)) % 8
        visible, rank = order(16)
        targets = rank.argsort(1)[:, 1:5]  # all but the first, which sees nothing
        logits = ours(symbols, targets=targets, visible=visible).logits
        loss = cross_entropy(logits.flatten(0, 1), symbols.gather(1, targets).flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss < 1.5  # chance is ln 8 = 2.08


@pytest.mark.parametrize(
    "attention",
    ["coverage/additive", "monotonic", "forward", "local-m", "local-p", "location", "mixed"],
)
@pytest.mark.parametrize("direction", ["both", "left-to-right"])
def test_a_mechanism_that_depends_on_the_order_of_queries_is_refused(
    attention: str, direction: str
) -> None:
    with pytest.raises(Refused, match=r"answered by itself|text's length"):
        network(attention=attention, direction=direction)


@pytest.mark.parametrize(
    ("choices", "kind"),
    [
        ({"heads": 3}, Refused),
        ({"width": 15, "heads": 3}, Refused),
        ({"options": {"windw": 3}}, UnknownName),
        ({"attention": "relatve"}, UnknownName),
        ({"symbols": None}, Refused),
        ({"memory": 0}, ValueError),
        ({"clamp": -1}, ValueError),
        ({"mems": 3}, ValueError),
    ],
)
def test_impossible_settings_are_refused(choices: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        network(**choices)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"visible": torch.ones(B, T, T + 1, dtype=torch.bool)}, "visible does not fit"),
        ({"visible": torch.ones(B + 1, T, T, dtype=torch.bool)}, "visible does not fit"),
        ({"types": torch.zeros(B, T - 1, dtype=torch.long)}, "a type for each symbol"),
        ({"targets": torch.zeros(B + 1, 2, dtype=torch.long)}, "positions of each row"),
        ({"targets": torch.full((B, 1), T)}, "targets are below 9; got 9"),
        ({"lengths": torch.tensor([T + 1, 3, 2])}, "0 to 9 of the 9 symbols"),
        ({"lengths": torch.tensor([T, -1, 2])}, "0 to 9 of the 9 symbols"),
        ({"lengths": torch.tensor([T])}, "each of 3 texts"),
        ({"lengths": torch.ones(B, T + 1, dtype=torch.bool)}, "a mask of existing symbols"),
        ({"lengths": heed.causal()}, "visible="),
        ({"memories": Memories((torch.zeros(B, 2, 16),))}, "each of 2 layers"),
        ({"memories": Memories((torch.zeros(B, 2, 8),) * 2)}, "M=16"),
        (
            {"ahead": True, "visible": torch.ones(B, T, T, dtype=torch.bool)},
            "leave out targets and visible",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(told: dict[str, Any], words: str) -> None:
    with pytest.raises(HeedError, match=words):
        network().streams(torch.zeros(B, T, dtype=torch.long), **told)


@pytest.mark.parametrize("wrong", [-1, SYMBOLS])
def test_symbols_outside_the_table_are_refused(wrong: int) -> None:
    ours, symbols = network(), torch.zeros(B, T, dtype=torch.long)
    carry = ours.begin(symbols)
    symbols[1, 2] = wrong
    says = f"symbols are 0 to 39; got {wrong}"
    for read in (ours, ours.begin, lambda x: ours.step(carry, x[:, 2])):
        with pytest.raises(ShapeError, match=says):
            read(symbols)


@pytest.mark.parametrize(
    "wrong",
    [torch.tensor([5]), torch.tensor([5, 6]), torch.tensor([5, -1]), torch.tensor([True, True])],
)
def test_lengths_of_prompts_that_do_not_fit_are_refused(wrong: Tensor) -> None:
    for name in ("lengths", "first"):
        with pytest.raises(HeedError, match=r"each of 2 texts|0 to 5 of the 5 symbols"):
            network().begin(torch.ones(2, 5, dtype=torch.long), **{name: wrong})


def test_rows_of_symbols_alone_are_accepted() -> None:
    with pytest.raises(ShapeError, match="B T"):
        network().streams(torch.zeros(T, dtype=torch.long))
    with pytest.raises(Refused, match="language"):
        network("none")(torch.zeros(1, 2, dtype=torch.long), asked=torch.zeros(1, 1))


def test_a_target_below_zero_is_none() -> None:
    """It hides no symbol, not the first either, and its query is left out."""
    targets = torch.tensor([[2, -1], [-1, 0]])
    assert placed(targets, 4).tolist() == [[False, False, True, False], [True, False, False, False]]
    g = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    assert spread(g, targets, 4)[..., 0].tolist() == [[0, 0, 1, 0], [4, 0, 0, 0]]
    x = torch.arange(8.0).view(2, 4, 1)
    assert picked(x, targets)[..., 0].tolist() == [[2, 0], [0, 4]]


def test_a_prompt_with_padding_behind_goes_on_as_if_alone() -> None:
    streams = network("language").streams
    symbols, after = torch.randint(0, SYMBOLS, (2, 6)), torch.tensor([1, 2])
    padded, _ = streams.further(after, streams.begin(symbols, torch.tensor([6, 3])))
    alone, _ = streams.further(after[1:], streams.begin(symbols[1:, :3]))
    torch.testing.assert_close(padded[1:], alone)
