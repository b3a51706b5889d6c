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
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml.nodes import MappingNode

from heed.errors import Refused, UnknownName
from heed.models.building import Model
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
    except yaml.YAMLError:
        raise Refused(f"'{override}': the value is not YAML; quote it") from None


def resolve(raw: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A checked recipe; what is wrong with it is said in one line."""
    raw = overridden(raw, overrides)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise Refused(complaint(Recipe, error)) from None


def complaint(model: type[BaseModel], error: ValidationError) -> str:
    """The first thing that is wrong, with its key and the cure."""
    first = error.errors()[0]
    place = tuple(part for part in first["loc"] if isinstance(part, str | int))
    if first["type"] == "extra_forbidden":
        return _unknown_key(model, place)
    path = ".".join(str(part) for part in _keys(model, place))
    given = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"[:80]
    message = first["msg"].removeprefix("Value error, ")
    return f"{path or 'the recipe'}: {message[:1].lower()}{message[1:]}{given}"


def _unknown_key(model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    *above, key = place
    known = sorted(_models(model, tuple(above))[-1].model_fields)
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    cure = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    path = ".".join(str(part) for part in _keys(model, place))
    return f"there is no key '{path}'; {cure}"


def _keys(model: type[BaseModel], place: tuple[str | int, ...]) -> list[str | int]:
    """The path as a user writes it: without the tags that pydantic adds for unions."""
    keys: list[str | int] = []
    for part, inside in zip(place, _models(model, place), strict=False):
        if isinstance(part, int) or part in inside.model_fields or part == place[-1]:
            keys.append(part)
    return keys


def _models(model: type[BaseModel], place: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """The settings that each part of a path is looked up in, and those at its end."""
    found = [model]
    for part in place:
        inside = found[-1]
        if part in inside.model_fields:
            choices = list(_settings_in(inside.model_fields[str(part)].annotation))
            found.append(choices[0] if len(choices) == 1 else inside)
            union = choices
        else:  # a tag, which chooses among the settings of a union
            tagged = [each for each in union if _tag(each) == part] if len(found) > 1 else []
            found.append(tagged[0] if tagged else inside)
    return found


def _tag(settings: type[BaseModel]) -> object:
    kind = settings.model_fields.get("kind")
    return None if kind is None else get_args(kind.annotation)[:1][0]


def _settings_in(annotation: Any) -> Iterable[type[BaseModel]]:
    """The pydantic models that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _settings_in(each)


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def with_attention(raw: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The raw recipe with another mechanism between source and target; "none" is without any."""
    if name is None:
        return dict(raw)
    model = dict(raw.get("model") or {})
    if model.get("kind") == "transformer":
        model["cross_attention"] = name
    else:
        model["attention"] = name
        if name == "none":
            model.pop("options", None)
    return {**raw, "model": model}
