"""From pairs to training data: written once, counted, and read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heed.answers.form import Example
from heed.data import cache
from heed.data.pairs import Links
from heed.errors import Refused
from heed.events import Note, finish
from heed.running import preparing
from heed.running.preparing import cached, kept, prepare
from heed.running.recipe import resolve
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Prepared
from heed.tasks.translate import TASK
from heed.tasks.translate import TranslateRecipe as Recipe
from tests.running.small import small

LINES = ["a b\tx", "c c c c c c\ty", "\tz", "d\tx y x y x y", "a\ty x", "b d\t "]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Six pairs; two have a blank side, two have seven symbols, two too many."""
    (tmp_path / "data/mine").mkdir(parents=True)
    (tmp_path / "data/mine/train.tsv").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "data/mine/valid.tsv").write_text("a b c d a b c\tx y\n\tz\nd\ty\n")
    (tmp_path / "data/mine/valid.links").write_text("0-0 1?1\n\n0-0\n")
    monkeypatch.setenv("HEED_DATA", str(tmp_path / "data"))
    return resolve(from_files())


def from_files(**data: Any) -> dict[str, Any]:
    return small() | {
        "data": {
            "folder": "mine",
            "train": {"tsv": "train.tsv"},
            "valid": {"tsv": "valid.tsv", "alignments": "valid.links"},
            "tokens": {"kind": "word", "size": 50},
            "longest": 5,
        }
        | data
    }


def prepared(recipe: Recipe, folder: RunFolder) -> tuple[Prepared, list[str]]:
    notes: list[str] = []
    work = prepare(TASK, recipe, folder)
    while True:
        try:
            event = next(work)
        except StopIteration as done:
            return done.value, notes
        notes += [event.text] if isinstance(event, Note) else []


def test_a_first_line_that_names_languages_is_reported_once(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "data/mine/train.tsv"
    path.write_text("English\tChinese\n" + path.read_text())
    _, notes = prepared(recipe, RunFolder.create(tmp_path / "run"))
    told = [note for note in notes if "first line" in note]
    assert told == [
        "train.tsv:1: the first line, 'English, Chinese', is read as a pair; if it is a header, "
        "delete it"
    ]


def test_pairs_are_tokenised_and_dropped_ones_are_counted(recipe: Recipe, tmp_path: Path) -> None:
    found, notes = prepared(recipe, RunFolder.create(tmp_path / "run"))
    assert notes == [
        "training pairs: 6 pairs read = 2 kept + 4 dropped "
        "(1 blank source, 1 blank target, 2 too long)",
        "valid pairs: 3 pairs read = 2 kept + 1 dropped (1 blank source)",
    ]
    rows = [
        (
            found.codec.inputs["source"].pieces.decode(found.train[i]["source"].tolist()),
            found.codec.form.target.pieces.decode(found.train[i]["target"].tolist()),
        )
        for i in range(len(found.train))
    ]
    assert rows == [("a b", "x"), ("a", "y x")]
    assert json.loads((tmp_path / "run/cache/ready.json").read_text()) == {"pairs": 2}


def test_a_cache_with_a_number_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """9 is the last of ten symbols; an embedding of nine has no row for it."""
    folder = RunFolder.create(tmp_path / "run")
    cache.write(folder.cache, "train", {"source": [[4, 9], [3]]}, fingerprint="mark")
    assert len(cached(folder, "mark", {"source": 10})) == 2
    for sizes in ({"source": 9}, {"target": 10}, {"source": 10, "target": 10}):
        with pytest.raises(Refused, match="does not fit the tokenisers; start again: --overwrite"):
            cached(folder, "mark", sizes)


def test_examples_are_read_back_with_their_possible_links(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    found, _ = prepared(recipe, folder)
    expected = [
        Example(("a b c d a b c",), "x y", Links(frozenset({(0, 0)}), frozenset({(0, 0), (1, 1)}))),
        Example(("d",), "y", Links(frozenset({(0, 0)}), frozenset({(0, 0)}))),
    ]
    assert found.valid == expected  # the long one is test data


def test_examples_without_links_are_read_back(recipe: Recipe, tmp_path: Path) -> None:
    plain = resolve(from_files(valid={"tsv": "valid.tsv"}, test={"tsv": "train.tsv"}))
    folder = RunFolder.create(tmp_path / "run")
    found, _ = prepared(plain, folder)
    assert [pair.gold for pair in found.valid] == [None, None]
    assert len(list(kept(folder, "test", found.codec.of_data))) == 4


def test_the_second_time_nothing_is_read(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    first, _ = prepared(recipe, folder)
    for path in (tmp_path / "data/mine").iterdir():
        path.unlink()
    monkeypatch.setattr(preparing, "_write", None)
    second, notes = prepared(recipe, folder)
    assert notes == []
    assert second.valid == first.valid
    assert second.codec.fingerprint == first.codec.fingerprint
    assert [second.train[i]["source"].tolist() for i in range(2)] == [
        first.train[i]["source"].tolist() for i in range(2)
    ]


def test_an_interrupted_preparation_is_started_again(recipe: Recipe, tmp_path: Path) -> None:
    """The mark of a complete cache is written last."""
    folder = RunFolder.create(tmp_path / "run")
    work = prepare(TASK, recipe, folder)
    while not isinstance(next(work), Note):
        pass
    work.close()
    assert not (folder.cache / "ready.json").exists()
    assert len(finish(prepare(TASK, recipe, folder)).train) == 2


def test_a_run_that_lost_its_cache_says_so(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    finish(prepare(TASK, recipe, folder))
    folder.write_json(folder.config, {})
    (folder.cache / "ready.json").unlink()
    with pytest.raises(Refused, match="has lost its cache; start again: --overwrite"):
        finish(prepare(TASK, recipe, folder))


def test_a_cache_of_other_tokenisers_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    folder, other = (RunFolder.create(tmp_path / name) for name in ("run", "other"))
    finish(prepare(TASK, recipe, folder))
    path = tmp_path / "data/mine/train.tsv"
    path.write_text(path.read_text().replace("a", "e"))  # as many words
    finish(prepare(TASK, recipe, other))
    folder.tokenizer.write_bytes(other.tokenizer.read_bytes())
    with pytest.raises(Refused, match="other data or tokens; start again"):
        finish(prepare(TASK, recipe, folder))


def test_nothing_to_train_on_is_reported_with_the_reasons(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"nothing to train on: 6 pairs read = 0 kept .*4 too long"):
        finish(prepare(TASK, resolve(from_files(longest=2)), RunFolder.create(tmp_path / "run")))


def test_parts_that_are_kept(tmp_path: Path) -> None:
    raw = small()
    raw["data"]["grammar"] = {"pairs": 30, "longest": 5, "beyond": 7, "held_out": 3}
    folder = RunFolder.create(tmp_path / "run")
    codec = finish(prepare(TASK, resolve(raw), folder)).codec
    for part, lengths in (("valid", {3, 4, 5}), ("test", {3, 4, 5}), ("long", {6, 7})):
        found = list(kept(folder, part, codec.of_data, "pairs"))
        assert len(found) == 3
        assert {len(pair.inputs[0].split()) for pair in found} <= lengths
        assert all(pair.gold is not None for pair in found)
    with pytest.raises(
        Refused, match="keeps no train pairs; name one of valid, test, long, or give a file"
    ):
        list(kept(folder, "train", codec.of_data, "pairs"))
    assert folder.target_tokenizer.exists()


def test_many_unknown_symbols_are_reported(recipe: Recipe, tmp_path: Path) -> None:
    """Of twenty words eleven fit beside the special symbols; each text has its end, too."""
    (tmp_path / "data/mine/train.tsv").write_text("".join(f"w{i}\tx\n" for i in range(20)))
    few = resolve(from_files(tokens={"kind": "word", "size": 16}))
    _, notes = prepared(few, RunFolder.create(tmp_path / "few"))
    cure = "are unknown; a larger data.tokens.size keeps more of them"
    assert [note for note in notes if "unknown" in note] == [f"22.5% of the source symbols {cure}"]
    _, notes = prepared(recipe, RunFolder.create(tmp_path / "all"))
    assert not any("unknown" in note for note in notes)


def test_long_examples_are_tokenised_a_few_at_a_time(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they are, few are held at once; what is written is the same."""
    asked: list[int] = []
    rows = type(TASK).rows
    monkeypatch.setattr(
        type(TASK),
        "rows",
        lambda self, codec, some: asked.append(len(some)) or rows(self, codec, some),
    )
    found = []
    for n, most in enumerate((preparing.MOST, 2)):
        monkeypatch.setattr(preparing, "MOST", most)
        asked.clear()
        whole, _ = prepared(recipe, RunFolder.create(tmp_path / str(n)))
        found.append(whole.train.tokens["source"].tolist())
        assert (len(asked) > 1) == (most == 2)
    assert found[0] == found[1]
