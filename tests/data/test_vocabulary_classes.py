"""Every tokeniser class cuts as `transformers` cuts with it; for three of them it is not asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import pre_tokenizers

from heed.data import auto_tokenizer, vocabularies
from heed.data.vocabulary_files import ROLES
from tests.data.cutting import (
    FLAGGED,
    TEXTS,
    assert_same,
    ours,
    theirs,
    write_bytes,
    write_sentencepiece,
    write_wordpiece,
)

CONFIGS = {
    "bert": transformers.BertConfig,
    "gpt2": transformers.GPT2Config,
    "xlnet": transformers.XLNetConfig,
}
WRITERS: dict[str, Callable[..., None]] = {
    "BertTokenizer": write_wordpiece,
    "GPT2Tokenizer": write_bytes,
    "XLNetTokenizer": write_sentencepiece,
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of transformers."""

    def fail(*_: object) -> None:
        raise AssertionError("transformers was asked")

    monkeypatch.setattr(auto_tokenizer, "ask", fail)


def folder(path: Path, model: str, write: Callable[[Path], None], **settings: Any) -> Path:
    """A folder of this model, with a vocabulary and settings."""
    path.mkdir(exist_ok=True)
    write(path)
    (path / "config.json").write_text(json.dumps(CONFIGS[model]().to_dict()))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def whole(path: Path, owner: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Writes the tokenizer.json of a class, with steps that are not its own."""
    path.mkdir()
    WRITERS[owner](path)
    tokenizer = theirs(getattr(transformers, owner), path, monkeypatch).backend_tokenizer
    tokenizer.normalizer, tokenizer.pre_tokenizer = None, pre_tokenizers.Whitespace()
    text = tokenizer.to_str()

    def write(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(text, "utf-8")

    return write


def read(folder: Path, named: str = "", usual: str = "") -> vocabularies.Vocabulary:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    del files["config.json"]
    found = vocabularies.read(files, 400, str(folder), named, usual)
    assert found is not None
    return found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ending", ["", "Fast"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_class_cuts_by_its_own_rules(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever model it is beside, and wherever it is named."""
    for i, write in enumerate([WRITERS[name], whole(tmp_path / "whole", name, monkeypatch)]):
        place = folder(tmp_path / str(i), "bert", write, tokenizer_class=name + ending)
        other = theirs(transformers.AutoTokenizer, place, monkeypatch)
        assert_same(read(place, usual="BertTokenizer"), other)
        settings = {"do_lower_case": False, "add_prefix_space": True}
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        config = json.loads((place / "config.json").read_text()) | {"tokenizer_class": name}
        (place / "config.json").write_text(json.dumps(config))
        other = theirs(transformers.AutoTokenizer, place, monkeypatch)
        assert_same(read(place, named=name, usual="BertTokenizer"), other)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("model", CONFIGS)
def test_without_a_name_it_is_the_class_of_the_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "xlnet": "XLNetTokenizer"}[model]
    write = whole(tmp_path / "whole", usual, monkeypatch)
    place = folder(tmp_path / "place", model, write)
    assert_same(read(place, usual=usual), theirs(transformers.AutoTokenizer, place, monkeypatch))


@pytest.mark.usefixtures("alone")
def test_files_of_another_kind_than_the_model_usually_has_decide_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 with a vocab.txt, whose folder does not name BertTokenizer."""
    written = [write_wordpiece, whole(tmp_path / "whole", "BertTokenizer", monkeypatch)]
    names = ["BertTokenizer", "PreTrainedTokenizerFast"]
    for i, (write, name) in enumerate(zip(written, names, strict=True)):
        place = folder(tmp_path / str(i), "gpt2", write, tokenizer_class=name)
        other = transformers.AutoTokenizer.from_pretrained(place)
        (place / "tokenizer_config.json").unlink()
        assert_same(read(place, usual="GPT2Tokenizer"), other, roles=False)


PIECES = ("<mask>", "<user>", "<Bot>", "<bot>", "<BOT>")
Numbers = dict[str, int]


def flagged(name: str, **flags: bool) -> dict[str, Any]:
    """A piece in the form of tokenizer_config.json."""
    return {"__type": "AddedToken", "content": name, **flags}


MASK = flagged("<mask>", lstrip=True, special=True, normalized=False)


def told_as_mask(numbers: Numbers) -> dict[str, Any]:
    return {"tokenizer_config.json": {"mask_token": MASK}}


def told_in_the_map(numbers: Numbers) -> dict[str, Any]:
    """The file beside the config, from versions without flags in it."""
    mask = {"content": "<mask>", "lstrip": True, "normalized": False}
    return {
        "tokenizer_config.json": {"mask_token": "<mask>"},
        "special_tokens_map.json": {"mask_token": mask},
    }


def told_by_number(numbers: Numbers) -> dict[str, Any]:
    """Flags of every kind, which those of the roles override."""
    pieces = [
        flagged("<mask>", rstrip=True, normalized=False),
        flagged("<user>", lstrip=True, rstrip=True, single_word=True, special=True),
        flagged("<Bot>", normalized=True, special=False),
    ]
    numbered = {numbers[piece["content"]]: {**piece} for piece in pieces}
    for piece in numbered.values():
        del piece["__type"]
    return {"tokenizer_config.json": {"mask_token": MASK, "added_tokens_decoder": numbered}}


def told_by_name(numbers: Numbers) -> dict[str, Any]:
    older = {name: numbers[name] for name in ("<mask>", "<user>", "<Bot>")}
    return {"tokenizer_config.json": {"mask_token": "<mask>"}, "added_tokens.json": older}


def told_as_more(numbers: Numbers) -> dict[str, Any]:
    more = [flagged("<user>", rstrip=True, special=True), "<Bot>"]
    return {"tokenizer_config.json": {"additional_special_tokens": more}}


def told_twice(numbers: Numbers) -> dict[str, Any]:
    """The map has priority, and its lists are added to those of the settings."""
    return {
        "tokenizer_config.json": {"mask_token": "<user>", "extra_special_tokens": ["<Bot>"]},
        "special_tokens_map.json": {
            "mask_token": "<mask>",
            "extra_special_tokens": ["<bot>", "<BOT>"],
        },
    }


def told_with_numbers(numbers: Numbers) -> dict[str, Any]:
    """Numbers in the settings, even none, make the older files unread."""
    return {
        "tokenizer_config.json": {"mask_token": "<mask>", "added_tokens_decoder": {}},
        "special_tokens_map.json": {"mask_token": "<user>", "image_token": "<bot>"},
        "added_tokens.json": {"<Bot>": numbers["<Bot>"]},
    }


def told_with_names(numbers: Numbers) -> dict[str, Any]:
    """Names besides those of the roles, as those of a model with pictures."""
    told = {"image_token": "<user>", "extra_special_tokens": {"speaker": "<Bot>", "x": "<bot>"}}
    return {
        "tokenizer_config.json": {**told, "sound_token": flagged("<mask>", lstrip=True)},
        "special_tokens_map.json": {"video_token": {"content": "<BOT>", "rstrip": True}},
    }


TOLD = [each for name, each in globals().items() if name.startswith("told_")]


def assert_alike(folder: Path, other: Any) -> None:
    mine = ours(folder)
    assert mine.tokenizer.get_vocab() == other.get_vocab()
    for texts in (FLAGGED, TEXTS):
        numbers = [other(text)["input_ids"] for text in texts]
        assert mine.encode(texts) == numbers
        decoded = [other.decode(each, skip_special_tokens=True) for each in numbers]
        assert [mine.decode(each) for each in numbers] == decoded
    for role in ROLES:
        number = getattr(other, f"{role}_token_id")
        assert number in (None, mine.roles.get(role))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("told", TOLD)
def test_special_pieces_of_the_vocabulary_have_the_flags_that_the_files_say(
    kind: str, told: Callable[[Numbers], dict[str, Any]], tmp_path: Path, monkeypatch: Any
) -> None:
    WRITERS[kind](tmp_path, more=PIECES)
    for name, content in told(ours(tmp_path).tokenizer.get_vocab()).items():
        (tmp_path / name).write_text(json.dumps(content))
    assert_alike(tmp_path, theirs(getattr(transformers, kind), tmp_path, monkeypatch))


@pytest.mark.parametrize("kind", ["BertTokenizer", "GPT2Tokenizer"])
@pytest.mark.parametrize("told", TOLD)
def test_special_pieces_beside_the_vocabulary_have_the_numbers_of_transformers(
    kind: str, told: Callable[[Numbers], dict[str, Any]], tmp_path: Path
) -> None:
    WRITERS[kind](tmp_path)
    size = ours(tmp_path).size
    for name, content in told({piece: size + i for i, piece in enumerate(PIECES)}).items():
        (tmp_path / name).write_text(json.dumps(content))
    assert_alike(tmp_path, getattr(transformers, kind).from_pretrained(tmp_path))
