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
        "a.links": [pharaoh(row["gold"]) for row in rows],
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


def test_links_are_those_of_the_given_pairs_in_their_lines(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    """Forced alignment: a target that the model would never write has a link for each word."""
    pairs, links, out = tmp_path / "pairs.tsv", tmp_path / "out.links", tmp_path / "out.txt"
    rows = [
        "我 爱 中国\tchina china china love i",
        "",
        "你 爱 我\tyou",
        "\tlost",
        "我\t" + "x" * 2001,
    ]
    pairs.write_text("".join(f"{row}\n" for row in [*rows, "我 爱 你\ti love you"]), "utf-8")
    words = ["evaluate", str(writer), str(pairs), "--links", str(links), "--out", str(out)]
    done = command(*words)
    assert done.code == 0, done.err
    assert f"{links}: the lines of some pairs are empty (3 dropped)" in done.out + done.err
    lines = links.read_text().split("\n")
    assert [len(line.split()) for line in lines] == [5, 0, 1, 0, 0, 3, 0]  # the last ends the file
    assert [bool(line) for line in out.read_text().split("\n")[:-1]] == [1, 0, 1, 0, 0, 1]
    for line, row in zip(lines, [rows[0].split("\t")], strict=False):
        found = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert sorted(j for _, j in found) == [0, 1, 2, 3, 4]
        assert all(0 <= i < len(row[0].split()) for i, _ in found)


def test_possible_links_are_no_error_where_they_are_missing(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    pairs, gold, own = (tmp_path / name for name in ("pairs.tsv", "gold", "own"))
    pairs.write_text("我 爱 中国\ti love china\n", "utf-8")
    words = ["evaluate", str(writer), str(pairs), "--json"]
    assert command(*words, "--links", str(own)).code == 0
    first, *others = own.read_text().split()
    gold.write_text(" ".join([first, *(f"{link}-P" for link in others)]))
    sure = json.loads(command(*words, "--alignments", str(gold)).out)["aer"]
    assert sure == 0  # A = P, and S is inside A
    i, j = map(int, first.split("-"))
    gold.write_text(" ".join([f"{(i + 1) % 3}-{j}", *(f"{link}-P" for link in others)]))
    wrong = json.loads(command(*words, "--alignments", str(gold)).out)["aer"]
    assert wrong == pytest.approx(1 - (0 + 2) / (3 + 1))


@pytest.mark.parametrize(
    ("gold", "told"),
    [
        ("0-0\n0-0\n", "has 1 pairs and {gold} has 2 lines: they must be aligned line by line"),
        ("", "has 1 pairs and {gold} has 0 lines: they must be aligned line by line"),
        ("0-0 -1-0\n", "{gold}:1: '-1-0' is not a link such as 0-0"),
        ("0-0 a-0\n", "{gold}:1: 'a-0' is not a link such as 0-0"),
        ("1 0 0 S\n", "{gold}:1: '1' is not a link such as 0-0"),
    ],
)
def test_bad_gold_links_are_refused_in_one_line(
    command: Callable[..., Any], writer: Path, tmp_path: Path, gold: str, told: str
) -> None:
    pairs, links = tmp_path / "pairs.tsv", tmp_path / "gold"
    pairs.write_text("我 爱 中国\ti love china\n", "utf-8")
    links.write_text(gold)
    done = command("evaluate", str(writer), str(pairs), "--alignments", str(links))
    assert done.code == 2
    assert told.format(gold=links) in done.err
    assert done.err.count("\n") == 1


def test_gold_links_to_words_that_are_not_there_are_named(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    pairs, links = tmp_path / "pairs.tsv", tmp_path / "gold"
    pairs.write_text("\ufeff我 爱 中国\ti love china\n你 爱 我\tyou love me\n", "utf-8")
    links.write_text("0-0 1-1\n0-0 3-2\n")
    done = command("evaluate", str(writer), str(pairs), "--alignments", str(links))
    assert done.code == 0
    told = f"1 link to words that are not there left out, the first at {links}:2: 3-2"
    assert told in (done.out + done.err).replace("\n", " ")


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
