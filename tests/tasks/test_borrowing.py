"""Vocabularies of pretrained models with the interface of heed's own."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from heed.data.tokenise import BOS, EOS, PAD, UNK
from heed.data.verbatim import Verbatim
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.tasks.borrowing import Borrowed, Renumbered, load_text, marks_of
from heed.tasks.cutting import Cutting

BERT = ["the", "[SEP]", "cat", "[PAD]", "##s", "[CLS]", "[MASK]", "a", "[UNK]", "sat"]
ROLES = {"sep": 1, "pad": 3, "cls": 5, "mask": 6, "unk": 8}


def bert() -> Vocabulary:
    pieces = {piece: i for i, piece in enumerate(BERT)}
    words = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return Vocabulary(words, dict(ROLES))


def spaced() -> Vocabulary:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁the", -1.0), ("▁cat", -1.0), ("s", -2.0)]
    words = Tokenizer(models.Unigram(pieces, unk_id=0))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    words.add_special_tokens(["</s>"])
    return Vocabulary(words, {"eos": 1, "unk": 0})


def test_the_first_four_numbers_are_heeds() -> None:
    words = Renumbered(bert(), 12, "here")
    assert sorted(words.order) == list(range(12))
    assert words.pieces([PAD, UNK, BOS, EOS]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    (ids,) = words.encode(["the cats sat strange"])
    assert words.pieces(ids) == ["the", "cat", "##s", "sat", "[UNK]", "[SEP]"]
    plain = words.encode(["the cats sat"])[0][:-1]
    assert words.order[plain].tolist() == [0, 2, 4, 9]  # as they are there
    assert words.pieces([words.symbols.mask]) == ["[MASK]"]
    ordinary = words.pieces(np.flatnonzero(words.symbols.plain).tolist())
    assert sorted(ordinary) == ["##s", "a", "cat", "sat", "the"]
    assert not words.symbols.begins[plain[2]]


def test_the_special_symbols_that_bert_needs() -> None:
    for role in ROLES:
        lacking = Vocabulary(bert().tokenizer, {r: i for r, i in ROLES.items() if r != role})
        with pytest.raises(Refused, match=rf"here: .*\[{role.upper()}\]"):
            Renumbered(lacking, 12, "here")
    with pytest.raises(Refused, match="the same"):
        Renumbered(Vocabulary(bert().tokenizer, {**ROLES, "sep": 5}), 12, "here")


def test_a_text_continues_with_its_space() -> None:
    text = Borrowed(spaced(), "here")
    assert text.decode([3, 4]) == "cats"
    assert text.continued([2], [3, 4]) == " cats"
    assert text.continued([3], [4]) == "s"
    assert text.continued([1], [2]) == "the"  # after an end nothing is lost
    assert text.marks.never == {0}
    assert (text.marks.end, text.marks.unknown, text.marks.opening) == (1, 0, (1,))


def test_a_vocabulary_without_an_end_is_refused() -> None:
    with pytest.raises(Refused, match=r"here: .*eos"):
        Borrowed(Vocabulary(spaced().tokenizer, {}), "here")


def test_a_saved_vocabulary_is_loaded(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    text = Borrowed(spaced(), "here")
    text.save(path)
    found = load_text(path, 5)
    assert isinstance(found, Borrowed)
    assert (found.fingerprint, found.size) == (text.fingerprint, 5)
    own = Verbatim.train("character", ["a\n"])
    own.save(path)
    assert isinstance(load_text(path, own.size), Verbatim)
    assert marks_of(own).end == EOS
    path.write_text("{}")
    with pytest.raises(Refused, match="tokeniser"):
        load_text(path)


def test_spaces_are_shown_as_heeds_own_tokenisers_show_them() -> None:
    ids = [0, 1, 2, 3]
    pieces = {"Ġ": 0, "Ġthe": 1, "Ċ": 2, "s": 3}
    lone = Vocabulary(Tokenizer(models.BPE(pieces, [])), {"eos": 3})
    assert Borrowed(lone, "here").pieces(ids) == ["␣", " the", "↵", "s"]
    pieces = {"▁": 0, "▁the": 1, "##s": 2, "s": 3}
    assert Cutting(Vocabulary(Tokenizer(models.BPE(pieces, [])), {})).pieces(ids) == [
        "▁",
        "the",
        "##s",
        "s",
    ]
