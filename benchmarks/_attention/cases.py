"""A case: inputs, ours, the plain formula, rivals, the least effort, and what is aimed at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from _attention import checking
from _attention.measuring import Effort, Run, captured, in_turns, limits, peak
from heed.records import Attended

FORWARD, BOTH = "forward", "forward + backward"
CAPTURED = ", captured"
OURS, EAGER, COMPILED = "heed", "eager", "torch.compile"

Inputs = dict[str, Tensor]
Plain = Callable[[Inputs, Tensor | None], Tensor]
"""The formula in PyTorch with a float32 softmax, of the named rows of queries or of all."""


@dataclass(eq=False)
class Work:
    """What a case computes, with its tensors."""

    inputs: Inputs  # all of them get gradients
    ours: Callable[[], Attended]
    plain: Plain
    rivals: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    check: Callable[[Work], list[str]] = checking.contract
    whole: bool = False  # rows depend on each other, so that none can be checked alone

    def context(self) -> Tensor:
        """heed's result."""
        return self.ours().context


@dataclass(frozen=True)
class Target:
    """What is aimed at: a sentence, and whether a row of figures meets it."""

    said: str
    met: Callable[[Row], bool]


def faster(than: str, times: float) -> Target:
    """A target: so many times the speed of a rival."""
    return Target(f"≥ {times:g}× {than}", lambda row: row.ratio(than) >= times)


def within(milliseconds: float) -> Target:
    """A target: no more than so many milliseconds."""
    return Target(f"≤ {milliseconds:g} ms", lambda row: row.seconds[OURS] <= milliseconds / 1e3)


def leaner(than: str, share: float) -> Target:
    """A target: no more than such a share of a rival's memory."""
    return Target(
        f"≤ {share:.0%} of {than}'s memory",
        lambda row: than not in row.bytes or row.bytes[OURS] <= share * row.bytes[than],
    )


def barely_slower(than: str, share: float, seconds: float) -> Target:
    """A target: adding at most a share of a rival's time, or so many seconds."""

    def met(row: Row) -> bool:
        theirs = row.seconds.get(than)
        return theirs is None or row.seconds[OURS] - theirs <= max(share * theirs, seconds)

    return Target(f"adds ≤ max({share:.0%}, {seconds * 1e6:g} µs) to {than}", met)


@dataclass(frozen=True)
class Case:
    """One line of a table, or two: forward, and forward with backward."""

    name: str
    make: Callable[[], Work]
    dtype: torch.dtype
    passes: tuple[str, ...] = (FORWARD, BOTH)
    eager: bool = True  # time the plain formula
    compiled: bool = True  # and the same under torch.compile
    flexed: int = 0  # how many rivals FlexAttention has to compile on a GPU
    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    backward: float = 2.0  # how many times the forward's effort both passes are

    @property
    def compiles(self) -> int:
        """How many rivals are compiled."""
        return self.compiled + self.flexed


@dataclass
class Row:
    """The figures of one pass of a case."""

    section: str
    case: str
    dtype: str
    way: str
    kernel: str
    seconds: dict[str, float]
    bytes: dict[str, float] = field(default_factory=dict)
    share: float | None = None  # of the physical limit
    targets: list[tuple[str, bool]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # rivals, and why they have no figure

    def ratio(self, than: str) -> float:
        """How many times faster than a rival; one that cannot do it at all is infinitely slow."""
        lost = float("inf")
        return self.seconds.get(than, lost) / self.seconds.get(OURS, lost)


class Wrong(Exception):
    """A result that does not keep contract 5: there is no speed to report."""


def measure(section: str, case: Case, device: str, budget: float) -> Iterator[Row]:
    """Check a case, then time it pass by pass."""
    work = case.make()
    try:
        complaints = work.check(work)
    except torch.OutOfMemoryError:
        lost = {OURS: "out of memory"}
        yield Row(section, case.name, _short(case.dtype), case.passes[0], "", {}, failed=lost)
        return
    if complaints:
        raise Wrong(f"{'; '.join(complaints)}; so no speed is reported")
    with torch.no_grad():
        kernel = work.ours().kernel
    effort = case_effort(case, work)
    for way in case.passes:
        row = Row(section, case.name, _short(case.dtype), way, kernel, {})
        runs = {}
        for name, run in contenders(case, work, way):
            made = _ready(name, run, way, device, row)
            if made is not None:
                runs[name] = made
        row.seconds = in_turns(runs, device, budget)
        least = limits(device, case.dtype).seconds(effort[way.removesuffix(CAPTURED)])
        row.share = least / row.seconds[OURS] if least else None
        aims = case.targets.get(way, ())
        row.targets = [(target.said, bool(target.met(row))) for target in aims]
        yield row


def case_effort(case: Case, work: Work) -> dict[str, Effort]:
    """The least effort of each pass."""
    return {FORWARD: work.effort, BOTH: work.effort * case.backward}


def contenders(case: Case, work: Work, way: str) -> Iterator[tuple[str, Run]]:
    """heed and all it is compared with, as calls of one pass."""
    yield OURS, _pass(work, work.context, way)
    plain, inputs = work.plain, work.inputs
    if case.eager:
        yield EAGER, _pass(work, lambda: plain(inputs, None), way)
    if case.compiled:
        compiled = torch.compile(plain, dynamic=False)
        yield COMPILED, _pass(work, lambda: compiled(inputs, None), way)
    for name, rival in work.rivals.items():
        yield name, _pass(work, rival, way)


def _pass(work: Work, compute: Callable[[], Tensor], way: str) -> Run:
    leaves = list(work.inputs.values())

    def forward() -> None:
        with torch.no_grad():
            compute()

    def both() -> None:
        out = compute()
        if out.requires_grad:  # making a mask has no gradient
            torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return forward if way.startswith(FORWARD) and not way.startswith(BOTH) else both


def _ready(name: str, run: Run, way: str, device: str, row: Row) -> Run | None:
    """Warm up a contender and note its memory; None, the reason noted, if a rival cannot do it."""
    try:
        run()  # compiles what is to be compiled
        row.bytes[name] = peak(run, device)
        return captured(run) if way.endswith(CAPTURED) else run
    except (RuntimeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException) as error:
        if name == OURS:
            raise
        memory = isinstance(error, torch.OutOfMemoryError)
        row.failed[name] = "out of memory" if memory else "not able"
        if not memory:
            said = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
            print(f"{name} is left out of {row.case}: {said}", file=sys.stderr)
        if device == "cuda":
            torch.cuda.empty_cache()
        return None


Job = tuple[Case, str, int]
"""A case, one of its passes, and the number of one of its compiled rivals."""


def compiling(case: Case) -> list[Job]:
    """The jobs of a case that can be compiled ahead, into the cache on the disk."""
    ways = dict.fromkeys(way.removesuffix(CAPTURED) for way in case.passes)
    return [(case, way, n) for way in ways for n in range(case.compiles)]


def warm(job: Job, device: str) -> None:
    """Compile the rival of a job; nothing is timed."""
    case, way, n = job
    work, row = case.make(), Row("", case.name, "", way, "", {})
    some = [x for x in contenders(case, work, way) if x[0] == COMPILED or "Flex" in x[0]]
    for name, run in some[n :: case.compiles]:
        _ready(name, run, way, device, row)


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16"}[dtype]


def leaf(*shape: int, device: str, dtype: torch.dtype, scale: float = 1.0) -> Any:
    """A random tensor that requires a gradient."""
    return (scale * torch.randn(shape, device=device)).to(dtype).requires_grad_()
