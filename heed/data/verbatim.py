r"""Text to numbers and back with nothing changed: every space, line break and capital stays.

    character   each character of the training text has a number; others are <unk>
    byte-bpe    pieces of bytes, merged by frequency, so that nothing is unknown. Radford 2019 §2.2

These are for language models, which write text as it stands in a file. (`tokenise.py` is for
sentences, where white space only parts words.) They are kept as one tokenizer.json; a file with
other rules is refused.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from heed.data.panics import check_merges, hushed
from heed.data.tokenise import BOS, EOS, PAD, SPECIALS, UNK, Ruled, read_rules
from heed.data.vocabulary import outline
from heed.errors import Refused, UnknownName

Kind = Literal["character", "byte-bpe"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CHUNK = 1 << 16
"""The characters that are cut into symbols at a time."""


class Verbatim(Ruled):
    """A vocabulary and how text is cut into it. `train` or `load` makes one.

    A text's numbers have nothing before or after them.
    """

    def __init__(self, tokenizer: Tokenizer, kind: Kind) -> None:
        super().__init__(tokenizer)
        self.kind = kind

    @classmethod
    def train(cls, kind: Kind, texts: Iterable[str], size: int = 8000) -> "Verbatim":
        """A vocabulary of at most `size` symbols, the four special ones among them.

        The commonest characters come first, equally common ones in the order of their code points.
        """
        if kind not in KINDS:
            raise UnknownName("tokeniser", kind, KINDS)
        least = len(SPECIALS) + (256 if kind == "byte-bpe" else 1)
        if size < least:
            raise Refused(f"a {kind} vocabulary has {least} symbols or more; got size={size}")
        tokenizer = _frame(kind)
        if kind == "character":
            counts = Counter(character for text in texts for character in text)
            ranked = sorted(counts, key=lambda each: (-counts[each], each))
            pieces = [*SPECIALS, *ranked][:size]
            numbers = {piece: i for i, piece in enumerate(pieces)}
            tokenizer.model = models.BPE(numbers, [], unk_token=SPECIALS[UNK])
        else:
            trainer = trainers.BpeTrainer(
                vocab_size=size,
                min_frequency=2,
                special_tokens=list(SPECIALS),
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                show_progress=False,
            )
            tokenizer.train_from_iterator(texts, trainer)
        _name_specials(tokenizer)
        return cls(tokenizer, kind)

    @property
    def size(self) -> int:
        """The count of numbers, special symbols included."""
        return int(self._tokenizer.get_vocab_size())

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to </s>; bytes that are no UTF-8 and unknown symbols are shown as �."""
        kept = []
        for i in ids:
            if i == EOS:
                break
            if i not in (PAD, BOS):
                kept.append(int(i))
        if self.kind == "byte-bpe":
            return str(self._tokenizer.decode(kept, skip_special_tokens=False))
        pieces = (self._tokenizer.id_to_token(i) or "" for i in kept)
        return "".join("�" if i == UNK else piece for i, piece in zip(kept, pieces, strict=True))

    def spelt(self, ids: Iterable[int]) -> list[str]:
        """The piece of each number, with its spaces and line breaks."""
        return [self._surface(int(i)) for i in ids]

    def _surface(self, i: int) -> str:
        if i < len(SPECIALS):
            return SPECIALS[i]
        if self.kind == "byte-bpe":
            return str(self._tokenizer.decode([i]))
        return self._tokenizer.id_to_token(i) or ""

    @classmethod
    def load(cls, path: str | Path) -> "Verbatim":
        """Load what `save` wrote. Rules other than heed's own are refused: a file is only data."""
        return cls(*_parsed(read_rules(path), path))


def in_pieces(lines: Iterable[str]) -> Iterator[str]:
    r"""A text as it stands, some lines at a time; every line ends at "\n", the last one too.

    A cut comes before a line that begins with a letter or a mark, so that byte-bpe, whose pieces
    never cross from white space into a word, cuts the parts as it would cut the whole.
    """
    held: list[str] = []
    length = 0
    for line in lines:
        if length >= CHUNK and line[:1].strip():
            yield "".join(held)
            held, length = [], 0
        held.append(f"{line}\n")
        length += len(line) + 1
    if held:
        yield "".join(held)


def _frame(kind: Kind) -> Tokenizer:
    """The rules without a vocabulary."""
    if kind == "character":
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNK]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _name_specials(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(symbol, special=True) for symbol in SPECIALS])


def _parsed(text: str, path: str | Path) -> tuple[Tokenizer, Kind]:
    """A tokeniser whose rules are among these; anything else is refused."""
    try:
        rules = json.loads(text)
        pieces = rules["model"]["vocab"]
        sound = set(pieces.values()) == set(range(len(pieces))) and all(
            pieces.get(symbol) == i for i, symbol in enumerate(SPECIALS)
        )
        check_merges(rules["model"])
        with hushed():
            tokenizer = Tokenizer.from_str(text) if sound else None
        kind = None if tokenizer is None else _outlines().get(outline(tokenizer))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # the library's own panics are no Exception
        raise Refused(f"{path}: not a tokeniser, or a broken one") from None
    if tokenizer is None or kind is None:
        raise Refused(f"{path}: not a tokeniser that heed wrote for a language model")
    return tokenizer, kind


@cache
def _outlines() -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for kind in KINDS:
        tokenizer = _frame(kind)
        _name_specials(tokenizer)
        found[outline(tokenizer)] = kind
    return found
