"""A built-in corpus of series: which short motif is hidden in the noise, and where it is.

The label is the motif's shape. It lies at a random place of a random channel and is more or less
wide; all else is noise. So the gold of an attention is exact: the steps from `start` to `stop`.
"""

from collections.abc import Iterator
from math import tau
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.data.chance import Floats, below, uniform
from heed.data.grammar import PARTS, Part
from heed.errors import Refused, UnknownName

BRIEFEST, WIDEST = 12, 20
"""The steps that a motif takes."""
LABEL, LENGTH, WIDTH, PLACE, CHANNEL, NOISE = range(6)  # these tell the draws of a series apart


class Placed(NamedTuple):
    """A series, the name of the motif in it, and where that is."""

    values: NDArray[np.float32]  # S F
    label: str
    start: int
    stop: int  # one step after its last
    channel: int


def shapes(width: int) -> dict[str, Floats]:
    """Every motif by its name, in so many steps, with mean 0 and mean square 1."""
    t = (np.arange(width) + 0.5) / width
    drawn = {
        "bump": np.sin(tau / 2 * t),
        "twin": np.abs(np.sin(tau * t)),
        "wave": np.sin(tau * t),
        "ramp": t,
    }
    centred = {name: shape - shape.mean() for name, shape in drawn.items()}
    return {name: shape / np.sqrt((shape**2).mean()) for name, shape in centred.items()}


NAMES = tuple(shapes(WIDEST))


def draw(
    count: int,
    *,
    channels: int = 2,
    shortest: int = 40,
    longest: int = 100,
    noise: float = 0.5,
    seed: int = 0,
    part: Part = "train",
) -> Iterator[Placed]:
    """Series of shortest to longest steps, each with a motif of mean square 1 in it.

    Each is a function of the seed, the part and its number alone.
    noise  the standard deviation of what is everywhere
    """
    if part not in PARTS:
        raise UnknownName("part of the corpus", part, dict.fromkeys(PARTS))
    if not WIDEST <= shortest <= longest:
        raise Refused(
            f"series of {shortest} to {longest} steps: a motif needs {WIDEST}, and the longest "
            "must not be shorter than the shortest"
        )
    if channels < 1 or noise < 0:
        raise Refused(
            f"{channels} channels with noise {noise}: there must be one, and no less than 0"
        )
    return (
        _placed((seed, PARTS.index(part), number), channels, shortest, longest, noise)
        for number in range(count)
    )


def _placed(
    place: tuple[int, int, int], channels: int, shortest: int, longest: int, noise: float
) -> Placed:
    def one(limit: int, which: int) -> int:
        return int(below(limit, *place, which))

    S = shortest + one(longest - shortest + 1, LENGTH)
    width = BRIEFEST + one(WIDEST - BRIEFEST + 1, WIDTH)
    start, channel = one(S - width + 1, PLACE), one(channels, CHANNEL)
    label = NAMES[one(len(NAMES), LABEL)]
    values = noise * _normal((S, channels), *place)
    values[start : start + width, channel] += shapes(width)[label]
    return Placed(values.astype(np.float32), label, start, start + width, channel)


def _normal(shape: tuple[int, int], *place: int) -> Floats:
    """Normal random numbers of a place (Box and Muller 1958)."""
    step, channel = np.arange(shape[0])[:, None], np.arange(shape[1])
    a, b = (uniform(*place, NOISE, step, channel, i) for i in range(2))
    return np.asarray(np.sqrt(-2 * np.log1p(-a)) * np.cos(tau * b))
