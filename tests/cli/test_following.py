"""Progress of long work: on a terminal, in a file, and with --quiet."""

import re
from io import StringIO

import pytest
from rich.console import Console

from heed.cli import following
from heed.cli.following import follow
from heed.errors import Refused
from heed.events import Note, Progress, Work


def work(steps: int = 5) -> Work[str]:
    yield Progress("reading", 0)
    yield Note("3 pairs [kept]")
    for step in range(steps):
        yield Progress("training", step + 1, steps, f"loss [s{step}]")
    return "done"


def plainly(events: Work[str]) -> list[str]:
    file = StringIO()
    assert follow(events, console=Console(file=file)) == "done"
    return file.getvalue().splitlines()


def on_a_terminal(events: Work[str], width: int = 80) -> str:
    file = StringIO()
    terminal = Console(file=file, force_terminal=True, width=width, legacy_windows=False)
    assert follow(events, console=terminal) == "done"
    return file.getvalue()


def test_without_a_terminal_a_stage_reports_beginning_and_end() -> None:
    assert plainly(work()) == [
        "reading",
        "3 pairs [kept]",
        "training 1/5  loss [s0]",
        "training 5/5  loss [s4]",
    ]


def test_without_a_terminal_progress_is_reported_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "EVERY", 0.0)
    assert len(plainly(work(7))) == 2 + 7


def test_without_a_known_total_the_count_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def counting() -> Work[str]:
        yield Progress("tokenising", 2000)
        return "done"

    assert plainly(counting()) == ["tokenising 2000"]


def test_on_a_terminal_there_is_a_bar_with_the_time_left() -> None:
    shown = on_a_terminal(work())
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    last = plain.replace("\r", "\n").splitlines()
    bars = [line for line in last if "training" in line]
    assert bars
    assert "━" in bars[-1]
    assert "5/5" in bars[-1]
    assert re.search(r"\d:\d\d:\d\d left", bars[-1])
    assert bars[-1].rstrip().endswith("loss [s4]")
    assert "3 pairs [kept]" in plain  # a note stays above the bar, and is not read as markup


def test_a_narrow_terminal_cuts_only_the_note() -> None:
    shown = on_a_terminal(work(), width=70)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n")
    assert "5/5" in plain
    assert "left" in plain
    assert max(map(len, plain.splitlines())) <= 70


def test_a_new_stage_replaces_the_last() -> None:
    shown = on_a_terminal(work())
    end = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).rpartition("reading")[2]
    assert "training" in end


def test_quiet_prints_nothing() -> None:
    file = StringIO()
    assert follow(work(), quiet=True, console=Console(file=file, force_terminal=True)) == "done"
    assert file.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_exceptions_are_passed_on(terminal: bool) -> None:
    def failing() -> Work[str]:
        yield Progress("reading", 0)
        raise Refused("no such file")

    with pytest.raises(Refused, match="no such file"):
        follow(failing(), console=Console(file=StringIO(), force_terminal=terminal))


@pytest.mark.parametrize("terminal", [True, False])
def test_no_note_controls_the_terminal(terminal: bool) -> None:
    """It may quote a sample, a label or the first line of a file."""

    def telling() -> Work[str]:
        yield Progress("training", 1, 2, "\x9b5A\u202eloss")
        yield Note("sample: \x1b]0;title\x07\nheed: done \u202e")
        return "done"

    shown = on_a_terminal(telling()) if terminal else "\n".join(plainly(telling()))
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert r"sample: \x1b]0;title\x07 heed: done \u202e" in plain
    assert not set("\x07\x9b\u202e") & set(shown)
