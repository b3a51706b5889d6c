"""Stories: what running must know of each task, and nothing of the loop.

The table is closed: a recipe or a folder names a task of it, or is refused. A story's module has a
`STORY` in it, and is imported when its task is first asked for.
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
"""Tasks, and the module of this folder that tells the story of each."""


@cache
def story(task: str) -> AnyStory:
    """The story of a task."""
    if task not in STORIES:
        raise UnknownName("task", task, STORIES)
    found: AnyStory = import_module(f"{__name__}.{STORIES[task]}").STORY
    return found
