"""Requests to stop: a flag, an exit code, and restored handlers."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from heed.training.signals import CODES, Stop, listening


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_sets_a_flag(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with listening() as stop:
        assert (stop.asked, stop.code) == (None, 0)
        os.kill(os.getpid(), number)
        assert stop.asked == name
        assert stop.code == 128 + number
    assert signal.getsignal(number) is before
    assert CODES == {"SIGINT": 130, "SIGTERM": 143}


def test_a_second_interrupt_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)

    def twice() -> None:
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.asked == "SIGINT"
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the second was not heard")

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_signal_gives_the_reason_and_preemption_may_repeat() -> None:
    with listening() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.asked == "SIGTERM"


def test_listening_can_be_nested() -> None:
    with listening() as outer:
        with listening() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert (inner.asked, outer.asked) == ("SIGTERM", None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.asked == "SIGTERM"


def test_another_thread_does_not_listen() -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[Stop] = []

    def elsewhere() -> None:
        with listening() as stop:
            heard.append(stop)
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard[0].asked is None


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.asked is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


LOOP = """
import sys, time
from heed.training.signals import listening
with listening() as stop:
    print("ready", flush=True)
    while not stop.asked:
        time.sleep(0.01)
    print("saved", flush=True)
sys.exit(stop.code)
"""


def test_a_loop_ends_with_its_code() -> None:
    command = [sys.executable, "-c", LOOP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
        assert process.wait(20) == 143
