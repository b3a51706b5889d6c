"""The pieces that are added to a vocabulary, as four files of a folder describe them.

    tokenizer_config.json     the roles, further special pieces, and added ones by their numbers
    special_tokens_map.json   the same without numbers; unread if the former has numbers
    added_tokens.json         added pieces by their numbers; likewise
    tokenizer.json            added pieces by their numbers; likewise

They may disagree. What has priority, and which of the new pieces gets the next number, is decided
as `transformers` decides it, step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from heed.data.vocabulary_files import Given, Made
from heed.errors import Refused

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""In the order in which those without a number get the next ones."""

MORE = 100_000
"""The most pieces that may be added to a vocabulary."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
EXTRA, OLDER = "extra_special_tokens", "additional_special_tokens"
NAMED = "model_specific_special_tokens"
NUMBERED = "added_tokens_decoder"


def settings(given: Given) -> dict[str, Any]:
    """The settings of both files."""
    name, told = given.path("tokenizer_config.json"), given.table("tokenizer_config.json")
    if OLDER in told and not told.get(EXTRA):
        told[EXTRA] = told.pop(OLDER)
    named = {key: told.pop(key) for key in _further(told) if isinstance(told[key], str)}
    if isinstance(told.get(EXTRA), dict):
        named |= told.pop(EXTRA)
    told[NAMED] = named or _table(told.get(NAMED), name)
    if NUMBERED in told:
        return told
    older = _older(given)
    if isinstance(older.get(EXTRA), list):
        older[EXTRA] = [*_list(told.get(EXTRA), name), *older[EXTRA]]
    elif isinstance(older.get(EXTRA), dict):
        older[NAMED] = told[NAMED] | older.pop(EXTRA)
    return told | older


def _older(given: Given) -> dict[str, Any]:
    """The content of special_tokens_map.json, with every table as a piece, which is special."""
    name, older = given.path("special_tokens_map.json"), given.table("special_tokens_map.json")
    older.pop("tokenizer_class", None)
    for key, value in older.items():
        if isinstance(value, list):
            older[key] = [_special(each, name) for each in value]
        elif key != EXTRA:
            older[key] = _special(value, name)
    return older


def roles(
    given: Given, usual: Mapping[str, str], mask: Mapping[str, bool]
) -> dict[str, AddedToken]:
    """The pieces that models and commands ask for.

    usual  those of a class, where the settings are silent
    mask   the flags of a mask that is given as a plain text
    """
    values = {role: given.told.get(f"{role}_token", usual.get(role)) for role in ROLES}
    if mask and isinstance(values["mask"], str):
        values["mask"] = {"content": values["mask"], **mask}
    name = given.path("tokenizer_config.json")
    return {role: _piece(value, name) for role, value in values.items() if value}


def add(
    made: Made, given: Given, named: Sequence[AddedToken], extra: Sequence[AddedToken | str]
) -> None:
    """Add pieces to a tokeniser, or mark those that are there as indivisible.

    They are added all at once: the library takes as long for one as for all that are there. Those
    that would get a number without a row in the model are left out.

    named  the pieces of roles
    extra  further ones of a class, where neither the settings nor a file list any
    """
    tokenizer = made.tokenizer
    named = [*named, *_named(given)]
    listed = _listed(given, extra if made.extra is None else made.extra, made.extra is None)
    numbered = _numbered(given)
    count = len(named) + len(listed) + len(numbered)
    if count > MORE:
        raise Refused(f"{given.where} adds {count:,} pieces; {MORE:,} are allowed")
    inside = {i: piece for i, piece in sorted(numbered.items()) if i < given.symbols}
    there = (*tokenizer.get_added_tokens_decoder().values(), *inside.values())
    known, special = ({piece.content for piece in each} for each in (there, named))
    rest = {repr(each): each for each in (*named, *listed) if each.content not in known}
    for piece in (*inside.values(), *rest.values()):
        piece.special = piece.special or piece.content in special
    tokenizer.add_tokens([*inside.values()])
    for number, piece in inside.items():
        if tokenizer.token_to_id(piece.content) != number:
            raise Refused(
                f"{given.where}: the added piece {piece.content!r} cannot have the number {number}"
            )
    tokenizer.add_tokens([*_with_rows(rest.values(), tokenizer, given.symbols)])


def _with_rows(
    pieces: Iterable[AddedToken], tokenizer: Tokenizer, symbols: int
) -> Iterator[AddedToken]:
    """Those of some pieces that have a row in the model, or for whose new number it has one."""
    new: set[str] = set()
    for piece in pieces:
        if piece.content and tokenizer.token_to_id(piece.content) is None:
            new.add(piece.content)
        if piece.content not in new or tokenizer.get_vocab_size() + len(new) <= symbols:
            yield piece


def _further(told: Mapping[str, Any]) -> list[str]:
    """The keys of pieces with names of their own, such as image_token."""
    usual = {f"{role}_token" for role in ROLES}
    return [key for key in told if key.endswith("_token") and key not in usual]


def _named(given: Given) -> list[AddedToken]:
    """Pieces with names of their own."""
    told, name = given.told, given.path("tokenizer_config.json")
    found = {key: told[key] for key in _further(told) if _is_piece(told[key])}
    found |= _table(told[NAMED], name)
    return [_piece(value, name) for value in found.values()]


def _listed(given: Given, extra: Sequence[AddedToken | str], older: bool) -> list[AddedToken]:
    """Special pieces without names.

    extra  those if the settings list none
    older  whether the older list has priority over them
    """
    told, name = given.told, given.path("tokenizer_config.json")
    if older and EXTRA not in told:
        extra = _list(told.get(OLDER), name) or extra
    listed = _list(told[EXTRA], name) if EXTRA in told else extra
    return [_piece(value, name) for value in listed]


def _numbered(given: Given) -> dict[int, AddedToken]:
    """Pieces by their numbers: in the settings, or otherwise in two other files."""
    told = given.told
    if NUMBERED in told:
        name = given.path("tokenizer_config.json")
        newer = _table(told[NUMBERED], name)
        if not all(key.isdecimal() and len(key) < 10 for key in newer):
            raise Refused(f"{name}: a key of {NUMBERED} is not a number")
        return {int(key): _piece(_table(value, name), name) for key, value in newer.items()}
    old = given.table("added_tokens.json")
    if not all(type(number) is int and number >= 0 for number in old.values()):
        raise Refused(f"{given.path('added_tokens.json')}: a piece has no number")
    values = [*(told.get(f"{role}_token") for role in ROLES), *(told.get(EXTRA) or [])]
    # Not those of a table, whose flags are read later.
    special = {str(getattr(v, "content", v)) for v in values if isinstance(v, str | AddedToken)}
    found = {
        number: AddedToken(piece, special=piece in special, normalized=piece not in special)
        for piece, number in old.items()
    }
    return found | ({} if given.whole is None else given.whole.get_added_tokens_decoder())


def _special(value: Any, name: str) -> Any:
    """A piece of special_tokens_map.json, all of which are special."""
    return _piece({**value, "special": True}, name) if isinstance(value, dict) else value


def _is_piece(value: Any) -> bool:
    """Whether it is a piece in the settings, where a table of another kind is no error."""
    return isinstance(value, str | AddedToken) or (isinstance(value, dict) and "__type" in value)


def _piece(value: Any, name: str) -> AddedToken:
    """A piece as a file writes it: a text, or a table with flags for the spaces around it."""
    if isinstance(value, AddedToken):
        return value
    if isinstance(value, str):
        return AddedToken(value, special=True)
    table = _table(value, name)
    flags = {flag: table[flag] for flag in FLAGS if flag in table}
    content = table.get("content")
    if not isinstance(content, str) or not all(isinstance(on, bool) for on in flags.values()):
        raise Refused(f"{name}: a special or added piece is neither a text nor a table with one")
    return AddedToken(content, **flags)


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise Refused(f"{name}: {str(value)[:40]!r} should be a table")
    return value or {}


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise Refused(f"{name}: {str(value)[:40]!r} should be a list")
    return value or []
