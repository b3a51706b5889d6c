"""A plugin of pytest that enters three parts in the catalogue, as a contributor would.

Each stands for its kind: a score with a weight and no dot product, an align whose rows need not sum
to one, and a reach with a gain.
"""

import torch
from torch import Tensor, nn

from heed.attention.align import Align
from heed.attention.catalogue import CATALOGUE, Entry
from heed.attention.memory import Memory
from heed.attention.reach import Reach, Reached
from heed.attention.score import Score, _same_width, per_head
from heed.records import Claims
from heed.visible import Gaussian, Places, Visible


class Squared(Score):
    """-β |q - k|²"""

    name = family = "new-score"
    formula = "-β |q - k|²"
    claims = Claims()

    def __init__(self, *, query: int, key: int, heads: int = 1) -> None:
        super().__init__()
        _same_width(self, query, key)
        self.kept_width = key
        self.log_beta = nn.Parameter(torch.zeros(heads, 1, 1))

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        away = q[:, :, :, None] - per_head(memory.k, q.shape[1])[:, :, None]
        return -self.log_beta.to(q.dtype).exp() * away.square().sum(-1)


class Logistic(Align):
    """σ(e)"""

    name = "new-align"
    formula = "σ(e)"
    claims = Claims(mass="any")

    def weigh(self, energy: Tensor, ok: Tensor | None) -> Tensor:
        weight = torch.sigmoid(energy)
        return weight if ok is None else weight.where(ok, 0)


class Fading(Reach):
    """exp(-(s - t)² / 2 window²)"""

    name = "new-reach"
    formula = "a g(s - t)"
    claims = Claims(ignores_place=False, sees_all=False, mass="at most one")

    def __init__(self, *, window: int = 3) -> None:
        super().__init__()
        self.window = window

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        centre = places.query[None, None].to(torch.float32)
        return Reached(memory, visible, Gaussian(centre, self.window))


CATALOGUE |= {
    "new-score": Entry(Squared, "here", "squared distance", also="euclidean"),
    "new-align": Entry(Logistic, "here", "alone", also="logistic"),
    "new-reach": Entry(Fading, "here", "fades", also="fading"),
}
