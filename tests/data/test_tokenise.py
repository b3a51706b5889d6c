"""Text to numbers and back: nothing is lost or injected, and training is repeatable."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from heed.data import vocabulary
from heed.data.tokenise import BOS, EOS, KINDS, PAD, SPECIALS, UNK, Kind, Tokeniser
from heed.errors import HeedError, Refused, UnknownName

TEXTS = [
    "A man (in blue) doesn't play football, he plays music.",
    'two men are playing  with 2 dogs ; "hey!" ...',
    "我爱中国，我也爱音乐。",
    "ein Mädchen läuft über die Straße </s> <unk> <s>",
    "กำลังเล่น ฟุตบอล ひらがな カタカナ",
] * 5


@pytest.fixture(scope="module", params=KINDS)
def tokeniser(request):
    return Tokeniser.train(request.param, TEXTS, 400)


def test_special_symbols_have_their_numbers(tokeniser):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert [piece.strip() for piece in tokeniser.spelt(range(4))] == list(SPECIALS)
    assert tokeniser.size <= 400


def test_known_text_is_restored(tokeniser):
    for text, ids in zip(TEXTS, tokeniser.encode(TEXTS), strict=True):
        assert ids[-1] == EOS
        assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])  # "</s>" in a text is only a text
        assert tokeniser.decode(ids) == text
        spelt = tokeniser.spelt(ids)
        assert len(spelt) == len(ids)
        assert "".join(spelt[:-1]) == f" {text}"


def test_all_white_space_becomes_a_space(tokeniser):
    ids = tokeniser.encode([" \t我\u3000爱\xa0中\x85国\u2028 ", "我 爱 中 国", "", " \u3000"])
    assert ids[0] == ids[1]
    assert ids[2] == ids[3] == [EOS]
    assert tokeniser.decode([EOS]) == ""


def test_decoding_stops_at_the_end_and_skips_padding(tokeniser):
    ids = tokeniser.encode(["two men"])[0]
    assert tokeniser.decode([BOS, *ids, *ids, PAD, PAD]) == "two men"
    assert tokeniser.decode([PAD, *ids[:-1]]) == "two men"


def test_unknown_pieces_are_shown_as_unknown(tokeniser):
    ids = tokeniser.encode(["two ☃ men"])[0]
    assert ids.count(UNK) == 1
    assert tokeniser.decode(ids) == "two <unk> men"


def test_composed_and_decomposed_letters_are_equal(tokeniser):
    text = TEXTS[3]
    assert tokeniser.encode([unicodedata.normalize("NFD", text)]) == tokeniser.encode([text])


def test_each_piece_knows_its_word(tokeniser):
    for text in [*TEXTS, " two  men ", ""]:
        ids = tokeniser.encode([text])[0]
        words = tokeniser.words(text)
        assert words == tokeniser.words(ids)
        assert words[-1] == -1
        for i, word in enumerate(text.split()):
            mine = [piece for piece, at in zip(ids, words, strict=True) if at == i]
            assert tokeniser.decode(mine).strip() == word


def test_an_unknown_word_is_one_word(tokeniser):
    assert set(tokeniser.words("two ☃☃ men")) == {0, 1, 2, -1}


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    (tmp_path / "tokenizer.json").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Tokeniser.train("bpe", TEXTS, 200).save(tmp_path / "tokenizer.json")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_saved_tokeniser_is_loaded_unchanged(tokeniser, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokeniser.save(path)
    again = Tokeniser.load(path)
    assert (again.kind, again.size) == (tokeniser.kind, tokeniser.size)
    assert again.fingerprint == tokeniser.fingerprint
    assert again.encode([*TEXTS, "</s>"]) == tokeniser.encode([*TEXTS, "</s>"])
    assert os.listdir(tmp_path) == ["tokenizer.json"]


def test_the_file_can_be_read_by_the_tokenisers_library(tokeniser, tmp_path):
    tokeniser.save(tmp_path / "t.json")
    other = Tokenizer.from_file(str(tmp_path / "t.json"))
    text = "A man (in blue) plays  music."
    ids = other.encode(text).ids
    assert ids == tokeniser.encode([text])[0]
    assert other.decode(ids) == text


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.booleans())
def test_no_text_gives_a_special_symbol(text, lowercase):
    cached = test_no_text_gives_a_special_symbol.__dict__.setdefault("cached", {})
    if lowercase not in cached:
        cached[lowercase] = [Tokeniser.train(k, TEXTS, 300, lowercase) for k in KINDS]
    for tokeniser in cached[lowercase]:
        mixed = f"</s>{text}<s> <pad>{text}"
        ids = tokeniser.encode([mixed])[0]
        assert ids[-1] == EOS
        assert not {PAD, BOS, EOS} & set(ids[:-1])
        words = tokeniser.words(mixed)
        assert len(words) == len(ids)
        assert words[:-1] == sorted(words[:-1])
        if UNK not in ids and not lowercase:
            white = "".join(
                c if not vocabulary.re.match(vocabulary.WHITE, c) else " " for c in mixed
            )
            plain = unicodedata.normalize("NFC", white).replace("▁", "_").strip(" ")
            assert tokeniser.decode(ids) == plain


def test_pieces_trained_on_special_text_are_not_special():
    for kind in KINDS:
        tokeniser = Tokeniser.train(kind, ["</s></s>", "a</s>", "<pad> <s>"] * 500, 60)
        ids = tokeniser.encode(["</s></s> <pad><s>"])[0]
        assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
        assert tokeniser.decode(ids) == "</s></s> <pad><s>"


def test_lower_case():
    tokeniser = Tokeniser.train("bpe", TEXTS, 300, lowercase=True)
    assert tokeniser.decode(tokeniser.encode(["A MAN"])[0]) == "a man"


def test_marks_are_split_from_words():
    tokeniser = Tokeniser.train("word", ["a word. (a word)"])
    ids = tokeniser.encode(["a word. (a word)"])[0]
    assert tokeniser.spelt(ids) == [" a", " word", ".", " (", "a", " word", ")", "</s>"]


def test_words_of_languages_with_spaces_stay_whole(tmp_path):
    apart = ["我 爱 中国", "我们 喜欢 北京 。", "好"]
    english = ["i love china ."] * 50
    tokeniser = Tokeniser.train("word", iter([*english, *apart]))
    tokeniser.save(tmp_path / "t")
    for one in (tokeniser, Tokeniser.load(tmp_path / "t")):
        assert one.spelt(one.encode(["我 爱 中国"])[0]) == [" 我", " 爱", " 中国", "</s>"]
    together = Tokeniser.train("word", ["我爱中国很大", "我们喜欢北京。", "好", *english])
    ids = together.encode(["我爱北京"])[0]
    assert together.spelt(ids) == [" 我", "爱", "北", "京", "</s>"]
    assert together.decode(ids) == "我爱北京"
    told = Tokeniser.train("word", apart, split_unspaced=True)
    assert told.spelt(told.encode(["我 爱 中国"])[0]) == [" 我", " 爱", " 中", "国", "</s>"]


def test_counting_in_parts_equals_counting_at_once(monkeypatch):
    whole = Tokeniser.train("word", TEXTS).fingerprint
    monkeypatch.setattr(vocabulary, "MANY", 3)
    monkeypatch.setattr(vocabulary, "ENOUGH", 2)
    assert Tokeniser.train("word", iter(TEXTS)).fingerprint == whole


def test_size_and_minimum_frequency_limit_the_vocabulary():
    texts = ["a a a b b c"]
    assert Tokeniser.train("word", texts, 7).spelt(range(4, 7)) == [" ", " a", " b"]
    assert Tokeniser.train("word", texts, least=3).spelt(range(4, 6)) == [" ", " a"]
    assert Tokeniser.train("character", texts, 7).size == 7
    assert Tokeniser.train("bpe", [chr(0x4E00 + i) for i in range(99)], 50).size <= 50


@pytest.mark.parametrize(("kind", "size"), [("unigram", 9), ("bpe", 4), ("word", 5)])
def test_an_impossible_vocabulary_is_refused(kind, size):
    with pytest.raises(Refused) as error:
        Tokeniser.train(kind, TEXTS, size)
    assert "\n" not in str(error.value)


def test_an_unknown_kind_is_refused():
    with pytest.raises(UnknownName, match="wordpiece"):
        Tokeniser.train("wordpeice", TEXTS)


def test_errors_of_the_text_source_are_passed_on():
    def broken():
        yield "a"
        raise Refused("x.txt:2: not UTF-8")

    for kind in KINDS:
        with pytest.raises(Refused, match=r"^x\.txt:2: not UTF-8$"):
            Tokeniser.train(kind, broken())


PROGRAM = """
import random
from heed.data.tokenise import KINDS, Tokeniser
r = random.Random(0)
words = ["".join(r.choices("abcdefghé", k=r.randint(2, 6))) for _ in range(300)]
texts = [" ".join(r.choices(words, k=8)) for _ in range(600)]
told = [Tokeniser.train(kind, texts, 150).fingerprint for kind in KINDS]
print(*told)
"""


def test_the_same_texts_give_the_same_file_in_any_process():
    here: dict[str, list[str]] = {}
    exec(PROGRAM, here)
    env = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "5"}
    run = [sys.executable, "-c", PROGRAM]
    there = subprocess.run(run, env=env, capture_output=True, check=True, text=True)
    assert there.stdout.split() == here["told"]
    exec(PROGRAM, again := {})
    assert again["told"] == here["told"]


def hostile():
    r = random.Random(0)
    good = json.loads(Tokeniser.train("bpe", TEXTS, 200).rules)

    def changed(**changes):
        return json.dumps({**good, **changes})

    vocab = good["model"]["vocab"]
    yield "", "{", "[]", "null", "[" * 100_000, "{}", '{"model": {}}', "\x00"
    yield changed(truncation={"max_length": 1, "stride": 0, "strategy": "LongestFirst"})
    yield (
        changed(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}}),
        changed(model={}),
    )
    yield changed(added_tokens=[]), changed(normalizer=None), changed(version="9.9")
    model = {**good["model"]}
    yield changed(model={**model, "vocab": {**vocab, "extra": 10**9}})
    yield changed(model={**model, "vocab": {**vocab, "</s>": 2, "<s>": 3}})
    yield changed(model={**model, "vocab": {k: i for i, k in enumerate(sorted(vocab))}})
    yield (
        changed(model={**model, "merges": [["never", "seen"]]}),
        changed(model={**model, "dropout": 0.5}),
    )
    cut = {"continuing_subword_prefix": "x", "merges": [["a", "é"]]}  # within a letter
    yield changed(model={**model, **cut, "vocab": {**vocab, "é": len(vocab)}})
    yield changed(model={"type": "Unigram", "unk_id": 10**6, "vocab": [["a", 0.0]]})
    text = json.dumps(good)
    yield from (text[: r.randrange(len(text))] for _ in range(20))


@pytest.mark.parametrize(
    "text", [t for ts in hostile() for t in ([ts] if isinstance(ts, str) else ts)]
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, text, capfd):
    (tmp_path / "t").write_text(text)
    with pytest.raises(Refused) as error:
        Tokeniser.load(tmp_path / "t")
    assert str(tmp_path / "t") in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_reported_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(HeedError, match="cannot read"):
        Tokeniser.load(tmp_path / "nowhere")
    with pytest.raises(HeedError, match="cannot read"):
        Tokeniser.load(tmp_path)
    (tmp_path / "t").write_bytes(b"\xff\xfe")
    with pytest.raises(HeedError, match="not UTF-8"):
        Tokeniser.load(tmp_path / "t")


def test_unknown_pieces_can_be_shown_as_in_the_text():
    tokeniser = Tokeniser.train("word", ["who wrote it ?"], size=50)
    text = 'who wrote "Hamlet" ?'
    (ids,) = tokeniser.encode([text])
    assert tokeniser.spelt(ids, text) == [" who", " wrote", ' "', "Hamlet", '"', " ?", "</s>"]
    assert tokeniser.spelt(ids[:3], text) == [" who", " wrote", ' "']
    assert tokeniser.spelt(ids)[3] == " <unk>"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_of_equally_frequent_characters_the_first_are_kept(kind: Kind) -> None:
    """The trainer itself keeps any of them, and other ones in each call."""
    rare = [chr(0x4E00 + i) for i in range(60)]
    texts = ["你好" * 3, *rare, *rare, "龍"]  # twice each, once the last
    made = [Tokeniser.train(kind, texts, size=30) for _ in range(5)]
    assert len({each.fingerprint for each in made}) == 1
    kept = [character for character in rare if made[0].number(character) is not None]
    assert kept == rare[:23]  # beside four specials, ▁, 你 and 好
    assert made[0].number("好") is not None
    assert made[0].number("龍") is None
