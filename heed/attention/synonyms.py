"""The words of the literature, and what they mean here: `hard` is argmax, sample or gumbel."""

import re

from heed.attention.catalogue import BESIDE, CATALOGUE, Beside, Entry
from heed.errors import close_to

KNOWN: tuple[Entry | Beside, ...] = (*CATALOGUE.values(), *BESIDE)

FEW = 3
"""A misspelt word leads to no more names, unless a single synonym has more."""


def plain(word: str) -> str:
    """A word in small letters, with spaces for hyphens and without a last "attention"."""
    return re.sub(r"(?<=.)( ?attention|注意力(机制)?)$", "", _spaced(word))


def nearest(word: str) -> list[str]:
    """The names that a word is a synonym of; if there are none, those that are spelt like it."""
    names = _called(word)
    if names:
        return names
    words = [each for known in KNOWN for each in (known.name, *known.synonyms)]
    found: dict[str, None] = {}
    for each in close_to(word, words, alike=0.7) or close_to(word, CATALOGUE):
        if len(found) < FEW:
            found |= dict.fromkeys(_called(each))
    return list(found)


def search(word: str) -> list[Entry | Beside]:
    """All that has a word in its name, synonyms, slot, source or description."""
    asked = re.escape(plain(word))
    whole = re.compile(rf"(?<![a-z0-9]){asked}(?![a-z0-9])")  # Chinese has no spaces to go by
    return [each for each in KNOWN if whole.search(_spaced(" ; ".join(_said(each))))]


def _called(word: str) -> list[str]:
    words = {known.name: map(plain, (known.name, *known.synonyms)) for known in KNOWN}
    return [name for name, each in words.items() if plain(word) in each]


def _said(known: Entry | Beside) -> list[str]:
    facts = [known.slot, known.source] if isinstance(known, Entry) else []
    return [known.name, *known.synonyms, *facts, known.about]


def _spaced(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text.casefold()).strip()
