"""The scale of the channels of series: taken from training data, kept as numbers, applied to all.

Without it, a channel in thousands drowns one in thousandths.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heed.data.series_formats import Floats
from heed.data.text import counted
from heed.errors import Refused


@dataclass(frozen=True, eq=False)
class Scale:
    """The mean and the standard deviation of each channel.    F"""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def fit(cls, series: Iterable[Floats]) -> Self:
        """The scale of all steps of all series, in one pass; missing values (NaN) do not count.

        Sums of squares about the means so far are merged (Chan, Golub and LeVeque 1983), so that a
        large mean costs no digits. Those of a constant channel are exactly 0: it is not stretched.
        """
        count = mean = squares = np.zeros(())
        for values in series:
            x = np.asarray(values, np.float64)
            if count.ndim and x.shape[1:] != count.shape:
                raise Refused(f"{counted(x.shape[1], 'channel')}, where {count.size} were before")
            n = (~np.isnan(x)).sum(0)
            own = np.nansum(x, 0) / np.maximum(n, 1)
            both = np.maximum(count + n, 1)
            squares = squares + np.nansum((x - own) ** 2, 0) + (own - mean) ** 2 * count * n / both
            mean = mean + (own - mean) * n / both
            count = count + n
        if not count.ndim:
            raise Refused("there are no series to take the scale from")
        deviation = np.sqrt(squares / np.maximum(count, 1))
        return cls(mean, np.where(deviation > 0, deviation, 1.0))

    def apply(self, values: Floats) -> Floats:
        """Values with mean 0 and deviation 1, if they are distributed as those fitted.    S F"""
        if values.shape[-1] != len(self.mean):
            raise Refused(
                f"{counted(values.shape[-1], 'channel')}, where the training data have "
                f"{len(self.mean)}"
            )
        return ((values - self.mean) / self.deviation).astype(np.float32)

    def as_data(self) -> dict[str, list[float]]:
        """The numbers, for JSON."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The scale of such numbers; any others are refused."""
        try:
            mean, deviation = (np.asarray(data[key], np.float64) for key in ("mean", "deviation"))
        except (KeyError, TypeError, ValueError):
            raise Refused("a scale has the numbers mean and deviation") from None
        if mean.ndim != 1 or mean.shape != deviation.shape or not mean.size:
            raise Refused("a scale has a mean and a deviation for each channel")
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
            raise Refused("a scale has finite means, and deviations above 0")
        return cls(mean, deviation)
