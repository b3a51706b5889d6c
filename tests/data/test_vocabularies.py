"""Vocabularies in every file format, compared with `transformers` reading the same files."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from heed.data import sentencepiece, vocabularies
from heed.errors import Refused

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


def write_wordpiece(folder: Path, **config: Any) -> None:
    numbers = trained("wordpiece").get_vocab()
    pieces = sorted(numbers, key=numbers.__getitem__)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    write_config(folder, config)


def write_bytes(folder: Path, **config: Any) -> None:
    model = json.loads(trained("bytes").to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    write_config(folder, config)


def write_sentencepiece(folder: Path, **config: Any) -> None:
    from transformers.utils import sentencepiece_model_pb2_new as protocol

    model = protocol.ModelProto()
    types = {"<unk>": 2, "<s>": 3, "</s>": 3, "<cls>": 3, "<sep>": 3, "<pad>": 4}
    pieces = json.loads(trained("unigram").to_str())["model"]["vocab"]
    for piece, score in [*((name, 0.0) for name in types), *pieces[1:]]:
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


CASES: dict[str, tuple[Callable[..., None], type, dict[str, Any]]] = {
    "uncased": (write_wordpiece, transformers.BertTokenizer, {}),
    "cased": (write_wordpiece, transformers.BertTokenizer, {"do_lower_case": False}),
    "accents": (
        write_wordpiece,
        transformers.BertTokenizer,
        {"strip_accents": False, "tokenize_chinese_chars": False},
    ),
    "missing mask": (write_wordpiece, transformers.BertTokenizer, {"mask_token": "<hide>"}),
    "bytes": (write_bytes, transformers.GPT2Tokenizer, {}),
    "space first": (write_bytes, transformers.GPT2Tokenizer, {"add_prefix_space": True}),
    "ends": (
        write_bytes,
        transformers.GPT2Tokenizer,
        {"add_bos_token": True, "add_eos_token": True, "bos_token": "<begin>"},
    ),
    "padded bytes": (write_bytes, transformers.GPT2Tokenizer, {"pad_token": "<fill>"}),
    "sentencepiece": (write_sentencepiece, transformers.XLNetTokenizer, {}),
    "lower": (write_sentencepiece, transformers.XLNetTokenizer, {"do_lower_case": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_old_files_give_the_same_numbers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, kind, config = CASES[case]
    write(tmp_path, **config)
    assert_same(ours(tmp_path), theirs(kind, tmp_path, monkeypatch))


@pytest.mark.parametrize("case", CASES)
def test_a_tokenizer_json_gives_the_same_numbers_and_survives_a_round_trip(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, kind, config = CASES[case]
    old, whole, back = (tmp_path / name for name in ("old", "whole", "back"))
    for folder in (old, whole, back):
        folder.mkdir()
    write(old, **config)
    other = theirs(kind, old, monkeypatch)
    other.save_pretrained(whole)
    for name in ("vocab.txt", "vocab.json", "merges.txt", "spiece.model"):
        (whole / name).unlink(missing_ok=True)
    mine = ours(whole)
    assert_same(mine, other)
    for name, data in mine.files().items():
        (back / name).write_bytes(data)
    again = transformers.AutoTokenizer.from_pretrained(back)
    assert [again(text)["input_ids"] for text in TEXTS] == mine.encode(TEXTS)
    assert_same(ours(back), again)


def foreign(text: str, what: str) -> str:
    """A tokenizer.json with other steps than those of its family."""
    tokenizer = Tokenizer.from_str(text)
    if what == "steps":
        steps = [normalizers.NFC(), normalizers.Replace("cat", "dog")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        steps = [pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.Fuse()
    elif what == "frame":
        number, piece = next(iter(tokenizer.get_added_tokens_decoder().items()))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{piece.content} $A",
            pair=f"{piece.content} $A $B:1 {piece.content}:1",
            special_tokens=[(piece.content, number)],
        )
    elif what == "pieces":
        tokenizer.add_tokens([AddedToken("<Bot>", lstrip=True, special=False), "xyz"])
        tokenizer.add_special_tokens(["<user>"])
    rules = json.loads(tokenizer.to_str())
    if what == "bare":
        rules["post_processor"] = None
        rules["normalizer"] = None
    return json.dumps(rules)


@pytest.mark.parametrize("what", ["steps", "frame", "pieces", "bare"])
@pytest.mark.parametrize("case", CASES)
def test_a_class_cuts_by_its_own_rules_whatever_a_tokenizer_json_says(
    case: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, kind, config = CASES[case]
    old, whole = tmp_path / "old", tmp_path / "whole"
    old.mkdir()
    write(old, **config)
    theirs(kind, old, monkeypatch).save_pretrained(whole)
    rules = whole / "tokenizer.json"
    rules.write_text(foreign(rules.read_text("utf-8"), what), "utf-8")
    mine = ours(whole)
    assert_same(mine, kind.from_pretrained(whole))  # type: ignore[attr-defined]
    told = json.loads((whole / "tokenizer_config.json").read_text("utf-8"))
    del told["tokenizer_class"]
    (whole / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    owned = vocabularies.read(files, 400, str(whole), kind.__name__)
    assert owned is not None
    assert owned.encode(TEXTS) == mine.encode(TEXTS)
    told["tokenizer_class"] = "PreTrainedTokenizerFast"  # takes a tokenizer.json as it is
    (whole / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
    assert_same(ours(whole), transformers.AutoTokenizer.from_pretrained(whole), roles=False)
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    generic = vocabularies.read(files, 400, str(whole), kind.__name__)  # the settings come first
    assert generic is not None
    assert generic.encode(TEXTS) == ours(whole).encode(TEXTS)


@pytest.mark.parametrize("where", ["tokenizer.json", "tokenizer_config.json"])
def test_many_pieces_may_be_added(where: str, tmp_path: Path) -> None:
    """In seconds: one by one they would take minutes."""
    write_wordpiece(tmp_path)
    other = transformers.BertTokenizer.from_pretrained(tmp_path)
    other.add_tokens([f"<{i}>" for i in range(15_000)])
    whole = tmp_path / "whole"
    other.save_pretrained(whole)
    config = whole / "tokenizer_config.json"
    told = json.loads(config.read_text("utf-8"))
    added = json.loads((whole / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    told["added_tokens_decoder"] = {str(piece.pop("id")): piece for piece in added}
    if where == "tokenizer.json":
        del told["added_tokens_decoder"]
    config.write_text(json.dumps(told), "utf-8")
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    start = time.perf_counter()
    mine = vocabularies.read(files, 20_000, str(whole))
    assert time.perf_counter() - start < 10
    assert mine is not None
    text = "the <14999> cat <7><8>"
    assert mine.encode([text])[0] == other(text)["input_ids"]


def with_unknown(path: Path, unknown: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XLNet's tokenizer.json, and settings that say which of its pieces is for what is unknown."""
    old, whole = path / "old", path / "whole"
    old.mkdir()
    write_sentencepiece(old)
    theirs(transformers.XLNetTokenizer, old, monkeypatch).save_pretrained(whole)
    config = whole / "tokenizer_config.json"
    told = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps({**told, "unk_id": unknown}), "utf-8")
    return whole


@pytest.mark.parametrize("unknown", [0, 4])
def test_an_xlnet_tokenizer_json_has_the_unknown_piece_of_its_settings(
    unknown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class writes its number into tokenizer_config.json, and looks for it there alone."""
    whole = with_unknown(tmp_path, unknown, monkeypatch)
    assert unknown in ours(whole).encode(["☃"], plain=True)[0]
    assert_same(ours(whole), transformers.AutoTokenizer.from_pretrained(whole), roles=False)


@pytest.mark.parametrize("unknown", [-1, 10**6, 10**30])
def test_an_unknown_piece_that_is_none_is_refused(
    unknown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = with_unknown(tmp_path, unknown, monkeypatch)
    with pytest.raises(Refused, match=r"tokenizer\.json: not a tokeniser, or a broken one"):
        ours(whole)


def test_added_pieces_keep_their_numbers(tmp_path: Path) -> None:
    write_bytes(tmp_path)
    size = ours(tmp_path).size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<user>": size + 1, "<bot>": size}))
    other = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    mine = ours(tmp_path)
    assert mine.encode(["hi<user>you<bot>"]) == [other("hi<user>you<bot>").input_ids]
    assert mine.tokenizer.token_to_id("<user>") == size + 1
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<user>": size + 7}))
    with pytest.raises(Refused, match=f"cannot have the number {size + 7}"):
        ours(tmp_path)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "told", [told_as_mask, told_in_the_map, told_by_number, told_by_name, told_as_more]
)
def test_a_piece_keeps_its_flags_for_surrounding_spaces(
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
        assert mine.encode(texts) == [other(text)["input_ids"] for text in texts]


def test_numbers_are_decoded_to_text(tmp_path: Path) -> None:
    write_bytes(tmp_path)
    mine = ours(tmp_path)
    for text in TEXTS:
        if "<|" not in text:
            assert mine.decode(mine.encode([text])[0]) == text


def test_a_folder_without_a_vocabulary_has_none() -> None:
    assert vocabularies.read({"tokenizer_config.json": b"{}"}, 100, "folder") is None


GOOD = json.dumps({"a": 0, "b": 1, "ab": 2}).encode()
BROKEN: dict[str, tuple[dict[str, bytes], str]] = {
    "no merges": ({"vocab.json": GOOD}, "no merges.txt"),
    "merges of nothing": ({"vocab.json": GOOD, "merges.txt": b"a c\n"}, "does not have"),
    "one piece": ({"vocab.json": GOOD, "merges.txt": b"ab\n"}, "not two pieces"),
    "three pieces": ({"vocab.json": GOOD, "merges.txt": b"a b c\n"}, "not two pieces"),
    "no text": ({"vocab.json": GOOD, "merges.txt": b"\xff"}, "not UTF-8"),
    "no table": ({"vocab.json": b"[]", "merges.txt": b""}, "not a JSON object"),
    "no JSON": ({"vocab.json": b"{", "merges.txt": b""}, "not valid JSON"),
    "too deep": ({"vocab.json": b"[" * 9000, "merges.txt": b""}, "not valid JSON"),
    "empty": ({"vocab.json": b"{}", "merges.txt": b""}, "empty"),
    "no number": ({"vocab.json": b'{"a": "0"}', "merges.txt": b""}, "numbers of the pieces"),
    "a truth": ({"vocab.json": b'{"a": true}', "merges.txt": b""}, "numbers of the pieces"),
    "a number twice": ({"vocab.json": b'{"a": 0, "b": 0}', "merges.txt": b""}, "numbers of"),
    "a large number": ({"vocab.json": b'{"a": 4000000000}', "merges.txt": b""}, "numbers of"),
    "a long list": ({"vocab.txt": b"\n".join(b"%d" % i for i in range(401))}, "401 pieces"),
    "no model": ({"tokenizer.json": b'{"model": null}'}, "not a tokeniser"),
    "odd added": (
        {"tokenizer.json": b'{"model": {"vocab": {"a": 0}}, "added_tokens": [3]}'},
        "not a tokeniser",
    ),
    "odd kind": (
        {"tokenizer.json": b'{"model": {"type": "Evil", "vocab": {"a": 0}}}'},
        "not a tokeniser",
    ),
    "added far away": (
        {
            "tokenizer.json": b'{"model": {"type": "WordPiece", "vocab": {"a": 0}}, '
            b'"added_tokens": [{"content": "b", "id": 90000000}]}'
        },
        "numbers of the pieces",
    ),
    "heavy settings": (
        {"vocab.txt": b"a", "tokenizer_config.json": b'{"a": [' + b"[]," * 90000 + b"0]}"},
        "far more entries",
    ),
    "half a letter in settings": (
        {"vocab.txt": b"a", "tokenizer_config.json": b'{"mask_token": "\\ud83d"}'},
        "not valid JSON",
    ),
    "half a letter added": (
        {"vocab.txt": b"a", "added_tokens.json": b'{"\\ud83d": 1}'},
        "not valid JSON",
    ),
    "no sentencepiece": ({"spiece.model": b"hello there"}, "not a sentencepiece model"),
    "no pieces": ({"spiece.model": b""}, "no pieces"),
    "cut off": ({"spiece.model": b"\x0a\x7f\x0a\x01a"}, "is incomplete"),
    "endless number": ({"spiece.model": b"\x80" * 30}, "not a sentencepiece model"),
    "no such end": ({"spiece.model": b"\x0a\xff\xff\xff\xff\x0f"}, "is incomplete"),
    "half a letter": ({"spiece.model": b"\x0a\x03\x0a\x01\xff"}, "not a sentencepiece model"),
    "no score": ({"spiece.model": b"\x0a\x05\x15\x00\x00\xc0\x7f"}, "not a sentencepiece model"),
    "other kind": ({"spiece.model": b"\x0a\x03\x0a\x01a\x12\x02\x18\x02"}, "unigram"),
    "unknown where": ({"spiece.model": b"\x0a\x03\x0a\x01a\x12\x03\xc0\x02\x09"}, "unknown"),
    "too many": ({"spiece.model": b"\x0a\x03\x0a\x01a" * 401}, "more than the 400 pieces"),
    "odd charsmap": (
        {"spiece.model": b"\x0a\x03\x0a\x01a\x1a\x05\x12\x03abc"},
        "table of its normaliser is broken",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_reported_in_one_line(case: str) -> None:
    files, says = BROKEN[case]
    with pytest.raises(Refused, match=says) as refused:
        vocabularies.read(files, 400, "folder")
    assert str(refused.value).startswith("folder")
    assert "\n" not in str(refused.value)


def test_any_truncated_sentencepiece_model_is_read_or_refused(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    data = (tmp_path / "spiece.model").read_bytes()
    whole = sentencepiece.parse(data, "model", 400)
    assert whole.pieces[0] == ("<unk>", 0.0, sentencepiece.UNKNOWN)
    for end in range(0, min(len(data), 700)):
        try:
            part = sentencepiece.parse(data[:end], "model", 400)
        except Refused:
            continue
        assert part.pieces == whole.pieces[: len(part.pieces)]


WORDS = b"[PAD]\na\nb\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


def rules(**more: Any) -> dict[str, bytes]:
    """A small tokenizer.json with some keys replaced."""
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2}, "unk_token": "<unk>"}
    return {"tokenizer.json": json.dumps({"model": model, **more}).encode()}


def special(name: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": name, "id": number, "special": True, **flags}


def template(single: list[str], *numbers: int) -> dict[str, Any]:
    """A template with <x>, of any numbers, around a text, and nothing around a pair."""
    parts = {"<x>": {"SpecialToken": {"id": "<x>", "type_id": 0}}}
    parts |= {name: {"Sequence": {"id": name, "type_id": 0}} for name in "AB"}
    return {
        "type": "TemplateProcessing",
        "single": [parts[name] for name in single],
        "pair": [parts["A"], parts["B"]],
        "special_tokens": {
            "<x>": {"id": "<x>", "ids": [*numbers], "tokens": ["<x>"] * len(numbers)}
        },
    }


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def steps(*each: dict[str, Any], of: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", of: list(each)}


def precompiled(becomes: str) -> dict[str, Any]:
    """A normaliser's table that turns one letter into that many."""
    table = base64.b64encode(charsmap("b", becomes)).decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


def long_template() -> dict[str, Any]:
    found = template(["<x>", "A"], 1)
    found["special_tokens"]["<x>"]["tokens"] = ["a" * 101_000]
    return found


def sentencepiece_model(table: bytes) -> bytes:
    """A model with the piece a, and this normaliser's table."""
    length = bytes([len(table) & 127 | 128, len(table) >> 7 & 127 | 128, len(table) >> 14])
    spec = b"\x12" + length + table
    length = bytes([len(spec) & 127 | 128, len(spec) >> 7 & 127 | 128, len(spec) >> 14])
    return b"\x0a\x03\x0a\x01a\x1a" + length + spec


def astray() -> str:
    """A valid table, except that its text for a snowman is missing."""
    table = charsmap("\u2603", "")
    leaf = next(i for i in range(4, len(table), 4) if table[i : i + 4] == b"\0\0\0\x80")
    return base64.b64encode(table[:leaf] + b"\x63\0\0\x80" + table[leaf + 4 :]).decode()


def config(**told: str) -> dict[str, bytes]:
    return {"vocab.txt": WORDS, "tokenizer_config.json": json.dumps(told).encode()}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
UNIGRAM = {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]], "unk_id": None}
UNSOUND: dict[str, tuple[dict[str, bytes], str]] = {
    "a line twice": (
        {"vocab.txt": b"[PAD]\na\na\n[UNK]\n[CLS]\n[SEP]\n"},
        r"'\[MASK\]' and '\[SEP\]' have the same number, 5",
    ),
    "numbers left out": (
        {"vocab.json": b'{"a": 0, "b": 2, "c": 3}', "merges.txt": b""},
        "the same number, 3",
    ),
    "the last line taken": (
        {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na\nb\n"},
        r"'\[MASK\]' and 'b' have the same number, 6",
    ),
    "a piece twice": ({"spiece.model": b"\x0a\x03\x0a\x01a" * 2}, "'a' occurs twice"),
    "far around": (rules(post_processor=template(["<x>", "A"], 999999)), "999999 around a text"),
    "just beyond": (rules(post_processor=template(["A", "<x>"], 30)), "30 around a text"),
    "no room": (
        {"vocab.txt": b"\n".join([*(b"%d" % i for i in range(29)), b"[UNK]"])},
        r"texts need '\[SEP\]' around them",
    ),
    "two words": (config(cls_token="my cls"), "'my cls' cannot be put around a text"),
    "a colon": (config(sep_token="a:1"), "'a:1' cannot be put around a text"),
    "the text itself": (config(cls_token="$A"), r"'\$A' cannot be put around a text"),
    "no unknown": (config(unk_token="zz"), "cannot tokenise unknown characters"),
    "no unknown in rules": (
        rules(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "zz"}),
        "cannot tokenise unknown characters",
    ),
    "unknown is null": (rules(model=UNIGRAM), "cannot tokenise unknown characters"),
    "seven times ten": (
        rules(normalizer=steps(*[replace({"String": "a"}, "a" * 10)] * 7)),
        "many times longer",
    ),
    "between letters": (
        rules(normalizer=steps(steps(replace({"Regex": "(?=a)"}, "a" * 100)))),
        "many times longer",
    ),
    "bytes of bytes": (
        rules(pre_tokenizer=steps(*[BYTES] * 20, of="pretokenizers")),
        "many times longer",
    ),
    "steps under two names": (
        rules(pre_tokenizer=steps() | steps(*[BYTES] * 20, of="pretokenizers")),
        "many times longer",
    ),
    "steps that add a letter each": (
        rules(normalizer=steps(*[{"type": "Prepend", "prepend": ""}] * 101)),
        "many times longer",
    ),
    "a table": (rules(normalizer=steps(*[precompiled("b" * 11)] * 2)), "many times longer"),
    "a table of others": (
        {"spiece.model": sentencepiece_model(charsmap("b", "b" * 101))},
        "many times longer",
    ),
    "back, seven times ten": (
        rules(decoder=steps(*[replace({"String": "a"}, "a" * 10)] * 7, of="decoders")),
        "many times longer",
    ),
    "back, between letters": (
        rules(decoder=steps(*[{"type": "BPEDecoder", "suffix": ""}] * 20, of="decoders")),
        "many times longer",
    ),
    "much around": (
        rules(post_processor=template([*["<x>"] * 11, "A"], *[1] * 10)),
        "many times longer",
    ),
    "again and again": (rules(post_processor=template(["A"] * 101)), "many times longer"),
    "around what is around": (
        rules(post_processor=steps(*[template(["<x>"] * 6 + ["A"], 1)] * 3, of="processors")),
        "many times longer",
    ),
    "a long piece": (
        rules(model={"type": "WordLevel", "vocab": {"a" * 1001: 0}, "unk_token": "a" * 1001}),
        "has a piece of 1,001 letters",
    ),
    "a long piece around": (rules(post_processor=long_template()), "many times longer"),
    "a long line": ({"vocab.txt": WORDS + b"a" * 1001}, "has a piece of 1,001 letters"),
    "a long merge": (
        {"vocab.json": json.dumps({"a" * 1001: 0}).encode(), "merges.txt": b""},
        "has a piece of 1,001 letters",
    ),
    "a long sentence": (
        {"spiece.model": b"\x0a\xec\x07\x0a\xe9\x07" + b"a" * 1001},
        "has a piece of 1,001 letters",
    ),
    "half a table": (
        rules(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA////"}),
        "not a tokeniser",
    ),
    "a table that leads nowhere": (
        rules(normalizer={"type": "Precompiled", "precompiled_charsmap": astray()}),
        "cannot tokenise unknown characters",
    ),
    "no step": (rules(normalizer=steps(replace({}, "a"))), "not a tokeniser"),
    "odd steps": (rules(normalizer={"type": "Replace", "content": 3}), "not a tokeniser"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_vocabulary_that_would_fail_later_is_refused_at_once(
    case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files, says = UNSOUND[case]
    with pytest.raises(Refused, match=says) as refused:
        vocabularies.read(files, 30, "folder")
    assert str(refused.value).startswith("folder")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_a_repeated_line_is_allowed_if_nothing_is_added() -> None:
    found = vocabularies.read({"vocab.txt": b"b\n" + WORDS}, 30, "folder")
    assert found is not None
    assert (found.roles["mask"], found.encode(["a b"], plain=True)) == (7, [[2, 3]])


def test_a_role_without_a_setting_has_its_default() -> None:
    """For cutting texts and for reading the roles alike."""
    for said in ("", {"content": ""}, None, 3):
        given = json.dumps({"unk_token": said}).encode()
        found = vocabularies.read({"vocab.txt": WORDS, "tokenizer_config.json": given}, 30, "w")
        assert found is not None
        assert (found.roles["unk"], found.encode(["z"], plain=True)) == (3, [[3]])


@pytest.mark.parametrize(
    ("said", "longest"),
    [
        (7, 7),
        (3, 3),
        (2, None),
        (10**30, None),
        (-1, None),
        (True, None),
        ("7", None),
        (None, None),
    ],
)
def test_how_long_a_text_may_be_is_read_and_written(said: Any, longest: int | None) -> None:
    """The files of Hugging Face write a huge number where there is no limit."""
    given = json.dumps({"model_max_length": said}).encode()
    found = vocabularies.read({"vocab.txt": WORDS, "tokenizer_config.json": given}, 30, "w")
    assert found is not None
    assert found.longest == longest
    again = vocabularies.read(found.files(), 30, "w")
    assert again is not None
    assert again.longest == longest


def test_added_pieces_without_a_row_are_left_out() -> None:
    """Published folders have them if the model was never enlarged."""
    found = vocabularies.read(rules(added_tokens=[special("<x>", 3), special("<y>", 4)]), 4, "w")
    assert found is not None
    assert found.tokenizer.token_to_id("<x>") == 3
    assert found.tokenizer.token_to_id("<y>") is None
    assert (found.size, max(found.encode(["a <x> <y>"])[0])) == (4, 3)

    files = {"vocab.txt": WORDS, "added_tokens.json": b'{"<x>": 7, "<y>": 8}'}
    found = vocabularies.read(files, 8, "w")
    assert found is not None
    assert found.size == 8
    assert found.tokenizer.token_to_id("<x>") == 7

    found = vocabularies.read({"vocab.json": GOOD, "merges.txt": b"a b\n"}, 3, "w")
    assert found is not None
    assert (found.size, found.roles, found.encode(["abba"])) == (3, {}, [[2, 1, 0]])


def test_the_steps_of_published_vocabularies_are_within_the_limit() -> None:
    usual = steps(
        {"type": "Prepend", "prepend": "▁"},
        replace({"String": " "}, "▁"),
        replace({"Regex": " {2,}"}, " "),
        replace({"String": "``"}, '"'),
        replace({"Regex": "\\s+"}, ""),
    )
    back = steps(
        replace({"String": "▁"}, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        of="decoders",
    )
    around = steps(BYTES, template(["<x>", "A", "<x>"], 1), of="processors")
    told = rules(normalizer=usual, decoder=back, post_processor=around)
    assert vocabularies.read(told, 30, "w") is not None
    # Like XLNet's own rules, in which a letter may become eighteen.
    xlnet = steps(
        replace({"String": "``"}, '"'),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        precompiled("b" * 18),
        replace({"Regex": " {2,}"}, " "),
    )
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    cut = steps({"type": "WhitespaceSplit"}, space, of="pretokenizers")
    around = {"type": "BertProcessing", "sep": ["b", 2], "cls": ["a", 1]}
    told = rules(normalizer=xlnet, pre_tokenizer=cut, decoder=space, post_processor=around)
    assert vocabularies.read(told, 30, "w") is not None


@pytest.mark.parametrize("step", ["normalizer", "pre_tokenizer"])
def test_a_text_on_which_the_rules_fail_is_refused(step: str) -> None:
    """Their regular expressions give up after too many attempts, which is not an Exception."""
    regex = {"pattern": {"Regex": "(a+)+$"}}
    each: dict[str, dict[str, Any]] = {
        "normalizer": {"type": "Replace", **regex, "content": "b"},
        "pre_tokenizer": {"type": "Split", **regex, "behavior": "Isolated", "invert": False},
    }
    found = vocabularies.read(rules(**{step: each[step]}), 30, "w")
    assert found is not None
    with pytest.raises(Refused, match="cannot tokenise") as refused:
        found.encode(["a" * 40 + "!"])
    assert "\n" not in str(refused.value)


def test_numbers_on_which_the_rules_fail_are_refused() -> None:
    decoder = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a" * 40 + "!": 1}, "unk_token": "<unk>"}
    found = vocabularies.read(rules(model=model, decoder=decoder), 30, "w")
    assert found is not None
    with pytest.raises(Refused, match="cannot decode these numbers"):
        found.decode([1])
