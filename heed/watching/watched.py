"""Results of a watch: the records of every attention, and the words of queries and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

from heed.errors import HeedError, Refused, UnknownName
from heed.records import Attended
from heed.watching.hypotheses import (
    When,
    WrittenText,
    detached,
    fields,
    followed,
    join,
    of_row,
    sizes,
)

SPILLED_AT = 2**28
"""Bytes of records kept in memory, where a spill folder is given and no limit."""


class Other(NamedTuple):
    """An attention of another library: what it is, and the call that exchanges it for heed's."""

    kind: str
    cure: str


class Unwatched(UnknownName):
    """An attention of another library, which a watch does not see."""

    def __init__(self, path: str, other: Other) -> None:
        HeedError.__init__(
            self,
            f"'{path}' is a {other.kind}, which is not watched; exchange it before: {other.cure}",
        )


class Elsewhere(Protocol):
    """A record that lies in a file."""

    def __call__(self) -> Attended:
        """Read it."""


class AxisWords(NamedTuple):
    """The words that a module's queries and keys stand for, of each row of a batch."""

    queries: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...]


class Records(Sequence[Attended]):
    """The records of one attention in the order of the calls; some may lie on disk until asked."""

    def __init__(self) -> None:
        self.entries: list[Attended | Elsewhere] = []
        self.when: list[When | None] = []

    def append(self, record: Attended | Elsewhere, when: When | None = None) -> None:
        """Add a record, made at a step of a text, or outside all texts (None)."""
        self.entries.append(record)
        self.when.append(when)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> Attended: ...
    @overload
    def __getitem__(self, index: slice) -> list[Attended]: ...
    def __getitem__(self, index: int | slice) -> Attended | list[Attended]:
        if isinstance(index, slice):
            return [_read(entry) for entry in self.entries[index]]
        return _read(self.entries[index])

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


def _read(entry: Attended | Elsewhere) -> Attended:
    return entry if isinstance(entry, Attended) else entry()


class Watched(Mapping[str, Records]):
    """The records of every attention, by the path of its module.

    seen["decoder.attention"][0].weight            of its first call    B H T S
    seen.tokens(words, modules="encoder.*")        the words that are looked at and from
    seen.follow(hypothesis)                        what one text saw, step by step
    seen.save("seen.safetensors")                  and heed.load_watch("seen.safetensors")
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.records = {path: Records() for path in paths}
        self.texts: list[WrittenText] = []
        self.heads: tuple[int, ...] | None = None  # which were kept; None: all
        self.rows: tuple[int, ...] | None = None
        self.words: dict[str, AxisWords] = {}
        self.others: dict[str, Other] = {}  # attentions of other libraries, by path

    def __getitem__(self, path: str) -> Records:
        if path in self.others:
            raise Unwatched(path, self.others[path])
        if path not in self.records:
            raise UnknownName("watched attention", path, self.records)
        return self.records[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, path: object) -> bool:
        return path in self.records

    def __repr__(self) -> str:
        calls = ", ".join(f"{path or '(itself)'}: {len(x)}" for path, x in self.records.items())
        return f"Watched({calls})"

    def _repr_html_(self) -> str:
        """A table for notebooks: a row per attention, with its calls and its first record."""
        rows = ""
        for path, records in self.records.items():
            first = "" if not len(records) else escape(repr(records[0]))
            name = escape(path or "(itself)")
            rows += f"<tr><td>{name}</td><td>{len(records)}</td><td>{first}</td></tr>"
        return f"<table><tr><th>attention</th><th>calls</th><th>the first</th></tr>{rows}</table>"

    def tokens(
        self,
        queries: Sequence[str] | Sequence[Sequence[str]],
        keys: Sequence[str] | Sequence[Sequence[str]] | None = None,
        modules: str | Sequence[str] = "*",
    ) -> None:
        """Say which words the queries and keys (by default the same) of some modules stand for.

        One list of words, or one per row of the batch. A list may be shorter than the text, which
        then ends in padding, or longer, where a text is still being written.
        """
        asked = _each_row("queries", queries)
        told = AxisWords(asked, asked if keys is None else _each_row("keys", keys))
        for path in matching(self.records, modules, self.others):
            self.words[path] = told

    def labels(self, path: str, row: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words of a module's queries and keys, of one row; empty where none were told."""
        self[path]
        told = self.words.get(path)
        if told is None:
            return (), ()
        if not 0 <= row < min(map(len, told)):
            raise Refused(f"there are words for {min(map(len, told))} rows; row {row} has none")
        return told.queries[row], told.keys[row]

    def follow(self, written: Any, *, text: int | None = None) -> dict[str, Attended]:
        """Follow one text that a search wrote: each module's steps, joined along T.

        written   the Hypothesis; or the rows of the batch in which it stood when each symbol was
                  chosen, as Hugging Face's `generate` returns them: `beam_indices`, padded with -1
        text      which search of the watch; the last one, unless told
        Row t is what was seen when symbol t was chosen. What was seen of a prompt or a source
        before is a record of its own, such as seen[path][0]. If no search of heed was watched, the
        rows are those of each module's first calls; modules that were called less often are left
        out.
        """
        rows = [int(row) for row in getattr(written, "rows", written)]
        while rows and rows[-1] < 0:
            rows.pop()
        if not self.texts:
            return self._along(rows)
        index = self._text(text)
        rows = self.texts[index].path(rows, getattr(written, "symbols", None))
        found = {}
        for path, records in self.records.items():
            looks = (
                (when[1], _read(entry))
                for entry, when in zip(records.entries, records.when, strict=True)
                if when is not None and when[0] == index and when[1] < len(rows)
            )
            joined = followed(looks, self.texts[index], rows)
            if joined is not None:
                found[path] = joined
        return found

    def _along(self, rows: list[int]) -> dict[str, Attended]:
        """Join what was seen in these rows, one for each of the first calls."""
        n, found = len(rows), {}
        for path, records in self.records.items():
            if n and len(records) >= n:
                looks = zip(records[:n], rows, strict=True)
                found[path] = join([of_row(look, row, sizes(look)[0]) for look, row in looks])
        if not found:
            most = max(len(records) for records in self.records.values())
            raise Refused(
                f"{n} rows were given, but there were {most} calls; and no search of heed was "
                "watched: begin its text inside, with heed.watch(model): carry = model.begin(...)"
            )
        return found

    def save(self, path: str | PathLike[str]) -> None:
        """Save all but the contexts and the slots of states, as one safetensors file."""
        from heed.watching.watch_file import save

        save(self, Path(path))

    def _text(self, text: int | None) -> int:
        numbers = range(len(self.texts))
        if text is not None and text not in numbers:
            raise Refused(f"there is no text {text}; those that were written: {list(numbers)}")
        return numbers[-1] if text is None else text


def matching(
    paths: Iterable[str], patterns: str | Sequence[str], others: Mapping[str, Other] | None = None
) -> list[str]:
    """The paths that a pattern matches, such as "*.cross"; one that matches none is refused.

    others  attentions of other libraries; a pattern for one is refused with its cure
    """
    paths = list(paths)
    wanted = [patterns] if isinstance(patterns, str) else patterns
    found: set[str] = set()
    if not isinstance(wanted, Iterable) or not (wanted := list(wanted)):
        raise Refused(f"modules takes paths and patterns such as '*.cross'; got {patterns!r}")
    for pattern in wanted:
        if not isinstance(pattern, str):
            raise Refused(f"modules takes paths and patterns such as '*.cross'; got {pattern!r}")
        here = {path for path in paths if fnmatchcase(path, pattern)}
        if not here:
            for path, other in (others or {}).items():
                if fnmatchcase(path, pattern):
                    raise Unwatched(path, other)
            raise UnknownName("attention", pattern, paths)
        found |= here
    return [path for path in paths if path in found]


def _each_row(
    name: str, words: Sequence[str] | Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    if isinstance(words, str):
        raise Refused(f"{name} takes a list of words, not one string: ['i', 'love', 'china']")
    flat = all(isinstance(word, str) for word in words)
    rows: Sequence[Any] = [words] if flat else words
    if any(isinstance(row, str) or not isinstance(row, Sequence) for row in rows) or not all(
        isinstance(word, str) for row in rows for word in row
    ):
        raise Refused(f"{name} takes a list of words, or a list of such lists, one per row")
    return tuple(tuple(row) for row in rows)


class Keeper:
    """Keeps the records of a watch within a limit, or puts them on disk."""

    def __init__(self, seen: Watched, limit: int | None, spill: Path | None) -> None:
        self.seen, self.spill = seen, spill
        self.limit = SPILLED_AT if limit is None and spill is not None else limit
        self.waiting: list[tuple[str, int]] = []  # records in memory, by path and number
        self.size = self.files = 0

    def keep(self, path: str, record: Attended, when: When | None) -> None:
        """Add a record of a module."""
        records = self.seen.records[path]
        if self.limit is None:
            records.append(record, when)
            return
        record = detached(record)
        records.append(record, when)
        self.waiting.append((path, len(records) - 1))
        self.size += sum(x.nbytes for x in fields(record).values())
        if self.size <= self.limit:
            return
        if self.spill is None:
            raise Refused(
                f"the records of this watch take more than limit={self.limit:,} bytes; choose "
                "modules=, heads= or rows=, use statistics= instead of weights, or move them to "
                "disk: spill=folder"
            )
        self._empty(self.spill)

    def _empty(self, folder: Path) -> None:
        """Write what is in memory to the next file."""
        from heed.watching.watch_file import Kept, write

        held = [self.seen.records[path].entries[i] for path, i in self.waiting]
        records = [entry for entry in held if isinstance(entry, Attended)]
        file = folder / f"watch-{self.files:05}.safetensors"
        write(file, {f"{i}.{n}": x for i, r in enumerate(records) for n, x in fields(r).items()})
        for i, ((path, number), record) in enumerate(zip(self.waiting, records, strict=True)):
            self.seen.records[path].entries[number] = Kept.of(file, f"{i}.", record)
        self.files += 1
        self.waiting, self.size = [], 0


def folder_for(spill: str | PathLike[str]) -> Path:
    """A folder where records may go; one that holds some of another watch is refused."""
    folder = Path(spill)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"spill takes a folder; '{folder}': {error.strerror}") from error
    if next(folder.glob("watch-*.safetensors"), None) is not None:
        raise Refused(f"{folder} already holds the records of a watch; name another folder")
    return folder
