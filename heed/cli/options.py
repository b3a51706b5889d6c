"""What several verbs take alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heed.errors import Refused


def decoding_options(**given: Any) -> dict[str, Any]:
    """What was said of decoding; the rest is as the run's recipe has it."""
    found = said(**given)
    sampling = [name for name in ("temperature", "top_k", "top_p", "seed") if name in found]
    if sampling and found.setdefault("method", "sample") != "sample":
        option = sampling[0].replace("_", "-")
        raise Refused(f"--{option} is for --method sample, not {found['method']}")
    if "width" in found:
        found.setdefault("method", "beam")
    return found


def said(**given: Any) -> dict[str, Any]:
    """The options that somebody gave; a task refuses those that it does not have."""
    return {name: value for name, value in given.items() if value is not None}


def check_text(words: Iterable[str]) -> None:
    """Refuse what was typed in another encoding: Python has half a surrogate pair for its bytes."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Refused(f"a text is not UTF-8: {word[:80]}") from None


def safe(message: str) -> str:
    """One line, with nothing in it that a terminal obeys, whatever a stranger's file says."""
    line = message.replace("\n", " ")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
