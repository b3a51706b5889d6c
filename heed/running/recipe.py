"""Recipes: everything that a training run is told, as one YAML file.

A recipe is a ready one by name, or a file. Keys are overridden with a dotted path:

    resolve(load("multi30k-rnn"), ["training.epochs=3", "model.attention=local-p/general"])

What comes out is checked to the last key: an unknown one is refused with the nearest that exists.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml.nodes import MappingNode, ScalarNode

from heed.data.tokenise import SPECIALS
from heed.errors import HeedError, Refused, UnknownName
from heed.models.building import Model, shapes
from heed.tasks import translate
from heed.tasks.translator import Decoding
from heed.training.settings import Training

LARGEST = 1 << 20  # bytes; a recipe is a page of text


class Recipe(BaseModel):
    """One training run: task, data, model, training, decoding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Literal["translate"]
    about: str = Field("", description="What this recipe is for.")
    needs: str = Field("", description="Where its data is expected.")
    good: str = Field("", description="What a good run looks like.")
    seed: int = Field(1, ge=0, le=2**31 - 1)
    data: translate.Data
    model: Model
    training: Training
    decoding: Decoding = Decoding()


def names() -> list[str]:
    """The ready recipes."""
    folder = resources.files("heed") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if _is_recipe(file))


def _is_recipe(file: Any) -> bool:
    return bool(file.name.endswith(".yaml"))


def load(recipe: str) -> dict[str, Any]:
    """A ready recipe by its name, or a YAML file."""
    if recipe in names():
        return parse((resources.files("heed") / "recipes" / f"{recipe}.yaml").read_text("utf-8"))
    path = Path(recipe)
    if not recipe.endswith((".yaml", ".yml")) and not path.is_file():
        raise UnknownName("recipe", recipe, names())
    return parse(_text(path), recipe)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise Refused(f"{path} is larger than a recipe can be ({LARGEST >> 10} KiB)")
        return path.read_text("utf-8")
    except OSError as error:
        raise Refused(f"cannot read the recipe {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8 text") from None


class _Loader(yaml.SafeLoader):
    """Plain data only, no aliases (which can grow without bound), no key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not taken in a recipe",
                problem_mark=self.peek_event().start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key must be a word", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"'{key.value}' is said twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str, where: str = "the recipe") -> dict[str, Any]:
    """YAML to plain data."""
    try:
        found = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise Refused(f"{where}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Refused(f"{where}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise Refused(f"{where} is not a recipe: it must have keys such as task, data and model")
    return found


def overridden(raw: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The raw recipe with `key.path=value` set; values are read as YAML."""
    result = _copied(raw)
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals or not path:
            raise Refused(f"'{override}' is not key=value, such as training.epochs=3")
        *above, last = path.split(".")
        place = result
        for key in above:
            place = place.setdefault(key, {})
            if place is None or not isinstance(place, dict):
                raise Refused(f"'{path}': '{key}' holds a value, not further keys")
        place[last] = _value(value, override)
    return result


def _copied(raw: Any) -> Any:
    return {key: _copied(value) for key, value in raw.items()} if isinstance(raw, dict) else raw


def _value(text: str, override: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise Refused(f"'{override[:80]}': the value is not YAML; quote it") from None


def resolve(raw: Mapping[str, Any], overrides: Iterable[str] = (), where: str = "") -> Recipe:
    """A checked recipe; what is wrong with it is said in one line, with the file if told."""
    raw = overridden(raw, overrides)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        place = f"{where}: " if where else ""
        raise Refused(f"{place}{complaint(Recipe, error)}") from None


def complaint(model: type[BaseModel], error: ValidationError) -> str:
    """The first thing that is wrong, with its key and the cure; misspelt keys before missing."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    keys, settings = _followed(model, first["loc"])
    path = ".".join(str(key) for key in keys)
    if first["type"] == "extra_forbidden":
        known = sorted(settings.model_fields)
        near = get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
        cure = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
        return f"there is no key '{path}'; {cure}"
    given = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"[:80]
    message = first["msg"].removeprefix("Value error, ")
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
        elif found:
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
    """What a type may be: the members of a union, or itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def check(recipe: Recipe) -> None:
    """Say what cannot be built before anything is read; the vocabularies do not matter."""
    symbols = len(SPECIALS)
    try:
        shapes(
            recipe.model,
            source=symbols,
            target=symbols,
            shared=recipe.data.tokens.shared,
            longest=recipe.data.longest,
        )
    except HeedError as error:
        raise Refused(f"the recipe's model cannot be built: {error}") from None


def with_attention(raw: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The raw recipe with another mechanism between source and target; "none" is without any."""
    if name is None:
        return dict(raw)
    model = raw.get("model") or {}
    if not isinstance(model, Mapping):
        return dict(raw)  # refused as such later
    model = dict(model)
    if model.get("kind") == "transformer":
        model["cross_attention"] = name
    else:
        model["attention"] = name
        if name == "none":
            model.pop("options", None)
    return {**raw, "model": model}
