"""Pretrained folders, opened like runs of heed's own tasks.

    GPT-2 with a language head          continues prompts
    BERT with a masked head             fills [MASK]
    XLNet with a language head          does either: see below
    BERT, XLNet with a label head       labels texts

Each task says which models it adopts. A bidirectional XLNet (attn_type "bi", as the published ones)
fills masks, like the run that it may come from; with options of text generation it continues
prompts. A left-to-right XLNet always continues prompts.

The folder is checked as by `heed.load` (running/loading.py). An incomplete vocabulary, or a head
that no command uses, is refused with a message.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from heed.errors import Refused
from heed.running.loading import Loaded, load
from heed.running.opening import Run
from heed.settings import complaint
from heed.storage.run_folder import RunFolder
from heed.tasks import every_task
from heed.tasks.task import Task


def adopted() -> list[tuple[str, str]]:
    """The families and heads that some task adopts."""
    return list(dict.fromkeys(pair for task in every_task() for pair in task.adopts))


def adopt(path: Path, device: torch.device, asked: Collection[str] = ()) -> Run:
    """The model of a pretrained folder, ready to use.

    asked  the options that were given: they choose the task of a model that has several
    """
    found = load(path, device=device)
    task = _task(found, asked)
    if task is None:
        known = ", ".join(f"{kind} '{head}'" for kind, head in adopted())
        raise Refused(
            f"{path} is {found.kind} with the head '{found.head}', which no command supports; "
            f"supported: {known}; or train --from it"
        )
    words = found.tokeniser
    if words is None:
        raise Refused(f"{path} has no tokeniser: it has no vocabulary files")
    if words.size > found.settings.rows:
        raise Refused(
            f"{path}: its vocabulary has {words.size:,} symbols, but the model "
            f"{found.settings.rows:,}"
        )
    try:
        config, codec = task.adopt(found, words, path)
    except ValidationError as error:
        said = complaint(task.config, error)
        raise Refused(
            f"{path}: config.json describes a model that no command supports: {said}"
        ) from None
    worker = task.worker(found.model, codec, config, device)
    return Run(RunFolder(path), config, worker, task)


def _task(found: Loaded, asked: Collection[str]) -> Task[Any, Any] | None:
    """The task that a model is opened for: the one that it suits, or one that has the options."""
    able = [task for task in every_task() if (found.kind, found.head) in task.adopts]
    able.sort(key=lambda task: not task.suits(found.settings))
    options = {*asked} - {"out"}  # all tasks that have answers to write have it
    has = (task for task in able if options <= {*task.predict_options(), *task.evaluate_options()})
    return next(has, next(iter(able), None))
