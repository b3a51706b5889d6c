"""What there is to train: recipes, models, tasks, each as plain data."""

from __future__ import annotations

from typing import Any

from heed.models import recurrent, transformer_settings
from heed.running.recipe import load, names
from heed.tasks import translate


def recipes() -> list[dict[str, Any]]:
    """The ready recipes."""
    found = [{"name": name, **load(name)} for name in names()]
    keys = ("name", "task", "about", "needs", "good")
    return [{key: each.get(key, "") for key in keys} for each in found]


def models() -> list[dict[str, Any]]:
    """Every model that a recipe can name, with its sizes and keys."""
    settings = (
        (recurrent, recurrent.RecurrentSettings),
        (transformer_settings, transformer_settings.TransformerSettings),
    )
    return [
        {
            "name": kind.model_fields["kind"].default,
            "about": _first_line(module),
            "sizes": {name: size._asdict() for name, size in module.SIZES.items()},
            "keys": [key for key in kind.model_fields if key not in ("kind", "size")],
        }
        for module, kind in settings
    ]


def tasks() -> list[dict[str, Any]]:
    """Every task."""
    return [{"name": "translate", "about": _first_line(translate)}]


def _first_line(module: Any) -> str:
    return (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
