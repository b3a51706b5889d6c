"""Walking aligns in one launch: monotonic, forward, forced-forward; and mixtures of windows.

The reference steps through T in Python, and each step is a dozen passes over S; here the loop over
T is inside one kernel, for each head of each batch row. README.md derives the steps and their
gradients. Their twins are the loops of `heed.attention.moving_aligns`, which register themselves in
`operator.TWINS`, since only they are differentiable twice.

This kernel serves only the align of a call; the reference computes the score and the context.
"""

import torch
from torch import Tensor

from heed.kernels.ability import transformed
from heed.kernels.native import unbuilt
from heed.kernels.scan import operator
from heed.records import Call

ALIGNS = frozenset({"monotonic", "forward", "forced-forward", "mixture-window"})
"""The names of the aligns that it can serve."""


def refusal(call: Call) -> str | None:
    """The reason why the align of this call cannot be served; None where it can."""
    if call.align not in ALIGNS:
        return f"it moves along the keys; {call.align} does not"
    return refusal_of(call.align, torch.promote_types(call.q.dtype, torch.float32), call.q.device)


def refusal_of(align: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why an align cannot be served, by its name and its energies; or None."""
    if align not in ALIGNS:
        return f"it does not support {align}"
    if device.type == "cpu":
        if dtype not in (torch.float32, torch.float64):
            return f"it computes in float32 or float64, not in {str(dtype)[6:]}"
        return transformed() or unbuilt(device)
    if dtype != torch.float32:
        return f"on a GPU it computes in float32, not in {str(dtype)[6:]}"
    return transformed() or unbuilt(device)


def walk(
    kind: operator.Kind,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None = None,
    move: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of a walk: the weights, the last alignment, and the covered mass (only if forced).

    Energies B H T S, visible keys, B H S, B H S, B H T -> B H T S, B H S, B H S
    """
    B, H, T, S = energy.shape
    ok = None if ok is None else ok.expand(B, H, T, S)
    before = before.to(energy.dtype).expand(B, H, S)
    covered = None if covered is None else covered.to(energy.dtype).expand(B, H, S)
    move = None if move is None else move.expand(B, H, T)
    weight, last, used, _ = operator.scan(kind, energy, ok, before, covered, move)
    return weight, last, used


def spares(S: int, centre: Tensor) -> bool:
    """Whether a kernel is worth its launch: on a GPU, PyTorch computes a few million numbers faster
    than heed's kernel is launched.    B H T K"""
    return centre.device.type == "cpu" or centre.numel() * S > 1 << 24


def mix(height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int) -> Tensor:
    """Σ_k α_k exp(-β_k (κ_k - s)^2) where it is visible.    B H T K (three times) -> B H T S"""
    ok = None if ok is None else ok.expand(*centre.shape[:3], S)
    return operator.mixture(height, sharpness, centre, ok, S)
