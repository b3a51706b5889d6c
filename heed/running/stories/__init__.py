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
    "translate": "heed.tasks.translate",
    "classify": "heed.tasks.classify",
    "language-model": "heed.tasks.language_model",
    "pretrain": "heed.running.stories.pretrain",
    "recognise": "heed.tasks.recognise",
    "tag": "heed.tasks.tag",
}
"""Tasks, and the module of each."""


@cache
def story(task: str) -> AnyStory:
    """The story of a task."""
    if task not in STORIES:
        raise UnknownName("task", task, STORIES)
    module = import_module(STORIES[task])
    if hasattr(module, "TASK"):
        from heed.running.stories.composed import composed

        return composed(module.TASK)
    found: AnyStory = module.STORY
    return found
