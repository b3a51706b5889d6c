"""Lists of the recipes, models and tasks, as plain data."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from heed.models.building import MODELS
from heed.running.recipe import load, names
from heed.tasks import TASKS, task_of


def recipes() -> list[dict[str, Any]]:
    """The ready recipes."""
    found = [{"name": name, **load(name)} for name in names()]
    keys = ("name", "task", "about", "needs", "good")
    return [{key: each.get(key, "") for key in keys} for each in found]


def models() -> list[dict[str, Any]]:
    """Every model that a recipe can name, with its sizes and keys."""
    return [
        {
            "name": name,
            "about": known.about,
            "sizes": {size: each._asdict() for size, each in known.sizes.items()},
            "keys": sorted(known.settings.model_fields, key=_rank),
            "kinds": kinds(known.settings),
        }
        for name, known in MODELS.items()
    ]


def kinds(settings: type[BaseModel]) -> dict[str, dict[str, list[str]]]:
    """For each key that holds a model, such as a classifier's encoder: its possible kinds, each
    with its keys."""
    found: dict[str, dict[str, list[str]]] = {}
    for key, field in settings.model_fields.items():
        for each in get_args(field.annotation) or (field.annotation,):
            if isinstance(each, type) and issubclass(each, BaseModel):
                keys = sorted(each.model_fields, key=_rank)
                named = get_args(each.model_fields["kind"].annotation)
                found.setdefault(key, {}).update(dict.fromkeys(named, keys))
    return found


def _rank(key: str) -> int:
    """The order of keys: kind and size come first."""
    return ["kind", "size"].index(key) if key in ("kind", "size") else 2


def tasks() -> list[dict[str, Any]]:
    """Every task."""
    return [{"name": name, "about": task_of(name).about.partition(": ")[2]} for name in TASKS]
