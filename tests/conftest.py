"""What every test relies on: a fixed seed, no deadlines for property tests, a GPU if asked for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from tests.sampling import sample

# The first call of a mechanism can be far slower than the next, so a deadline would fail at random.
hypothesis.settings.register_profile("heed", deadline=None, print_blob=True)
hypothesis.settings.load_profile("heed")

# Processes that tests start import this checkout, whichever heed is installed.
ROOT = str(Path(__file__).resolve().parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

# Without a GPU, Triton's interpreter runs the kernels; it must be chosen before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A machine that runs the tests in the background ignores SIGINT, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tests put what they make: cpu or cuda")
    parser.addoption("--thorough", action="store_true", help="run every case, rather than a sample")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") != "cpu":
        torch.set_default_device(config.getoption("--device"))


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--thorough"):
        return "cases: all"
    return "cases: those in which all pairs of parameters' values meet; all of them with --thorough"


LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)  # after -k and -m: a sample of what they ask for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if not config.getoption("--thorough"):
        kept = sample(items)
        config.stash[LEFT_OUT] = len(items) - len(kept)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has left out the same cases."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} cases left out, which --thorough runs")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Each test draws the same numbers, whichever worker runs it and in whatever order."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if torch.cuda.is_available():
            torch.manual_seed(0)
        else:  # which keeps a call and its traceback for each kind of device that is not there
            torch.default_generator.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def room(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free the GPU memory of a test, since other workers may need it."""
    yield
    if request.node.get_closest_marker("gpu"):
        torch.cuda.empty_cache()
