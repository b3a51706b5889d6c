"""Translation: where its pairs come from, and how translations are scored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from heed.data.held_out import side
from heed.data.pairs import Files, Links, Report
from heed.errors import Refused
from heed.tasks.translate import Data, Grammar, Part, Scores, examples, from_files, judged
from heed.tasks.translator import Example, Reading, Translation

DRAWN = Data(grammar=Grammar(pairs=300, shortest=3, longest=7, beyond=11, held_out=40))
HERE = Path()


def drawn(part: Part, data: Data = DRAWN) -> list[Example]:
    report = Report()
    found = list(examples(data, part, HERE, report))
    assert (report.read, report.kept, report.dropped) == (len(found), len(found), {})
    return found


def test_parts_of_the_grammar_have_their_sizes_and_are_disjoint() -> None:
    train, valid, test, far = (drawn(part) for part in ("train", "valid", "test", "long"))
    assert [len(part) for part in (train, valid, test, far)] == [300, 40, 40, 40]
    sources = [{pair.source for pair in part} for part in (train, valid, test, far)]
    for i, some in enumerate(sources):
        assert not any(some & other for other in sources[:i])
    for part, low, high in ((train, 3, 7), (valid, 3, 7), (test, 3, 7), (far, 8, 11)):
        lengths = {len(pair.source.split()) for pair in part}
        assert low <= min(lengths) <= max(lengths) <= high
    assert max(len(pair.source.split()) for pair in far) > 8


def test_links_of_the_grammar_point_at_existing_words() -> None:
    for pair in drawn("test"):
        assert pair.links is not None
        assert pair.links.sure == pair.links.possible != frozenset()
        sizes = len(pair.source.split()), len(pair.target.split())
        assert all(i < sizes[0] and j < sizes[1] for i, j in pair.links.sure)


def test_the_seed_determines_the_pairs() -> None:
    other = Data(grammar=DRAWN.grammar and DRAWN.grammar.model_copy(update={"seed": 1}))
    assert drawn("train") == drawn("train") != drawn("train", other)


def test_files_are_found_in_the_folder_and_counted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.tsv").write_text("我\ti\n\n \tx\n你\tyou\n" + "很" * 2001 + "\tvery\n")
    files = Files(tsv=Path("a.tsv"))
    data = Data(folder="mine", train=files, valid=files)
    report = Report()
    assert list(examples(data, "train", tmp_path, report)) == [
        Example("我", "i"),
        Example("你", "you"),
    ]
    assert (report.read, report.kept) == (5, 2)
    assert report.dropped == {"blank source": 2, "too long": 1}
    with pytest.raises(Refused, match=r"^data\.test is not given"):
        list(examples(data, "test", tmp_path, Report()))


ROWS = [(f"source {n % 90}", f"target {n}") for n in range(180)]  # each source twice
BAD = [("", "x"), ("source 7", " "), ("source 11", "y" * 2001)]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "two files", "reversed", "aligned"])
def test_the_parts_of_one_file_are_disjoint(kind: str, tmp_path: Path) -> None:
    """A pair goes by its source, in every format; what is dropped is counted in one part."""
    rows, files = [*ROWS, *BAD], {"tsv": "a.tsv"}
    turned = [pair[::-1] for pair in rows] if kind == "reversed" else rows
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in turned))
    if kind == "jsonl":
        files = {"jsonl": "a.jsonl"}
        lines = (json.dumps({"source": a, "target": b}) for a, b in rows)
        (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    elif kind == "two files":
        files = {"source": "a.zh", "target": "a.en"}
        for place, name in enumerate(files.values()):
            (tmp_path / name).write_text("".join(f"{pair[place]}\n" for pair in rows))
    elif kind == "aligned":
        files |= {"alignments": "a.links"}
        (tmp_path / "a.links").write_text("0-0 1-1\n" * len(rows))
    more = {"reverse": True} if kind == "reversed" else {}
    given = {"train": files | more, "held_out": {"valid": 0.2, "test": 0.1}}
    data = Data.model_validate(given | {"folder": str(tmp_path)})
    assert data.parts() == ["valid", "test"]
    found, read, dropped = {}, 0, 0
    for part in ("train", *data.parts()):
        report = Report()
        found[part] = list(examples(data, part, HERE, report))
        lost = sum(report.dropped.values())
        assert (report.kept, report.read) == (len(found[part]), len(found[part]) + lost)
        read, dropped = read + report.read, dropped + lost
    assert (read, dropped) == (183, 3)
    held = data.held_out
    for part, pairs in found.items():
        assert {side(pair.source, held) for pair in pairs} == {part}
        assert all((pair.links is not None) == (kind == "aligned") for pair in pairs)
    assert sorted((a, b) for pairs in found.values() for a, b, _ in pairs) == sorted(ROWS)


def test_separate_files_are_taken_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS))
    given = {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "a.tsv"}, "held_out": {"test": 0.2}}
    data = Data.model_validate(given | {"folder": str(tmp_path)})
    sizes = [len(list(examples(data, p, HERE, Report()))) for p in ("train", "valid", "test")]
    assert sizes[0] + sizes[2] == sizes[1] == len(ROWS)
    assert sizes[2] > 0


def test_an_empty_share_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    given = {"train": {"tsv": "a.tsv"}, "held_out": {"valid": 0.001}, "folder": str(tmp_path)}
    data = Data.model_validate(given)
    with pytest.raises(Refused, match=r"nothing in data\.valid: 0 pairs read.*hold more out"):
        list(examples(data, "valid", HERE, Report()))


def test_a_dropped_pair_takes_its_alignment_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a b\tx y\n\tz\nc\tz w\n")
    (tmp_path / "a.links").write_text("0-1 1?0\n5-5\n0-0\n")
    files = Files(tsv=tmp_path / "a.tsv", alignments=tmp_path / "a.links")
    report = Report()
    assert list(from_files(files, report)) == [
        Example("a b", "x y", Links(frozenset({(0, 1)}), frozenset({(0, 1), (1, 0)}))),
        Example("c", "z w", Links(frozenset({(0, 0)}), frozenset({(0, 0)}))),
    ]
    assert (report.read, report.kept, report.dropped) == (3, 2, {"blank source": 1})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give the training pairs as data.train, or draw them"),
        ({"train": {"tsv": "a"}, "grammar": {}}, "give the training pairs as data.train, or draw"),
        ({"train": {"tsv": "a"}}, "data.valid is missing: pairs .* data.held_out.valid=0.05"),
        (
            {"train": {"tsv": "a"}, "valid": {"tsv": "b"}, "held_out": {"valid": 0.1}},
            "data.valid is given, so nothing is held out for it",
        ),
        ({"grammar": {}, "held_out": {"test": 0.1}}, "for the grammar, set data.grammar.held_out"),
    ],
)
def test_pairs_come_from_one_source(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Data.model_validate(given)


GOLD = Links(frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)}))
PAIRS = [
    Example("猫 睡", "the cat sleeps well today", GOLD),
    Example("a b c d e f g", "one two three four five six seven", None),
]


def written(*texts: str) -> list[Translation]:
    return [
        Translation(pair.source, text, -1.0, [], [], None)
        for pair, text in zip(PAIRS, texts, strict=True)
    ]


def reading(links: list[tuple[int, int]] | None, entropy: float | None = 0.5) -> Reading:
    return Reading(6 * math.log(3), 6, links, entropy)


def test_perfect_translations_and_links_get_perfect_scores() -> None:
    readings = [reading([(0, 0), (1, 2), (1, 1)]), Reading(0.0, 2, [(0, 0)], 1.5)]
    scores = judged(PAIRS, written(*(pair.target for pair in PAIRS)), readings)
    assert scores.pairs == 2
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.aer == 0
    assert scores.perplexity == pytest.approx(3 ** (6 / 8))  # nats over symbols, of all pairs
    assert scores.entropy == pytest.approx((6 * 0.5 + 2 * 1.5) / 8)
    assert [each[:2] for each in scores.by_length] == [("1-5", 1), ("6-10", 1)]
    assert [each[2] for each in scores.by_length] == pytest.approx([100, 100])
    assert scores.line() == "BLEU 100.0 · chrF 100.0 · perplexity 2.28 · AER 0.000"


def test_wrong_translations_score_lower() -> None:
    readings = [reading([(1, 0), (0, 2)]), reading(None, None)]
    scores = judged(PAIRS, written("dog", "one two three four five six seven"), readings)
    assert 0 < scores.bleu < 100
    assert scores.aer == 1
    assert scores.entropy is None  # unknown for one of the two
    assert {label: bleu for label, _, bleu in scores.by_length}["6-10"] == pytest.approx(100)
    assert scores.by_length[0][2] < 5


def test_without_attention_or_gold_links_there_is_no_alignment_error() -> None:
    texts = written("the cat", "one")
    blind = judged(PAIRS, texts, [reading(None, None)] * 2)
    assert (blind.aer, blind.entropy) == (None, None)
    plain = [pair._replace(links=None) for pair in PAIRS]
    assert judged(plain, texts, [reading([(0, 0)])] * 2).aer is None
    assert "AER" not in blind.line()


def test_case_matters_by_default() -> None:
    texts, readings = written(*(pair.target.upper() for pair in PAIRS)), [reading(None, None)] * 2
    assert judged(PAIRS, texts, readings).bleu < 5
    lower = judged(PAIRS, texts, readings, lowercase=True)
    assert lower.bleu == pytest.approx(100)
    assert lower.by_length[0][2] == pytest.approx(100)
    assert "case:lc" in lower.bleu_signature


def test_a_hopeless_model_has_a_finite_perplexity() -> None:
    hopeless = [Reading(1e6, 2, None, None)] * 2
    assert math.isfinite(judged(PAIRS, written("a", "b"), hopeless).perplexity)


def test_a_line_shows_what_is_known() -> None:
    scores = Scores(3, 12.345, "", 50.0, "", 7.777, None, 0.25, [])
    assert scores.line() == "BLEU 12.3 · chrF 50.0 · perplexity 7.78 · AER 0.250"
