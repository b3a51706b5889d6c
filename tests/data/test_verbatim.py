"""Text that is restored to the last space; other rules are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data import verbatim
from heed.data.sources import text_lines
from heed.data.tokenise import EOS, PAD, SPECIALS, UNK
from heed.data.verbatim import Verbatim, in_pieces
from heed.errors import Refused

TEXT = "ab  ba\n\tAB 你好 ☃\r\n" * 3


@pytest.fixture(scope="module")
def byte_bpe() -> Verbatim:
    return Verbatim.train("byte-bpe", [TEXT], 270)


def test_characters_are_numbered_by_frequency() -> None:
    vocabulary = Verbatim.train("character", ["abb", "\nbc"], 100)
    assert vocabulary.size == len(SPECIALS) + 4
    assert vocabulary.encode(["b\na"]) == [[4, 5, 6]]  # b thrice; \n, a, c once, by code point
    assert vocabulary.encode(["b☃", ""]) == [[4, UNK], []]
    assert vocabulary.decode([4, UNK, PAD, 5, EOS, 6]) == "b�\n"
    assert vocabulary.spelt([4, 5, EOS]) == ["b", "\n", "</s>"]


def test_rare_characters_are_left_out_of_a_small_vocabulary() -> None:
    vocabulary = Verbatim.train("character", ["abb"], 5)
    assert vocabulary.encode(["ab"]) == [[UNK, 4]]


@given(text=st.text(st.sampled_from("ab \n\tAB你好☃\r"), max_size=30))
def test_characters_are_restored(text: str) -> None:
    vocabulary = Verbatim.train("character", [TEXT], 100)
    (ids,) = vocabulary.encode([text])
    assert len(ids) == len(text)
    assert vocabulary.decode(ids) == text


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_with_bytes_nothing_is_unknown(byte_bpe: Verbatim, text: str) -> None:
    (ids,) = byte_bpe.encode([text])
    assert not {*ids} & {PAD, UNK, EOS}
    assert byte_bpe.decode(ids) == text


def test_a_special_symbol_in_a_text_is_text(byte_bpe: Verbatim) -> None:
    (ids,) = byte_bpe.encode(["</s><pad>"])
    assert EOS not in ids
    assert byte_bpe.decode(ids) == "</s><pad>"
    assert byte_bpe.spelt(byte_bpe.encode([" "])[0]) == [" "]


@pytest.mark.parametrize("kind", verbatim.KINDS)
def test_a_vocabulary_can_be_saved_and_loaded(tmp_path: Path, kind: verbatim.Kind) -> None:
    vocabulary = Verbatim.train(kind, [TEXT], 270)
    vocabulary.save(tmp_path / "tokenizer.json")
    again = Verbatim.load(tmp_path / "tokenizer.json")
    assert (again.kind, again.fingerprint) == (kind, vocabulary.fingerprint)
    assert again.encode([TEXT]) == vocabulary.encode([TEXT])


def test_other_rules_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Verbatim.train("character", [TEXT], 100).save(path)
    rules = json.loads(path.read_text())
    changes = (
        {"normalizer": {"type": "Lowercase"}},
        {"model": {**rules["model"], "vocab": {**rules["model"]["vocab"], "z": 10**9}}},
    )
    for change in changes:
        path.write_text(json.dumps({**rules, **change}))
        with pytest.raises(Refused, match="not a tokeniser that heed wrote"):
            Verbatim.load(path)
    vocab = {**rules["model"]["vocab"], "é": len(rules["model"]["vocab"])}
    cut = {"continuing_subword_prefix": "x", "vocab": vocab, "merges": [["a", "é"]]}
    for broken in ([], {**rules, "model": {**rules["model"], **cut}}):
        path.write_text(json.dumps(broken))
        with pytest.raises(Refused, match="broken"):
            Verbatim.load(path)
    with pytest.raises(Refused, match="cannot read"):
        Verbatim.load(tmp_path / "none.json")


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(Refused, match="260 symbols or more"):
        Verbatim.train("byte-bpe", [TEXT], 100)


def test_a_file_read_in_parts_is_cut_like_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte_bpe: Verbatim
) -> None:
    text = "one line\n\n\n  and two\nabc\n\ndef\n"
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(verbatim, "CHUNK", 4)
    parts = list(in_pieces(text_lines(tmp_path / "a.txt")))
    assert parts == ["one line\n\n\n  and two\n", "abc\n\n", "def\n"]
    joined = [i for part in byte_bpe.encode(parts) for i in part]
    assert joined == byte_bpe.encode([text])[0]
    (tmp_path / "a.txt").write_bytes(b"one\xff\n")
    with pytest.raises(Refused, match=r"a\.txt:1: not UTF-8"):
        list(in_pieces(text_lines(tmp_path / "a.txt")))
