"""Stories: what running needs to know of each task, without the training loop.

The table is closed: a recipe or a folder that names another task is refused. A task's module
defines `TASK`, and is imported when its task is first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from heed.errors import UnknownName
from heed.running.stories.story import AnyStory
from heed.tasks.task import Task

STORIES = {
    "translate": "heed.tasks.translate",
    "classify": "heed.tasks.classify",
    "language-model": "heed.tasks.language_model",
    "pretrain": "heed.tasks.pretrain",
    "tag": "heed.tasks.tag",
}
"""Tasks, and the module of each."""


@cache
def story(task: str) -> AnyStory:
    """The story of a task."""
    from heed.running.stories.composed import Composed

    return Composed(task_of(task))


def task_of(name: str) -> Task[Any, Any]:
    """A task by its name."""
    if name not in STORIES:
        raise UnknownName("task", name, STORIES)
    found: Task[Any, Any] = import_module(STORIES[name]).TASK
    return found


def tasks() -> list[Task[Any, Any]]:
    """Every task."""
    return [task_of(name) for name in STORIES]
