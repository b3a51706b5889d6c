"""What `make` would run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_set_up_does_not_print_that_pip_itself_is_old() -> None:
    """The pip of a new .venv is as old as Python; its notice would be all that a set-up says."""
    command = ["make", "--dry-run", "--always-make", "setup"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line for line in told.replace("\\\n", " ").splitlines() if "pip install" in line]
    assert len(installs) == 1
    assert "--quiet --disable-pip-version-check" in installs[0]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_what_the_sanitizers_run_is_there() -> None:
    # A make around this test would say which folder it leaves, and hand on its arguments.
    around = ("MAKEFLAGS", "MAKELEVEL", "ARGS")
    own = {name: x for name, x in os.environ.items() if name not in around}
    command = ["make", "--dry-run", "sanitize"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=own)
    *_, run = done.stdout.replace("\\\n", " ").strip().splitlines()
    files = run.split('"not triton and not compile"')[1].split()
    assert "tests/kernels" in files
    assert all((ROOT / file).exists() for file in files)
