"""Pairs from every kind of file: each is accounted for, and errors name their place."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.pairs import Files, Links, Pair, Report, read_alignments, read_linked, read_pairs
from heed.errors import Refused

PAIRS = [Pair("我 爱 中国", "i love china"), Pair("a\u2028b", "c\x85d")]


def lines(path, *texts):
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return path


def refusal(files, reader=read_pairs):
    with pytest.raises(Refused) as error:
        list(reader(files))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def pack(request):
    def packed(path):
        if request.param:
            path.write_bytes(gzip.compress(path.read_bytes()))
        return path

    return packed


def test_three_kinds_of_files_give_the_same(tmp_path, pack):
    tsv = pack(lines(tmp_path / "t", *("\t".join(pair) for pair in PAIRS)))
    source = pack(lines(tmp_path / "a", *(pair.source for pair in PAIRS)))
    target = pack(lines(tmp_path / "b", *(pair.target for pair in PAIRS)))
    rows = [json.dumps({"zh": a, "en": b, "other": 1}) for a, b in PAIRS]
    jsonl = pack(lines(tmp_path / "j", *rows))
    for files in (
        Files(tsv=tsv),
        Files(source=source, target=target),
        Files(jsonl=jsonl, keys=("zh", "en")),
    ):
        assert list(read_pairs(files)) == PAIRS
        back = files.model_copy(update={"reverse": True})
        assert list(read_pairs(back)) == [(b, a) for a, b in PAIRS]


@pytest.mark.parametrize("by", [-2, -1, 1, 2])
def test_a_difference_in_lines_is_reported_with_both_counts(tmp_path, by):
    source = lines(tmp_path / "a", *["x"] * 1005)
    target = lines(tmp_path / "b", *["y"] * (1005 + by))
    told = refusal(Files(source=source, target=target))
    assert f"{source} has 1,005 lines and {target} has {1005 + by:,} lines" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("alone", "x:3: 1 column (alone) where two"),
        ("a\tb\tc", "x:3: 3 columns (a, b, c) where two are expected; in"),
    ],
)
def test_columns_are_counted(tmp_path, line, told):
    assert told in refusal(Files(tsv=lines(tmp_path / "x", "a\tb", "", line)))


def test_columns_can_be_chosen(tmp_path):
    path = lines(tmp_path / "x", "id\ta\tb\tc", "id\ta\tb")
    assert list(read_pairs(Files(tsv=path, columns=(2, 1)))) == [("b", "a")] * 2
    assert "x:2: 3 columns (id, a, b), and `columns` asks for number 3" in refusal(
        Files(tsv=path, columns=(0, 3))
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object with the keys source and target"),
        ('{"source": "a"}', "the key 'target' is missing"),
        ('{"source": "a", "target": 3}', "the key 'target' is not a text"),
        ('{"source": "a", "target": "\\ud800"}', "holds half a surrogate"),
    ],
)
def test_bad_json_names_its_line(tmp_path, line, told):
    path = lines(tmp_path / "x", '{"source": "a", "target": "b"}', line)
    assert f"{path}:2: {told}" in refusal(Files(jsonl=path))


def test_an_empty_corpus_is_refused(tmp_path):
    assert "0 pairs read = 0 kept" in refusal(Files(tsv=lines(tmp_path / "x")))
    told = refusal(Files(tsv=lines(tmp_path / "x", "\t", "a\t ", "\tb")))
    assert "3 pairs read = 0 kept + 3 dropped (2 blank source, 1 blank target)" in told


@pytest.mark.parametrize(
    ("first", "looks"),
    [
        ("English\tChinese", True),
        ("source\ttarget", True),
        (" SRC \ttgt", True),
        ("en\tzh-CN", True),
        ("pt_BR\ten", True),
        ("source_text\ttarget_text", True),
        ("English sentence\tFrench sentence", True),
        ("English\tEnglish", False),
        ("English\tEnglisch", False),
        ("it is\tes ist", False),
        ("source of joy\ttarget", False),
        ("a\tb", False),
    ],
)
def test_a_first_line_that_looks_like_names_of_columns_is_kept_and_noted(tmp_path, first, looks):
    for number, rows in enumerate(([first, "a\tb"], ["a\tb", first])):
        report = Report()
        assert len(list(read_pairs(Files(tsv=lines(tmp_path / "x", *rows)), report=report))) == 2
        assert bool(report.header) == (looks and number == 0)


cell = st.text(st.sampled_from(["a", " ", "\u3000", "\r", "\x85"]), max_size=6)


@given(st.lists(st.tuples(cell, cell)))
def test_read_is_kept_plus_dropped_at_every_moment(tmp_path_factory, pairs):
    path = lines(tmp_path_factory.mktemp("p") / "x", "a\tb", *("\t".join(p) + "." for p in pairs))
    report, kept = Report(), []
    for pair in read_pairs(Files(tsv=path), longest_characters=4, report=report):
        kept.append(pair)
        assert report.read == report.kept + sum(report.dropped.values())
    fit = [(a, b + ".") for a, b in pairs if a.strip() and len(a) <= 4 and len(b) < 4]
    assert kept == [("a", "b"), *fit]
    assert (report.read, report.kept) == (len(pairs) + 1, len(kept))
    assert report.dropped.get("blank source", 0) == sum(not a.strip() for a, _ in pairs)
    assert report.read == report.kept + sum(report.dropped.values())


def test_the_report_is_readable():
    report = Report(29000, 28990, {"too long": 2, "blank source": 8})
    assert str(report) == (
        "29,000 pairs read = 28,990 kept + 10 dropped (8 blank source, 2 too long)"
    )
    assert str(Report(3, 3)) == "3 pairs read = 3 kept + 0 dropped"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tsv": "a", "jsonl": "b"},
        {"source": "a"},
        {"source": "a", "target": "b", "tsv": "c"},
        {"tsv": "a", "colums": [0, 1]},
        {"jsonl": "a", "columns": [0, 1]},
        {"tsv": "a", "columns": [0, -1]},
    ],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        Files(**settings)


def test_alignments_in_pharaoh_format(tmp_path):
    path = lines(tmp_path / "x", "0-0 1-2 2?1", "")
    sure = {(0, 0), (1, 2)}
    assert list(read_alignments(path)) == [
        Links(frozenset(sure), frozenset(sure | {(2, 1)})),
        Links(frozenset(), frozenset()),
    ]


@pytest.mark.parametrize("possible", ["18-28-P", "18?28", "18p28"])
@pytest.mark.parametrize("sure", ["3-4", "3-4-S"])
def test_sure_and_possible_links_in_each_notation(tmp_path, sure, possible):
    path = lines(tmp_path / "x", f"{possible} {sure}", f"{sure} 3?4")
    assert list(read_alignments(path)) == [
        Links(frozenset({(3, 4)}), frozenset({(3, 4), (18, 28)})),
        Links(frozenset({(3, 4)}), frozenset({(3, 4)})),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        *("1", "1-", "-1-2", "1--2", "1?-2", "a-b", "1.0-2", "²-1", "1-2-3", "1-2-Q", "1-2-p"),
        *("1?2-3", "1?2-P", "1-2-S-P", "1:2", "9" * 30 + "-1"),
    ],
)
def test_a_bad_link_names_its_line(tmp_path, bad):
    path = lines(tmp_path / "x", "0-0", f"1-1 {bad}")
    with pytest.raises(Refused, match=rf"{path}:2: '.*' is not a link"):
        list(read_alignments(path))


def test_links_to_words_that_are_not_there_are_left_out_and_the_first_is_named(tmp_path):
    pairs = lines(tmp_path / "x", "a b\tc d", "\tlost", "e\tf", "g\th")
    links = lines(tmp_path / "y", "0-0 1-1", "7-7", "0-0 0-1-P", "1-0 0-0")
    report = Report()
    found = [linked for _, linked in read_linked(Files(tsv=pairs, alignments=links), report=report)]
    assert [set(linked.possible) for linked in found] == [{(0, 0), (1, 1)}, {(0, 0)}, {(0, 0)}]
    assert str(report).endswith(
        f"; 2 links to words that are not there left out, the first at {links}:3: 0-1, where the "
        "pair has 1 and 1 words"
    )
    lines(pairs, "a\tb c d")
    lines(links, "2-0")
    back, report = Files(tsv=pairs, alignments=links, reverse=True), Report()
    assert [set(linked.sure) for _, linked in read_linked(back, report=report)] == [set()]
    assert str(report).endswith(f"{links}:1: 2-0, where the pair has 1 and 3 words")


def test_alignments_stay_with_their_pairs(tmp_path):
    pairs = lines(tmp_path / "x", "a b\tc d", "\tlost", "e\tf")
    links = lines(tmp_path / "y", "0-1", "0-0 5-5", "0-0")  # of a dropped pair: not stray
    files = Files(tsv=pairs, alignments=links)
    assert [(p.source, set(l.sure)) for p, l in read_linked(files)] == [
        ("a b", {(0, 1)}),
        ("e", {(0, 0)}),
    ]
    back = list(read_linked(files.model_copy(update={"reverse": True})))
    assert back[0][1].sure == {(1, 0)}
    lines(links, "0-0", "0-0")
    assert "has 3 pairs and" in refusal(files, read_linked)
    assert "no alignments are given" in refusal(Files(tsv=pairs), read_linked)
