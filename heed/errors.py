"""Errors, in the user's words."""

from collections.abc import Iterable
from difflib import get_close_matches

LONG = 100
"""Characters of an unknown name that are told."""


def close_to(name: object, known: Iterable[str], alike: float = 0.5) -> list[str]:
    """Up to three names that are spelt like this one, best first; `alike` 1 is the same."""
    return get_close_matches(str(name)[: 2 * LONG], list(known), n=3, cutoff=alike)


class HeedError(Exception):
    """Everything heed raises on purpose: one clear message, and the cure where there is one."""


class ShapeError(HeedError, ValueError):
    """Two tensors disagree on an axis, or a tensor has the wrong axes."""


class UnknownName(HeedError, LookupError):
    """A name that no table holds; the message lists the nearest ones."""

    def __init__(
        self, kind: str, name: object, known: Iterable[str], near: Iterable[str] | None = None
    ) -> None:
        """Say what is known, or what may be meant: `near`, by default what is spelt alike."""
        known = list(known)
        near = close_to(name, known) if near is None else list(near)
        cure = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        told = str(name)
        told = told if len(told) <= LONG else f"{told[:LONG]}…"
        super().__init__(f"no {kind} is called '{told}'; {cure}")


class Refused(HeedError, ValueError):
    """A request the mechanism or the kernel cannot honour; nothing is silently dropped."""


class NotFormed(HeedError, RuntimeError):
    """Something was read that the call was not asked to form."""
