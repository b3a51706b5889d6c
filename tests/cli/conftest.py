"""Run the command as a user would, without a new process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from heed.cli import main


@dataclass
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Done]]:
    """command("list", "mechanisms") -> exit code, stdout, stderr"""

    def run(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["heed", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Done(int(stop.value.code or 0), out, err)

    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)
