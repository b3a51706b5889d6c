"""Tunes by style: each obeys the rules of its own style, and of no other."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from heed.data import tunes
from heed.data.grammar import part_of
from heed.data.tunes import STYLES, Note, Style, check, draw, parse, style_of
from heed.errors import Refused, UnknownName

A = "^F E E A3 | ^F ^G A A3"
B = "e2 ^f e2 ^f | d2 ^f e3"
JIG = f"{A} | {A} | {B} | {A} |]"
BLUES = "d2 d2 c c d2 | d2 f2 d4 | d2 d2 c c d2 | d2 f2 d4 | c2 d2 c4 | d2 c2 d4 |]"


def separates(a: Style, b: Style) -> set[str]:
    """Why no tune obeys both: its bars would have two lengths or rhythms; or, above its last note,
    the tonic in both, it would have what must occur in one, and the other does not have."""
    found = {"metre"} if a.metre != b.metre else set()
    found |= set() if {*a.bars} & {*b.bars} else {"rhythm"}
    apart = not a.telling & {*b.scale} or not b.telling & {*a.scale}
    return found | ({"scale"} if apart else set())


def test_any_two_styles_are_told_apart_by_their_rules() -> None:
    found = {
        f"{a} {b}": " ".join(sorted(separates(STYLES[a], STYLES[b])))
        for a, b in combinations(STYLES, 2)
    }
    assert found == {
        "jig waltz": "rhythm",
        "jig reel": "metre rhythm",
        "jig march": "metre rhythm",
        "jig blues": "metre rhythm scale",
        "jig pentatonic": "metre rhythm scale",
        "waltz reel": "metre rhythm",
        "waltz march": "metre rhythm",
        "waltz blues": "metre rhythm scale",
        "waltz pentatonic": "metre rhythm scale",
        "reel march": "rhythm",
        "reel blues": "rhythm scale",
        "reel pentatonic": "scale",
        "march blues": "scale",
        "march pentatonic": "rhythm scale",
        "blues pentatonic": "rhythm scale",
    }


@pytest.mark.parametrize("style", STYLES)
def test_the_rules_of_a_style_make_sense(style: str) -> None:
    rules = STYLES[style]
    assert {sum(bar) for bar in rules.bars} == {rules.metre}
    assert {*rules.last} < {*rules.bars}
    assert rules.telling < {*rules.scale}


def test_tunes_obey_their_own_rules_alone() -> None:
    drawn = list(draw(1200))
    assert Counter(tune.style for tune in drawn) == dict.fromkeys(STYLES, 200)
    for style, text in drawn:
        assert [each for each in STYLES if not check(text, each)] == [style] == [style_of(text)]
        bars = [bar.split() for bar in text.removesuffix(" |]").split(" | ")]
        lengths = [[int(note[-1]) if note[-1].isdigit() else 1 for note in bar] for bar in bars]
        assert {sum(bar) for bar in lengths} == {STYLES[style].metre}
        assert bars[:2] == bars[{"ABAC": 4}.get(STYLES[style].form, 2) :][:2]
        assert bars[-1][-1].strip("0123456789',").upper() in STYLES[style].tonics


def test_there_are_thousands_of_tunes() -> None:
    for style in ("blues", "pentatonic"):  # with the fewest bars, with the fewest notes
        assert len({text for _, text in draw(2500, style=style)}) == 2500


def test_the_seed_and_the_part_decide_what_is_drawn() -> None:
    assert list(draw(30, seed=3)) == list(draw(30, seed=3)) != list(draw(30, seed=4))
    assert list(draw(12, seed=3)) == list(draw(30, seed=3))[:12]
    for part in ("valid", "test"):
        assert {part_of(tune.text) for tune in draw(30, seed=3, part=part)} == {part}


def test_notes_and_bars() -> None:
    bars = parse("C c c' | C,2 ^F3 _B b,, |]")
    assert bars[0] == [Note(0, 1), Note(12, 1), Note(24, 1)]
    assert bars[1] == [Note(-12, 2), Note(6, 3), Note(10, 1), Note(-1, 1)]


@pytest.mark.parametrize("note", ["H", "c1", "c9", "2c", "c',", "=F", "z", "c'22"])
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(Refused, match="is no note"):
        parse(f"C {note} |]")
    assert check(f"C {note} |]", "jig") == [f"notation: '{note}' is no note"]


@pytest.mark.parametrize("text", ["", "C D", "C | D", "C |] D", "C |", "| C"])
def test_a_tune_without_an_end_is_refused(text: str) -> None:
    assert check(text, "reel") == ["notation: a tune ends in |]"]
    assert style_of(text) is None


def aaba(a: str, b: str) -> str:
    return f"{a} | {a} | {b} | {a} |]"


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (JIG, []),
        (f"{JIG[:-3]} | |]", ["notation: a bar without notes"]),
        (aaba(A, "e2 ^f e2 | d2 ^f e3"), ["metre: bar 5 has 5 eighths, not 6"]),
        (aaba(A, "e2 ^f e2 ^f | d ^f2 e3"), ["rhythm: bar 6 goes 1 2 3"]),
        (aaba(A, "e2 ^f e2 f | d2 ^f e3"), ["scale: 8 half tones above the last note"]),
        (aaba(A.replace("^G", "B"), B.replace("d", "B")), ["telling: none of 5, 11 half tones"]),
        (aaba(A, "e2 ^f e2 ^f | D2 ^f e3"), ["leap: of more than an octave"]),
        (f"{A} | {B} | {A} |]", ["form: 6 bars in place of 8"]),
        (f"{A} | {A.replace('E', 'D')} | {B} | {A} |]", ["form: phrase 2 of AABA is not as the A"]),
        (aaba(A, A), ["form: the phrases of AABA do not differ"]),
        (aaba("^F E E A3 | ^F2 ^G A2 A", B), ["cadence: the last bar does not come to rest"]),
        (
            aaba("^F E E A3 | ^F ^G A E3", "e2 ^f e2 ^f | B2 ^f e3"),
            ["cadence: the last note is not one of D G A"],
        ),
        (aaba(A, "e2 e2 e2 | d2 f e3"), ["rhythm: bar 5", "scale: 8 half"]),
    ],
)
def test_each_rule_can_be_broken(text: str, broken: list[str]) -> None:
    found = check(text, "jig")
    assert [told[: len(start)] for told, start in zip(found, broken, strict=True)] == broken
    assert {told.split(":")[0] for told in found} <= {*tunes.RULES}


def test_other_styles() -> None:
    assert (style_of(JIG), style_of(BLUES)) == ("jig", "blues")
    assert [each.split(":")[0] for each in check(BLUES, "pentatonic")] == [
        *["rhythm"] * 6,
        *("scale", "telling", "form", "cadence"),
    ]


def test_unknown_styles_and_impossible_numbers_are_refused() -> None:
    for ask in (lambda: list(draw(1, style="jigg")), lambda: check(JIG, "jigg")):
        with pytest.raises(UnknownName, match="did you mean jig"):
            ask()
