"""A series: real numbers over time, of one or several channels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.kinds.kind import Kind
from heed.data.scale import Scale
from heed.errors import Refused

Values = NDArray[np.float32]
"""A series.    S F"""


class Series(Kind[Values]):
    """A series, each channel brought to mean 0 and deviation 1 of the training data.

    scale  the mean and deviation of each channel
    """

    name = "series"
    positions = "steps"

    def __init__(self, scale: Scale, *, longest: int | None = None) -> None:
        self.scale, self.longest = scale, longest
        self.width = len(scale.mean)

    @property
    def size(self) -> int:
        """The number of channels."""
        return self.width

    @property
    def fingerprint(self) -> str:
        """A hash of the scale."""
        told = json.dumps([self.scale.as_data(), self.longest])
        return hashlib.sha256(told.encode()).hexdigest()

    def whole(self, items: Sequence[Values]) -> list[Values]:
        """Each series on the scale of the training data; what is missing is the mean."""
        return [np.nan_to_num(self.scale.apply(item), nan=0.0) for item in items]

    def spelt(self, row: Values, item: Values) -> list[str]:
        """The number of each step in time."""
        return [str(t) for t in range(len(row))]

    def of_line(self, line: str) -> Values:
        """A series as JSON, [[1.0, 2.0], [1.5, 2.5]]; of one channel also as [1.0, 1.5]."""
        try:
            found = np.asarray(json.loads(line), np.float32)
        except (ValueError, TypeError, RecursionError):
            raise Refused(
                "a series is given as JSON in a line: a list of steps, each a list of "
                f"{self.width} numbers; got: {line[:60]}"
            ) from None
        if found.ndim == 1 and self.width == 1:
            found = found[:, None]
        if found.ndim != 2 or found.shape[1] != self.width or not len(found):
            shape = " × ".join(map(str, found.shape))
            raise Refused(f"a series here has steps of {self.width} channels; got {shape} numbers")
        if np.isinf(found).any():
            raise Refused("a series has a number that is not finite")
        return found

    def as_line(self, item: Values) -> str:
        """The length of a series, and its first numbers."""
        steps, channels = item.shape
        start = ", ".join(f"{x:.3g}" for x in item[:3, 0])
        return f"{steps} steps × {channels} ({start}, …)"

    def as_data(self, item: Values) -> list[list[float | None]]:
        """The numbers; null where one is missing."""
        return [[None if np.isnan(x) else float(x) for x in step] for step in item]

    def of_data(self, found: Any) -> Values:
        """Kept numbers."""
        item = np.asarray(found, np.float32)  # of a ragged or worded list a ValueError
        if item.ndim != 2 or item.shape[1] != self.width or not len(item) or np.isinf(item).any():
            raise ValueError
        return item
