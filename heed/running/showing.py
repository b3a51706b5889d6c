"""Showing: what a model looked at, as panels and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.running.stories.story import Shown
from heed.viewing.blocks import Examples
from heed.viewing.page import Page


def show(
    path: Path, texts: Sequence[str] = (), *, every: bool = False, device: str = "auto"
) -> list[Any]:
    """What a model makes of texts, or of a few examples that the run keeps: a story's `Shown`.

    every  each head of each attention too
    """
    run = open_run(path, chosen(device))
    return run.story.show(run, texts, every=every)


def page(title: str, shown: Sequence[Shown]) -> Page:
    """A page with everything that is shown."""
    blocks: list[Any] = [each.block() for each in shown]
    return Page(title, [Examples(blocks)])
