"""The base of all settings: recipes, config.json, tasks, files; and their errors in one line."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from heed.errors import Refused, UnknownName


class Settings(BaseModel):
    """Settings that refuse unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


BARE = re.compile(r"(?<![\w.])(\w+=(?:null|FILE))")
"""A key that a message proposes to set to null or to a file, without its parent keys."""


KEYS = 20_000
"""The most keys of untrusted settings: an error about each takes a kilobyte."""


def check_keys(raw: Any, where: object) -> None:
    """Refuse settings with too many keys, before they are validated."""
    count, left = 0, [raw]
    while left:
        here = left.pop()
        count += len(here) if isinstance(here, dict) else 0
        if count > KEYS:
            raise Refused(f"{where} has more than {KEYS:,} keys, too many for settings")
        each = here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        left += (x for x in each if isinstance(x, (dict, list)))


def complaint(model: type[BaseModel], error: ValidationError) -> str:
    """The first error, with its key and a remedy; unknown keys come before missing ones."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    keys, settings = _followed(model, first["loc"])
    path = ".".join(str(key) for key in keys)
    if first["type"] == "extra_forbidden":
        known = sorted(settings.model_fields)
        near = get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
        meant = ".".join([*map(str, keys[:-1]), *near])
        cure = f"did you mean '{meant}'?" if near else f"known: {', '.join(known)}"
        return f"there is no key '{path}'; {cure}"
    if first["type"] == "union_tag_invalid":  # an unknown kind of settings
        told = first["ctx"]
        kinds = re.findall("'([^']*)'", told["expected_tags"])
        return f"{path}: {UnknownName(told['discriminator'].strip(chr(39)), told['tag'], kinds)}"
    given = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"[:80]
    message = first["msg"].removeprefix("Value error, ")
    if path:  # settings know only their own keys; a command line needs the full path
        message = BARE.sub(rf"{path}.\1", message)
    return f"{path or 'the recipe'}: {message[:1].lower()}{message[1:]}{given}"


def _followed(
    model: type[BaseModel], place: tuple[str | int, ...]
) -> tuple[list[str | int], type[BaseModel]]:
    """A path as a user writes it, without the tags that pydantic adds for the members of unions;
    and the settings that its last key was looked up in."""
    keys: list[str | int] = []
    settings, inside = model, [cast(Any, model)]  # what the next part may be looked up in
    for part in place:
        chosen = [each for each in inside if _tag(each) == part]
        found = [each for each in inside if _is_settings(each)]
        tables = [each for each in inside if get_origin(each) in (dict, list, tuple)]
        if chosen and len(found) > 1:
            inside = chosen
        elif found and not (tables and isinstance(part, int)):
            settings = found[0]
            keys.append(part)
            field = settings.model_fields.get(str(part))
            inside = [] if field is None else list(_members(field.annotation))
        elif tables:
            keys.append(part)
            inside = [each for kind in get_args(tables[0]) for each in _members(kind)]
    return keys, settings


def _is_settings(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tag(annotation: Any) -> object:
    kind = annotation.model_fields.get("kind") if _is_settings(annotation) else None
    return None if kind is None else get_args(kind.annotation)[:1][0]


def _members(annotation: Any) -> Iterable[Any]:
    """The members of a union, or the type itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation
