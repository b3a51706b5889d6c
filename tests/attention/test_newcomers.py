"""A new name needs no entry in the lists of any test: its claims are enough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("catalogue", "claims", "contracts", "gradients", "align", "score", "attention",
         "functional", "learning", "synonyms", "trace")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_over_the_catalogue_take_a_new_name_as_it_is() -> None:
    files = [str(HERE / f"test_{name}.py") for name in FILES]
    files.append(str(HERE.parent / "watching" / "test_walk.py"))
    only = "new-score or new-align or new-reach"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.attention.newcomers", *files]
    done = subprocess.run(
        [*command, "-k", only, "-p", "no:cacheprovider"],
        cwd=HERE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = int(done.stdout.rpartition(" passed")[0].split()[-1])
    assert passed > 100
