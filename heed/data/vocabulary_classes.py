"""The tokeniser classes of Hugging Face that heed knows, and what each of them does to a text.

A class cuts by its own rules even if a tokenizer.json beside it has others: only the pieces are
taken from there. One class alone takes a tokenizer.json as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenizers import Tokenizer, processors

from heed.data import vocabulary_files, vocabulary_pieces
from heed.data.panics import hushed, tried
from heed.data.vocabulary_files import Given, Made
from heed.data.vocabulary_pieces import ROLES
from heed.errors import Refused


class Form(NamedTuple):
    """A class, or several with the same rules.

    names   what follows a name, "Fast", makes no difference
    file    the older file of the vocabulary, read where there is no tokenizer.json
    model   the kind of vocabulary in a tokenizer.json
    around  the templates of a text and of a pair, with the segment of each part; None: those of
            the tokenizer.json, or otherwise the settings decide on a beginning and an end
    roles   the piece of each role, if the settings do not name another
    mask    the flags of a mask that the settings give without any
    extra   further special pieces, if the settings do not list any
    """

    names: tuple[str, ...]
    file: str
    model: str
    make: Callable[[Given, Mapping[str, str]], Made]
    around: tuple[str, str] | None
    roles: Mapping[str, str]
    mask: Mapping[str, bool] = {}
    extra: tuple[str, ...] = ()


BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
XLNET = {"bos": "<s>", "eos": "</s>"} | {
    role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")
}
ROBERTA = XLNET | {"sep": "</s>", "cls": "<s>"}
HERBERT = {role: piece for role, piece in ROBERTA.items() if role not in ("bos", "eos")}

FORMS = (
    Form(
        (
            *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer"),
            *("LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"),
        ),
        "vocab.txt",
        "WordPiece",
        vocabulary_files.wordpiece,
        ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
        BERT,
    ),
    Form(("GPT2Tokenizer",), "vocab.json", "BPE", vocabulary_files.byte_level, None, GPT2),
    Form(
        ("XLNetTokenizer",),
        "spiece.model",
        "Unigram",
        vocabulary_files.xlnet,
        ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
        XLNET,
        mask={"lstrip": True},
        extra=("<eop>", "<eod>"),
    ),
    Form(
        ("RobertaTokenizer", "BartTokenizer"),
        "vocab.json",
        "BPE",
        vocabulary_files.byte_level,
        ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0"),
        ROBERTA,
    ),
    Form(
        ("XLMRobertaTokenizer",),
        "tokenizer.json",
        "Unigram",
        vocabulary_files.xlm_roberta,
        ("{bos}:0 $A:0 {eos}:0", "{bos}:0 $A:0 {eos}:0 {eos}:0 $B:0 {eos}:0"),
        ROBERTA,
    ),
    Form(
        ("HerbertTokenizer",),
        "vocab.json",
        "BPE",
        vocabulary_files.herbert,
        ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
        HERBERT,
    ),
)

WHOLE = Form(
    ("PreTrainedTokenizer", "TokenizersBackend"),
    "tokenizer.json",
    "",
    vocabulary_files.as_it_is,
    None,
    {},
)

PIECES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
"""The files that have pieces."""


def tokeniser(given: Given, named: str, usual: str) -> tuple[Tokenizer, dict[str, int]]:
    """The tokeniser of a folder, and the numbers of the pieces that have a role.

    named  the class that the folder names, if its settings name none
    usual  the class if nothing names one and the files are those of this class
    """
    if "tokenizer.json" in given.files:
        given = given._replace(whole=vocabulary_files.whole(given))
    form = _form(given, given.told.get("tokenizer_class") or named, usual)
    if form is not WHOLE and given.whole is not None:
        given = given._replace(rules=json.loads(given.whole.to_str()))
    padding = given.whole.padding if form is WHOLE and given.whole is not None else None
    usual_roles = form.roles if padding is None else {"pad": padding["pad_token"]}
    roles = vocabulary_pieces.roles(given, usual_roles, form.mask)
    names = {role: piece.content for role, piece in roles.items()}
    made = form.make(given, names)
    vocabulary_pieces.add(made, given, [*roles.values()], form.extra)
    numbers = _numbers(names, made.tokenizer)
    if form is not WHOLE:
        made.tokenizer.post_processor = _around(form, given, names, numbers)
    # A role that is null still has its usual piece, if it is there.
    families = (BERT, XLNET, GPT2) if form is WHOLE else (form.roles,)
    for family in families:
        numbers = _numbers(family, made.tokenizer) | numbers
    return made.tokenizer, numbers


def _numbers(names: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, int]:
    found = {role: tokenizer.token_to_id(name) for role, name in names.items()}
    return {role: number for role, number in found.items() if number is not None}


def _form(given: Given, named: Any, usual: str) -> Form:
    forms, there = (WHOLE, *FORMS), next(file for file in PIECES if file in given.files)
    if not named:
        form = next((form for form in FORMS if usual in form.names), None)
        fits = form is not None and _fits(form, given)
        return form if form and fits else next(form for form in forms if form.file == there)
    name = str(named)[:60]
    form = next((form for form in forms if name.removesuffix("Fast") in form.names), None)
    right = "if it is right as it is, name PreTrainedTokenizerFast as tokenizer_class"
    if form is None:
        advice = f"without {there} the model alone is loaded"
        raise Refused(
            f"{given.where}: texts are cut by {name}, whose rules heed does not have; "
            + (advice if given.whole is None else f"its tokenizer.json has some: {right}")
        )
    if not _fits(form, given):
        lacks = f"{given.where} has no {form.file}, which {name} needs"
        if given.whole is not None:
            kind = type(given.whole.model).__name__
            lacks = f"{given.path('tokenizer.json')} is of the kind {kind}, not {form.model}, which"
            lacks += f" {name} needs; {right}"
        raise Refused(lacks)
    return form


def _fits(form: Form, given: Given) -> bool:
    """Whether the folder has pieces of the kind of a class."""
    if given.whole is None:
        return form.file in given.files
    return form is WHOLE or type(given.whole.model).__name__ == form.model


def _around(form: Form, given: Given, names: Mapping[str, str], numbers: Mapping[str, int]) -> Any:
    """What puts pieces around a text, and around a pair."""
    if form.around is None and given.whole is not None:
        return given.whole.post_processor
    single, pair = form.around or _ends(given, names)
    within = [role for role in ROLES if f"{{{role}}}" in single]
    for role in within:
        _check_around(role, names, numbers, given)
    pieces = {role: names[role] for role in within}
    with hushed():
        return tried(
            lambda: processors.TemplateProcessing(
                single=single.format(**pieces),
                pair=pair.format(**pieces),
                special_tokens=[(names[role], numbers[role]) for role in within],
            ),
            f"{given.where}: its special pieces cannot be put around a text",
        )


def _check_around(
    role: str, names: Mapping[str, str], numbers: Mapping[str, int], given: Given
) -> None:
    """Refuse a piece that is none, that a template cannot name, or that has no number."""
    name = names.get(role)
    if name is None:
        raise Refused(f"{given.where}: texts need a {role}_token around them; it has none")
    if name.startswith("$") or ":" in name or len(name.split()) != 1:
        raise Refused(f"{given.where}: the piece {name!r} cannot be put around a text")
    if role not in numbers:
        raise Refused(
            f"{given.where}: texts need {name!r} around them, but the vocabulary of "
            f"{given.symbols:,} pieces has neither it nor room for it"
        )


def _ends(given: Given, names: Mapping[str, str]) -> tuple[str, str]:
    """The templates of a text and of a pair if two settings decide them."""
    begin = "{bos}:0 " if given.flag("add_bos_token") and "bos" in names else ""
    end = " {eos}:0" if given.flag("add_eos_token") and "eos" in names else ""
    single = f"{begin}$A:0{end}"
    return single, f"{single} {single.replace('$A', '$B').replace(':0', ':1')}"
