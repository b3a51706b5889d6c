"""Examples as numbers, kept in memory-mapped files: a corpus may be larger than the memory.

    train.json            how many rows and numbers, of which data; written last, when all is there
    train.source.tokens   every row, one after the other      uint16 or uint32, N; float32, N F
    train.source.offsets  where each row begins, and the end  int64, rows + 1

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

VERSION = 2
HEADER_LIMIT = 1 << 20
"""The most bytes of a header: enough for some thousand columns."""
OFFSET = np.dtype("<i8")
KINDS: dict[str, np.dtype[Any]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "float32": np.dtype("<f4"),
}
WIDEST = 1 << 16
"""The most real numbers of a position."""

Encode = Callable[[Sequence[Any]], Sequence[Any]]
"""From items to their rows: of symbols, N each, or of real numbers, N F each."""


class Corpus:
    """Rows of numbers in named columns. `open` maps a cache; `of` holds small data in memory."""

    def __init__(
        self, tokens: Mapping[str, NDArray[Any]], offsets: Mapping[str, NDArray[np.int64]]
    ) -> None:
        self.tokens = dict(tokens)
        self.offsets = dict(offsets)
        self.lengths = {name: np.diff(at) for name, at in self.offsets.items()}

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[Any]]) -> "Corpus":
        """A corpus held in memory, for little data: symbols, or float32 arrays N F."""
        rows = {name: [_plain(row) for row in c] for name, c in columns.items()}
        if len({len(column) for column in rows.values()}) != 1:
            raise Refused(f"the columns differ in length: {_counts(rows)}")
        empty = np.zeros(0, dtype=np.uint32)
        tokens = {name: np.concatenate(column or [empty]) for name, column in rows.items()}
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
        for column, (count, dtype, width) in header["columns"].items():
            stem = Path(folder, f"{name}.{column}")
            offsets[column] = _mapped(f"{stem}.offsets", OFFSET, header["rows"] + 1)
            flat = _mapped(f"{stem}.tokens", KINDS[dtype], count * max(width, 1))
            tokens[column] = flat.reshape(count, width) if width else flat
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
    """Writes a cache, rows as they come. It replaces an older one only once all is written.

    widths  of the columns of real numbers, how many each position has
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        columns: Iterable[str],
        *,
        vocabulary: int | None = None,
        widths: Mapping[str, int] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.folder, self.name, self.fingerprint = Path(folder), name, fingerprint
        symbols = "uint16" if vocabulary is not None and vocabulary <= 1 << 16 else "uint32"
        self.widths = dict(widths or {})
        self.rows, self.counts = 0, dict.fromkeys(columns, 0)
        self.dtypes = {name: "float32" if name in self.widths else symbols for name in self.counts}

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

    def add(self, chunk: Mapping[str, Sequence[Any]]) -> None:
        """Append rows, as many in every column."""
        if len({len(rows) for rows in chunk.values()}) != 1 or chunk.keys() != self.counts.keys():
            raise Refused(f"the columns differ in length: {_counts(chunk)}")
        for column, rows in chunk.items():
            self._tokens[column].write(self._flat(column, rows).tobytes())
            ends = self.counts[column] + np.cumsum([len(row) for row in rows], dtype=np.int64)
            self._offsets[column].write(ends.astype(OFFSET).tobytes())
            self.counts[column] = int(ends[-1]) if len(rows) else self.counts[column]
        self.rows += len(rows)

    def _flat(self, column: str, rows: Sequence[Any]) -> NDArray[Any]:
        """Rows one after the other, as their file has them."""
        dtype, width = self.dtypes[column], self.widths.get(column, 0)
        if width:
            odd = next((row for row in rows if np.shape(row)[1:] != (width,)), None)
            if odd is not None:
                raise Refused(f"a row of the column {column} is not N × {width} numbers")
            return np.concatenate([np.asarray(row, KINDS[dtype]) for row in rows] or [np.zeros(0)])
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
        if flat.size and (flat.min() < 0 or flat.max() > np.iinfo(dtype).max):
            raise Refused(f"a number of the column {column} does not fit into {dtype}")
        return flat.astype(KINDS[dtype])

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
            "columns": {
                name: (count, self.dtypes[name], self.widths.get(name, 0))
                for name, count in self.counts.items()
            },
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
    widths: Mapping[str, int] | None = None,
    fingerprint: str = "",
    keep: Callable[[Sequence[Any]], bool] | None = None,
    chunk: int = 8192,
) -> Iterator[int]:
    """Encode examples, an item of each for each of `encoders`, a chunk at a time.

    Yields how many rows have been read, chunk by chunk; after the last one, the cache is there.

    keep  whether to keep an example, given its row in each column
    """
    read, known = 0, {"vocabulary": vocabulary, "widths": widths, "fingerprint": fingerprint}
    with Writer(folder, name, encoders, **known) as writer:  # type: ignore[arg-type]
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


def _plain(row: Any) -> NDArray[Any]:
    """A row as it is held in memory."""
    array = np.asarray(row)
    return array if array.ndim == 2 else array.astype(np.uint32)


def _counts(columns: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(f"{name} has {len(rows):,}" for name, rows in columns.items())


def _header(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        if path.stat().st_size > HEADER_LIMIT:
            raise ValueError
        header: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows, columns = header["rows"], header["columns"]
        counts = [rows, *(count for count, _, _ in columns.values())]
        sound = header["version"] == VERSION and columns
        sound = sound and all(type(n) is int and n >= 0 for n in counts)
        sound = sound and all(
            dtype in KINDS
            and type(width) is int
            and 0 <= width <= WIDEST
            and bool(width) == (dtype == "float32")
            for _, dtype, width in columns.values()
        )
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
