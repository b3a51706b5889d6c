"""A manifest: the size and the SHA-256 of each file of a folder, sealed by a hash of its own.

    {"format": 2, "files": {"facts.json": [{"size": 9, "sha256": "…"}]}, "seal": "…"}

A file must be in one of the states that are listed for it. There are several only while it is
replaced, since no file system replaces two files at once: the old state and the new one, so that a
kill in between leaves a folder that agrees with its manifest. null is the state of a missing file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from heed.storage import durable
from heed.storage.durable import Damaged, Digest

FORMAT = 2
MANIFEST = "manifest.json"

States = Sequence[Digest | None]
"""The states that a file may be in; None: it is missing."""

Files = Mapping[str, States]
"""The states of each file of a folder, by its name there."""


def dump(files: Files, folder: Path) -> bytes:
    """The manifest of a folder, as its file holds it."""
    try:
        heed = version("heed-attention")
    except PackageNotFoundError:  # run from a checkout that was not installed
        heed = "unknown"
    told = {
        name: [None if state is None else state._asdict() for state in states]
        for name, states in sorted(files.items())
    }
    return _sealed({"format": FORMAT, "heed": heed, "files": told}, folder)


def _sealed(manifest: Mapping[str, Any], folder: Path) -> bytes:
    text = durable.dump_json(dict(manifest), folder / MANIFEST)
    return durable.dump_json({**manifest, "seal": hashlib.sha256(text).hexdigest()}, folder)


def read(folder: Path, allowed: Callable[[str], object]) -> Files:
    """The manifest of a folder; a damaged one, or one with other names than allowed, is refused."""
    path = folder / MANIFEST
    data = durable.read_bytes(path)
    manifest = durable.parse_json(data, path)
    sealed = isinstance(manifest, dict) and manifest.pop("seal", None) is not None
    if not sealed or _sealed(manifest, folder) != data:
        raise Damaged(f"{path} is damaged: it does not match its own hash")
    if manifest.get("format") != FORMAT:
        raise Damaged(f"{path} has the format {manifest.get('format')!r}; this heed reads {FORMAT}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(allowed, files)):
        raise Damaged(f"{path} names files that heed does not write there")
    try:
        return {
            name: [state if state is None else Digest(**state) for state in states]
            for name, states in files.items()
        }
    except TypeError:
        raise Damaged(f"{path} is damaged: it does not say what its files are") from None


def check(path: Path, states: States) -> None:
    """Refuse a file that is in none of these states."""
    if not os.path.lexists(path):
        if None not in states:
            raise Damaged(f"{path} is missing")
    elif not states:
        raise Damaged(f"{path} does not belong there: {MANIFEST} does not name it")
    elif durable.digest_of(path) not in states:
        raise Damaged(f"{path} is damaged or was changed: its size or its hash is another")
