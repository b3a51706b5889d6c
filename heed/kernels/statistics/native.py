"""Statistics on the CPU: the calls of `native.c`."""

from dataclasses import replace

import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.native import address
from heed.kernels.statistics.plan import Question, touched

ROWS = 48
"""The most rows of a task: their energies fit a core's cache up to some 2,000 keys."""
TASKS = 16
"""The fewest tasks that work is cut into, if there are as many rows."""
SCRATCH = 2**22
"""The most numbers that tasks hold for keys and cells before they are added up."""

_say = native.Function("heed_statistics", "55q2d")


def serves(question: Question) -> bool:
    """Whether the library is there, and computes in the dtype of the question."""
    return question.q.dtype != torch.float64 and native.missing() is None


def summarise(question: Question) -> list[Tensor]:
    """Everything, as `operator` says; in float32."""
    q, k = question.q.float(), question.k.float()
    bias = None if question.bias is None else question.bias.float()
    question = replace(question, q=q, k=k, bias=bias)
    (B, H, T, D), (G, N) = q.shape, k.shape[1:3]
    rows, columns = question.map
    log_sum, facts = q.new_empty(B, H, T), q.new_empty(5, B, H, T)
    place, received = q.new_empty(B, H, T, dtype=torch.int64), q.new_zeros(B, H, N)
    best, share = place.new_empty(B, H, T, question.top), q.new_empty(B, H, T, question.top)
    pooled = q.new_zeros(B, H, rows, columns)
    said = (log_sum, facts, place, received, best, share, pooled)
    if not place.numel():
        return list(said)
    chunk = min(ROWS, T, max(6, -(-B * H * T // TASKS)))
    tasks = B * H * -(-T // chunk)
    cells = 0 if question.map == (T, N) else touched(chunk, T, rows) * columns
    part = N + cells  # numbers; a map with a cell for every pair has nothing to sum
    some = max(1, min(tasks, SCRATCH // part))
    packed = q.new_empty(B * G * -(-N // 16) * 16 * D)
    parts, spans = q.new_empty(some, part), place.new_empty(some, 2)
    seen = (question.stop, question.exists, question.centre, question.table, bias, question.gain)
    for begin in range(0, tasks, some):
        _say(
            *map(address, (q, k, packed)),
            *(B, H, G, T, question.S, N, D, *q.stride()[:3], *k.stride()[:3]),
            *map(address, seen),
            *(*question.strides(), *question.strides_of_gain()),
            *(question.first, question.half, question.radius, question.causal),
            *(question.top, rows, columns),
            *map(address, (*said, parts, spans)),
            *(part, chunk, begin, min(begin + some, tasks)),
            *(question.scale, question.sigma),
        )
    return list(said)
