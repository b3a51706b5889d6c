"""Vocabularies in every file format, compared with `transformers` reading the same files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)

from heed.data import sentencepiece, vocabularies
from heed.errors import Refused
from tests.data.cutting import (
    TEXTS,
    assert_same,
    charsmap,
    ours,
    theirs,
    write_bytes,
    write_sentencepiece,
    write_wordpiece,
)

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


LINES: dict[str, tuple[bytes, bytes]] = {
    "a mark at the beginning": (b"[PAD]", b"\xef\xbb\xbf[PAD]"),
    "windows": (b"\n", b"\r\n"),
    "empty lines": (b"\nthe\n", b"\n\n\nthe\n"),
    "space at the end": (b"\nthe\n", b"\nthe \t\n"),
    "wide space at the end": (b"\nthe\n", "\nthe\u3000\u00a0\u0085\n".encode()),
    "space in front": (b"\nthe\n", b"\n the\n"),
    "a line separator": (b"\nthe\n", "\nthe\u2028x\n".encode()),
    "a piece twice": (b"\nthe\n", b"\nthe\nthe\n"),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_of_a_vocab_txt_are_pieces_as_elsewhere(case: str, tmp_path: Path) -> None:
    write_wordpiece(tmp_path)
    path = tmp_path / "vocab.txt"
    here, there = LINES[case]
    assert here in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(here, there))
    other = transformers.BertTokenizer.from_pretrained(tmp_path)
    mine = ours(tmp_path)
    assert mine.tokenizer.get_vocab() == other.get_vocab()
    assert mine.encode(TEXTS) == [other(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("more", ["#version: 0.3\n", "#version of a kind\n", "\r\n"])
def test_lines_of_a_merges_txt_are_pairs_as_elsewhere(more: str, tmp_path: Path) -> None:
    write_bytes(tmp_path)
    path = tmp_path / "merges.txt"
    first, second, *rest = path.read_text("utf-8").splitlines(keepends=True)
    if more == "\r\n":
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    else:
        path.write_text("".join([first, second, more, *rest, second]), "utf-8")
    assert_same(ours(tmp_path), transformers.GPT2Tokenizer.from_pretrained(tmp_path))


def test_added_pieces_keep_their_numbers(tmp_path: Path) -> None:
    write_bytes(tmp_path)
    size = ours(tmp_path).size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<user>": size + 1, "<bot>": size}))
    other = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    mine = ours(tmp_path)
    assert mine.encode(["hi<user>you<bot>"]) == [other("hi<user>you<bot>").input_ids]
    assert mine.tokenizer.token_to_id("<user>") == size + 1


def test_a_role_whose_piece_is_cut_like_text_is_not_named_in_written_files() -> None:
    """Elsewhere a piece that is named would no longer be cut."""
    pieces = {"<unk>": 0, "[MASK]": 1, "a": 2}
    model = {"type": "WordLevel", "vocab": pieces, "unk_token": "<unk>"}
    told = rules(model=model, pre_tokenizer={"type": "BertPreTokenizer"})
    found = vocabularies.read(told, 30, "w")
    assert found is not None
    assert found.roles == {"unk": 0, "mask": 1}
    again = vocabularies.read(found.files(), 30, "w")
    assert again is not None
    assert again.encode(["a [MASK]"]) == found.encode(["a [MASK]"]) == [[2, 0, 0, 0]]


def test_numbers_are_decoded_to_text(tmp_path: Path) -> None:
    write_bytes(tmp_path)
    mine = ours(tmp_path)
    for text in TEXTS:
        if "<|" not in text:
            assert mine.decode(mine.encode([text])[0]) == text


def test_a_folder_without_a_vocabulary_has_none() -> None:
    assert vocabularies.read({"tokenizer_config.json": b"{}"}, 100, "folder") is None


def joined(second: str) -> bytes:
    """A merge with this second piece, where pieces that continue a word have a prefix."""
    model = {"type": "BPE", "vocab": {"a": 0, second: 1}, "merges": [f"a {second}"]}
    return json.dumps({"model": model | {"continuing_subword_prefix": "x"}}).encode()


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
    "a prefix that ends within a letter": ({"tokenizer.json": joined("é")}, "not a tokeniser"),
    "a merge of three pieces": ({"tokenizer.json": joined("b c")}, "not a tokeniser"),
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
    "no pieces": ({"spiece.model": b""}, "unknown piece is not among its 0"),
    "cut off": ({"spiece.model": b"\x0a\x7f\x0a\x01a"}, "is incomplete"),
    "endless number": ({"spiece.model": b"\x80" * 30}, "not a sentencepiece model"),
    "no such end": ({"spiece.model": b"\x0a\xff\xff\xff\xff\x0f"}, "is incomplete"),
    "half a letter": ({"spiece.model": b"\x0a\x03\x0a\x01\xff"}, "not a sentencepiece model"),
    "no score": ({"spiece.model": b"\x0a\x05\x15\x00\x00\xc0\x7f"}, "not a sentencepiece model"),
    "other kind": ({"spiece.model": b"\x0a\x03\x0a\x01a\x12\x02\x18\x02"}, "unigram"),
    "unknown where": ({"spiece.model": b"\x0a\x03\x0a\x01a\x12\x03\xc0\x02\x09"}, "unknown"),
    "too many": (
        {"spiece.model": b"".join(b"\x0a\x05\x0a\x03%03d" % i for i in range(401))},
        "401 pieces, more than the model's 400",
    ),
    "a number as a piece": (
        {"tokenizer.json": b'{"model": {"type": "Unigram", "vocab": [[3, 0.0]], "unk_id": 0}}'},
        "not a tokeniser",
    ),
    "odd charsmap": (
        {"spiece.model": b"\x0a\x03\x0a\x01a\x1a\x05\x12\x03abc"},
        "not a sentencepiece model",
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
    whole = sentencepiece.parse(data, "model")
    assert whole.pieces[0] == ("<unk>", 0.0, sentencepiece.UNKNOWN)
    for end in range(0, min(len(data), 700)):
        try:
            part = sentencepiece.parse(data[:end], "model")
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


def config(**told: Any) -> dict[str, bytes]:
    return {"vocab.txt": WORDS, "tokenizer_config.json": json.dumps(told).encode()}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
UNIGRAM = {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]], "unk_id": None}
UNSOUND: dict[str, tuple[dict[str, bytes], str]] = {
    "a piece twice": ({"spiece.model": b"\x0a\x03\x0a\x01a" * 2}, "a piece occurs twice"),
    "far around": (rules(post_processor=template(["<x>", "A"], 999999)), "999999 around a text"),
    "just beyond": (rules(post_processor=template(["A", "<x>"], 30)), "30 around a text"),
    "no room": (
        {"vocab.txt": b"\n".join([*(b"%d" % i for i in range(29)), b"[UNK]"])},
        "cannot be put around a text",
    ),
    "null around": (config(sep_token=None), "cannot be put around a text"),
    "no unknown": (config(unk_token=None), "cannot tokenise unknown characters"),
    "a flag as a text": (config(do_lower_case="false"), "do_lower_case is not true or false"),
    "special pieces as text": (config(split_special_tokens=True), "split_special_tokens is not"),
    "pieces in the settings": (config(vocab={"a": 0}), "vocab is not supported"),
    "another file": (
        config(fast_tokenizer_files=["tokenizer.4.0.0.json"]),
        "fast_tokenizer_files is not supported",
    ),
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


def test_a_role_that_is_null_has_its_usual_number_but_is_cut_like_text() -> None:
    for said in ("", None):
        given = json.dumps({"mask_token": said}).encode()
        found = vocabularies.read({"vocab.txt": WORDS, "tokenizer_config.json": given}, 30, "w")
        assert found is not None
        assert (found.roles["mask"], found.encode(["[MASK]"], plain=True)) == (6, [[3, 3, 3]])


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
