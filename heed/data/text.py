"""Lines of text from a file, plain or gzip, which end at a newline alone; and JSON in a line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from os import PathLike, fspath
from typing import IO, Any, cast

from heed.errors import Refused

GZIP = b"\x1f\x8b"
BOM = "\ufeff"
LONGEST = 1 << 26
"""The most bytes of a line: a longer one is no line of text, and would fill the memory."""


def read_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    r"""Each line's number, from 1, and its text, streamed.

    A line ends at "\n", and a "\r" before it goes with it. Everything else that Unicode calls a
    separator stays inside the line: `str.splitlines` would end lines at "\u2028" and "\x85", and
    shift one side of a corpus against the other. gzip is known by its first bytes, not by its name.
    "-" is the standard input.
    """
    with _opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
            yield number, _text(raw, path, number)


def read_json(line: str, where: str, **hooks: Any) -> Any:
    """Parse a line of JSON; `hooks` are those of `json.loads`."""
    try:
        return json.loads(line, **hooks)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{where}: not JSON ({error})") from None


def is_json_lines(path: str | PathLike[str]) -> bool:
    """Whether a file has a JSON object a line, by its name."""
    return fspath(path).removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def counted(n: int, name: str) -> str:
    """1 column, 2 columns, 3,000 columns."""
    return f"{n:,} {name}{'s' * (n != 1)}"


def encodable(text: str, where: str) -> str:
    """Refuse half a surrogate pair, which JSON can spell and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{where}: holds half a surrogate pair") from None
    return text


def _text(raw: bytes, path: str | PathLike[str], number: int) -> str:
    if len(raw) > LONGEST:
        raise Refused(f"{path}:{number}: the line is longer than {LONGEST >> 20} MiB")
    if b"\0" in raw:
        raise Refused(f"{path}:{number}: holds a NUL byte, so it is not UTF-8 text")
    if raw.endswith(b"\n"):
        raw = raw[: -2 if raw.endswith(b"\r\n") else -1]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            f"{path}:{number}: not UTF-8 (byte 0x{raw[error.start]:02x} at place "
            f"{error.start + 1}); convert the file, as iconv -f latin1 -t utf-8 does"
        ) from None
    return text.removeprefix(BOM) if number == 1 else text


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; whatever the system or gzip says becomes one line."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            if file.peek(2)[:2] != GZIP:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield BufferedReader(cast(RawIOBase, unpacked), 1 << 20)  # its own lines are slow
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Refused(f"{path}: a broken gzip file ({str(error).rstrip('.')})") from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror or error}") from None
