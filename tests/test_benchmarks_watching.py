"""benchmarks/watching.py: results are compared before they are timed, and a page is written."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = (
    "<!-- begin watching cpu: written by benchmarks/watching.py -->",
    "<!-- end watching cpu -->",
)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import watching

    return watching


def run(watching: ModuleType, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    told = ["--device", "cpu", "--tiny", "--lengths", "9,14", "--budget", "0.001", *more]
    monkeypatch.setattr(sys, "argv", ["watching.py", *told])
    watching.main()


def test_cases_are_compared_timed_and_written(
    watching: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    plain = watching.most

    def short_of_memory(run: Any, device: str) -> float:
        if getattr(run, "__name__", "") == "weights":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(run, device)

    monkeypatch.setattr(watching, "most", short_of_memory)
    monkeypatch.setattr(watching, "DOCS", tmp_path)
    page = tmp_path / "performance.md"
    page.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n", encoding="utf-8")
    run(watching, monkeypatch, "--json", "--write")
    found = json.loads(capsys.readouterr().out)
    assert [row["T"] for row in found["agreement"]] == [9, 14]
    for row in found["agreement"]:
        assert max(row["heed"].values()) < 1e-6
    for row in found["rows"]:
        assert row["ms"]["eager"] is None
        assert all(row["ms"][name] > 0 for name in ("sdpa", "statistics", "everything"))
    written = page.read_text("utf-8")
    assert written.startswith("Before.\n")
    assert written.endswith("\n\nAfter.\n")
    assert written.count("out of memory") == 2
    assert "old" not in written


@pytest.mark.parametrize("name", ["entropy", "place", "received", "rows"])
def test_a_wrong_statistic_is_not_timed(
    watching: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    right = watching.watched

    def spoilt(*given: Any) -> Any:
        found = right(*given)
        last = getattr(found[-1], name)
        found[-1] = found[-1]._replace(**{name: last + 1 if name == "place" else last * 1.001})
        return found

    monkeypatch.setattr(watching, "watched", spoilt)
    with pytest.raises(SystemExit, match=f"{watching.SAID[name]} is off .* has no speed"):
        run(watching, monkeypatch)


def test_other_errors_are_not_taken_for_lack_of_memory(watching: Any) -> None:
    def fault() -> None:
        raise RuntimeError("sizes differ")

    with pytest.raises(RuntimeError, match="sizes differ"):
        watching.attempt(fault)
