"""Every tokeniser class: cut as `transformers` cuts with it, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from heed.data import vocabularies
from heed.data.vocabulary_classes import FORMS
from heed.errors import Refused
from tests.data.cutting import (
    CORPUS,
    assert_same,
    charsmap,
    theirs,
    write_bytes,
    write_merges,
    write_sentencepiece,
    write_wordpiece,
)

CONFIGS = {
    "bert": transformers.BertConfig,
    "gpt2": transformers.GPT2Config,
    "xlnet": transformers.XLNetConfig,
}
FRAME = ["<s>", "<pad>", "</s>", "<unk>"]


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
        vocab_size=150, special_tokens=FRAME, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.normalizer = normalizers.Precompiled(charsmap("ж", "c"))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"))


WRITERS: dict[str, Callable[[Path], None]] = {
    "BertTokenizer": write_wordpiece,
    "GPT2Tokenizer": write_bytes,
    "XLNetTokenizer": write_sentencepiece,
    "RobertaTokenizer": write_roberta,
    "XLMRobertaTokenizer": write_xlm_roberta,
    "HerbertTokenizer": write_herbert,
}


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


@pytest.mark.parametrize("ending", ["", "Fast"])
@pytest.mark.parametrize("name", [name for form in FORMS for name in form.names])
def test_a_class_cuts_by_its_own_rules(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever model it is beside, and wherever it is named."""
    owner = next(form.names[0] for form in FORMS if name in form.names)
    writers = [WRITERS[owner]]
    if owner != "XLMRobertaTokenizer":  # which is read from a tokenizer.json alone
        writers.append(whole(tmp_path / "whole", owner, monkeypatch))
    for i, each in enumerate(writers):
        place = folder(tmp_path / str(i), "bert", each, tokenizer_class=name + ending)
        other = theirs(transformers.AutoTokenizer, place, monkeypatch)
        assert_same(read(place, usual="BertTokenizer"), other)
        settings = {"do_lower_case": False, "add_prefix_space": True, "mask_token": "<hide>"}
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        config = json.loads((place / "config.json").read_text()) | {"tokenizer_class": name}
        (place / "config.json").write_text(json.dumps(config))
        other = theirs(transformers.AutoTokenizer, place, monkeypatch)
        assert_same(read(place, named=name, usual="BertTokenizer"), other)


@pytest.mark.parametrize("model", CONFIGS)
def test_without_a_name_it_is_the_class_of_the_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "xlnet": "XLNetTokenizer"}[model]
    write = whole(tmp_path / "whole", usual, monkeypatch)
    place = folder(tmp_path / "place", model, write)
    assert_same(read(place, usual=usual), theirs(transformers.AutoTokenizer, place, monkeypatch))


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


KNOWN = {name for form in FORMS for name in form.names} | {"TokenizersBackend"}
THEIRS = {name.removesuffix("Fast") for name in TOKENIZER_MAPPING_NAMES.values() if name}
OTHERS = ["ConvBertTokenizer", "BertTokenizerLegacy", "MyTokenizer", "bert_tokenizer"]
UNKNOWN = sorted({*THEIRS, *OTHERS} - KNOWN)


def test_every_other_class_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path / "old", "bert", write_wordpiece)
    write = whole(tmp_path / "whole", "BertTokenizer", monkeypatch)
    new = folder(tmp_path / "new", "bert", write)
    assert {"BertJapaneseTokenizer", "BertweetTokenizer", "CpmTokenizer"} <= {*UNKNOWN}
    for name in [*UNKNOWN, *(f"{name}Fast" for name in UNKNOWN)]:
        for folder_of_it, says in ((place, "without vocab.txt"), (new, "PreTrainedTokenizerFast")):
            with pytest.raises(Refused, match=f"cut by {name}, whose rules.*{says}") as refused:
                read(folder_of_it, named=name, usual="BertTokenizer")
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("GPT2Tokenizer", "has no vocab.json, which GPT2Tokenizer needs"),
        ("XLMRobertaTokenizer", "has no tokenizer.json, which XLMRobertaTokenizer needs"),
        ("PreTrainedTokenizerFast", "has no tokenizer.json"),
        (["BertTokenizer"], "whose rules heed does not have"),
        (3, "cut by 3, whose rules"),
    ],
)
def test_a_class_without_its_file_is_refused(name: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=says):
        read(folder(tmp_path / "old", "bert", write_wordpiece, tokenizer_class=name))


def test_a_class_needs_pieces_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = whole(tmp_path / "whole", "BertTokenizer", monkeypatch)
    place = folder(tmp_path / "new", "gpt2", write, tokenizer_class="GPT2TokenizerFast")
    with pytest.raises(Refused, match=r"of the kind WordPiece, not BPE, which GPT2TokenizerFast"):
        read(place)


def test_pieces_around_a_text_of_herbert_have_the_numbers_that_its_class_assumes(
    tmp_path: Path,
) -> None:
    place = folder(tmp_path / "new", "bert", write_bytes, tokenizer_class="HerbertTokenizer")
    with pytest.raises(Refused, match="are not 0 and 2"):
        read(place)
