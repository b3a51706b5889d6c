"""Position: telling a model where things stand.

Two kinds: added to the input of a model (`Sinusoidal`, `Learned`), or applied inside the heads
(`Rotary` turns queries and keys, `ALiBi` adds to the energies; `MultiHeadAttention(position=...)`).
Distances inside a score are the score `relative`.
"""

import torch
from torch import Tensor, nn

from heed.attention.initial_weights import Drawn, initialise, normal
from heed.errors import Refused
from heed.shapes import whole
from heed.visible import Places


def waves(places: Tensor, width: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Sine and cosine at width/2 frequencies, base^(-2i/width).    N -> N width/2, N width/2"""
    if width % 2:
        raise Refused(f"sinusoidal positions need an even width; got {width}")
    halves = torch.arange(0, width, 2, device=places.device, dtype=places.dtype)
    angle = places[:, None] * base ** (-halves / width)
    return angle.sin(), angle.cos()


def sinusoid(places: Tensor, width: int) -> Tensor:
    """sin at even, cos at odd features. Vaswani 2017 §3.5.    N -> N width"""
    return torch.stack(waves(places, width), -1).flatten(-2)


def rotate(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2) by their angle. Su 2021 eq. 34.    B H T D -> B H T D"""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8h/H), h from 1; between the powers of two, every other slope of the next. Press 2022 §3.

    -> H
    """
    whole = 1 << (heads.bit_length() - 1)  # the largest power of two within
    slopes = [2 ** (-8 * h / whole) for h in range(1, whole + 1)]
    extra = [2 ** (-4 * h / whole) for h in range(1, 2 * whole + 1, 2)]
    return torch.tensor((slopes + extra)[:heads])


class Position(Drawn):
    """A position applied inside the heads; by default it does nothing."""

    turns: bool = False
    """Whether it turns queries and keys, each by an angle that follows from its place."""

    def check(self, heads: int, width: int) -> None:
        """Refuse heads that it does not suit."""

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        """Change queries or keys by where they stand.    B H T D, T -> B H T D"""
        return x

    def bias(self, places: Places) -> Tensor | None:
        """The bias to add to the energies.    -> broadcasts to B H T S"""
        return None

    def cut(self, row: int, start: int, stop: int) -> "Position":
        """The position of queries `start` to `stop` of one row; only a table needs cutting."""
        return self


class OfHeads(Position):
    """A position for some of the heads."""

    def __init__(self, position: Position, start: int, stop: int) -> None:
        super().__init__()
        self.position, self.start, self.stop = position, start, stop
        self.turns = position.turns

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        return self.position.turn(x, places)

    def bias(self, places: Places) -> Tensor | None:
        added = self.position.bias(places)
        if added is None:
            return None
        added = four_axes(added)
        return added if added.shape[1] == 1 else added[:, self.start : self.stop]

    def cut(self, row: int, start: int, stop: int) -> "Position":
        return OfHeads(self.position.cut(row, start, stop), self.start, self.stop)


def four_axes(table: Tensor) -> Tensor:
    """... T S -> B H T S, the missing axes 1"""
    return table.reshape((1,) * (4 - table.ndim) + table.shape)


class Rotary(Position):
    """Queries and keys turn with their place, so that q·k depends on the distance. Su 2021."""

    turns = True

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base

    def check(self, heads: int, width: int) -> None:
        if width % 2:
            raise Refused(
                f"Rotary rotates pairs of features: the width of heads must be even; got {width}"
            )

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)  # angles lose digits in half precision
        sine, cosine = waves(places.to(wide), x.shape[-1], self.base)
        return rotate(x.to(wide), sine, cosine).to(x.dtype)


class ALiBi(Position):
    """-m_h |t - s| is added to the energies. Press 2022."""

    def __init__(self, *, heads: int) -> None:
        super().__init__()
        self.heads = whole("heads", heads, 1)

    def check(self, heads: int, width: int) -> None:
        if heads != self.heads:
            raise Refused(f"ALiBi was built for {self.heads} heads; there are {heads}")

    def bias(self, places: Places) -> Tensor:
        away = (places.query[:, None] - places.key).abs()
        slopes = alibi_slopes(self.heads).to(places.device)  # float32, whatever the module became
        return -slopes[:, None, None] * away


class Sinusoidal(nn.Module):
    """Adds the fixed sinusoids to embeddings. Vaswani 2017 §3.5."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """B T M -> B T M; the first of T stands at `start`."""
        places = torch.arange(start, start + x.shape[1], device=x.device)
        wide = torch.promote_types(x.dtype, torch.float32)
        return x + sinusoid(places.to(wide), x.shape[2]).to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector per place, up to a longest text."""

    def __init__(self, *, longest: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(longest, width)
        initialise(self.table, weight=normal(0.02))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """B T M -> B T M; the first of T stands at `start`."""
        end, longest = start + x.shape[1], self.table.num_embeddings
        if end > longest:
            raise Refused(f"learned positions end at {longest}; this text reaches {end}")
        return x + self.table.weight[start:end].to(x.dtype)
