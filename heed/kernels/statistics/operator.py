"""The operator `heed::statistics`: Triton on a GPU, C or PyTorch on the CPU; no gradient flows.

`heed::rows`, in Triton alone, gives the context and the statistics of each row, in one pass.

The first gives, in this order (k is `top`, zero where not asked for):

    log Σ exp(e)                                   B H T
    mass, entropy, peak, expected place, spread    5 B H T
    place of the peak                              B H T
    what each key received                         B H N
    places and shares of the largest               B H T k, twice
    the pooled map                                 B H rows columns
"""

import torch
from torch import Tensor

from heed.kernels.statistics import native, plain
from heed.kernels.statistics.plan import Question
from heed.kernels.strides import dense


@torch.library.custom_op("heed::statistics", mutates_args=())
def statistics(
    q: Tensor,
    k: Tensor,
    log_sum: Tensor | None,
    stop: Tensor | None,
    exists: Tensor | None,
    centre: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    gain: Tensor | None,
    scale: float,
    sigma: float,
    first: int,
    half: int,
    radius: int,
    causal: bool,
    sinks: int,
    top: int,
    rows: int,
    columns: int,
) -> list[Tensor]:
    """All statistics of softmax(q·k) under what is seen, and a gain."""
    seen = (stop, exists, centre, table, bias, gain)
    cells = (rows, columns)
    question = Question(
        q, k, log_sum, *seen, scale, sigma, first, half, radius, causal, sinks, top, cells
    )
    if not q.is_cuda:
        with torch.autocast("cpu", enabled=False):  # energies stay in float32
            if native.serves(question):
                return native.summarise(question)
            return plain.summarise(question)
    from heed.kernels.statistics import forward

    with torch.cuda.device(q.device):
        return forward.summarise(question)


@statistics.register_fake
def _(
    q: Tensor,
    k: Tensor,
    log_sum: Tensor | None,
    stop: Tensor | None,
    exists: Tensor | None,
    centre: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    gain: Tensor | None,
    scale: float,
    sigma: float,
    first: int,
    half: int,
    radius: int,
    causal: bool,
    sinks: int,
    top: int,
    rows: int,
    columns: int,
) -> list[Tensor]:
    B, H, T, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    number, whole = q.new_empty((), dtype=wide), q.new_empty((), dtype=torch.int64)
    k_top = min(top, k.shape[2]) if top else 0
    return [
        number.new_empty(B, H, T),
        number.new_empty(5, B, H, T),
        whole.new_empty(B, H, T),
        number.new_empty(B, H, k.shape[2]),
        whole.new_empty(B, H, T, k_top),
        number.new_empty(B, H, T, k_top),
        number.new_empty(B, H, rows, columns),
    ]


@torch.library.custom_op("heed::rows", mutates_args=())
def rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stop: Tensor | None,
    exists: Tensor | None,
    centre: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    scale: float,
    first: int,
    half: int,
    radius: int,
    causal: bool,
    sinks: int,
    clean: bool,
) -> list[Tensor]:
    """softmax(q·k) v under what is seen, and the statistics of its rows, as `rows.attend` says."""
    from heed.kernels.statistics import rows

    seen = (stop, exists, centre, table, bias, None)
    question = Question(
        q, k, None, *seen, scale, 1.0, first, half, radius, causal, sinks, 0, (0, 0)
    )
    if not q.is_cuda:  # Triton's interpreter
        return rows.attend(question, v, clean)
    with torch.cuda.device(q.device):
        return rows.attend(question, v, clean)


@rows.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stop: Tensor | None,
    exists: Tensor | None,
    centre: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    scale: float,
    first: int,
    half: int,
    radius: int,
    causal: bool,
    sinks: int,
    clean: bool,
) -> list[Tensor]:
    B, H, T, _ = q.shape
    asked = dense(q)
    facts = q.new_empty((6, B, H, T), dtype=torch.float32)
    return [room(asked, v.shape[-1]), facts, q.new_empty((B, H, T), dtype=torch.int64)]


def room(q: Tensor, R: int) -> Tensor:
    """Memory for the context, laid out like the queries where possible.    B H T D -> B H T R"""
    like = torch.empty_like(q)
    same = q.shape[-1] == R and like.stride(-1) == 1
    return like if same else q.new_empty(*q.shape[:3], R)
