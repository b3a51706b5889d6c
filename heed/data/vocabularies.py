"""Vocabularies in Hugging Face's files, as a tokeniser with the same numbers.

    tokenizer.json            the whole tokeniser, of any kind
    vocab.txt                 WordPiece, as BERT has it
    vocab.json merges.txt     byte-level BPE, as GPT-2 has it
    spiece.model              a sentencepiece unigram model, as XLNet has it
    tokenizer_config.json     lower case or not, and the pieces for padding, mask and so on

    vocabulary = read({"vocab.txt": data}, symbols=30522, where="folder")
    vocabulary.encode(["我爱中国"])

A file is data: nothing in it is executed, and it is checked before `tokenizers` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models

from heed.data import vocabulary_classes
from heed.data.panics import hushed, tried
from heed.data.vocabulary import SPACE
from heed.data.vocabulary_files import PIECES, Given
from heed.errors import Refused
from heed.storage import atomic

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
FILES = (*PIECES, "merges.txt", *SETTINGS)

LEAST, MOST = 3, 1_000_000  # numbers of a text, at least (a word and its frame) and at most
RARE = "\ua66e \U0001242b \u2603"  # letters and a sign: no vocabulary has all of them


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokeniser, and the numbers of the pieces that have a role: pad, cls, sep, mask, ...

    longest  the most numbers of a text, special ones included, if the files have a limit
    """

    tokenizer: Tokenizer
    roles: dict[str, int]
    longest: int | None = None

    def __repr__(self) -> str:
        """Without the pieces, which may be a hundred thousand."""
        return f"Vocabulary({self.size:,} pieces, roles={self.roles}, longest={self.longest})"

    @property
    def size(self) -> int:
        """The number of pieces, added ones included."""
        return self.tokenizer.get_vocab_size()

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules: equal only if they are."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, plain: bool = False
    ) -> list[list[int]]:
        """The numbers of each text, or of each text and its pair, as the model reads them.

        plain  without the special pieces around a text, such as [CLS] and [SEP]
        """
        given: Any = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        coded = tried(
            lambda: self.tokenizer.encode_batch_fast(given, add_special_tokens=not plain),
            "the rules of the vocabulary cannot tokenise one of these texts",
        )
        return [each.ids for each in coded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers; pieces with a role are left out."""
        numbers = list(ids)
        return tried(
            lambda: self.tokenizer.decode(numbers),
            "the rules of the vocabulary cannot decode these numbers",
        )

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each number; "" for an unused number."""
        return [self.tokenizer.id_to_token(int(i)) or "" for i in ids]

    def spelt(self, ids: Iterable[int]) -> list[str]:
        """The piece of each number as it stands in a text, with the space before it."""
        return list(map(_spelling(self.tokenizer), self.pieces(ids)))

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        atomic.replace(path, [self.tokenizer.to_str().encode()])

    def files(self) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json, for Hugging Face to read.

        A role whose piece is cut like any other is left out: one that is named would not be cut.
        """
        added = self.tokenizer.get_added_tokens_decoder()
        names = {f"{role}_token": added[i].content for role, i in self.roles.items() if i in added}
        # This class uses tokenizer.json unchanged; others would make their own rules.
        beside: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
        beside |= {} if self.longest is None else {"model_max_length": self.longest}
        return {
            "tokenizer.json": self.tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(beside, ensure_ascii=False, indent=2).encode(),
        }


BYTE_SPACE = "Ġ"
"""The space in the alphabet of bytes, in which every byte is one printable character."""


def _spelling(tokenizer: Tokenizer) -> Callable[[str], str]:
    """The function from a piece to its text, with the spaces around it.

    WordPiece           stir  ##ring      " stir"  "ring"
    byte-level BPE      Ġcaf  Ã©          " caf"   "é"
    sentencepiece       ▁stir ring        " stir"  "ring"
    BPE by its ends     stir  ring</w>    "stir"   "ring "
    """
    model = tokenizer.model
    if isinstance(model, models.WordLevel):
        return lambda piece: " " + piece.replace(SPACE, "")
    if prefix := getattr(model, "continuing_subword_prefix", None):
        return lambda piece: piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
    if suffix := getattr(model, "end_of_word_suffix", None):
        return lambda piece: f"{piece.removesuffix(suffix)} " if piece.endswith(suffix) else piece
    # The alphabet of bytes has no "▁", but other vocabularies may have the letter "Ġ".
    if tokenizer.token_to_id(BYTE_SPACE) is not None and tokenizer.token_to_id(SPACE) is None:
        bytes_ = decoders.ByteLevel()
        return lambda piece: str(bytes_.decode([piece]))
    return lambda piece: piece.replace(SPACE, " ")


def largest(symbols: int) -> int:
    """The most bytes of a vocabulary's file, for a model with so many symbols."""
    return 2**20 + 256 * symbols


def read(
    files: Mapping[str, bytes], symbols: int, where: str, named: str = "", usual: str = ""
) -> Vocabulary | None:
    """The vocabulary among some files of a folder, for a model with so many symbols; None if there
    is none.

    named  the tokeniser class that the folder names elsewhere, used if the settings name none
    usual  the one that such a model has, used if nothing names one and the files are of its kind
    """
    given = Given(files, symbols, where)
    told = vocabulary_classes.settings(given)
    if not any(file in files for file in PIECES):
        return None
    if unread := next((key for key in UNREAD if told.get(key)), None):
        raise Refused(f"{given.path('tokenizer_config.json')}: {unread} is not supported")
    named = str(told.get("tokenizer_class") or named)
    tokenizer, roles = vocabulary_classes.tokeniser(given, told, named, usual)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = Vocabulary(tokenizer, roles, _longest(told))
    _check(found, symbols, where)
    return found


UNREAD = ("split_special_tokens", "fast_tokenizer_files", "vocab", "merges", "init_inputs")
"""Settings that change how texts are cut, and that no tokenizer.json can express or that name other
files: they are refused."""


def _longest(told: Mapping[str, Any]) -> int | None:
    """The length limit of a text; files express no limit as a huge number."""
    most = told.get("model_max_length")
    known = isinstance(most, int) and not isinstance(most, bool) and LEAST <= most <= MOST
    return most if known else None


def _check(found: Vocabulary, symbols: int, where: str) -> None:
    """Refuse what would fail later: a number without a row, or no piece for unknown text."""
    with hushed():
        failure = f"{where}: the rules of the vocabulary fail at an empty text"
        framed = tried(lambda: [found.encode([""])[0], found.encode([""], [""])[0]], failure)
    around = max([0, *framed[0], *framed[1]])
    if around >= symbols:
        raise Refused(f"{where} puts {around} around a text, but the model has {symbols:,} symbols")
    with hushed():
        failure = f"{where}: the vocabulary cannot tokenise unknown characters"
        tried(lambda: found.encode([RARE]), failure)
