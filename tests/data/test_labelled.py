"""Labelled texts: columns by number or name; labels not seen in training are refused."""

import csv
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.labelled import (
    Labelled,
    LabelledFiles,
    TextReport,
    choice,
    label_set,
    read_labelled,
)
from heed.errors import Refused


def file(tmp_path, text, name="a.tsv"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_a_table_has_its_label_first_by_default(tmp_path):
    path = file(tmp_path, "1\tgood film\r\n0\tbad\u2028film\n")
    assert list(read_labelled(LabelledFiles(tsv=path))) == [
        Labelled("good film", "1"),
        Labelled("bad\u2028film", "0"),  # not the end of a line
    ]
    turned = LabelledFiles(tsv=path, text=0, label=1)
    assert next(read_labelled(turned)) == Labelled("1", "good film")


def test_names_are_found_in_the_first_line(tmp_path):
    path = file(tmp_path, "id\tsentence\tlabel\n7\ta b\tpos\n")
    files = LabelledFiles(tsv=path, text="sentence")
    assert list(read_labelled(files)) == [Labelled("a b", "pos")]
    with pytest.raises(Refused, match=r"a\.tsv:1: .*no column 'text'; it has: id, sentence, label"):
        list(read_labelled(LabelledFiles(tsv=path, label="label")))
    twice = file(tmp_path, "text\ttext\tlabel\n", "b.tsv")
    with pytest.raises(Refused, match="more than one column 'text'"):
        list(read_labelled(LabelledFiles(tsv=twice, text="text")))


def test_csv_supports_quotes_over_several_lines_and_gzip(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b'label,text\npos,"a, ""b""\nc"\nneg,d\n'))
    files = LabelledFiles(csv=path, text="text")
    assert list(read_labelled(files)) == [Labelled('a, "b"\nc', "pos"), Labelled("d", "neg")]
    with pytest.raises(Refused, match=r"a\.csv:4: the label 'neg' never occurs"):
        list(read_labelled(files, labels={"pos": "pos"}))
    broken = file(tmp_path, 'x,"a"b\n', "b.csv")
    with pytest.raises(Refused, match=r"b\.csv:1: not CSV"):
        list(read_labelled(LabelledFiles(csv=broken)))
    open_ended = file(tmp_path, 'x,"' + "a\n" * 200_000, "c.csv")
    with pytest.raises(Refused, match="not CSV"):  # not the whole file in one cell
        list(read_labelled(LabelledFiles(csv=open_ended)))


def test_json_labels_may_be_numbers(tmp_path):
    lines = (
        '{"text": "a", "label": 1}\n\n{"text": "b", "label": "x"}\n{"text": "c", "label": true}\n'
    )
    lines += '{"text": "d", "label": null}\n'
    report = TextReport()
    files = LabelledFiles(jsonl=file(tmp_path, lines, "a.jsonl"))
    assert [row.label for row in read_labelled(files, report=report)] == ["1", "x", "true"]
    assert report.dropped == {"blank text": 1, "without a label": 1}
    assert str(report).startswith("5 texts read = 3 kept + 2 dropped")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        (
            '{"label": 1}',
            "'text' is missing; it has: label; choose with --text KEY --label KEY$",
        ),
        ("{}", "'text' is missing; it has: nothing"),
        ('{"text": 3, "label": 1}', "'text' is not a text"),
        ('{"text": "a"}', "'label' is missing"),
        ('{"text": "a", "label": [1]}', "'label' is not a label"),
        ('{"text": "\\ud800", "label": 1}', "surrogate"),
        ('{"text": "a", "label": "\\ud800"}', "surrogate"),
        ('{"text": "a", "label": ' + "1" * 300 + "}", "300 characters"),
        ('{"text": "a", "label": ' + "1" * 9999 + "}", "not JSON"),
        ('{"text": "a", "label": 1, "text": "b"}', "'text' occurs twice"),
        ('{"text": "a", "label": 1, "label": 1}', "'label' occurs twice"),
        ('{"text": "a", "label": 1, "more": {"x": 1, "x": 2}}', "'x' occurs twice"),
        ('{"text": "a", "label": "x\\ty"}', r"label 'x\\ty' .*control character"),
        ('{"text": "a", "label": "x\\ny"}', "control character"),
        ('{"text": "a", "label": "x\\u001by"}', "control character"),
        ('{"text": "a", "label": "x\\u2028y"}', "control character"),
    ],
)
def test_invalid_labelled_json_is_refused(tmp_path, line, message):
    path = file(tmp_path, '{"text": "a", "label": 1}\n' + line + "\n", "a.jsonl")
    with pytest.raises(Refused, match=rf"a\.jsonl:2: .*{message}"):
        list(read_labelled(LabelledFiles(jsonl=path)))


def test_csv_labels_are_in_one_line(tmp_path):
    path = file(tmp_path, 'pos,a\n"ne\ng",b\n', "a.csv")
    with pytest.raises(Refused, match=r"a\.csv:3: the label 'ne\\ng' .*control character"):
        list(read_labelled(LabelledFiles(csv=path)))
    path = file(tmp_path, "sehr gut\ta\n好\u3000的\tb\n x \tc\n")
    assert [row.label for row in read_labelled(LabelledFiles(tsv=path))] == [
        "sehr gut",
        "好\u3000的",
        "x",
    ]


def test_a_long_text_is_dropped_and_counted_in_every_format(tmp_path):
    limit = csv.field_size_limit()
    long = "a" * 140_000
    tsv = file(tmp_path, f"1\t{long}\n0\tok\n")
    comma = file(tmp_path, f'1,"{long}"\n0,ok\n', "a.csv")
    for files in (LabelledFiles(tsv=tsv), LabelledFiles(csv=comma)):
        report = TextReport()
        for row in read_labelled(files, report=report):
            assert row == Labelled("ok", "0")
            assert csv.field_size_limit() == limit  # the limit is global
        assert report.dropped == {"too long": 1}
    more = list(read_labelled(LabelledFiles(csv=comma), longest_characters=150_000))
    assert len(more[0].text) == 140_000


def test_a_quote_that_never_ends_is_not_read_into_memory(tmp_path):
    limit = csv.field_size_limit()
    path = file(tmp_path, 'x,"' + ("a" * 1000 + "\n") * 9000, "a.csv")
    with pytest.raises(Refused, match=r"a\.csv:8\d\d\d: not CSV \(field larger"):
        list(read_labelled(LabelledFiles(csv=path)))
    assert csv.field_size_limit() == limit


def test_a_label_not_seen_in_training_is_refused_with_its_line(tmp_path):
    path = file(tmp_path, "pos\ta\nposs\tb\n")
    says = r"a\.tsv:2: the label 'poss' never occurs .*, which has neg, pos; did you mean pos\?$"
    with pytest.raises(Refused, match=says):
        list(read_labelled(LabelledFiles(tsv=path), labels={"neg": "neg", "pos": "pos"}))


@pytest.mark.parametrize(
    ("label", "has"),
    [
        ("7", "0 (negative), 1 (positive)"),
        ("positiv", "0 (negative), 1 (positive); did you mean 1 (positive)?"),
        ("zebra", "0 (negative), 1 (positive)"),
    ],
)
def test_each_label_is_reported_once_with_its_name(tmp_path, label, has):
    """Whether files may have names beside labels, as for evaluation, or labels only."""
    path = file(tmp_path, f"\n{label}\ta\n")
    codes = {"0": "negative", "1": "positive"}
    for labels in (codes, {name: name for name in codes.values()} | codes):
        with pytest.raises(Refused) as told:
            list(read_labelled(LabelledFiles(tsv=path), labels=labels))
        assert str(told.value).endswith(f"training data, which has {has}")


def test_of_many_labels_a_few_are_reported(tmp_path):
    labels = {f"label {n}": f"label {n}" for n in range(30)}
    with pytest.raises(Refused, match=r"has label 0, .*, label 9 and more$"):
        list(read_labelled(LabelledFiles(tsv=file(tmp_path, "\n?\ta\n")), labels=labels))
    with pytest.raises(Refused, match=r"has label 0, .* and more; did you mean label 27\?$"):
        list(read_labelled(LabelledFiles(tsv=file(tmp_path, "\nlable 27\ta\n")), labels=labels))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_first_line_with_the_names_of_text_and_label_is_a_header(tmp_path, name):
    part = "\t" if name == "a.tsv" else ","
    lines = f"text{part}id{part}label\ngood{part}7{part}pos\n"
    files = LabelledFiles(**{name[2:]: file(tmp_path, lines, name)})
    assert list(read_labelled(files)) == [Labelled("good", "pos")]
    numbered = files.model_copy(update={"text": 0, "label": 2})
    assert list(read_labelled(numbered)) == [Labelled("good", "pos")]
    others = files.model_copy(update={"text": 1, "label": 2})  # by numbers, it is data
    assert next(read_labelled(others)) == Labelled("id", "label")


@pytest.mark.parametrize(
    "header", ["label, text", "Label,Text", " LABEL ,text", "\ufefflabel,text"]
)
@pytest.mark.parametrize("said", [{}, {"text": 1, "label": 0}, {"text": "text", "label": "label"}])
def test_a_header_may_be_in_capitals_and_spaced(tmp_path, header, said):
    path = file(tmp_path, f"{header}\npos,good\n", "a.csv")
    assert list(read_labelled(LabelledFiles(csv=path, **said))) == [Labelled("good", "pos")]


def test_an_exact_column_name_is_preferred(tmp_path):
    path = file(tmp_path, "Text,text,label\nno,yes,pos\n", "a.csv")
    files = LabelledFiles(csv=path, text="text", label="label")
    assert list(read_labelled(files)) == [Labelled("yes", "pos")]
    with pytest.raises(Refused, match="more than one column 'TEXT'"):
        list(read_labelled(files.model_copy(update={"text": "TEXT"})))


def test_a_first_line_with_a_unique_label_is_noticed(tmp_path):
    def alone(lines, **said):
        report = TextReport()
        list(read_labelled(LabelledFiles(tsv=file(tmp_path, lines), **said), report=report))
        return report.alone

    assert alone("category\tsentence\npos\ta\nneg\tb\npos\tc\n") == "category"
    assert alone("category\tsentence\npos\ta\n", text=1, label=0) == "category"
    assert alone("pos\ta\nneg\tb\npos\tc\n") == ""
    assert alone("\ncategory\tsentence\n") == ""
    assert alone("sentence\tcategory\nc\tpos\n", text="sentence", label="category") == ""


def test_missing_columns_are_reported_with_their_keys(tmp_path):
    options = ("data.valid.text", "data.valid.label")
    cure = r"choose with data\.valid\.text=COLUMN data\.valid\.label=COLUMN$"
    named = LabelledFiles(csv=file(tmp_path, "id,review,stars\n", "a.csv"), text="text")
    with pytest.raises(Refused, match=rf"no column 'text'; it has: id, review, stars; {cure}"):
        list(read_labelled(named, options=options))
    few = LabelledFiles(tsv=file(tmp_path, "good,pos\n"))
    with pytest.raises(Refused, match=rf"1 column separated by tabs \(good,pos\); .*; {cure}"):
        list(read_labelled(few, options=options))
    keys = LabelledFiles(jsonl=file(tmp_path, '{"review": "a"}', "a.jsonl"))
    cure = cure.replace("COLUMN", "KEY")
    with pytest.raises(Refused, match=rf"'text' is missing; it has: review; {cure}"):
        list(read_labelled(keys, options=options))


def test_a_first_line_of_other_names_is_refused_with_a_question(tmp_path):
    lines = "category,sentence\npos,good\n"
    files = LabelledFiles(csv=file(tmp_path, lines, "a.csv"))
    says = r"a\.csv:1: the label 'category' never occurs .*; is line 1 a header\? .* --label"
    with pytest.raises(Refused, match=says):
        list(read_labelled(files, labels={"pos": "pos", "neg": "neg"}))
    named = files.model_copy(update={"text": "sentence", "label": "category"})
    assert list(read_labelled(named, labels={"pos": "pos"})) == [Labelled("good", "pos")]
    odd = LabelledFiles(jsonl=file(tmp_path, '{"text": "a", "label": "b"}', "a.jsonl"))
    with pytest.raises(Refused, match=r"which has pos$"):  # JSON has no header
        list(read_labelled(odd, labels={"pos": "pos"}))


def test_too_few_columns_and_empty_files_are_refused(tmp_path):
    with pytest.raises(Refused, match=r"a\.tsv:1: 1 column separated by tabs .* text in column 1"):
        list(read_labelled(LabelledFiles(tsv=file(tmp_path, "alone\n"))))
    with pytest.raises(Refused, match=r"no text in .* 2 texts read = 0 kept \+ 2 dropped"):
        list(read_labelled(LabelledFiles(tsv=file(tmp_path, "\n1\t \n"))))
    report = TextReport()
    path = file(tmp_path, "1\tlong\n0\tok\n")
    assert len(list(read_labelled(LabelledFiles(tsv=path), longest_characters=3, report=report)))
    assert report.dropped == {"too long": 1}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tsv": "a", "csv": "b"},
        {"jsonl": "a", "text": 0},
        {"tsv": "a", "text": "x", "label": 0},
        {"tsv": "a", "text": 0},  # a label is expected by default
        {"tsv": "a", "columns": 3},
        {"tsv": "a", "text": -1},
    ],
)
def test_contradictory_settings_are_refused(given):
    with pytest.raises(ValidationError):
        LabelledFiles(**given)


def test_labels_are_in_the_order_of_numbers_or_letters():
    assert label_set(["10", "9", "10"]) == ("9", "10")
    assert label_set(["10", "9", "a"]) == ("10", "9", "a")
    with pytest.raises(Refused, match="the label 'x': there is nothing to classify"):
        label_set(["x", "x"])
    with pytest.raises(Refused, match=r"data\.train\.label the right column"):
        label_set(map(str, range(10_001)))


def test_texts_as_labels_are_refused():
    """As where the text comes first, and nobody said so."""
    turned = [f"a film of {n} hours" for n in range(30)]
    says = "30 texts have 30 different labels, such as 'a film of 29 hours'; is data.train.label"
    with pytest.raises(Refused, match=says):
        label_set(turned)
    with pytest.raises(Refused, match="32 texts have 30 different labels"):  # some stand twice
        label_set(turned + turned[:2])
    assert len(label_set(turned[:4])) == 4
    with pytest.raises(Refused, match=r"^5 texts have 5 .*right column\?$"):
        label_set(turned[:5])
    assert len(label_set(turned + turned[:10])) == 30


@pytest.mark.parametrize(
    ("name", "written", "has"),
    [
        ("a.csv", "review;stars\ngood;5\n", r"Line 1 of .*a\.csv has: review, stars; .*COLUMN, by"),
        ("a.tsv", "a film\t5\n", r"Line 1 of .*a\.tsv has: a film, 5; .*COLUMN, by name or by num"),
        (
            "a.jsonl",
            '\n{"id": 1, "x": 2}\n',
            r"Line 2 of .* has: id, x; .* data\.train\.label=KEY$",
        ),
    ],
)
def test_wrong_labels_are_reported_with_what_can_be_chosen(tmp_path, name, written, has):
    files = LabelledFiles.model_validate(file(tmp_path, written, name))
    one = ["5", "5"]
    many = [f"film {n}" for n in range(9)]
    for rows in (one, many):
        with pytest.raises(Refused, match=rf"data\.train\.label the right column\? {has}"):
            label_set(rows, lambda: choice(files, ("data.train.text", "data.train.label")))


def test_held_out_texts_with_a_label_of_no_training_text_are_dropped(tmp_path):
    """They are of the training file itself; of another file, they are refused."""
    files = LabelledFiles(tsv=file(tmp_path, "pos\tgood\nrare\todd\nneg\tbad\n"))
    labels = {"pos": "pos", "neg": "neg"}
    report = TextReport()
    rows = list(read_labelled(files, labels=labels, only=lambda text: True, report=report))
    assert rows == [Labelled("good", "pos"), Labelled("bad", "neg")]
    assert str(report).endswith(
        "3 texts read = 2 kept + 1 dropped (1 with a label of no training text)"
    )
    with pytest.raises(Refused, match=r":2: the label 'rare' never occurs"):
        list(read_labelled(files, labels=labels))


def test_an_unknown_label_is_reported_with_the_beginnings_of_long_ones(tmp_path):
    files = LabelledFiles(tsv=file(tmp_path, "pos\tgood\n"))
    with pytest.raises(Refused, match=rf"which has {'x' * 40}, neg; is"):
        list(read_labelled(files, labels={"x" * 90: "x" * 90, "neg": "neg"}))


def test_paths_are_relative_to_a_folder(tmp_path):
    files = LabelledFiles(csv="a.csv", text="t")
    moved = files.under(tmp_path)
    assert moved.path == tmp_path / "a.csv"
    assert (str(moved), moved.columns) == (str(tmp_path / "a.csv"), ("t", "label"))


texts = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\t\n\r\0"), max_size=8
)
labels = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(labels, texts), min_size=1, max_size=8))
def test_read_is_kept_plus_dropped(tmp_path_factory, rows):
    lines = "".join(f"{label}\t{text}\n" for label, text in rows)
    path = file(tmp_path_factory.mktemp("rows"), "x\tfirst\n" + lines)
    report = TextReport()
    found = list(read_labelled(LabelledFiles(tsv=path), report=report))
    assert report.read == len(rows) + 1 == report.kept + sum(report.dropped.values())
    assert len(found) == report.kept
    assert all(row.label and row.text.strip() for row in found)
