"""What all parts of a mechanism share: a name, and what they can do."""

import re
from typing import Any, ClassVar

from heed.attention.initial import Drawn
from heed.records import Claims


class Part(Drawn):
    """A score, past, reach, align or read.

    The name follows from the class: `LocationAware` is location-aware, and one of your own has the
    path of its class, so that it never passes for one of heed's. Kernels know parts by their names.
    """

    name: ClassVar[str]
    claims: ClassVar[Claims] = Claims()
    in_line: ClassVar[bool] = False
    """Whether it needs the keys in a line, one column each, because it knows their places."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            ours = cls.__module__.startswith("heed.")
            kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
            cls.name = kebab if ours else f"{cls.__module__}.{cls.__qualname__}"
