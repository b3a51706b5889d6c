"""Translation: where its pairs come from, and how translations are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heed.answers.form import Example
from heed.data.held_out import side
from heed.data.pairs import Files, Links, Report
from heed.data.tokenise import EOS
from heed.errors import Refused
from heed.events import finish
from heed.running.recipe import resolve
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Codec, Start
from heed.tasks.translate import TASK, Data, Grammar, PairReport, files_of, from_files
from tests.running.small import small

DRAWN = Data(grammar=Grammar(pairs=300, shortest=3, longest=7, beyond=11, held_out=40))
HERE = Path()


def drawn(part: str, data: Data = DRAWN) -> list[Example]:
    report = PairReport()
    found = list(TASK.examples(data, part, HERE, report))
    assert (report.read, report.kept, report.dropped) == (len(found), len(found), {})
    return found


def test_parts_of_the_grammar_have_their_sizes_and_are_disjoint() -> None:
    train, valid, test, far = (drawn(part) for part in ("train", "valid", "test", "long"))
    assert [len(part) for part in (train, valid, test, far)] == [300, 40, 40, 40]
    sources = [{pair.inputs[0] for pair in part} for part in (train, valid, test, far)]
    for i, some in enumerate(sources):
        assert not any(some & other for other in sources[:i])
    for part, low, high in ((train, 3, 7), (valid, 3, 7), (test, 3, 7), (far, 8, 11)):
        lengths = {len(pair.inputs[0].split()) for pair in part}
        assert low <= min(lengths) <= max(lengths) <= high
    assert max(len(pair.inputs[0].split()) for pair in far) > 8


def test_links_of_the_grammar_point_at_existing_words() -> None:
    for pair in drawn("test"):
        assert pair.gold is not None
        assert pair.gold.sure == pair.gold.possible != frozenset()
        sizes = len(pair.inputs[0].split()), len(pair.answer.split())
        assert all(i < sizes[0] and j < sizes[1] for i, j in pair.gold.sure)


def test_the_seed_determines_the_pairs() -> None:
    other = Data(grammar=DRAWN.grammar and DRAWN.grammar.model_copy(update={"seed": 1}))
    assert drawn("train") == drawn("train") != drawn("train", other)


def test_files_are_found_in_the_folder_and_counted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.tsv").write_text("我\ti\n\n \tx\n你\tyou\n" + "很" * 2001 + "\tvery\n")
    files = Files(tsv=Path("a.tsv"))
    data = Data(folder="mine", train=files, valid=files)
    report = PairReport()
    assert list(TASK.examples(data, "train", tmp_path, report)) == [
        Example(("我",), "i"),
        Example(("你",), "you"),
    ]
    assert (report.read, report.kept) == (5, 2)
    assert report.dropped == {"blank source": 2, "too long": 1}
    with pytest.raises(Refused, match=r"^data\.test is not given"):
        list(TASK.examples(data, "test", tmp_path, PairReport()))


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
    assert TASK.parts(data) == ["valid", "test"]
    found, read, dropped = {}, 0, 0
    for part in ("train", *TASK.parts(data)):
        report = PairReport()
        found[part] = list(TASK.examples(data, part, HERE, report))
        lost = sum(report.dropped.values())
        assert (report.kept, report.read) == (len(found[part]), len(found[part]) + lost)
        read, dropped = read + report.read, dropped + lost
    assert (read, dropped) == (183, 3)
    held = data.held_out
    for part, pairs in found.items():
        assert {side(pair.inputs[0], held) for pair in pairs} == {part}
        assert all((pair.gold is not None) == (kind == "aligned") for pair in pairs)
    assert sorted((a, b) for pairs in found.values() for (a,), b, _ in pairs) == sorted(ROWS)


def test_separate_files_are_taken_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS))
    given = {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "a.tsv"}, "held_out": {"test": 0.2}}
    data = Data.model_validate(given | {"folder": str(tmp_path)})
    parts = ("train", "valid", "test")
    sizes = [len(list(TASK.examples(data, part, HERE, PairReport()))) for part in parts]
    assert sizes[0] + sizes[2] == sizes[1] == len(ROWS)
    assert sizes[2] > 0


def test_an_empty_share_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    given = {"train": {"tsv": "a.tsv"}, "held_out": {"valid": 0.001}, "folder": str(tmp_path)}
    data = Data.model_validate(given)
    with pytest.raises(Refused, match=r"nothing in data\.valid: 0 pairs read.*hold more out"):
        list(TASK.examples(data, "valid", HERE, PairReport()))


def test_a_dropped_pair_takes_its_alignment_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a b\tx y\n\tz\nc\tz w\n")
    (tmp_path / "a.links").write_text("0-1 1?0\n5-5\n0-0\n")
    files = Files(tsv=tmp_path / "a.tsv", alignments=tmp_path / "a.links")
    report = Report()
    assert list(from_files(files, report)) == [
        Example(("a b",), "x y", Links(frozenset({(0, 1)}), frozenset({(0, 1), (1, 0)}))),
        Example(("c",), "z w", Links(frozenset({(0, 0)}), frozenset({(0, 0)}))),
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


def test_files_are_named_by_the_command_line() -> None:
    paths = [Path("a.tsv"), Path("b.jsonl"), Path("c")]
    assert files_of(paths[:1]) == Files(tsv=paths[0])
    assert files_of(paths[1:2], paths[2]) == Files(jsonl=paths[1], alignments=paths[2])
    assert files_of(paths[:2]) == Files(source=paths[0], target=paths[1])
    with pytest.raises(Refused, match="one file of pairs, or source and target; got 3 files"):
        files_of(paths)


def fitted(folder: Path, start: Start | None = None, **tokens: Any) -> Codec:
    raw = small()
    raw["data"]["tokens"] = {"kind": "word", "size": 300, **tokens}
    return finish(TASK.fit(resolve(raw), RunFolder.create(folder), HERE, start))


def test_the_vocabulary_is_one_file_or_two(tmp_path: Path) -> None:
    joint = fitted(tmp_path / "joint", shared=True)
    assert not RunFolder(tmp_path / "joint").target_tokenizer.exists()
    source, target = joint.inputs["source"].pieces, joint.form.target.pieces
    assert source is target
    assert 1 not in source.encode(["我 the"])[0]
    own = fitted(tmp_path / "own")
    source, target = own.inputs["source"].pieces, own.form.target.pieces
    assert (source.decode([4, EOS]), target.encode(["我"])) != ("", source.encode(["我"]))
    assert source.encode(["the"])[0][0] == target.encode(["我"])[0][0] == 1  # unknown there


def test_a_start_lends_its_tokenisers(tmp_path: Path) -> None:
    there = fitted(tmp_path / "there", shared=True)
    RunFolder(tmp_path / "there").write_json(RunFolder(tmp_path / "there").config, {})
    RunFolder(tmp_path / "there").seal()
    start = Start(tmp_path / "there", "translate", {})
    found = fitted(tmp_path / "here", start, kind="character")
    assert found.fingerprint == there.fingerprint
    assert found.inputs["source"].pieces is found.form.target.pieces
