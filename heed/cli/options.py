"""Options and checks that several verbs share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heed.errors import Refused


def decoding_options(**given: Any) -> dict[str, Any]:
    """The decoding options that were given; the others are as the run's recipe has them."""
    found = said(**given)
    sampling = [name for name in ("temperature", "top_k", "top_p", "seed") if name in found]
    if sampling and found.setdefault("method", "sample") != "sample":
        option = sampling[0].replace("_", "-")
        raise Refused(f"--{option} needs --method sample, not {found['method']}")
    if "width" in found:
        found.setdefault("method", "beam")
    return found


def said(**given: Any) -> dict[str, Any]:
    """The options that were given; a task refuses those that it does not have."""
    return {name: value for name, value in given.items() if value is not None}


def check_text(words: Iterable[str]) -> None:
    """Refuse text in another encoding, whose bytes Python reads as halves of surrogate pairs."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Refused(f"a text is not UTF-8: {word[:80]}") from None


def safe(message: str) -> str:
    """One line, what is not printable escaped, since it may quote an untrusted file."""
    line = message.replace("\n", " ")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
