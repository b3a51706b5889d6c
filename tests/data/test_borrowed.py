"""Vocabularies of pretrained models with the interface of heed's own."""

from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from heed.data.borrowed import Borrowed, Renumbered, load_unchanging, marks_of
from heed.data.tokenise import BOS, EOS, PAD, UNK
from heed.data.verbatim import Verbatim
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.viewing.pieces import labels as marked

BERT = ["the", "[SEP]", "cat", "[PAD]", "##s", "[CLS]", "[MASK]", "a", "[UNK]", "sat"]
ROLES = {"sep": 1, "pad": 3, "cls": 5, "mask": 6, "unk": 8}


def labels(words: Renumbered, ids: Sequence[int]) -> list[str]:
    return marked(words.spelt(ids))


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
    assert labels(words, [PAD, UNK, BOS, EOS]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    (ids,) = words.encode(["the cats sat strange"])
    assert labels(words, ids) == ["the", "cat", "##s", "sat", "[UNK]", "[SEP]"]
    plain = words.encode(["the cats sat"])[0][:-1]
    assert words.order[plain].tolist() == [0, 2, 4, 9]  # as they are there
    assert labels(words, [words.symbols.mask]) == ["[MASK]"]
    ordinary = words.spelt(np.flatnonzero(words.symbols.plain).tolist())
    assert sorted(ordinary) == [" a", " cat", " sat", " the", "s"]
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
    found = load_unchanging(path, 5)
    assert isinstance(found, Borrowed)
    assert (found.fingerprint, found.size) == (text.fingerprint, 5)
    own = Verbatim.train("character", ["a\n"])
    own.save(path)
    assert isinstance(load_unchanging(path, own.size), Verbatim)
    assert marks_of(own).end == EOS
    path.write_text("{}")
    with pytest.raises(Refused, match="tokeniser"):
        load_unchanging(path)


def test_pieces_are_spelt_as_they_stand_in_a_text() -> None:
    pieces = {"Ġ": 0, "Ġthe": 1, "Ċ": 2, "s": 3, "Ã©": 4}
    lone = Vocabulary(Tokenizer(models.BPE(pieces, [])), {"eos": 3})
    assert Borrowed(lone, "here").spelt(range(5)) == [" ", " the", "\n", "s", "é"]
    maltese = {"▁": 0, "Ġ": 1, "▁Ġ": 2}
    assert Vocabulary(Tokenizer(models.BPE(maltese, [])), {}).spelt(range(3)) == [" ", "Ġ", " Ġ"]
