"""Train: from a recipe to a model in a folder; a run that is stopped at any moment can be resumed.

    trained = finish(train(resolve(load("demo")), Path("runs/demo")))

Logging, validating, saving and stopping are ordinary code around `for moment in fit(...)`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from heed.data.text import counted
from heed.errors import Refused
from heed.events import Event, Note, Result, Stopped, Work, relayed
from heed.running.devices import chosen
from heed.running.learner import Learner, Trained
from heed.running.opening import read_config
from heed.running.preparing import prepare, there
from heed.running.recipe import as_yaml, check, differing, parse, resolve
from heed.running.starting import BROUGHT, opened, sized
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from heed.tasks.task import Start
from heed.training import distributed, signals
from heed.training.distributed import Distributed

__all__ = ["Learner", "Trained", "onward", "train"]

LONG = 60  # characters of a value that a message shows
NAMED = 3
"""The most keys that a message names if two recipes differ."""


def train(
    recipe: Any | None,
    path: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    start: Path | None = None,
    device: str = "auto",
) -> Work[Trained]:
    """Train a recipe into a folder, or resume the run there.

    resume  continue if the folder holds a run; the recipe must be the same
    start   a run or a pretrained folder, or its name at the hub: its weights, where they fit,
            replace random ones, and its tokens and sizes are used
    """
    with ExitStack() as stack:
        crew = stack.enter_context(distributed.join(chosen(device)))
        stop = stack.enter_context(signals.listening())
        going = crew.share(resume and (path / "config.json").exists())
        if going and start is not None:
            yield Note(f"{path} is resumed with its own weights: {start} is not read again")
        begun = None if going or start is None else opened(start)
        if begun is not None and recipe is not None:
            recipe, note = sized(recipe, begun)
            if note is not None:
                yield note
        folder, recipe = _opened(recipe, path, going, overwrite, crew)
        if folder.former is not None:
            yield Note(f"the old run is now {folder.former}")
        if crew.main:
            stack.enter_context(folder.lock())
        learner = None
        try:
            if crew.main and not going:
                folder.write_text(folder.recipe, as_yaml(recipe))
            prepared = yield from _until(stop, _prepared(recipe, folder, crew, begun))
            if crew.main and not going:
                folder.seal()
            learner = Learner(recipe, folder, prepared, crew, stop, begun)
            with learner.journal:
                yield from learner.catch_up()
                yield from learner.learn()
        except BaseException:
            if learner is None or not learner.standing.step:
                folder.withdraw()  # the command can be repeated as it is
            raise
        return (yield from _until(stop, learner.finish(), learner))


def onward(path: Path) -> list[str]:
    """Commands for a trained run, as its task has them, without `heed`."""
    task = task_of(read_config(RunFolder(path)).task)
    return [command.format(run=shlex.quote(str(path))) for command in task.onward]


def _until(stop: signals.Stop, work: Work[Result], learner: Learner | None = None) -> Work[Result]:
    """Work before or after the loop, abandoned on a stop signal: a later call repeats it."""

    def heard(event: Event) -> Event:
        if stop.asked:
            place = None if learner is None else learner.folder.path
            raise Stopped(place, 0 if learner is None else learner.standing.step, stop.code)
        return event

    return relayed(work, heard)


def _opened(
    recipe: Any | None, path: Path, going: bool, overwrite: bool, crew: Distributed
) -> tuple[RunFolder, Any]:
    """The folder and the recipe to train. Only the main process makes folders."""
    if going:
        folder = RunFolder.open(path, cache=crew.main)
        read_config(folder)  # refuses an unknown task
        where = str(folder.recipe)
        own = resolve(parse(folder.read_text(folder.recipe), where), where=where)
        if recipe is not None and (odd := differing(recipe, own, BROUGHT)):
            raise Refused(_another(path, odd))
        return folder, own
    if recipe is None:
        raise Refused(f"{path} holds no run to resume: it has no config.json")
    check(recipe)
    if crew.main:
        there(recipe.data)
        return RunFolder.create(path, overwrite=overwrite), recipe
    return RunFolder(path), recipe


def _another(path: Path, odd: Mapping[str, tuple[Any, Any]]) -> str:
    """The message that a run has another recipe: some of the keys, and what to do."""
    some = [
        f"{key}={_told(here)} (there {_told(there)})"
        for key, (here, there) in islice(odd.items(), NAMED)
    ]
    left = counted(len(odd) - len(some), "more key")
    more = f" and {left}" if len(odd) > len(some) else ""
    run = shlex.quote(str(path))
    return (
        f"{path} has another recipe: {', '.join(some)}{more}; to resume with its own: heed train "
        f"{run} --resume; to start from its weights: heed train RECIPE --from {run} --run NEW"
    )


def _told(value: Any) -> str:
    """A value as it is written in an override, shortened to `LONG` characters."""
    told = json.dumps(value, ensure_ascii=False)
    return told if len(told) <= LONG else f"{told[:LONG]}…"


def _prepared(recipe: Any, folder: RunFolder, crew: Distributed, start: Start | None) -> Work[Any]:
    """The main process prepares; the others wait, and open what it wrote."""
    task = task_of(recipe.task)
    if crew.main:
        prepared = yield from prepare(task, recipe, folder, start)
    crew.share(None)
    if not crew.main:
        prepared = yield from prepare(task, recipe, folder)
    return prepared
