"""What all parts of a mechanism share: a name, and what they can do."""

import re
from typing import Any, ClassVar

from torch import nn

from heed.records import Claims


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
