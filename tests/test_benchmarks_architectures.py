"""benchmarks/architectures.py: the table in the docs is its own, and rows of every kind hold."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/looking-inside.md"
SOME = (
    *("GPT-2", "Gemma 2", "gpt-oss", "DeepSeek-V3.2", "BERT", "MPNet", "T5", "PEGASUS-X", "Swin"),
    *("SAM", "DETR", "ResNet", "Whisper", "CLIP", "SigLIP", "Jamba", "MiniMax", "RWKV"),
)


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import architectures

    return architectures


def printed() -> list[tuple[str, ...]]:
    """The rows of the table: name, class, attentions, outcome."""
    text = PAGE.read_text("utf-8")
    body = text.partition("<!-- begin architectures")[2].partition("<!-- end architectures")[0]
    rows = re.findall(r"^\| .*\|$", body, re.MULTILINE)[2:]
    return [tuple(cell.strip() for cell in row.split("|")[2:-1]) for row in rows]


def test_the_table_has_every_architecture(architectures: Any) -> None:
    cases = [case for cases in architectures.GROUPS.values() for case in cases]
    assert len(cases) >= 60
    assert [row[:2] for row in printed()] == [(case.name, f"`{case.kind}`") for case in cases]
    text = PAGE.read_text("utf-8")
    equal = sum(row[3] == "equal" for row in printed())
    assert f"{equal} of {len(cases)} are equal and {len(cases) - equal} refused" in text


@pytest.mark.parametrize("name", SOME)
def test_a_row_holds(architectures: Any, name: str) -> None:
    (cases,) = architectures.chosen([name]).values()
    row = architectures.compared(cases[0])
    assert all(row.get(key, 0.0) <= 1e-5 for key in architectures.COMPARED)
    (said,) = (each for each in printed() if each[0] == name)
    assert said[2:] == (str(row.get("attentions", "")), architectures.outcome(row))


def test_a_difference_is_not_written(architectures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = architectures.statistics

    def spoilt(*given: Any) -> Any:
        told = right(*given)
        return told._replace(spread=told.spread * 1.001)

    monkeypatch.setattr(architectures, "statistics", spoilt)
    monkeypatch.setattr(sys, "argv", ["architectures.py", "GPT-2"])
    with pytest.raises(SystemExit, match="GPT-2: statistics differ"):
        architectures.main()
    monkeypatch.setattr(sys, "argv", ["architectures.py", "GPT-9"])
    with pytest.raises(SystemExit, match="there is no architecture GPT-9"):
        architectures.main()


def test_differences_are_shares_of_the_largest_magnitude(architectures: Any) -> None:
    x = torch.tensor([0.5, -4.0])
    assert architectures.apart(x + torch.tensor([0.0, 1.0]), x) == 0.25
    nothing = torch.tensor([0.5, float("nan")])
    assert architectures.apart(nothing, x) == architectures.apart(x, nothing) == float("inf")
    assert architectures.apart(x[:1], x) == float("inf")
