"""The command itself: help, exit codes, and errors in one line."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

import heed.cli
import heed.cli.list

HEED = [sys.executable, "-m", "heed"]


def test_the_version_is_printed(command) -> None:
    done = command("--version")
    assert (done.code, done.out) == (0, f"heed {version('heed-attention')}\n")


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([*HEED, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"heed {version('heed-attention')}\n")
    assert subprocess.run([*HEED, "dmeo"], capture_output=True).returncode == 2


def test_without_a_verb_the_help_is_shown(command) -> None:
    done = command()
    assert done.code == 0
    assert "demo" in done.out
    assert "list" in done.out


@pytest.mark.parametrize(
    "verb", ["demo", "train", "evaluate", "predict", "show", "compare", "convert", "list"]
)
def test_help_ends_with_two_lines_to_paste(command, verb: str) -> None:
    done = command(verb, "--help")
    assert done.code == 0
    *_, first, second = (line.strip() for line in done.out.splitlines() if line.strip())
    for line in (first, second):
        assert f"heed {verb}" in line
        if verb == "list":
            assert command(*line.split()[1:]).code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["demo", "--atention", "dot"], "--attention"),
        (["compare", "demo", "--jobs", "seven"], "--jobs"),
        (["compare", "demo", "--jobs", "0"], "--jobs"),
        (["dmeo"], "demo"),
        (["list"], "collection"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(command, words: list[str], says: str) -> None:
    done = command(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("heed: ")
    assert done.err.count("\n") == 1
    assert says in done.err.lower()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["dmeo"]])
def test_commands_that_do_not_need_torch_do_not_import_it(words: list[str]) -> None:
    told = "import sys; print('loaded' if 'torch' in sys.modules else 'spared', file=sys.stderr)"
    code = (
        f"import atexit; from heed.cli import main; atexit.register(lambda: exec({told!r})); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "spared"


def test_the_same_check_finds_torch_where_it_is_needed() -> None:
    before, after = "assert 'torch' not in sys.modules", "assert 'torch' in sys.modules"
    code = f"import sys, heed; {before}; heed.Attention; {after}"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_bug_is_not_hidden(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(heed.cli.list.COLLECTIONS, "tasks", broken)
    with pytest.raises(ZeroDivisionError):
        command("list", "tasks")


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*HEED, "list", "mechanisms"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.stderr == ""


def test_memory_that_runs_out_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heed.cli, "app", lambda **_: torch.empty(2**60, dtype=torch.uint8))
    assert heed.cli._status() == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "heed: memory is full: 1,073,741,824.0 GiB more were needed; take smaller"
    )
    assert said.count("\n") == 1


def test_other_errors_of_pytorch_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heed.cli, "app", lambda **_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        heed.cli._status()
