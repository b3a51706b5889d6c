"""What the tokenisers library prints when it panics, and what others print meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest
from tokenizers import Regex, normalizers

from heed.data.panics import hushed, tried
from heed.data.tokenise import SPECIALS, Tokeniser
from heed.data.verbatim import Verbatim
from heed.errors import Refused

T = TypeVar("T")


def panic() -> str:
    """Rules whose regular expressions give up after too many attempts."""
    return str(normalizers.Replace(Regex("(a+)+$"), "b").normalize_str("a" * 40 + "!"))


def asked(make: Callable[[], T], says: str) -> T:
    with hushed():
        return tried(make, says)


def say(text: str) -> None:
    os.write(2, text.encode())


def test_a_panic_prints_nothing_but_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match=r"^no$"):
        asked(panic, "no")
    say("after")
    assert capfd.readouterr().err == "after"


def test_a_panic_within_a_successful_call_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def outer() -> str:
        with pytest.raises(Refused):
            asked(panic, "no")
        say("outer ")
        return "yes"

    assert asked(outer, "never") == "yes"
    say("after")
    assert capfd.readouterr().err == "outer after"


@pytest.mark.parametrize("memory", [True, False])
def test_other_output_meanwhile_is_not_lost(
    memory: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not memory:  # as where there are no unnamed files: then it is a named one
        monkeypatch.delattr(os, "memfd_create", raising=False)
    assert asked(lambda: say("x" * 100_000), "never") is None
    assert capfd.readouterr().err == ("x" * 100_000 if memory else "")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_still_interrupts(
    error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        raise error

    with pytest.raises(error):
        asked(stop, "never")
    say("after")
    assert capfd.readouterr().err == "after"


def test_threads_share_one_stderr_which_is_restored(capfd: pytest.CaptureFixture[str]) -> None:
    together = Barrier(8)

    def work(i: int) -> int:
        together.wait()
        lost = 0
        for _ in range(3):
            try:
                asked(panic if i % 2 else lambda: say("."), "no")
            except Refused:
                lost += 1
        return lost

    before, folder = os.fstat(2).st_ino, Path("/proc/self/fd")
    opened = len(os.listdir(folder)) if folder.exists() else 0
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [0, 3] * 4
    assert os.fstat(2).st_ino == before
    assert not folder.exists() or len(os.listdir(folder)) == opened
    assert capfd.readouterr().err == "." * 12


def run(program: str) -> subprocess.CompletedProcess[str]:
    lines = "import os, threading, time\nfrom heed.data.panics import hushed\n" + program
    command = [sys.executable, "-W", "ignore", "-c", lines]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_without_a_stderr_the_library_is_called_all_the_same() -> None:
    done = run("os.close(2)\nwith hushed():\n    print(7)")
    assert (done.returncode, done.stdout) == (0, "7\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_of_another_thread_has_the_stderr_of_its_parent() -> None:
    done = run(
        """
def work():
    with hushed():
        time.sleep(0.5)

thread = threading.Thread(target=work)
thread.start()
time.sleep(0.1)
child = os.fork()
with hushed():
    os.write(2, b"child " if child == 0 else b"")
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
thread.join()
os.write(2, b"parent")
"""
    )
    assert (done.returncode, done.stderr) == (0, "child parent")


PANIC = {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}


@pytest.mark.parametrize("cls", [Tokeniser, Verbatim])
def test_a_file_in_place_of_heeds_own_prints_nothing(
    cls: type[Tokeniser | Verbatim], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers = {symbol: i for i, symbol in enumerate(SPECIALS)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": x, "special": True, **flags} for x, i in numbers.items()]
    model = {"type": "WordLevel", "vocab": numbers, "unk_token": "<unk>"}
    rules = {"model": model, "added_tokens": added, "normalizer": PANIC}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(rules))
    with pytest.raises(Refused, match="not a tokeniser, or a broken one"):
        cls.load(path)
    assert capfd.readouterr().err == ""
