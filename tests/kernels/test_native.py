"""The native library: it is loaded or says why not, and compiles without warnings."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.additive import native as additive
from heed.kernels.additive.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
BUILT = native.missing() is None
needs_library = pytest.mark.skipif(not BUILT, reason=native.missing() or "")


@pytest.fixture
def another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another path for the loader, as if nothing had been loaded before."""
    path = tmp_path / "libheed.so"
    monkeypatch.setattr(native, "LIBRARY", path)
    native._loaded.cache_clear()
    yield path
    native._loaded.cache_clear()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(B: int = 8, T: int = 40, S: int = 50, D: int = 32) -> tuple[Tensor, ...]:
    shapes = ((B, 1, T, D), (B, 1, S, D), (B, 1, S, D), (1, D))
    return tuple(torch.randn(shape) for shape in shapes)


def test_with_a_compiler_there_is_a_library() -> None:
    assert BUILT or not shutil.which("cc")


def test_a_missing_library_is_a_reason_not_an_error(another_library: Path) -> None:
    assert "was not built" in (native.missing() or "")
    assert additive.forward(*inputs(), Plan())[0].isfinite().all()  # by PyTorch alone
    with pytest.raises(OSError, match="was not built"):
        native.level()


def test_a_damaged_library_is_a_reason_too(another_library: Path) -> None:
    another_library.write_bytes(b"not a library")
    assert "does not load" in (native.missing() or "")


@needs_library
def test_the_processor_has_an_instruction_set() -> None:
    assert native.level() in native.LEVELS


@needs_library
@pytest.mark.parametrize("function", ["forward", "backward", "prepare", "kept"])
def test_every_function_exists_for_every_instruction_set(function: str) -> None:
    library = ctypes.CDLL(str(native.LIBRARY))
    x86 = hasattr(library, "heed_additive_forward_avx2")
    for level in native.LEVELS if x86 else native.LEVELS[:1]:
        assert getattr(library, f"heed_additive_{function}_{level}")


@needs_library
def test_the_number_of_threads_changes_no_bit(threads: None) -> None:
    q, k, v, w = inputs()
    results = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        assert native.threads() == count
        context, log_sum = additive.forward(q, k, v, w, Plan())
        grads = additive.backward(v[:, :, :40], q, k, v, w, context, log_sum, Plan())
        results.append((context, log_sum, *grads[:4]))
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


@needs_library
def test_concurrent_callers_do_not_interfere() -> None:
    many = [inputs() for _ in range(8)]
    alone = [additive.forward(*each, Plan())[0] for each in many]
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(lambda each: additive.forward(*each, Plan())[0], many)
        assert all(torch.equal(x, y) for x, y in zip(alone, together, strict=True))


FORKED = """
import os, torch
from heed.kernels import native
from heed.kernels.additive import native as additive
from heed.kernels.additive.plan import Plan

torch.set_num_threads(2)
q, k, v = torch.randn(3, 8, 1, 64, 64)
w = torch.randn(1, 64)
want = additive.forward(q, k, v, w, Plan())[0]
child = os.fork()
if not child:
    assert native.threads() == 1
    same = torch.equal(additive.forward(q, k, v, w, Plan())[0], want)
    os._exit(0 if same else 1)
assert native.threads() == 2
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_not_wait_for_missing_threads() -> None:
    """As in the workers of a data loader: the threads stay in the parent process."""
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=60, cwd=ROOT)
    assert done.returncode == 0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files that a build needs."""
    pytest.importorskip("setuptools")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "heed/kernels/additive").mkdir(parents=True)
    for folder in (".", "additive"):  # one kernel stands for all
        for path in (ROOT / "heed/kernels" / folder).glob("*.[ch]"):
            shutil.copy(path, tmp_path / "heed/kernels" / folder)
    return tmp_path


def build(source: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_it_compiles_beside_the_package_without_a_warning(source: Path) -> None:
    done = build(source, CFLAGS="-Werror")
    assert done.returncode == 0, done.stderr
    assert (source / "heed/kernels/libheed.so").exists(), done.stderr


def test_without_a_compiler_heed_still_installs(source: Path) -> None:
    done = build(source, CC="no-such-compiler", LDSHARED="no-such-linker")
    assert done.returncode == 0, done.stderr
    assert not (source / "heed/kernels/libheed.so").exists()
