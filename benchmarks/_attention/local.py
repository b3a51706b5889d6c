"""Windows: predicted (`local-p`), moving with the step (`local-m`), fixed, expanded."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import isqrt

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import heed
from _attention.cases import BOTH, FORWARD, OURS, Case, Inputs, Row, Work, leaf, within
from _attention.measuring import Effort
from heed.attention.memory import Memory
from heed.attention.names import build
from heed.attention.reach import Reach, Reached
from heed.attention.score import ScaledDot
from heed.kernels import KERNELS
from heed.visible import Gaussian, Near, Places, Visible, both

STRAYING = 32  # how far from its own place a query may look, where places follow the text
PREDICTED = {  # B H T D, half a window
    "cuda": ((4, 16, 4096, 128, 128), (4, 16, 16384, 128, 128)),
    "cpu": ((1, 4, 2048, 64, 64),),
    "tiny": ((1, 2, 37, 8, 3),),
}
LENGTHS = {  # B H D, half a window, T from ... to, doubling
    "cuda": (1, 16, 128, 128, (4096, 131072)),
    "cpu": (1, 4, 64, 64, (1024, 16384)),
    "tiny": (1, 2, 8, 3, (16, 32)),
}
EAGERLY = {"cuda": 4096, "cpu": 4096}  # the longest T for which a table T T is made
FUSED = {"cuda": 32768, "cpu": 4096}  # the longest T for which SDPA looks at everything
GIVEN = "local-p, places"
MADE, THERE = "Flex, mask made", "Flex, mask there"
BLOCK = 128  # queries, and keys, that FlexAttention takes together
FLEXED = (4096, 65536)  # lengths at which FlexAttention is compiled for fixed windows
FUSED_WHOLE = 4096  # the longest T for which it looks at everything, far behind SDPA


class Given(Reach):
    """`local-p` whose places were predicted before."""

    def __init__(self, centre: Tensor, window: int) -> None:
        super().__init__()
        self.centre, self.window = centre, window

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        near = Near(self.centre.detach(), self.window)
        return Reached(memory, both(visible, near), Gaussian(self.centre, self.window / 2))


def plain(inputs: Inputs, rows: Tensor | None, half: int) -> Tensor:
    """Dot products under a table; with predicted places, times a Gaussian around them."""
    q, k, v = (inputs[name] for name in "qkv")
    centre = torch.arange(q.shape[2], device=q.device) if "p" not in inputs else inputs["p"]
    if rows is not None:
        q, centre = q[:, :, rows], centre[..., rows]
    energy = q @ k.mT * q.shape[-1] ** -0.5
    energy = energy.to(torch.promote_types(energy.dtype, torch.float32))
    away = torch.arange(k.shape[2], device=q.device) - centre[..., None]
    weight = energy.masked_fill(away.abs() > half, -torch.inf).softmax(-1)
    if "p" in inputs:
        weight = weight * torch.exp(-0.5 * (away / (half / 2)) ** 2)
    return weight.to(v.dtype) @ v


def cases(device: str, tiny: bool) -> Iterator[Case]:
    """Predicted windows; then fixed and expanded ones over longer and longer texts."""
    size = "tiny" if tiny else device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for n, (B, H, T, D, half) in enumerate(PREDICTED[size]):
        name = f"{B} × {H} × {T} × {D}, ± {half}"
        for along in (True, False) if n == 0 else (True,):
            aims = {FORWARD: (within(0.3),)} if device == "cuda" and n == 0 and along else {}
            yield Case(
                f"{GIVEN} {'along the text' if along else 'anywhere'}: {name}",
                partial(_given, (B, H, T, D), half, device, dtype, along),
                dtype,
                eager=n == 0,
                compiled=n == 0,
                flexed=3 if T <= FUSED_WHOLE else 2,
                targets=aims,
            )
        for mechanism in ("local-p", "local-m") if n == 0 else ():
            yield Case(
                f"{mechanism}, all of it: {name}",
                partial(_whole, mechanism, (B, H, T, D), half, device, dtype),
                dtype,
                compiled=False,
            )
    B, H, D, half, (first, last) = LENGTHS[size]
    for make, name in ((_fixed, "fixed-window"), (_expanded, "expanded-window")):
        T = first
        while last >= T:
            yield Case(
                f"{name}: {B} × {H} × {T} × {D}, ± {half}",
                partial(make, (B, H, T, D), half, device, dtype),
                dtype,
                eager=EAGERLY[device] >= T,
                compiled=False,
                flexed=int(make is _fixed and T in FLEXED),
            )
            T *= 2


def notes(rows: list[Row]) -> list[str]:
    """How much time grows where T doubles, and what it costs to make a mask at each step."""
    said = []
    for name in ("fixed-window", "expanded-window"):
        for way in (FORWARD, BOTH):
            some = [r for r in rows if r.case.startswith(name) and r.way == way]
            times = [r.seconds[OURS] for r in some if OURS in r.seconds]
            grown = ", ".join(f"{after / before:.2f}" for before, after in pairwise(times))
            if grown:
                sizes = ", blocks of √T" if name == "expanded-window" else ""
                said.append(f"{name}{sizes}, {way}: each doubling of T takes {grown} times as long")
    for row in rows:
        if row.way == FORWARD and row.seconds.keys() >= {MADE, THERE}:
            more = (row.bytes[MADE] - row.bytes[THERE]) / 2**20
            took = 1e3 * (row.seconds[MADE] - row.seconds[THERE])
            said.append(f"{row.case}: FlexAttention's mask takes {took:.3g} ms and {more:,.0f} MiB")
    return said


def _given(
    sizes: tuple[int, int, int, int], half: int, device: str, dtype: torch.dtype, along: bool
) -> Work:
    """Places that follow the text, as a trained model's do, or anywhere, as a new one's may."""
    B, H, T, D = sizes
    q, k, v = (leaf(*sizes, device=device, dtype=dtype) for _ in range(3))
    p = torch.rand(B, H, T, device=device)
    p = torch.arange(T, device=device) + STRAYING * (2 * p - 1) if along else p * (T - 1)
    p = p.clamp(0, T - 1).requires_grad_()
    mechanism = heed.Mechanism(score=ScaledDot(query=D, key=D), reach=Given(p, half))
    rivals: dict[str, Callable[[], Tensor]] = {
        "SDPA, no window": lambda: scaled_dot_product_attention(q, k, v)
    }
    if device == "cuda":
        rivals |= _flex_predicted((q, k, v), p.detach(), half, bare=T <= FUSED_WHOLE)
    return Work(
        {"q": q, "k": k, "v": v, "p": p},
        lambda: heed.attend(q, k, v, mechanism),
        partial(plain, half=half),
        rivals,
        _effort(q, 2 * half + 1),
    )


def _effort(q: Tensor, keys: float) -> Effort:
    """The effort where every query meets so many keys."""
    B, H, T, D = q.shape
    return Effort(products=4 * B * H * T * keys * D, bytes=4 * q.numel() * q.element_size())


def _flex_predicted(
    qkv: tuple[Tensor, Tensor, Tensor], p: Tensor, half: int, bare: bool
) -> dict[str, Callable[[], Tensor]]:
    """FlexAttention with a block mask, which each step makes anew from p; `bare`: without, too.

    It multiplies by the Gaussian before it normalises, so that its rows sum to one: to normalise
    as Luong does it would have to run twice.
    """
    T, sigma = qkv[0].shape[2], half / 2

    def near(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (s - p[b, h, t]).abs() <= half

    def fading(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        away = (s - p[b, h, t]) / sigma
        return score - 0.5 * away * away

    flex = torch.compile(flex_attention, dynamic=False)

    def mask() -> BlockMask:
        return block_mask(p, half, T, near)

    made = mask()
    rivals: dict[str, Callable[[], Tensor]] = {
        MADE: lambda: flex(*qkv, score_mod=fading, block_mask=mask()),
        THERE: lambda: flex(*qkv, score_mod=fading, block_mask=made),
    }
    if bare:
        rivals["Flex, no mask"] = lambda: flex(*qkv, score_mod=fading)
    return rivals


def block_mask(p: Tensor, half: int, S: int, near: Callable[..., Tensor]) -> BlockMask:
    """The blocks of keys within reach of p, marked query by query.    B H T

    `create_block_mask` asks every pair: compiled for a minute, or by a table of all pairs.
    """
    low = ((p - half).ceil().clamp(0, S - 1) // BLOCK).long()
    high = ((p + half).floor().clamp(0, S - 1) // BLOCK).long()
    low, high = (x.unflatten(-1, (-1, BLOCK)) for x in (low, high))
    met = torch.zeros(*low.shape[:3], S // BLOCK, dtype=torch.int8, device=p.device)
    for i in range(2 * half // BLOCK + 2):
        met.scatter_(3, (low + i).minimum(high), 1)
    order = met.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    counts = met.sum(-1, dtype=torch.int32)
    return BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=BLOCK, mask_mod=near)


def _whole(
    name: str, sizes: tuple[int, int, int, int], half: int, device: str, dtype: torch.dtype
) -> Work:
    """A mechanism by name, as a model has it: predicting the places is part of it."""
    D = sizes[3]
    mechanism = build(name, query=D, key=D, heads=sizes[1], window=half).to(device, dtype)
    return _by_reference(mechanism, sizes, 2 * half + 1, device, dtype)


def _fixed(sizes: tuple[int, int, int, int], half: int, device: str, dtype: torch.dtype) -> Work:
    q, k, v = (leaf(*sizes, device=device, dtype=dtype) for _ in range(3))
    rivals: dict[str, Callable[[], Tensor]] = {}
    T = sizes[2]
    if device == "cuda" and T in FLEXED:
        flex = torch.compile(flex_attention, dynamic=False)

        def near(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return (s - t).abs() <= half

        mask = block_mask(torch.arange(T, device=device)[None, None], half, T, near)
        rivals[THERE] = lambda: flex(q, k, v, block_mask=mask)
    if FUSED[device] >= T:
        rivals["SDPA, no window"] = lambda: scaled_dot_product_attention(q, k, v)
    return Work(
        {"q": q, "k": k, "v": v},
        lambda: heed.attend(q, k, v, visible=heed.window(half)),
        partial(plain, half=half),
        rivals,
        _effort(q, 2 * half + 1),
    )


def _expanded(sizes: tuple[int, int, int, int], half: int, device: str, dtype: torch.dtype) -> Work:
    D, T = sizes[3], sizes[2]
    mechanism = build("expanded-window", query=D, key=D, window=half, block=isqrt(T))
    work = _by_reference(mechanism, sizes, 2 * half + 1 + T**0.5, device, dtype)
    if FUSED[device] >= T:
        q, k, v = work.inputs.values()
        work.rivals = {"SDPA, no window": lambda: scaled_dot_product_attention(q, k, v)}
    return work


def _by_reference(
    mechanism: heed.Mechanism,
    sizes: tuple[int, int, int, int],
    keys: float,
    device: str,
    dtype: torch.dtype,
) -> Work:
    """A case whose plain formula is heed's reference, which is the definition."""
    q, k, v = (leaf(*sizes, device=device, dtype=dtype) for _ in range(3))
    twins = {dtype: mechanism, torch.float64: copy.deepcopy(mechanism).double()}

    def reference(inputs: Inputs, rows: Tensor | None) -> Tensor:
        q, k, v = inputs.values()
        used = twins[q.dtype]
        memory = used.remember(k, v)
        with heed.kernels.off(*KERNELS):
            if rows is None:
                return used(q, memory).context
            steps = [used(q[:, :, t : t + 1], memory, heed.State(t)) for t in rows.tolist()]
            return torch.cat([step.context for step in steps], 2)

    return Work(
        {"q": q, "k": k, "v": v},
        lambda: heed.attend(q, k, v, mechanism),
        reference,
        effort=_effort(q, keys),
    )
