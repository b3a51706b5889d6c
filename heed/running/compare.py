"""Compare: one recipe under several mechanisms, with the same seed and data; a table and a page.

Each model is trained in its own process, so that its memory can be measured. Several can train at
the same time.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from threading import Thread
from typing import Any, NamedTuple

import torch

from heed.errors import HeedError, Refused
from heed.events import Event, Note, Progress, Work, finish
from heed.running.devices import chosen
from heed.running.preparing import there
from heed.running.recipe import check, resolve, with_attention
from heed.running.showing import show
from heed.running.train import Trained, train
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from heed.tasks.task import Task
from heed.viewing.blocks import Block, Column, Value
from heed.viewing.page import Examples, Heading, Page, Paragraph, Table


@dataclass(frozen=True, slots=True)
class Cell:
    """One mechanism: its training, or why that failed."""

    mechanism: str
    trained: Trained | None = None
    memory: float | None = None  # peak MiB, on a CPU less those at the start; None: not trained now
    error: str = ""

    def row(self, task: Task[Any, Any]) -> list[Value]:
        """Its values in the columns of the table."""
        done = self.trained
        if done is None:
            return [self.mechanism, *[None] * (len(columns(task)) - 1)]
        figures = task.figured(done.scores, done.perplexity)
        spent = (done.tokens_per_second, self.memory, done.parameters, done.seconds)
        return [self.mechanism, *figures, *spent]


def columns(task: Task[Any, Any]) -> tuple[Column, ...]:
    """The columns of the table: mechanism, figures and costs."""
    return (
        Column("mechanism"),
        *task.figures,
        Column(f"{task.form.unit}/s", ",.0f", "high"),
        Column("memory, MiB", ",.0f", "low"),
        Column("parameters", ",d"),
        Column("seconds", ",.0f", "low"),
    )


class Job(NamedTuple):
    """One training, as it is sent to its process."""

    raw: dict[str, Any]
    mechanism: str
    folder: Path
    device: str
    resume: bool
    overwrite: bool


def compare(
    raw: Mapping[str, Any],
    mechanisms: Sequence[str],
    folder: Path,
    *,
    device: str = "auto",
    jobs: int = 1,
    resume: bool = False,
    overwrite: bool = False,
) -> Work[list[Cell]]:
    """Train and score the recipe with each mechanism; write comparison.json and page.html."""
    if len(set(mechanisms)) != len(mechanisms) or not mechanisms:
        raise Refused("name each mechanism once: --attention additive,dot,none")
    recipes = [resolve(with_attention(raw, name)) for name in mechanisms]
    task = task_of(recipes[0].task)
    for recipe in recipes:
        check(recipe)
    chosen(device)
    places = [folder / name.replace("/", "+") for name in mechanisms]
    if not resume and not overwrite:
        for place in places:
            RunFolder(place).vacant()
    if not resume or not all((place / "config.json").exists() for place in places):
        there(recipes[0].data)  # the same for all
    asked = [
        Job(dict(raw), name, place, device, resume, overwrite)
        for name, place in zip(mechanisms, places, strict=True)
    ]
    cells = yield from _together(asked, jobs)
    cells.sort(key=lambda cell: mechanisms.index(cell.mechanism))
    yield from _written(cells, folder, task, device)
    return cells


def _together(asked: list[Job], most: int) -> Work[list[Cell]]:
    """Train at most `most` at the same time, each in its own process."""
    context = multiprocessing.get_context("spawn")
    heard: Queue[Any] = context.Queue()
    waiting = list(asked)
    cells: list[Cell] = []
    alive: dict[str, BaseProcess] = {}
    threads = max(1, torch.get_num_threads() // most)  # as OMP_NUM_THREADS and the cores allow
    try:
        while waiting or alive:
            while waiting and len(alive) < most:
                job = waiting.pop(0)
                process = context.Process(target=_train, args=(job, threads, heard), daemon=True)
                process.start()
                alive[job.mechanism] = process
            for name, event in _heard(heard, alive):
                if isinstance(event, Cell):
                    cells.append(event)
                    alive.pop(name).join()
                    yield Note(_outcome(event))
                    event = Progress("comparing", len(cells), len(asked))
                yield event
    finally:
        for left in alive.values():
            left.terminate()
            left.join()
    return cells


def _heard(heard: Queue[Any], alive: dict[str, BaseProcess]) -> Iterator[tuple[str, Any]]:
    try:
        yield heard.get(timeout=0.5)
    except Empty:
        for name, process in list(alive.items()):
            if process.exitcode is not None and heard.empty():
                yield name, Cell(name, error=f"the process ended with code {process.exitcode}")


def _train(job: Job, threads: int, heard: Queue[Any]) -> None:
    """Train, report progress, and send the cell; this runs in its own process."""
    raw, name, folder, device, resume, overwrite = job
    Thread(target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)
    before, trains = _resident(), not (resume and RunFolder(folder).scores.exists())
    try:
        recipe = resolve(with_attention(raw, name))
        work = train(recipe, folder, resume=resume, overwrite=overwrite, device=device)
        trained = finish(work, lambda event: _told(event, name, heard))
        memory = (_peak(device) or _resident() - before) if trains else None
        heard.put((name, Cell(name, trained, memory)))
    except HeedError as error:
        heard.put((name, Cell(name, error=str(error))))
    except Exception:
        heard.put((name, Cell(name, error=traceback.format_exc().strip().splitlines()[-1])))


def _leave_with(parent: BaseProcess | None) -> None:
    """Signal this process to save and stop once its parent is dead."""
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def _told(event: Event, name: str, heard: Queue[Any]) -> None:
    """Forward the progress of the training, and no other event."""
    if isinstance(event, Progress) and event.stage == "training" and event.done % 10 == 0:
        heard.put((name, replace(event, stage=name)))


def _resident() -> float:
    """The peak memory of this process, in MiB.

    On Linux ru_maxrss includes the parent's memory at the spawn; VmHWM does not.
    """
    status = Path("/proc/self/status")
    told = status.read_text() if status.exists() else ""
    if found := re.search(r"VmHWM:\s+(\d+) kB", told):
        return int(found[1]) / 1024
    import resource  # missing on Windows, where the rest works

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _peak(device: str) -> float:
    """The peak memory on a GPU, in MiB; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if chosen(device).type == "cuda" else 0.0


def _outcome(cell: Cell) -> str:
    if cell.trained is None:
        return f"{cell.mechanism}: {cell.error}"
    return f"{cell.mechanism}: " + " | ".join(
        f"{part} {scores.line()}" for part, scores in cell.trained.scores.items()
    )


def _written(cells: list[Cell], folder: Path, task: Task[Any, Any], device: str) -> Work[None]:
    good = [cell for cell in cells if cell.trained is not None]
    data = [
        {"mechanism": c.mechanism, "memory": c.memory, "error": c.error}
        | ({} if c.trained is None else c.trained.as_data())
        for c in cells
    ]
    folder.mkdir(parents=True, exist_ok=True)
    told_as_json = json.dumps(data, ensure_ascii=False, indent=1)
    (folder / "comparison.json").write_text(told_as_json, "utf-8")
    if good:
        page(cells, task, device).write(folder / "page.html")
        yield Note(f"{folder / 'page.html'} shows the table, the curves and the attention of each")


def table(cells: Sequence[Cell], name: str) -> Table:
    """A row for each mechanism of a task; what was measured of none, such as AER, has no column."""
    task = task_of(name)
    return Table(columns(task), [cell.row(task) for cell in cells]).filled()


def page(cells: Sequence[Cell], task: Task[Any, Any], device: str = "cpu") -> Page:
    """The table, the task's own blocks, and one example with the attention of each mechanism."""
    good = {cell.mechanism: cell.trained for cell in cells if cell.trained is not None}
    blocks: list[Block] = [table(cells, task.name)]
    blocks += [Paragraph(f"{cell.mechanism}: {cell.error}") for cell in cells if cell.error]
    blocks += task.compared({name: done.scores for name, done in good.items()})
    if task.looks:
        examples = [
            show(trained.folder, device=device)[-1].block(name) for name, trained in good.items()
        ]
        blocks += [Heading(task.looks), Examples(examples)]
    return Page(f"{len(cells)} mechanisms compared", blocks)
