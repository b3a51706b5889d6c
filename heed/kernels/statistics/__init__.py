"""Statistics of attention from queries and keys alone: the weights are never formed.

Its twin is `heed.attention.statistics` of the weights of the reference. The kernel that serves the
call computes the context; this adds a second pass over q and k. If only statistics of rows are
requested, one pass may compute both (`together`).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heed.kernels.ability import lowered, needs_grad, no_triton, transformed
from heed.kernels.refusing import other_weights, several_dtypes
from heed.kernels.sight import Sight, peaks, sight
from heed.kernels.statistics.operator import rows as rows_of
from heed.kernels.statistics.operator import statistics
from heed.records import Call, Statistics, Summary
from heed.visible import Causal

WIDEST = 256
MOST = 8  # of the largest weights


def refusal(call: Call, asked: Summary) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    if (reason := other_weights(call, "dot")) is not None:
        return reason
    if not call.claims.is_row_wise:
        return "later energies depend on earlier weights, and it forms no weights"
    if call.even:
        return "a log-sum cannot count keys whose energies are all the same low number"
    if call.q.dtype == torch.float64 and call.q.is_cuda:
        return "it computes in float32"
    if call.q.shape[-1] > WIDEST and call.q.is_cuda:
        return f"it takes queries up to {WIDEST} wide, not {call.q.shape[-1]}"
    if asked.top > MOST:
        return f"it finds at most the {MOST} largest weights"
    if call.q.device.type not in ("cpu", "cuda"):
        return f"it runs on CUDA and on the CPU, not on {call.q.device.type}"
    return transformed() or (no_triton(call.q.device) if call.q.is_cuda else None)


@torch.no_grad()
def run(call: Call, asked: Summary, log_sum: Tensor | None) -> Statistics:
    """All but the exact rows, given log Σ exp(e) (B H T) if the context's kernel has it."""
    q, k = _as_fused(call.q.detach()), _as_fused(call.k.detach())
    seen, T, N = sight(call), q.shape[2], k.shape[2]
    rows, columns = (0, 0) if asked.map is None else (min(asked.map[0], T), min(asked.map[1], N))
    gain = peaks(call)
    total, facts, place, received, top, share, pooled = statistics(
        q,
        k,
        log_sum,
        *_tables(seen),
        _bias(call),
        gain,
        call.scale,
        1.0 if call.gain is None else call.gain.sigma,
        seen.first,
        -1 if seen.half is None else seen.half,
        seen.radius,
        seen.causal,
        call.sinks,
        min(asked.top, N),
        rows,
        columns,
    )
    mass, entropy, peak, expected, spread = facts.unbind()
    # A gain lowers weights and no energies: without it, the largest weight has the largest energy.
    bare = None if call.gain is None else run(replace(call, gain=None), Summary(), total)
    largest = _largest(total, mass, peak) if bare is None else bare.largest
    return Statistics(
        mass,
        entropy,
        peak,
        place,
        expected,
        spread,
        received if asked.received else None,
        total,
        largest,
        top if asked.top else None,
        share if asked.top else None,
        None if asked.map is None else pooled,
    )


def apart(call: Call, name: str, asked: Summary) -> str | None:
    """The reason why one pass cannot compute both context and statistics; None where it can.

    name  the kernel that would serve the call
    """
    if name != "sdpa":
        return f"{name} computes the context"
    if asked.received or asked.rows:
        return "more than the statistics of each query is requested"
    if needs_grad(call.q, call.k, call.v, call.bias):
        return "the context may need a gradient, and one pass saves nothing for it"
    if call.dropout:
        return "it has no dropout"
    reason = several_dtypes(call.q, call.k, call.v)
    if reason is not None and not torch.is_autocast_enabled("cuda"):
        return reason
    if call.v.shape[-1] > WIDEST:
        return f"it takes values up to {WIDEST} wide, not {call.v.shape[-1]}"
    return refusal(call, asked) or no_triton(call.q.device)


@torch.no_grad()
def together(call: Call) -> tuple[Tensor, Statistics]:
    """The context and the statistics of each row, for a call that `apart` does not refuse.

    B H T R, Statistics
    """
    seen = sight(call)
    context, facts, place = rows_of(
        *map(_as_fused, (call.q, call.k, call.v)),
        *_tables(seen),
        _bias(call),
        call.scale,
        seen.first,
        -1 if seen.half is None else seen.half,
        seen.radius,
        seen.causal,
        call.sinks,
        call.clean,
    )
    mass, entropy, peak, expected, spread, log_sum = facts.unbind()
    rows = (mass, entropy, peak, place, expected, spread)
    largest = _largest(log_sum, mass, peak)
    return context, Statistics(*rows, log_sum=log_sum, largest=largest)


def _largest(log_sum: Tensor, mass: Tensor, peak: Tensor) -> Tensor:
    """The largest energy of a softmax, whose weight is exp(e - log Σ exp(e)).    B H T"""
    return log_sum + (mass * peak).log()


def context(call: Call, name: str, run: Callable[[Call], Tensor]) -> tuple[Tensor, Tensor | None]:
    """The context from the chosen kernel, and log Σ exp(e) if that is returned too.

    PyTorch's fused attention computes each row's log-sum-exp but does not return it; the operator
    that it would choose returns both, which saves a pass over q and k.
    """
    if name != "sdpa" or not call.q.is_cuda or not _bare(call):
        return run(call), None
    causal = call.visible is not None and call.places.T > 1
    q, k, v = call.q, call.k, call.v
    chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=call.scale)
    aten = torch.ops.aten
    if chosen == 1:  # the numbers of torch.nn.attention.SDPBackend
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=call.scale)
    elif chosen == 3:
        out = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=call.scale
        )
    else:
        return run(call), None
    return out[0], out[1].detach()


def _bare(call: Call) -> bool:
    """Whether PyTorch's fused attention serves the call unchanged."""
    q, places = call.q, call.places
    plain = q.shape[1] == call.k.shape[1] and q.shape[-1] == call.v.shape[-1]
    half = q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0
    if not (plain and half) or call.bias is not None or call.dropout:
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda"):
        return False
    square = (places.S == places.T and not call.sinks) or places.T == 1
    causal = type(call.visible) is Causal and places.last_at_end and square
    return call.visible is None or causal


def _tables(seen: Sight) -> tuple[Tensor | None, ...]:
    """stop, exists, centre and table; booleans as bytes."""
    exists, table = (
        None if x is None else x.contiguous().view(torch.uint8) for x in (seen.exists, seen.table)
    )
    return seen.stop, exists, seen.centre, table


def _bias(call: Call) -> Tensor | None:
    """The bias of the energies, with four axes.    broadcasts to B H T N"""
    bias = call.bias
    return None if bias is None else bias.detach().reshape((1,) * (4 - bias.ndim) + bias.shape)


def _as_fused(x: Tensor) -> Tensor:
    """A tensor in the dtype in which fused attention would compute its energies."""
    dtype = None if x.dtype == torch.float64 else lowered(x.device)
    return x if dtype is None else x.to(dtype)
