"""heed compare: a table, a page, and failures beside successes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running.writing import recipe

QUICK = {"steps": 3, "validate_every": 3, "save_every": 3}


@pytest.mark.slow
def test_a_failure_beside_successes_and_resuming(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, since each mechanism takes a process of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("mine.yaml").write_text(yaml.safe_dump(recipe(**QUICK)))
    out = Path("runs/compare-mine")
    (out / "local-p+general").mkdir(parents=True)
    obstacle = out / "local-p+general/letter.txt"
    obstacle.write_text("dear")
    words = ["compare", "mine.yaml", "--attention", "local-p/general, none", "--device", "cpu"]

    done = command(*words, "--jobs", "2")
    assert done.code == 1
    why = f"{out}/local-p+general holds other files and is not a run; name a new folder"
    assert f"local-p/general: {why}\n" in done.err
    table = [line.split() for line in done.out.splitlines()]
    assert table[0][:2] == ["mechanism", "BLEU"]
    assert [row[0] for row in table[1:3]] == ["local-p/general", "none"]
    failed, none = json.loads((out / "comparison.json").read_text())
    assert (failed["mechanism"], failed["error"]) == ("local-p/general", why)
    assert "scores" not in failed
    assert (none["error"], none["steps"], set(none["scores"])) == ("", 3, {"test", "long"})
    assert none["memory"] > 0
    html = (out / "page.html").read_text("utf-8")
    assert why in html
    assert obstacle.read_text() == "dear"

    told = (out / "comparison.json").read_bytes()
    taken = command(*words)
    assert (taken.code, taken.out, taken.err.count("\n")) == (2, "", 1)
    assert f"{out}/none already holds a run; resume it: --resume" in taken.err
    assert (out / "comparison.json").read_bytes() == told

    obstacle.unlink()
    model = out / "none/model.safetensors"
    before = model.stat().st_mtime_ns, model.read_bytes()
    again = command(*words, "--jobs", "2", "--resume", "--json")
    assert (again.code, again.err) == (0, "")
    found = {each["mechanism"]: each for each in json.loads(again.out)}
    assert list(found) == ["local-p/general", "none"]
    assert found["local-p/general"]["steps"] == 3
    assert found["local-p/general"]["scores"]["test"]["aer"] is not None
    assert found["none"]["scores"]["test"]["aer"] is None
    assert found["none"]["seconds"] == none["seconds"]  # it was not trained again
    assert (model.stat().st_mtime_ns, model.read_bytes()) == before
    assert why not in (out / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["demo", "--attention", "dot,additiv"], "did you mean additive"),
        (["demo", "--attention", "dot,dot"], "name each mechanism once"),
        (["demo", "--attention", " , "], "name each mechanism once"),
        (["multi30k-rnn", "data.folder=/nowhere"], "data.train.source: cannot read /nowhere"),
        (["sst2", "data.folder=/nowhere", "--resume"], "cannot read /nowhere"),
        (["sst2"], "set its folder: HEED_DATA=/your/data, or data.folder=/your/sst2"),
    ],
)
def test_invalid_requests_are_refused_before_training(
    command: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEED_DATA", raising=False)
    done = command("compare", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err
    assert list(tmp_path.iterdir()) == []
