"""Options of mechanisms in recipes: what cannot work is told before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heed.attention.catalogue import CATALOGUE
from heed.attention.names import options_of
from heed.errors import HeedError
from heed.running.recipe import check, resolve
from tests.running import labelling, writing

Raw = dict[str, Any]
BERT = {"kind": "bert", "layers": 1, "width": 8, "heads": 2}


def decoder(name: str, options: Raw) -> Raw:
    raw = writing.recipe()
    raw["model"] |= {"attention": name, "options": options}
    return raw


def transformer(name: str, options: Raw, where: str = "encoder_attention") -> Raw:
    raw = writing.recipe()
    raw["model"] = {"kind": "transformer", "width": 8, "heads": 2, where: name, "options": options}
    return raw


def writer(name: str, options: Raw) -> Raw:
    return transformer(name, options, "decoder_attention")


def pool(name: str, options: Raw) -> Raw:
    raw = labelling.recipe(Path("nowhere"))
    name = name if name == "static" else f"static/{name}"
    raw["model"] |= {"pool": name, "options": options}
    return raw


def bert(name: str, options: Raw, **more: Any) -> Raw:
    raw = labelling.recipe(Path("nowhere"))
    encoder = {**BERT, "attention": name, "options": options, **more}
    raw["model"] = {"encoder": encoder, "pool": "first"}
    return raw


def xlnet(options: Raw) -> Raw:
    encoder = {**BERT, "kind": "xlnet", "options": options}
    data = {"folder": "nowhere", "train": "text.txt", "context": 16}
    steps = {"steps": 1, "batch_tokens": 64}
    return {"task": "language-model", "data": data, "model": encoder, "training": steps}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (pool("location", {"longest": 1}), "longest=1 leaves no word"),
        (pool("location", {"longest": -3}), "longest=-3 leaves no word"),
        (pool("location", {"longest": 2.5}), "a whole number, 1 or more; got 2.5"),
        (bert("scaled-dot", {}, longest=2), "longest=2 leaves no word .* to 3 or more"),
        (pool("additive", {"width": 0}), "width is a whole number, 1 or more; got 0"),
        (pool("pointer", {}), "'static/pointer' returns no context"),
        (pool("static", {"learned": False}), "nothing asks a pool"),
        (pool("relative", {"segments": True}), "a pool looks at a whole one"),
        (bert("relative", {"segments": True}), "segments are for XLNet"),
        (transformer("relative", {"segments": True}), "segments are for XLNet"),
        (xlnet({"segments": True}), "one text has no segments to compare"),
        (bert("location", {"longest": 99}), "options.longest=99 .* set longest=99"),
        (bert("scaled-dot", {"window": 3}), "no option of these mechanisms is called 'window'"),
        (decoder("bilinear", {}), "'bilinear'; did you mean general?"),
        (transformer("multi-head", {}), r"did you mean heed\.MultiHeadAttention\(width, heads"),
        (decoder("location", {"longest": 5}), "the model has 5 positions.* set data.longest=5"),
        (decoder("location", {"longest": "x"}), "a whole number, 1 or more; got 'x'"),
        (transformer("location", {"longest": 99}), "has 99 positions, but pairs have up to .*=100"),
        (writer("location", {"longest": 99}), "has 99 positions"),
    ],
)
def test_what_cannot_work_is_told_at_once(raw: Raw, says: str) -> None:
    with pytest.raises(HeedError, match=says) as refused:
        check(resolve(raw))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        pool("location", {"longest": 2}),
        pool("additive", {"width": 3}),
        bert("location", {"longest": 512}),
        bert("scaled-dot", {}, longest=3),
        decoder("location", {"longest": 100}),
        decoder("location", {}),
        xlnet({"segments": False}),
        xlnet({}),
        writer("location", {}),
    ],
)
def test_what_just_fits_is_built(raw: Raw) -> None:
    check(resolve(raw))


ODD = [0, -1, 1, 2.5, 65536, 10**9, True, False, "x", None, [1], {}, float("nan"), float("inf")]


@pytest.mark.parametrize("name", [name for name in CATALOGUE if options_of(name)])
@pytest.mark.parametrize("of", [decoder, transformer, writer, pool, bert])
def test_an_odd_option_is_taken_or_refused_in_a_line(
    of: Callable[[str, Raw], Raw], name: str
) -> None:
    for option in options_of(name):
        for odd in ODD:
            assert "\n" not in told(of(name, {option: odd}))


def told(raw: Raw) -> str:
    """What a recipe is refused with; "" where it is taken. Any other error goes through."""
    try:
        check(resolve(raw))
    except HeedError as error:
        return str(error)
    return ""
