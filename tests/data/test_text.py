"""Lines end at a newline only; errors in files are reported in one line."""

import gzip
import os

import pytest

from heed.data import text
from heed.data.text import read_lines
from heed.errors import Refused


def test_only_a_newline_ends_a_line(tmp_path):
    inside = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\x1ch"
    path = tmp_path / "x"
    path.write_bytes(f"{inside}\r\n\nlast\r".encode())
    assert list(read_lines(path)) == [(1, inside), (2, ""), (3, "last\r")]


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"a", b"a\n", b"a\n\n", b"\xef\xbb\xbfa\n\xef\xbb\xbfb"]
)
def test_there_are_as_many_lines_as_wc_counts(tmp_path, raw):
    path = tmp_path / "x"
    path.write_bytes(raw)
    lines = [line for _, line in read_lines(path)]
    assert len(lines) == raw.count(b"\n") + (not raw.endswith(b"\n") and bool(raw))
    joined = raw.decode("utf-8-sig")  # drops the BOM of the file, not of the second line
    assert "\n".join(lines) == joined.removesuffix("\n")


def test_gzip_is_recognised_by_its_bytes(tmp_path):
    path, plain = tmp_path / "named.txt", tmp_path / "plain.gz"
    path.write_bytes(gzip.compress("\ufeff爱\n".encode(), mtime=0) + gzip.compress(b"b\n"))
    plain.write_text("not packed\n")
    assert list(read_lines(path)) == [(1, "爱"), (2, "b")]
    assert list(read_lines(plain)) == [(1, "not packed")]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"ok\n\xff\xfe\n", ":2: not UTF-8 (byte 0xff at place 1)"),
        (b"ok\nab\xc3", ":2: not UTF-8 (byte 0xc3 at place 3)"),
        (b"ok\n\xed\xa0\x80\n", ":2: not UTF-8"),
        (b"ok\nok\na\0b\n", ":3: holds a NUL byte"),
        (gzip.compress(b"many words\n" * 999, mtime=0)[:-9], ": a broken gzip file"),
        (gzip.compress(b"many words\n" * 999, mtime=0)[:-8] + b"\0" * 8, ": a broken gzip file"),
        (b"\x1f\x8bnonsense", ": a broken gzip file"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0nonsense", ": a broken gzip file"),
    ],
)
def test_a_bad_file_is_reported_in_one_line(tmp_path, raw, told):
    path = tmp_path / "x"
    path.write_bytes(raw)
    with pytest.raises(Refused) as error:
        list(read_lines(path))
    assert f"{path}{told}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_opened_is_reported_in_one_line(tmp_path):
    with pytest.raises(Refused, match=r"cannot read .*nowhere: No such file"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(Refused, match=r"cannot read .*: Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_reported_in_one_line(tmp_path):
    (tmp_path / "x").touch(mode=0)
    with pytest.raises(Refused, match=r"cannot read .*: Permission denied"):
        list(read_lines(tmp_path / "x"))


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LONGEST", 100)
    (tmp_path / "x").write_text("a" * 100 + "\n")
    with pytest.raises(Refused, match=":1: the line is longer than"):
        list(read_lines(tmp_path / "x"))


def test_lines_are_streamed(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"first\n" + b"\xff\n" * 500_000)
    assert next(read_lines(path)) == (1, "first")  # the error in a later line has not been reached
