"""Special and added pieces, from files that may disagree, as `transformers` adds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken

from heed.data import vocabulary_pieces
from tests.data.cutting import (
    TEXTS,
    ours,
    theirs,
    write_bytes,
    write_sentencepiece,
    write_wordpiece,
)

FLAGGED = [
    "a <mask> b",
    "a<mask>b",
    "a  <MASK>  b",
    "<mask> <mask>",
    " <user> <user>x <User> y<user>  ",
    "z <bot> <Bot><BOT>",
    "the\t<mask>\n<user>\u3000<bot>",
]
KINDS: dict[str, tuple[Callable[..., None], type]] = {
    "wordpiece": (write_wordpiece, transformers.BertTokenizer),
    "bytes": (write_bytes, transformers.GPT2Tokenizer),
    "sentencepiece": (write_sentencepiece, transformers.XLNetTokenizer),
}


def flagged(name: str, **flags: bool) -> dict[str, Any]:
    """A piece in the form of tokenizer_config.json."""
    return {"__type": "AddedToken", "content": name, **flags}


MASK = flagged("<mask>", lstrip=True, special=True, normalized=False)


def told_as_mask(size: int) -> dict[str, Any]:
    return {"tokenizer_config.json": {"mask_token": MASK}}


def told_in_the_map(size: int) -> dict[str, Any]:
    """The file beside the config, from versions without flags in it."""
    mask = {"content": "<mask>", "lstrip": True, "normalized": False}
    return {
        "tokenizer_config.json": {"mask_token": "<mask>"},
        "special_tokens_map.json": {"mask_token": mask},
    }


def told_by_number(size: int) -> dict[str, Any]:
    """Flags of every kind, which those of the roles override."""
    pieces = [
        flagged("<mask>", rstrip=True, normalized=False),
        flagged("<user>", lstrip=True, rstrip=True, single_word=True, special=True),
        flagged("<Bot>", normalized=True, special=False),
    ]
    numbered = {size + i: {**piece} for i, piece in enumerate(pieces)}
    for piece in numbered.values():
        del piece["__type"]
    return {"tokenizer_config.json": {"mask_token": MASK, "added_tokens_decoder": numbered}}


def told_by_name(size: int) -> dict[str, Any]:
    numbers = {"<Bot>": size, "<user>": size + 1, "<mask>": size + 2}
    return {"tokenizer_config.json": {"mask_token": "<mask>"}, "added_tokens.json": numbers}


def told_as_more(size: int) -> dict[str, Any]:
    more = [flagged("<user>", rstrip=True, special=True), "<Bot>"]
    return {"tokenizer_config.json": {"additional_special_tokens": more}}


def told_twice(size: int) -> dict[str, Any]:
    """The map has priority, and its lists are added to those of the settings."""
    return {
        "tokenizer_config.json": {"mask_token": "<user>", "extra_special_tokens": ["<Bot>"]},
        "special_tokens_map.json": {
            "mask_token": "<mask>",
            "extra_special_tokens": ["<bot>", "<BOT>"],
            "additional_special_tokens": ["<user>"],  # unread beside the other list
        },
    }


def told_with_numbers(size: int) -> dict[str, Any]:
    """Numbers in the settings, even none, make the older files unread."""
    return {
        "tokenizer_config.json": {"mask_token": "<mask>", "added_tokens_decoder": {}},
        "special_tokens_map.json": {"mask_token": "<user>", "image_token": "<bot>"},
        "added_tokens.json": {"<Bot>": size},
    }


def told_with_names(size: int) -> dict[str, Any]:
    """Names besides those of the roles, as those of a model with pictures."""
    told = {"image_token": "<user>", "extra_special_tokens": {"speaker": "<Bot>", "x": "<bot>"}}
    return {
        "tokenizer_config.json": {**told, "sound_token": flagged("<mask>", lstrip=True)},
        "special_tokens_map.json": {"video_token": {"content": "<BOT>", "rstrip": True}},
    }


def told_to_be_none(size: int) -> dict[str, Any]:
    """Without the pieces that a class, or a spiece.model, has of itself."""
    return {"tokenizer_config.json": {"extra_special_tokens": [], "bos_token": None}}


def told_in_older_lists(size: int) -> dict[str, Any]:
    return {"special_tokens_map.json": {"additional_special_tokens": ["<user>", "<bot>"]}}


def told_for_two_roles(size: int) -> dict[str, Any]:
    """One piece with other flags in each role: the last ones are used."""
    told = {
        "bos_token": flagged("<user>", lstrip=True),
        "eos_token": flagged("<user>", rstrip=True, normalized=True),
        "pad_token": flagged("<user>", lstrip=True, rstrip=True),
    }
    return {"tokenizer_config.json": told}


def told_with_flags_and_by_name(size: int) -> dict[str, Any]:
    """A role with flags does not make the piece of an added_tokens.json special beforehand."""
    told = {"mask_token": flagged("<mask>"), "pad_token": "<user>"}
    return {
        "tokenizer_config.json": told,
        "added_tokens.json": {"<mask>": size, "<user>": size + 1},
    }


TOLD = [each for name, each in globals().items() if name.startswith("told_")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", TOLD)
def test_pieces_have_the_numbers_and_flags_that_the_files_say(
    kind: str, told: Callable[[int], dict[str, Any]], tmp_path: Path, monkeypatch: Any
) -> None:
    write, cls = KINDS[kind]
    write(tmp_path)
    size = ours(tmp_path).size - (kind == "sentencepiece")  # whose <mask> is added
    for name, content in told(size).items():
        (tmp_path / name).write_text(json.dumps(content))
    other = theirs(cls, tmp_path, monkeypatch)
    mine = ours(tmp_path)
    assert mine.tokenizer.get_vocab() == other.get_vocab()
    for texts in (FLAGGED, TEXTS):
        numbers = [other(text)["input_ids"] for text in texts]
        assert mine.encode(texts) == numbers
        decoded = [other.decode(each, skip_special_tokens=True) for each in numbers]
        assert [mine.decode(each) for each in numbers] == decoded
    for role in vocabulary_pieces.ROLES:
        number = getattr(other, f"{role}_token_id")
        assert number in (None, mine.roles.get(role))


WITHOUT_NUMBERS = [told for told in TOLD if "added" not in str(told(0))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", WITHOUT_NUMBERS)
def test_a_tokenizer_json_gets_the_same_pieces_whether_taken_as_it_is_or_not(
    kind: str, told: Callable[[int], dict[str, Any]], tmp_path: Path, monkeypatch: Any
) -> None:
    write, cls = KINDS[kind]
    old, whole = tmp_path / "old", tmp_path / "whole"
    old.mkdir()
    write(old)
    tokenizer = theirs(cls, old, monkeypatch).backend_tokenizer
    tokenizer.add_tokens(["<Bot>", AddedToken("xyz", lstrip=True)])
    tokenizer.enable_padding(pad_token="<fill>", pad_id=0)
    whole.mkdir()
    tokenizer.save(str(whole / "tokenizer.json"))
    files = told(tokenizer.get_vocab_size())
    for name, content in files.items():
        (whole / name).write_text(json.dumps(content))
    for name in (cls.__name__, "PreTrainedTokenizerFast"):
        told_class = {**files.get("tokenizer_config.json", {}), "tokenizer_class": name}
        (whole / "tokenizer_config.json").write_text(json.dumps(told_class))
        (whole / "config.json").write_text('{"model_type": "bert"}')
        other = transformers.AutoTokenizer.from_pretrained(whole)
        (whole / "config.json").unlink()
        mine = ours(whole, symbols=500)
        assert mine.tokenizer.get_vocab() == other.get_vocab()
        for texts in (FLAGGED, TEXTS):
            numbers = [other(text)["input_ids"] for text in texts]
            assert mine.encode(texts) == numbers
            decoded = [other.decode(each, skip_special_tokens=True) for each in numbers]
            assert [mine.decode(each) for each in numbers] == decoded
