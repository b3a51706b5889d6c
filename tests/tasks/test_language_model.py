"""Text cut into parts, settings that suit it, and scores by hand."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic import ValidationError

from heed.answers.continuation import Continuation
from heed.answers.form import Example
from heed.data.borrowed import marks_of
from heed.data.kinds.text import RawText
from heed.data.raw_texts import DocumentReport, Piece
from heed.data.tokenise import EOS
from heed.data.verbatim import Verbatim
from heed.errors import Refused
from heed.events import finish
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.storage.run_folder import RunFolder
from heed.tasks.language_model import TASK, Data, LanguageRecipe, build, places, texts
from heed.tasks.task import Codec


def joined(pieces: Iterable[Piece]) -> list[str]:
    examples = (Example((text,), opens) for text, opens in pieces)
    return [text for (text,), *_ in TASK.joined(examples)]


def parted(data: Data, root: Path) -> dict[str, list[str]]:
    return {part: joined(found.pieces()) for part, found in texts(data, root).items()}


def test_the_end_of_one_file_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "a.txt").write_text(text)
    parts = parted(Data(train="a.txt"), tmp_path)
    assert parts == {"train": [text[:711]], "valid": [text[711:]]}  # int(0.9 · 790)
    parts = parted(Data(folder=str(tmp_path), train="a.txt", held_out=0.5), Path("/"))
    assert parts["train"][0] + parts["valid"][0] == text


def test_of_several_files_the_end_of_the_last_is_held_out(tmp_path: Path) -> None:
    for name, size in (("a", 80), ("b", 20)):
        (tmp_path / name).write_text(name * (size - 1) + "\n")
    parts = parted(Data(train=["a", "b"], held_out=0.05), tmp_path)
    assert [len(each) for each in (*parts["train"], *parts["valid"])] == [80, 15, 5]
    parts = parted(Data(train=["a", "b"], held_out=0.5), tmp_path)
    assert [len(each) for each in (*parts["train"], *parts["valid"])] == [80, 10, 10]


def test_parts_from_separate_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    parts = parted(Data(train=["a"], valid="b", test=["c", "a"]), tmp_path)
    assert parts == {"train": ["a\n"], "valid": ["b\n"], "test": ["c\n", "a\n"]}
    with pytest.raises(ValidationError, match="names a file twice"):
        Data(train=["a", "a"])
    with pytest.raises(Refused, match="cannot read"):
        parted(Data(train="none"), tmp_path)


def test_the_vocabulary_is_made_from_the_training_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ab")
    (tmp_path / "b").write_text("c")
    for n, (data, size) in enumerate(
        ((Data(train="a"), 2), (Data(train=["b", "a"], valid="a"), 4))
    ):
        recipe = LanguageRecipe(
            task="language-model",
            data=data,
            model=RecurrentLanguageSettings(),
            training={"steps": 1},
        )
        folder = RunFolder.create(tmp_path / str(n), overwrite=False)
        codec = finish(TASK.fit(recipe, folder, tmp_path, None))
        assert codec.inputs["text"].size == 4 + size


def test_documents_are_one_stream_with_ends_between_them(tmp_path: Path) -> None:
    """However many pieces a document is kept in; its text comes back whole."""
    (tmp_path / "a.tsv").write_text("ab\nc\n\nd\n")
    data = Data(
        train={"text": "a.tsv", "lines": "apart"}, valid={"text": "a.tsv", "lines": "apart"}
    )
    pieces = Verbatim.train("character", ["abcd\n"])
    codec = Codec({"text": RawText(pieces)}, Continuation(marks_of(pieces), context=2))
    report = DocumentReport()
    examples = list(TASK.examples(data, "train", tmp_path, report, codec))
    stream = [i for row in TASK.rows(codec, examples)["text"] for i in row]
    assert stream.count(EOS) == 2
    assert [pieces.decode(part) for part in (stream[:3], stream[4:6], stream[7:])] == [
        "ab\n",
        "c\n",
        "d\n",
    ]
    cut = [
        Example((text[i : i + 1],), i == 0) for (text,), *_ in examples for i in range(len(text))
    ]
    kept = (codec.of_data(codec.as_data(each)) for each in cut)
    assert [text for (text,), *_ in TASK.joined(kept)] == ["ab\n", "c\n", "d\n"]
    with pytest.raises(ValueError):  # noqa: PT011
        codec.of_data({"text": "", "opens": True})


def test_unknown_symbols_of_text_to_judge_by_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ab☃☃")
    data = Data(train="a", valid="a")
    pieces = Verbatim.train("character", ["ab\n"])
    codec = Codec({"text": RawText(pieces)}, Continuation(marks_of(pieces), context=2))
    for part, unknown in (("train", 0), ("valid", 2)):
        report = DocumentReport()
        assert len(list(TASK.examples(data, part, tmp_path, report, codec))) == 1
        assert report.unknown == unknown
    (told,) = TASK.report_lines("valid", report, codec, 0)
    assert told.endswith("5 characters; 2 symbols of it are unknown")


def test_excerpts_are_the_openings_of_texts() -> None:
    pieces = Verbatim.train("character", ["abc"])
    codec = Codec({"text": RawText(pieces)}, Continuation(marks_of(pieces), context=2))
    long = [Example(("abc" * 100,), True)]
    found = [text for (text,), *_ in TASK.excerpts(codec, long, 2)]
    assert (len(found), "".join(found)) == (2, ("abc" * 100)[:64])
    several = [Example((text,), True) for text in ("a", "bb", "ccc")]
    assert [text for (text,), *_ in TASK.excerpts(codec, several, 2)] == ["a", "bb"]


def test_tables_and_json_lines_are_read_as_one_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.tsv").write_text("0\tthree\n1\t \n0\tfour\n")
    (tmp_path / "c.jsonl").write_text('{"s": ["five", "six"]}\n{"s": ""}\n{"s": "seven\\n"}\n')
    table = {"text": "b.tsv", "column": 1}
    lines = {"jsonl": "c.jsonl", "key": "s"}
    data = Data(train=["a.txt", {**table, "lines": "apart"}, lines], valid=[table], test=lines)
    found, report = texts(data, tmp_path), DocumentReport()
    train = joined(found["train"].pieces(report))
    assert train == ["one\n\ntwo\n", "three\n", "four\n", "five\nsix\n", "seven\n"]
    assert joined(found["valid"].pieces()) == ["three\n \nfour\n"]
    assert list(report.told("text")) == [
        "text, a.txt: 1 document read = 1 kept + 0 dropped; 9 characters",
        "text, b.tsv: 3 documents read = 2 kept + 1 dropped (1 blank); 11 characters",
        "text, c.jsonl: 3 documents read = 2 kept + 1 dropped (1 blank); 15 characters",
        "text, together: 7 documents read = 5 kept + 2 dropped (2 blank); 35 characters",
    ]


@pytest.mark.parametrize(
    ("share", "valid"), [(0.01, ["dd\n"]), (0.3, ["dd\n"]), (0.5, ["c\n", "dd\n"])]
)
def test_documents_are_held_out_whole(tmp_path: Path, share: float, valid: list[str]) -> None:
    (tmp_path / "a.tsv").write_text("aaa\nb\nc\n\ndd\n\n")
    parts = parted(Data(train={"text": "a.tsv", "lines": "apart"}, held_out=share), tmp_path)
    assert parts["train"] + parts["valid"] == ["aaa\n", "b\n", "c\n", "dd\n"]
    assert parts["valid"] == valid


def test_settings_that_do_not_suit_the_text_are_refused() -> None:
    gpt = GPT2Settings(layers=1, width=8, heads=2, longest=16)
    assert build(gpt, symbols=9, context=16).words.table.weight.shape == (9, 8)
    assert (places(gpt), places(RecurrentLanguageSettings())) == (16, None)
    for settings, message in (
        (gpt, r"set model.longest=17"),
        (gpt.model_copy(update={"symbols": 7}), "the vocabulary has 9"),
        (gpt.model_copy(update={"head": "none"}), "head 'language'"),
        (RecurrentLanguageSettings(tied=True, embedding=3, hidden=4), "must agree"),
    ):
        with pytest.raises(Refused, match=message):
            build(settings, symbols=9, context=17)
