"""The rules that split text, and the training of the five kinds of vocabulary.

Before tokenisation every text is normalised (NFC; every kind of white space becomes a plain space,
none at the ends; lower case if wanted) and its spaces are written "▁", one more in front, so that
"▁" begins each word and decoding restores every space. Then it is split into stretches that no
piece may cross: a punctuation mark or a symbol stands alone, and so does each character of a script
written without spaces, which is how Chinese works without a segmenter:

    bpe     "我爱中国, ok"       ▁我 爱 中 国 , ▁ok
    word    "我 爱 中国 , ok"    ▁我 ▁爱 ▁中国 ▁, ▁ok      spaces separated the words

Since "<" and ">" stand alone, "</s>" in a text can never become the symbol </s>.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, product
from os import PathLike
from typing import Any, Literal, get_args

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from heed.data.panics import check_merges, hushed
from heed.errors import Refused

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"

Kind = Literal["character", "word", "bpe", "wordpiece", "unigram"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# The characters themselves, since the two regex engines that read this have different escapes.
WHITE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
MARKS = rf"\p{{P}}\p{{S}}&&[^{SPACE}]"
# The same scripts for Python's `re`, which has no script names; used only to detect spaces.
UNSPACED_RUN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
ENOUGH = 10_000  # texts of unspaced scripts, to detect whether spaces separate their words
MANY = 1_000_000  # words counted before they are split: this bounds the memory


def train(
    kind: Kind,
    texts: Iterator[str],
    size: int,
    lowercase: bool,
    split_unspaced: bool | None,
    least: int,
) -> Tokenizer:
    """See `Tokeniser.train`."""
    counts: Counter[str] = Counter()
    if kind == "word" and split_unspaced is None:
        held: list[str] = []
        counts = _count(frame(kind, lowercase, True), _hold_back(texts, held))
        split_unspaced = not spaced(held)
        texts = chain(held, texts)
    tokenizer = frame(kind, lowercase, split_unspaced is not False)
    if kind in ("word", "character"):
        _number(tokenizer, kind, counts + _count(tokenizer, texts), size, least)
    else:
        _learn(tokenizer, kind, texts, size, max(least, 2))
    return tokenizer


def _hold_back(texts: Iterator[str], held: list[str]) -> Iterator[str]:
    """Yield texts without unspaced scripts; hold back the others until there are enough."""
    for text in texts:
        if not UNSPACED_RUN.search(text):
            yield text
            continue
        held.append(text)
        if len(held) == ENOUGH:
            return


def spaced(texts: Iterable[str]) -> bool:
    """Whether spaces separate the words of unspaced scripts: then most such words are short, as in
    我 爱 中国. A text of one short word does not count."""
    short = long = 0
    for text in texts:
        lengths = [len("".join(UNSPACED_RUN.findall(word))) for word in text.split()]
        lengths = [n for n in lengths if n]
        if len(lengths) > 1 or max(lengths, default=0) > 4:
            short += sum(n <= 4 for n in lengths)
            long += sum(n > 4 for n in lengths)
    return short > long


def _count(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """The count of each stretch. Words are counted first, since most occur often."""
    counts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    form = tokenizer.normalizer.normalize_str
    for text in texts:
        words.update(re.findall(f"{SPACE}[^{SPACE}]*", form(text)))
        if len(words) > MANY:
            _cut(tokenizer, words, counts)
    _cut(tokenizer, words, counts)
    return counts


def _cut(tokenizer: Tokenizer, words: Counter[str], counts: Counter[str]) -> None:
    for word, n in words.items():
        for stretch, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
            counts[stretch] += n
    words.clear()


def _number(tokenizer: Tokenizer, kind: Kind, counts: Counter[str], size: int, least: int) -> None:
    """Number the most frequent stretches; ties are ordered by their characters."""
    counts.pop(SPACE, None)
    ranked = sorted(counts, key=lambda stretch: (-counts[stretch], stretch))
    common = [stretch for stretch in ranked if counts[stretch] >= least]
    pieces = [*SPECIALS, SPACE, *common][:size]
    numbers = {piece: i for i, piece in enumerate(pieces)}
    unknown = SPECIALS[UNK]
    tokenizer.model = (
        models.WordLevel(numbers, unknown)
        if kind == "word"
        else models.BPE(numbers, [], unk_token=unknown)
    )


def _learn(tokenizer: Tokenizer, kind: Kind, texts: Iterator[str], size: int, least: int) -> None:
    """Sennrich et al. 2016 (bpe), Schuster and Nakajima 2012 (wordpiece), Kudo 2018 (unigram)."""
    same: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": list(SPECIALS),
        "initial_alphabet": [SPACE],
        "show_progress": False,
    }
    merging = same | {"min_frequency": least, "limit_alphabet": size - len(SPECIALS)}
    makers: dict[str, Callable[[], Any]] = {
        "bpe": lambda: trainers.BpeTrainer(**merging),
        "wordpiece": lambda: trainers.WordPieceTrainer(**merging, continuing_subword_prefix=""),
        "unigram": lambda: trainers.UnigramTrainer(**same, unk_token=SPECIALS[UNK]),
    }
    trainer = makers[kind]()
    if kind != "unigram":
        form = tokenizer.normalizer.normalize_str  # the tokenizer itself is locked in training
        texts = _untied(texts, form, merging["limit_alphabet"] - 1)  # one of them is SPACE
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"no {kind} vocabulary of {size} pieces can be trained: {error}") from None
    if kind == "unigram":
        _settle(tokenizer)


def _untied(texts: Iterator[str], form: Callable[[str], str], limit: int) -> Iterator[str]:
    """The texts; then once more each character that is to stay of those equally frequent.

    The trainer keeps the `limit` most frequent characters, and of equally frequent ones any.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(form(text))
        yield text
    del counts[SPACE]
    if len(counts) <= limit:
        return
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    fewest = counts[ranked[limit]]
    if counts[ranked[limit - 1]] == fewest:
        yield from (character for character in ranked[:limit] if counts[character] == fewest)


def _settle(tokenizer: Tokenizer) -> None:
    """Round scores to four decimals and sort pieces by score and characters: the last digits of the
    trainer's sums depend on its threads, and the same texts must give the same file."""
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"][len(SPECIALS) :]
    ranked = sorted(((piece, round(score, 4)) for piece, score in vocabulary), key=_by_score)
    tokenizer.model = models.Unigram([*((symbol, 0.0) for symbol in SPECIALS), *ranked], UNK)


def _by_score(piece: tuple[str, float]) -> tuple[float, str]:
    return -piece[1], piece[0]


def parse(text: str, path: str | PathLike[str]) -> tuple[Tokenizer, Kind]:
    """A tokeniser with heed's own rules; any other is refused."""
    try:
        described = json.loads(text)
        numbered = _numbered(described)
        check_merges(described["model"])
        with hushed():
            tokenizer = Tokenizer.from_str(text) if numbered else None
        rules = outline(tokenizer) if tokenizer else ""
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # the library's own panics are not an Exception
        raise Refused(f"{path}: not a tokeniser, or a broken one") from None
    if tokenizer is None:
        raise Refused(f"{path}: the pieces are not numbered from {' '.join(SPECIALS)} on")
    if (kind := _outlines().get(rules)) is None:
        raise Refused(f"{path}: not a tokeniser that heed wrote; train one from the data")
    return tokenizer, kind


def _numbered(rules: Any) -> bool:
    """Whether the pieces have the numbers from 0 on, each once. This is checked before the library
    reads the file: a number in the millions would keep it busy for minutes."""
    pieces = rules["model"]["vocab"]
    if isinstance(pieces, list):
        pieces = {piece: i for i, (piece, _) in enumerate(pieces)}
    added = {token["content"]: token["id"] for token in rules["added_tokens"]}
    specials = {symbol: i for i, symbol in enumerate(SPECIALS)}
    within = all(pieces.get(symbol) == i for symbol, i in specials.items())
    return added == specials and within and set(pieces.values()) == set(range(len(pieces)))


@cache
def _outlines() -> dict[str, Kind]:
    ways = product(KINDS, (False, True), (False, True))
    return {outline(frame(kind, lower, split)): kind for kind, lower, split in ways}


def outline(tokenizer: Tokenizer) -> str:
    """The content of a tokenizer.json without the pieces."""
    rules = json.loads(tokenizer.to_str())
    rules["model"] = {k: v for k, v in rules["model"].items() if k not in ("vocab", "merges")}
    return json.dumps(rules, sort_keys=True)


def frame(kind: Kind, lowercase: bool, split_unspaced: bool) -> Tokenizer:
    """The rules without a vocabulary."""
    unknown = SPECIALS[UNK]
    makers: dict[str, Callable[[], Any]] = {
        "character": lambda: models.BPE(unk_token=unknown),
        "word": lambda: models.WordLevel(unk_token=unknown),
        "bpe": lambda: models.BPE(unk_token=unknown),
        # "▁" already marks the beginning of words, so pieces that continue one need no "##".
        "wordpiece": lambda: models.WordPiece(
            unk_token=unknown, continuing_subword_prefix="", max_input_chars_per_word=1000
        ),
        "unigram": lambda: models.Unigram([(symbol, 0.0) for symbol in SPECIALS], UNK),
    }
    tokenizer = Tokenizer(makers[kind]())
    tokenizer.normalizer = _one_form(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_stretch(kind, split_unspaced), "isolated")
    end = SPECIALS[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, EOS)]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, "always")
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _one_form(lowercase: bool) -> Any:
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    steps += [
        normalizers.NFC(),  # after lower case, which decomposes some characters
        normalizers.Replace(Regex(WHITE), " "),
        normalizers.Strip(),
        normalizers.Replace(SPACE, "_"),  # a "▁" in the text itself would be read as a space
        normalizers.Prepend(SPACE),
        normalizers.Replace(" ", SPACE),
    ]
    return normalizers.Sequence(steps)


def _stretch(kind: Kind, split_unspaced: bool) -> Regex:
    """The stretches that no piece crosses. The last "▁" is the second of two spaces in a row."""
    if kind == "character":
        return Regex(r"[^\n]")
    mark = rf"{SPACE}?[{MARKS}]"
    if not split_unspaced:
        return Regex(rf"{mark}|{SPACE}?[^{SPACE}\p{{P}}\p{{S}}]+|{SPACE}")
    alone = rf"{SPACE}?[{UNSPACED}]\p{{M}}*"
    return Regex(rf"{mark}|{alone}|{SPACE}?[^{SPACE}{UNSPACED}\p{{P}}\p{{S}}]+|{SPACE}")
