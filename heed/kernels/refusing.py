"""What several kernels refuse, in the same words: each function says why, or gives None."""

import torch
from torch import Tensor

from heed.records import Call

SHORT = (torch.float32, torch.bfloat16, torch.float16)
"""The numbers that kernels read which compute in float32."""

COMPARED = {"dot": "dot products", "additive": "additive scores"}
"""How a family's energies are called."""


def other_weights(call: Call, family: str) -> str | None:
    """Why the weights are no softmax over the energies of this family."""
    if call.family != family:
        return f"it computes {COMPARED[family]}, not {call.family} scores"
    if call.align != "softmax":
        return f"it normalises by softmax, not {call.align}"
    return None


def more_than_context(call: Call) -> str | None:
    """Why the call wants something else than a context that blends values."""
    if call.need != "context":
        return f"the {call.need} was asked for, and fused attention forms none"
    if call.read != "blend":
        return f"it gathers values; a {call.read} does not"
    if call.past:
        return "it cannot hand earlier weights to the next step"
    return None


def additions(call: Call) -> str | None:
    """Why energies or keys come from elsewhere than queries and keys."""
    if call.bias is not None or call.sinks:
        return "it cannot add a bias, nor keys that stand nowhere"
    return None


def several_dtypes(*tensors: Tensor) -> str | None:
    """Why tensors cannot be read together."""
    if any(x.dtype != tensors[0].dtype for x in tensors):
        return "queries, keys and values differ in dtype"
    return None


def long_numbers(*tensors: Tensor) -> str | None:
    """Why float32 does not hold these numbers."""
    for x in tensors:
        if x.dtype not in SHORT:
            return f"its numbers are float32 or shorter, not {str(x.dtype).removeprefix('torch.')}"
    return None
