"""Tagged sentences out of columns and JSON lines: no line is lost, and errors name theirs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.held_out import HeldOut
from heed.data.tagged import Tagged, TaggedFiles, TaggedReport, read_tagged, tag_set
from heed.errors import Refused

CAT = Tagged(("The", "cat", "sleeps"), ("DET", "NOUN", "VERB"))
GO = Tagged(("go", "!"), ("VERB", "PUNCT"))


def file(folder: Path, text: str, name: str = "a.conll") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def read(path: Path, **wishes: Any) -> list[Tagged]:
    return list(read_tagged(TaggedFiles.model_validate({"path": path, **wishes})))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.conll", "The DET\ncat NOUN\nsleeps VERB\n\ngo VERB\n! PUNCT\n"),
        (
            "a.txt",
            "\r\nThe  x DET\r\ncat y  NOUN\r\nsleeps z VERB \r\n\r\n\r\ngo . VERB\r\n! . PUNCT",
        ),
        ("a.tsv", "The\tDET\ncat\tNOUN\nsleeps\tVERB\n \ngo\tVERB\n!\tPUNCT\n\n"),
        (
            "a.conll",
            "# a comment\n-DOCSTART- -X-\n\nThe DET\ncat NOUN\nsleeps VERB\n-DOCSTART- -X-\n"
            "# a comment of five\ngo VERB\n! PUNCT\n",
        ),
        (
            "a.jsonl",
            '{"words": ["The", "cat", "sleeps"], "labels": ["DET", "NOUN", "VERB"]}\n\n'
            '{"words": ["go", "!"], "labels": ["VERB", "PUNCT"], "id": 7}\n',
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path = file(tmp_path, text, name)
    if packed:
        path = path.rename(path.with_name(name + ".gz"))
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == [CAT, GO]


def test_columns_and_keys_can_be_chosen(tmp_path: Path) -> None:
    path = file(tmp_path, "1\tNew York\tPROPN\tB-LOC\n2\tis\tAUX\tO\textra\n")
    assert read(path, columns=(1, 2)) == [Tagged(("New York", "is"), ("PROPN", "AUX"))]
    assert read(path, columns=(1, 3))[0].tags == ("B-LOC", "O")
    row = json.dumps({"tokens": ["a", "b"], "ner_tags": [0, 12]})
    path = file(tmp_path, row, "a.jsonl")
    assert read(path, keys=("tokens", "ner_tags")) == [Tagged(("a", "b"), ("0", "12"))]


def test_universal_dependencies(tmp_path: Path) -> None:
    rest = "\t_" * 6
    text = (
        f"# text = Gehn wir zum Haus a b c\n1-2\tzum\t_\t_{rest}\n1\tzu\tzu\tADP{rest}\n"
        f"2\tdem\tder\tDET{rest}\n2.1\t_\t_\tVERB{rest}\n3\tHaus\tHaus\tNOUN{rest}\n\n"
    )
    path, report = file(tmp_path, text, "de.conllu"), TaggedReport()
    files = TaggedFiles.model_validate(path)
    expected = [Tagged(("zu", "dem", "Haus"), ("ADP", "DET", "NOUN"))]
    assert list(read_tagged(files, report=report)) == expected
    assert str(report).endswith("; 3 words; 3 lines without words left out")
    assert read(path, columns=(2, 3))[0].words == ("zu", "der", "Haus")


def test_a_number_sign_may_be_a_word(tmp_path: Path) -> None:
    assert read(file(tmp_path, "we O\n# O\n#tag O\n"))[0].words == ("we", "#", "#tag")
    tabs = file(tmp_path, "# two words\n# O\nwe\tO\n#\tO\n# comment\n")
    assert read(tabs)[0].words == ("we", "#")


def test_no_letter_is_lost(tmp_path: Path) -> None:
    text = "a\u2028b O\n\u3000\tO\n\xa0\tO\n"
    assert read(file(tmp_path, text))[0].words == ("a\u2028b", "\u3000", "\xa0")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("a A\nalone\n", r":2: 1 column \(alone\): a word needs a label"),
        ("a x A\nb B\n", r":2: 2 columns \(b, B\), but the lines before have 3; choose .*columns="),
        ("a A\nb\t\n", r":2: a word without a label"),
        ("a A\n\tB\n", r":2: a blank word"),
        ("a A\nb " + "x" * 201, r":2: a label of 201 characters"),
        ("a A\nb B\x1b\n", r":2: 'b' with the label 'B\\x1b' has a tab"),
        ("a A\n\xff\0 B\n", r":2: holds a NUL"),
        ("", r"there is no sentence in .*a.conll: 0 sentences read"),
        ("# nothing\n", r"0 words; 1 line without words left out$"),
        ("a A\n" * 1001, r"1 dropped \(1 too long\); .*; a blank line must end each sentence"),
    ],
)
def test_bad_columns_name_their_line(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(Refused, match=told):
        read(file(tmp_path, lines))


def test_too_few_columns_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "a A\n")
    with pytest.raises(Refused, match=r":1: 2 columns \(a, A\), and `columns` asks for 0 and 2"):
        read(path, columns=(0, 2))
    with pytest.raises(Refused, match="asks for -3 and 1"):
        read(path, columns=(-3, 1))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object with the keys words and labels"),
        ('{"words": ["a"]}', "the key 'labels' is missing; it has: words"),
        ('{"words": "a", "labels": ["A"]}', "the key 'words' is not a list"),
        ('{"words": [null], "labels": ["A"]}', "the key 'words' has 'None', which is not a text"),
        ('{"words": ["a"], "labels": [true]}', "the key 'labels' has 'True', which is not a text"),
        ('{"words": ["a", "b"], "labels": ["A"]}', "2 words and 1 label; every word needs one"),
        ('{"words": ["a"], "labels": [" "]}', "a word without a label"),
        ('{"words": [""], "labels": ["A"]}', "a blank word"),
        ('{"words": ["a\\tb"], "labels": ["A"]}', "has a tab"),
        ('{"words": ["\\ud800"], "labels": ["A"]}', "surrogate"),
    ],
)
def test_bad_json_names_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = file(tmp_path, '{"words": ["a"], "labels": ["A"]}\n' + line + "\n", "a.jsonl")
    with pytest.raises(Refused, match=rf"a\.jsonl:2: .*{told}"):
        read(path)


def test_a_label_not_seen_in_training_is_refused_with_its_line(tmp_path: Path) -> None:
    files = TaggedFiles(conll=file(tmp_path, "a NOUN\n\nb VERB\nc NUON\n"))
    says = (
        r"a.conll:4: the label 'NUON' never occurs .*, which has NOUN, VERB; did you mean NOUN\?$"
    )
    with pytest.raises(Refused, match=says):
        list(read_tagged(files, labels=("NOUN", "VERB")))
    report = TaggedReport()
    wanted = read_tagged(files, labels=("NOUN", "VERB"), only=lambda text: True, report=report)
    assert [sentence.text for sentence in wanted] == ["a"]
    assert report.dropped == {"with a label of no training sentence": 1}


def test_the_text_decides_what_is_held_out(tmp_path: Path) -> None:
    lines = "".join(f"word{n} A\nx B\n\n" for n in range(300))
    files, held = TaggedFiles(conll=file(tmp_path, lines)), HeldOut(valid=0.1, test=0.1)
    parts = [list(read_tagged(files, only=held.only(part))) for part in ("train", "valid", "test")]
    assert sum(map(len, parts)) == 300
    assert 200 < len(parts[0]) < 280
    assert not {*parts[1]} & {*parts[2]}


def test_labels_are_in_the_order_of_letters_and_must_differ() -> None:
    assert tag_set([CAT, GO]) == ("DET", "NOUN", "PUNCT", "VERB")
    with pytest.raises(Refused, match=r"every word has the label 'O': .* data\.train\.columns"):
        tag_set([Tagged(("a", "b"), ("O", "O"))])
    words = tuple(f"w{n}" for n in range(30))
    with pytest.raises(Refused, match="30 words have 30 different labels, such as w0, w1, "):
        tag_set([Tagged(words, words)])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"conll": "a", "tsv": "b"},
        {"jsonl": "a", "columns": (0, 1)},
        {"conll": "a", "columns": (1, 1)},
        {"jsonl": "a", "keys": ("x", "x")},
        {"path": "a.csv"},
        {"conll": "a", "column": 1},
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TaggedFiles.model_validate(settings)


def test_paths_are_relative_to_a_folder(tmp_path: Path) -> None:
    files = TaggedFiles.model_validate({"path": "a.conllu", "columns": (1, 4)}).under(tmp_path)
    assert (files.path, files.places) == (tmp_path / "a.conllu", (1, 4))
    assert str(files.under(Path("/elsewhere"))) == str(tmp_path / "a.conllu")


letters = st.text("ab#-é", min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(letters, letters), min_size=1, max_size=4), min_size=1))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    first = [("first", "X")]  # a number sign before it would begin a comment
    text = "\n".join("".join(f"{w}\t{t}\n" for w, t in each) for each in (first, *sentences))
    report = TaggedReport()
    files = TaggedFiles(tsv=file(tmp_path_factory.mktemp("t"), text))
    found = list(read_tagged(files, report=report))
    expected = [Tagged(*zip(*each, strict=True)) for each in (first, *sentences)]
    assert found == expected
    assert report.read == report.kept == len(expected)
    assert report.words == sum(len(sentence.words) for sentence in expected)
