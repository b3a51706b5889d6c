"""Walking: the attention of one query in a run's model, step by step, with the text's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from heed.errors import Refused
from heed.running.passes import WHOLE
from heed.running.showing import Seen, opened
from heed.viewing.walk import Key, Stage, Told, vector
from heed.watching.walk import Walk

SHOWN = 40  # words in a message at most


def walk(
    path: Path,
    texts: Sequence[str] = (),
    *,
    at: str | None = None,
    layer: int | None = None,
    head: int = 0,
    device: str = "auto",
) -> list[Told]:
    """The walk of one word of each text, or of the first example that the run keeps.

    at     the word of the query, or its position, counted from 0
    layer  which of the attentions that support walks, counted from 0
    """
    found = opened(path, device).passes(texts)
    return [told(seen, at, layer, head) for seen in (found if texts else found[:1])]


def told(heard: Seen, at: str | None = None, layer: int | None = None, head: int = 0) -> Told:
    """A walk with the words of its text; refused where there is nothing to walk through."""
    if not heard.calls:
        blank = not heard.look.source.strip()
        raise Refused(
            "there is nothing to walk through: the text is blank" if blank else heard.missing
        )
    paths = list(heard.calls)
    n = heard.chosen % len(paths) if layer is None else layer
    if not 0 <= n < len(paths):
        raise Refused(f"--layer {n}: there are {len(paths)}, from 0: {', '.join(paths[:SHOWN])}")
    words = heard.words(paths[n])
    named = paths[n]
    place = _place(words, at, heard.first, named)
    walked = heard.walk(paths[n], place, head)
    heads = heard.calls[paths[n]][0].query.shape[1]
    told_head = f" · head {head}" if heads > 1 else ""
    return Told(
        f"{words[place]} · position {place} · {named}{told_head}",
        [_score(walked), _align(walked), _read(walked)],
        *_numbers(walked, heard.asked(paths[n])),
        [] if walked.context is None else _floats(walked.context),
        _check(walked),
        walked.agrees,
        *_choice(paths, heads),
    )


def _choice(paths: Sequence[str], heads: int) -> tuple[str, str]:
    """The attentions and heads that support walks, and the options that choose; "" if one does."""
    counts = ((len(paths), "attentions", "--layer"), (heads, "heads", "--head"))
    found = [(f"{n} {name}", f"{option} 0 to {n - 1}") for n, name, option in counts if n > 1]
    if not found:
        return "", ""
    names, options = zip(*found, strict=True)
    return f"one of {' and '.join(names)}", ", ".join(options)


def _place(words: Sequence[str], at: str | None, first: int, named: str) -> int:
    """The first position of a word, or the position that a number names."""
    if at is None:
        return first % len(words)
    for alike in (at.__eq__, lambda word: _bare(word) == _bare(at)):
        for place, word in enumerate(words):
            if alike(word):
                return place
    if at.removeprefix("-").isdecimal() and len(at) < 10 and -len(words) <= int(at) < len(words):
        return int(at) % len(words)
    if list(words) == [WHOLE]:
        raise Refused(f"--at '{at}': {named} has one query, for the whole text; leave --at out")
    there = ", ".join(words[:SHOWN]) + (", …" if len(words) > SHOWN else "")
    raise Refused(f"--at '{at}' is neither a word of the queries nor a position: {there}")


def _bare(word: str) -> str:
    """A word in lower case, without subword marks, or the brackets of a symbol such as [MASK] or
    <mask>."""
    return re.sub(r"^[\[<](.+)[\]>]$", r"\1", word.strip("▁Ġ@# ").casefold())


def _floats(x: Tensor) -> list[float]:
    return [float(each) for each in x.tolist()]


def _formula(walked: Walk, slot: str) -> str:
    name = walked.parts.get(slot)
    if name is None:
        return "0: keys are not compared"
    return f"{name}: {walked.formulas.get(slot, 'a custom part')}"


def _facts(walked: Walk, *names: str) -> list[str]:
    found = [f"{name} {walked.facts[name]:.3g}" for name in names if name in walked.facts]
    return [" · ".join(found)] if found else []


def _score(walked: Walk) -> Stage:
    lines = [f"q  {len(walked.q)} numbers: {vector(_floats(walked.q), 6)}"]
    if walked.k.shape[1]:
        best = int(walked.weight.argmax())
        S, D = walked.k.shape
        lines.append(f"k  {S} × {D}, of the largest weight: {vector(_floats(walked.k[best]))}")
    if "past" in walked.parts:
        lines.append(f"past  {_formula(walked, 'past')}")
    return Stage("score", f"e = {_formula(walked, 'score')}", lines)


def _align(walked: Walk) -> Stage:
    lines = []
    if walked.narrows:
        lines = [f"reach  {_formula(walked, 'reach')}"]
        lines += _facts(walked, "gate", "centre", "window", "σ")
        lines += [line for lane in walked.lanes for line in _facts(lane, "centre", "window", "σ")]
    others = [name for name in walked.facts if name not in ("gate", "centre", "window", "σ")]
    return Stage("align", f"a = {_formula(walked, 'align')}", lines + _facts(walked, *others))


def _read(walked: Walk) -> Stage:
    S, R = walked.v.shape
    return Stage("read", f"c = {_formula(walked, 'read')}", [f"v  {S} × {R}"])


def _numbers(walked: Walk, words: Sequence[str]) -> tuple[list[str], list[Key]]:
    """The names of the columns, and the numbers of every key."""
    tables: dict[str, Tensor | None] = {"e": walked.energy}
    if walked.lanes:
        tables = {f"e, {lane.parts['reach']}": lane.energy for lane in walked.lanes}
        tables |= {f"a, {lane.parts['reach']}": lane.weight for lane in walked.lanes}
    else:
        tables |= {"past term": walked.past, "bias term": walked.bias, **walked.before}
        if walked.gain is not None:
            tables |= {walked.parts["align"]: walked.normal, "gain": walked.gain}
    tables["a"] = walked.weight
    columns = {name: _floats(x) for name, x in tables.items() if x is not None}
    keys = [
        Key(
            _named(span, words),
            [numbers[n] for numbers in columns.values()],
            _floats(walked.weighted[n]),
            walked.hidden[n],
        )
        for n, span in enumerate(walked.spans)
    ]
    return list(columns), keys


def _named(span: tuple[int, int], words: Sequence[str]) -> str:
    first, stop = span
    if stop <= first:
        return "(a learned key)"
    ends = [words[s] if s < len(words) else f"position {s}" for s in (first, stop - 1)]
    return ends[0] if stop == first + 1 else f"{ends[0]} … {ends[1]}"


def _check(walked: Walk) -> str:
    if walked.difference is None:
        return "no context: the weights are the output"
    if walked.agrees:
        close = f" to within {walked.difference:.0e}" if walked.difference else ", exactly"
        return f"= the model's context{close}"
    return f"NOT the model's context: they differ by up to {walked.difference:.1e}"
