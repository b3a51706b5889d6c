"""Random numbers that belong to a place: the same for the same seed, epoch, row and column,
whatever else is in the batch, in any process and from anywhere in the middle of an epoch.

There is no generator whose state a draw would change: each number is a hash of the place where it
is needed, by the finaliser of SplitMix64 (Steele, Lea and Flood 2014, §3).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


def bits(*place: ArrayLike) -> Words:
    """64 random bits for each place, its coordinates broadcast together."""
    state: Words = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # modulo 2^64
        for coordinate in place:
            state = _mixed(state + _word(coordinate) * np.uint64(STEP) + np.uint64(STEP))
    return state


def uniform(*place: ArrayLike) -> Floats:
    """A number in [0, 1) for each place."""
    return np.asarray(bits(*place) >> np.uint64(11), np.float64) * 2.0**-53


def below(limit: ArrayLike, *place: ArrayLike) -> NDArray[np.int64]:
    """A whole number from 0 to limit - 1 for each place."""
    return np.asarray(uniform(*place) * np.asarray(limit), np.int64)


def _word(coordinate: ArrayLike) -> Words:
    """A coordinate as 64 bits; negative numbers as their two's complement."""
    found: NDArray[Any] = np.asarray(coordinate)
    return found.astype(np.int64).astype(np.uint64)


def _mixed(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
