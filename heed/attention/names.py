"""Names of mechanisms: part names joined by `/`, in any order, at most one per slot.

"additive"   "local-p/general"   "sample/additive"   "coverage/additive/local-m"
"""

from collections.abc import Callable, Iterable
from functools import reduce
from inspect import signature
from operator import and_
from typing import Any

from torch import nn

from heed.attention.catalogue import CATALOGUE, DEFAULTS
from heed.attention.mechanism import Mechanism
from heed.attention.mixed import Mixed, gate_of
from heed.attention.part import Slot
from heed.attention.synonyms import nearest
from heed.errors import Refused, UnknownName
from heed.records import Claims
from heed.shapes import whole

SIZES = ("query", "key", "value", "heads", "groups", "hint_width")
"""Arguments that a builder knows and hands to every part that takes them; the rest are options."""


def parse(name: str) -> dict[Slot, str]:
    """The parts a name mentions, by slot; unknown names and two parts for one slot are refused."""
    if not isinstance(name, str):
        raise Refused(
            f"a mechanism is a name or a heed.Mechanism, not {type(name).__name__}; "
            "parts are put together by heed.Mechanism(score=..., ...)"
        )
    parts: dict[Slot, str] = {}
    for word in name.split("/"):
        if not word:
            raise Refused(f"there is an empty part in '{name}'; a name is like local-p/general")
        if word not in CATALOGUE:
            raise UnknownName("mechanism", word, CATALOGUE, nearest(word))
        slot = CATALOGUE[word].slot
        if slot in parts:
            raise Refused(f"'{name}' names two parts for the slot {slot}: {parts[slot]} and {word}")
        parts[slot] = word
    blind = [word for word in parts.values() if not CATALOGUE[word].claims.uses_energies]
    if blind and "score" in parts:
        raise Refused(f"{blind[0]} does not compare keys, so '{parts['score']}' would not be used")
    return parts


def claims_of(name: str) -> Claims:
    """The abilities and needs of a mechanism."""
    return reduce(and_, (CATALOGUE[word].claims for word in parse(name).values()))


def build(
    name: str,
    *,
    query: int,
    key: int,
    value: int | None = None,
    heads: int = 1,
    groups: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Mechanism:
    """A mechanism from its name, the widths of what it compares, and the options of its parts."""
    parts = parse(name)
    sizes = {
        "query": query,
        "key": key,
        "value": key if value is None else value,
        "heads": heads,
        "groups": heads if groups is None else groups,
    }
    for size in sizes.values():
        whole("a width or a number of heads", size, 1)
    check_options(name, options)
    lanes = CATALOGUE[parts["reach"]].lanes if "reach" in parts else ()
    if not lanes:
        return _assemble(parts, sizes, options, dropout)
    gate = gate_of(options.pop("gate", "query"), query=query, heads=heads)
    first, second = (
        _assemble({**parts, "reach": reach}, sizes, options, dropout) for reach in lanes
    )
    return Mixed(first, second, gate)


def options_of(name: str) -> dict[str, Any]:
    """The options that the parts of a mechanism take, with their defaults."""
    found: dict[str, Any] = {}
    for entry in map(CATALOGUE.__getitem__, parse(name).values()):
        found |= {"gate": "query"} if entry.lanes else {}
        for part in entry.parts:
            takes = signature(part).parameters.values()
            found |= {x.name: x.default for x in takes if x.kind == x.KEYWORD_ONLY}
    return {option: default for option, default in found.items() if option not in SIZES}


def options_for_sentences(name: str) -> dict[str, Any]:
    """The options that suit a sentence, where the defaults are for long texts."""
    parts = (part for word in parse(name).values() for part in CATALOGUE[word].parts)
    return {option: x for part in parts for option, x in part.for_sentences.items()}


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse an option that no part of a mechanism takes."""
    known = options_of(name)
    for option in options:
        if option not in known:
            raise UnknownName(f"option of '{name}'", option, known or ["(it takes none)"])


def _assemble(
    parts: dict[Slot, str], sizes: dict[str, int], options: dict[str, Any], dropout: float
) -> Mechanism:
    """The parts named and the defaults; the score is made first, since a past needs its hint."""
    compares = all(CATALOGUE[word].claims.uses_energies for word in parts.values())
    score = _make("score", parts, sizes, options) if compares else None
    sizes = {**sizes, "hint_width": 1 if score is None else score.hint_width}
    others = {slot: _make(slot, parts, sizes, options) for slot in DEFAULTS if slot != "score"}
    return Mechanism(score=score, **others, dropout=dropout)


def _make(
    slot: Slot, parts: dict[Slot, str], sizes: dict[str, int], options: dict[str, Any]
) -> Any:
    word = parts.get(slot, DEFAULTS[slot])
    if word is None:
        return None
    part: Callable[..., nn.Module] = CATALOGUE[word].part
    takes = signature(part).parameters
    return part(**{name: x for name, x in {**sizes, **options}.items() if name in takes})
