"""The algebra of visibility, compared with naive loops over every position."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import heed
from heed import Visible
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.errors import Refused, ShapeError
from heed.visible import Both, Either, Gaussian, Near, Not, Places, both

B, H, T, S = 2, 3, 4, 6
COUNT = torch.tensor([6, 0])
KEYS = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0]], dtype=torch.bool)
TEXTS = torch.tensor([[0, 0, 0, 1, 1, 2], [3, 3, 3, 3, 3, 3]])
ASKING = torch.tensor([[0, 1, 1, 2], [3, 0, 3, 3]])
DEVICE = torch.get_default_device()
TABLES = torch.rand(B, H, T, S, generator=torch.Generator(DEVICE).manual_seed(0)) > 0.5

Rule = Callable[[int, int, int, int], bool]  # b h t s -> visible; t and s are positions

# The position of query t: with T < S the last query is at the last key.
AT = S - T

PREDICATES: dict[str, tuple[Callable[[], Visible], Rule]] = {
    "causal": (heed.causal, lambda b, h, t, s: s <= t + AT),
    "window 0": (lambda: heed.window(0), lambda b, h, t, s: s == t + AT),
    "window 2": (lambda: heed.window(2), lambda b, h, t, s: abs(s - t - AT) <= 2),
    "lengths": (lambda: heed.lengths(COUNT), lambda b, h, t, s: s < COUNT[b]),
    "lengths from a list": (lambda: heed.lengths([6, 0]), lambda b, h, t, s: s < COUNT[b]),
    "keys": (lambda: Visible.keys(KEYS), lambda b, h, t, s: bool(KEYS[b, s])),
    "mask T S": (
        lambda: Visible.mask(TABLES[0, 0]),
        lambda b, h, t, s: bool(TABLES[0, 0, t, s]),
    ),
    "mask 1 S": (
        lambda: Visible.mask(TABLES[0, 0, :1]),
        lambda b, h, t, s: bool(TABLES[0, 0, 0, s]),
    ),
    "mask B T S": (lambda: Visible.mask(TABLES[:, 0]), lambda b, h, t, s: bool(TABLES[b, 0, t, s])),
    "mask B H T S": (lambda: Visible.mask(TABLES), lambda b, h, t, s: bool(TABLES[b, h, t, s])),
    "mask 1 H 1 S": (
        lambda: Visible.mask(TABLES[:1, :, :1]),
        lambda b, h, t, s: bool(TABLES[0, h, 0, s]),
    ),
    "packed": (
        lambda: Visible.packed(TEXTS, ASKING),
        lambda b, h, t, s: bool(TEXTS[b, s] == ASKING[b, t]),
    ),
}


def places(T: int = T, S: int = S, step: int = 0, origin: int | None = None) -> Places:
    return Places(T, S, step, S - T if origin is None else origin, DEVICE)


def dense(visible: Visible) -> Tensor:
    return visible.dense(places()).expand(B, H, T, S)


@cache
def naive(rule: Rule) -> Tensor:
    ranges = (range(B), range(H), range(T), range(S))
    table = [[[[rule(b, h, t, s) for s in ranges[3]] for t in ranges[2]] for h in ranges[1]]
             for b in ranges[0]]  # fmt: skip
    return torch.tensor(table, dtype=torch.bool)


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_agrees_with_a_loop(name: str) -> None:
    make, rule = PREDICATES[name]
    assert torch.equal(dense(make()), naive(rule))


@pytest.mark.parametrize("one", PREDICATES)
@pytest.mark.parametrize("two", PREDICATES)
def test_any_two_predicates_compose(one: str, two: str) -> None:
    (f, f_rule), (g, g_rule) = PREDICATES[one], PREDICATES[two]
    first, second = naive(f_rule), naive(g_rule)
    assert torch.equal(dense(f() & g()), first & second)
    assert torch.equal(dense(f() | g()), first | second)
    assert torch.equal(dense(~f() & g()), ~first & second)
    assert torch.equal(dense(~(f() | ~g())), ~first & second)


def test_not_binds_before_and_and_before_or() -> None:
    a, b, c = heed.causal(), heed.lengths(COUNT), heed.window(1)
    x, y, z = dense(a), dense(b), dense(c)
    assert torch.equal(dense(a | b & ~c), x | (y & ~z))
    assert torch.equal(dense((a | b) & ~c), (x | y) & ~z)
    assert not torch.equal(dense(a | b & ~c), dense((a | b) & ~c))


@pytest.mark.parametrize("table", [TABLES[0, 0], TABLES[:, 0], TABLES], ids=["TS", "BTS", "BHTS"])
def test_a_raw_table_stands_on_either_side(table: Tensor) -> None:
    seen, causal = dense(Visible.mask(table)), dense(heed.causal())
    for made, want in (
        (heed.causal() & table, seen & causal),
        (table & heed.causal(), seen & causal),
        (heed.causal() | table, seen | causal),
        (table | heed.causal(), seen | causal),
    ):
        assert torch.equal(dense(made), want)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 5), (3, 5), (5, 5), (5, 3)])
def test_the_last_query_is_at_the_last_key(T: int, S: int) -> None:
    """Bottom right: with T > S the first queries come before every key and see none."""
    seen = heed.causal().dense(places(T, S))[0, 0]
    assert torch.equal(seen, torch.ones(T, S, dtype=torch.bool).tril(S - T))
    assert seen[-1].all()
    assert torch.equal(seen.sum(-1), (torch.arange(T) + S - T + 1).clamp(0, S))


def test_earlier_steps_shift_the_queries() -> None:
    whole = (heed.causal() & heed.window(1)).dense(places())
    for t in range(T):
        row = (heed.causal() & heed.window(1)).dense(places(1, step=t, origin=S - T))
        assert torch.equal(row, whole[:, :, t : t + 1])


def test_places_count_queries_and_keys() -> None:
    here = places(3, 7, step=2, origin=1)
    assert here.steps.tolist() == [2, 3, 4]
    assert here.query.tolist() == [3, 4, 5]
    assert here.key.tolist() == list(range(7))
    assert not here.last_at_end
    assert places().last_at_end
    assert here.row(1).query.tolist() == [4]


def test_selecting_rows_of_places_selects_their_segments() -> None:
    segment = torch.tensor([[0, 1, 2], [3, 4, 5]])
    here = Places(3, 4, 0, 1, DEVICE, segment)
    row = here.row(2)
    assert row.segment is not None
    assert row.segment.tolist() == [[2], [5]]
    assert row.T == 1


def test_near_and_gaussian_follow_a_centre() -> None:
    centre = torch.tensor([[[0.0, 2.6, 5.0, 9.0]]])
    near = Near(centre, 1).dense(places())
    gain = Gaussian(centre, 0.5).dense(places())
    for t, c in enumerate(centre[0, 0].tolist()):
        for s in range(S):
            assert bool(near[0, 0, t, s]) == (abs(s - c) <= 1)
            want = torch.tensor(-((s - c) ** 2) / (2 * 0.25)).exp()
            torch.testing.assert_close(gain[0, 0, t, s], want)


@pytest.mark.parametrize(
    ("visible", "alone"),
    [
        (heed.causal(), False),
        (heed.window(1), False),
        (heed.lengths(COUNT), True),
        (Visible.keys(KEYS), True),
        (Visible.mask(TABLES), False),
        (Visible.packed(TEXTS, ASKING), False),
        (heed.lengths(COUNT) & Visible.keys(KEYS), True),
        (heed.lengths(COUNT) | ~Visible.keys(KEYS), True),
        (heed.lengths(COUNT) & heed.causal(), False),
        (heed.lengths(COUNT) | heed.causal(), False),
        (~heed.lengths(COUNT), True),
        (~heed.causal(), False),
    ],
)
def test_predicates_on_keys_alone_are_recognised(visible: Visible, alone: bool) -> None:
    assert visible.about_keys_alone is alone
    table = dense(visible)
    if alone:  # then every query of a row sees the same
        assert (table == table[:, :1, :1]).all()


SPLITS = {
    **{name: make() for name, (make, _) in PREDICATES.items()},
    "causal & lengths": heed.causal() & heed.lengths(COUNT),
    "lengths & (keys & window)": heed.lengths(COUNT) & (Visible.keys(KEYS) & heed.window(1)),
    "mask & keys": Visible.mask(TABLES) & Visible.keys(KEYS),
    "lengths | causal": heed.lengths(COUNT) | heed.causal(),
    "~lengths & ~causal": ~heed.lengths(COUNT) & ~heed.causal(),
    "~(lengths & causal)": ~(heed.lengths(COUNT) & heed.causal()),
}


@pytest.mark.parametrize("name", SPLITS)
def test_splitting_off_the_keys_loses_nothing(name: str) -> None:
    visible = SPLITS[name]
    keys, rest = visible.split()
    whole = both(keys, rest)
    assert whole is not None
    assert torch.equal(dense(whole), dense(visible))
    if keys is not None:
        assert keys.about_keys_alone
        # The half that cleans the memory must not hide a key that some query sees.
        assert (keys.dense(places()).expand(B, 1, 1, S) | ~dense(visible)).all()


def test_padding_is_split_off_a_composition() -> None:
    keys, rest = (heed.causal() & heed.lengths(COUNT)).split()
    assert keys is not None
    assert torch.equal(dense(keys), dense(heed.lengths(COUNT)))
    assert rest == heed.causal()


def test_predicates_have_no_truth_value() -> None:
    for wrong in (lambda: heed.causal() and heed.window(1), lambda: not heed.causal()):
        with pytest.raises(Refused, match="combine masks with &"):
            wrong()


def test_both_accepts_missing_predicates() -> None:
    assert both(None, None) is None
    assert both(heed.causal(), None) == heed.causal()
    assert both(None, heed.causal()) == heed.causal()
    assert both(heed.causal(), heed.window(1)) == Both(heed.causal(), heed.window(1))


def test_rows_can_be_rearranged() -> None:
    order = torch.tensor([1, 0, 1])
    count, table = heed.lengths(COUNT), Visible.keys(KEYS)
    for visible in (
        count,
        table,
        Not(count),
        Both(count, table),
        Either(count, Not(table)),
        Both(heed.causal(), count),
    ):
        moved = visible.rearranged(lambda x: x.index_select(0, order))
        want = visible.dense(places()).index_select(0, order)
        assert torch.equal(moved.dense(places()), want)


def test_one_row_for_all_stays_one_row() -> None:
    order = torch.tensor([2, 0])
    for visible in (heed.lengths([2]), Visible.keys(KEYS[:1])):
        moved = visible.rearranged(lambda x: x.index_select(0, order))
        assert torch.equal(moved.dense(places()), visible.dense(places()))


def test_a_description_prints_itself() -> None:
    assert repr(heed.causal() & heed.window(2)) == "Both(first=Causal(), second=Window(half=2))"


@pytest.mark.parametrize(
    "count",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1, 2]]),
        torch.tensor(3),
        torch.tensor([True, False]),
        [1.5, 2.0],
        [],
    ],
)
def test_lengths_are_whole_numbers_one_per_row(count: Tensor | list[int]) -> None:
    with pytest.raises(ShapeError, match=r"whole numbers, one per row \(B\); got"):
        heed.lengths(count)


@pytest.mark.parametrize("half", [-1, -7, 1.5])
def test_a_window_is_a_whole_number_that_is_not_negative(half: int) -> None:
    with pytest.raises(Refused, match=f"whole number, 0 or more; got {half}"):
        heed.window(half)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_is_boolean(dtype: torch.dtype) -> None:
    for use in (
        lambda x: Visible.mask(x),
        lambda x: Visible.keys(x),
        lambda x: heed.causal() & x,
        lambda x: heed.causal() | x,
    ):
        with pytest.raises(Refused, match=f"True = visible; got {dtype}"):
            use(torch.ones(T, S, dtype=dtype))


def test_whoever_has_lengths_or_a_tokenisers_mask_is_told_what_to_say() -> None:
    q, mask = torch.randn(2, 1, 3, 4), torch.tensor([[1, 1, 1], [1, 0, 0]])
    keys = r"heed\.Visible\.keys\(attention_mask\.bool\(\)\)"
    for given, cure in (
        (mask, keys),
        (mask[:, None, None], r"mask\.bool\(\)"),
        (mask.sum(-1), r"heed\.lengths\(n\)"),
        (mask.sum(-1).tolist(), r"heed\.lengths\(n\)"),
    ):
        with pytest.raises(Refused, match=cure):
            heed.attend(q, q, q, visible=given)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=keys):
        heed.lengths(mask)
    told = heed.attend(q, q, q, visible=Visible.keys(mask.bool())).context
    assert torch.equal(told, heed.attend(q, q, q, visible=heed.lengths([3, 1])).context)


def two_kinds() -> HeadGroups:
    """A mechanism of its own for each of two heads, 2 wide."""
    kinds = ("additive", "scaled-dot")
    return HeadGroups([(build(name, query=2, key=2, value=2), 1) for name in kinds])


ALL_DOORS: dict[str, Callable[[Tensor, Any], Any]] = {
    "attend": lambda x, seen: heed.attend(*(x[:, None],) * 3, visible=seen),
    "Attention": lambda x, seen: heed.Attention("dot", query=4)(x, visible=seen),
    "composed": lambda x, seen: heed.Attention("dot", query=4)(x, visible=heed.window(2) & seen),
    "on a memory": lambda x, seen: (
        (attend := heed.Attention("additive", query=4))(x, attend.remember(x), visible=seen)
    ),
    "heads": lambda x, seen: heed.MultiHeadAttention(4, 2)(x, visible=seen),
    "groups": lambda x, seen: heed.MultiHeadAttention(4, 2, mechanism=two_kinds())(
        x, visible=seen
    ),
    "mixed": lambda x, seen: heed.Attention("mixed", query=4)(x, visible=seen),
    "a Mechanism": lambda x, seen: (
        (made := heed.Attention("dot", query=4).mechanism)(
            x[:, None], made.remember(x[:, None]), visible=seen
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", [*ALL_DOORS, "remember", "keys", "mask"])
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_mask_of_numbers_is_told_what_shows_what_it_shows(door: str, axes: int) -> None:
    """torch's float masks are added: 0 shows, and `.bool()` of them would hide what they show."""
    doors = ALL_DOORS | {
        "remember": lambda x, seen: heed.Attention("dot", query=4).remember(x, visible=seen),
        "keys": lambda x, seen: Visible.keys(seen),
        "mask": lambda x, seen: Visible.mask(seen),
    }
    shown = torch.ones(3, 3, dtype=torch.bool).tril()
    added = torch.zeros(3, 3).masked_fill(~shown, -torch.inf)[(None,) * (axes - 2)]
    for dtype in (torch.float32, torch.float16, torch.float64):
        with pytest.raises(Refused, match=f"got {dtype}: .*") as told:
            doors[door](torch.randn(3, 3, 4), added.to(dtype))
        (cure,) = re.findall(r"of 0 and -inf it is (mask == 0)", str(told.value))
        assert torch.equal(eval(cure, {"mask": added}), shown.expand_as(added))
        (cure,) = re.findall(r"of 1 and 0 (mask == 1)", str(told.value))
        assert torch.equal(eval(cure, {"mask": shown.float()}), shown)
        assert "bool()" not in str(told.value)


@pytest.mark.parametrize("door", ALL_DOORS)
def test_a_table_that_may_be_of_keys_or_of_queries_is_refused(door: str) -> None:
    """As many rows as queries: B S and T S look alike, and each would be a guess."""
    x, mask = torch.randn(3, 3, 4), torch.ones(3, 3, dtype=torch.bool).tril()
    says = r"B S or T S: .*heed\.Visible\.keys\(mask\), .*mask\[None\]"
    with pytest.raises(ShapeError, match=says):
        ALL_DOORS[door](x, mask)
    of_keys = ALL_DOORS[door](x, Visible.keys(mask)).context
    of_queries = ALL_DOORS[door](x, mask[None]).context
    assert of_keys.shape == of_queries.shape
    told = ALL_DOORS[door](x, Visible.mask(mask))  # its two axes are T S, as it says
    assert told.context.shape == of_queries.shape


def test_two_axes_that_can_be_read_in_one_way_need_no_more() -> None:
    attend = heed.Attention("dot", query=4)
    for B, T in ((3, 5), (1, 1), (1, 4), (2, 1)):
        x, memory = torch.randn(B, T, 4), attend.remember(torch.randn(B, 6, 4))
        mask = torch.rand(T, 6) > 0.5
        told = attend(x, memory, visible=mask).context
        assert torch.equal(told, attend(x, memory, visible=mask[None]).context)
    x, memory = torch.randn(3, 3, 4), attend.remember(torch.randn(3, 6, 4))
    attend(x, memory, visible=torch.ones(1, 6, dtype=torch.bool))  # the same for all queries
    table = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    assert torch.equal(attend.remember(x, visible=table).exists, table)  # a memory has no queries


@pytest.mark.parametrize("axes", [0, 1, 5])
def test_a_mask_has_two_to_four_axes(axes: int) -> None:
    with pytest.raises(ShapeError, match=f"2 or 3 or 4 axes; got {axes}"):
        Visible.mask(torch.ones((2,) * axes, dtype=torch.bool))


@pytest.mark.parametrize("axes", [1, 3])
def test_a_table_of_keys_has_two_axes(axes: int) -> None:
    with pytest.raises(ShapeError, match=f"needs 2 axes; got {axes}"):
        Visible.keys(torch.ones((2,) * axes, dtype=torch.bool))


def test_packed_texts_are_numbered_in_each_row() -> None:
    with pytest.raises(ShapeError, match=r"B S.*B T; got \(6,\) and \(6,\)"):
        Visible.packed(TEXTS[0])
    with pytest.raises(ShapeError, match=r"got \(2, 6\) and \(1, 4\)"):
        Visible.packed(TEXTS, ASKING[:1])


@pytest.mark.parametrize("other", [None, "causal", 3, [[True]]])
def test_operands_that_are_no_predicates_are_refused(other: object) -> None:
    with pytest.raises(Refused, match=f"got {type(other).__name__}"):
        heed.causal() & other  # type: ignore[operator]


def test_the_base_predicate_is_abstract() -> None:
    with pytest.raises(NotImplementedError):
        Visible().dense(places())


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


MISFITS = {
    "mask T": (ones(5, S), "T=5"),
    "mask S": (ones(T, S + 1), f"S={S + 1}"),
    "mask B": (ones(3, T, S), "B=3"),
    "mask H": (ones(B, 2, T, S), "H=2"),
    "not mask": (~Visible.mask(ones(5, S)), "T=5"),
    "lengths": (heed.lengths([1, 2, 3]), "B=3"),
    "keys": (Visible.keys(ones(B, S - 1)), f"S={S - 1}"),
    "keys B": (Visible.keys(ones(3, S)), "B=3"),
    "packed T": (Visible.packed(torch.zeros(B, S)), f"T={S}"),
    "causal & mask": (heed.causal() & ones(5, S), "T=5"),
    "mask | causal": (ones(5, S) | heed.causal(), "T=5"),
    "lengths & lengths": (heed.lengths([1, 2, 3]) & heed.lengths([1, 2]), "B=3"),
    "lengths | causal": (heed.lengths([1, 2, 3]) | heed.causal(), "B=3"),
    "packed & causal": (Visible.packed(torch.zeros(B, S)) & heed.causal(), f"T={S}"),
}


@pytest.mark.parametrize("mechanism", ["scaled-dot", "entmax", "local-m", "expanded-window"])
@pytest.mark.parametrize("name", MISFITS)
def test_a_shape_that_does_not_fit_is_named_with_its_counterpart(name: str, mechanism: str) -> None:
    visible, wrong = MISFITS[name]
    q, k = torch.randn(B, H, T, 5), torch.randn(B, H, S, 5)
    with pytest.raises(ShapeError) as told:
        heed.attend(q, k, k, mechanism, visible=visible)
    _, given, met, *_ = str(told.value).split("\n")
    axis = wrong.split("=")[0]
    assert f"{axis}=" in given
    assert f"{axis}=" in met
    assert (wrong in given) != (wrong in met)


def test_a_memory_names_both_shapes() -> None:
    attend = heed.Attention("dot", query=5)
    with pytest.raises(ShapeError, match=r"(?s)visible: B=3 S=6.*keys: B=2 S=6"):
        attend.remember(torch.randn(B, S, 5), visible=heed.lengths([1, 2, 3]))


WITH_KEYS: dict[str, Callable[[Tensor, Visible], object]] = {
    "attend": lambda x, seen: heed.attend(x[:, None], x[:, None], x[:, None], visible=seen),
    "a window": lambda x, seen: heed.attend(
        x[:, None], x[:, None], x[:, None], "local-m", visible=seen
    ),
    "a module": lambda x, seen: heed.Attention("dot", query=4)(x, visible=seen),
    "heads": lambda x, seen: heed.MultiHeadAttention(4, 2)(x, x, visible=seen & heed.causal()),
    "remember": lambda x, seen: heed.Attention("dot", query=4).remember(x, visible=seen),
    "extend": lambda x, seen: heed.Attention("dot", query=4).remember(x).extend(x, visible=seen),
}


@pytest.mark.parametrize("given", WITH_KEYS)
def test_lengths_that_are_not_of_the_keys_beside_them_are_refused(given: str) -> None:
    with torch.device("cpu"):
        x = torch.randn(2, 7, 4)
        for count, said in (([3, 9], "9 in row 1"), ([-1, 7], "-1 in row 0")):
            for counts in (count, torch.tensor(count), torch.tensor(count, dtype=torch.int32)):
                message = f"has 0 to 7 of the 7 keys; lengths has {said}$"
                with pytest.raises(ShapeError, match=message):
                    WITH_KEYS[given](x, heed.lengths(counts))
        WITH_KEYS[given](x, heed.lengths([0, 7]))


@pytest.mark.parametrize("given", ["attend", "a module"])
def test_lengths_inside_other_masks_are_checked_too(given: str) -> None:
    with torch.device("cpu"):
        far = heed.lengths([3, 9])
        for visible in (~far, far | heed.causal(), heed.causal() & (heed.window(1) | ~far)):
            with pytest.raises(ShapeError, match="lengths has 9 in row 1"):
                WITH_KEYS[given](torch.randn(2, 7, 4), visible)


def test_a_memory_that_still_grows_takes_the_lengths_of_the_whole_text() -> None:
    attend, x = heed.Attention("dot", query=4), torch.randn(2, 7, 4)
    visible = heed.lengths([3, 7]) & heed.causal()
    whole = attend(x, visible=visible).context
    memory, steps = attend.remember(x[:, :1]), []
    for t in range(7):
        memory = memory.extend(x[:, t : t + 1]) if t else memory
        steps.append(attend(x[:, t : t + 1], memory, visible=visible).context)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_lengths_that_cannot_be_read_are_not_checked() -> None:
    """A compiler has no numbers, nor has vmap, nor a device other than the CPU at once."""
    x, count = torch.randn(2, 1, 7, 4), torch.tensor([3, 9])

    def look(q: Tensor, count: Tensor) -> Tensor:
        return heed.attend(q, q, q, visible=heed.lengths(count)).context

    want = heed.attend(x, x, x, visible=heed.lengths([3, 7])).context
    compiled = torch.compile(look, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, count), want)
    with heed.kernels.off("sdpa"):  # of which PyTorch warns that it is slow under vmap
        each = torch.vmap(look)(x[:, None], count[:, None])
    torch.testing.assert_close(each[:, 0], want)
    with FakeTensorMode() as mode:
        assert look(mode.from_tensor(x), mode.from_tensor(count)).shape == want.shape
    assert look(x.to("meta"), count.to("meta")).shape == want.shape
