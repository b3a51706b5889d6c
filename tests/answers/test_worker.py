"""Labels for the pieces of every kind of tokeniser: the same marks for all of them."""

from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from heed.answers.worker import Worker
from heed.data.borrowed import Borrowed
from heed.data.kinds.text import Text
from heed.data.tokenise import Tokeniser
from heed.data.verbatim import Verbatim
from heed.data.vocabularies import Vocabulary
from heed.viewing.pieces import label

TEXT = "a stirring film, 我爱"
WORDS = ["a", "stir", "##ring", "film", ",", "我", "爱"]


def labels(tokeniser: object, ids: Sequence[int], text: str | None = None) -> list[str]:
    return Worker.labels(Text(tokeniser), ids, text)


def alternatives(tokeniser: object, ids: Sequence[int]) -> list[str]:
    kind = Text(tokeniser)
    return [label(piece, within=kind.marked) for piece in kind.spelt(ids)]


def cut(tokeniser: Tokeniser | Verbatim | Vocabulary | Borrowed) -> list[str]:
    (ids,) = tokeniser.encode([TEXT])
    return [each for each in labels(tokeniser, ids, TEXT) if each not in ("␣", "</s>")]


def learnt(kind: str) -> Tokeniser:
    """A vocabulary that has "stir" and "ring", but not "stirring"."""
    texts = ["a stir film , a stir", "a film, stir", "xring yring zring", "我爱 我 爱"] * 9
    return Tokeniser.train(kind, texts, 60)  # type: ignore[arg-type]


def test_heeds_own_tokenisers_mark_what_continues_a_word() -> None:
    assert cut(learnt("bpe")) == WORDS
    assert cut(learnt("wordpiece")) == WORDS
    assert cut(learnt("unigram"))[:1] == ["a"]
    assert "".join(cut(learnt("unigram"))).replace("##", "") == TEXT.replace(" ", "")
    whole = ["a", "stirring", "film", ",", "我爱"]
    assert cut(learnt("word")) == whole  # the second is not in the vocabulary
    assert cut(learnt("character")) == list(TEXT.replace(" ", ""))
    letters = learnt("character")
    (ids,) = letters.encode(["a f"])
    assert labels(letters, ids) == ["␣", "a", "␣", "f", "</s>"]
    assert alternatives(letters, ids) == ["␣", "a", "␣", "f", "</s>"]


def test_what_may_stand_in_one_place_is_marked_by_itself() -> None:
    tokeniser = learnt("bpe")
    ids = [tokeniser.number(piece) or 0 for piece in ("▁stir", "ring", ",", "我", "▁")]
    assert alternatives(tokeniser, ids) == ["stir", "##ring", ",", "我", "␣"]


def test_text_that_is_kept_unchanged_is_marked_too() -> None:
    texts = ["a stir film, a stir", "xring yring zring", "film 我 爱", "x爱"] * 9
    bytes_ = Verbatim.train("byte-bpe", texts, 290)
    assert cut(bytes_) == WORDS
    assert cut(Verbatim.train("character", [TEXT], 99)) == list(TEXT.replace(" ", ""))
    assert labels(bytes_, bytes_.encode(["\nring"])[0]) == ["↵", "ring"]


def wordpiece() -> Tokenizer:
    pieces = ["[UNK]", "a", "stir", "##ring", "film", ",", "我", "爱"]
    words = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return words


def byte_level() -> Tokenizer:
    """Pieces in the alphabet of bytes, where 我 is æĪĳ and 爱 is çĪ±."""
    steps = "s t|i r|st ir|r i|n g|ri ng|Ġ stir|f i|l m|fi lm|Ġ film|æ Ī|æĪ ĳ|Ġ æĪĳ|ç Ī|çĪ ±"
    merges = [(one, other) for one, other in map(str.split, steps.split("|"))]
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(both) for both in merges]
    words = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return words


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", "▁", "▁a", "▁stir", "ring", "▁film", ",", "我", "爱"]
    words = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    return words


def ended() -> Tokenizer:
    """Pieces of BPE that mark where words end."""
    steps = "s t|i r|st ir|r i|n g</w>|ri ng</w>|f i|l m</w>|fi lm</w>"
    merges = [(one, other) for one, other in map(str.split, steps.split("|"))]
    letters = [letter + end for letter in "astirngflm,我爱" for end in ("", "</w>")]
    pieces = [*letters, *("".join(both) for both in merges)]
    words = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, end_of_word_suffix="</w>")
    )
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return words


@pytest.mark.parametrize("made", [wordpiece, byte_level, sentencepiece, ended])
def test_vocabularies_of_pretrained_models_have_the_same_marks(
    made: Callable[[], Tokenizer],
) -> None:
    vocabulary = Vocabulary(made(), {"eos": 0})
    assert cut(vocabulary) == WORDS
    assert cut(Borrowed(vocabulary, "here")) == WORDS
    assert labels(vocabulary, vocabulary.encode(["stirring"])[0]) == ["stir", "##ring"]


def test_whole_words_of_a_pretrained_model_are_not_marked() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "stirring": 1, "film": 2}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary = Vocabulary(words, {})
    ids = vocabulary.encode(["a stirring film"])[0]
    assert labels(vocabulary, ids) == ["a", "stirring", "film"]


def test_an_unused_number_has_an_empty_label() -> None:
    assert labels(Vocabulary(sentencepiece(), {}), [99, 4]) == ["", "ring"]
