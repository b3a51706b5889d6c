"""A recipe that trains in a second, and `heed` in processes of its own that start at once.

Starting Python with PyTorch takes seconds, too long for a test that kills a training twenty times.
A server imports everything once and forks for each command; what runs is the real command in a real
process, which can be killed, limited and watched.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODEL = {"kind": "recurrent", "size": "tiny", "embedding": 16, "hidden": 16, "layers": 1}
GRAMMAR = {"pairs": 200, "shortest": 3, "longest": 6, "held_out": 4}


def small(**training: Any) -> dict[str, Any]:
    """Two epochs of six steps, each of two batches; saved at every second step."""
    chosen = {
        "epochs": 2,
        "batch_tokens": 120,
        "accumulate": 2,
        "rate": 0.003,
        "warmup": 5,
        "save_every": 2,
        "validate_every": 4,
        "log_every": 1,
        "deterministic": True,
    }
    return {
        "task": "translate",
        "data": {"grammar": dict(GRAMMAR), "tokens": {"kind": "word", "size": 500}},
        "model": {**MODEL, "dropout": 0.2},
        "training": chosen | training,
        "decoding": {"method": "greedy", "longest": 20},
    }


def write_recipe(folder: Path, raw: Mapping[str, Any]) -> Path:
    """The recipe as a file."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(dict(raw), allow_unicode=True))
    return path


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int  # negative: killed by that signal
    out: str
    err: str
    memory: int  # at most, in MiB

    def refused(self) -> str:
        """The one line that a refused command prints."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("heed: "), self
        assert self.err.count("\n") == 1, self
        return self.err


@dataclass(frozen=True)
class Job:
    """A running command."""

    server: Server
    pid: int
    out: Path
    err: Path

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Done:
        """Wait for its end."""
        status, memory = self.server.ask({"wait": self.pid})
        code = os.waitstatus_to_exitcode(status)
        return Done(code, self.out.read_text(), self.err.read_text(), memory)

    def running(self) -> bool:
        return not Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].startswith(" Z")

    def wait_for(self, seen: Callable[[], bool], pause: float = 0.002) -> bool:
        """Whether a condition was met before the command ended."""
        while self.running():
            if seen():
                return True
            time.sleep(pause)
        return False


class Server:
    """Forks a process for each command; see the top of the file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, question: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def start(
        self, *words: str | Path, cwd: Path | None = None, environment: Mapping[str, str] = {}
    ) -> Job:
        """Start `heed` with these arguments."""
        return self.call("command", [str(word) for word in words], cwd, environment)

    def call(
        self,
        name: str,
        given: list[Any],
        cwd: Path | None = None,
        environment: Mapping[str, str] = {},
    ) -> Job:
        """Start one of the functions in CALLS in a process of its own."""
        self.count += 1
        out, err = (self.folder / f"{self.count}.{end}" for end in ("out", "err"))
        for path in (out, err):
            path.touch()  # so that it can be read even if the process is killed at once
        question = {"call": name, "given": given, "out": str(out), "err": str(err)}
        question |= {"cwd": str(cwd or self.folder), "environment": dict(environment)}
        return Job(self, self.ask(question), out, err)

    def run(self, *words: str | Path, **kept: Any) -> Done:
        """Run `heed` with these arguments to its end."""
        return self.start(*words, **kept).wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def command(*words: str) -> None:
    """The command itself."""
    from heed.cli import main

    sys.argv = ["heed", *words]
    main()


def stopped(number: int, step: int, *words: str) -> None:
    """The command, which gets a signal right after a step."""
    from heed.running import learner

    fit = learner.fit

    def watched(*given: Any, **named: Any) -> Any:
        for moment in fit(*given, **named):
            if moment.step == step:
                os.kill(os.getpid(), number)
            yield moment

    learner.fit = watched  # type: ignore[assignment]
    command(*words)


def interrupted(stage: str, *words: str) -> None:
    """The command, which gets SIGTERM when a stage begins."""
    from heed.cli import following

    class Interrupting(following.Lines):
        def __call__(self, event: Any) -> None:
            if getattr(event, "stage", "") == stage:
                os.kill(os.getpid(), signal.SIGTERM)

    following.Lines = Interrupting  # type: ignore[misc]
    command(*words)


def fed(file: str, *words: str) -> None:
    """The command with a file as its standard input."""
    os.dup2(os.open(file, os.O_RDONLY), 0)
    command(*words)


def opened(good: str, folders: list[str]) -> None:
    """Evaluate and resume each folder while watching the process; print the results as JSON.

    Sockets, imports, other processes, and files elsewhere are watched. A good run is used first, so
    that lazy imports do not count.
    """
    told: list[str] = []
    here = ""
    _tried(lambda: _use(Path(good)), told)
    sys.addaudithook(lambda event, given: _watch(event, given, here, told))
    results = {}
    for folder in folders:
        for name, use in (("evaluate", _evaluate), ("resume", _resume)):
            here = folder
            told.clear()
            before = set(sys.modules)
            outcome = _tried(lambda use=use, folder=folder: use(Path(folder)), told)
            here = ""
            told += [f"imported {name}" for name in set(sys.modules) - before]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            results[f"{folder} {name}"] = [outcome, list(told), memory]
    print(json.dumps(results))


def _tried(use: Callable[[], object], told: list[str]) -> str:
    """The error message; "" if there was none."""
    from heed.errors import HeedError

    def too_long(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(20)
    try:
        use()
    except HeedError as error:
        return str(error)
    except BaseException:
        told.append(traceback.format_exc())
    finally:
        signal.alarm(0)
    return ""


def _evaluate(folder: Path) -> None:
    from heed.events import finish
    from heed.running.evaluate import evaluate

    finish(evaluate(folder, "test", device="cpu"))


def _resume(folder: Path) -> None:
    from heed.events import finish
    from heed.running.train import train

    finish(train(None, folder, resume=True, device="cpu"))


def _use(folder: Path) -> None:
    _evaluate(folder)
    _resume(folder)


FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn")
OWN = (sys.prefix, sys.base_prefix, "/proc", "/dev/null", "/etc/localtime")
OURS = str(Path(__file__).parents[2] / "heed")


def _watch(event: str, given: tuple[Any, ...], folder: str, told: list[str]) -> None:
    if not folder:
        return
    if event.startswith(FORBIDDEN):
        told.append(f"{event} {given}")
    elif event == "open" and isinstance(given[0], str | bytes):
        path = os.path.realpath(os.fsdecode(given[0]))
        if not path.startswith((os.path.realpath(folder), OURS, *OWN)):
            told.append(f"opened {given[0]!r}, which is {path}")


CALLS: dict[str, Callable[..., None]] = {
    "command": command,
    "stopped": stopped,
    "interrupted": interrupted,
    "fed": fed,
    "opened": opened,
}


def _serve() -> None:
    """Report the process id of each command, and how it ended."""
    _load()
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status, used = os.wait4(question["wait"], 0)
            answer: Any = (status, used.ru_maxrss // 1024)
        else:
            answer = os.fork()
            if answer == 0:
                _become(**question)
        print(json.dumps(answer), flush=True)


def _load() -> None:
    """Import all that a command needs, and start no thread: a process with threads cannot fork."""
    import sacrebleu.metrics  # noqa: F401
    import tensorboard.summary.writer.record_writer  # noqa: F401
    import torch

    import heed.cli
    import heed.running

    for room in (heed.cli, heed.running):  # whose verbs are imported lazily
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(found.name)
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight], lr=0.1).step()  # imports a large part of torch the first time


def _become(
    call: str, given: list[Any], out: str, err: str, cwd: str, environment: dict[str, str]
) -> None:
    code = 1
    try:
        for path, number in (("/dev/null", 0), (out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.chdir(cwd)
        os.environ.update(environment)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        CALLS[call](*given)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
