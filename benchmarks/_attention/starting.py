"""The first call in a fresh process, nothing compiled before; and calls of other lengths after it.

python benchmarks/_attention/starting.py DEVICE prints seconds as JSON; `rows` has it do so.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _attention.cases import Row

LENGTHS = (128, 192, 77)


def seconds(device: str) -> dict[str, float]:
    """Seconds of the import, of the first call forward and backward, of calls of other lengths."""
    begin = time.perf_counter()
    import torch

    import heed

    found = {"import": time.perf_counter() - begin}
    attend = heed.Attention("additive", query=128, key=128).to(device)
    for n, T in enumerate((*LENGTHS, LENGTHS[-1])):
        q, k = torch.randn(8, T, 128, device=device), torch.randn(8, T + 9, 128, device=device)
        (q.sum() + (k @ k.mT).sum()).item()  # wakes the device
        begin = time.perf_counter()
        seen = attend(q, attend.remember(k))
        seen.context.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        called = ("first", "second length", "third length", "again")[n]
        found[called] = time.perf_counter() - begin
        with heed.kernels.off(*heed.kernels.KERNELS):
            twin = attend(q, attend.remember(k)).context
        if not torch.allclose(seen.context, twin, rtol=1e-3, atol=1e-4):
            sys.exit(f"the first calls are wrong at T={T}, so no time is reported")
    return {**found, "kernel": seen.kernel}  # type: ignore[dict-item]


def rows(device: str) -> Iterator["Row"]:
    """The figures as rows, from a process of their own with empty caches."""
    from _attention.cases import OURS, Row, Wrong

    with tempfile.TemporaryDirectory() as empty:
        caches = {"TRITON_CACHE_DIR": empty, "TORCHINDUCTOR_CACHE_DIR": empty}
        roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, __file__, device],
            capture_output=True,
            text=True,
            env={**os.environ, **caches, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
        )
    if done.returncode:
        raise Wrong(done.stderr.strip().splitlines()[-1])
    found = json.loads(done.stdout)
    kernel, limit = found.pop("kernel"), {"first": 5.0, "second length": 0.1, "third length": 0.1}
    for what, took in found.items():
        way = "" if what == "import" else "forward + backward"
        row = Row("starting", what, "fp32", way, kernel, {OURS: took})
        if what in limit:
            row.targets = [(f"≤ {limit[what]:g} s", took <= limit[what])]
        yield row


if __name__ == "__main__":
    print(json.dumps(seconds(sys.argv[1])))
