"""The files of a vocabulary, none of which is trusted: sizes and numbers are checked before use."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, Tokenizer, models, normalizers

from heed.data import sentencepiece
from heed.data.panics import check_merges, hushed, tried
from heed.errors import Refused

T = TypeVar("T")

PIECES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
"""The files that have pieces."""
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

FEW = 20_000
"""The most commas and brackets of rules, beside those of their pieces."""
GROWTH = 100
"""The most times by which the steps of a tokenizer.json may lengthen a text: before it is split,
when special pieces are added, or in decoding."""
LENGTHENS = "its steps could make a text many times longer"
LONGEST = 1000
"""The most letters of a piece: it is copied for every place in a text where it occurs."""


class Given(NamedTuple):
    """The files of a folder, and how many symbols the model has that their vocabulary is for."""

    files: Mapping[str, bytes]
    symbols: int
    where: str

    def path(self, name: str) -> str:
        """The path of a file, for messages."""
        return f"{self.where}/{name}"

    def table(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; an empty one if there is no such file.

        The values of JSON take the memory, so they are counted before it is parsed.
        """
        data = self.files.get(name, b"{}")
        values = sum(map(data.count, (b",", b"[", b"{")))
        if values > FEW + 8 * self.symbols:
            raise Refused(f"{self.path(name)} has far more entries than the model has symbols")
        try:
            table = json.loads(data.decode())
            if b"\\u" in data:  # a lone surrogate is not a letter, and no piece can have it
                json.dumps(table, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise Refused(f"{self.path(name)} is not valid JSON") from None
        if not isinstance(table, dict):
            raise Refused(f"{self.path(name)} is not a JSON object")
        return table

    def lines(self, name: str) -> list[str]:
        """The lines of a text, which end only at \\n."""
        try:
            text = self.files[name].decode()
        except KeyError:
            raise Refused(f"{self.where} has no {name}, which the vocabulary needs") from None
        except UnicodeDecodeError:
            raise Refused(f"{self.path(name)} is not UTF-8 text") from None
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def made(given: Given, name: str) -> Tokenizer:
    """The tokeniser in a file that has pieces."""
    path = given.path(name)
    if name == "tokenizer.json":
        return whole(given)
    if name == "spiece.model":
        return _unigram(given)
    if name == "vocab.txt":  # a piece has the number of its line
        pieces = {line.rstrip(): i for i, line in enumerate(given.lines(name))}
        _check_numbers(pieces, given.symbols, path)
        return _built(lambda: Tokenizer(models.WordPiece(pieces)), path)
    pieces = given.table(name)
    _check_numbers(pieces, given.symbols, path)
    merges = _merges(given, pieces)
    return _built(lambda: Tokenizer(models.BPE(pieces, merges)), path)


def whole(given: Given) -> Tokenizer:
    """The tokeniser that a tokenizer.json describes."""
    name = given.path("tokenizer.json")
    rules = given.table("tokenizer.json")
    try:
        pieces = rules["model"]["vocab"]
        if isinstance(pieces, list):
            pieces = {piece: i for i, (piece, _) in enumerate(pieces)}
        added = {token["content"]: token["id"] for token in rules.get("added_tokens") or []}
        grown = max(
            _growth(rules.get("normalizer")) * _growth(rules.get("pre_tokenizer")),
            _growth(rules.get("post_processor")),
            _growth(rules.get("decoder")),
        )
        check_merges(rules["model"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise Refused(f"{name}: not a tokeniser, or a broken one") from None
    _check_numbers(pieces, given.symbols, name)
    _check_numbers({**pieces, **added}, len(pieces) + len(added), name)
    if grown > GROWTH:
        raise Refused(f"{name}: {LENGTHENS}")
    text = given.files["tokenizer.json"].decode()
    if max(added.values(), default=0) >= given.symbols:  # pieces beyond the model's symbols
        rules["added_tokens"] = [t for t in rules["added_tokens"] if t["id"] < given.symbols]
        text = json.dumps(rules)
    return _built(lambda: Tokenizer.from_str(text), name)


def _growth(step: Any) -> int:
    """The times by which a step of a tokenizer.json, or a sequence of them, may lengthen a text.

    A regular expression may match between any two characters, and insert text there. In a long
    sequence each step may add a letter to every piece.
    """
    if step is None:
        return 1
    kind = step["type"]
    if kind == "Sequence":
        several = [each for name in SEQUENCES for each in step.get(name, ())]
        return max(prod(map(_growth, several)), len(several))
    if kind == "Replace":
        content, replaced = len(step["content"]), len(step["pattern"].get("String", ""))
        return max(1, -(-content // replaced)) if replaced else 1 + content
    if kind == "Prepend":
        return 1 + len(step["prepend"])
    if kind == "Precompiled":
        return sentencepiece.growth(b64decode(step["precompiled_charsmap"]))
    if kind == "TemplateProcessing":
        ids = {name: _framing(piece) for name, piece in step["special_tokens"].items()}
        return max(_framed(step["single"], ids), _framed(step["pair"], ids))
    # A letter beyond ASCII is two bytes or more; two decoders may replace an empty text by a space.
    return 2 if kind in ("ByteLevel", "BPEDecoder", "CTC") else 1


SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
"""The keys of the steps in a sequence, by the kind of step."""


def _framed(places: list[dict[str, Any]], ids: Mapping[str, int]) -> int:
    """The number of texts or symbols that a template puts in a row."""
    return sum(
        ids[place["SpecialToken"]["id"]] if "SpecialToken" in place else 1 for place in places
    )


def _framing(piece: dict[str, Any]) -> int:
    """The numbers that a piece of a template becomes, and as many more as its text is worth."""
    return len(piece["ids"]) + sum(map(len, piece["tokens"])) // LONGEST


def _merges(given: Given, pieces: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt; the library would abort the program at an unknown piece."""
    lines = [line for line in given.lines("merges.txt") if line and line[:8] != "#version"]
    if any(line.count(" ") != 1 for line in lines):
        raise Refused(f"{given.path('merges.txt')} has a line that is not two pieces")
    merges = [(a, b) for a, _, b in (line.partition(" ") for line in lines)]
    if any(not {*merge, "".join(merge)} <= pieces.keys() for merge in merges):
        raise Refused(f"{given.path('merges.txt')} merges pieces that vocab.json does not have")
    return merges


def _unigram(given: Given) -> Tokenizer:
    """A sentencepiece model, whose control and user-defined pieces are never split. Kudo 2018."""
    name = given.path("spiece.model")
    found = sentencepiece.parse(given.files["spiece.model"], name)
    _check_numbers({piece.text: i for i, piece in enumerate(found.pieces)}, given.symbols, name)
    if sentencepiece.growth(found.charsmap) > GROWTH:
        raise Refused(f"{name}: {LENGTHENS}")
    scores = [(piece.text, piece.score) for piece in found.pieces]
    tokenizer = _built(lambda: Tokenizer(models.Unigram(scores, found.unknown, False)), name)
    control, own = sentencepiece.CONTROL, sentencepiece.USER_DEFINED
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == control)
            for text, _, kind in found.pieces
            if kind in (control, own)
        ]
    )
    if found.charsmap:
        tokenizer.normalizer = _built(lambda: normalizers.Precompiled(found.charsmap), name)
    return tokenizer


def _check_numbers(pieces: Any, below: int, name: str) -> None:
    """Refuse pieces that are too long, or that have not each a number of the model's symbols."""
    if not isinstance(pieces, dict) or not pieces:
        raise Refused(f"{name}: not a vocabulary, or an empty one")
    if len(pieces) > below:
        raise Refused(f"{name} has {len(pieces):,} pieces, more than the model's {below:,} symbols")
    longest = max(len(str(piece)) for piece in pieces)
    if longest > LONGEST:
        raise Refused(f"{name} has a piece of {longest:,} letters; {LONGEST:,} are allowed")
    numbers = pieces.values()
    if not all(type(i) is int and 0 <= i < below for i in numbers) or len(set(numbers)) != len(
        pieces
    ):
        raise Refused(f"{name}: the numbers of the pieces are not different ones below {below:,}")


def _built(make: Callable[[], T], name: str) -> T:
    """The library's result for a file; a failure becomes an error in one line."""
    with hushed():
        return tried(make, f"{name}: not a tokeniser, or a broken one")
