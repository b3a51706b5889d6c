"""Memories grow, reorder, repeat and truncate, and are immutable."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor

import heed
from heed import Memory, Visible
from heed.attention.position import Rotary
from heed.errors import HeedError, Refused, ShapeError

SCORES = (
    "dot",
    "scaled-dot",
    "general",
    "additive",
    "concat",
    "concat-identity",
    "location",
    "key-value",
    "cosine",
    "relative",
    "mixed",
    "mixture-window",
)

B, S, M = 3, 6, 4
Make = Callable[[], heed.Attention | heed.MultiHeadAttention]


def heads(**more: object) -> Make:
    """MultiHeadAttention with nonzero sinks, so that losing one shows."""

    def make() -> heed.MultiHeadAttention:
        made = heed.MultiHeadAttention(M, 2, **more)  # type: ignore[arg-type]
        for x in (made.bias_k, made.bias_v):
            if x is not None:
                torch.nn.init.normal_(x)
        return made

    return make


def alone(name: str) -> Make:
    return lambda: heed.Attention(name, query=M)


MAKERS: dict[str, Make] = {
    **{name: alone(name) for name in SCORES},
    "heads": heads(),
    "heads with sinks": heads(add_bias_kv=True, add_zero_attn=True),
    "heads with rotary": heads(position=Rotary()),
    "heads with sinks and rotary": heads(add_bias_kv=True, add_zero_attn=True, position=Rotary()),
    "grouped heads with a sink": heads(groups=1, add_bias_kv=True),
    "additive heads with sinks": heads(mechanism="additive", add_bias_kv=True, add_zero_attn=True),
    "mixed heads with sinks": heads(mechanism="mixed", add_bias_kv=True, add_zero_attn=True),
    "relative heads": heads(mechanism="relative"),
}


@pytest.fixture(params=MAKERS)
def attend(request: pytest.FixtureRequest) -> heed.Attention | heed.MultiHeadAttention:
    return MAKERS[request.param]().double().eval()


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    return tuple(torch.randn(B, n, M, dtype=torch.float64) for n in (2, S, S))  # type: ignore[return-value]


def same(one: Memory, two: Memory) -> None:
    """Two memories hold the same keys and hide the same."""
    torch.testing.assert_close(one.k, two.k)
    torch.testing.assert_close(one.v, two.v)
    assert torch.equal(one.exists, two.exists)
    assert (one.S, one.sinks) == (two.S, two.sinks)


def same_answer(
    attend: heed.Attention | heed.MultiHeadAttention, query: Tensor, one: Memory, two: Memory
) -> None:
    for visible in (None, heed.causal()):
        a, b = (attend(query, x, visible=visible, need="weight") for x in (one, two))
        torch.testing.assert_close(a.context, b.context)
        torch.testing.assert_close(a.weight, b.weight)
        # And the context without weights, from whichever kernel serves it.
        torch.testing.assert_close(attend(query, one, visible=visible).context, b.context)


@pytest.mark.parametrize("cuts", [(1, 2), (3,), (0, 6), (1, 2, 3, 4, 5)])
def test_growing_equals_remembering_all_at_once(
    attend: heed.Attention | heed.MultiHeadAttention, cuts: tuple[int, ...]
) -> None:
    query, keys, values = data()
    first, *ends = (*cuts, S)
    memory, begin = attend.remember(keys[:, :first], values[:, :first]), first
    for end in ends:
        memory = memory.extend(keys[:, begin:end], values[:, begin:end])
        begin = end
    whole = attend.remember(keys, values)
    same(memory, whole)
    same_answer(attend, query, memory, whole)


def test_growing_keeps_the_padding_of_each_piece(
    attend: heed.Attention | heed.MultiHeadAttention,
) -> None:
    query, keys, values = data()
    count, table = heed.lengths([4, 0, 2]), torch.tensor([[1, 0], [1, 1], [0, 0]]).bool()
    exists = torch.cat([torch.arange(4) < count.count[:, None], table], -1)  # type: ignore[attr-defined]
    whole = attend.remember(keys, values, visible=exists)
    memory = attend.remember(keys[:, :4], values[:, :4], visible=count)
    memory = memory.extend(keys[:, 4:], values[:, 4:], visible=table)
    same(memory, whole)
    same_answer(attend, query, memory, whole)


@pytest.mark.parametrize("hidden_first", [True, False])
def test_a_piece_without_padding_joins_one_with_padding(hidden_first: bool) -> None:
    attend, (_, keys, _) = alone("dot")().double(), data()
    seen = torch.tensor([[1, 0, 1]] * B).bool()
    first, then = (seen, None) if hidden_first else (None, seen)
    memory = attend.remember(keys[:, :3], visible=first).extend(keys[:, 3:], visible=then)
    row = [True, False, True] + [True] * 3 if hidden_first else [True] * 4 + [False, True]
    assert memory.exists.tolist() == [row] * B


def test_truncating_undoes_growing(attend: heed.Attention | heed.MultiHeadAttention) -> None:
    query, keys, values = data()
    seen = torch.rand(B, S) > 0.3
    memory = attend.remember(keys, values, visible=seen)
    for n in (0, 2, S):
        short = attend.remember(keys[:, :n], values[:, :n], visible=seen[:, :n])
        same(memory.truncate(n), short)
        if n:
            same_answer(attend, query, memory.truncate(n), short)
        again = memory.truncate(n).extend(keys[:, n:], values[:, n:], visible=seen[:, n:])
        same(again, memory)


@pytest.mark.parametrize("S_new", [-1, S + 1])
def test_a_memory_cannot_be_truncated_to_more_than_it_holds(S_new: int) -> None:
    memory = alone("dot")().remember(torch.randn(B, S, M))
    with pytest.raises(Refused, match=f"S={S} places to {S_new}"):
        memory.truncate(S_new)


@pytest.mark.parametrize(
    "visible",
    [
        None,
        heed.lengths([6, 0, 3]),
        heed.lengths([4]),  # one length for all rows
        ~heed.lengths([1, 2, 3]) & Visible.keys(torch.ones(1, S, dtype=torch.bool)),
        Visible.keys(torch.ones(B, S, dtype=torch.bool).tril()) | heed.lengths([1, 1, 0]),
    ],
)
def test_rows_can_be_selected_and_repeated(
    attend: heed.Attention | heed.MultiHeadAttention, visible: Visible | None
) -> None:
    query, keys, values = data()
    memory = attend.remember(keys, values, visible)
    answer = attend(query, memory, need="weight")
    order = torch.tensor([2, 0, 0, 1])
    chosen = attend(query[order], memory.select(order), need="weight")
    torch.testing.assert_close(chosen.context, answer.context[order])
    torch.testing.assert_close(chosen.weight, answer.weight[order])
    torch.testing.assert_close(memory.select(order).lengths, memory.lengths[order])
    twice = attend(query.repeat_interleave(2, 0), memory.repeat(2), need="weight")
    torch.testing.assert_close(twice.context, answer.context.repeat_interleave(2, 0))
    torch.testing.assert_close(twice.weight, answer.weight.repeat_interleave(2, 0))


ROWS = {
    "beyond the last": (
        torch.tensor([0, B]),
        f"there are B={B} rows to select from, .* no row {B}",
    ),
    "below the first": (torch.tensor([-1, 0]), "no row -1"),
    "real": (torch.tensor([0.0, 1.0]), "whole numbers, int64, of one axis; got torch.float32"),
    "an empty list's": (torch.tensor([]), "whole numbers, int64, of one axis; got torch.float32"),
    "booleans": (torch.tensor([True, False, True]), "got torch.bool"),
    "bytes": (torch.tensor([1, 2], dtype=torch.uint8), "got torch.uint8"),
    "of two axes": (torch.zeros(1, 2, dtype=torch.int64), r"got torch.int64 \(1, 2\)"),
    "of no axis": (torch.tensor(1), r"got torch.int64 \(\)"),
    "a list": ([0, 1], r"got \[0, 1\]"),
    "nothing": (None, "got None"),
}


@pytest.mark.parametrize("which", ROWS)
def test_rows_that_are_not_there_are_refused(
    attend: heed.Attention | heed.MultiHeadAttention, which: str
) -> None:
    rows, told = ROWS[which]
    _, keys, values = data()
    for held in (
        attend.remember(keys, values, heed.lengths([6, 0, 3])),
        heed.State(2, 0, {"past": (torch.zeros(B, 1, S), 3)}),
    ):
        with pytest.raises(HeedError, match=told):
            held.select(rows)  # type: ignore[arg-type]


def test_no_row_may_be_selected(attend: heed.Attention | heed.MultiHeadAttention) -> None:
    query, keys, values = data()
    none = torch.tensor([], dtype=torch.int64)
    seen = attend(query[:0], attend.remember(keys, values).select(none), need="weight")
    assert seen.weight.shape[0] == seen.context.shape[0] == 0


def test_a_rearranged_memory_still_grows(attend: heed.Attention | heed.MultiHeadAttention) -> None:
    _, keys, values = data()
    order = torch.tensor([2, 0])
    memory = attend.remember(keys[:, :4], values[:, :4]).select(order)
    memory = memory.extend(keys[order, 4:], values[order, 4:])
    same(memory, attend.remember(keys[order], values[order]))


def test_segments_follow_their_keys() -> None:
    attend = heed.Attention("relative", query=M, segments=True).double()
    query, keys, _ = data()
    marks = torch.tensor([[0, 0, 1, 1, 1, 0], [0] * 6, [1, 0] * 3])
    whole = attend.remember(keys, segments=marks)
    memory = attend.remember(keys[:, :2], segments=marks[:, :2])
    memory = memory.extend(keys[:, 2:], segments=marks[:, 2:])
    assert memory.segments is not None
    assert torch.equal(memory.segments, marks)
    of_query = marks[:, -2:]
    a, b = (attend(query, x, need="weight", segments=of_query) for x in (memory, whole))
    torch.testing.assert_close(a.weight, b.weight)

    order = torch.tensor([1, 0])
    for made, want in (
        (memory.select(order), marks[order]),
        (memory.repeat(2), marks.repeat_interleave(2, 0)),
        (memory.truncate(3), marks[:, :3]),
    ):
        assert made.segments is not None
        assert torch.equal(made.segments, want)


@pytest.mark.parametrize("first", [True, False])
def test_segments_on_one_piece_only_are_refused(first: bool) -> None:
    attend, keys, marks = alone("dot")(), torch.randn(B, 2, M), torch.zeros(B, 2)
    memory = attend.remember(keys, segments=marks if first else None)
    with pytest.raises(Refused, match="all keys of a memory have segments, or none"):
        memory.extend(keys, segments=None if first else marks)


def test_a_memory_is_immutable() -> None:
    attend = heads(add_bias_kv=True)()
    keys = torch.randn(B, S, M)
    memory = attend.remember(keys, visible=heed.lengths([6, 2, 0]))
    k, v, exists = memory.k.clone(), memory.v.clone(), memory.exists.clone()
    memory.extend(keys)
    memory.select(torch.tensor([1]))
    memory.repeat(2)
    memory.truncate(1)
    memory.hide(heed.lengths([1, 1, 1]))
    memory.with_sink(torch.zeros(2, 2), torch.zeros(2, 2))
    attend(keys, memory, visible=heed.lengths([1, 1, 1]) & heed.causal())
    assert torch.equal(memory.k, k)
    assert torch.equal(memory.v, v)
    assert torch.equal(memory.exists, exists)
    for name in ("k", "v", "visible", "segments", "sinks", "keep"):
        with pytest.raises(FrozenInstanceError):
            setattr(memory, name, None)


def test_the_callers_tensors_are_never_changed() -> None:
    keys = torch.randn(B, S, M)
    keys[1, 2:] = torch.nan
    before = keys.clone()
    alone("dot")().remember(keys, visible=heed.lengths([6, 2, 6]))
    torch.testing.assert_close(keys, before, equal_nan=True)


def test_values_are_the_keys_unless_given() -> None:
    attend, keys = alone("dot")(), torch.randn(B, S, M)
    assert torch.equal(attend.remember(keys).v, attend.remember(keys, keys).v)
    grown = attend.remember(keys).extend(keys)
    assert torch.equal(grown.v, grown.k)


def test_lengths_end_at_the_last_visible_key() -> None:
    keys = torch.randn(B, S, M)
    table = torch.tensor([[0, 1, 0, 0, 1, 0], [0] * 6, [1] * 6]).bool()
    remember = alone("dot")().remember
    assert remember(keys, visible=table).lengths.tolist() == [5, 0, 6]
    assert remember(keys).lengths.tolist() == [6, 6, 6]
    assert remember(keys[:, :0]).lengths.tolist() == [0, 0, 0]
    assert remember(keys[:, :0], visible=heed.lengths([0, 0, 0])).lengths.tolist() == [0, 0, 0]


def test_hidden_keys_are_cleaned_once() -> None:
    keys, values = torch.full((B, S, M), torch.nan), torch.full((B, S, 5), torch.inf)
    for name in ("dot", "additive", "cosine"):
        memory = alone(name)().remember(keys, values, visible=heed.lengths([0, 0, 0]))
        assert torch.isfinite(memory.k).all()
        assert not memory.v.any()


def test_hiding_more_keeps_what_is_hidden() -> None:
    keys = torch.randn(B, S, M)
    memory = alone("dot")().remember(keys, visible=heed.lengths([6, 2, 0]))
    less = memory.hide(Visible.keys(torch.arange(S).expand(B, S) > 0))
    assert less.exists.tolist() == [[False] + [True] * 5, [False, True] + [False] * 4, [False] * 6]
    assert not less.v[:, :, 0].any()


def test_sinks_come_last_and_are_not_counted() -> None:
    attend = heads(add_bias_kv=True, add_zero_attn=True)()
    memory = attend.remember(torch.randn(B, S, M))
    assert (memory.S, memory.sinks, memory.k.shape[2]) == (S, 2, S + 2)
    assert memory.exists.shape == (B, S)
    assert not memory.k[:, :, -1].any()  # the zero of add_zero_attn comes last, as torch has it
    grown = memory.extend(torch.randn(B, 2, M))
    assert (grown.S, grown.sinks) == (S + 2, 2)
    assert torch.equal(grown.k[:, :, -2:], memory.k[:, :, -2:])


@pytest.mark.parametrize(
    "visible", [heed.causal(), heed.window(2), heed.causal() & heed.lengths([1])]
)
def test_masks_that_depend_on_the_query_are_refused_with_the_remedy(visible: Visible) -> None:
    attend, keys = alone("dot")(), torch.randn(1, S, M)
    for make in (attend.remember, attend.remember(keys).extend):
        with pytest.raises(Refused, match=r"given with the call: attend\(query, memory, visible="):
            make(keys, visible=visible)
    attend(keys, attend.remember(keys), visible=visible)  # the remedy


def test_a_bare_table_is_read_as_keys() -> None:
    attend, keys = alone("dot")(), torch.randn(B, S, M)
    table = torch.rand(B, S) > 0.5
    assert torch.equal(attend.remember(keys, visible=table).exists, table)
    with pytest.raises(ShapeError, match="needs 2 axes; got 3"):
        attend.remember(keys, visible=table[:, None])


UNFIT = {
    "fewer values": ((2, 1, 80, M), (2, 1, 5, M), 0, "disagree on S"),
    "values of another batch": ((2, 1, 80, M), (1, 1, 80, M), 0, "disagree on B"),
    "values of other groups": ((2, 2, 80, M), (2, 1, 80, M), 0, "disagree on G"),
    "keys without heads": ((2, 80, M), (2, 80, M), 0, "must have 4 axes"),
    "more sinks than keys": ((2, 1, 80, M), (2, 1, 80, M), 81, "81 cannot be sinks"),
}


@pytest.mark.parametrize("which", UNFIT)
def test_keys_and_values_that_do_not_belong_together_make_no_memory(which: str) -> None:
    """A kernel would read beyond the shorter."""
    k, v, sinks, told = UNFIT[which]
    with pytest.raises(ShapeError, match=told):
        Memory(torch.randn(k), torch.randn(v), sinks=sinks)


def test_what_was_prepared_of_other_keys_is_not_used() -> None:
    mechanism = heed.Attention("additive", query=M).mechanism
    query, first, other = (torch.randn(2, 1, n, M) for n in (3, 8, 3000))
    memory = mechanism.remember(first)
    mechanism(query, memory)
    for keys in (other, torch.randn_like(first), first):
        found = mechanism(query, replace(memory, k=keys, v=keys)).context
        torch.testing.assert_close(found, mechanism(query, Memory(keys, keys)).context)


HIDES = {
    "fewer keys": Visible.keys(torch.ones(3, 8, dtype=torch.bool)),
    "fewer rows": Visible.keys(torch.ones(2, 80, dtype=torch.bool)),
    "lengths of fewer rows": heed.lengths([80, 3]),
}


@pytest.mark.parametrize("which", HIDES)
@pytest.mark.parametrize("name", ["fixed-window", "additive", "dot"])
def test_a_mask_in_a_memory_made_by_hand_must_fit(name: str, which: str) -> None:
    mechanism, x = heed.Attention(name, query=M).mechanism, torch.randn(3, 1, 80, M)
    if name == "fixed-window":
        mechanism.reach.window = 1  # type: ignore[assignment]
    for statistics in (None, True):
        with pytest.raises(ShapeError, match=r"do(es)? not fit"):
            mechanism(x, Memory(x, x, HIDES[which]), statistics=statistics)


def test_a_memory_made_by_hand_cannot_grow() -> None:
    k = torch.randn(B, 1, S, M)
    memory = Memory(k, k)
    with pytest.raises(Refused, match=r"not made by remember\(\.\.\.\)"):
        memory.extend(k)
    seen = heed.Attention("dot", query=M)(torch.randn(B, 2, M), memory)
    assert seen.context.shape == (B, 2, M)


SHAPES = {
    "keys of two axes": lambda m: m.remember(torch.zeros(B, M)),
    "keys of four axes": lambda m: m.remember(torch.zeros(B, 1, S, M)),
    "values of two axes": lambda m: m.remember(torch.zeros(B, S, M), torch.zeros(B, M)),
    "values of other rows": lambda m: m.remember(torch.zeros(B, S, M), torch.zeros(2, S, M)),
    "values of other places": lambda m: m.remember(torch.zeros(B, S, M), torch.zeros(B, 5, M)),
    "keys of another width": lambda m: m.remember(torch.zeros(B, S, M + 1)),
    "a narrower key": lambda m: m.remember(torch.zeros(B, S, M - 1), torch.zeros(B, S, M)),
    "more of other rows": lambda m: grown(m, torch.zeros(2, 1, M)),
    "more of another width": lambda m: grown(m, torch.zeros(B, 1, M + 1), torch.zeros(B, 1, M)),
    "more values of another width": lambda m: grown(
        m, torch.zeros(B, 1, M), torch.zeros(B, 1, M + 1)
    ),
    "more values of other places": lambda m: grown(m, torch.zeros(B, 1, M), torch.zeros(B, 2, M)),
    "segments of other places": lambda m: m.remember(
        torch.zeros(B, S, M), segments=torch.zeros(B, S + 1)
    ),
    "segments of other rows": lambda m: m.remember(
        torch.zeros(B, S, M), segments=torch.zeros(2, S)
    ),
    "a query of other rows": lambda m: m(torch.zeros(2, 1, M), m.remember(torch.zeros(B, S, M))),
    "a query of two axes": lambda m: m(torch.zeros(B, M), m.remember(torch.zeros(B, S, M))),
}


def grown(attend: heed.Attention, *more: Tensor) -> Memory:
    return attend.remember(torch.zeros(B, S, M)).extend(*more)


@pytest.mark.parametrize("made", ["dot", "additive", "heads"])
@pytest.mark.parametrize("wrong", SHAPES)
def test_wrong_shapes_are_reported_in_the_users_words(wrong: str, made: str) -> None:
    with pytest.raises(ShapeError):
        SHAPES[wrong](MAKERS[made]())
