"""Additive attention: score, softmax and read together, of queries and keys already projected."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import heed
from _attention.cases import (
    BOTH,
    CAPTURED,
    COMPILED,
    EAGER,
    FORWARD,
    Case,
    Inputs,
    Target,
    Work,
    faster,
    leaf,
    leaner,
    within,
)
from _attention.measuring import Effort
from heed.attention.score import Additive

SIZES = {  # B·H T S D, and the milliseconds aimed at
    "cuda": (
        (8, 4096, 4096, 128, 4.1),
        (16, 1024, 1024, 128, 0.55),
        (32, 512, 512, 128, 0.29),
        (64, 64, 64, 512, 0.06),
    ),
    "cpu": ((16, 128, 128, 256, None), (64, 32, 32, 512, None), (4, 512, 512, 128, None)),
    "tiny": ((2, 9, 13, 8, None),),
}
STEPS = {"cuda": (2048, 128, 512), "cpu": (64, 128, 512), "tiny": (3, 7, 8)}  # B S D


class Projected(Additive):
    """The additive score of queries and keys that are projected already."""

    def __init__(self, vector: Tensor) -> None:
        D = vector.shape[-1]
        super().__init__(query=D, key=D, heads=len(vector), groups=len(vector))
        del self.query_weight, self.key_weight
        self.score_vector = nn.Parameter(vector)

    def ask(self, query: Tensor) -> Tensor:
        return query

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return keys


def plain(inputs: Inputs, rows: Tensor | None, causal: bool = False) -> Tensor:
    """softmax(w·tanh(q + k)) v.    B H T D -> B H T D"""
    q, k, v, w = inputs.values()
    places = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    q = q if rows is None else q[:, :, rows]
    energy = linear(torch.tanh(q[:, :, :, None] + k[:, :, None]), w)[..., 0]
    energy = energy.to(torch.promote_types(energy.dtype, torch.float32))
    if causal:
        ahead = torch.arange(k.shape[2], device=q.device) > places[:, None]
        energy = energy.masked_fill(ahead, -torch.inf)
    return energy.softmax(-1).to(v.dtype) @ v


def cases(device: str, tiny: bool) -> Iterator[Case]:
    """The sizes of an encoder-decoder up to those of long texts; then one step of decoding."""
    half = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = SIZES["tiny" if tiny else device]
    for n, (B, T, S, D, aim) in enumerate(sizes):
        small = device == "cuda" and B * T * S * D < 2**28
        more = (FORWARD + CAPTURED, BOTH + CAPTURED) if small else ()
        yield Case(
            f"{B} × {T} × {S} × {D}",
            partial(_work, (B, T, S, D), device, half),
            half,
            passes=(FORWARD, BOTH, *more),
            targets=_targets(device, n, aim, small),
        )
    B, T, S, D, _ = sizes[min(1, len(sizes) - 1)]
    if device == "cuda":
        yield Case(
            f"{B} × {T} × {S} × {D}",
            partial(_work, (B, T, S, D), device, torch.float32),
            torch.float32,
        )
    yield Case(
        f"{B} × {T} × {S} × {D}, causal",
        partial(_work, (B, T, T, D), device, half, causal=True),
        half,
    )
    B, S, D = STEPS["tiny" if tiny else device]
    more = (FORWARD + CAPTURED,) if device == "cuda" else ()
    yield Case(
        f"a step of decoding: {B} × 1 × {S} × {D}",
        partial(_step, (B, S, D), device, half),
        half,
        passes=(FORWARD, *more),
    )


def _targets(device: str, n: int, aim: float | None, small: bool) -> dict[str, tuple[Target, ...]]:
    if device == "cpu":
        return {FORWARD: (faster(EAGER, 20),), BOTH: (faster(EAGER, 10),)}
    forward = () if aim is None else (within(aim),)
    if small:
        return {FORWARD + CAPTURED: forward}
    lean = (leaner(EAGER, 0.01),) if n == 0 else ()
    return {
        FORWARD: (*forward, faster(COMPILED, 4.5), faster(EAGER, 15), *lean),
        BOTH: (faster(COMPILED, 4.5), *lean),
    }


def _work(
    sizes: tuple[int, int, int, int], device: str, dtype: torch.dtype, causal: bool = False
) -> Work:
    B, T, S, D = sizes
    q, k, v = (leaf(B, 1, n, D, device=device, dtype=dtype) for n in (T, S, S))
    w = (torch.randn(1, D, device=device) * D**-0.5).to(dtype)
    mechanism = heed.Mechanism(score=Projected(w))
    visible = heed.causal() if causal else None
    pairs = B * T * S * (0.5 if causal else 1)
    return Work(
        {"q": q, "k": k, "v": v, "w": mechanism.score.score_vector},
        lambda: heed.attend(q, k, v, mechanism, visible),
        partial(plain, causal=causal),
        effort=Effort(
            tanhs=pairs * D,
            products=2 * pairs * D,
            bytes=(2 * q.numel() + k.numel() + v.numel()) * q.element_size(),
        ),
    )


def _step(sizes: tuple[int, int, int], device: str, dtype: torch.dtype) -> Work:
    """One query of each row to a memory that was prepared before."""
    B, S, D = sizes
    work = _work((B, 1, S, D), device, dtype)
    q, k, v, w = work.inputs.values()
    mechanism = heed.Mechanism(score=Projected(w.detach()))
    work.inputs["w"] = mechanism.score.score_vector
    with torch.no_grad():
        kept = mechanism.remember(k, v)

    def ours() -> heed.Attended:
        asked = torch.is_grad_enabled()  # the check wants gradients of the keys; decoding does not
        return mechanism(q, mechanism.remember(k, v) if asked else kept, heed.State())

    work.ours = ours
    return work
