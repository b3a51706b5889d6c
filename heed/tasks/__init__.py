"""Tasks, one story a file, and the table of them; they are imported when first used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heed.errors import UnknownName

if TYPE_CHECKING:
    from heed.tasks.task import Task

TASKS = {
    "translate": "translate",
    "classify": "classify",
    "compose": "compose",
    "language-model": "language_model",
    "pretrain": "pretrain",
    "recognise": "recognise",
    "tag": "tag",
}
"""Tasks, and the module of each; closed: a recipe or a folder that names another is refused."""


@cache
def task_of(name: str) -> Task[Any, Any]:
    """A task by its name."""
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    found: Task[Any, Any] = import_module(f"{__name__}.{TASKS[name]}").TASK
    return found


def every_task() -> list[Task[Any, Any]]:
    """All tasks, in the order of the table."""
    return [task_of(name) for name in TASKS]
