"""Read: gather the values, or return the distribution itself."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heed.attention.hooks import plain
from heed.attention.memory import concat
from heed.attention.part import Part
from heed.attention.score import per_head
from heed.kernels.linear.steps import mapping
from heed.records import Claims


def blend(weight: Tensor, v: Tensor) -> Tensor:
    """c_t = Σ_s a_ts v_s.    B H T S, B H S R -> B H T R"""
    return weight @ v


def copy_mixture(
    vocabulary: Tensor, weight: Tensor, source: Tensor, generate: Tensor, size: int
) -> Tensor:
    """p_gen P(w) + (1 - p_gen) Σ_{s: x_s = w} a_s, the source's words joining the vocabulary.

    B T V, B T S, B S (numbers below size), B T 1 -> B T size.    See 2017 eq. 9.
    """
    mixed = torch.nn.functional.pad(vocabulary * generate, (0, size - vocabulary.shape[-1]))
    copied = weight * (1 - generate)
    return mixed.scatter_add(-1, source[:, None].expand_as(copied), copied.to(mixed.dtype))


class Read(Part):
    """The base of all reads: what is done with the weights."""

    slot = "read"

    def forward(self, weight: Tensor, v: Tensor) -> Tensor | None:
        """B H T S, B G S R -> B H T R, or None where nothing is gathered."""
        raise NotImplementedError


class Blend(Read):
    """The weighted sum of the values."""

    formula = "Σ_s a_s v_s"

    def forward(self, weight: Tensor, v: Tensor) -> Tensor:
        return blend(weight, per_head(v, weight.shape[1]))


class Pointer(Read):
    """Nothing is gathered: the distribution over the input is the output. Vinyals 2015 §2.3."""

    formula = "a itself"
    claims = Claims(fits_heads=False, gives_context=False)

    def forward(self, weight: Tensor, v: Tensor) -> None:
        return None


class Join(nn.Module):
    """The output stage: h̃ = f(W [c; q]), f = tanh by default. Luong 2015 eq. 5."""

    def __init__(
        self, *, context: int, query: int, width: int, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(context + query, width, bias=False)
        self.activation = activation or nn.Tanh()

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """B T R, B T M -> B T width"""
        joined: Tensor = self.activation(self.linear(concat([context, query], -1)))
        return joined

    def in_steps(self) -> Callable[..., Tensor] | None:
        """`forward` for loops over steps in training, B R, B M -> B width; or None.

        It calls no module, so modules with hooks have none.
        """
        kinds = (type(self), type(self.linear), type(self.activation))
        if kinds != (Join, nn.Linear, nn.Tanh) or not plain(self.modules()):
            return None
        return mapping(self.linear.weight, bends=True)


class Generate(nn.Module):
    """p_gen = σ(w·[c; q; x]): write from the vocabulary, or copy. See 2017 eq. 8."""

    def __init__(self, *, context: int, query: int, embedding: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(context + query + embedding, 1)

    def forward(self, *seen: Tensor) -> Tensor:
        """context B T R, query B T M (and the word just read B T E) -> B T 1"""
        chance: Tensor = torch.sigmoid(self.linear(concat(seen, -1)))
        return chance
