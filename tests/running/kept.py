"""The examples that a run keeps."""

from __future__ import annotations

from pathlib import Path

from heed.answers.form import Example
from heed.running import preparing
from heed.running.opening import read_config
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of


def kept(path: Path, part: str) -> list[Example]:
    """Those of a part."""
    folder = RunFolder(path)
    config = read_config(folder)
    codec = task_of(config.task).codec(folder, config)
    return list(preparing.kept(folder, part, codec.of_data, "pairs"))
