"""Text tokenised once, kept in memory-mapped files: a corpus may be larger than the memory.

    train.json            how many rows and symbols, of which data; written last, when all is there
    train.source.tokens   every row's numbers, one after the other   uint16 or uint32
    train.source.offsets  where each row begins, and the end         int64, rows + 1

A cache is opened where its fingerprint is the one expected, and refused otherwise.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heed.errors import Refused
from heed.storage import atomic

VERSION = 1
HEADER_LIMIT = 1 << 20
"""How many bytes a header may have: enough for some thousand columns."""
OFFSET = np.dtype("<i8")
KINDS: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

Encode = Callable[[Sequence[Any]], Sequence[Sequence[int]]]


class Corpus:
    """Rows of numbers in named columns. `open` maps a cache; `of` holds small data in memory."""

    def __init__(
        self, tokens: Mapping[str, NDArray[Any]], offsets: Mapping[str, NDArray[np.int64]]
    ) -> None:
        self.tokens = dict(tokens)
        self.offsets = dict(offsets)
        self.lengths = {name: np.diff(at) for name, at in self.offsets.items()}

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[Sequence[int]]]) -> "Corpus":
        """A corpus held in memory, for little data."""
        rows = {
            name: [np.asarray(row, dtype=np.uint32) for row in c] for name, c in columns.items()
        }
        if len({len(column) for column in rows.values()}) != 1:
            raise Refused(f"the columns differ in length: {_counts(rows)}")
        empty = [np.zeros(0, dtype=np.uint32)]
        tokens = {name: np.concatenate(empty + column) for name, column in rows.items()}
        ends = {name: np.cumsum([0, *map(len, column)]) for name, column in rows.items()}
        return cls(tokens, ends)

    @classmethod
    def open(cls, folder: str | Path, name: str, fingerprint: str | None = None) -> "Corpus":
        """The cache as it was written; a broken one, or one of other data, is refused."""
        header = _header(Path(folder), name)
        if fingerprint is not None and header["fingerprint"] != fingerprint:
            raise Refused(
                f"the cache {Path(folder, name)} was made from other data or tokens; start again"
            )
        tokens, offsets = {}, {}
        for column, count in header["columns"].items():
            stem = Path(folder, f"{name}.{column}")
            offsets[column] = _mapped(f"{stem}.offsets", OFFSET, header["rows"] + 1)
            tokens[column] = _mapped(f"{stem}.tokens", KINDS[header["dtype"]], count)
            at = offsets[column]
            if at[0] != 0 or at[-1] != count or (np.diff(at) < 0).any():
                raise Refused(f"the cache {stem}.offsets is broken; remove it")
        return cls(tokens, offsets)

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    def __getitem__(self, row: int) -> dict[str, NDArray[Any]]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        bounds = {name: at[row : row + 2] for name, at in self.offsets.items()}
        return {name: self.tokens[name][start:end] for name, (start, end) in bounds.items()}


class Writer(AbstractContextManager["Writer"]):
    """Writes a cache, rows as they come. It replaces an older one only once all is written."""

    def __init__(
        self,
        folder: str | Path,
        name: str,
        columns: Iterable[str],
        *,
        vocabulary: int | None = None,
        fingerprint: str = "",
    ) -> None:
        self.folder, self.name, self.fingerprint = Path(folder), name, fingerprint
        self.dtype = "uint16" if vocabulary is not None and vocabulary <= 1 << 16 else "uint32"
        self.rows, self.counts = 0, dict.fromkeys(columns, 0)

    def __enter__(self) -> "Writer":
        self._open = ExitStack()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = TemporaryDirectory(
                prefix=f".{self.name}-", dir=self.folder, ignore_cleanup_errors=True
            )
            self._part = Path(self._open.enter_context(draft))
            self._tokens = {column: self._file(f"{column}.tokens") for column in self.counts}
            self._offsets = {column: self._file(f"{column}.offsets") for column in self.counts}
        except OSError as error:
            self._open.close()
            raise self._refusal(error) from None
        for file in self._offsets.values():
            file.write(np.zeros(1, OFFSET).tobytes())
        return self

    def _file(self, end: str) -> BinaryIO:
        return self._open.enter_context(open(self._part / f"{self.name}.{end}", "wb"))

    def add(self, chunk: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Append rows, as many in every column."""
        if len({len(rows) for rows in chunk.values()}) != 1 or chunk.keys() != self.counts.keys():
            raise Refused(f"the columns differ in length: {_counts(chunk)}")
        for column, rows in chunk.items():
            flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
            if flat.size and (flat.min() < 0 or flat.max() > np.iinfo(self.dtype).max):
                raise Refused(f"a number of the column {column} does not fit into {self.dtype}")
            self._tokens[column].write(flat.astype(KINDS[self.dtype]).tobytes())
            ends = self.counts[column] + np.cumsum([len(row) for row in rows], dtype=np.int64)
            self._offsets[column].write(ends.astype(OFFSET).tobytes())
            self.counts[column] += flat.size
        self.rows += len(rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            if isinstance(error, OSError):
                raise error
            if kind is None:
                self._finish()
        except OSError as told:
            raise self._refusal(told) from None
        finally:
            self._open.close()

    def _refusal(self, error: OSError) -> Refused:
        return Refused(f"cannot write the cache {self.folder}: {error.strerror}")

    def _finish(self) -> None:
        header = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "rows": self.rows,
            "dtype": self.dtype,
            "columns": self.counts,
        }
        head = self._file("json")
        head.write(json.dumps(header, indent=1).encode())
        for file in [*self._tokens.values(), *self._offsets.values(), head]:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        # The old header goes first and the new one comes last: no moment shows a mixture.
        (self.folder / f"{self.name}.json").unlink(missing_ok=True)
        for path in sorted(self._part.iterdir(), key=lambda path: path.suffix == ".json"):
            path.replace(self.folder / path.name)
        atomic.sync(self.folder)


def write(
    folder: str | Path,
    name: str,
    columns: Mapping[str, Iterable[Sequence[int]]],
    *,
    vocabulary: int | None = None,
    fingerprint: str = "",
) -> Corpus:
    """Write rows of numbers, all columns in step, and open what was written."""
    with Writer(folder, name, columns, vocabulary=vocabulary, fingerprint=fingerprint) as writer:
        for some in _chunks(zip_longest(*columns.values()), 8192):
            sides = zip(columns, zip(*some, strict=True), strict=True)
            writer.add({column: [r for r in rows if r is not None] for column, rows in sides})
    return Corpus.open(folder, name)


def encode(
    folder: str | Path,
    name: str,
    rows: Iterable[Sequence[Any]],
    encoders: Mapping[str, Encode],
    *,
    vocabulary: int | None = None,
    fingerprint: str = "",
    keep: Callable[[Sequence[Sequence[int]]], bool] | None = None,
    chunk: int = 8192,
) -> Iterator[int]:
    """Tokenise rows of texts, one text (or what else it takes) for each of `encoders`, a chunk at a
    time.

    Yields how many rows have been read, chunk by chunk; after the last one, the cache is there.

    keep  whether to keep a row, given the numbers of each of its texts
    """
    read = 0
    with Writer(folder, name, encoders, vocabulary=vocabulary, fingerprint=fingerprint) as writer:
        for texts in _chunks(rows, chunk):
            sides = zip(encoders.values(), zip(*texts, strict=True), strict=True)
            coded = [encoder(side) for encoder, side in sides]
            if keep is not None:
                kept = [row for row in zip(*coded, strict=True) if keep(row)]
                coded = [[row[i] for row in kept] for i in range(len(coded))]
            writer.add(dict(zip(encoders, coded, strict=True)))
            read += len(texts)
            yield read


def _chunks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rows = iter(rows)
    while some := list(islice(rows, size)):
        yield some


def _counts(columns: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(f"{name} has {len(rows):,}" for name, rows in columns.items())


def _header(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        if path.stat().st_size > HEADER_LIMIT:
            raise ValueError
        header: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows, columns = header["rows"], header["columns"]
        counts = [rows, *columns.values()]
        sound = header["version"] == VERSION and header["dtype"] in KINDS and columns
        sound = sound and all(type(n) is int and n >= 0 for n in counts)
        sound = sound and all(Path(c).name == c and "\0" not in c for c in columns)
        sound = sound and isinstance(header["fingerprint"], str)
    except OSError as error:
        raise Refused(f"no cache at {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise Refused(f"the cache {path} is broken, or of another version of heed; remove it")
    return header


def _mapped(path: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise Refused(f"the cache {path} cannot be read: {error.strerror}; remove it") from None
    if size != count * dtype.itemsize:
        raise Refused(
            f"the cache {path} has {size:,} bytes where {count * dtype.itemsize:,} "
            "were written; remove it"
        )
    return np.asarray(np.memmap(path, dtype, "r")) if count else np.zeros(0, dtype)
