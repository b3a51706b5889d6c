"""Texts of a single file kept from training, to judge by: their content alone decides which.

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
    """The parts that a recipe holds out, as keys: a bare number is the share of each of the parts,
    and so is `share` beside other keys.

    null clears the key like any other: nothing is held out.
    """
    if given is None:
        return dict.fromkeys(parts, 0)
    if _is_share(given):
        return dict.fromkeys(parts, given)
    if not isinstance(given, dict | Settings):
        keys = ", ".join(f"{part}: 0.1" for part in parts)
        raise ValueError(f"give a share, such as 0.1, or {{{keys}}}")
    if isinstance(given, dict) and "share" in given:
        rest = {key: value for key, value in given.items() if key != "share"}
        return {**dict.fromkeys(parts, given["share"]), **rest}
    return given


def without_files(data: Any) -> Any:
    """A recipe's data settings; a bare share in them is that of each part without files."""
    if not isinstance(data, dict):
        return data
    given = data.get("held_out")
    bare = _is_share(given) or (isinstance(given, dict) and "share" in given)
    parts = [part for part in ("valid", "test") if data.get(part) is None]
    return {**data, "held_out": shares(given, *parts)} if bare and parts else data


def _is_share(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


Held = Annotated[HeldOut, BeforeValidator(lambda given: shares(given, "valid", "test"))]
"""The parts held out, as a recipe says it: shares by key, or one number for parts without files."""


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
    if valid is not None and test is not None and held.valid and held.test:
        raise ValueError(
            "data.valid and data.test are given, so nothing is held out for them; take one out: "
            "data.valid=null data.test=null or data.held_out=null"
        )
    for part, files, some in (("valid", valid, held.valid), ("test", test, held.test)):
        if files is not None and some:
            raise ValueError(
                f"data.{part} is given, so nothing is held out for it; take one out: "
                f"data.{part}=null or data.held_out.{part}=0"
            )
    if valid is None and not held.valid:
        raise ValueError(
            f"data.valid is missing: {what} to validate the model while it trains; or hold some "
            f"out: data.held_out.valid={share}"
        )
