"""The plain records: Attended, State, Claims, Call."""

import re

import pytest
import torch
from torch import Tensor

import heed
from heed import Attended, State
from heed.errors import HeedError, NotFormed, Refused, ShapeError
from heed.records import NEEDS, Call, Claims
from heed.visible import Places


def record(**more: object) -> Attended:
    return Attended(torch.ones(2, 3, 4), State(3, 2), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "cure"), [("weight", "weight"), ("energy", "energy")])
def test_a_field_that_was_not_formed_says_how_to_ask_for_it(field: str, cure: str) -> None:
    with pytest.raises(NotFormed, match=f'not formed; ask for them: .*need="{cure}"'):
        getattr(record(), field)


def test_the_fix_in_the_message_works() -> None:
    attend, x = heed.Attention("dot", query=4), torch.randn(2, 3, 4)
    seen = attend(x)
    with pytest.raises(HeedError):
        _ = seen.mass
    assert attend(x, need="weight").weight.shape == (2, 1, 3, 3)
    assert attend(x, need="energy").energy.shape == (2, 1, 3, 3)
    assert attend(x, need="energy").weight.shape == (2, 1, 3, 3)  # needs include lesser ones


def test_a_record_is_not_a_tuple_and_lists_its_fields() -> None:
    seen = heed.attend(*(torch.randn(1, 2, 3, 4) for _ in range(3)))
    with pytest.raises(Refused, match=r"not a tuple: seen\.context"):
        seen[0]
    with pytest.raises(Refused, match=r"need='weight'"):
        _context, _weight = seen  # type: ignore[misc]


def test_a_pointer_has_no_context_and_says_where_its_answer_is() -> None:
    seen = heed.Attention("pointer", query=4)(torch.randn(2, 3, 4))
    with pytest.raises(NotFormed, match=r"a pointer has none.*\.weight"):
        _ = seen.context
    assert seen.weight.shape == (2, 1, 3, 3)  # formed without being asked for


def test_mass_is_the_sum_of_a_row() -> None:
    weight = torch.tensor([[[[0.25, 0.5], [0.0, 0.0]]]])
    assert record(weight=weight).mass.tolist() == [[[0.75, 0.0]]]


def test_replace_changes_only_the_given_fields() -> None:
    weight, energy, facts = torch.ones(1), torch.zeros(1), torch.full((1,), 3.0)
    full = record(
        weight=weight,
        energy=energy,
        log_prob=facts,
        entropy=facts,
        penalty=facts,
        kernel="sdpa",
        refusals=(("additive", "no"),),
    )
    other = full.replace(context=torch.zeros(5), kernel="mine")
    assert other is not full
    assert other.context.shape == (5,)
    assert other.kernel == "mine"
    for name in ("weight", "energy", "state", "log_prob", "entropy", "penalty", "refusals"):
        assert getattr(other, name) is getattr(full, name)
    assert full.context.shape == (2, 3, 4)
    assert full.kernel == "sdpa"


def test_replace_can_take_the_weights_away() -> None:
    with pytest.raises(NotFormed):
        _ = record(weight=torch.ones(1)).replace(weight=None).weight


def test_replace_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="wieght"):
        record().replace(wieght=torch.ones(1))


@pytest.mark.parametrize("name", ["additive", "coverage/additive", "sample/dot", "mixed"])
def test_records_of_single_steps_join_into_that_of_one_call(name: str) -> None:
    torch.manual_seed(0)
    attend, query, keys = (
        heed.Attention(name, query=4).eval(),
        torch.randn(2, 3, 4),
        torch.randn(2, 5, 4),
    )
    memory, state, records = attend.remember(keys), State(), []
    for t in range(3):
        records.append(attend(query[:, t : t + 1], memory, state, need="weight"))
        state = records[-1].state
    joined, whole = Attended.join(records), attend(query, memory, State(), need="weight")
    torch.testing.assert_close(joined.context, whole.context)
    torch.testing.assert_close(joined.weight, whole.weight)
    for fact in ("log_prob", "entropy", "penalty"):
        torch.testing.assert_close(getattr(joined, fact), getattr(whole, fact))
    assert joined.state is records[-1].state
    assert joined.why == records[0].why
    with pytest.raises(NotFormed):
        _ = joined.energy


def test_joining_one_record_gives_it_back() -> None:
    one = record()
    assert Attended.join([one]) is one


def test_a_record_refuses_new_attributes() -> None:
    with pytest.raises(AttributeError):
        record().wieght = 1  # type: ignore[attr-defined]


def test_the_repr_shows_what_is_formed() -> None:
    assert repr(record()) == "Attended(context=(2, 3, 4), step=3, kernel='reference')"
    told = repr(record(weight=torch.ones(2, 1, 3, 7), kernel="sdpa"))
    assert told == "Attended(context=(2, 3, 4), weight=(2, 1, 3, 7), step=3, kernel='sdpa')"


def test_what_is_formed_can_be_asked_without_raising() -> None:
    weight, energy = torch.ones(2, 1, 3, 7), torch.zeros(2, 1, 3, 7)
    full = Attended(weight=weight, energy=energy)
    assert full.formed.context is None
    assert full.formed.weight is weight
    assert full.formed.energy is energy
    assert full.formed.statistics is None


def test_why_names_the_kernel_and_each_refusal() -> None:
    assert record().why == "served by reference"
    seen = record(refusals=(("sdpa", "it is switched off"), ("additive", "no GPU")))
    assert seen.why == "served by reference; sdpa: it is switched off; additive: no GPU"


def nested() -> State:
    rows = torch.arange(3.0)[:, None, None].expand(3, 2, 4)
    inner = State(2, 1, {"align": (rows, rows + 10)})
    return State(5, 1, {"past": rows, "first": inner, "second": State(5, 1), "none": None})


def rows_of(state: State) -> list[list[float]]:
    """The first number of each row in every slot of `nested`."""
    inner = state.slots["first"].slots["align"]
    return [x[:, 0, 0].tolist() for x in (state.slots["past"], *inner)]


def test_select_picks_rows_at_every_depth() -> None:
    state = nested().select(torch.tensor([2, 0]))
    assert rows_of(state) == [[2, 0], [2, 0], [12, 10]]
    assert state.slots["none"] is None
    assert (state.step, state.origin) == (5, 1)
    assert (state.slots["first"].step, state.slots["second"].step) == (2, 5)


def test_repeat_keeps_the_copies_of_a_row_together() -> None:
    state = nested().repeat(2)
    assert rows_of(state) == [[0, 0, 1, 1, 2, 2]] * 2 + [[10, 10, 11, 11, 12, 12]]


def test_a_state_is_immutable() -> None:
    before = nested()
    before.select(torch.tensor([2]))
    before.repeat(3)
    assert rows_of(before) == [[0, 1, 2], [0, 1, 2], [10, 11, 12]]
    with pytest.raises(AttributeError):
        before.step = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["forward", "forced-forward", "monotonic", "mixture-window", "coverage", "mixed"]
)
def test_a_selected_state_continues_as_its_rows(name: str) -> None:
    attend = heed.Attention(name, query=4).eval()
    keys, first, then = torch.randn(3, 5, 4), torch.randn(3, 2, 4), torch.randn(3, 1, 4)
    memory = attend.remember(keys)
    state = attend(first, memory).state
    whole = attend(then, memory, state, need="weight")
    order = torch.tensor([2, 2, 0])
    moved = attend(then[order], memory.select(order), state.select(order), need="weight")
    torch.testing.assert_close(moved.weight, whole.weight[order])
    wide = attend(then.repeat_interleave(2, 0), memory.repeat(2), state.repeat(2), need="weight")
    torch.testing.assert_close(wide.weight, whole.weight.repeat_interleave(2, 0))


def test_a_mechanism_can_do_only_what_all_its_parts_can() -> None:
    together = (
        Claims(has_steps=False) & Claims(fits_heads=False) & Claims(gradient="straight-through")
    )
    assert together == Claims(has_steps=False, fits_heads=False, gradient="straight-through")
    assert not together.is_differentiable
    assert (Claims() & Claims()) == Claims()
    assert Claims().is_differentiable
    assert (Claims(mass="any") & Claims(mass="at most one")).mass == "any"
    assert (Claims() & Claims(mass="at most one")).mass == "at most one"


def test_a_mechanism_needs_what_any_of_its_parts_needs() -> None:
    together = Claims(needs_line=True) & Claims(draws=True) & Claims(is_row_wise=False)
    assert together == Claims(needs_line=True, draws=True, is_row_wise=False)
    assert Claims().is_stateless
    assert not together.is_stateless
    assert not Claims(ignores_place=False).is_stateless


def test_the_first_inexact_gradient_is_reported() -> None:
    soft = Claims(gradient="score-function") & Claims()
    assert soft.gradient == (Claims() & Claims(gradient="score-function")).gradient
    assert soft.gradient == "score-function"


def test_needs_are_ordered() -> None:
    assert NEEDS == ("context", "weight", "energy", "trace")


def call(visible: heed.Visible | None, sinks: int = 0, k: Tensor | None = None) -> Call:
    q = torch.zeros(2, 3, 4, 5)
    k = torch.ones(2, 3, 6 + sinks, 5) if k is None else k
    places = Places(4, 6, 0, 2, q.device)
    return Call(
        "dot", q, k, k, 1.0, None, visible, None, None, places, Claims(), "softmax", "blend", 0.0,
        "context", sinks,
    )  # fmt: skip


def test_no_predicate_means_no_table() -> None:
    assert call(None).dense_visible() is None
    assert call(None, sinks=2).dense_visible() is None


def test_sinks_are_visible_to_all() -> None:
    ok = call(heed.lengths([0, 6]), sinks=2).dense_visible()
    assert ok is not None
    assert ok.expand(2, 3, 4, 8)[0].any(-1).all()
    assert ok[..., 6:].all()
    assert not ok[0, ..., :6].any()
    assert ok[1].all()


def test_a_table_that_does_not_fit_names_both() -> None:
    with pytest.raises(ShapeError, match=r"(?s)visible: B=1 H=1 T=5 S=6.*: B=2 H=3 T=4 S=6"):
        call(heed.Visible.mask(torch.ones(5, 6, dtype=torch.bool))).dense_visible()


def test_only_keys_that_no_query_sees_are_cleaned() -> None:
    poisoned = torch.ones(2, 3, 6, 5)
    poisoned[0, :, 4:] = torch.nan
    asked = call(heed.lengths([4, 6]) & heed.causal(), k=poisoned)
    k, v = asked.cleaned(asked.dense_visible())
    assert torch.equal(k[0, :, 4:], torch.zeros(3, 2, 5))
    assert torch.equal(k[1], poisoned[1])
    assert torch.equal(k, v)


def test_a_call_without_hidden_keys_is_not_copied() -> None:
    asked = call(heed.lengths([4, 6]))
    asked.clean = True
    assert asked.cleaned(asked.dense_visible())[0] is asked.k


def test_a_notebook_shows_a_row_for_each_head() -> None:
    attend = heed.MultiHeadAttention(8, 2)
    with heed.watch(attend) as seen:
        record = attend(torch.randn(1, 3, 8), need="weight")
    html = record._repr_html_()
    assert html.count("<tr>") == 3
    assert "served by" in html
    assert "entropy" in attend(torch.randn(1, 3, 8), statistics=True)._repr_html_()
    assert "(itself)" in seen._repr_html_()


def test_a_notebook_shows_normalised_rows() -> None:
    """A row of local-p does not sum to one; its weights and its statistics must agree."""
    attend, x = heed.Attention("local-p/general", query=4, window=2), torch.randn(1, 6, 4)
    weight = attend(x, need="weight")._repr_html_()
    said = attend(x, statistics=True)._repr_html_()
    entropy, peak = re.findall(r"<td>([\d.]+)</td>", weight)[1:]
    assert re.findall(r"<td>([\d.]+)</td>", said)[1:3] == [entropy, peak]
