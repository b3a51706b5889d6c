"""A built-in corpus of tunes by style, in letters like those of ABC, whose rules can be checked.

    jig     ^F E E A3 | ^F ^G A A3 | ^F E E A3 | ^F ^G A A3 | e2 ^f e2 ^f | ... |]
    blues   d2 d2 c c d2 | d2 f2 d4 | ... |]

A letter is a note: C to B, an octave higher c to b, then c' to b'; an octave lower C, to B, as in
ABC. ^ raises it by half a tone and _ lowers it, this note alone. A number is its length in eighths.
Bars end in |, the tune in |].

A style is a set of rules: the rhythms that a bar may have; the scale, and notes of the scale of
which one must occur; and the form, in phrases of two bars: AABA has its first phrase three times.
The last note is the tonic. `check` names the rules that a tune breaks. No tune obeys those of two
styles: of any two, the bars have no rhythm in common, or what must occur in one is not in the scale
of the other.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from heed.data.grammar import PATIENCE, Part, part_of
from heed.errors import Refused, UnknownName

Bar = tuple[int, ...]
"""The lengths of its notes, in eighths."""


class Style(NamedTuple):
    """The rules of a style. A pitch is a number of half tones above the tonic."""

    bars: tuple[Bar, ...]
    last: tuple[Bar, ...]  # which of them may end a tune
    scale: tuple[int, ...]
    telling: frozenset[int]  # pitches of which at least one occurs
    tonics: str
    form: str

    @property
    def metre(self) -> int:
        """The eighths of a bar."""
        return sum(self.bars[0])


class Note(NamedTuple):
    """A pitch, in half tones above C, and a length in eighths."""

    pitch: int
    length: int


class Tune(NamedTuple):
    """A style and a tune that obeys its rules."""

    style: str
    text: str


def _bars(table: str) -> tuple[Bar, ...]:
    return tuple(tuple(map(int, bar)) for bar in table.split())


MAJOR = (0, 2, 4, 5, 7, 9, 11)
JIG = _bars("111111 21111 11121 2121 1113 213")
WALTZ = _bars("222 42 2211 2112 1122 312 6")
REEL = _bars("11111111 2111111 1111211 211211 111122 1111112")
MARCH = _bars("3131 3122 2231 314 224")
BLUES = _bars("21122 11222 22112 224 1124")

STYLES = {
    "jig": Style(JIG, JIG[-2:], MAJOR, frozenset({5, 11}), "DGA", "AABA"),
    "waltz": Style(WALTZ, WALTZ[-1:], MAJOR, frozenset({5, 11}), "CDG", "ABAC"),
    "reel": Style(REEL, REEL[-2:], MAJOR, frozenset({5, 11}), "DGA", "AABA"),
    "march": Style(MARCH, MARCH[-2:], MAJOR, frozenset({5, 11}), "CDG", "AABB"),
    "blues": Style(BLUES, BLUES[-2:], (0, 3, 5, 6, 7, 10), frozenset({3, 6, 10}), "ADE", "AAB"),
    "pentatonic": Style(REEL, REEL[-2:], (0, 2, 4, 7, 9), frozenset({2, 4, 9}), "CDG", "AABA"),
}
RULES = ("notation", "metre", "rhythm", "scale", "telling", "leap", "form", "cadence")
PHRASE = 2  # bars
OCTAVE = 12
LETTERS = dict(zip("CDEFGAB", MAJOR, strict=True))
NOTE = re.compile(r"([\^_]?)([A-Ga-g])(,*|'*)([2-8]?)")
SHARP = ("C", "^C", "D", "^D", "E", "F", "^F", "G", "^G", "A", "^A", "B")
FLAT = ("C", "_D", "D", "_E", "E", "F", "_G", "G", "_A", "A", "_B", "B")


def draw(count: int, *, style: str = "", seed: int = 0, part: Part = "train") -> Iterator[Tune]:
    """Different tunes of one style, or of all of them as often. The text alone decides the part."""
    names = [style] if style else list(STYLES)
    if style and style not in STYLES:
        raise UnknownName("style", style, STYLES)
    rng, seen, misses = Random(seed), set[str](), 0
    while len(seen) < count:
        if misses == PATIENCE:
            raise Refused(f"no more than {len(seen):,} tunes were found; {count:,} were asked for")
        name = names[len(seen) % len(names)]
        text = _compose(STYLES[name], rng)
        misses += 1
        if text not in seen and part_of(text) == part and not check(text, name):
            misses = 0
            seen.add(text)
            yield Tune(name, text)


def parse(text: str) -> list[list[Note]]:
    """The notes of each bar; text in another notation is refused."""
    *bars, rest = text.split("|")
    if rest != "]" or not bars:
        raise Refused("a tune ends in |]")
    return [[_note(word) for word in bar.split()] for bar in bars]


def _note(word: str) -> Note:
    found = NOTE.fullmatch(word)
    if found is None:
        raise Refused(f"'{word[:20]}' is no note")
    accidental, letter, octave, length = found.groups()
    pitch = LETTERS[letter.upper()] + OCTAVE * letter.islower()
    pitch += OCTAVE * (octave.count("'") - octave.count(","))
    return Note(pitch + (accidental == "^") - (accidental == "_"), int(length or 1))


def check(text: str, style: str) -> list[str]:
    """The rules of a style that a tune breaks, each as "rule: where"; none if it obeys."""
    if style not in STYLES:
        raise UnknownName("style", style, STYLES)
    try:
        bars = parse(text)
    except Refused as error:
        return [f"notation: {error}"]
    if not all(bars):
        return ["notation: a bar without notes"]
    return [f"{rule}: {where}" for rule, where in _broken(bars, STYLES[style])]


def style_of(text: str) -> str | None:
    """The style whose rules a tune obeys, if there is one."""
    return next((style for style in STYLES if not check(text, style)), None)


def _broken(bars: list[list[Note]], style: Style) -> Iterator[tuple[str, str]]:
    rhythms = [tuple(note.length for note in bar) for bar in bars]
    for number, rhythm in enumerate(rhythms, 1):
        if sum(rhythm) != style.metre:
            yield "metre", f"bar {number} has {sum(rhythm)} eighths, not {style.metre}"
        elif rhythm not in style.bars:
            yield "rhythm", f"bar {number} goes {' '.join(map(str, rhythm))}"
    pitches = [note.pitch for bar in bars for note in bar]
    tonic = pitches[-1]
    heard = {(pitch - tonic) % OCTAVE for pitch in pitches}
    if foreign := heard.difference(style.scale):
        yield "scale", f"{_listed(foreign)} half tones above the last note"
    if not heard & style.telling:
        yield "telling", f"none of {_listed(style.telling)} half tones above the last note"
    if any(abs(a - b) > OCTAVE for a, b in pairwise(pitches)):
        yield "leap", "of more than an octave"
    if told := _form(bars, style.form):
        yield "form", told
    if tonic % OCTAVE not in [LETTERS[letter] for letter in style.tonics]:
        yield "cadence", f"the last note is not one of {' '.join(style.tonics)}"
    elif rhythms[-1] not in style.last:
        yield "cadence", "the last bar does not come to rest"


def _listed(pitches: frozenset[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(pitches)))


def _form(bars: list[list[Note]], form: str) -> str:
    """The faults of the form, if any."""
    if len(bars) != PHRASE * len(form):
        return f"{len(bars)} bars in place of {PHRASE * len(form)}"
    phrases: dict[str, list[list[Note]]] = {}
    for i, letter in enumerate(form):
        phrase = bars[PHRASE * i : PHRASE * (i + 1)]
        if phrases.setdefault(letter, phrase) != phrase:
            return f"phrase {i + 1} of {form} is not as the {letter} before"
    if any(phrases[a] == phrases[b] for a in phrases for b in phrases if a < b):
        return f"the phrases of {form} do not differ"
    return ""


def _compose(style: Style, rng: Random) -> str:
    """A tune of a walk over the scale, which may break a rule now and then."""
    tonic = LETTERS[style.tonics[int(rng.random() * len(style.tonics))]]
    ladder = [p for p in range(tonic - 5, tonic + 17) if (p - tonic) % OCTAVE in style.scale]
    phrases = {
        letter: _phrase(style, ladder, tonic, letter == style.form[-1], rng)
        for letter in dict.fromkeys(style.form)
    }
    names = FLAT if style.scale[1] == 3 else SHARP
    bars = [bar for letter in style.form for bar in phrases[letter]]
    written = (" ".join(_written(note, names) for note in bar) for bar in bars)
    return " | ".join(written) + " |]"


def _phrase(
    style: Style, ladder: list[int], tonic: int, is_last: bool, rng: Random
) -> list[list[Note]]:
    """Bars whose notes go up and down the ladder, mostly by steps; the last ends on the tonic."""

    def one_of(things: tuple[Bar, ...]) -> Bar:
        return things[int(rng.random() * len(things))]

    rhythms = [one_of(style.bars) for _ in range(PHRASE - 1)]
    rhythms.append(one_of(style.last if is_last else style.bars))
    at = int(rng.random() * len(ladder))
    places = []
    for _ in range(sum(map(len, rhythms))):
        places.append(at)
        at += (-3, -2, -1, -1, -1, 0, 1, 1, 1, 2, 3)[int(rng.random() * 11)]
        at = abs(at) if at < len(ladder) else 2 * (len(ladder) - 1) - at
    if is_last:
        homes = [i for i, pitch in enumerate(ladder) if (pitch - tonic) % OCTAVE == 0]
        places[-1] = min(homes, key=lambda home: abs(home - places[-1]))
    pitches = iter([ladder[place] for place in places])
    return [[Note(next(pitches), length) for length in rhythm] for rhythm in rhythms]


def _written(note: Note, names: tuple[str, ...]) -> str:
    octave, pitch = divmod(note.pitch, OCTAVE)
    name = names[pitch].lower() if octave > 0 else names[pitch]
    marks = "'" * (octave - 1) if octave > 0 else "," * -octave
    return f"{name}{marks}{note.length if note.length > 1 else ''}"


def chained(styles: Sequence[str], seed: int = 0) -> list[str]:
    """A tune for each style, in which every symbol follows from the two before it: a floor."""
    follow: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for style, text in draw(200 * len(STYLES), seed=seed):
        symbols = ["", "", *text.split()]
        for place in range(2, len(symbols)):
            follow[style, *symbols[place - 2 : place]].append(symbols[place])
    rng, found = Random(seed), []
    for style in styles:
        symbols = ["", ""]
        while symbols[-1] != "|]" and len(symbols) < 500:
            some = follow[style, *symbols[-2:]]
            symbols.append(some[int(rng.random() * len(some))])
        found.append(" ".join(symbols[2:]))
    return found
