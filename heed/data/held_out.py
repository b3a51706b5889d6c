"""Which texts of a single file are kept from training, to judge by: what they say alone decides.

The choice is the same on every machine and in every order, and no text is on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BeforeValidator, Field

from heed.data.pairs import Report
from heed.errors import Refused
from heed.settings import Settings

Part = Literal["train", "valid", "test"]


class HeldOut(Settings):
    """Shares of the training file that are kept from training, where no file is given for them.

    What a text says and the key decide its side, so the same text is always on the same side.
    """

    valid: float = Field(0.0, ge=0, le=0.5)
    test: float = Field(0.0, ge=0, le=0.5)
    key: str = Field("", max_length=100)

    def __bool__(self) -> bool:
        """Whether anything is held out."""
        return bool(self.valid or self.test)

    def only(self, part: str) -> Callable[[str], bool] | None:
        """A test for the texts of the training file that belong to a part; None: all of them do."""
        return (lambda text: side(text, self) == part) if self else None

    def lacks(self, part: str, report: Report) -> NoReturn:
        """Refuse a part to which no text has fallen, with the cure."""
        cure = f"hold more out, or name a file: data.held_out.{part}, data.{part}"
        if part == "train":
            cure = "is the file empty? Or hold less out: data.held_out"
        raise Refused(f"there is nothing in data.{part}: {report}; {cure}")


def shares(given: Any, *parts: str) -> Any:
    """What a recipe says is held out, as keys: a bare number is the share of each of the parts.

    null clears the key like any other: nothing is held out.
    """
    if given is None:
        return dict.fromkeys(parts, 0)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return dict.fromkeys(parts, given)
    if not isinstance(given, dict | Settings):
        keys = ", ".join(f"{part}: 0.1" for part in parts)
        raise ValueError(f"give a share, such as 0.1, or {{{keys}}}")
    return given


Held = Annotated[HeldOut, BeforeValidator(lambda given: shares(given, "valid", "test"))]
"""What is held out, as a recipe says it: shares by key, or one number for both."""


def side(text: str, held: HeldOut) -> Part:
    """The part that a text belongs to, by a draw that its words decide."""
    if not held:
        return "train"
    digest = hashlib.sha256(f"{held.key}\0{' '.join(text.split())}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    if draw < held.test:
        return "test"
    return "valid" if draw < held.test + held.valid else "train"


def check(held: HeldOut, *, valid: object, test: object, what: str, share: float) -> None:
    """Raise a ValueError unless each part has one place and there is something to validate on.

    valid, test  files of their own, or None
    what, share  what there is to hold out, and how much of it is advised
    """
    for part, files, some in (("valid", valid, held.valid), ("test", test, held.test)):
        if files is not None and some:
            other = "test" if part == "valid" else "valid"
            alike = held == HeldOut(valid=some, test=some)  # one number, which has no keys
            cure = f"'data.held_out={{{other}: {some}}}'" if alike else f"data.held_out.{part}=0"
            raise ValueError(
                f"data.{part} is given, so nothing is held out for it; take one out: "
                f"data.{part}=null or {cure}"
            )
    if valid is None and not held.valid:
        raise ValueError(
            f"data.valid is missing: {what} to validate the model while it trains; or hold some "
            f"out: data.held_out.valid={share}"
        )
