"""The base of all parts of a mechanism: a name, and what they can do."""

import re
from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any, ClassVar, Literal

from heed.attention.initial_weights import Drawn
from heed.records import Claims

Slot = Literal["score", "past", "reach", "align", "read"]


class Part(Drawn):
    """A score, past, reach, align or read.

    The name follows from the class: `LocationAware` is location-aware, and one of your own has the
    path of its class, so that it never passes for one of heed's. Kernels know parts by their names,
    all other code by their claims.
    """

    name: ClassVar[str]
    claims: Claims = Claims()
    slot: ClassVar[Slot]
    formula: str | None = None
    """The formula of its paper; None for a class of your own that states none."""
    for_sentences: ClassVar[Mapping[str, Any]] = {}
    """Options that suit a sentence better than the defaults, which are for long texts."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ours = cls.__module__.startswith("heed.")
        if "name" not in vars(cls):
            kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
            cls.name = kebab if ours else f"{cls.__module__}.{cls.__qualname__}"
        if not ours and "formula" not in vars(cls):
            cls.formula = None
        if not ours and "claims" not in vars(cls):
            bases = (base for base in cls.__mro__[1:] if issubclass(base, Part))
            cls.claims = reduce(and_, (base.claims for base in bases))

    @property
    def is_random(self) -> bool:
        """Whether the same call would now give another answer."""
        return self.training and self.claims.draws
