"""Evaluate: the task's metrics, on the run's own data or on other files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heed.events import Work
from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.running.preparing import examples_of, scored_part
from heed.tasks.task import Codec, Evaluated

__all__ = ["Evaluated", "evaluate"]


def evaluate(
    path: Path,
    data: str | Sequence[Path] = "test",
    *,
    device: str = "auto",
    **options: Any,
) -> Work[Evaluated]:
    """Score a run on files, or on a part that it keeps (valid, test ...).

    options  those of the run's task, such as width=1 for a translation's beam; `out` and `links`
             if the result's answers or word links will be used
    """
    run = open_run(path, chosen(device), options)
    task, worker = run.task, run.worker
    task.refuse_unknown(options, task.evaluate_options())
    codec = Codec(worker.inputs, worker.form)
    if isinstance(data, str):
        task.of_kept(options)
        part = yield from scored_part(run.folder, data)
        examples: list[Any] = list(examples_of(task, codec, run.folder, part))
    else:
        examples = yield from task.given(run.config, codec, data, options)
    return (yield from task.evaluated(worker, examples, run.config, options, "answering"))
