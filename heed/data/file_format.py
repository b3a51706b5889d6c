"""Files as a recipe names them: by the key of their format, or simply by a path that shows it.

train: {csv: reviews.csv}                  or      train: reviews.csv
train: {csv: reviews.csv, text: review}    or      train: {path: reviews.csv, text: review}
"""

from collections.abc import Collection
from os import PathLike, fspath
from typing import Any

from pydantic import BaseModel

from heed.data.text import is_json_lines

ENDINGS = ("csv", "tsv", "jsonl", "txt")
"""Endings of paths that a recipe may name alone, without the key of their format."""


def format_of(path: str | PathLike[str], known: Collection[str]) -> str | None:
    """The format of a file, of those known, by its ending; None if that does not show it."""
    name = fspath(path).casefold().removesuffix(".gz")
    dot, ending = name.rpartition(".")[1:]
    found = "jsonl" if is_json_lines(name) else ending
    return found if dot and found in known else None


def by_format(given: Any, known: Collection[str]) -> Any:
    """Settings of a file as they are; a path under the key of its format. A .txt is a TSV file.

    A path with further keys is the value of `path`.
    known  the formats, which are keys; anything else is a ValueError that names them
    """
    if isinstance(given, dict) and "path" in given:
        rest = {key: value for key, value in given.items() if key != "path"}
        return {**by_format(given["path"], known), **rest}
    if isinstance(given, dict | BaseModel):
        return given
    is_path = isinstance(given, str | PathLike)
    kind = format_of(given, (*known, "txt")) if is_path else None
    if kind is None:
        *most, last = (f"{key}=FILE" for key in known)
        what = "the ending does not show the format" if is_path else "this is not one file"
        if is_path and (other := format_of(given, ENDINGS)):
            what = f"{other} files are not read here"
        raise ValueError(f"{what}; give {', '.join(most)} or {last}")
    return {"tsv" if kind == "txt" else kind: given}
