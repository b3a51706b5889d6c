"""Recipes: all settings of a training run, as one YAML file.

A recipe is a ready one by name, or a file. Keys are overridden with a dotted path:

    resolve(load("multi30k-rnn"), ["training.epochs=3", "model.attention=local-p/general"])

Every key of the result is checked: an unknown one is refused with the nearest known key.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.nodes import MappingNode, ScalarNode

from heed.data.file_format import ENDINGS, format_of
from heed.errors import Refused, UnknownName
from heed.running.preparing import whereabouts
from heed.settings import check_keys, complaint
from heed.tasks import TASKS, task_of
from heed.tasks.task import Recipe

__all__ = [
    "Recipe",
    "as_yaml",
    "check",
    "complaint",
    "differing",
    "load",
    "names",
    "overridden",
    "parse",
    "resolve",
    "with_attention",
]

TOLD = ("about", "needs", "good")
"""Keys of a recipe for human readers, without effect on the training."""
LARGEST = 1 << 20  # bytes; a recipe is a page of text
DEEP = 20  # keys above a key
BITS = 64  # of a whole number
LONG = 80  # characters of a wrong value that a message shows
SIZED = (
    *("embedding", "hidden", "layers"),
    *("encoder_layers", "decoder_layers", "width", "feed", "heads"),
)
"""The settings that a model's named size stands for."""


def names() -> list[str]:
    """The ready recipes."""
    folder = resources.files("heed") / "recipes"
    found = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load(recipe: str) -> dict[str, Any]:
    """A ready recipe by its name, or a YAML file."""
    if recipe in names():
        return parse((resources.files("heed") / "recipes" / f"{recipe}.yaml").read_text("utf-8"))
    path = Path(recipe)
    if (path / "config.json").is_file():
        onward = f"heed train {shlex.quote(recipe)} --resume"
        raise Refused(f"{recipe} is a run; to resume it: {onward}")
    if not recipe.endswith((".yaml", ".yml")) and not path.is_file():
        if len(path.parts) > 1:
            raise Refused(f"there is no run and no recipe {recipe}")
        raise UnknownName("recipe", recipe, names())
    if format_of(recipe, ("csv", "tsv", "jsonl")):
        onward = f"heed train classify {shlex.quote(f'data.train={recipe}')}"
        raise Refused(f"{recipe} is data, not a recipe; give it to one, such as {onward}")
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
    except ValueError as error:  # a path with a zero byte
        raise Refused(f"cannot read the recipe {path}: {error}") from None


class _Loader(yaml.SafeLoader):
    """Plain data only, no aliases (which can grow without bound), no key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not allowed in a recipe",
                problem_mark=self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            found = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # such as 2020-13-45, !!bool neither
            problem = f"a value cannot be read: {str(node.value)[:LONG]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        if isinstance(found, int) and found.bit_length() > BITS:
            problem = f"a number has more than {BITS} bits"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return found

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key must be a word", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"'{key.value}' occurs twice", problem_mark=key.start_mark
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
    """The raw recipe with `key.path=value` set; values are read as YAML.

    A key is set before the keys below it, in whichever order they are given.
    """
    result: dict[str, Any] = _copied(raw)
    for override in sorted(overrides, key=_depth):
        path, equals, value = override.partition("=")
        if not equals or not path:
            raise Refused(f"'{override[:LONG]}' is not key=value, such as training.epochs=3")
        *above, last = path.split(".")
        if len(above) > DEEP:
            raise Refused(f"'{override[:LONG]}': keys of a recipe are not nested so deeply")
        place = result
        for key in above:
            place[key] = inner = _keys(key, place.get(key, {}))
            if inner is None:
                raise Refused(f"'{path}': '{key}' has a value, not further keys")
            place = inner
        place[last] = _value(value, override)
    return result


def _depth(override: str) -> int:
    return override.partition("=")[0].count(".")


def _keys(key: str, value: Any) -> dict[str, Any] | None:
    """The keys of a value, or those that it is short for: a path, or a share that is held out."""
    if value is None or isinstance(value, dict):
        return value or {}
    if isinstance(value, str) and format_of(value, ENDINGS):
        return {"path": value}
    if key == "held_out" and isinstance(value, int | float) and not isinstance(value, bool):
        return {"share": value}
    return None


def _copied(raw: Any) -> Any:
    return {key: _copied(value) for key, value in raw.items()} if isinstance(raw, dict) else raw


def _value(text: str, override: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise Refused(f"'{override[:LONG]}': the value is not YAML; quote it") from None


def resolve(raw: Mapping[str, Any], overrides: Iterable[str] = (), where: str = "") -> Any:
    """The recipe, checked by its task; an error is one line, with the file if one is given."""
    raw = overridden(raw, overrides)
    check_keys(raw, where or "the recipe")
    place = f"{where}: " if where else ""
    task = raw.get("task")
    settings = Recipe  # refuses a task that is not a name
    if isinstance(task, str):
        try:
            settings = task_of(task).recipe
        except UnknownName as error:
            raise Refused(f"{place}task: {error}") from None
    try:
        return settings.model_validate(raw)
    except ValidationError as error:
        raise Refused(f"{place}{complaint(settings, error)}") from None


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe, every default written out."""
    told = recipe.model_dump(mode="json")
    _leave_sizes_out(recipe, told)
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def differing(
    one: Recipe, other: Recipe, brought: frozenset[str] = frozenset()
) -> dict[str, tuple[Any, Any]]:
    """The keys in which two recipes differ, with both values; None if a recipe lacks the key.
    Different paths to the same files are no difference.

    brought  keys of the model that count only if `one` names them: a start may have set them
    """
    aside = {*TOLD}
    if type(one) is type(other) and whereabouts(one.data) == whereabouts(other.data):
        aside.add("data")
    mine, theirs = (
        dict(_flat(each.model_dump(mode="json", exclude=aside))) for each in (one, other)
    )
    named = dict(_flat(one.model_dump(mode="json", include={"model"}, exclude_unset=True)))
    left = {
        key
        for key in mine | theirs
        if key.startswith("model.") and key not in named and brought & {*key.split(".")}
    }
    both = {key: (mine.get(key), theirs.get(key)) for key in (mine | theirs) if key not in left}
    return {key: (here, there) for key, (here, there) in both.items() if here != there}


def _flat(told: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its full key."""
    for key, value in told.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _leave_sizes_out(settings: Any, told: dict[str, Any]) -> None:
    """Leave out a default size if all of its numbers are overridden: it would mislead."""
    if not isinstance(settings, BaseModel):
        return
    fields = type(settings).model_fields
    sizes = [getattr(settings, name) for name in SIZED if name in fields]
    whole = bool(sizes) and None not in sizes and "size" in fields
    if whole and told["size"] == fields["size"].default:  # any other would be lost
        del told["size"]
    for name in fields:
        _leave_sizes_out(getattr(settings, name), told.get(name, {}))


def check(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be built, before any data is read."""
    task_of(recipe.task).check(recipe)


def with_attention(raw: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The raw recipe with another mechanism where its task has one; "none" leaves it out."""
    task = raw.get("task")
    model = raw.get("model") or {}
    known = isinstance(task, str) and task in TASKS and isinstance(model, Mapping)
    if name is None or not known:
        return dict(raw)  # refused later
    return {**raw, "model": task_of(str(task)).exchanged(model, name)}
