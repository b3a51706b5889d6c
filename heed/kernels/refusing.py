"""Refusals that several kernels share: each function returns the reason, or None."""

import torch
from torch import Tensor

from heed.records import Call

SHORT = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of inputs for kernels that compute in float32."""

COMPARED = {"dot": "dot products", "additive": "additive scores"}
"""The name of each family's energies."""


ALIGN, READ = "softmax", "blend"
"""The align and the read that fused kernels compute."""


def other_weights(call: Call, family: str) -> str | None:
    """The reason why the weights are not a softmax over the energies of this family."""
    if call.family != family:
        return f"it computes {COMPARED[family]}, not {call.family} scores"
    if call.align != ALIGN:
        return f"it normalises by softmax, not {call.align}"
    return None


def more_than_context(call: Call) -> str | None:
    """The reason why the call needs more than a context that is a weighted sum of values."""
    if call.need != "context":
        return f"the {call.need} was requested, and fused attention forms none"
    if call.read != READ:
        return f"it sums values; a {call.read} does not"
    if not call.claims.is_row_wise:
        return "it cannot pass earlier weights to the next step"
    return None


def additions(call: Call) -> str | None:
    """The reason why energies or keys do not come from queries and keys alone."""
    if call.bias is not None or call.sinks:
        return "it cannot add a bias, or keys without a position"
    return None


def several_dtypes(*tensors: Tensor) -> str | None:
    """The reason why tensors cannot be read together."""
    if any(x.dtype != tensors[0].dtype for x in tensors):
        return "queries, keys and values differ in dtype"
    return None


def long_numbers(*tensors: Tensor) -> str | None:
    """The reason why float32 does not hold these numbers."""
    for x in tensors:
        if x.dtype not in SHORT:
            return f"it takes float32 or shorter, not {str(x.dtype).removeprefix('torch.')}"
    return None
