"""The command's door: help, exit codes, and what goes wrong in one line."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from heed.running.demo import Demo

HEED = [sys.executable, "-c", "from heed.cli import main; main()"]


def test_the_version(command) -> None:
    done = command("--version")
    assert (done.code, done.out) == (0, f"heed {version('heed-attention')}\n")


def test_without_a_verb_the_help_is_shown(command) -> None:
    done = command()
    assert done.code == 0
    assert "demo" in done.out
    assert "list" in done.out


@pytest.mark.parametrize("verb", ["demo", "list"])
def test_help_ends_with_two_lines_to_paste(command, verb: str) -> None:
    done = command(verb, "--help")
    assert done.code == 0
    *_, first, second = (line.strip() for line in done.out.splitlines() if line.strip())
    for line in (first, second):
        assert line.startswith(f"heed {verb}")
        if verb == "list":  # that the demo's can be pasted is seen in test_demo
            assert command(*line.split()[1:]).code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["demo", "--atention", "dot"], "--attention"),
        (["demo", "--seed", "seven"], "--seed"),
        (["demo", "--steps", "0"], "--steps"),
        (["dmeo"], "demo"),
        (["list"], "collection"),
    ],
)
def test_bad_usage_is_one_line_and_two(command, words: list[str], says: str) -> None:
    done = command(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("heed: ")
    assert done.err.count("\n") == 1
    assert says in done.err.lower()


def test_a_bug_is_not_hidden(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Demo) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Demo, "learn", broken)
    with pytest.raises(ZeroDivisionError):
        command("demo")


def test_an_interrupt_ends_with_130_and_no_traceback() -> None:
    process = subprocess.Popen(
        [*HEED, "demo", "--steps", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert "reverse" in process.stdout.readline()  # the training begins
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_has_enough_is_no_cause_for_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*HEED, "list", "mechanisms"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.stderr == ""
