"""What all parts of a mechanism share: a name, and what they can do."""

import math
import re
from typing import Any, ClassVar

from torch import nn

from heed.errors import Refused
from heed.records import Claims


def whole(name: str, value: int, least: int) -> int:
    """An option that is a whole number, `least` or more."""
    if not isinstance(value, int) or value < least:
        raise Refused(f"{name} is a whole number, {least} or more; got {value!r}")
    return value


def real(name: str, value: float, low: float, high: float = math.inf) -> float:
    """An option that is a number between low and high; infinity is none."""
    if not isinstance(value, int | float) or not low <= value <= high or math.isinf(value):
        most = "" if math.isinf(high) else f" and at most {high}"
        raise Refused(f"{name} is a number of at least {low}{most}; got {value!r}")
    return value


class Part(nn.Module):
    """A score, past, reach, align or read.

    The name follows from the class (`LocationAware` is location-aware), so that a part of your own
    never passes for the one it derives from: kernels know parts by name and leave others alone.
    """

    name: ClassVar[str]
    claims: ClassVar[Claims] = Claims()
    in_line: ClassVar[bool] = False
    """Whether it needs the keys in a line, one column each, because it knows their places."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
