"""Text whose words are given: each is cut into pieces by itself, so that it keeps its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heed.data.kinds.kind import Kind
from heed.data.kinds.text import LONGEST, Text, text_of
from heed.data.tokenise import EOS, UNK
from heed.data.vocabularies import Vocabulary

Sentence = tuple[str, ...]


class Words(Kind[Sentence]):
    """Words as symbols.

    text  how a text is cut, and how much of it a model reads
    """

    name = "words"

    def __init__(self, text: Text) -> None:
        self.text, self.longest, self.marked = text, text.longest, text.marked

    @property
    def pieces(self) -> Any:
        """The tokeniser of words."""
        return self.text.pieces

    @property
    def size(self) -> int:
        """The number of symbols."""
        return self.text.size

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules."""
        return f"words {self.text.fingerprint}"

    def whole(self, items: Sequence[Sentence]) -> list[list[int]]:
        """Each sentence's symbols, however many."""
        return [[i for some in cut for i in some] for cut in self._cut_words(items)]

    def places(self, items: Sequence[Sentence]) -> list[list[int]]:
        """The place of each word in its row, as far as the model reads."""
        found = []
        for front, *words, behind in self._cut_words(items):
            at, places = len(front), []
            for word in words:
                places.append(at)
                at += len(word)
            limit = at + len(behind) if self.longest is None else self.longest
            end = limit - len(behind) if limit < at + len(behind) else at
            found.append([place for place in places if place < end])
        return found

    def cut(self, row: list[int]) -> list[int]:
        """Cut a sentence to what the model reads; the end stays."""
        return self.text.cut(row)

    def _cut_words(self, items: Sequence[Sentence]) -> list[list[list[int]]]:
        """The symbols in front, of each word, and behind."""
        flat = [word for item in items for word in item]
        if isinstance(self.pieces, Vocabulary):
            roles = self.pieces.roles
            front, behind = ([roles[name]] if name in roles else [] for name in ("cls", "sep"))
            unknown = roles.get("unk", 0)
            coded = self.pieces.encode(flat, plain=True)
        else:
            front, behind, unknown = list(self.text.front), [EOS], UNK
            coded = [ids[:-1] for ids in self.pieces.encode(flat)]
        words = iter([ids or [unknown] for ids in coded])
        return [[front, *(next(words) for _ in item), behind] for item in items]

    def spelt(self, row: Sequence[int], item: Sentence) -> list[str]:
        """The piece of each symbol, with a space before each word."""
        (cut,), found = self._cut_words([item]), []
        for part, word in zip(cut, ("", *item, ""), strict=True):
            spelt = self.text.spelt(part, word or None)
            found += [f" {s.strip()}" if not n else s.strip() for n, s in enumerate(spelt)]
        return [*found[: len(row) - 1], found[-1]] if len(row) < len(found) else found

    def is_blank(self, item: Sentence) -> bool:
        """Whether there is no word."""
        return not item

    def of_line(self, line: str) -> Sentence:
        """The words between white space."""
        return tuple(line.split())

    def as_line(self, item: Sentence) -> str:
        """The words with spaces between them."""
        return " ".join(item)

    def as_data(self, item: Sentence) -> list[str]:
        """The words."""
        return list(item)

    def of_data(self, found: Any) -> Sentence:
        """Kept words, none of them blank."""
        if not isinstance(found, list) or not 0 < len(found) <= LONGEST:
            raise ValueError
        return tuple(map(text_of, found))
