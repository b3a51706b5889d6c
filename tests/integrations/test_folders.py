"""Folders of models that only transformers has: shown, walked through, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from heed.errors import Refused
from heed.integrations.folders import Foreign
from heed.running.showing import is_foreign
from heed.running.walking import told
from tests.integrations.test_huggingface import BART, ENDS, LLAMA, made

WORDS = ["<pad>", "<s>", "</s>", "<mask>", "the", "cat", "sat", "on", "a", "mat"]
TEXT = "the cat sat on a mat"
CPU = torch.device("cpu")
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 4, "attn_logit_softcapping": 1.5}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 12, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 3, **ENDS}
        | {"decoder_start_token_id": 0},
    ),
    "bart": ("BartForConditionalGeneration", {**BART, "encoder_layers": 1, "decoder_layers": 1}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, words = tmp_path_factory.mktemp("folders"), {word: n for n, word in enumerate(WORDS)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokeniser = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>")
    torch.manual_seed(0)
    for name, (kind, config) in KINDS.items():
        made(kind, {**config, "vocab_size": len(WORDS)}).save_pretrained(root / name)
        tokeniser.save_pretrained(root / name)
    return {name: root / name for name in KINDS}


def test_heads_words_and_walk_of_a_decoder(folders: dict[str, Path]) -> None:
    assert is_foreign(folders["llama"])
    subject = Foreign(folders["llama"], CPU)
    (seen,) = subject.passes([TEXT])
    look = seen.look
    assert look.text in WORDS
    assert look.named == "predicted next symbol"
    (take,) = look.takes
    assert [layer.name for layer in take.layers] == ["layer 0", "layer 1"]
    assert take.layers[0].queries == tuple(TEXT.split())
    subject.model.set_attn_implementation("eager")
    ids = subject.tokeniser(TEXT, return_tensors="pt")["input_ids"]
    eager = subject.model(ids, output_attentions=True).attentions[1][0].detach().numpy()
    for h, panel in enumerate(take.layers[1].panels()):
        np.testing.assert_allclose(panel.weight, eager[h], atol=3e-3)  # a byte for each


def bert_like() -> Tokenizer:
    pieces = ["<pad>", "a", "stir", "##ring", "film", "."]
    words = Tokenizer(models.WordPiece({p: n for n, p in enumerate(pieces)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    words.decoder = decoders.WordPiece()  # type: ignore[assignment]
    return words


def spaced(mark: str) -> Tokenizer:
    """Pieces with a mark where a space stands, as those of GPT-2 and Llama."""
    pieces = ["<pad>", "a", f"{mark}stir", "ring", f"{mark}film", ".", f"{mark}a", "##"]
    words = Tokenizer(models.BPE({p: n for n, p in enumerate(pieces)}, []))
    if mark == "Ġ":
        words.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    else:
        words.decoder = decoders.Metaspace()  # type: ignore[assignment]
    return words


@pytest.mark.parametrize(
    ("made", "first"),
    [(bert_like(), 1), (spaced("Ġ"), 1), (spaced("▁"), 6)],
    ids=["wordpiece", "bytes", "sentencepiece"],
)
def test_pieces_that_continue_a_word_are_marked(
    made: Tokenizer, first: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>").save_pretrained(folder)
    subject = Foreign(folder, CPU)
    ids = torch.tensor([[first, 2, 3, 4, 5, 0]])
    assert subject._words(ids) == ["a", "stir", "##ring", "film", ".", "<pad>"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_walk_agrees(folders: dict[str, Path], kind: str) -> None:
    (heard,) = Foreign(folders[kind], CPU).passes([TEXT])
    for layer in range(len(heard.calls)):
        for at in ("0", "-1"):
            walked = told(heard, at, layer, 2)
            assert walked.agrees, walked.check
    assert "q·k × " in walked.stages[0].formula


def test_an_answer_is_read_again_with_the_words_of_both(folders: dict[str, Path]) -> None:
    (seen,) = Foreign(folders["bart"], CPU).passes([TEXT])
    look = seen.look
    (take,) = look.takes
    kinds = {layer.name: layer.kind for layer in take.layers}
    assert kinds == {
        "encoder 0 self": "self",
        "decoder 0 self": "self",
        "decoder 0 cross": "cross",
    }
    encoder, inside, cross = take.layers
    assert encoder.queries == cross.keys == tuple(TEXT.split())
    assert inside.queries == cross.queries
    assert inside.keys[1:] == inside.queries[:-1]  # the word before each symbol
    assert take.written


def test_an_empty_answer_is_reported(folders: dict[str, Path]) -> None:
    subject = Foreign(folders["bart"], CPU)
    subject.tokeniser.add_special_tokens({"eos_token": "</s>"})
    assert subject._read(TEXT, "the cat").remark == ""
    assert "the model wrote no text" in subject._read(TEXT, "<pad>").remark


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "no-such"}, "transformers has no model of type 'no-such' of its own"),
        ({"hidden_size": 2**40}, "hidden_size is 1,099,511,627,776"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1,000,000"),
        ({"intermediate_size": 10**6}, "and its safetensors files hold"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_unsupported_folders_are_refused(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    shutil.copytree(folders["llama"], tmp_path / "m")
    path = tmp_path / "m/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(Refused, match=said) as error:
        Foreign(tmp_path / "m", CPU)
    assert "\n" not in str(error.value)


def test_no_path_leads_outside_and_no_pickle_is_read(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["llama"], tmp_path / "m")
    (tmp_path / "m/extra.json").symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="leads outside its folder"):
        Foreign(tmp_path / "m", CPU)
    (tmp_path / "m/extra.json").unlink()
    (tmp_path / "m/more.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(Refused, match="is a Git LFS pointer"):
        Foreign(tmp_path / "m", CPU)
    (tmp_path / "m/more.safetensors").unlink()
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m/pytorch_model.bin")
    with pytest.raises(Refused, match="no weights as safetensors"):
        Foreign(tmp_path / "m", CPU)
    with pytest.raises(Refused, match="give one"):
        Foreign(folders["llama"], CPU).passes([])
