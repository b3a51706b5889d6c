"""Options and checks that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from heed.errors import Refused
from heed.viewing.escaping import JOINERS, SPACES, escaped


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
    return escaped(message.replace("\n", " "))


def lines(answers: Iterable[str]) -> str:
    """One line for each answer, whatever line ends a vocabulary has."""
    return "".join(answer.replace("\n", " ") + "\n" for answer in answers)


def put(data: str) -> None:
    """Print data: to a program as it is, on a terminal without what could control that."""
    seen = escaped(data, f"\n\t{JOINERS}{SPACES}") if sys.stdout.isatty() else data
    print(seen, flush=True)
