"""Aligns that move along the keys: each step starts from where the last one stood.

Their slot in the state says where that was. First the mathematics of one step, then that of many,
which `heed.kernels.scan` does in one launch; then the parts.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.attention.align import Align, Aligned, weighed
from heed.attention.initial_weights import drawn
from heed.attention.past import fitted
from heed.attention.score import constant, linear, parameter
from heed.kernels import scan as kernel
from heed.records import Claims
from heed.shapes import real, whole


def scan(factor: Tensor, term: Tensor) -> Tensor:
    """x_j = factor_j · x_{j-1} + term_j along the last axis, in log2 S passes, no division."""
    span = 1
    while span < factor.shape[-1]:
        term = term + factor * _shifted(term, span)
        factor = factor * _shifted(factor, span)
        span *= 2
    return term


def monotonic_step(chance: Tensor, before: Tensor) -> Tensor:
    """The place where a left-to-right reader stops, given its last. Raffel 2017 eq. 8-12.

    q_j = (1 - p_{j-1}) q_{j-1} + a_{t-1,j},  a_tj = p_j q_j.    B H S, B H S -> B H S
    """
    return chance * scan(_shifted(1 - chance, 1), before)


def forward_step(energy: Tensor, before: Tensor, ok: Tensor | None, move: Tensor) -> Tensor:
    """a_t(s) ∝ ((1 - u) a_{t-1}(s) + u a_{t-1}(s-1)) exp(e_t(s)). Zhang 2018 eq. 5, 10.

    s - 1 is the place before s; weight on a run of hidden places before s advances to s as well, so
    that gaps are crossed. move u: B H 1, a half where staying and advancing are equally likely.
    B H S -> B H S
    """
    arriving = _shifted(before, 1)
    if ok is not None:
        arriving = scan(_shifted((~ok).to(before.dtype), 1), arriving)
    return weighed(energy, (1 - move) * before + move * arriving, ok)


def forced_step(energy: Tensor, before: Tensor, covered: Tensor, ok: Tensor | None) -> Tensor:
    """a_t(s) ∝ exp(e_t(s)) · (1 - min(1, cov(s))) · Σ_{s'<=s} a_{t-1}(s').    B H S -> B H S

    What is fully used keeps a trace (1e-6), so that the last place can be held when none is left.
    """
    return weighed(energy, (1 - covered).clamp(min=1e-6) * before.cumsum(-1), ok)


def mixture(height: Tensor, sharpness: Tensor, centre: Tensor, places: Tensor) -> Tensor:
    """Σ_k α_k exp(-β_k (κ_k - s)^2). Graves 2013 eq. 46.    B H T K (three times), S -> B H T S"""
    away = centre[..., None, :] - places[:, None]
    return (height[..., None, :] * (-sharpness[..., None, :] * away * away).exp()).sum(-1)


def _from_query(query: Tensor, weight: Tensor, energy: Tensor) -> Tensor:
    """A linear map of queries, as precise as the energies.    B H T M, H D M -> B H T D"""
    return linear(query.to(energy.dtype), weight.to(energy.dtype))


def _shifted(x: Tensor, by: int) -> Tensor:
    """x_{j-by}, zero before the beginning."""
    return pad(x, (by, 0))[..., : x.shape[-1]]


def _unless_lost(weight: Tensor, before: Tensor) -> Tensor:
    """The weights; or, where all are zero (all that is visible lies behind), `before`.    B H S"""
    return torch.where(weight.sum(-1, keepdim=True) > 0, weight, before)


def _unless_blind(seen: Tensor, after: Any, before: Any) -> Any:
    """The new slot; or, where a step sees nothing, the slot as it was.    B H S"""
    if isinstance(after, tuple):
        return tuple(_unless_blind(seen, a, b) for a, b in zip(after, before, strict=True))
    return torch.where(seen.any(-1, keepdim=True), after, before)


def one_by_one(
    walk: Callable[[int, Tensor, Tensor | None, Any], tuple[Tensor, Any]],
    energy: Tensor,
    ok: Tensor | None,
    slot: Any,
) -> tuple[Tensor, Any]:
    """Walk over T: step t takes energies and visibility B H S and the slot, and gives the next."""
    rows = [None] * energy.shape[2] if ok is None else ok.expand_as(energy).unbind(2)
    steps = []
    for t, seen in enumerate(rows):
        weight, after = walk(t, energy[:, :, t], seen, slot)
        slot = after if seen is None else _unless_blind(seen, after, slot)
        steps.append(weight)
    return torch.stack(steps, 2), slot


def _monotonic(
    energy: Tensor, ok: Tensor | None, before: Tensor, move: None, hard: bool = False
) -> tuple[Tensor, Tensor]:
    """One step of `Monotonic`: its weights are the slot, even where it has read past the end."""
    chance = (energy > 0).to(energy.dtype) if hard else torch.sigmoid(energy)
    weight = monotonic_step(chance if ok is None else chance * ok, before)
    return weight, weight


def _forward(
    energy: Tensor, ok: Tensor | None, before: Tensor, move: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One step of `Forward`: its weights, and the slot, where it stands now."""
    if move is None:
        move = energy.new_full((), 0.5)  # made on the device: nothing is copied to a GPU
    weight = forward_step(energy, before, ok, move)
    return weight, _unless_lost(weight, before)


def _forced(
    energy: Tensor, ok: Tensor | None, before: tuple[Tensor, Tensor], move: None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of `ForcedForward`: its weights, and the slot, where it stands and what is used."""
    last, covered = before
    weight = forced_step(energy, last, covered, ok)
    return weight, (_unless_lost(weight, last), covered + weight)


STEPS: dict[str, Callable[..., tuple[Tensor, Any]]] = {
    "monotonic": _monotonic,
    "hard": partial(_monotonic, hard=True),
    "forward": _forward,
    "forced": _forced,
}
"""One step of each walk: B H S, who is visible, the slot, how likely it is to advance."""


def _twin(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
) -> tuple[Tensor, ...]:
    """The slow twin of `kernel.walk`, step by step: the weights, and the slot after them."""

    def walk(t: int, energy: Tensor, seen: Tensor | None, slot: Any) -> tuple[Tensor, Any]:
        return STEPS[kind](energy, seen, slot, None if move is None else move[:, :, t, None])

    weight, slot = one_by_one(walk, energy, ok, before if covered is None else (before, covered))
    return weight, *(slot if isinstance(slot, tuple) else (slot,))


def _twin_mixture(
    height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int
) -> Tensor:
    """The slow twin of `kernel.mix`, which forms all the windows."""
    places = torch.arange(S, device=centre.device, dtype=centre.dtype)
    weight = mixture(height, sharpness, centre, places)
    return weight if ok is None else weight * ok


kernel.operator.TWINS.update(scan=_twin, mixture=_twin_mixture)


class Moving(Align):
    """An align that moves along the keys: each step starts from where the last one stood."""

    claims = Claims(is_row_wise=False, ignores_shifts=False, needs_line=True)
    kind: kernel.operator.Kind
    """Which of `STEPS` it takes; one of your own overrides `walk` instead."""

    def begin(self, like: Tensor, ok: Tensor | None) -> Any:
        """Before the first step, all weight is on the first place that is visible.    B H S"""
        first = like.new_zeros(like.shape, dtype=torch.long) if ok is None else ok.long()
        return torch.zeros_like(like).scatter(-1, first.argmax(-1, keepdim=True), 1.0)

    def fit(self, slot: Any, S: int) -> Any:
        """The slot for a memory that has grown, or was cut, to S places."""
        return fitted(slot, S)

    def start(self, energy: Tensor, ok: Tensor | None, before: Any) -> Any:
        """The slot that the first step starts from.    B H T S, who is visible, the slot or None"""
        if before is None:
            first = None if ok is None else ok.expand_as(energy)[:, :, 0]
            before = self.begin(energy[:, :, 0], first)
        return self.fit(before, energy.shape[-1])

    def adjusted(self, energy: Tensor) -> Tensor:
        """The energies as the steps take them."""
        return energy

    def move(self, energy: Tensor, query: Tensor) -> Tensor | None:
        """How likely it is to advance, where a query says so.    B H T M -> B H T"""
        return None

    def walk(
        self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor
    ) -> tuple[Tensor, Any]:
        """One step: B H S, who is visible, the slot, the query B H M -> weight B H S, the slot"""
        return STEPS[self.kind](energy, ok, before, self.move(energy, query[:, :, None]))

    def forward(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        def step(t: int, energy: Tensor, seen: Tensor | None, slot: Any) -> tuple[Tensor, Any]:
            return self.walk(energy, seen, slot, query[:, :, t])

        slot = self.start(energy, ok, before)
        return Aligned(*one_by_one(step, self.adjusted(energy), ok, slot))

    def by_kernel(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        energy, slot = self.adjusted(energy), self.start(energy, ok, before)
        last, covered = slot if isinstance(slot, tuple) else (slot, None)
        move = self.move(energy, query)
        weight, last, used = kernel.walk(self.kind, energy, ok, last, covered, move)
        return Aligned(weight, last if covered is None else (last, used))

    def stood(self, energy: Tensor, ok: Tensor | None, before: Any) -> dict[str, Tensor]:
        return {"stood": self.start(energy, ok, before)}


class Forward(Moving):
    """Stay or advance by one: a_t(s) ∝ (a_{t-1}(s) + a_{t-1}(s-1)) exp(e_t(s)). Zhang 2018.

    agent  learn from the query how likely it is to advance (the transition agent)
    """

    formula = "a_t(s) ∝ (a_{t−1}(s) + a_{t−1}(s−1)) exp(e)"
    kind = "forward"

    def __init__(self, *, query: int, heads: int = 1, agent: bool = False) -> None:
        super().__init__()
        self.agent = parameter(heads, 1, query) if agent else None

    def move(self, energy: Tensor, query: Tensor) -> Tensor | None:
        """The probability that it advances.    B H T M -> B H T"""
        if self.agent is None:
            return None
        return torch.sigmoid(_from_query(query, self.agent, energy)[..., 0])

    def facts(self, energy: Tensor, before: Any, query: Tensor) -> dict[str, Tensor | float]:
        move = self.move(energy, query)
        return {"advance": 0.5 if move is None else move}


class ForcedForward(Moving):
    """Places that were aligned are hardly used again, and the alignment moves on."""

    formula = "a_t(s) ∝ exp(e) (1 − min(1, cov)) Σ_{s'≤s} a_{t−1}(s')"
    kind = "forced"

    def begin(self, like: Tensor, ok: Tensor | None) -> tuple[Tensor, Tensor]:
        first = super().begin(like, ok)  # its running sum opens every place from there
        return first, torch.zeros_like(like)

    def fit(self, slot: tuple[Tensor, Tensor], S: int) -> tuple[Tensor, Tensor]:
        return fitted(slot[0], S), fitted(slot[1], S)

    def stood(self, energy: Tensor, ok: Tensor | None, before: Any) -> dict[str, Tensor]:
        return dict(zip(("stood", "used"), self.start(energy, ok, before), strict=True))


class Monotonic(Moving):
    """Read left to right and stop with probability σ(e): a reader that never looks back.

    Training gives the expected alignment, evaluation the hard one. Rows may sum to less than one:
    what is missing is the chance of having read past the end. Raffel 2017.

    offset  the energy's first offset; negative, so that reading goes on by default
    noise   the spread of the noise that training adds, which drives σ(e) towards 0 or 1
    """

    formula = "q_j = (1 − p_{j−1}) q_{j−1} + a_{t−1,j}, a_j = p_j q_j"
    claims = replace(Moving.claims, mass="at most one")

    def __init__(self, *, heads: int = 1, offset: float = -1.0, noise: float = 1.0) -> None:
        super().__init__()
        self.scale = constant(1, heads, 1, 1)
        self.offset = constant(real("offset", offset, -1e6, 1e6), heads, 1, 1)
        self.noise = real("noise", noise, 0)

    @property
    def kind(self) -> kernel.operator.Kind:  # type: ignore[override]
        return "monotonic" if self.training else "hard"

    @property
    def is_random(self) -> bool:
        return self.training and self.noise > 0

    def adjusted(self, energy: Tensor) -> Tensor:
        energy = energy * self.scale.to(energy.dtype) + self.offset.to(energy.dtype)
        if not self.training:
            return energy.detach()
        return energy + self.noise * torch.randn_like(energy) if self.noise else energy

    def facts(self, energy: Tensor, before: Any, query: Tensor) -> dict[str, Tensor | float]:
        return {"scale": self.scale[None, ..., 0], "offset": self.offset[None, ..., 0]}


def _of_mass_one(bias: Tensor) -> None:
    """Logs of heights by which windows of sharpness one have a mass of one.    H 1 3K"""
    components = bias.shape[-1] // 3
    bias.zero_()[..., :components] = -math.log(components * math.sqrt(math.pi))


class MixtureWindow(Align):
    """A mixture of windows that can only move forward; no key is looked at. Graves 2013 §5.1."""

    formula = "Σ_k α_k exp(−β_k (κ_k − s)²), κ only grows"
    claims = replace(Moving.claims, uses_energies=False, mass="any")

    def __init__(self, *, query: int, heads: int = 1, components: int = 5) -> None:
        super().__init__()
        whole("components", components, 1)
        # Small, since exp would scatter the first windows; each row's first mass is about one:
        # a window of sharpness one covers α √π.
        self.weight = parameter(heads, 3 * components, query, fan_in=10 * query)
        self.bias = drawn(_of_mass_one, heads, 1, 3 * components)

    def forward(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        height, sharpness, centre = self._windows(energy, ok, before, query)
        weight = _twin_mixture(height, sharpness, centre, ok, energy.shape[-1])
        return Aligned(weight, centre[:, :, -1])

    def by_kernel(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        S = energy.shape[-1]
        height, sharpness, centre = self._windows(energy, ok, before, query)
        mix = kernel.mix if kernel.spares(S, centre) else _twin_mixture
        return Aligned(mix(height, sharpness, centre, ok, S), centre[:, :, -1])

    def facts(self, energy: Tensor, before: Any, query: Tensor) -> dict[str, Tensor | float]:
        if before is None:
            return {}
        return {f"κ{n + 1} before": x[..., None] for n, x in enumerate(before.unbind(-1))}

    def _windows(
        self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The height, sharpness and centre of each window.    -> B H T K (three times)"""
        logs = _from_query(query, self.weight, energy) + self.bias.to(energy.dtype)
        logs = logs.clamp(max=15)  # e^15 places: beyond any text, and nothing overflows to NaN
        height, sharpness, advance = logs.exp().chunk(3, -1)
        if ok is not None:  # a step that sees nothing does not advance
            advance = advance * ok.any(-1, keepdim=True)
        start = -1 if before is None else before[:, :, None]  # Graves counts places from 1
        return height, sharpness, start + advance.cumsum(2)
