"""Comparisons: invalid requests are refused at once, and one failure does not affect the others."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

from heed.answers.text_scores import TextScores
from heed.cli.compare import tell
from heed.errors import Refused
from heed.events import Work, finish
from heed.running import compare as comparing
from heed.running.compare import Cell, _heard, columns, compare, page, table
from heed.running.recipe import load
from heed.running.train import Trained
from heed.storage import checkpoint
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from tests.running.writing import recipe, written

TASK = task_of("translate")


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def small_transformer() -> dict[str, Any]:
    return {**recipe(), "model": {"kind": "transformer", "width": 16, "heads": 2, "feed": 16}}


@pytest.mark.parametrize(
    ("raw", "names", "says"),
    [
        (recipe(), [], "name each mechanism once"),
        (recipe(), ["dot", "dot"], "name each mechanism once"),
        (recipe(), ["dot", "addditive"], "did you mean additive"),
        (recipe(), ["dot", "lstm/dot"], "no mechanism"),
        (small_transformer(), ["additive", "nonsense"], "cannot be built: no mech"),
        (small_transformer(), ["fixed-window"], "cannot be built: .*two"),
        (load("demo") | {"task": "clasify"}, ["dot"], "no task is called .*classify"),
    ],
)
def test_invalid_requests_are_refused_before_anything_runs(
    raw: dict[str, Any], names: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=says):
        finish(compare(raw, names, tmp_path / "out", device="cpu"))
    assert list(tmp_path.iterdir()) == []


def trained(folder: Path) -> Trained:
    told = json.loads((folder / "scores.json").read_text())
    scores = {name: TextScores(**each) for name, each in told.pop("scores").items()}
    return Trained(**{**told, "folder": folder}, scores=scores)


def test_a_row_has_the_values_of_its_columns(writer: Path) -> None:
    done = trained(writer)
    row = dict(
        zip(
            (column.name for column in columns(TASK)),
            Cell("dot", done, 12.5).row(TASK),
            strict=True,
        )
    )
    test, far = done.scores["test"], done.scores["long"]
    assert row == {
        "mechanism": "dot",
        "BLEU": test.bleu,
        "long BLEU": far.bleu,
        "AER": test.aer,
        "perplexity": test.perplexity,
        "entropy": test.entropy,
        "symbols/s": done.tokens_per_second,
        "memory, MiB": 12.5,
        "parameters": done.parameters,
        "seconds": done.seconds,
    }
    alone = replace(done, scores={"valid": test})  # one without test data
    assert Cell("dot", alone).row(TASK)[1:4] == [test.bleu, None, test.aer]
    assert Cell("dot", error="no").row(TASK) == ["dot", *[None] * 9]


def test_what_no_mechanism_has_is_no_column(writer: Path) -> None:
    alone = replace(trained(writer), scores={"valid": trained(writer).scores["test"]})
    cells = [Cell("dot", alone, 1.0), Cell("hard", error="no")]
    names = [column.name for column in columns(TASK)]
    names.remove("long BLEU")
    assert [column.name for column in table(cells, "translate").columns] == names
    assert "long BLEU" not in page(cells, TASK).html()
    out = io.StringIO()
    tell(cells, "translate", Console(file=out))
    assert out.getvalue().split()[:3] == ["mechanism", "BLEU", "AER"]


def test_the_page_has_every_mechanism_and_the_reason_of_a_failure(writer: Path) -> None:
    cells = [Cell("general", trained(writer), 1.0), Cell("hard", error="it <broke> down")]
    html = page(cells, TASK).html()
    assert "2 mechanisms compared" in html
    assert "hard: it &lt;broke&gt; down" in html
    assert "BLEU by sentence length" in html
    *_, last = (writer / "examples/test.jsonl").read_text().splitlines()[:5]
    assert json.loads(last)["source"] in html


def test_mechanisms_are_told_in_the_order_asked_whichever_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["general", "additive", "dot"]

    def together(asked: list[Any], most: int) -> Work[list[Cell]]:
        yield from ()
        return [Cell(job.mechanism, error="no") for job in reversed(asked)]

    monkeypatch.setattr(comparing, "_together", together)
    cells = finish(compare(recipe(), names, tmp_path / "out", device="cpu"))
    assert [cell.mechanism for cell in cells] == names
    written = json.loads((tmp_path / "out/comparison.json").read_text())
    assert [each["mechanism"] for each in written] == names


@pytest.mark.parametrize(("jobs", "each"), [(1, 8), (3, 2), (9, 1)])
def test_the_processors_are_shared_by_those_that_train_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, jobs: int, each: int
) -> None:
    given: list[int] = []

    class Process:
        def __init__(self, args: tuple[Any, int, Any], **_: Any) -> None:
            job, threads, self.heard = args
            self.name = job.mechanism
            given.append(threads)

        def start(self) -> None:
            self.heard.put((self.name, Cell(self.name, error="no")))

        def join(self) -> None:
            """It has ended."""

    context = SimpleNamespace(Queue=Queue, Process=Process)
    monkeypatch.setattr(comparing.multiprocessing, "get_context", lambda how: context)
    monkeypatch.setattr(comparing.torch, "get_num_threads", lambda: 8)
    asked = [SimpleNamespace(mechanism=name) for name in ("dot", "additive")]
    cells = finish(comparing._together(asked, jobs))  # type: ignore[arg-type]
    assert [cell.mechanism for cell in cells] == ["dot", "additive"]
    assert given == [each, each]


def test_a_process_that_died_is_reported_with_its_code() -> None:
    alive: Any = {"dot": SimpleNamespace(exitcode=-9), "additive": SimpleNamespace(exitcode=None)}
    queue: Any = Queue()
    assert list(_heard(queue, alive)) == [
        ("dot", Cell("dot", error="the process ended with code -9"))
    ]
    queue.put(("dot", "something"))  # messages sent before it died come first
    assert list(_heard(queue, alive)) == [("dot", "something")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_training_processes_save_and_end_with_their_parent(tmp_path: Path, number: int) -> None:
    """Even if they cannot be told: they would go on training, and lock their folders."""
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe(steps=10**6, save_every=10**6)))
    command = [sys.executable, "-c", "from heed.cli import main; main()", "compare", "mine.yaml"]
    options = ["--attention", "dot", "--run", "out", "--device", "cpu"]
    process = Popen(
        [*command, *options], cwd=tmp_path, stderr=PIPE, text=True, start_new_session=True
    )
    run = RunFolder(tmp_path / "out/dot")
    try:
        within(60, lambda: run.metrics.exists() and run.metrics.stat().st_size > 0)
        process.send_signal(number)
        says = process.communicate(timeout=60)[1]  # it ends when its pipe is closed
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert says.endswith("run the same command with --resume\n") == (number == signal.SIGINT)
    assert "Traceback" not in says
    with run.lock():
        assert checkpoint.newest(run.checkpoints, print) is not None


def within(seconds: float, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
