"""The ends of sentences: at marks, but not after abbreviations; a simple rule for many scripts.

Dr. No said "go away!" He did.    ->    Dr. No said "go away!"  |  He did.
"""

import re
from collections.abc import Iterable, Iterator

# An end mark, closing quotes and brackets, then a space; marks of unspaced scripts need no space.
END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[”’」』）》]*")
# Abbreviations with a full stop, which seldom end a sentence; and initials.
ABBREVIATED = re.compile(
    r"(?:^|[\s(\"'“‘])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|etc|al|e\.g|i\.e|Fig|Eq|Sec|No|"
    r"Vol|pp|approx)\.$"
)


def flowing(lines: Iterable[str | None], longest: int) -> Iterator[str | None]:
    """Text that flows on from line to line, cut at marks; None ends a sentence, too.

    A stretch of more than `longest` characters without a mark is yielded as it is, so that no more
    than that is held in memory.
    """
    rest = ""
    for line in lines:
        if line is None:
            if rest:
                yield rest
            rest = ""
            yield None
            continue
        whole, rest = _cut(f"{rest} {line}" if rest else line)
        yield from whole
        if len(rest) > longest:
            yield rest
            rest = ""
    if rest:
        yield rest


def split_sentences(text: str) -> list[str]:
    """One text cut after its sentences; the last may be without an end."""
    whole, rest = _cut(text)
    return [*whole, rest] if rest else whole


def _cut(text: str) -> tuple[list[str], str]:
    """The sentences that have ended, and what may go on."""
    found, start = [], 0
    for end in END.finditer(text):
        if not ABBREVIATED.search(text, max(start, end.end() - 12), end.end()):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return found, text[start:].strip()
