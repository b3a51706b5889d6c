"""Pairs of texts out of a TSV file, two aligned files or JSON lines, counted as they are read."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from heed.data.file_format import by_format
from heed.data.text import counted, encodable, read_json, read_lines
from heed.errors import Refused
from heed.settings import Settings

LONGEST = 2000  # characters of either side of a pair
FEW = 5  # columns that a complaint shows

Column = Annotated[int, Field(ge=0, le=1000)]
Link = tuple[int, int]
LINK = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(-[SP])?|[?p]([0-9]{1,9}))")
A = TypeVar("A")
B = TypeVar("B")


ROLES = (
    "source target src tgt trg input output original translation reference text sentence "
    "arabic bulgarian chinese mandarin croatian czech danish dutch english estonian finnish french "
    "german greek hebrew hindi hungarian indonesian italian japanese korean latvian lithuanian "
    "norwegian persian polish portuguese romanian russian serbian slovak slovenian spanish swahili "
    "swedish thai turkish ukrainian urdu vietnamese"
)
"""Words that name a column of texts."""
CODES = (
    "ar bg cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nl no pl pt ro ru sk sl sr "
    "sv sw th tr uk ur vi zh"
)
"""Languages by their codes."""


class Pair(NamedTuple):
    """A source text and its target."""

    source: str
    target: str


class Links(NamedTuple):
    """The gold alignment of one pair: (source word, target word), both from 0.

    Possible links are no error where they are missing (Och and Ney 2003); sure ones are possible.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


class Files(Settings):
    """The place of pairs: `tsv`, or `source` and `target`, or `jsonl`; each plain or gzip.

    Or simply a path whose ending shows that it is a TSV file or JSON lines.
    """

    tsv: Path | None = None
    source: Path | None = None
    target: Path | None = None
    jsonl: Path | None = None
    columns: tuple[Column, Column] | None = Field(
        default=None, description="of the TSV file, from 0; needed where it has more than two"
    )
    keys: tuple[str, str] = Field(default=("source", "target"), description="of the JSON objects")
    reverse: bool = Field(default=False, description="exchange source and target")
    alignments: Path | None = Field(
        default=None,
        description="gold word alignments in Pharaoh format, one line a pair: 0-0 1-2 3-3-P",
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return by_format(given, ("tsv", "jsonl"))

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        two = {"source": self.source, "target": self.target}
        one_place({"tsv": self.tsv}, {"jsonl": self.jsonl}, two)
        if (self.source is None) != (self.target is None):
            raise ValueError("source and target belong together: two files, aligned line by line")
        if self.columns and not self.tsv:
            raise ValueError("columns need a tsv file, and none is given")
        return self

    @property
    def paths(self) -> list[Path]:
        """Every file named, in a fixed order."""
        named = [self.tsv, self.source, self.target, self.jsonl, self.alignments]
        return [path for path in named if path is not None]

    def under(self, folder: Path) -> Self:
        """The same files, looked for in a folder unless their paths are absolute."""
        named = ("tsv", "source", "target", "jsonl", "alignments")
        found = {name: getattr(self, name) for name in named}
        moved = {name: folder / path for name, path in found.items() if path is not None}
        return self.model_copy(update=moved)

    def __str__(self) -> str:
        return " and ".join(str(path) for path in self.paths if path != self.alignments)


def one_place(*ways: Mapping[str, Path | None]) -> None:
    """Refuse files that are named in no way or in several, and say how to take one out.

    ways  the keys that belong together, and what they name
    """
    given = [[key for key, path in way.items() if path is not None] for way in ways]
    given = [keys for keys in given if keys]
    if len(given) == 1:
        return
    choice = "; ".join(" and ".join(way) for way in ways)
    if not given:
        raise ValueError(f"give one of: {choice}")
    *most, last = chain.from_iterable(given)
    out = ", or ".join(" ".join(f"{key}=null" for key in keys) for keys in given)
    raise ValueError(
        f"{', '.join(most)} and {last} are given; give one of: {choice} (take one out: {out})"
    )


@dataclass
class Report:
    """The pairs, counted: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "pair"  # the name of what is counted

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    stray: int = 0  # links of an alignment to words that are not there
    first: str = ""  # the first of them, and where it is
    header: str = ""  # the first line, if it is kept as a pair but looks like names of columns

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def drop_kept(self, reason: str) -> None:
        """Count one as dropped that had been counted as kept."""
        self.kept -= 1
        self.drop(reason)

    def told(self, what: str) -> Iterator[str]:
        """Lines on what was read."""
        yield f"{what}: {self}"

    def __str__(self) -> str:
        lost = sum(self.dropped.values())
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.dropped.items()))
        read = counted(self.read, self.one)
        kept = f"{read} read = {self.kept:,} kept + {lost:,} dropped"
        stray = (
            f"; {counted(self.stray, 'link')} to words that are not there left out, the first at "
        )
        stray = stray + self.first if self.stray else ""
        return (f"{kept} ({reasons})" if lost else kept) + stray


def read_pairs(
    files: Files,
    *,
    only: Callable[[str], bool] | None = None,
    longest_characters: int = LONGEST,
    report: Report | None = None,
) -> Iterator[Pair]:
    """The pairs worth keeping, streamed; `report` counts along. Files without any are refused.

    only  whether a source is asked for; other pairs are not counted, and there may be none at all
    """
    report = Report() if report is None else report
    for number, pair in enumerate(_rows(files), 1):
        if (only is None or only(pair.source)) and _keep(pair, longest_characters, report):
            if number == 1 and files.jsonl is None and _names_columns(pair):
                report.header = f"{pair.source}, {pair.target}"
            yield pair
    _some(files, report, only)


def read_linked(
    files: Files,
    *,
    only: Callable[[str], bool] | None = None,
    report: Report | None = None,
) -> Iterator[tuple[Pair, Links]]:
    """The same pairs with their gold alignments; the links of a dropped pair are dropped, too.

    Links to words that are not there are left out, and counted.
    """
    if files.alignments is None:
        raise Refused(f"no alignments are given for {files}; name a Pharaoh file in `alignments`")
    report = Report() if report is None else report
    links = read_alignments(files.alignments)
    names = (str(files), str(files.alignments))
    for number, (pair, linked) in enumerate(_together(_rows(files), links, names, "pairs"), 1):
        if (only is None or only(pair.source)) and _keep(pair, LONGEST, report):
            if files.reverse:
                linked = Links(*(frozenset((j, i) for i, j in some) for some in linked))
            kept = _inside(linked, pair)
            if lost := linked.possible - kept.possible:
                report.stray += len(lost)
                report.first = report.first or _told(min(lost), pair, files, number)
            yield pair, kept
    _some(files, report, only)


def _inside(links: Links, pair: Pair) -> Links:
    """The links between words that exist."""
    S, T = (len(text.split()) for text in pair)
    return Links(*(frozenset((i, j) for i, j in some if i < S and j < T) for some in links))


def _told(link: Link, pair: Pair, files: Files, number: int) -> str:
    """A link to a word that is not there, as its file has it, and where."""
    step = -1 if files.reverse else 1
    i, j = link[::step]
    S, T = [len(text.split()) for text in pair][::step]
    return f"{files.alignments}:{number}: {i}-{j}, where the pair has {S} and {T} words"


def read_alignments(path: Path) -> Iterator[Links]:
    """A line for each pair, its links parted by spaces, source first and from 0.

    "0-0" and "0-0-S" are sure; "0-0-P", "0?0" and "0p0" are possible.
    """
    for number, line in read_lines(path):
        sure: set[Link] = set()
        possible: set[Link] = set()
        for link in line.split():
            found = LINK.fullmatch(link)
            if found is None:
                raise Refused(
                    f"{path}:{number}: '{link[:20]}' is not a link such as 0-0, from 0, or one "
                    "that is possible: 0-0-P, 0?0"
                )
            i, j, kind, other = found.groups()
            both = (int(i), int(j or other))
            (possible if other or kind == "-P" else sure).add(both)
        yield Links(frozenset(sure), frozenset(sure | possible))


def _keep(pair: Pair, longest: int, report: Report) -> bool:
    report.read += 1
    if not pair.source or pair.source.isspace():
        report.drop("blank source")
    elif not pair.target or pair.target.isspace():
        report.drop("blank target")
    elif max(len(pair.source), len(pair.target)) > longest:
        report.drop("too long")
    else:
        report.kept += 1
        return True
    return False


def _names_columns(pair: Pair) -> bool:
    """Whether a first line looks like the names of two columns: English, Chinese; source, target;
    en, zh-CN."""
    roles, codes = frozenset(ROLES.split()), CODES.split()
    names = [side.strip().casefold() for side in pair]
    return names[0] != names[1] and all(
        roles.issuperset(name.replace("_", " ").split())
        or re.sub(r"[-_][a-z]{2,4}$", "", name) in codes
        for name in names
    )


def _some(files: Files, report: Report, only: Callable[[str], bool] | None) -> None:
    if not report.kept and only is None:
        raise Refused(f"there is no pair in {files}: {report}")


def _rows(files: Files) -> Iterator[Pair]:
    if files.tsv is not None:
        pairs = _tsv(files.tsv, files.columns)
    elif files.jsonl is not None:
        pairs = _json(files.jsonl, files.keys)
    else:
        pairs = _aligned(files)
    return (Pair(b, a) for a, b in pairs) if files.reverse else pairs


def _tsv(path: Path, columns: tuple[int, int] | None) -> Iterator[Pair]:
    first, second = columns or (0, 1)
    for number, line in read_lines(path):
        cells = line.split("\t")
        if not line:  # an empty line is an empty pair, counted as such
            yield Pair("", "")
        elif columns is None and len(cells) != 2:
            cure = "; in a recipe, choose two: 'data.train.columns=[0,1]'" if len(cells) > 2 else ""
            raise Refused(f"{path}:{number}: {_shown(cells)} where two are expected{cure}")
        elif len(cells) <= max(first, second):
            raise Refused(
                f"{path}:{number}: {_shown(cells)}, and `columns` asks for number "
                f"{max(first, second)}, counted from 0"
            )
        else:
            yield Pair(cells[first], cells[second])


def _shown(cells: list[str]) -> str:
    """The number of columns of a row, and its beginning."""
    begin = ", ".join(" ".join(cell[:30].split()) for cell in cells[:FEW])
    return f"{counted(len(cells), 'column')} ({begin}{', …' * (len(cells) > FEW)})"


def _json(path: Path, keys: tuple[str, str]) -> Iterator[Pair]:
    for number, line in read_lines(path):
        if not line.strip():
            yield Pair("", "")
            continue
        where = f"{path}:{number}"
        row = read_json(line, where)
        if not isinstance(row, dict):
            raise Refused(f"{where}: not a JSON object with the keys {' and '.join(keys)}")
        for key in keys:
            if not isinstance(row.get(key), str):
                what = "is not a text" if key in row else "is missing"
                raise Refused(f"{where}: the key '{key}' {what}")
        yield Pair(*(encodable(row[key], where) for key in keys))


def _aligned(files: Files) -> Iterator[Pair]:
    assert files.source is not None
    assert files.target is not None
    sides = read_lines(files.source), read_lines(files.target)
    names = (str(files.source), str(files.target))
    for (_, source), (_, target) in _together(*sides, names, "lines"):
        yield Pair(source, target)


def _together(
    left: Iterator[A], right: Iterator[B], names: tuple[str, str], what: str
) -> Iterator[tuple[A, B]]:
    """Read both to their ends, so that a difference is reported with both counts."""
    counts = [0, 0]
    for a, b in zip_longest(left, right):
        counts[0] += a is not None
        counts[1] += b is not None
        if a is not None and b is not None:
            yield a, b
    if counts[0] != counts[1]:
        raise Refused(
            f"{names[0]} has {counts[0]:,} {what} and {names[1]} has {counts[1]:,} lines: "
            "they must be aligned line by line"
        )
