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
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, processors

from heed import atomic
from heed.data import vocabulary_files
from heed.data.panics import hushed, tried
from heed.data.vocabulary_files import LONGEST, Given
from heed.errors import Refused

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", *SETTINGS)

MORE = 100_000  # pieces that may be added to a vocabulary
LEAST, MOST = 3, 1_000_000  # numbers of a text, at least (a word and its frame) and at most
RARE = "\ua66e \U0001242b \u2603"  # letters and a sign: no vocabulary has all of them


class Format(NamedTuple):
    """A kind of file, with the defaults of its family."""

    file: str
    model: str
    """The name of this kind of vocabulary in a tokenizer.json."""
    owner: str
    """The class at Hugging Face, which uses its own rules even if a tokenizer.json has others."""
    make: Callable[[Given], Tokenizer]
    roles: dict[str, str]
    """The piece of each role, in the order in which missing ones get their numbers."""
    around: tuple[str, str] | None = None
    """The templates of a text and of a pair, with the segment of each part. None: the settings
    decide on a beginning and an end."""


BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
XLNET = {"bos": "<s>", "eos": "</s>"} | {
    role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")
}
FORMATS = (
    Format(
        "vocab.txt",
        "WordPiece",
        "BertTokenizer",
        vocabulary_files.wordpiece,
        BERT,
        around=("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
    ),
    Format("vocab.json", "BPE", "GPT2Tokenizer", vocabulary_files.byte_level, GPT2),
    Format(
        "spiece.model",
        "Unigram",
        "XLNetTokenizer",
        vocabulary_files.unigram,
        XLNET,
        around=("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
    ),
)


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

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        atomic.replace(path, [self.tokenizer.to_str().encode()])

    def files(self) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json, for Hugging Face to read."""
        names = {f"{role}_token": self.tokenizer.id_to_token(i) for role, i in self.roles.items()}
        # This class uses tokenizer.json unchanged; others would make their own rules.
        beside: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
        beside |= {} if self.longest is None else {"model_max_length": self.longest}
        return {
            "tokenizer.json": self.tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(beside, ensure_ascii=False, indent=2).encode(),
        }


def largest(symbols: int) -> int:
    """The most bytes of a vocabulary's file, for a model with so many symbols."""
    return 2**20 + 256 * symbols


def read(
    files: Mapping[str, bytes], symbols: int, where: str, owner: str = ""
) -> Vocabulary | None:
    """The vocabulary among some files of a folder, for a model with so many symbols; None if there
    is none.

    owner  the class at Hugging Face whose rules are used if the settings name none: BertTokenizer
    """
    given = Given(files, symbols, where)
    told = _settings(given)
    given = given._replace(told=told)
    if "tokenizer.json" in files:
        tokenizer = vocabulary_files.whole(given)
        form = _owned(tokenizer, told.get("tokenizer_class") or owner)
        if form is None:
            roles = _named(_usual(tokenizer) | _names(_told(told)), tokenizer)
        else:
            given = given._replace(rules=json.loads(tokenizer.to_str()))
            tokenizer, roles = _made(form, given, tokenizer)
    else:
        form = next((form for form in FORMATS if form.file in files), None)
        if form is None:
            return None
        tokenizer, roles = _made(form, given)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = Vocabulary(tokenizer, roles, _longest(told))
    _check(found, symbols, where)
    return found


def _longest(told: Mapping[str, Any]) -> int | None:
    """The length limit of a text; files express no limit as a huge number."""
    most = told.get("model_max_length")
    known = isinstance(most, int) and not isinstance(most, bool) and LEAST <= most <= MOST
    return most if known else None


def _settings(given: Given) -> dict[str, Any]:
    """The settings beside the pieces, from two files. The newer one has priority if it lists the
    added pieces; otherwise the older does, since only it has their flags."""
    old, new = given.table("special_tokens_map.json"), given.table("tokenizer_config.json")
    return old | new if "added_tokens_decoder" in new else new | old


def _check(found: Vocabulary, symbols: int, where: str) -> None:
    """Refuse what would fail later: shared numbers, numbers without a row, no unknown piece.

    An added piece gets the count of pieces as its number, which another piece may have if a piece
    occurs twice or numbers are left out.
    """
    names: dict[int, str] = {}
    for name, number in found.tokenizer.get_vocab().items():
        if number in names:
            one, other = sorted((name, names[number]))
            raise Refused(
                f"{where}: the pieces {one!r} and {other!r} have the same number, {number}"
            )
        names[number] = name
        if len(name) > LONGEST:
            raise Refused(f"{where} has a piece of {len(name):,} letters; {LONGEST:,} are allowed")
    highest = max(names)
    if highest >= symbols:
        raise Refused(
            f"{where}: the piece {names[highest]!r} has the number {highest}, but the model has "
            f"{symbols:,} symbols"
        )
    with hushed():
        failure = f"{where}: the rules of the vocabulary fail at an empty text"
        framed = tried(lambda: [found.encode([""])[0], found.encode([""], [""])[0]], failure)
    around = max([0, *framed[0], *framed[1]])
    if around >= symbols:
        raise Refused(f"{where} puts {around} around a text, but the model has {symbols:,} symbols")
    with hushed():
        failure = f"{where}: the vocabulary cannot tokenise unknown characters"
        tried(lambda: found.encode([RARE]), failure)


def _owned(tokenizer: Tokenizer, owner: Any) -> Format | None:
    """The format whose class has its own rules for such pieces; None: the given rules are used."""
    kind = type(tokenizer.model).__name__
    owner = owner.removesuffix("Fast") if isinstance(owner, str) else ""
    return next((form for form in FORMATS if (form.owner, form.model) == (owner, kind)), None)


def _made(
    form: Format, given: Given, whole: Tokenizer | None = None
) -> tuple[Tokenizer, dict[str, int]]:
    """A tokeniser by the rules of its family, from the older files, which have only the differences
    from them, or from the pieces of a whole one."""
    tokenizer = form.make(given)
    told = _told(given.told)
    special = {role: _piece(name) for role, name in form.roles.items()} | told
    names = _names(special)
    more = [_pieces(given.told.get(f"{word}_special_tokens")) for word in ("additional", "extra")]
    listed = {piece.content for piece in chain(told.values(), *more)}
    _add(tokenizer, _numbered(given, {*names.values()}, listed), given.symbols, given.where)
    # One piece may have several roles; the flags given in any of them are used.
    said = {piece.content: piece for piece in told.values()}
    for pieces in ([said.get(piece.content, piece) for piece in special.values()], *more):
        _make_special(tokenizer, pieces, given.symbols)
    roles = _named(names, tokenizer)
    if whole is not None and form.around is None:
        tokenizer.post_processor = whole.post_processor
        return tokenizer, roles
    single, pair = form.around or _ends(given)
    for role in [role for role in names if f"{{{role}}}" in single]:
        _check_around(names[role], role in roles, given)
    with hushed():
        tokenizer.post_processor = tried(
            lambda: processors.TemplateProcessing(
                single=single.format(**names),
                pair=pair.format(**names),
                special_tokens=[(names[r], i) for r, i in roles.items() if f"{{{r}}}" in single],
            ),
            f"{given.where}: its special pieces cannot be put around a text",
        )
    return tokenizer, roles


def _make_special(tokenizer: Tokenizer, pieces: Iterable[AddedToken], symbols: int) -> None:
    """Mark pieces as indivisible; those that would get a number without a row are left out."""
    there = {piece.content for piece in tokenizer.get_added_tokens_decoder().values()}
    wanted = {piece.content: piece for piece in pieces if piece.content not in there}
    added = [name for name in wanted if tokenizer.token_to_id(name) is None]
    beyond = set(added[max(0, symbols - tokenizer.get_vocab_size()) :])
    tokenizer.add_tokens([piece for name, piece in wanted.items() if name not in beyond])


def _check_around(name: str, numbered: bool, given: Given) -> None:
    """Refuse a piece that a template cannot name, or that has no number."""
    if name.startswith("$") or ":" in name or len(name.split()) != 1:
        raise Refused(f"{given.where}: the piece {name!r} cannot be put around a text")
    if not numbered:
        raise Refused(
            f"{given.where}: texts need {name!r} around them, but the vocabulary of "
            f"{given.symbols:,} pieces has neither it nor room for it"
        )


def _ends(given: Given) -> tuple[str, str]:
    """The templates of a text and of a pair if two settings decide them."""
    begin = "{bos}:0 " if given.flag("add_bos_token", False) else ""
    end = " {eos}:0" if given.flag("add_eos_token", False) else ""
    single = f"{begin}$A:0{end}"
    return single, f"{single} {single.replace('$A', '$B').replace(':0', ':1')}"


def _usual(tokenizer: Tokenizer) -> dict[str, str]:
    """Roles by the usual names of the three families and of heed."""
    families = [BERT, XLNET, GPT2]
    found: dict[str, str] = {}
    for family in families:
        found = {r: n for r, n in family.items() if tokenizer.token_to_id(n) is not None} | found
    return found


def _told(told: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Roles as the settings give them."""
    given = {role: _pieces([told.get(f"{role}_token")]) for role in {**XLNET, **BERT}}
    found = {role: piece for role, pieces in given.items() for piece in pieces}
    for piece in found.values():
        piece.special = True
    return found


def _names(pieces: Mapping[str, AddedToken]) -> dict[str, str]:
    return {role: piece.content for role, piece in pieces.items()}


def _pieces(tokens: Any) -> list[AddedToken]:
    """Pieces as settings write them: plain, or with flags for the spaces around them."""
    found = [_piece(each) for each in tokens[:MORE]] if isinstance(tokens, list) else []
    return [piece for piece in found if 0 < len(piece.content) <= 256]


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _piece(told: Any) -> AddedToken:
    """One such piece; anything else becomes an empty piece."""
    if isinstance(told, str):
        return AddedToken(told, special=True)
    given = told if isinstance(told, dict) else {}
    content = given.get("content")
    flags = {flag: given[flag] for flag in FLAGS if isinstance(given.get(flag), bool)}
    return AddedToken(content if isinstance(content, str) else "", **flags)


def _named(names: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, int]:
    numbers = {role: tokenizer.token_to_id(name) for role, name in names.items()}
    return {role: i for role, i in numbers.items() if i is not None}


def _numbered(given: Given, special: set[str], listed: set[str]) -> dict[int, AddedToken]:
    """Pieces that were added to the vocabulary, by their numbers.

    special  those that have a role
    listed   those that the settings name, with a role or without
    """
    old, told = given.table("added_tokens.json"), given.told.get("added_tokens_decoder")
    newer = told if isinstance(told, dict) else {}
    whole = given.rules.get("added_tokens", ()) if told is None else ()
    count = max(len(old), len(newer))
    if count > MORE:
        raise Refused(f"{given.where} adds {count:,} pieces; {MORE:,} are allowed")
    found = {
        i: AddedToken(name, special=name in listed, normalized=name not in listed)
        for name, i in old.items()
        if type(i) is int
    }
    found |= {token["id"]: _piece(token) for token in whole}
    for number, token in newer.items():
        for piece in _pieces([token]) if number.isdecimal() and len(number) < 10 else ():
            found[int(number)] = piece
    for piece in found.values():
        piece.special = piece.special or piece.content in special
    return found


def _add(tokenizer: Tokenizer, pieces: Mapping[int, AddedToken], symbols: int, where: str) -> None:
    """Add pieces, all at once: the library takes as long for one as for all that are there."""
    inside = sorted(number for number in pieces if number < symbols)  # the model was made for these
    tokenizer.add_tokens([pieces[number] for number in inside])
    for number in inside:
        if tokenizer.token_to_id(pieces[number].content) != number:
            raise Refused(
                f"{where}: the added piece {pieces[number].content!r} cannot have the number "
                f"{number}"
            )
