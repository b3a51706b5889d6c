"""Stories: what running needs to know of each task, without the training loop.

The table is closed: a recipe or a folder that names another task is refused. A story's module
defines `STORY`, and is imported when its task is first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from heed.errors import UnknownName
from heed.running.stories.story import AnyStory

STORIES = {
    "translate": "translate",
    "classify": "classify",
    "language-model": "language_model",
    "pretrain": "pretrain",
}
"""Tasks, and the module of this folder with the story of each."""


@cache
def story(task: str) -> AnyStory:
    """The story of a task."""
    if task not in STORIES:
        raise UnknownName("task", task, STORIES)
    found: AnyStory = import_module(f"{__name__}.{STORIES[task]}").STORY
    return found
