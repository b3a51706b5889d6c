"""Text to numbers and back, over the `tokenizers` library; kept as one tokenizer.json."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from heed.data import vocabulary
from heed.data.vocabulary import BOS, EOS, KINDS, PAD, SPACE, SPECIALS, UNK, WHITE, Kind
from heed.errors import Refused, UnknownName
from heed.storage import atomic

__all__ = ["BOS", "EOS", "KINDS", "PAD", "SPECIALS", "UNK", "Kind", "Tokeniser"]

LARGEST = 1 << 28
"""The most bytes of a tokenizer.json; with a million pieces it has far fewer."""
IS_WHITE = re.compile(WHITE)


class Ruled:
    """The rules of one tokenizer.json, and what can be done with any rules."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # a special symbol in a text is ordinary text
        self._tokenizer = tokenizer

    @property
    def rules(self) -> str:
        """The contents of the tokenizer.json."""
        return self._tokenizer.to_str()

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules, the same for the same ones alone."""
        return hashlib.sha256(self.rules.encode()).hexdigest()

    def number(self, piece: str) -> int | None:
        """The number of a piece; None: there is no such piece."""
        return self._tokenizer.token_to_id(piece)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, with the special symbols that the rules put around them."""
        return [coded.ids for coded in self._tokenizer.encode_batch_fast(list(texts))]

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        atomic.replace(Path(path), [self._tokenizer.to_str(pretty=True).encode()])


class Tokeniser(Ruled):
    """A vocabulary and how text is cut into it. `train` or `load` makes one.

    A text's numbers have </s> at the end and no <s>; a blank text is </s> alone.
    """

    def __init__(self, tokenizer: Tokenizer, kind: Kind) -> None:
        super().__init__(tokenizer)
        self.kind = kind
        size = tokenizer.get_vocab_size()
        self._pieces = [tokenizer.id_to_token(i) or "" for i in range(size)]
        # These kinds replace a whole word by <unk>, and with it the space before the word.
        self._unknown = (SPACE if kind in ("word", "wordpiece") else "") + SPECIALS[UNK]

    @classmethod
    def train(
        cls,
        kind: Kind,
        texts: Iterable[str],
        size: int = 8000,
        lowercase: bool = False,
        split_unspaced: bool | None = None,
        least: int = 1,
    ) -> "Tokeniser":
        """A vocabulary of at most `size` pieces, the four special symbols among them.

        split_unspaced  each character of an unspaced script stands alone. None: yes, but for
                        "word" only if the texts do not part such words by spaces themselves.
        least           how often a word, a character or a merge must occur to get a number.

        The same texts give the same file, in any process and with any number of threads.
        """
        if kind not in KINDS:
            raise UnknownName("tokeniser", kind, KINDS)
        if size <= len(SPECIALS) + 1:
            raise Refused(
                f"a vocabulary of {size} has no room beside the {len(SPECIALS)} special symbols"
            )
        tokenizer = vocabulary.train(kind, iter(texts), size, lowercase, split_unspaced, least)
        return cls(tokenizer, kind)

    @property
    def size(self) -> int:
        """The count of numbers, special symbols included."""
        return len(self._pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to </s>, spaces as they were; an unknown piece is shown as <unk>."""
        text = "".join(self.surface(i) for i in _before_end(ids) if i not in (PAD, BOS))
        return text.replace(SPACE, " ").removeprefix(" ")

    def spelt(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """The piece of each number, with the space before it.

        Given the text whose numbers, or first numbers, these are, an unknown piece is spelt as it
        stands in the text.
        """
        unknown = iter(self._unknown_in(text) if text is not None and UNK in ids else ())
        surfaces = (self.surface(i).replace(SPACE, " ") for i in ids)
        return [
            next(unknown, surface) if i == UNK else surface
            for i, surface in zip(ids, surfaces, strict=True)
        ]

    def _unknown_in(self, text: str) -> Iterator[str]:
        coded = self._tokenizer.encode(text)
        for i, (start, end) in zip(coded.ids, coded.offsets, strict=True):
            if i == UNK:
                yield IS_WHITE.sub(" ", text[start:end])

    def words(self, given: str | Iterable[int]) -> list[int]:
        """For each piece of a text or of its numbers, which word it belongs to, from 0.

        Words are what stands between spaces; special symbols belong to none: -1.
        """
        return self._words_of_text(given) if isinstance(given, str) else self._words_of_ids(given)

    def _words_of_text(self, text: str) -> list[int]:
        at, word, inside = [], -1, False  # the word each character is in, or the one that follows
        for character in text:
            white = IS_WHITE.match(character) is not None
            word += not white and not inside
            inside = not white
            at.append(word + white)
        coded = self._tokenizer.encode(text)
        places = zip(coded.special_tokens_mask, coded.offsets, strict=True)
        return [-1 if special else at[end - 1] for special, (_, end) in places]

    def _words_of_ids(self, ids: Iterable[int]) -> list[int]:
        words, word, outside = [], -1, True
        for i in ids:
            surface = self.surface(i)
            outside = outside or surface.startswith(SPACE)
            if i in (PAD, BOS, EOS):
                words.append(-1)
            elif surface.strip(SPACE):
                word += outside
                outside = False
                words.append(word)
            else:  # a space alone goes with the word that it opens
                words.append(word + 1)
        return words

    def surface(self, i: int) -> str:
        """A number's part of the text, its space written as "▁"."""
        return self._unknown if i == UNK else self._pieces[i]

    @classmethod
    def load(cls, path: str | Path) -> "Tokeniser":
        """Load what `save` wrote. Rules other than heed's own are refused: a file is only data."""
        tokenizer, kind = vocabulary.parse(read_rules(path), path)
        return cls(tokenizer, kind)


def read_rules(path: str | Path) -> str:
    """The text of a tokenizer.json from any source; what it says has still to be checked."""
    try:
        if os.path.getsize(path) > LARGEST:
            raise Refused(f"{path}: too large for a tokeniser")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: not a tokeniser (not UTF-8)") from None


def _before_end(ids: Iterable[int]) -> Iterator[int]:
    for i in ids:
        if i == EOS:
            return
        yield int(i)
