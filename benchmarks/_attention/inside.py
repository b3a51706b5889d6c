"""Looking inside: the context together with statistics of the weights, none of which is kept."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import heed
from _attention import checking, dot
from _attention.cases import FORWARD, OURS, Case, Inputs, Row, Target, Work, leaf
from _attention.measuring import Effort
from heed.attention.statistics import statistics, summarise
from heed.records import Statistics, Summary

SIZES = {  # B H T D
    "cuda": ((4, 16, 4096, 128), (4, 16, 16384, 128), (1, 1, 131072, 128)),
    "cpu": ((1, 8, 1024, 64), (1, 1, 8192, 64)),
    "tiny": ((1, 2, 37, 8),),
}
ASKED, ROWS = Summary(top=8, map=(256, 256)), Summary(received=False)
WHOLE = 2**31  # no more weights than this are all checked
EAGERLY = {"cuda": 2**33, "cpu": 2**27}  # weights that plain PyTorch may form
SDPA, BARE, SILENT = "SDPA alone", "no top, no map", "one pass, nothing said"
PLACES = ("place", "top")


def cases(device: str, tiny: bool) -> Iterator[Case]:
    """Everything together, against SDPA that says nothing and against weights that are formed."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for n, sizes in enumerate(SIZES["tiny" if tiny else device]):
        B, H, T, _ = sizes
        for asked in (ASKED, ROWS):
            aims = [Target("≤ 2× SDPA alone", lambda row: row.ratio(SDPA) >= 0.5)] * (n == 0)
            if T > 2**16:
                aims += [Target("≤ 1 GiB", lambda row: row.bytes[OURS] <= 2**30)]
            if asked is ROWS and device == "cuda":
                said = "≤ 1.3× the same kernel, nothing said"
                aims += [Target(said, lambda row: row.ratio(SILENT) >= 1 / 1.3)]
            yield Case(
                " × ".join(map(str, sizes)) + (", of queries alone" if asked is ROWS else ""),
                partial(_work, sizes, device, dtype, asked),
                dtype,
                passes=(FORWARD,),
                eager=EAGERLY[device] > B * H * T * T,
                compiled=False,
                targets={FORWARD: tuple(aims)},
            )


def notes(rows: list[Row]) -> list[str]:
    """Notes on what was asked for."""
    return [
        f"everything: {ASKED.top} largest shares, a map of {ASKED.map}, and every statistic",
        "of queries alone: mass, entropy, peak and its place, expected place, spread, log-sum-exp",
    ] * bool(rows)


def _work(
    sizes: tuple[int, int, int, int], device: str, dtype: torch.dtype, asked: Summary
) -> Work:
    B, H, T, D = sizes
    q, k, v = (leaf(*sizes, device=device, dtype=dtype) for _ in range(3))
    pairs = B * H * T * T

    def eagerly(inputs: Inputs, rows: Tensor | None) -> Tensor:
        """Form weights and all their statistics that are asked for; of some rows, the context."""
        if rows is not None:
            return dot.plain(inputs, rows)
        q, k, v = inputs.values()
        weight = _weights(q, k)
        statistics(weight, asked)
        return weight.to(v.dtype) @ v

    rivals: dict[str, Callable[[], Tensor]] = {
        SDPA: lambda: scaled_dot_product_attention(q, k, v),
    }
    if asked is ASKED:
        rivals[BARE] = lambda: heed.attend(q, k, v, statistics=True).context
    elif device == "cuda":
        rivals[SILENT] = _silent(q, k, v)
    return Work(
        {"q": q, "k": k, "v": v},
        lambda: heed.attend(q, k, v, statistics=asked),
        eagerly,
        rivals,
        Effort(
            tanhs=(2 if asked is ASKED else 1) * pairs,
            products=(6 if asked is ASKED else 4) * pairs * D,
            bytes=(6 if asked is ASKED else 4) * q.numel() * q.element_size(),
        ),
        partial(check, asked=asked),
    )


def _silent(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """The kernel that gives context and statistics in one pass, asked for the context alone."""
    from heed.kernels.statistics.plan import Question
    from heed.kernels.statistics.rows import attend

    q, k, v = (x.detach() for x in (q, k, v))
    nobody: tuple[Any, ...] = (None,) * 7
    question = Question(q, k, *nobody, q.shape[-1] ** -0.5, 1.0, 0, -1, 0, False, 0, 0, (0, 0))
    return lambda: attend(question, v, clean=True, said=False)[0]


def _weights(q: Tensor, k: Tensor) -> Tensor:
    energy = q @ k.mT * q.shape[-1] ** -0.5
    return energy.to(torch.promote_types(energy.dtype, torch.float32)).softmax(-1)


def check(work: Work, asked: Summary) -> list[str]:
    """Contract 5 of the context and of each statistic.

    Where the weights are too many to be formed in float64 even a block at a time, statistics are
    checked of some rows, and those of keys and cells by their sums.
    """
    complaints = checking.contract(work)
    with torch.no_grad():
        both = work.ours()  # without gradients one pass may serve
        seen = both.statistics
        q, k, v = (work.inputs[name].detach() for name in "qkv")
        B, H, T, _ = q.shape
        rows = checking.some_rows(T, q.device)
        plain, exact = (_weights(q[:, :, rows].to(x), k.to(x)) for x in (q.dtype, torch.float64))
        complaints += [_placed(seen.place[:, :, rows, None], plain, exact, q.dtype)]
        read = (plain.to(v.dtype) @ v, exact @ v.double())
        complaints += [checking.complaint("context", both.context[:, :, rows], *read, 2)]
        if B * H * T * T <= WHOLE:
            said, truth = (_blockwise(q.to(x), k.to(x), asked) for x in (q.dtype, torch.float64))
        else:
            complaints += _sums(seen)
            seen = _of(seen, rows)
            said, truth = (_of(statistics(x, asked), None) for x in (plain, exact))
    return [each for each in complaints + _compared(seen, said, truth) if each]


def _placed(place: Tensor, plain: Tensor, exact: Tensor, dtype: torch.dtype) -> str:
    """Check the place of the largest weight; it may be any of those that are nearly equal."""
    peak = exact.amax(-1, keepdim=True)
    ours, theirs = (peak - exact.gather(-1, at) for at in (place, plain.argmax(-1, keepdim=True)))
    few = 8 * torch.finfo(dtype).eps * float(peak.max())
    if float(ours.max()) <= max(2 * float(theirs.max()), few):
        return ""
    return f"the largest weight is said to be where it is smaller by {float(ours.max()):.2e}"


def _blockwise(q: Tensor, k: Tensor, asked: Summary) -> Statistics:
    """The statistics by their definition, a block of queries at a time."""

    def weights(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        energy = q[:, :, start:stop] @ k.mT * q.shape[-1] ** -0.5
        energy = energy.to(torch.promote_types(energy.dtype, torch.float32))
        return energy.softmax(-1), energy.logsumexp(-1), energy.amax(-1)

    return summarise(weights, (*q.shape[:3], k.shape[2]), asked, apart=True)


def _of(seen: Statistics, rows: Tensor | None) -> Statistics:
    """The statistics of some queries, without those of keys and cells."""
    kept: dict[str, Any] = {"received": None, "map": None}
    for name in (
        "mass",
        "entropy",
        "peak",
        "place",
        "expected",
        "spread",
        "log_sum",
        "largest",
        "top",
        "share",
    ):
        x = getattr(seen, name)
        kept[name] = x if rows is None or x is None else x[:, :, rows]
    return Statistics(**kept)


def _sums(seen: Statistics) -> list[str]:
    """Check that keys receive, and a map holds, as much as queries give."""
    if seen.map is None or seen.received is None:
        return []
    given = seen.mass.double().sum(-1)
    received = seen.received.double().sum(-1)
    held = seen.map.double().sum((-1, -2)) * seen.mass.shape[-1] / seen.map.shape[-2]
    return [
        f"{what} adds up to {float(x.max()):.6g}, not {float(given.max()):.6g}"
        for what, x in (("what keys receive", received), ("the map", held))
        if not torch.allclose(x, given, rtol=1e-3)
    ]


def _compared(seen: Statistics, plain: Statistics, truth: Statistics) -> list[str]:
    """Check every statistic that is a number; places have a check of their own."""
    found = []
    for name, exact in truth._asdict().items():
        ours, theirs = getattr(seen, name), getattr(plain, name)
        if exact is None or ours is None or theirs is None or name in PLACES:
            continue
        found.append(checking.complaint(name, ours, theirs, exact, 2))
    return found
