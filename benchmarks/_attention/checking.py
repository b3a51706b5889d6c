"""Contract 5: an error against float64 of at most 2× (gradients 3×) that of plain PyTorch.

A few epsilons at that magnitude are allowed, too. The size that is timed is checked; where rows of
queries do not depend on each other, some of them are, with gradients that come from them alone, so
that float64 needs little memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _attention.cases import Inputs, Plain, Work

ROWS = 24

# Epsilons that are nothing to worry about, in float32 and in half precision. In float32 they are of
# numbers of size one, such as the inputs, or of the largest where that is more, since the mean of
# thousands of values is small and its error is not; PyTorch's own fused attention needs 18 for
# gradients at S = 1024. Half precision is added up in float32 and only rounded at the end.
OUT, GRAD = (4, 2), (24, 4)


def contract(work: Work) -> list[str]:
    """What is wrong with heed's results and gradients; empty where nothing is."""
    ours = work.ours().context
    rows = None if work.whole else some_rows(ours.shape[2], ours.device)
    weight = torch.zeros_like(ours)
    if rows is None:
        weight.normal_()
    else:
        weight[:, :, rows] = torch.randn_like(ours[:, :, rows])
    found = _chosen(ours, rows).detach(), _gradients(ours, weight, work.inputs)
    weight = _chosen(weight, rows)
    plainly = _evaluated(work.plain, work.inputs, rows, weight)
    truth = _evaluated(work.plain, _double(work.inputs), rows, weight.double())
    with torch.no_grad():  # without gradients a kernel may take another path
        alone = _chosen(work.ours().context, rows)
    complaints = [
        complaint(what, context, plainly[0], truth[0], 2)
        for what, context in (("the context", found[0]), ("the context without gradients", alone))
    ]
    complaints += [
        complaint(f"the gradient of {name}", found[1][name], plainly[1][name], exact, 3, GRAD)
        for name, exact in truth[1].items()
    ]
    return [said for said in complaints if said]


def some_rows(T: int, device: torch.device) -> Tensor:
    """Some rows: the first, the last, and some between."""
    if T <= ROWS:
        return torch.arange(T, device=device)
    between = torch.randperm(T - 2, device="cpu")[: ROWS - 2] + 1
    return torch.cat([torch.tensor([0]), between.sort().values, torch.tensor([T - 1])]).to(device)


def complaint(
    what: str,
    ours: Tensor,
    plain: Tensor,
    truth: Tensor,
    times: float,
    epsilons: tuple[float, float] = OUT,
) -> str:
    """Why an error is too large; empty where it is not."""
    error, allowed = _error(ours, truth), times * _error(plain, truth)
    half = plain.dtype.itemsize < 4
    largest = max(float(truth.abs().max()) if truth.numel() else 0.0, 0.0 if half else 1.0)
    allowed = max(allowed, epsilons[half] * torch.finfo(plain.dtype).eps * largest)
    if error <= allowed:  # not so for NaN
        return ""
    return f"{what} is off by {error:.2e}, {allowed:.2e} is allowed"


def _error(x: Tensor, truth: Tensor) -> float:
    return float((x.double() - truth).abs().max()) if truth.numel() else 0.0


def _chosen(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x[:, :, rows]


def _double(inputs: Inputs) -> Inputs:
    return {name: x.detach().double().requires_grad_() for name, x in inputs.items()}


def _gradients(out: Tensor, weight: Tensor, inputs: Inputs) -> Inputs:
    found = torch.autograd.grad(out, list(inputs.values()), weight, allow_unused=True)
    pairs = zip(inputs.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


def _evaluated(
    plain: Plain, inputs: Inputs, rows: Tensor | None, weight: Tensor
) -> tuple[Tensor, Inputs]:
    out = plain(inputs, rows)
    return out.detach(), _gradients(out, weight.to(out.dtype), inputs)
