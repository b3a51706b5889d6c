"""benchmarks/attention.py: every case runs, a wrong result is not timed, a page keeps its prose."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("additive", "local", "dot", "inside", "walks")
BUDGET = 1e-3


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark as a module; as for a script, the files beside it can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def section(name: str) -> ModuleType:
    return __import__(f"_attention.{name}", fromlist=[name])


def cases(name: str) -> list[Any]:
    """The tiny cases of a section, without compilation, which would take seconds each."""
    found = section(name).cases("cpu", True)
    return [dataclasses.replace(case, compiled=False) for case in found]


def broken(case: Any, spoil: Callable[[Any], Any]) -> Any:
    """The case with heed's result spoilt."""

    def make() -> Any:
        work = case.make()
        right = work.ours
        work.ours = lambda: spoil(right())
        return work

    return dataclasses.replace(case, make=make)


def measured(name: str, case: Any) -> list[Any]:
    from _attention.cases import measure

    torch.manual_seed(0)
    return list(measure(name, case, "cpu", BUDGET))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_case_is_checked_and_timed(name: str) -> None:
    for case in cases(name):
        rows = measured(name, case)
        assert [row.way for row in rows] == list(case.passes)
        for row in rows:
            assert not row.failed
            assert all(seconds > 0 for seconds in row.seconds.values())
            assert row.seconds.keys() == row.bytes.keys() >= {"heed", "eager"}
            assert row.kernel
            assert 0 < row.share < 1


class Crooked(torch.autograd.Function):
    """The right value with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1.01


SPOILT = {
    "the context is off": lambda seen: seen.replace(context=seen.context * 1.01),
    "the context is off by nan": lambda seen: seen.replace(context=seen.context / 0 * 0),
    "the gradient of q is off": lambda seen: seen.replace(context=Crooked.apply(seen.context)),
    "without gradients is off": lambda seen: (
        seen if torch.is_grad_enabled() else seen.replace(context=seen.context + 0.01)
    ),
}


@pytest.mark.parametrize("said", SPOILT)
@pytest.mark.parametrize("name", SECTIONS)
def test_a_wrong_result_is_not_timed(name: str, said: str) -> None:
    from _attention.cases import Wrong

    with pytest.raises(Wrong, match=said):
        measured(name, broken(cases(name)[0], SPOILT[said]))


@pytest.mark.parametrize("field", ["entropy", "received", "map", "spread", "place"])
def test_a_wrong_statistic_is_not_timed(field: str) -> None:
    from _attention.cases import Wrong

    def spoil(seen: Any) -> Any:
        x = getattr(seen.statistics, field)
        x = (x + 1) % 37 if field == "place" else x * 1.001
        return seen.replace(statistics=seen.statistics._replace(**{field: x}))

    said = "largest weight" if field == "place" else field
    with pytest.raises(Wrong, match=said):
        measured("inside", broken(cases("inside")[0], spoil))


def test_a_rival_that_cannot_serve_a_case_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    case = cases("dot")[0]

    def make() -> Any:
        work = case.make()

        def unable() -> torch.Tensor:
            raise RuntimeError("no such back end")

        work.rivals = {"unable": unable}
        return work

    row = measured("dot", dataclasses.replace(case, make=make))[0]
    assert row.failed == {"unable": "not able"}
    assert "unable" not in row.seconds
    assert "no such back end" in capsys.readouterr().err


def report() -> Any:
    """Figures as a run gives them."""
    from _attention.cases import BOTH, FORWARD, Row
    from _attention.table import Report

    rows = [
        Row("additive", "8 × 9 × 9 × 4", "fp32", way, "additive", {"heed": 1e-3, "eager": 2e-2})
        for way in (FORWARD, BOTH)
    ]
    rows[0].targets = [("≥ 15× eager", True)]
    rows[1].targets = [("≥ 30× eager", False)]
    rows[1].failed = {"torch.compile": "out of memory"}
    rows[0].bytes = {"heed": 2**20, "eager": 3 * 2**20}
    rows += [
        Row("local", f"fixed-window: 1 × 2 × {T} × 8, ± 3", "fp32", FORWARD, "window", {"heed": T})
        for T in (1024, 2048)
    ]
    return Report("cpu", "a machine", rows, {"local": ["linear"]})


def test_goals_are_judged_by_the_figures() -> None:
    from _attention.cases import barely_slower, faster, leaner, within

    row = report().rows[0]
    aims = (faster("eager", 20), within(1), leaner("eager", 0.34), faster("nobody", 9))
    assert all(aim.met(row) for aim in aims)
    aims = (faster("eager", 21), within(0.9), leaner("eager", 0.33))
    assert not any(aim.met(row) for aim in aims)
    row = SimpleNamespace(seconds={"heed": 104e-6, "SDPA": 100e-6})
    assert barely_slower("SDPA", 0.03, 5e-6).met(row)
    assert not barely_slower("SDPA", 0.03, 3e-6).met(row)


def test_figures_can_be_saved_and_read() -> None:
    from _attention.table import Report

    again = Report.of(json.loads(json.dumps(report().saved())))
    assert [row.seconds for row in again.rows] == [row.seconds for row in report().rows]


def test_a_page_keeps_its_prose(tmp_path: Path) -> None:
    from _attention.table import write

    page = tmp_path / "performance.md"
    begin = "<!-- begin cpu: written by benchmarks/attention.py -->"
    page.write_text(f"# Before\n\n{begin}\nold\n<!-- end cpu -->\n\nAfter.\n", encoding="utf-8")
    write(report(), tmp_path)
    written = page.read_text(encoding="utf-8")
    assert written.startswith("# Before\n")
    assert written.endswith("\n\nAfter.\n")
    assert "old" not in written
    assert "20 (20×)" in written
    assert "out of memory" in written
    assert "≥ 15× eager: met" in written
    assert "≥ 30× eager: MISSED" in written
    for picture in ("performance-cpu-speed.svg", "performance-cpu-length.svg"):
        assert f"({picture})" in written
        assert 0 < (tmp_path / picture).stat().st_size < 100_000
    write(report(), tmp_path)
    assert page.read_text(encoding="utf-8") == written


def test_a_page_without_a_place_for_figures_is_refused(tmp_path: Path) -> None:
    from _attention.table import write

    (tmp_path / "performance.md").write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no place for cpu"):
        write(report(), tmp_path)


def test_the_command_fails_if_a_case_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import attention
    from _attention import dot

    right, spoilt = cases("dot")
    wrong = [broken(spoilt, SPOILT["the context is off"]), right]
    monkeypatch.setattr(dot, "cases", lambda device, tiny: wrong)
    monkeypatch.setattr(sys, "argv", ["attention.py", "--device", "cpu", "--tiny", "--only", "dot"])
    with pytest.raises(SystemExit, match=f"no speed is reported, in: {spoilt.name}$"):
        attention.main()
    printed = capsys.readouterr()
    assert "the context is off" in printed.err
    assert [line.split()[-1] for line in printed.out.splitlines() if spoilt.name in line] == [
        "wrong"
    ]
    assert printed.out.count(f"{right.name}, fp32") == 2
