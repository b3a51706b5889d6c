"""Cross entropy of symbols, from logits or from what logits would be computed from.

The table of logits, B T V, is the largest thing that training would hold. `surprise_of` forms some
rows of it at a time and turns them into loss and gradients at once: no row is kept, none is formed
twice, and on a CPU no row of padding is formed at all. The caller says which label marks padding: 0
unless that is a symbol of the vocabulary, else a number below 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

PAD = 0
HELD = {"cpu": 6 * 2**20}  # logits at a time: not many cuts
HELD_ELSEWHERE = 2**22  # at least, what keeps a GPU busy; or as many as the output has weights


MOST_AT_ONCE = 2**30
"""How many logits are formed at once, where loss and gradients are compiled into one graph."""


class Unformed(Protocol):
    """The factors of logits that are not formed: known · weightᵀ + bias."""

    @property
    def known(self) -> Tensor:
        """B T M"""

    @property
    def weight(self) -> Tensor:
        """V M"""

    @property
    def bias(self) -> Tensor | None:
        """V"""


def surprise(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, none: int = PAD
) -> tuple[Tensor, Tensor]:
    """Cross entropy of every symbol, smoothed and not; zero where the label is `none`.

    B T V, B T -> B T, B T

    Smoothing gives every symbol an equal part of the target, Szegedy 2016 §7:
    (1 - ε)·(-log p(label)) + ε/V·Σ_v -log p(v). One table of log p serves both.
    """
    V = logits.shape[-1]
    log_p = logits.log_softmax(-1, dtype=_wide(logits.dtype))
    each = F.nll_loss(log_p.flatten(0, 1), labels.flatten(), ignore_index=none, reduction="none")
    nll = each.view_as(labels)
    if not smoothing:
        return nll, nll
    every = log_p.sum(-1) * (labels != none)
    return (1 - smoothing) * nll - smoothing / V * every, nll


def surprise_of(
    unformed: Unformed, labels: Tensor, smoothing: float = 0.0, none: int = PAD
) -> tuple[Tensor, Tensor]:
    """`surprise` without a table of logits: the smoothed SUM, and each symbol's -log p, detached.

    Equal to `surprise` of the formed logits, under autocast too. The gradients come with the loss;
    there are no second derivatives.    B T -> (), B T
    """
    known, weight, bias = unformed.known, unformed.weight, unformed.bias
    if _compiling.get() and labels.numel() * len(weight) <= MOST_AT_ONCE:
        total, nll = _graph()(known, weight, bias, labels, smoothing, none)
        return total, nll.detach()
    inputs = [x for x in (known, weight, bias) if x is not None]
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    given = (known.flatten(0, 1), weight, bias, labels.flatten(), smoothing, none, learning)
    total, nll = _Surprise.apply(*given)  # type: ignore[no-untyped-call]
    return total, nll.view_as(labels)


_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


@contextmanager
def compiled(on: bool = True) -> Iterator[None]:
    """Within it `surprise_of` is one compiled graph: faster on a GPU, but it takes more memory."""
    before = _compiling.set(on)
    try:
        yield
    finally:
        _compiling.reset(before)


@cache
def _graph() -> Any:
    return torch.compile(_formed)


def _formed(
    known: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, none: int
) -> tuple[Tensor, Tensor]:
    known = known.masked_fill((labels == none)[..., None], 0)  # padding may hold anything
    smooth, nll = surprise(F.linear(known, weight, bias), labels, smoothing, none)
    return smooth.sum(), nll


class _Surprise(torch.autograd.Function):
    """The logits of some rows at a time, their loss, and at once its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        known: Tensor,  # N M
        weight: Tensor,  # V M
        bias: Tensor | None,
        labels: Tensor,  # N
        smoothing: float,
        none: int,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        there = labels != none
        real = there.nonzero()[:, 0] if labels.is_cpu else None  # on a GPU this would wait
        kept, right = (known, labels) if real is None else (known[real], labels[real])
        there = there if real is None else there[real]
        right = right.clamp(min=0) if none < 0 else right  # padding is looked up, too
        narrow = _lowered(weight)
        cast = None if bias is None else bias.to(narrow)
        rows = _Rows.of(kept.to(narrow), weight.to(narrow), cast, right, there, smoothing)
        with _no_autocast(weight):
            rows.go(learning)
        if learning:
            d_known = _spread(rows.d_known, real, known).to(known.dtype)
            d_bias = None if bias is None else rows.d_bias.to(bias.dtype)
            ctx.save_for_backward(d_known, rows.d_weight.to(weight.dtype), d_bias)
        nll = _spread(rows.nll, real, labels)
        ctx.mark_non_differentiable(nll)
        return rows.total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if x is None else x * by.to(x.dtype) for x in ctx.saved_tensors)
        return (*scaled, None, None, None, None)


class _Rows(NamedTuple):
    """Rows to be predicted, and the sums over those that are done."""

    known: Tensor  # N M
    weight: Tensor  # V M
    bias: Tensor | None
    right: Tensor  # N
    there: Tensor  # N
    smoothing: float
    total: Tensor
    nll: Tensor  # N
    d_known: Tensor  # N M
    d_weight: Tensor  # V M
    d_bias: Tensor  # V

    @staticmethod
    def of(
        known: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        right: Tensor,
        there: Tensor,
        smoothing: float,
    ) -> _Rows:
        """Rows of which none is done; the sums are float32 or wider."""
        (N, _), V, wide = known.shape, len(weight), _wide(known.dtype)
        total, nll = known.new_zeros((), dtype=wide), known.new_empty(N, dtype=wide)
        d_weight = torch.zeros_like(weight, dtype=wide)
        sums = (total, nll, torch.empty_like(known), d_weight, total.new_zeros(V))
        return _Rows(known, weight, bias, right, there, smoothing, *sums)

    def parts(self) -> Iterator[slice]:
        """Slices of like size, none small at the end."""
        N, V = len(self.known), len(self.weight)
        held = HELD.get(self.known.device.type, max(HELD_ELSEWHERE, self.weight.numel()))
        size = max(1, -(-N // max(1, -(-N * V // held))))
        return (slice(i, i + size) for i in range(0, N, size))

    def go(self, learning: bool) -> None:
        """Go through all rows, in the same memory: new pages take longer than what fills them."""
        parts = list(self.parts())
        room = self.weight.new_empty(parts[0].stop if parts else 0, len(self.weight))
        for part in parts:
            p = self.judge(part, room[: len(self.right[part])])
            if learning:
                self.learn(part, p)

    def judge(self, part: slice, logits: Tensor) -> Tensor:
        """Add up the loss of some rows.    -> p, n V, on a CPU in the room for the logits"""
        right, there, wide = self.right[part], self.there[part], self.total.dtype
        if self.bias is None:
            torch.mm(self.known[part], self.weight.t(), out=logits)
        else:
            torch.addmm(self.bias, self.known[part], self.weight.t(), out=logits)
        own, most = logits.gather(1, right[:, None])[:, 0], logits.amax(1)
        mean = logits.mean(1, dtype=wide) if self.smoothing else None
        place = logits if logits.is_cpu and logits.dtype == wide else None
        p = torch.softmax(logits, 1, wide, out=place)
        # log Σ exp is the largest logit less the log of its p, and that p is no less than 1/V.
        norm = most - p.amax(1).log()
        self.nll[part] = (norm - own) * there
        self.total.add_(self.nll[part].sum(), alpha=1 - self.smoothing)
        if mean is not None:
            self.total.add_(((norm - mean) * there).sum(), alpha=self.smoothing)
        return p

    def learn(self, part: slice, p: Tensor) -> None:
        """Add up the gradients; the logits' is p - (1 - ε)·[v = right] - ε/V, zero at padding."""
        right = self.right[part, None]
        d_logits = p.scatter_(1, right, p.gather(1, right) - (1 - self.smoothing))
        if self.smoothing:
            d_logits = d_logits.sub_(self.smoothing / len(self.weight))
        if not p.is_cpu:  # on a CPU padding was left out
            d_logits = d_logits.mul_(self.there[part, None])
        self.d_bias.add_(d_logits.sum(0))
        d_logits = d_logits.to(self.weight.dtype)
        torch.mm(d_logits, self.weight, out=self.d_known[part])
        if self.d_weight.dtype == d_logits.dtype:
            self.d_weight.addmm_(d_logits.t(), self.known[part])
        else:
            self.d_weight.add_(d_logits.t() @ self.known[part])


def _spread(rows: Tensor, at: Tensor | None, like: Tensor) -> Tensor:
    """The rows where they were, zero elsewhere."""
    if at is None:
        return rows
    return rows.new_zeros(like.shape).index_copy_(0, at, rows)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _lowered(weight: Tensor) -> torch.dtype:
    """The type in which autocast would compute a product."""
    kind = weight.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else weight.dtype


def _no_autocast(x: Tensor) -> AbstractContextManager[object]:
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()
