"""Documents and sentences, separated by blank lines or from JSON, kept as contiguous numbers."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.cache import Corpus
from heed.data.documents import (
    DocumentFiles,
    Documents,
    Sentence,
    SentenceReport,
    encode,
    read_sentences,
)
from heed.data.tokenise import Tokeniser
from heed.errors import Refused


def file(tmp_path, text, name="a.txt"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_lines_are_sentences_and_blank_lines_separate_documents(tmp_path):
    path = file(tmp_path, "\none \r\ntwo\n \t\n\nthree\n")
    report = SentenceReport()
    found = list(read_sentences(DocumentFiles(text=path), report=report))
    assert found == [Sentence("one", True), Sentence("two", False), Sentence("three", True)]
    assert str(report) == "3 sentences read = 3 kept + 0 dropped; 2 documents"


def test_each_file_begins_a_document(tmp_path):
    paths = [file(tmp_path, "a\nb", "1.txt"), file(tmp_path, "c\n", "2.txt")]
    found = list(read_sentences(DocumentFiles(text=paths)))
    assert [(s.text, s.opens) for s in found] == [("a", True), ("b", False), ("c", True)]


def test_sources_of_several_formats_are_one_corpus_counted_by_file(tmp_path):
    plain = DocumentFiles(text=file(tmp_path, "a\nb\n\nc"))
    table = file(tmp_path, "0\td\n1\t \n0\tee. much too long\n1\tf\n", "b.tsv")
    apart = DocumentFiles(text=table, column=1, lines="apart", sentences="marks")
    lines = DocumentFiles(jsonl=file(tmp_path, '{"s": ["g", "h"]}\n', "c.jsonl"), key="s")
    report = SentenceReport()
    told = {"longest_characters": 5, "report": report}
    found = list(read_sentences([plain, apart, lines], **told))
    opened = [s.text for s in found if s.opens]
    assert [s.text for s in found] == ["a", "b", "c", "d", "ee.", "f", "g", "h"]
    assert opened == ["a", "c", "d", "ee.", "f", "g"]
    counted = [(own.read, own.kept, own.dropped, own.documents) for _, own in report.files]
    assert counted == [(3, 3, {}, 2), (4, 3, {"too long": 1}, 3), (2, 2, {}, 1)]
    *_, together = report.told("text")
    assert together == (
        "text, together: 9 sentences read = 8 kept + 1 dropped (1 too long); 6 documents"
    )
    with pytest.raises(ValidationError, match="lines of JSON are documents"):
        DocumentFiles(jsonl="a", lines="apart")


def test_a_document_without_its_first_sentence_begins_with_its_second(tmp_path):
    path = file(tmp_path, "a\n\nmuch too long\nb\nc\n")
    report = SentenceReport()
    found = list(read_sentences(DocumentFiles(text=path), longest_characters=5, report=report))
    assert [(s.text, s.opens) for s in found] == [("a", True), ("b", True), ("c", False)]
    assert (report.read, report.kept, report.dropped) == (4, 3, {"too long": 1})


def test_text_is_joined_over_lines_and_cut_at_marks(tmp_path):
    path = file(tmp_path, "Dr. No said: \u201cgo\naway!\u201d He did. It\nwas 3.5 p.m.\n\nNo mark")
    files = DocumentFiles(text=path, sentences="marks")
    assert [s.text for s in read_sentences(files)] == [
        "Dr. No said: \u201cgo away!\u201d",
        "He did.",
        "It was 3.5 p.m.",
        "No mark",
    ]


def test_a_column_of_a_table_is_text(tmp_path):
    path = file(tmp_path, "1\ta b\n\n0\tc\tx\n")
    found = list(read_sentences(DocumentFiles(text=path, column=1)))
    assert [(s.text, s.opens) for s in found] == [("a b", True), ("c", True)]
    with pytest.raises(Refused, match=r"a\.txt:1: 2 columns, and `column` is 2"):
        list(read_sentences(DocumentFiles(text=path, column=2)))
    with pytest.raises(ValidationError, match="a column needs text files"):
        DocumentFiles(jsonl="a", column=1)


def test_json_documents_are_texts_or_lists(tmp_path):
    lines = '{"body": ["a b.", " ", "c"]}\n\n{"body": "d\\ne"}\n{"body": []}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(lines.encode()))
    found = list(read_sentences(DocumentFiles(jsonl=path, key="body")))
    assert [(s.text, s.opens) for s in found] == [
        ("a b.", True),
        ("c", False),
        ("d", True),
        ("e", False),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "not JSON"),
        ("3", "not a JSON object with the key 'text'"),
        ('{"body": "a"}', "the key 'text'; it has body"),
        ('{"text": [3]}', "neither a text nor a list"),
        ('{"text": {"a": 1}}', "neither a text nor a list"),
        ('{"text": ["\\ud800"]}', "surrogate"),
    ],
)
def test_invalid_json_documents_are_refused(tmp_path, line, message):
    path = file(tmp_path, '{"text": "a"}\n' + line + "\n", "a.jsonl")
    with pytest.raises(Refused, match=rf"a\.jsonl:2: .*{message}"):
        list(read_sentences(DocumentFiles(jsonl=path)))


def test_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(Refused, match="there is no document in"):
        list(read_sentences(DocumentFiles(text=file(tmp_path, "\n \n"))))
    with pytest.raises(Refused, match="cannot read"):
        list(read_sentences(DocumentFiles(text=tmp_path / "missing")))
    for wrong in ({}, {"text": "a", "jsonl": "b"}, {"text": []}, {"txt": "a"}):
        with pytest.raises(ValidationError):
            DocumentFiles(**wrong)


def test_the_numbers_of_a_document_are_contiguous(tmp_path):
    sentences = [Sentence("a b", True), Sentence("c", False), Sentence("b", True)]
    tokeniser = Tokeniser.train("word", [s.text for s in sentences], 20)
    assert list(encode(tmp_path, "train", sentences, tokeniser, chunk=2)) == [2, 3]
    documents = Documents(Corpus.open(tmp_path, "train", tokeniser.fingerprint))
    assert len(documents) == 2
    assert tokeniser.spelt(documents.stream) == [" a", " b", " c", " b"]  # without ends
    assert documents.offsets.tolist() == [0, 2, 3, 4]
    assert documents.documents.tolist() == [0, 2, 3]
    assert documents.borders.tolist() == [0, 3, 4]


def test_a_cache_without_documents_is_refused():
    with pytest.raises(Refused, match="holds no documents"):
        Documents(Corpus.of({"text": [[1]]}))
    with pytest.raises(Refused, match="without a document"):
        Documents(Corpus.of({"text": [[4]], "opens": [[0]]}))


words = st.text("abc", min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(words, max_size=5), max_size=6))
def test_read_is_kept_plus_dropped_and_documents_are_restored(tmp_path_factory, documents):
    text = "x\n\n" + "\n\n".join("\n".join(document) for document in documents)
    path = file(tmp_path_factory.mktemp("documents"), text)
    report = SentenceReport()
    files = DocumentFiles(text=path)
    found = list(read_sentences(files, longest_characters=2, report=report))
    documents = [["x"], *documents]
    kept = [[w for w in document if len(w) <= 2] for document in documents]
    again: list[list[str]] = []
    for sentence in found:
        again = [*again, []] if sentence.opens else again
        again[-1].append(sentence.text)
    assert again == [document for document in kept if document]
    assert report.read == report.kept + sum(report.dropped.values())
    assert report.documents == len(again)


def test_documents_in_memory_are_the_same():
    documents = Documents.of([[[5, 6], [7]], [[8]]])
    assert documents.stream.tolist() == [5, 6, 7, 8]
    assert documents.borders.tolist() == [0, 3, 4]
    assert np.diff(documents.documents).tolist() == [2, 1]
