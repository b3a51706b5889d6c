"""The files of a vocabulary, none of which is trusted: sizes and numbers are checked before use."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heed.data import sentencepiece
from heed.data.panics import check_merges, hushed, tried
from heed.errors import Refused

T = TypeVar("T")

FEW = 20_000
"""The most commas and brackets of rules, beside those of their pieces."""
GROWTH = 100
"""How many times as long the steps of a tokenizer.json may make a text: before it is split, when
special pieces are added, or in decoding."""
LENGTHENS = "its steps could make a text many times longer"
LONGEST = 1000
"""The most letters of a piece: it is copied for every place in a text where it occurs."""


class Given(NamedTuple):
    """The files of a folder, and the model that their vocabulary is for.

    told   the settings
    whole  what a tokenizer.json describes; None: there is none
    rules  its content, if only its pieces are used
    """

    files: Mapping[str, bytes]
    symbols: int
    where: str
    told: Mapping[str, Any] = {}
    whole: Tokenizer | None = None
    rules: Mapping[str, Any] = {}

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

    def flag(self, name: str, otherwise: bool | None = False) -> Any:
        """A setting that is yes or no; null is the usual one."""
        value = self.told.get(name)
        if not isinstance(value, bool | None):
            raise Refused(f"{self.path('tokenizer_config.json')}: {name} is not true or false")
        return otherwise if value is None else value


class Made(NamedTuple):
    """A tokeniser without its added pieces.

    extra  further pieces that its file has; None: it is not a file that has any
    """

    tokenizer: Tokenizer
    extra: list[AddedToken] | None = None


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
    """How many times as long a step of a tokenizer.json, or a sequence of them, may make a text.

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
    """How many texts or numbers a template puts in a row."""
    return sum(
        ids[place["SpecialToken"]["id"]] if "SpecialToken" in place else 1 for place in places
    )


def _framing(piece: dict[str, Any]) -> int:
    """How many numbers a piece of a template becomes, and as many more as its text is worth."""
    return len(piece["ids"]) + sum(map(len, piece["tokens"])) // LONGEST


def as_it_is(given: Given, roles: Mapping[str, str]) -> Made:
    """The tokeniser of a tokenizer.json, unchanged."""
    assert given.whole is not None
    return Made(given.whole)


def wordpiece(given: Given, roles: Mapping[str, str]) -> Made:
    """The tokeniser of a vocab.txt, where a piece has the number of its line. Devlin 2019."""
    if given.rules:
        name, pieces = given.path("tokenizer.json"), given.rules["model"]["vocab"]
    else:
        name = given.path("vocab.txt")
        pieces = {line.rstrip(SPACES): i for i, line in enumerate(given.lines("vocab.txt"))}
    _check_numbers(pieces, given.symbols, name)
    unknown = roles.get("unk", "")
    tokenizer = _built(lambda: Tokenizer(models.WordPiece(pieces, unk_token=unknown)), name)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=given.flag("tokenize_chinese_chars", True),
        strip_accents=given.flag("strip_accents", None),
        lowercase=given.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return Made(tokenizer)


SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What the library takes for space at the end of a line; Python would take four more."""


def byte_level(given: Given, roles: Mapping[str, str]) -> Made:
    """Byte-pair encoding by vocab.json and merges.txt, so that nothing is unknown. Radford 2019."""
    usual = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    tokenizer = _pairs(given, usual)
    space = given.flag("add_prefix_space")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    return Made(tokenizer)


def herbert(given: Given, roles: Mapping[str, str]) -> Made:
    """Byte-pair encoding of words whose last letters are marked. HerBERT, Mroczkowski 2021."""
    tokenizer = _pairs(given, {"unk_token": roles.get("unk"), "end_of_word_suffix": "</w>"})
    if [tokenizer.token_to_id(roles.get(role, "")) for role in ("cls", "sep")] != [0, 2]:
        raise Refused(f"{given.where}: the numbers of its pieces around a text are not 0 and 2")
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return Made(tokenizer)


def _pairs(given: Given, rules: Mapping[str, Any]) -> Tokenizer:
    """Byte-pair encoding by merges, which are in their order of application."""
    if given.rules:
        name, pieces = given.path("tokenizer.json"), given.rules["model"]["vocab"]
        merges = [(a, b) for a, b in given.rules["model"]["merges"]]
    else:
        name, pieces = given.path("vocab.json"), given.table("vocab.json")
        _check_numbers(pieces, given.symbols, name)
        merges = _merges(given, pieces)
    return _built(lambda: Tokenizer(models.BPE(pieces, merges, **rules)), name)


def _merges(given: Given, pieces: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt; the library would abort the program at an unknown piece."""
    lines = [line for line in given.lines("merges.txt") if line and line[:8] != "#version"]
    if any(line.count(" ") != 1 for line in lines):
        raise Refused(f"{given.path('merges.txt')} has a line that is not two pieces")
    merges = [(a, b) for a, _, b in (line.partition(" ") for line in lines)]
    if any(not {*merge, "".join(merge)} <= pieces.keys() for merge in merges):
        raise Refused(f"{given.path('merges.txt')} merges pieces that vocab.json does not have")
    return merges


def xlnet(given: Given, roles: Mapping[str, str]) -> Made:
    """A sentencepiece model, with XLNet's normalisation of texts. Yang 2019."""
    made, charsmap = _unigram(given, given.told.get("unk_id", 0))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if given.flag("do_lower_case"):
        steps.append(normalizers.Lowercase())
    made.tokenizer.normalizer = normalizers.Sequence([*steps, *charsmap])
    return made


def xlm_roberta(given: Given, roles: Mapping[str, str]) -> Made:
    """A sentencepiece model whose fourth piece is for what is unknown. Conneau 2020."""
    made, charsmap = _unigram(
        given, 3, "always" if given.flag("add_prefix_space", True) else "never"
    )
    if charsmap:
        (made.tokenizer.normalizer,) = charsmap
    return made


def _unigram(given: Given, unknown: Any, space: Any = "always") -> tuple[Made, list[Any]]:
    """A sentencepiece model, without its normaliser. Kudo 2018.

    unknown  the number of the unknown piece, which a spiece.model has itself
    space    where words get a space in front
    """
    if given.rules:
        name, found = given.path("tokenizer.json"), _sentencepieces(given, unknown)
    else:
        name = given.path("spiece.model")
        found = sentencepiece.parse(given.files["spiece.model"], name, given.symbols)
    pieces = [(piece.text, piece.score) for piece in found.pieces]
    tokenizer = _built(lambda: Tokenizer(models.Unigram(pieces, found.unknown, False)), name)
    if sentencepiece.growth(found.charsmap) > GROWTH:
        raise Refused(f"{name}: {LENGTHENS}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", space)]
    )
    tokenizer.decoder = decoders.Metaspace("▁", space)
    whole = (sentencepiece.CONTROL, sentencepiece.USER_DEFINED)  # never split
    extra = [
        AddedToken(text, normalized=False, special=kind == sentencepiece.CONTROL)
        for text, _, kind in found.pieces
        if kind in whole
    ]
    charsmap = (
        [_built(lambda: normalizers.Precompiled(found.charsmap), name)] if found.charsmap else []
    )
    return Made(tokenizer, None if given.rules else extra), charsmap


def _sentencepieces(given: Given, unknown: Any) -> sentencepiece.SentencePieces:
    """What a tokenizer.json says of a unigram model.

    The classes look for the normaliser's table among the first steps alone.
    """
    rules, normal = given.rules, sentencepiece.NORMAL
    pieces = [sentencepiece.Piece(text, score, normal) for text, score in rules["model"]["vocab"]]
    step = rules["normalizer"] or {}
    tables = (
        b64decode(each["precompiled_charsmap"])
        for each in step.get("normalizers", [step])
        if each.get("type") == "Precompiled"
    )
    return sentencepiece.SentencePieces(pieces, unknown, next(tables, b""))


def _check_numbers(pieces: Any, below: int, name: str) -> None:
    """Refuse pieces unless each has its own number, within the model's symbols."""
    if not isinstance(pieces, dict) or not pieces:
        raise Refused(f"{name}: not a vocabulary, or an empty one")
    if len(pieces) > below:
        raise Refused(f"{name} has {len(pieces):,} pieces, more than the model's {below:,} symbols")
    numbers = pieces.values()
    if not all(type(i) is int and 0 <= i < below for i in numbers) or len(set(numbers)) != len(
        pieces
    ):
        raise Refused(f"{name}: the numbers of the pieces are not different ones below {below:,}")


def _built(make: Callable[[], T], name: str) -> T:
    """The library's result for a file; a failure becomes an error in one line."""
    with hushed():
        return tried(make, f"{name}: not a tokeniser, or a broken one")
