"""Every mechanism to be tested: all names of the catalogue, and combinations of their parts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.catalogue import CATALOGUE, DEFAULTS
from heed.attention.names import build, options_of, parse
from heed.errors import Refused
from heed.records import Attended, Claims

COMPOSITIONS = (
    "local-p/general",
    "local-m/additive",
    "coverage/additive/local-m",
    "coverage/monotonic/additive",
    "coverage/key-value",
    "location-aware/additive",
    "location-aware/forward/local-p/relative",
    "monotonic/additive",
    "forward/additive",
    "forward/local-p/dot",
    "forced-forward/general",
    "sample/additive",
    "sample/local-p/coverage",
    "argmax/cosine",
    "gumbel/concat",
    "pointer/additive",
    "mixed/general",
    "mixed/additive",
    "mixed/coverage/sparsemax/relative",
    "static/additive",
    "sparsemax/relative",
    "entmax/key-value",
    "expanded-window/general",
    "mixture-window/local-m",
    "fixed-window/concat-identity/argmax",
)

NAMES = (*CATALOGUE, *COMPOSITIONS)

# Small enough for gradcheck, with windows narrow enough to hide keys of a short source.
SMALL: dict[str, dict[str, Any]] = {
    "local-p": {"window": 2, "hidden": 3},
    "mixed": {"window": 2, "hidden": 3},
    "expanded-window": {"window": 1, "block": 2},
    "location": {"longest": 9},
    "location-aware": {"channels": 2, "kernel": 3},
    "mixture-window": {"components": 2},
    "monotonic": {"noise": 0.0},
    "forward": {"agent": True},
}

FIRST = heed.State(0, origin=0)
"""The first query stands at the first key, however many are asked at once."""

B, T, S = 3, 4, 6


@dataclass(frozen=True)
class Case:
    """A mechanism by name, alone (`heads=0`) or inside multi-head attention."""

    name: str
    heads: int = 0
    groups: int = 0
    tied: bool = False  # queries, keys and values of one width, as in self-attention

    def __str__(self) -> str:
        return f"{self.name}-{self.heads}x{self.groups}" if self.heads else self.name

    @property
    def words(self) -> set[str]:
        return set(self.name.split("/"))

    @property
    def parts(self) -> dict[str, str]:
        """All five slots."""
        parts = {**DEFAULTS, **parse(self.name)}
        return {slot: word for slot, word in parts.items() if word}

    @property
    def factors(self) -> dict[str, Any]:
        """All that a sample pairs with other parameters of a test."""
        return {**self.parts, "heads": self.heads}

    @property
    def options(self) -> dict[str, Any]:
        return {k: x for word in self.name.split("/") for k, x in small(word).items()}

    @property
    def claims(self) -> Claims:
        return claims(self.name)

    @property
    def draws(self) -> bool:
        """Whether training is random."""
        return self.claims.draws

    @property
    def T(self) -> int:
        """How many queries it can take at once."""
        return T if self.claims.takes_several else 1

    @property
    def first(self) -> heed.State | None:
        return FIRST if self.claims.has_steps else None

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of queries, keys and values."""
        if self.tied:
            return (3 * self.heads or 4,) * 3
        if self.heads:
            return 3 * self.heads, 5, 4
        if not self.claims.uses_energies:
            return 4, 3, 5
        score = self.parts["score"]
        key = 3 if takes(score, 4, 3, 3) else 4
        return 4, key, 5 if takes(score, 4, key, 5) else key

    def build(self, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
        """In training mode, unless that is random."""
        M, K, R = self.widths
        options = {**self.options, **more}
        if self.heads:
            made: Any = heed.MultiHeadAttention(
                M, self.heads, kdim=K, vdim=R, groups=self.groups, mechanism=self.name, **options
            )
        else:
            made = heed.Attention(self.name, query=M, key=K, value=R, **options)
        for parameter in made.parameters():  # biases and the like start at zero
            torch.nn.init.uniform_(parameter, -0.9, 0.9)
        return made.to(dtype).train(not self.draws)

    def inputs(
        self,
        B: int = B,
        T: int | None = None,
        S: int = S,
        dtype: torch.dtype = torch.float64,
        grad: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values.    B T M, B S K, B S R"""
        M, K, R = self.widths
        shapes = (B, self.T if T is None else T, M), (B, S, K), (B, S, R)
        q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes)
        return q, k, v


def small(word: str) -> dict[str, Any]:
    """Options of a part that suit the tests: any window is narrow."""
    return SMALL.get(word, {"window": 1} if "window" in options_of(word) else {})


@cache
def takes(score: str, query: int, key: int, value: int) -> bool:
    """Whether a score compares queries and keys of these widths, and values of this one."""
    try:
        build(score, query=query, key=key, value=value)
    except Refused:
        return False
    return True


def claims(name: str) -> Claims:
    """The abilities of a combination: those that all its parts have."""
    all_claims = Claims()
    for word in name.split("/"):
        all_claims = all_claims & CATALOGUE[word].claims
    return all_claims


ALONE = [Case(name) for name in NAMES]
INSIDE = [Case(name, 4, 2) for name in NAMES if claims(name).fits_heads]
CASES = ALONE + INSIDE
TIED = [replace(case, tied=True) for case in CASES]


def every(cases: list[Case], **must: Any) -> pytest.MarkDecorator:
    """Parametrise `case` over those with all of these abilities."""
    fit = [c for c in cases if all(getattr(c.claims, k) == x for k, x in must.items())]
    return pytest.mark.parametrize("case", fit, ids=str)


def answers(seen: Attended) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a record that were formed, except the next state."""
    for name in ("_context", "_weight", "_energy", "log_prob", "entropy", "penalty"):
        x = getattr(seen, name)
        if x is not None:
            yield name.strip("_"), x


def main(seen: Attended) -> Tensor:
    """The result: the context, or the distribution of a pointer."""
    return seen.weight if seen.formed.context is None else seen.context


def flat(slot: Any) -> Iterator[Tensor]:
    """The tensors of a state, in any nesting."""
    if isinstance(slot, Tensor):
        yield slot
    elif isinstance(slot, heed.State):
        for name in sorted(slot.slots):
            yield from flat(slot.slots[name])
    elif isinstance(slot, tuple):
        for part in slot:
            yield from flat(part)


def close(got: Tensor, want: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def same_record(got: Attended, want: Attended, tolerance: float = 1e-10) -> None:
    """All formed tensors, and the state, agree."""
    left, right = dict(answers(got)), dict(answers(want))
    assert left.keys() == right.keys()
    for name, x in left.items():
        torch.testing.assert_close(
            x, right[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert got.state[:2] == want.state[:2]
    for x, y in zip(flat(got.state), flat(want.state), strict=True):
        close(x, y, tolerance)


def joined(records: list[Attended]) -> Attended:
    """Joins the records of consecutive steps."""
    parts = [dict(answers(r)) for r in records]
    axis = {"context": 1}
    return Attended(
        state=records[-1].state,
        **{
            "context": None,
            **{n: torch.cat([p[n] for p in parts], axis.get(n, 2)) for n in parts[0]},
        },
    )
