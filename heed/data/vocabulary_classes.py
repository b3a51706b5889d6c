"""The rules by which BERT's, GPT-2's and XLNet's tokenisers cut a text, and their special pieces.

A class cuts by its own rules even if a tokenizer.json beside it has others. Whatever needs more
(another class, special pieces that the vocabulary lacks) is asked of `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from heed.data import auto_tokenizer, vocabulary_files
from heed.data.panics import hushed, tried
from heed.data.vocabulary_files import PIECES, ROLES, Given
from heed.errors import Refused

Told = Mapping[str, Any]
"""The settings of tokenizer_config.json and special_tokens_map.json."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NUMBERED = "added_tokens_decoder"
SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")


class Family(NamedTuple):
    """A tokeniser class.

    name   what follows it, "Fast", makes no difference
    file   the older file of the vocabulary, read where there is no tokenizer.json
    kind   the kind of its vocabulary in a tokenizer.json
    rules  sets the steps before and after the vocabulary
    frame  the templates of a text and of a pair, with the segment of each part; None: those of
           the tokenizer.json
    roles  the piece of each role, if the settings do not name another
    mask   the flags of a mask that the settings give without any
    """

    name: str
    file: str
    kind: str
    rules: Callable[[Tokenizer, Told], None]
    frame: tuple[str, str] | None
    roles: Mapping[str, str]
    mask: Mapping[str, bool] = {}


def _switch(told: Told, name: str, usual: bool | None) -> Any:
    """A setting that is true or false; null is the usual one."""
    return usual if told.get(name) is None else told[name]


def _bert(tokenizer: Tokenizer, told: Told) -> None:
    """Devlin 2019."""
    tokenizer.model.unk_token = _piece(told.get("unk_token", "[UNK]") or "").content
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_switch(told, "tokenize_chinese_chars", True),
        strip_accents=_switch(told, "strip_accents", None),
        lowercase=_switch(told, "do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")


def _gpt2(tokenizer: Tokenizer, told: Told) -> None:
    """Pieces of bytes, so that nothing is unknown. Radford 2019."""
    space = _switch(told, "add_prefix_space", False)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()


def _xlnet(tokenizer: Tokenizer, told: Told) -> None:
    """A sentencepiece model, whose table of characters is the last step. Yang 2019."""
    there: Any = tokenizer.normalizer
    several: Any = there if isinstance(there, normalizers.Sequence) else [there]
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if _switch(told, "do_lower_case", False) else []
    steps += [step for step in several if isinstance(step, normalizers.Precompiled)][:1]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
    )
    tokenizer.decoder = decoders.Metaspace("▁", "always")


BERT = Family(
    "BertTokenizer",
    "vocab.txt",
    "WordPiece",
    _bert,
    ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
)
GPT2 = Family(
    "GPT2Tokenizer",
    "vocab.json",
    "BPE",
    _gpt2,
    None,
    dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
)
XLNET = Family(
    "XLNetTokenizer",
    "spiece.model",
    "Unigram",
    _xlnet,
    ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
    {"bos": "<s>", "eos": "</s>"}
    | {role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")},
    {"lstrip": True},
)
FAMILIES = (BERT, XLNET, GPT2)
WHOLE = ("PreTrainedTokenizer", "TokenizersBackend")
"""The classes that take a tokenizer.json as it is."""


def settings(given: Given) -> dict[str, Any]:
    """The settings of both files; those of special_tokens_map.json, where every piece is special,
    count unless the others give pieces by their numbers."""
    told = given.table("tokenizer_config.json")
    older = {} if NUMBERED in told else given.table("special_tokens_map.json")
    older.pop("tokenizer_class", None)
    for key, value in older.items():
        if isinstance(value, list) and isinstance(told.get(key), list):
            told[key] = [*told[key], *value]
        else:
            told[key] = {**value, "special": True} if isinstance(value, dict) else value
    if odd := next((name for name in SWITCHES if not isinstance(told.get(name), bool | None)), ""):
        raise Refused(f"{given.path('tokenizer_config.json')}: {odd} is not true or false")
    return told


def tokeniser(given: Given, told: Told, named: str, usual: str) -> tuple[Tokenizer, dict[str, int]]:
    """The tokeniser of a folder, and the numbers of the pieces that have a role.

    named  the class that the folder names
    usual  the class if it names none and the files are those of this class
    """
    short = (named or usual).removesuffix("Fast")
    wanted = next((family for family in FAMILIES if family.name == short), None)
    order = ("tokenizer.json", wanted.file if wanted else "", *PIECES)
    file = next(name for name in order if name in given.files)
    tokenizer, whole = vocabulary_files.made(given, file), file == "tokenizer.json"
    family: Family | None = None
    if wanted is not None and wanted.kind == type(tokenizer.model).__name__:
        family = wanted
    elif named and not (whole and short in WHOLE):
        why = f"texts are cut by {named[:60]}, whose rules heed does not have"
        return auto_tokenizer.ask(given, named, why)
    elif not whole:
        family = next(family for family in FAMILIES if family.file == file)
    try:
        if family is not None:
            family.rules(tokenizer, told)
        if not whole and (told.get("add_bos_token") or told.get("add_eos_token")):
            raise ValueError
        names = _mark(tokenizer, given, told, family)
    except Refused:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        why = "its settings or its special pieces are not the usual ones"
        return auto_tokenizer.ask(given, named or (family.name if family else WHOLE[0]), why)
    numbers = _numbers(names, tokenizer)
    if family is not None and family.frame is not None:
        tokenizer.post_processor = _around(family.frame, names, numbers, given.where)
    # A role that is null still has its usual piece, if it is there.
    for each in FAMILIES if family is None else (family,):
        numbers = _numbers(each.roles, tokenizer) | numbers
    return tokenizer, numbers


def _numbers(names: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, int]:
    found = {role: tokenizer.token_to_id(name) for role, name in names.items()}
    return {role: number for role, number in found.items() if number is not None}


def _around(
    frame: tuple[str, str], names: Mapping[str, str], numbers: Mapping[str, int], where: str
) -> Any:
    """The step that puts pieces around a text, and around a pair."""
    failure = f"{where}: its special pieces cannot be put around a text"
    within = [role for role in ROLES if f"{{{role}}}" in frame[0]]
    if any(set("$: ") & set(names.get(role, "")) for role in within):  # a template's own signs
        raise Refused(failure)
    with hushed():
        return tried(
            lambda: processors.TemplateProcessing(
                single=frame[0].format(**names),
                pair=frame[1].format(**names),
                special_tokens=[(names[role], numbers[role]) for role in within],
            ),
            failure,
        )


def _mark(tokenizer: Tokenizer, given: Given, told: Told, family: Family | None) -> dict[str, str]:
    """Mark the special pieces of the settings as indivisible. One that the vocabulary lacks is left
    out if the model has no row for it, and otherwise a ValueError.

    They are added all at once: the library takes as long for one as for all that are there.
    """
    usual, flags = (family.roles, family.mask) if family else ({}, {})
    values = {role: told.get(f"{role}_token", usual.get(role)) for role in ROLES}
    if flags and isinstance(values["mask"], str):
        values["mask"] = {"content": values["mask"], **flags}
    roles = {role: _piece(value) for role, value in values.items() if value}
    known = {piece.content: piece for piece in tokenizer.get_added_tokens_decoder().values()}
    numbered = {i: piece for i, piece in _numbered(given, told, known) if i < given.symbols}
    known |= {piece.content: piece for piece in numbered.values()}
    named = [known.get(piece.content, piece) for piece in (*roles.values(), *_named(told))]
    for piece in named:
        piece.special = True
    pieces = [*numbered.values(), *named, *(known.get(p.content, p) for p in _listed(told))]
    there = [piece for piece in pieces if tokenizer.token_to_id(piece.content) is not None]
    misplaced = any(tokenizer.token_to_id(p.content) != i for i, p in numbered.items())
    if misplaced or (len(there) < len(pieces) and tokenizer.get_vocab_size() < given.symbols):
        raise ValueError
    tokenizer.add_tokens(there)
    return {role: piece.content for role, piece in roles.items()}


def _numbered(
    given: Given, told: Told, known: Mapping[str, AddedToken]
) -> Iterator[tuple[int, AddedToken]]:
    """Pieces by their numbers: in the settings, or otherwise in added_tokens.json."""
    if NUMBERED in told:
        yield from ((int(key), _piece(value)) for key, value in told[NUMBERED].items())
        return
    for text, number in given.table("added_tokens.json").items():
        if text not in known:
            yield number, AddedToken(text)


def _named(told: Told) -> Iterator[AddedToken]:
    """Special pieces with names of their own, such as image_token."""
    for key, value in told.items():
        if key.endswith("special_tokens") and isinstance(value, dict):
            yield from map(_piece, value.values())
        elif key.removesuffix("_token") not in (key, *ROLES) and isinstance(value, str | dict):
            yield _piece(value)


def _listed(told: Told) -> Iterator[AddedToken]:
    """Special pieces without names."""
    for key, value in told.items():
        if key.endswith("special_tokens") and not isinstance(value, dict):
            yield from map(_piece, value or ())


def _piece(value: Any) -> AddedToken:
    """A piece as a file writes it: a text, or a table with flags for the spaces around it."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(value["content"], **{flag: value[flag] for flag in FLAGS if flag in value})
