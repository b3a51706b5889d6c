"""Small vocabularies as Hugging Face's files, and what `transformers` makes of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from heed.data import vocabularies

CORPUS = [
    "the cat sat on the mat, and the dog didn't",
    "我爱中国，我爱北京天安门",
    "naïve café Ünïcödé straße",
    "emoji 🙂🙃 family 👨‍👩‍👧 flags 🇩🇪",
    "lower lowest newer newest wide widest 1234 3.14",
] * 3
TEXTS = [
    "",
    " ",
    "the lowest cat",
    "  The  CAT's naïve Café\tdidn't\nsit ",
    "我爱中国 and 北京!",
    "🙂 or 👨‍👩‍👧 or 🦜 or 🇩🇪",
    "``quoted'' ﬁne ½ Ⅷ",
    "unseen жук and ☃ mixed 中a国b",
    "a [MASK] <mask> <|endoftext|> [SEP] </s> <sep> token",
    "x" * 150,
    "\u200bzero\u00a0width\ufeff \x00 control",
]
FLAGGED = [
    "a <mask> b",
    "a<mask>b",
    "a  <MASK>  b",
    "<mask> <mask>",
    " <user> <user>x <User> y<user>  ",
    "z <bot> <Bot><BOT>",
    "the\t<mask>\n<user>\u3000<bot>",
]


def trained(kind: str) -> Tokenizer:
    """A small vocabulary of this kind."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer: Any = trainers.WordPieceTrainer(
            vocab_size=260, special_tokens=specials, show_progress=False
        )
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_wordpiece(folder: Path, more: Sequence[str] = (), **config: Any) -> None:
    numbers = trained("wordpiece").get_vocab()
    pieces = [*sorted(numbers, key=numbers.__getitem__), *more]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    write_config(folder, config)


def write_bytes(folder: Path, more: Sequence[str] = (), **config: Any) -> None:
    write_merges(folder, trained("bytes"), more)
    write_config(folder, config)


def write_merges(folder: Path, tokenizer: Tokenizer, more: Sequence[str] = ()) -> None:
    """The pieces and merges of byte-pair encoding."""
    model = json.loads(tokenizer.to_str())["model"]
    pieces = {piece: i for i, piece in enumerate([*model["vocab"], *more])}
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")


def write_sentencepiece(folder: Path, more: Sequence[str] = (), **config: Any) -> None:
    from transformers.utils import sentencepiece_model_pb2_new as protocol

    model = protocol.ModelProto()
    types = {"<unk>": 2, "<pad>": 4, "<mask>": 4}
    types |= dict.fromkeys(("<s>", "</s>", "<cls>", "<sep>", "<eop>", "<eod>"), 3)
    pieces = json.loads(trained("unigram").to_str())["model"]["vocab"]
    last = [(piece, -20.0) for piece in more if piece not in types]
    for piece, score in [*((name, 0.0) for name in types), *pieces[1:], *last]:
        kind = types.get(piece, 1)
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = 1
    model.trainer_spec.unk_id = 0
    model.normalizer_spec.name = "nmt_nfkc"
    model.normalizer_spec.precompiled_charsmap = charsmap("ж", "c")
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    write_config(folder, config)


def charsmap(character: str, becomes: str) -> bytes:
    """The compiled table of a normaliser with one rule: a double array, and its texts.

    A unit has its label, an offset to its children, and whether one of them is a leaf.
    """
    units = [0] * 1024
    node = 0
    for depth, byte in enumerate(character.encode()):
        child = (256 * (depth + 1)) ^ byte
        units[node] |= (child ^ byte ^ node) << 10
        units[child] = byte
        node = child
    units[node] |= (1 << 10) | (1 << 8)
    units[node ^ 1] = 1 << 31  # a leaf: the text at place 0
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + becomes.encode() + b"\0"


def write_config(folder: Path, config: dict[str, Any]) -> None:
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def ours(folder: Path, symbols: int = 400) -> vocabularies.Vocabulary:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = vocabularies.read(files, symbols, str(folder))
    assert found is not None
    return found


def theirs(kind: type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Their sentencepiece reader requires that library, but only uses protobuf.
    module = import_module("transformers.convert_slow_tokenizer")  # by path it may be a function
    monkeypatch.setattr(module, "requires_backends", lambda *_: None)
    return kind.from_pretrained(folder)  # type: ignore[attr-defined]


def assert_same(mine: vocabularies.Vocabulary, other: Any, *, roles: bool = True) -> None:
    plain = [other(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert mine.encode(TEXTS, plain=True) == plain
    assert mine.encode(TEXTS) == [other(text)["input_ids"] for text in TEXTS]
    others = [text or "none" for text in TEXTS[::-1]]  # for them an empty pair is no pair
    pairs = [other(a, b)["input_ids"] for a, b in zip(TEXTS, others, strict=True)]
    assert mine.encode(TEXTS, others) == pairs
    assert mine.size == len(other)
    for role, number in mine.roles.items() if roles else ():
        assert getattr(other, f"{role}_token_id") == number, role
    assert sum(map(len, plain)) > 70
