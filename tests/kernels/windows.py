"""Calls with windows, and their results in plain PyTorch: shared by the tests of every kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

import heed
from heed.attention.memory import Memory
from heed.attention.reach import ExpandedWindow, FixedWindow, LocalM, Reached
from heed.records import Call, Claims
from heed.visible import Gaussian, Near, Places, Visible, both

DOUBLE = torch.float64
REACHES = ("local-p", "local-m", "fixed-window", "expanded-window")
TABLES = ("everything", "causal", "padded", "holes", "causal and padded")

# How many epsilons of the largest number are tolerated. For outputs, as many as in additive
# attention: a GPU's 2^x, accurate to two units, is applied to energies that are sums of D products.
OUT, GRAD = 8, 16


@dataclass(frozen=True)
class Case:
    """One call: which window, lengths, widths, and other masks."""

    reach: str
    table: str
    T: int
    S: int
    heads: tuple[int, int] = (2, 2)
    widths: tuple[int, int] = (8, 8)
    half: int = 3
    dtype: torch.dtype = torch.float32
    B: int = 2
    dropout: float = 0.0
    size: float = 1.0  # the magnitude of queries and keys
    device: str = "cpu"

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.reach}-{self.table}-{self.T}x{self.S}-{self.heads}-{self.widths}-{kind}"

    def leaves(self) -> list[Tensor]:
        """Queries, keys, values and centres.    B H T D, B G S D, B G S R, B H T"""
        (H, G), (D, R), B = self.heads, self.widths, self.B
        shapes = (B, H, self.T, D), (B, G, self.S, D), (B, G, self.S, R)
        q, k, v = (torch.randn(s, device=self.device, dtype=DOUBLE) for s in shapes)
        centre = torch.rand(B, H, self.T, device=self.device) * (self.S + 3) - 2
        return [
            *((x * y).to(self.dtype) for x, y in ((q, self.size), (k, self.size), (v, 1))),
            centre,
        ]

    def visible(self) -> Visible | None:
        """The masks beside the window."""
        if self.table == "everything":
            return None
        count = torch.tensor([self.S, (self.S + 1) // 2, 0][: self.B], device=self.device)
        place = torch.arange(self.B * self.S, device=self.device).view(self.B, self.S)
        holes = Visible.keys(place * 7 % 5 > 1)
        return {
            "causal": heed.causal(),
            "padded": heed.lengths(count),
            "holes": holes,
            "causal and padded": heed.causal() & heed.lengths(count),
        }[self.table]

    def call(self, q: Tensor, k: Tensor, v: Tensor, centre: Tensor) -> Call:
        """As `apply` would make it."""
        places = Places(self.T, self.S, 0, self.S - self.T, q.device)
        found = self.reached(q, k, v, centre, places)
        memory = found.memory
        return Call(
            family="dot", q=q, k=memory.k, v=memory.v, scale=q.shape[3] ** -0.5, vector=None,
            visible=found.visible, gain=found.gain, bias=found.bias, places=places, claims=Claims(),
            align="softmax", read="blend", dropout=self.dropout, need="context",
        )  # fmt: skip

    def reached(self, q: Tensor, k: Tensor, v: Tensor, centre: Tensor, places: Places) -> Reached:
        visible = self.visible()
        of_keys = None if visible is None else visible.split()[0]
        memory = Memory(k, v, of_keys)
        if self.reach == "local-p":
            near = Near(centre.detach().float(), self.half)
            return Reached(memory, both(visible, near), Gaussian(centre, self.half / 2))
        reach = {
            "local-m": lambda: LocalM(window=self.half),
            "fixed-window": lambda: FixedWindow(window=self.half),
            "expanded-window": lambda: ExpandedWindow(window=self.half, block=isqrt(self.S)),
        }[self.reach]()
        found: Reached = reach(q, memory, places, visible)
        return found


def plain(call: Call, kept: Tensor | None = None) -> Tensor:
    """The plain computation: everything in the input's dtype, the softmax in float32."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    ok = call.dense_visible()
    assert ok is not None
    k, v = (x.repeat_interleave(call.q.shape[1] // x.shape[1], 1) for x in call.cleaned(ok))
    energy = (call.q @ k.mT).to(wide) * call.scale
    energy = energy if call.bias is None else energy + call.bias.to(wide)
    sighted = ok.any(-1, keepdim=True)
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1) * sighted
    if call.gain is not None:
        weight = weight * call.gain.dense(call.places)
    if kept is not None:
        weight = weight * kept / (1 - call.dropout)
    return weight.to(call.q.dtype) @ v


def with_gradients(f: Callable[..., Tensor], leaves: list[Tensor], loss: Tensor) -> list[Tensor]:
    """The output, and the gradients of its inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    out = f(*leaves)
    grads = torch.autograd.grad(out, leaves, loss.to(out.dtype), allow_unused=True)
    return [out.detach(), *(x for x in grads if x is not None)]


def assert_near(
    got: list[Tensor], by_hand: list[Tensor], exact: list[Tensor], energy: float, slope: float
) -> None:
    """Contract 5, for an output and then its gradients; energies are rounded at their magnitude.

    slope  the largest |grad·v|: the gradients of queries and keys are differences of such numbers,
    and that of a key is a sum over all queries, whose errors add like a random walk
    """
    for i, (x, y, z) in enumerate(zip(got, by_hand, exact, strict=True)):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert torch.isfinite(x).all()
        times, epsilons = (2, OUT) if i == 0 else (3, GRAD)
        walk = got[0].shape[2] ** 0.5 if i == 2 else 1.0
        largest = z.abs().max().clamp(min=slope * walk if i in (1, 2) else 1).item()
        floor = epsilons * torch.finfo(x.dtype).eps * energy * largest
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        error = (x.double() - z).abs().max().item()
        assert error <= allowed, f"number {i}: off by {error:.2e}, {allowed:.2e} is allowed"


def introduce(case: Case, attend: Callable[[Call], Tensor]) -> None:
    """Compare a kernel with its twin, on outputs and gradients."""
    leaves = case.leaves()
    B, H, T, _ = leaves[0].shape
    loss = torch.randn(B, H, T, case.widths[1], device=case.device, dtype=DOUBLE).to(case.dtype)
    wide = [x.double() for x in leaves]
    exact = with_gradients(lambda *x: plain(case.call(*x)), wide, loss)
    by_hand = with_gradients(lambda *x: plain(case.call(*x)), leaves, loss)
    got = with_gradients(lambda *x: attend(case.call(*x)), leaves, loss)
    values = case.call(*wide).v.repeat_interleave(H // case.heads[1], 1)
    slope = max(1.0, (loss.double() @ values.mT).abs().max().item())
    assert_near(got, by_hand, exact, max(1.0, case.size**2), slope)
    ok = case.call(*leaves).dense_visible()
    assert ok is not None
    hidden = ~ok.any(-1).expand(B, H, T)
    assert not got[0][hidden].any()  # exactly zero, and so are its gradients
    assert not got[1][hidden].any()
