"""Measures of translations and alignments: BLEU and chrF by sacreBLEU, alignment error rate.

A link is (source word, target word), from 0. Alignment error is that of Och and Ney 2003, with sure
links S and possible ones P:  AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), counted over all sentences.
A holds one link for each target word that the gold aligns, to the source word with the largest
weight; a target word without a counterpart (the, do) is counted neither in A nor in the gold.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.data.pairs import Links
from heed.data.vocabulary import UNSPACED_RUN, spaced
from heed.errors import Refused, ShapeError, UnknownName

Link: TypeAlias = tuple[int, int]
Gold: TypeAlias = Links | Iterable[Link]
"""The true links of a sentence; all are sure unless they come as `Links`."""

Tokenise: TypeAlias = Literal["13a", "zh", "char", "intl", "none", "ja-mecab", "ko-mecab"]
"""How sacreBLEU cuts text into words: 13a for most languages, zh for Chinese, char for other
scripts without spaces. The last two need a package."""
TOKENISERS: tuple[Tokenise, ...] = get_args(Tokenise)
PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}

HAN = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
KANA = re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf]"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Tai, Balinese, Javanese, and Shan among the Burmese ones."""
JAPANESE = 0.05
"""The share of kana from which on a text is Japanese: Chinese has a few, such as の."""


class Measured(NamedTuple):
    """A figure and the signature that says how it was computed."""

    value: float
    signature: str


def tokeniser_for(references: Iterable[str]) -> Tokenise:
    """Choose BLEU's tokeniser by the script of most of the letters: zh for Chinese, char for
    other scripts without spaces, 13a otherwise."""
    counts = Counter(chain.from_iterable(references))
    letters = {each: n for each, n in counts.items() if unicodedata.category(each)[0] in "LM"}
    han, kana, others = (
        sum(n for each, n in letters.items() if script.match(each))
        for script in (HAN, KANA, UNSPACED)
    )
    if 2 * (han + kana + others) <= sum(letters.values()):
        return "13a"
    return "zh" if han > others and kana < JAPANESE * (han + kana) else "char"


def check_tokeniser(name: str) -> None:
    """Refuse a tokeniser of sacreBLEU that is unknown, or whose package is missing."""
    _metric(name)


def lengths(texts: Sequence[str]) -> list[int]:
    """Words of each text; in a script that is written without spaces, its characters."""
    if spaced(texts) or not any(UNSPACED_RUN.search(text) for text in texts):
        return [len(text.split()) for text in texts]
    runs = ([*map(len, UNSPACED_RUN.findall(text))] for text in texts)
    rest = (UNSPACED_RUN.sub(" ", text).split() for text in texts)
    return [sum(run) + len(words) for run, words in zip(runs, rest, strict=True)]


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenise: str = "13a",
) -> Measured:
    """Corpus BLEU, 0 to 100."""
    return _measured(_metric(tokenise, lowercase), hypotheses, references)


def _metric(tokenise: str, lowercase: bool = False) -> Any:
    if tokenise not in TOKENISERS:
        raise UnknownName("tokeniser of sacreBLEU", tokenise, TOKENISERS)
    try:
        return _sacrebleu().BLEU(lowercase=lowercase, tokenize=tokenise, force=True)
    except (ImportError, RuntimeError):
        if tokenise not in PACKAGES:
            raise
        raise Refused(
            f"{tokenise} needs a package that is missing: pip install '{PACKAGES[tokenise]}'; "
            "or take char"
        ) from None


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Measured:
    """Corpus chrF2 over character 6-grams, 0 to 100."""
    return _measured(_sacrebleu().CHRF(lowercase=lowercase), hypotheses, references)


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise Refused(
            "BLEU and chrF are computed by sacreBLEU, which is not installed: "
            "pip install heed-attention[translate]"
        ) from None
    return metrics


def _measured(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Measured:
    if len(hypotheses) != len(references):
        raise Refused(
            f"{len(hypotheses):,} translations cannot be compared with "
            f"{len(references):,} references: there must be one for each"
        )
    if not hypotheses:
        raise Refused("there are no translations to score")
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Measured(float(score.score), str(metric.get_signature()))


def by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lengths: Sequence[int],
    edges: Sequence[int],
    lowercase: bool = False,
    tokenise: str = "13a",
) -> list[tuple[str, int, float]]:
    """(range, sentences in it, their BLEU) by source length; each edge is the last of its range.

    edges 5, 10 tell 1-5, 6-10 and 11+ apart; a range without sentences is left out.
    """
    if not len(lengths) == len(hypotheses) == len(references):
        raise Refused("by_length needs one length and one reference for each translation")
    names = [f"{low + 1}-{high}" for low, high in pairwise((0, *edges))]
    names.append(f"{edges[-1] + 1}+" if edges else "all")
    ranges = np.searchsorted(edges, lengths)  # a length on an edge belongs below it
    found = []
    for i, name in enumerate(names):
        rows = np.flatnonzero(ranges == i).tolist()
        if rows:
            texts, wanted = [hypotheses[row] for row in rows], [references[row] for row in rows]
            found.append((name, len(rows), bleu(texts, wanted, lowercase, tokenise).value))
    return found


def links(weight: ArrayLike) -> list[Link]:
    """Each target word and the source word it looked at most.    T S"""
    weights = np.asarray(weight)
    if weights.ndim != 2 or weights.shape[1] == 0:
        raise ShapeError(f"the weights of one sentence are T S, not {weights.shape}")
    return [(int(i), j) for j, i in enumerate(weights.argmax(1))]


def of_words(
    weight: ArrayLike, target: Sequence[int], source: Sequence[int]
) -> NDArray[np.floating[Any]]:
    """Weights between words from those between pieces.    T S -> words of T, words of S

    target, source: the word of each piece, from 0; negative for what belongs to none (</s>). The
    pieces of a source word are looked at together (sum), those of a target word take turns (mean).
    """
    weights = np.asarray(weight)
    if weights.shape != (len(target), len(source)):
        raise ShapeError(
            f"the weights are {weights.shape}, but there are {len(target)} target "
            f"and {len(source)} source pieces"
        )
    rows, columns = _members(target), _members(source)
    summed = rows @ weights @ columns.T
    mean: NDArray[np.floating[Any]] = summed / np.maximum(rows.sum(1, keepdims=True), 1)
    return mean


def _members(words: Sequence[int]) -> NDArray[np.floating[Any]]:
    """One where the piece belongs to the word.    words, pieces"""
    return np.equal.outer(np.arange(max(words, default=-1) + 1), words).astype(float)


def to_pharaoh(found: Iterable[Link]) -> str:
    """Links in Pharaoh format, source first: 0-0 1-2."""
    return " ".join(f"{i}-{j}" for i, j in sorted(found))


def alignment_error(found: Iterable[Iterable[Link]], gold: Iterable[Gold]) -> float:
    """AER of the links found in each sentence against the true ones, 0 (perfect) to 1."""

    def hits(links: Iterable[Link], true: Links) -> tuple[float, float, float]:
        aligned = {j for _, j in true.possible}
        kept = {link for link in links if link[1] in aligned}
        return len(kept & true.sure), len(kept & true.possible), len(kept)

    return _error(hits, found, gold)


def diagonal(source: int, target: int) -> list[Link]:
    """The guess that both languages say everything in the same order: S and T words."""
    return [((2 * j + 1) * source // (2 * target), j) for j in range(target)]


def diagonal_error(sizes: Iterable[tuple[int, int]], gold: Iterable[Gold]) -> float:
    """AER of the diagonal guess; sizes: how many source and target words each sentence has."""
    return alignment_error((diagonal(*size) for size in sizes), gold)


def uniform_error(sizes: Iterable[tuple[int, int]], gold: Iterable[Gold]) -> float:
    """AER to expect of links drawn at random, every source word alike."""

    def hits(size: tuple[int, int], true: Links) -> tuple[float, float, float]:
        aligned = {j for _, j in true.possible}
        return len(true.sure) / size[0], len(true.possible) / size[0], len(aligned)

    return _error(hits, sizes, gold)


def _error(
    hits: Callable[[Any, Links], tuple[float, float, float]],
    found: Iterable[Any],
    gold: Iterable[Gold],
) -> float:
    """1 − (|A∩S| + |A∩P|) / (|A| + |S|), the counts summed over the sentences."""
    right, all_links = 0.0, 0.0
    for guess, true in zip(found, gold, strict=True):
        links = _gold(true)
        sure, possible, size = hits(guess, links)
        right += sure + possible
        all_links += size + len(links.sure)
    if not all_links:
        raise Refused("the gold alignment is empty, so there is no alignment error")
    return 1 - right / all_links


def _gold(true: Gold) -> Links:
    if isinstance(true, Links):
        return Links(true.sure, true.possible | true.sure)
    sure = frozenset(true)
    return Links(sure, sure)
