"""What there is to train: recipes, models, tasks, each as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from heed.models import (
    classifier,
    recurrent_language,
    recurrent_settings,
    text_settings,
    transformer_settings,
    xlnet_settings,
)
from heed.running.recipe import load, names
from heed.running.stories import STORIES, story


def recipes() -> list[dict[str, Any]]:
    """The ready recipes."""
    found = [{"name": name, **load(name)} for name in names()]
    keys = ("name", "task", "about", "needs", "good")
    return [{key: each.get(key, "") for key in keys} for each in found]


def models() -> list[dict[str, Any]]:
    """Every model that a recipe can name, with its sizes and keys."""
    return [
        {
            "name": kind.model_fields["kind"].default,
            "about": about,
            "sizes": {name: size._asdict() for name, size in sizes.items()},
            "keys": [key for key in kind.model_fields if key not in ("kind", "size")],
        }
        for kind, about, sizes in _models()
    ]


def _models() -> Iterator[tuple[type[BaseModel], str, dict[str, Any]]]:
    """Settings, what they are of, and named sizes."""
    recurrent, texts, xlnet = recurrent_settings, text_settings, xlnet_settings
    yield recurrent.RecurrentSettings, _first_line(recurrent), recurrent.SIZES
    whole = transformer_settings
    yield whole.TransformerSettings, _first_line(whole), whole.SIZES
    yield texts.BertSettings, _first_line(texts.BertSettings), texts.BERT_SIZES
    yield texts.GPT2Settings, _first_line(texts.GPT2Settings), texts.GPT2_SIZES
    yield xlnet.XLNetSettings, _first_line(xlnet.XLNetSettings), xlnet.SIZES
    language = recurrent_language
    yield language.RecurrentLanguageSettings, _first_line(language), {}
    yield classifier.ClassifierSettings, _first_line(classifier), {}


def tasks() -> list[dict[str, Any]]:
    """Every task."""
    return [{"name": name, "about": story(name).about.partition(": ")[2]} for name in STORIES]


def _first_line(told: Any) -> str:
    return (told.__doc__ or "").strip().splitlines()[0].rstrip(".")
