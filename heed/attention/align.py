"""Align: turn energies into a distribution, or a choice.    a_t = g(e_t, who is visible)

First the mathematics; then the parts. Energies come in float32 or better; `ok` says who is visible
(None: everyone). A row that sees nothing gets weights that are exactly zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from heed.attention.part import Part
from heed.attention.statistics import entropy
from heed.records import Claims
from heed.shapes import real, whole


def hidden(energy: Tensor, ok: Tensor | None) -> Tensor:
    """Energies with -inf where a query may not look."""
    return energy if ok is None else energy.masked_fill(~ok, -torch.inf)


def centred(energy: Tensor, ok: Tensor | None) -> Tensor:
    """Energies with the best of each row at zero and -inf where a query may not look."""
    energy = hidden(energy, ok)
    top = energy.detach().amax(-1, keepdim=True)
    return energy - top.clamp(min=torch.finfo(energy.dtype).min)


def softmax(energy: Tensor, ok: Tensor | None = None) -> Tensor:
    """exp(e) over what is visible, normalised; a row that sees nothing is zero.    B H T S"""
    if ok is None:
        return energy.softmax(-1)
    each = centred(energy, ok).exp()
    return each / each.sum(-1, keepdim=True).clamp(min=1)  # the best alone counts 1


FAINT = 1e-30
"""A prior below this gets no gradient: divided by it over a few steps, gradients overflow."""


def weighed(energy: Tensor, prior: Tensor, ok: Tensor | None) -> Tensor:
    """Softmax with a prior: a ∝ prior · exp(e), with no underflow where e is far from its best."""
    possible = prior > 0
    prior = prior.clamp(min=torch.finfo(prior.dtype).tiny)
    prior = torch.where(prior < FAINT, prior.detach(), prior)
    return softmax(energy + prior.log(), possible if ok is None else possible & ok)


def sparsemax(energy: Tensor, ok: Tensor | None = None) -> Tensor:
    """The nearest point of the simplex: exact zeros. Martins 2016.    B H T S"""
    energy = centred(energy, ok)
    with torch.no_grad():
        ranked, rank = _ranked(energy)
        support = ~(energy < _last(ranked, 1 + rank * ranked > ranked.cumsum(-1)))
    size, total = _moments(energy, support)
    return torch.where(support, energy - (total - 1) / size, 0)


def entmax(energy: Tensor, ok: Tensor | None = None) -> Tensor:
    """Between softmax and sparsemax, α = 1.5. Peters 2019.    B H T S"""
    energy = centred(energy, ok) / 2
    with torch.no_grad():
        ranked, rank = _ranked(energy)
        mean = ranked.cumsum(-1) / rank
        spread = (ranked * ranked).cumsum(-1) - rank * mean * mean
        threshold = mean - ((1 - spread) / rank).clamp(min=0).sqrt()
        support = ~(energy < _last(ranked, threshold <= ranked))
    size, total = _moments(energy, support)
    away = torch.where(support, energy - total / size, 0)
    room = (1 - (away * away).sum(-1, keepdim=True)) / size
    slack = away + room.clamp(min=torch.finfo(room.dtype).tiny).sqrt()
    return torch.where(support, slack * slack, 0)


def best(energy: Tensor, ok: Tensor | None, count: int = 1) -> Tensor:
    """The places of the `count` highest energies, best first.    B H T S -> B H T count"""
    return hidden(energy, ok).topk(min(count, energy.shape[-1]), dim=-1).indices


def one_hot(chosen: Tensor, like: Tensor, ok: Tensor | None) -> Tensor:
    """Equal weights on the chosen places, hidden ones left out.    B H T n -> B H T S"""
    taken = torch.zeros_like(like).scatter(-1, chosen, 1.0)
    taken = taken if ok is None else taken * ok
    return taken / taken.sum(-1, keepdim=True).clamp(min=1)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard`, the gradient of `soft`."""
    return hard + (soft - soft.detach())


def gumbel_noise(like: Tensor) -> Tensor:
    """-log(-log u), u uniform: the best of energy + noise is a draw from softmax(energy)."""
    return -torch.empty_like(like).exponential_().log()


def log_choice(energy: Tensor, ok: Tensor | None, chosen: Tensor) -> Tensor:
    """Log-probability of drawing these places in this order, none twice.

    Σ_i e_i - log Σ exp(what is left before draw i); a place that cannot be drawn counts nothing.
    B H T S, B H T n -> B H T
    """
    left, total = centred(energy, ok), energy.new_zeros(chosen.shape[:-1])
    for place in chosen.unbind(-1):
        energy = left.gather(-1, place[..., None])[..., 0]
        drawn = energy > -torch.inf
        rest = torch.where(drawn[..., None], left, 0).logsumexp(-1)
        total = total + torch.where(drawn, energy - rest, 0)
        left = left.scatter(-1, place[..., None], -torch.inf)
    return total


def _ranked(energy: Tensor) -> tuple[Tensor, Tensor]:
    """Energies from the best down, and their ranks from 1."""
    ranked = energy.sort(-1, descending=True).values
    return ranked, torch.arange(1, energy.shape[-1] + 1, device=energy.device, dtype=energy.dtype)


def _last(ranked: Tensor, inside: Tensor) -> Tensor:
    """The lowest ranked energy that is inside; +inf for a row where none is. NaN is below none."""
    count = inside.sum(-1, keepdim=True)
    last = ranked.gather(-1, (count - 1).clamp(min=0))
    return torch.where(count > 0, last, torch.inf)


def _moments(energy: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """How many are in the support, and their sum."""
    total = torch.where(support, energy, 0).sum(-1, keepdim=True)
    return support.sum(-1, keepdim=True).clamp(min=1), total


@dataclass(slots=True, eq=False)
class Aligned:
    """The result of an align: weights B H T S, its slot for the next step, and facts of a draw."""

    weight: Tensor
    after: Any = None
    log_prob: Tensor | None = None  # B H T
    entropy: Tensor | None = None  # B H T


class Align(Part):
    """Energies to weights. `before` is this part's slot of the state, None at the first step."""

    slot = "align"
    claims = Claims(is_row_wise=False, ignores_shifts=False)

    def forward(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        """B H T S, who is visible, the slot, the queries B H T M"""
        return Aligned(self.weigh(energy, ok))

    def weigh(self, energy: Tensor, ok: Tensor | None) -> Tensor:
        """The weights, where nothing else is needed.    B H T S, who is visible -> B H T S"""
        raise NotImplementedError

    def by_kernel(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        """The same by the kernel that serves its name, which must have been chosen."""
        raise NotImplementedError

    def stood(self, energy: Tensor, ok: Tensor | None, before: Any) -> dict[str, Tensor]:
        """The numbers of its slot for each place before the first query, by name.    -> B H S"""
        return {}

    def facts(self, energy: Tensor, before: Any, query: Tensor) -> dict[str, Tensor | float]:
        """Further decisions about each query, by name.    -> broadcasts to B H T"""
        return {}


class Softmax(Align):
    """exp(e), normalised over what is visible."""

    formula = "exp(e) / Σ exp(e)"
    claims = Claims()
    weigh = staticmethod(softmax)


class Sparsemax(Align):
    """The nearest distribution; far energies get exactly zero. Martins 2016."""

    formula = "argmin_p ‖p − e‖²"
    claims = Claims()
    weigh = staticmethod(sparsemax)


class Entmax(Align):
    """α-entmax with α = 1.5: sparse, and smoother than sparsemax. Peters 2019."""

    formula = "[e/2 − τ]₊²"
    claims = Claims()
    weigh = staticmethod(entmax)


class Argmax(Align):
    """Hard: all weight on the best place; learns straight through the softmax."""

    formula = "1[s = argmax e]"
    claims = Claims(gradient="straight-through")

    def weigh(self, energy: Tensor, ok: Tensor | None) -> Tensor:
        hard = one_hot(best(energy, ok), energy, ok)
        return straight_through(hard, softmax(energy, ok))


class Sample(Align):
    """Hard: s ~ Categorical(a_t) in training, the best in evaluation. Xu 2015 §4.1.

    count  how many places are drawn, none twice; they share the weight equally
    soft   the chance, per row, that a training call uses the expected weights instead of a draw
    """

    formula = "s ~ Categorical(softmax e)"
    claims = Claims(draws=True, gradient="score-function")
    for_sentences: ClassVar[Mapping[str, Any]] = {"soft": 0.5}  # Xu 2015 §4.1

    def __init__(self, *, count: int = 1, soft: float = 0.0) -> None:
        super().__init__()
        self.count, self.soft = whole("count", count, 1), real("soft", soft, 0, 1)

    def forward(self, energy: Tensor, ok: Tensor | None, before: Any, query: Tensor) -> Aligned:
        soft = softmax(energy, ok)
        noisy = energy + gumbel_noise(energy) if self.training else energy
        chosen = best(noisy.detach(), ok, self.count)
        weight = one_hot(chosen, energy.detach(), ok)
        log_prob = log_choice(energy, ok, chosen)
        if self.training and self.soft:
            expect = torch.rand(len(energy), 1, 1, 1, device=energy.device) < self.soft
            weight = torch.where(expect, soft, weight)
            log_prob = torch.where(expect[..., 0], 0, log_prob)
        return Aligned(weight, log_prob=log_prob, entropy=entropy(soft))


class Gumbel(Align):
    """Hard draws with the gradient of softmax((e + noise) / temperature); the best in evaluation.

    Jang 2017.
    """

    formula = "argmax(e + g), gradient of softmax((e + g)/τ)"
    claims = Claims(draws=True, gradient="straight-through")

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = real("temperature", temperature, 1e-6)

    def weigh(self, energy: Tensor, ok: Tensor | None) -> Tensor:
        noisy = energy + gumbel_noise(energy) if self.training else energy
        hard = one_hot(best(noisy, ok), energy, ok)
        return straight_through(hard, softmax(noisy / self.temperature, ok))
