"""A folder by its path, or by its name at the Hugging Face hub.

    folder_of("models/bert")            # an existing folder always comes first
    folder_of("bert-base-uncased")      # otherwise the cache of the hub, otherwise a download

Offline first: what is in huggingface_hub's cache is used without a request. A name that can only
be a path is refused at once; for any other, the hub must answer within a few seconds.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from heed.data import vocabularies
from heed.errors import Refused
from heed.running.shards import Shelf, find

WANTED = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    *vocabularies.FILES,
)
"""What is downloaded: data, and nothing that could be executed."""

HUB_NAME = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", re.ASCII)

PATIENCE = 10
"""Seconds in which the hub must answer whether it has a model."""


def folder_of(source: str | os.PathLike[str], revision: str | None = None) -> Path:
    """An existing folder; otherwise the hub's cached model of that name; otherwise a download."""
    path, name = Path(source), os.fspath(source)
    if path.is_dir():
        return path
    if path.exists():
        raise Refused(f"{name} is a file; give the folder that it is in")
    missing = f"there is no folder {name}{_near(path)}"
    if HUB_NAME.fullmatch(name) is None or ".." in name or name.startswith((".", "/", "~")):
        raise Refused(f"{missing}, and it cannot be a name at the Hugging Face hub")
    found = _cached(name, revision)
    if found is None and path.parent.name and path.parent.is_dir():
        raise Refused(f"{missing}; the hub was not asked, since {path.parent} is a folder here")
    return found or _downloaded(name, revision, missing)


def _near(path: Path) -> str:
    """A hint at a folder with a similar name."""
    try:
        there = [each.name for each in path.parent.iterdir() if each.is_dir()]
    except OSError:
        return ""
    close = get_close_matches(path.name, there, 1)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""


def _cached(name: str, revision: str | None) -> Path | None:
    """The folder that was downloaded before, if it is complete."""
    wanted: Any = {"revision": revision, "allow_patterns": list(WANTED)}
    try:
        from huggingface_hub import snapshot_download

        path = Path(snapshot_download(name, local_files_only=True, **wanted))
        find(Shelf(path))
    except Exception:  # missing or incomplete: the hub is asked next
        return None
    return path if (path / "config.json").exists() else None


def _downloaded(name: str, revision: str | None, missing: str) -> Path:
    try:
        from huggingface_hub import errors, model_info, snapshot_download
    except ImportError:
        raise Refused(f"{missing}; to ask the hub for it: pip install huggingface_hub") from None
    try:
        model_info(name, revision=revision, timeout=PATIENCE)
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
    except errors.GatedRepoError:
        reason = "and the hub requires granted access for it"
    except errors.RepositoryNotFoundError:
        reason = "and the hub has no model of this name"
    except errors.RevisionNotFoundError:
        reason = f"and at the hub it has no revision {revision}"
    except Exception as error:  # a network fails in many ways
        first = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"and the hub cannot be reached ({first[0][:200]})"
    raise Refused(f"{missing}, {reason}")
