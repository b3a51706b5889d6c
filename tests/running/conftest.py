"""One server for the commands of a test file, and one run that is trained once and only read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running.small import Server, small, write_recipe


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`server.run("train", ...)`: a command in a process of its own, without the start-up time."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def trained(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("trained")
    done = server.run("train", write_recipe(folder, small()), "--run", folder / "run")
    assert done.code == 0, done.err
    return folder / "run"
