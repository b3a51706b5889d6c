"""Every name of the catalogue has the abilities it claims, and refuses the rest.

All tests here and beside run on a new entry, and compare what it does with what it claims.
"""

import inspect
import itertools
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch

import heed
from heed.attention.catalogue import CATALOGUE, DEFAULTS
from heed.attention.names import options_of, parse
from heed.attention.part import Slot
from heed.errors import NotFormed, Refused, UnknownName
from heed.records import Claims
from tests.attention.cases import ALONE, CASES, FIRST, INSIDE, Case, S, close, every, main

SOFT, HARD = Claims(), Claims(gradient="straight-through")
MAPPED = Claims(ignores_turns=False)
PAST = Claims(is_row_wise=False, needs_line=True)
MOVING = Claims(is_row_wise=False, ignores_shifts=False, needs_line=True)
PREDICTED = Claims(ignores_shifts=False, sees_all=False, needs_length=True, mass="at most one")
NEIGHBOURS = Claims(ignores_place=False, sees_all=False, needs_one_text=True)


@dataclass(frozen=True)
class Expected:
    """What is known of a name from the literature rather than from the code.

    A new name needs none: this keeps what is said of the others from changing unseen.
    """

    slot: Slot
    claims: Claims = SOFT
    kernel: str = "reference"  # the kernel that serves it alone, with defaults for all else
    options: tuple[str, ...] = ()
    weights: bool = False  # has parameters
    past: bool = False  # its state has more than the step


EXPECTED = {
    "dot": Expected("score", kernel="sdpa"),
    "scaled-dot": Expected("score", kernel="sdpa", options=("scale",)),
    "general": Expected("score", MAPPED, kernel="sdpa", weights=True),
    "additive": Expected("score", MAPPED, kernel="additive", options=("width",), weights=True),
    "concat": Expected("score", MAPPED, kernel="additive", options=("width",), weights=True),
    "concat-identity": Expected("score", MAPPED, kernel="additive", weights=True),
    "location": Expected(
        "score",
        replace(MAPPED, ignores_shifts=False, needs_line=True),
        options=("longest",),
        weights=True,
    ),
    "key-value": Expected("score", MAPPED, kernel="sdpa", weights=True),
    "cosine": Expected("score", kernel="sdpa", options=("sharpness",), weights=True),
    "relative": Expected(
        "score",
        replace(MAPPED, ignores_place=False, needs_line=True),
        options=("width", "segments", "clamp"),
        weights=True,
    ),
    "coverage": Expected("past", replace(PAST, charges=True), weights=True, past=True),
    "location-aware": Expected(
        "past", PAST, options=("channels", "kernel"), weights=True, past=True
    ),
    "global": Expected("reach", kernel="sdpa"),
    "local-m": Expected(
        "reach",
        Claims(ignores_place=False, ignores_shifts=False, sees_all=False),
        kernel="sdpa",
        options=("window",),
    ),
    "local-p": Expected("reach", PREDICTED, options=("window", "hidden"), weights=True),
    "fixed-window": Expected("reach", NEIGHBOURS, kernel="sdpa", options=("window",)),
    "expanded-window": Expected(
        "reach",
        replace(NEIGHBOURS, ignores_shifts=False, merges_keys=True),
        kernel="sdpa",
        options=("window", "block"),
    ),
    "mixed": Expected(
        "reach",
        PREDICTED,
        kernel="sdpa + reference",
        options=("gate", "window", "hidden"),
        weights=True,
        past=True,
    ),
    "static": Expected(
        "reach",
        Claims(has_steps=False, takes_several=False, fits_heads=False),
        kernel="sdpa",
        options=("learned",),
        weights=True,
    ),
    "softmax": Expected("align", kernel="sdpa"),
    "sparsemax": Expected("align"),
    "entmax": Expected("align"),
    "argmax": Expected("align", HARD),
    "sample": Expected(
        "align", Claims(draws=True, gradient="score-function"), options=("count", "soft")
    ),
    "gumbel": Expected("align", replace(HARD, draws=True), options=("temperature",)),
    "forward": Expected("align", MOVING, kernel="scan", options=("agent",), past=True),
    "forced-forward": Expected("align", MOVING, kernel="scan", past=True),
    "monotonic": Expected(
        "align",
        replace(MOVING, mass="at most one"),
        kernel="scan",
        options=("offset", "noise"),
        weights=True,
        past=True,
    ),
    "mixture-window": Expected(
        "align",
        replace(MOVING, uses_energies=False, mass="any"),
        kernel="scan",
        options=("components",),
        weights=True,
        past=True,
    ),
    "blend": Expected("read", kernel="sdpa"),
    "pointer": Expected("read", Claims(fits_heads=False, gives_context=False)),
}

each_entry = pytest.mark.parametrize("name", CATALOGUE)
each_expected = pytest.mark.parametrize("name", EXPECTED)


def plain(name: str, **options: Any) -> heed.Attention:
    """Widths that suit every name, without options."""
    return heed.Attention(name, query=4, key=4, value=4, **options)


def test_every_name_is_tested_alone_and_every_slot_in_combinations() -> None:
    assert {word for case in CASES for word in case.words} == set(CATALOGUE)
    for slot in get_args(Slot):
        composed = [c for c in ALONE if len(c.words) > 1 and slot in parse(c.name)]
        assert composed, slot


@each_entry
def test_an_entry_documents_itself(name: str) -> None:
    entry = CATALOGUE[name]
    assert entry.name == name
    assert all((entry.formula, entry.source, entry.about, inspect.getdoc(entry.part)))
    assert plain(name).mechanism.claims == entry.claims


@each_expected
def test_an_entry_is_what_is_expected(name: str) -> None:
    entry, expected = CATALOGUE[name], EXPECTED[name]
    assert entry.slot == expected.slot
    assert entry.claims == expected.claims
    assert sorted(options_of(name)) == sorted(expected.options)


@each_expected
def test_an_entry_alone_does_what_is_expected(name: str) -> None:
    expected, case = EXPECTED[name], Case(name)
    attend = plain(name)
    assert any(True for _ in attend.parameters()) == expected.weights
    q, k, v = (torch.randn(2, n, 4) for n in (case.T, S, S))
    seen = attend(q, attend.remember(k, v))
    assert seen.kernel == expected.kernel
    assert seen.why.startswith(f"served by {expected.kernel}")
    assert bool(seen.state.slots) == expected.past


@every(CASES)
def test_the_sum_of_a_row(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    seen = attend(q, attend.remember(k, v), case.first, need="weight")
    assert (seen.weight >= 0).all()
    if case.claims.mass == "one":
        close(seen.mass, torch.ones_like(seen.mass))
    elif case.claims.mass == "at most one":
        assert seen.mass.max() <= 1 + 1e-12
        assert seen.mass.min() < 1 - 1e-6


@every(CASES)
def test_a_combination_claims_what_all_its_parts_claim(case: Case) -> None:
    assert case.build().mechanism.claims == case.claims


@every([c for c in ALONE if not c.claims.fits_heads])
def test_outside_heads(case: Case) -> None:
    with pytest.raises(Refused, match=f"'{case.name}' does not work inside heads; use heed.Att"):
        heed.MultiHeadAttention(8, 2, mechanism=case.name)


@pytest.mark.parametrize("groups", [1, 2, 4])
@every([c for c in INSIDE if len(c.words) == 1])
def test_inside_heads_that_share_keys(case: Case, groups: int) -> None:
    case = Case(case.name, 4, groups)
    attend = case.build()
    q, k, v = case.inputs()
    memory = attend.remember(k, v)
    seen = attend(q, memory, FIRST, need="weight")
    assert seen.weight.shape == (3, 4, 4, S)
    assert seen.context.shape == q.shape
    assert memory.v.shape == (3, groups, S, 3)


@every(ALONE, has_steps=False)
def test_a_mechanism_without_steps_takes_no_state(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    with pytest.raises(Refused, match="this mechanism has no steps and takes no state"):
        attend(q, attend.remember(k, v), FIRST)


@every(ALONE, takes_several=False)
def test_a_mechanism_of_one_query_takes_one(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(T=2)
    with pytest.raises(Refused, match=r"one query for the whole text \(T=1\); got T=2"):
        attend(q, attend.remember(k, v))
    own = attend(None, attend.remember(k, v))
    given = attend.mechanism.reach.vector[:, 0].expand(3, -1, -1)
    close(main(own), main(attend(given, attend.remember(k, v))))


@every([c for c in ALONE if "static" not in c.words])
def test_only_static_has_a_query_of_its_own(case: Case) -> None:
    attend = case.build()
    _, k, v = case.inputs()
    with pytest.raises(Refused, match="needs a query"):
        attend(None, attend.remember(k, v))


@every(ALONE, gives_context=False)
def test_a_mechanism_without_a_context_says_where_the_answer_is(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    seen = attend(q, attend.remember(k, v))
    close(seen.mass, torch.ones_like(seen.mass))
    with pytest.raises(NotFormed, match=r"a pointer has none .*\.weight"):
        _ = seen.context


@every(CASES, gives_context=True)
def test_what_was_not_asked_for_is_not_formed(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    seen = attend(q, attend.remember(k, v), case.first)
    with pytest.raises(NotFormed, match='need="weight"'):
        _ = seen.weight
    with pytest.raises(NotFormed, match='need="energy"'):
        _ = seen.energy
    with pytest.raises(UnknownName, match="no need is called 'wieght'; did you mean weight"):
        attend(q, attend.remember(k, v), need="wieght")


@pytest.mark.parametrize("case", [c for c in ALONE if len(c.words) > 1], ids=str)
def test_the_order_of_the_parts_does_not_matter(case: Case) -> None:
    first = case.build()
    q, k, v = case.inputs()
    want = first(q, first.remember(k, v), case.first, need="weight")
    for order in itertools.permutations(case.name.split("/")):
        other = Case("/".join(order)).build()
        other.load_state_dict(first.state_dict())
        close(other(q, other.remember(k, v), case.first, need="weight").weight, want.weight, 0)


@each_entry
def test_a_default_may_be_named(name: str) -> None:
    words = [w for slot, w in DEFAULTS.items() if w and slot != CATALOGUE[name].slot]
    if not CATALOGUE[name].claims.uses_energies:
        words.remove("scaled-dot")
    case, said = Case(name), Case("/".join([*words, name]))
    first, other = case.build(), said.build()
    other.load_state_dict(first.state_dict())
    q, k, v = case.inputs()
    close(
        main(other(q, other.remember(k, v), case.first)),
        main(first(q, first.remember(k, v), case.first)),
        0,
    )


two_of_a_slot = [
    (a, b)
    for a, b in itertools.combinations(CATALOGUE, 2)
    if CATALOGUE[a].slot == CATALOGUE[b].slot
]


@pytest.mark.parametrize(("first", "second"), two_of_a_slot)
def test_two_parts_for_one_slot_are_refused(first: str, second: str) -> None:
    slot = CATALOGUE[first].slot
    with pytest.raises(Refused, match=f"two parts for the slot {slot}: {second} and {first}$"):
        plain(f"{second}/{first}")


@pytest.mark.parametrize("score", [n for n, e in CATALOGUE.items() if e.slot == "score"])
def test_a_score_that_would_not_be_used_is_refused(score: str) -> None:
    with pytest.raises(Refused, match=f"does not compare keys, so '{score}' would not be used"):
        plain(f"{score}/mixture-window")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("aditive", "additive"),
        ("Additive", "additive"),
        ("local_p", "local-p"),
        ("scaled dot", "scaled-dot"),
        ("monotone", "monotonic"),
        ("dot/sparse-max", "sparsemax"),
        (" dot", "dot"),
    ],
)
def test_an_unknown_name_gets_the_nearest(given: str, near: str) -> None:
    word = given.split("/")[-1]
    with pytest.raises(UnknownName, match=f"no mechanism is called '{word}'; did you.*{near}"):
        plain(given)


@pytest.mark.parametrize("given", ["", "/", "dot/", "/dot", "dot//softmax"])
def test_an_empty_part_is_refused(given: str) -> None:
    with pytest.raises(Refused, match=f"an empty part in '{given}'"):
        plain(given)


@pytest.mark.parametrize("given", ["os", "__import__", " dot", "DOT", "dot/os.system"])
def test_what_is_not_a_name_gets_the_whole_list(given: str) -> None:
    with pytest.raises(UnknownName, match=r"no mechanism is called '.*'; (known: dot, |did you)"):
        plain(given)


@each_entry
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(UnknownName, match=f"no option of '{name}' is called 'xyzzy'; known: "):
        plain(name, xyzzy=3)
    for option in options_of(name):
        with pytest.raises(UnknownName, match=f"did you mean .*{option}"):
            plain(name, **{option[:-1]: 3})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mixed/pointer", "mixed blends two contexts; a pointer has none"),
        ("static/forward", "static has no steps; "),
        ("static/coverage", "static has no steps; "),
        ("expanded-window/relative", "expanded-window merges keys; with relative they"),
        (
            "expanded-window/monotonic/coverage",
            "with coverage and monotonic they",
        ),
        ("expanded-window/location", "with location they"),
    ],
)
def test_parts_that_cannot_work_together_are_refused(name: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        plain(name)


@pytest.mark.parametrize("name", ["dot", "scaled-dot", "key-value", "cosine", "relative"])
def test_widths_that_cannot_be_compared_are_refused(name: str) -> None:
    with pytest.raises(Refused, match="query=4, key=6; use 'general'"):
        heed.Attention(name, query=4, key=6)


def test_one_head_takes_no_heads() -> None:
    with pytest.raises(Refused, match=r"one head; use heed\.MultiHeadAttention"):
        heed.Attention("additive", query=4, heads=2)
    with pytest.raises(Refused, match="needs the widths it compares"):
        heed.Attention("additive")


def test_location_has_a_longest_source() -> None:
    attend = plain("location", longest=5)
    keys = torch.randn(1, 6, 4)
    with pytest.raises(Refused, match="at most 5 places; this source has S=6"):
        attend(keys[:, :1], attend.remember(keys))
