"""Vocabularies with rules that heed does not have: asked of transformers, or refused in a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from heed.data import vocabularies
from heed.errors import Refused
from tests.data.cutting import (
    CORPUS,
    TEXTS,
    assert_same,
    charsmap,
    ours,
    write_bytes,
    write_merges,
    write_wordpiece,
)

FRAME = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_roberta(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330, special_tokens=FRAME, initial_alphabet=alphabet, show_progress=False
        ),
    )
    write_merges(folder, tokenizer)


def write_herbert(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=260, special_tokens=FRAME, end_of_word_suffix="</w>", show_progress=False
        ),
    )
    write_merges(folder, tokenizer)


def write_xlm_roberta(folder: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer: Any = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=FRAME[:4], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.normalizer = normalizers.Precompiled(charsmap("ж", "c"))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"))


OTHERS: dict[str, Callable[[Path], None]] = {
    "RobertaTokenizer": write_roberta,
    "BartTokenizerFast": write_roberta,
    "HerbertTokenizer": write_herbert,
    "XLMRobertaTokenizer": write_xlm_roberta,
    "ElectraTokenizer": write_wordpiece,
}


def name_class(folder: Path, name: Any, **told: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **told}))


@pytest.mark.parametrize("name", OTHERS)
def test_another_class_cuts_as_transformers_does(name: str, tmp_path: Path) -> None:
    OTHERS[name](tmp_path)
    name_class(tmp_path, name)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    mine = ours(tmp_path)
    assert_same(mine, other)
    mine.save(tmp_path / "tokenizer.json")
    again = vocabularies.read(
        {"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()}, 400, "w"
    )
    assert again is not None
    assert again.encode(TEXTS) == mine.encode(TEXTS)


@pytest.mark.parametrize("name", [*OTHERS, "MyTokenizer"])
def test_without_transformers_another_class_is_refused_with_the_cure(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OTHERS.get(name, write_wordpiece)(tmp_path)
    name_class(tmp_path, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Refused, match=f"cut by {name}, whose rules.*: pip install") as refused:
        ours(tmp_path)
    assert "\n" not in str(refused.value)
    assert "PreTrainedTokenizerFast" in str(refused.value)


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "CpmTokenizer", ["BertTokenizer"], 3])
def test_what_transformers_cannot_read_is_refused_in_one_line(name: Any, tmp_path: Path) -> None:
    write_wordpiece(tmp_path)
    name_class(tmp_path, name)
    with pytest.raises(Refused, match=r"whose rules heed does not have, nor can tran") as refused:
        ours(tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "RobertaTokenizer", "XLNetTokenizer"])
def test_a_class_without_its_file_does_not_begin_anew(name: str, tmp_path: Path) -> None:
    """As it does elsewhere, with a few pieces."""
    write_wordpiece(tmp_path)
    name_class(tmp_path, name)
    with pytest.raises(Refused, match=f"cut by {name}"):
        ours(tmp_path)


def test_settings_name_no_other_file_and_no_code(tmp_path: Path) -> None:
    """They may: every key is handed to the class, and a file that is named is opened."""
    place, other = tmp_path / "place", tmp_path / "other"
    for each in (place, other):
        each.mkdir()
        write_roberta(each)
    name_class(place, "RobertaTokenizer")
    expected = ours(place).encode(TEXTS)
    pieces = json.loads((other / "vocab.json").read_text("utf-8"))
    last = len(pieces) - 1
    (other / "vocab.json").write_text(json.dumps({k: last - i for k, i in pieces.items()}))
    (place / "mine.py").write_text("raise SystemExit('run')\n")
    outside = {
        "vocab_file": str(other / "vocab.json"),
        "merges_file": str(other / "merges.txt"),
        "tokenizer_file": str(other / "none.json"),
        "auto_map": {"AutoTokenizer": ["mine.Mine", None]},
    }
    name_class(place, "RobertaTokenizer", **outside)
    assert ours(place).encode(TEXTS) == expected
    name_class(place, "RobertaTokenizer")
    (place / "special_tokens_map.json").write_text(json.dumps(outside))
    assert ours(place).encode(TEXTS) == expected


def test_asking_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_bytes(tmp_path)
    name_class(tmp_path, "GPT2Tokenizer", pad_token="<fill>", mask_token="<hide>")
    assert ours(tmp_path).roles.keys() >= {"pad", "mask"}
    assert capfd.readouterr() == ("", "")


def test_what_transformers_makes_is_checked_like_a_file(tmp_path: Path) -> None:
    """The class adds steps of its own; those of the file are bounded all the same."""
    write_xlm_roberta(tmp_path)
    path = tmp_path / "tokenizer.json"
    rules = json.loads(path.read_text("utf-8"))
    step = {"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a" * 100}
    rules["normalizer"] = {"type": "Sequence", "normalizers": [step, rules["normalizer"]]}
    path.write_text(json.dumps(rules))
    name_class(tmp_path, "XLMRobertaTokenizer")
    with pytest.raises(Refused, match="many times longer"):
        ours(tmp_path)
