"""Long work: events while it runs, the result at its end."""

from pathlib import Path

import pytest

from heed.events import Note, Progress, Stopped, Work, finish


def counting(to: int, told: list[int]) -> Work[int]:
    for i in range(to):
        told.append(i)
        yield Progress("counting", i + 1, to)
    return to * 10


def test_finish_does_all_of_the_work_and_returns_its_result() -> None:
    told: list[int] = []
    assert finish(counting(3, told)) == 30
    assert told == [0, 1, 2]


def test_nested_work_is_reported_in_order() -> None:
    def outer() -> Work[str]:
        yield Note("before")
        found = yield from counting(2, [])
        yield Note(f"after {found}")
        return "done"

    assert [str(event) for event in outer()] == [
        "Note(text='before')",
        "Progress(stage='counting', done=1, total=2, note='')",
        "Progress(stage='counting', done=2, total=2, note='')",
        "Note(text='after 20')",
    ]


def test_a_user_who_stopped_gets_a_command_to_paste() -> None:
    said = str(Stopped(Path("my runs/a"), 7, 130))
    assert said == "stopped and saved at step 7; to continue: heed train 'my runs/a' --resume"


def test_exceptions_are_passed_on() -> None:
    def failing() -> Work[None]:
        yield Note("so far")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        finish(failing())
