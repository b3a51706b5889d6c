"""Prepare the data of a recipe: find its files, write its cache, and keep examples to judge by.

Everything is kept in the run folder, so resuming, evaluating and showing need no other files.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from errno import EISDIR
from itertools import compress
from os.path import lexists
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from heed.answers.form import Example
from heed.data import cache
from heed.data.kinds.text import LONGEST, text_of
from heed.data.text import read_lines
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Codec, Prepared, Start, Task

__all__ = ["LONGEST", "data_root", "prepare", "text_of", "there", "whereabouts"]

PARTS = ("valid", "test", "long")  # of the data, beside what is trained on
CHUNK = 2000  # examples that are tokenised at a time
MOST = 1 << 20  # characters or positions of all of them; one example may have more

ENDINGS = {"csv": ".csv", "tsv": ".tsv", "text": ".txt", "jsonl": ".jsonl"}
"""Endings of the kinds of files that settings may name, the most usual first."""

Kept = TypeVar("Kept")


class _File(NamedTuple):
    """A file that settings name."""

    key: str  # of the recipe
    path: Path
    ending: str  # of such a file


def data_root(folder: str) -> Path:
    """The place of a data folder: in $HEED_DATA, or in the working directory; "." and "./..."
    are always in the working directory."""
    if Path(folder).parts[:1] in ((), ("..",)) or folder.startswith("./"):
        return Path.cwd()
    return Path(os.environ.get("HEED_DATA", ".")).absolute()


def there(data: Any) -> None:
    """Refuse missing files of a recipe's data, before anything is read."""
    folder = getattr(data, "folder", ".")
    for key, path, ending in _files(data, "data"):
        place = data_root(folder) / folder / path
        try:
            reason = os.strerror(EISDIR) if stat.S_ISDIR(place.stat().st_mode) else ""
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            reason = getattr(error, "strerror", None) or str(error)
        if reason:
            own = f"{key}=/your/file{ending}"
            raise Refused(f"{key}: cannot read {place}: {reason}{_where(folder, path, own)}")


def whereabouts(data: Any) -> Any:
    """A recipe's data settings, with the real path of each file."""
    folder = getattr(data, "folder", None)
    return _placed(data, None if folder is None else data_root(folder) / folder)


def _placed(told: Any, root: Path | None) -> Any:
    if isinstance(told, Path):
        place = told if root is None else root / told
        return str(place) if "\0" in str(place) else os.path.realpath(place)
    if isinstance(told, tuple):
        return [_placed(each, root) for each in told]
    if isinstance(told, BaseModel):
        names = type(told).model_fields.keys() - ({"folder"} if root else set())
        return {name: _placed(getattr(told, name), root) for name in names}
    return told


def _where(folder: str, path: Path, own: str) -> str:
    """A hint at how to set the data folder, if it is not set, or if the file is near; or, where a
    recipe has no folder of its own, at how to give the file.

    own  the key that names a file, and an example of one
    """
    if "~" in Path(folder, path).parts:
        return "; a shell leaves ~ after = as it is: write $HOME"
    if not Path(folder).parts:
        return f"; give your own: {own}"
    if not Path(folder).is_absolute():
        for near in (f"./{folder.removeprefix('./')}", "."):
            if (Path.cwd() / near / path).is_file():
                return f"; it is here: data.folder={near}"
    if "HEED_DATA" in os.environ or Path(folder).is_absolute() or folder.startswith("."):
        return ""
    return f"; set its folder: HEED_DATA=/your/data, or data.folder=/your/{folder}"


def _files(told: Any, key: str, ending: str = "") -> Iterator[_File]:
    """Every file inside settings.

    ending  that of the files which the key may name; by default, that of each path
    """
    if isinstance(told, Path):
        yield _File(key, told, ending or told.suffix)
    elif isinstance(told, tuple):
        for each in told:
            yield from _files(each, key, ending)
    elif isinstance(told, BaseModel):
        fields = type(told).model_fields
        first = next((ENDINGS[kind] for kind in ENDINGS if kind in fields), "")
        for name in fields:
            inner = getattr(told, name)
            if isinstance(inner, tuple) or _is_path_alone(told, inner):
                yield from _files(inner, key, first)
            else:
                yield from _files(inner, f"{key}.{name}")


def _is_path_alone(told: BaseModel, inner: Any) -> bool:
    """Whether settings say no more than a path, so that their own key may name it."""
    try:
        return isinstance(inner, Path) and type(told).model_validate(inner) == told
    except ValidationError:
        return False


def prepare(
    task: Task[Any, Any], recipe: Any, folder: RunFolder, start: Start | None = None
) -> Work[Prepared]:
    """Fit the codec, write the cache, and keep the other parts; finished steps are not repeated."""
    if not ready(folder):
        yield from _write(task, recipe, folder, start)
    facts = folder.read_json(folder.plain(folder.cache / "codec.json"))
    codec = task.codec(folder, task.config.model_validate(facts))
    optional, widths = codec.form.optional, codec.widths
    train = cached(folder, codec.fingerprint, codec.sizes, optional, widths)
    return Prepared(codec, train, list(examples_of(task, codec, folder, "valid")))


def examples_of(
    task: Task[Any, Any], codec: Codec, folder: RunFolder, part: str
) -> Iterator[Example]:
    """The examples of a part, as the run folder keeps them."""
    return task.joined(kept(folder, part, codec.of_data, task.examples_are))


def _write(task: Task[Any, Any], recipe: Any, folder: RunFolder, start: Start | None) -> Work[None]:
    root = data_root(recipe.data.folder)
    codec = yield from task.fit(recipe, folder, root, start)
    report = task.report()
    cut = yield from _encode(task, recipe, codec, folder, root, report)
    yield from map(Note, task.report_lines("train", report, codec, cut))
    train = Prepared(codec, cache.Corpus.open(folder.cache, "train", codec.fingerprint), [])
    task.beside(folder, train)
    yield from map(Note, task.noted(recipe, train))
    for part in task.parts(recipe.data):
        counted = task.report()
        found = task.examples(recipe.data, part, root, counted, codec)
        keep(folder, part, map(codec.as_data, found), task.examples_are)
        yield from map(Note, task.report_lines(part, counted, codec, 0))
    facts = task.describe(recipe, train)
    folder.write_json(folder.cache / "codec.json", facts.model_dump(mode="json"))
    folder.write_json(folder.cache / "ready.json", {task.examples_are: report.kept})


def _encode(
    task: Task[Any, Any], recipe: Any, codec: Codec, folder: RunFolder, root: Path, report: Any
) -> Work[int]:
    """Write the training examples as numbers; returns how many of them were cut."""
    cut, read, longest = 0, 0, task.longest(recipe)
    texts = any(not kind.width for kind in codec.inputs.values())
    with cache.Writer(
        folder.cache,
        "train",
        list(codec.inputs) + list(codec.form.sizes),
        vocabulary=max(codec.sizes.values(), default=0),
        widths=codec.widths,
        fingerprint=codec.fingerprint,
    ) as writer:
        for some in _chunks(task.examples(recipe.data, "train", root, report, codec)):
            columns, read = task.rows(codec, some), read + len(some)
            if longest is not None:
                counted = [columns[name] for name in (*codec.inputs, codec.form.column)]
                short = [max(map(len, row)) <= longest for row in zip(*counted, strict=True)]
                for _ in range(len(short) - sum(short)):
                    report.drop_kept("too long")
                columns = {name: list(compress(rows, short)) for name, rows in columns.items()}
            else:
                for name, kind in codec.inputs.items():
                    rows = [kind.cut(row) for row in columns[name]]
                    both = zip(rows, columns[name], strict=True)
                    cut += sum(len(row) < len(whole) for row, whole in both)
                    columns[name] = rows
            writer.add(columns)
            yield Progress("tokenising" if texts else "reading", read)
    if not report.kept:
        raise Refused(f"there is nothing to train on: {report}")
    return cut


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    """Examples that are tokenised at once."""
    some, size = list[Example](), 0
    for each in examples:
        some.append(each)
        size += sum(map(len, each.inputs))
        if len(some) == CHUNK or size >= MOST:
            yield some
            some, size = [], 0
    if some:
        yield some


def ready(folder: RunFolder) -> bool:
    """Whether the data is already prepared; a run that has lost its cache is refused."""
    if (folder.cache / "ready.json").exists():
        return True
    if folder.config.exists():  # it is written after the cache
        raise Refused(f"{folder.path} has lost its cache; start again: --overwrite")
    return False


def cached(
    folder: RunFolder,
    fingerprint: str,
    sizes: Mapping[str, int],
    empty: Collection[str] = (),
    widths: Mapping[str, int] = {},
) -> cache.Corpus:
    """The training examples as numbers, refused unless every one fits.

    sizes   how many different numbers each column of symbols may have
    empty   the columns in which a row may have none
    widths  how many real numbers a position has, in the other columns
    """
    for path in folder.inside(folder.cache).iterdir():
        folder.plain(path)
    train = cache.Corpus.open(folder.cache, "train", fingerprint)
    sound = bool(len(train)) and train.tokens.keys() == sizes.keys() | widths.keys()
    sound = sound and all(
        (column in empty or train.lengths[column].min() > 0)
        and train.tokens[column].max(initial=0) < size
        for column, size in sizes.items()
    )
    sound = sound and all(
        train.tokens[column].shape[1:] == (width,) and bool(np.isfinite(train.tokens[column]).all())
        for column, width in widths.items()
    )
    if not sound:
        raise Refused(f"{folder.cache} does not fit the tokenisers; start again: --overwrite")
    return train


def keep(folder: RunFolder, part: str, records: Iterable[Any], what: str = "examples") -> None:
    """Write examples/PART.jsonl, a line for each record of plain data; an empty part is refused."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    if not lines:
        raise Refused(f"there are no {part} {what}")
    folder.write_text(folder.examples / f"{part}.jsonl", "\n".join(lines) + "\n")


def kept(
    folder: RunFolder, part: str, parse: Callable[[Any], Kept], what: str = "examples"
) -> Iterator[Kept]:
    """The examples of a part, as the run folder keeps them.

    parse  makes an example of plain data; an error means that the line is not an example, since the
           folder is not trusted
    """
    path = folder.inside(folder.examples / f"{part}.jsonl")
    if not path.is_file() or not path.stat().st_size:
        there = [each for each in PARTS if (folder.examples / f"{each}.jsonl").is_file()]
        which = f"; name one of {', '.join(there)}, or" if there else ";"
        raise Refused(f"{folder.path} keeps no {part} {what}{which} give a file")
    for number, line in read_lines(folder.plain(path)):
        try:
            yield parse(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Refused(f"{path}:{number}: not an example") from None


def parts_of(folder: RunFolder) -> list[str]:
    """The parts of which a run keeps examples."""
    return [part for part in PARTS if (folder.examples / f"{part}.jsonl").exists()]


def kept_part(folder: RunFolder) -> str | None:
    """The test that a run keeps, or otherwise its validation; None if it keeps neither.

    Anything of the test's name counts, even if it is not a file: that is refused when it is read.
    """
    parts = ("test", "valid")
    return next((part for part in parts if lexists(folder.examples / f"{part}.jsonl")), None)


def judged_part(folder: RunFolder) -> str:
    """The part for the final scores: the test, unless a run keeps only the validation."""
    return kept_part(folder) or "test"


def scored_part(folder: RunFolder, part: str) -> Work[str]:
    """The part that is requested; if there is no test, the validation."""
    if part == "test" and (other := judged_part(folder)) != "test":
        yield Note("this run keeps no test text: scoring the validation text")
        return other
    return part


def shown_part(folder: RunFolder, what: str = "text") -> str:
    """The part with examples to show; refused if none is kept."""
    part = kept_part(folder)
    if part is None:
        raise Refused(f"{folder.path} keeps no examples; give a {what}")
    return part
