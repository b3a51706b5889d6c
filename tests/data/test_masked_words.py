"""Hidden words: the given share, 80/10/10, whole words if asked, never a special symbol."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.masked_words import (
    MASK,
    Masking,
    Symbols,
    _begins,
    mask_of,
    masked,
    symbols,
    with_mask,
)
from heed.data.tokenise import BOS, EOS, KINDS, PAD, SPECIALS, Tokeniser
from heed.errors import Refused

TEXTS = ["the cat sat on the mat <mask> </s>", "我爱中国, don't", "unbelievable mats sit"] * 4
V = 40
PLAIN = np.arange(V) >= len(SPECIALS)
PLAIN[V - 1] = False
EVERY = Symbols(V - 1, PLAIN, np.ones(V, bool), np.zeros(V, bool))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_one_more_piece_that_no_text_contains(kind, tmp_path):
    plain = Tokeniser.train(kind, TEXTS, 60)
    tokeniser = with_mask(plain)
    assert tokeniser.size == plain.size + 1
    assert mask_of(plain) is None
    assert mask_of(tokeniser) == plain.size
    assert tokeniser.encode(TEXTS) == plain.encode(TEXTS)
    assert with_mask(tokeniser) is tokeniser
    tokeniser.save(tmp_path / "tokenizer.json")
    again = Tokeniser.load(tmp_path / "tokenizer.json")
    assert (again.fingerprint, mask_of(again)) == (tokeniser.fingerprint, plain.size)
    known = symbols(again)
    assert not known.plain[: len(SPECIALS)].any()
    assert not known.plain[known.mask]
    assert known.plain.sum() == plain.size - len(SPECIALS)
    with pytest.raises(Refused, match="no mask"):
        symbols(plain)
    assert again.spelt([known.mask]) == [MASK]


def test_the_number_of_hidden_symbols_by_hand():
    tokens = np.array([[BOS, *range(4, 24), EOS], [BOS, 5, EOS, *[PAD] * 19], [PAD] * 22])
    how = Masking(masked=1, replaced=0)
    read, labels = masked(tokens, np.arange(3), EVERY, how, seed=1, epoch=0)
    assert (labels != 0).sum(1).tolist() == [3, 1, 0]  # 15 % of 20; at least one; nothing to hide
    hidden = labels != 0
    assert (read[hidden] == V - 1).all()
    assert (labels[hidden] == tokens[hidden]).all()
    assert (read[~hidden] == tokens[~hidden]).all()


def test_a_row_is_hidden_alike_in_any_batch_and_differently_in_another_epoch():
    tokens = np.random.default_rng(0).integers(4, V - 1, (6, 30))
    chance = {"seed": 3, "epoch": 2}
    together = masked(tokens, np.arange(6), EVERY, Masking(), **chance)
    wider = np.pad(tokens[4:5], ((0, 0), (0, 9)))
    for whole, alone in zip(
        together, masked(wider, np.array([4]), EVERY, Masking(), **chance), strict=True
    ):
        assert (whole[4] == alone[0, :30]).all()
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 1}):
        assert (masked(tokens, np.arange(6), EVERY, Masking(), **other)[1] != together[1]).any()


def test_of_ten_eight_are_masked_one_is_replaced_one_stays():
    tokens = np.random.default_rng(0).integers(4, V - 1, (400, 100))
    read, labels = masked(tokens, np.arange(400), EVERY, Masking(), seed=1, epoch=0)
    chosen = labels != 0
    assert chosen.sum() == 400 * 15
    n = chosen.sum()
    share = (read == V - 1)[chosen].mean()
    assert abs(share - 0.8) < 4 * (0.8 * 0.2 / n) ** 0.5
    others = read[chosen & (read != V - 1)]
    stayed = (read == tokens)[chosen].mean()
    right = 0.1 + 0.1 / (V - 5)  # a random symbol may be the right one
    assert abs(stayed - right) < 4 * (right * 0.9 / n) ** 0.5
    assert EVERY.plain[others].all()
    assert len(np.unique(read[chosen & (read != tokens) & (read != V - 1)])) == V - 5
    places = chosen.sum(0)  # all positions are equally likely
    assert ((places - 60) ** 2 / (60 * 0.85)).sum() < 150


def test_whole_words_by_hand():
    # Two words of three and one of one piece, then a mark by itself, and one more piece.
    begins, alone = np.zeros(V, bool), np.zeros(V, bool)
    begins[4:7], alone[20] = True, True
    known = Symbols(V - 1, PLAIN, begins, alone)
    row = [BOS, 4, 10, 11, 5, 10, 12, 6, 20, 13, EOS]
    words = [{1, 2, 3}, {4, 5, 6}, {7}, {8}, {9}]
    seen = set()
    how = Masking(share=0.4, whole_words=True)  # 4 of 9 pieces
    tokens = np.array([row] * 200)
    _, labels = masked(tokens, np.arange(200), known, how, seed=1, epoch=0)
    for hidden in (set(np.flatnonzero(each).tolist()) for each in labels):
        assert all(word <= hidden or not word & hidden for word in words)
        assert 3 <= len(hidden) <= 4
        seen.add(frozenset(hidden))
    expected = {frozenset(word | other) for word in words[:2] for other in words[2:]}
    assert seen == expected | {frozenset({7, 8, 9})}  # if two short ones come first
    # A word longer than the share is hidden whole nevertheless, if it is the first.
    long, chance = np.array([[4, 10, 11]]), {"seed": 1, "epoch": 0}
    for most, hidden in ((None, 3), (3, 3), (2, 0)):  # and if there is room for it
        _, labels = masked(long, np.array([0]), known, how, **chance, most=most)
        assert (labels != 0).sum() == hidden


def test_a_word_without_room_is_skipped_for_the_next():
    begins = np.zeros(V, bool)
    begins[[4, 5, 6]] = True
    known = Symbols(V - 1, PLAIN, begins, np.zeros(V, bool))
    tokens = np.array([[BOS, 4, *[10] * 4, 5, 11, 6, 12, EOS]] * 100)  # five, two and two pieces
    how, few, seen = Masking(share=0.1, whole_words=True), {1, 2, 3, 4, 5}, set()
    for most in (None, 3):
        _, labels = masked(tokens, np.arange(100), known, how, seed=1, epoch=0, most=most)
        found = [frozenset(np.flatnonzero(each).tolist()) for each in labels]
        seen = set(found)
        if most is None:
            free = found
    assert set(free) == {frozenset(few), frozenset({6, 7}), frozenset({8, 9})}
    assert seen == {frozenset({6, 7}), frozenset({8, 9})}
    assert all(one == two for one, two in zip(free, found, strict=True) if one != few)


rows = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=20), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(rows, st.floats(0.01, 0.9), st.booleans(), st.integers(0, 9))
def test_the_number_of_hidden_symbols_of_any_rows(rows, share, whole, seed):
    width = max(map(len, rows))
    tokens = np.array([row + [0] * (width - len(row)) for row in rows])
    known = EVERY._replace(begins=np.arange(V) % 3 == 0)
    how = Masking(share=share, whole_words=whole)
    read, labels = masked(tokens, np.arange(len(rows)), known, how, seed=seed, epoch=1)
    can = PLAIN[tokens]
    wanted = np.where(can.any(1), np.maximum(1, np.rint(share * can.sum(1))), 0)
    found = (labels != 0).sum(1)
    assert (found <= wanted).all() or whole
    assert (found >= (wanted > 0)).all()
    assert (found == wanted).all() or whole
    assert can[labels != 0].all()
    assert (read[labels == 0] == tokens[labels == 0]).all()
    assert (labels[labels != 0] == tokens[labels != 0]).all()


def test_shares_above_one_are_refused():
    for wrong in ({"masked": 0.8, "replaced": 0.3}, {"share": 0}, {"share": 1}, {"whole": True}):
        with pytest.raises(ValidationError):
            Masking(**wrong)


def test_words_of_a_tokeniser_end_at_marks_and_at_unspaced_characters():
    tokeniser = with_mask(Tokeniser.train("character", TEXTS, 100))
    known = symbols(tokeniser)
    ids = np.array(tokeniser.encode(["don't 我爱"]))
    how = Masking(share=0.99, whole_words=True)
    pieces = tokeniser.spelt(ids[0])
    assert pieces == [" ", "d", "o", "n", "'", "t", " ", "我", "爱", "</s>"]
    can = known.plain[ids]
    assert _begins(ids, can, known)[0].tolist() == [
        True, False, False, False, True, True, True, True, True, False,
    ]  # fmt: skip
    _, labels = masked(ids, np.array([0]), known, how, seed=0, epoch=0)
    assert (labels[0, :-1] != 0).all()
    assert labels[0, -1] == 0
