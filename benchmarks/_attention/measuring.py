"""Time, memory, and what the machine can do at most.

On a GPU a time is the median between two events around each call, the second-level cache emptied
before it; on a CPU it is the best of many rounds, since other work on the machine can only add to
it. Contenders take turns, so that a busy machine slows them alike.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports itself otherwise

FLUSH = 256 * 2**20  # bytes: several times the second-level cache of any GPU
MOST = 60  # rounds


def synchronise(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(runs: Mapping[str, Run], device: str, budget: float) -> dict[str, float]:
    """Seconds that one call of each takes; `budget` seconds of measuring for each of them."""
    once = {name: _seconds(run, device) for name, run in runs.items()}  # also warms up
    once = {name: min(seconds, _seconds(runs[name], device)) for name, seconds in once.items()}
    rounds = {name: max(3, min(MOST, int(budget / x))) for name, x in once.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    events = []
    for turn in range(max(rounds.values())):
        for name, run in runs.items():
            if turn >= rounds[name]:
                continue
            if device == "cuda":
                events.append((name, _between(run)))
            else:
                found[name].append(_repeated(run, once[name]))
    synchronise(device)
    for name, (begin, end) in events:
        found[name].append(begin.elapsed_time(end) / 1e3)
    settle = median if device == "cuda" else min
    return {name: settle(seconds) for name, seconds in found.items()}


def _seconds(run: Run, device: str) -> float:
    synchronise(device)
    begin = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - begin


def _repeated(run: Run, once: float) -> float:
    """The mean over so many calls that the clock does not matter."""
    repeats = max(1, int(2e-3 / once))
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def _between(run: Run) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _flushing().zero_()
    begin.record()
    run()
    end.record()
    return begin, end


@cache
def _flushing() -> Tensor:
    return torch.empty(FLUSH, dtype=torch.int8, device="cuda")


def peak(run: Run, device: str) -> float:
    """The most bytes that a call holds at a time, beyond what was there before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return float(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    found = seen.profiler.kineto_results.events()
    events = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    return float(max(accumulate((size for _, size in events), initial=0)))


def captured(run: Run) -> Run:
    """The same run from a CUDA graph, as heed's recipes train: no time is lost in launching."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@dataclass(frozen=True)
class Effort:
    """The least that a computation must do in any implementation."""

    tanhs: float = 0  # or any other special function
    products: float = 0  # floating-point operations of matrix products
    bytes: float = 0  # each input read once, each output written once

    def __mul__(self, times: float) -> "Effort":
        return Effort(self.tanhs * times, self.products * times, self.bytes * times)


@dataclass(frozen=True)
class Limits:
    """What the machine does in a second, measured but for the special functions of a GPU."""

    tanhs: float
    products: float  # in the dtype of a case
    bytes: float

    def seconds(self, effort: Effort) -> float:
        """The least time that an effort takes."""
        return max(
            effort.tanhs / self.tanhs, effort.products / self.products, effort.bytes / self.bytes
        )


@cache
def limits(device: str, dtype: torch.dtype) -> Limits:
    """The limits of this machine.

    A streaming multiprocessor does 16 special functions in a cycle. A CPU does a tanh, by the
    factorised form with two sharing a reciprocal, in about 2.5 vector operations and half a
    division, counted here as three multiply-adds of a matrix product.
    """
    n = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    x = torch.empty(2**30 if device == "cuda" else 2**26, dtype=torch.int8, device=device)
    y = torch.empty_like(x)
    found = in_turns({"product": lambda: a @ b, "copy": lambda: y.copy_(x)}, device, 0.3)
    products = 2 * n**3 / found["product"]
    if device == "cuda":
        chip = torch.cuda.get_device_properties(0)
        tanhs = 16.0 * chip.multi_processor_count * getattr(chip, "clock_rate", 1.98e6) * 1e3
    else:
        tanhs = products / 2 / 3
    return Limits(tanhs, products, 2 * x.numel() / found["copy"])
