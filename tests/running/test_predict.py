"""There are as many answers as lines, whatever the lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heed.running.predict import predict
from heed.running.preparing import LONGEST
from tests.running.small import Server

LINES = [
    "我 爱 中国",
    "",
    "   ",
    "\u3000\t",
    "我\u2028爱\x85你\x0b我",
    "zzz qqq 那些",
    "🐈 猫 👩‍👩‍👧",
    "\ufeff我",
    "\u200b",
    "<s> </s> <unk> <pad>",
    "我 " * 5000,
    "a" * 20_000,
    "\x1b[31m red",
    "我 爱 \r 你",
]


def answers(run: Path, file: Path | str, **choices: object) -> list[str]:
    found = predict(run, str(file), device="cpu", **choices)
    return [each.line() for each in found]


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_there_is_one_answer_for_each_line(trained: Path, tmp_path: Path, end: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes((("\r\n" if end == "\r\n" else "\n").join(LINES) + end).encode())
    found = answers(trained, path)
    assert len(found) == len(LINES)
    blank = [i for i, line in enumerate(LINES) if not line.strip()]
    assert [found[i] for i in blank] == [""] * len(blank)
    assert not any(mark in text for text in found for mark in "\n\r\u2028\x85\x1b")


def test_an_empty_file_has_no_answers(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").touch()
    assert answers(trained, tmp_path / "in.txt") == []


@pytest.mark.parametrize("choices", [{"method": "greedy"}, {"method": "beam", "width": 3}])
def test_a_line_alone_equals_the_line_in_a_batch(
    trained: Path, tmp_path: Path, choices: dict[str, object]
) -> None:
    together, lines = tmp_path / "in.txt", LINES[:7]  # a mark at a file's beginning is left out
    together.write_text("\n".join(lines))
    alone = []
    for line in lines:
        (tmp_path / "one.txt").write_text(f"{line}\n")
        alone += answers(trained, tmp_path / "one.txt", **choices)
    assert answers(trained, together, **choices) == alone


def test_the_command_writes_as_many_lines(server: Server, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES))
    done = server.run("predict", trained, path, "--device", "cpu", "--best", "3", "--width", "3")
    assert done.code == 0, done.err
    assert done.out.count("\n") == len(LINES)
    assert all(line.count("\t") == 2 for line in done.out.splitlines())
    done = server.run("predict", trained, path, "--json")
    rows = [json.loads(line) for line in done.out.split("\n")[:-1]]
    assert [row["source"] for row in rows] == [LINES[0], *LINES[1:]]


def test_a_line_that_is_too_long_is_cut_aloud_in_bounded_memory(
    server: Server, trained: Path, tmp_path: Path
) -> None:
    """Nine megabytes between two plain lines: as many answers, and a remark that names the line."""
    path, short = tmp_path / "in.txt", tmp_path / "short.txt"
    long = ("爱" * 199 + " ") * 15_000
    path.write_text(f"我 爱\n{long}\n你 爱\n")
    short.write_text(f"我 爱\n{long[:LONGEST]}\n你 爱\n")
    done, plain = (server.run("predict", trained, each) for each in (path, short))
    assert (done.code, plain.err) == (0, "")
    assert done.out == plain.out
    said = f"only the first 100,000 of {len(long):,} characters were read"
    assert done.err == f"heed: line 2: {said}\n"
    assert done.memory < plain.memory + 200
    fed = server.call("fed", [str(path), "predict", str(trained), "-", "--json"]).wait()
    assert fed.err == done.err
    rows = [json.loads(line) for line in fed.out.splitlines()]
    assert [row.get("characters") for row in rows] == [None, len(long), None]
    assert [len(row["source"]) for row in rows] == [3, LONGEST, 3]


def test_the_standard_input(server: Server, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("我 爱 中国\n\n我")
    done = server.call("fed", [str(tmp_path / "in.txt"), "predict", str(trained), "-"]).wait()
    assert (done.code, done.out.count("\n")) == (0, 3), done.err
    again = server.run("predict", trained, tmp_path / "in.txt")
    assert again.out == done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.txt"], "nowhere.txt: No such file"),
        (["."], "Is a directory"),
        (["in.txt", "--method", "bean"], "method"),
        (["in.txt", "--width", "0"], "width"),
        (["in.txt", "--top-p", "2"], "top_p"),
        (["in.txt", "--temperature", "nan"], "temperature"),
        (["bad.txt"], "bad.txt:2: not UTF-8"),
    ],
)
def test_bad_arguments_are_refused(
    server: Server, trained: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "in.txt").write_text("我\n")
    (tmp_path / "bad.txt").write_bytes(b"ok\n\xff\n")
    done = server.run("predict", trained, *words, cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert says in done.err


def test_a_sentence_is_never_read_as_markup(server: Server, trained: Path) -> None:
    for sentence in ("[/] 我", "[red]我[/red]", "[link=x]", "\\[b]"):
        done = server.run("show", trained, sentence, environment={"COLUMNS": "100"})
        assert done.code == 0, done.err
        assert done.out.startswith(sentence)
