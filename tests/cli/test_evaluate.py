"""heed evaluate: the same pairs get the same scores in every format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running.writing import written

FIELDS = {
    "pairs",
    "bleu",
    "bleu_signature",
    "chrf",
    "chrf_signature",
    "perplexity",
    "entropy",
    "aer",
    "by_length",
}


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def kept(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "examples/test.jsonl").read_text().splitlines()]


def pharaoh(links: list[list[list[int]]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in links[0])


@pytest.fixture(scope="session")
def files(writer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test pairs of the run in every format."""
    folder, rows = tmp_path_factory.mktemp("files"), kept(writer)
    texts = {
        "a.tsv": [f"{row['source']}\t{row['target']}" for row in rows],
        "a.zh": [row["source"] for row in rows],
        "a.en": [row["target"] for row in rows],
        "a.jsonl": [json.dumps({key: row[key] for key in ("source", "target")}) for row in rows],
        "a.links": [pharaoh(row["links"]) for row in rows],
    }
    for name, lines in texts.items():
        data = "".join(f"{line}\n" for line in lines).encode()
        (folder / name).write_bytes(data)
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    return folder


def test_the_runs_own_test_data(command: Callable[..., Any], writer: Path) -> None:
    done = command("evaluate", str(writer), "--json", "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert set(found) == FIELDS
    told = json.loads((writer / "scores.json").read_text())["scores"]["test"]
    for name in ("pairs", "bleu", "chrf", "perplexity", "entropy", "aer"):
        assert found[name] == pytest.approx(told[name], rel=1e-5), name
    assert sum(count for _, count, _ in found["by_length"]) == found["pairs"] == 6
    far = json.loads(command("evaluate", str(writer), "--part", "long", "--json").out)
    assert {label for label, _, _ in far["by_length"]} == {"6-10"}


@pytest.mark.parametrize(
    "names", [["a.tsv"], ["a.zh", "a.en"], ["a.jsonl"], ["a.tsv.gz"], ["a.jsonl.gz"]], ids=str
)
def test_the_same_pairs_from_files(
    command: Callable[..., Any], writer: Path, files: Path, names: list[str]
) -> None:
    words = [str(files / name) for name in names]
    gold = str(files / ("a.links.gz" if ".gz" in names[0] else "a.links"))
    done = command("evaluate", str(writer), *words, "--alignments", gold, "--json")
    assert done.code == 0, done.err
    kept = json.loads(command("evaluate", str(writer), "--json").out)
    assert json.loads(done.out) == kept
    assert kept["aer"] is not None
    without = json.loads(command("evaluate", str(writer), *words, "--json").out)
    assert without == {**kept, "aer": None}


def test_translations_and_links_are_written_line_by_line(
    command: Callable[..., Any], writer: Path, files: Path, tmp_path: Path
) -> None:
    out, links = tmp_path / "out.txt", tmp_path / "out.links"
    words = ["evaluate", str(writer), str(files / "a.tsv"), "--out", str(out)]
    assert command(*words, "--links", str(links)).code == 0
    rows = kept(writer)
    written, linked = out.read_text().splitlines(), links.read_text().splitlines()
    assert len(written) == len(linked) == len(rows)
    assert written == command("predict", str(writer), str(files / "a.zh")).out.splitlines()
    for line, row in zip(linked, rows, strict=True):
        targets = [int(link.partition("-")[2]) for link in line.split()]
        assert sorted(targets) == list(range(len(row["target"].split())))
    # With its own links as gold, nothing is missed.
    own = command(*words, "--alignments", str(links), "--json")
    assert json.loads(own.out)["aer"] == 0


def test_the_table_has_what_json_has(
    command: Callable[..., Any], writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    scores = json.loads(command("evaluate", str(writer), "--json").out)
    done = command("evaluate", str(writer))
    assert f"BLEU        {scores['bleu']:.2f}" in done.out
    assert scores["bleu_signature"] in done.out
    assert f"{scores['aer']:.4f}" in done.out
    assert f"{scores['entropy']:.3f}" in done.out
    assert "source words" in done.out


def test_bleu_is_cut_by_the_script_or_as_asked(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    path = tmp_path / "thai.tsv"
    path.write_text("我 爱 中国\tฉันรักประเทศจีน\n你 爱 我\tคุณรักฉัน\n", "utf-8")
    words = ["evaluate", str(writer), str(path), "--json"]
    for asked, cut in (([], "char"), (["--bleu-tokenize", "13a"], "13a")):
        done = command(*words, *asked)
        assert f"|tok:{cut}|" in json.loads(done.out)["bleu_signature"], done.err
    told = command(*words, "--bleu-tokenize", "chars")
    assert told.code == 2
    assert "no tokeniser of sacreBLEU is called 'chars'" in told.err
    assert "char" in told.err
    assert told.err.count("\n") == 1


def test_a_beam_of_one_is_greedy(command: Callable[..., Any], writer: Path) -> None:
    greedy, one, three = (
        json.loads(command("evaluate", str(writer), *words, "--json").out)
        for words in ([], ["--width", "1"], ["--width", "3"])
    )
    assert greedy == one
    assert three["perplexity"] == greedy["perplexity"]  # of the references, without a search


def test_three_files_are_too_many(command: Callable[..., Any], writer: Path) -> None:
    done = command("evaluate", str(writer), "a", "b", "c")
    assert done.code == 2
    assert "give one file of pairs, or source and target; got 3 files" in done.err
