"""The examples that a run keeps."""

from __future__ import annotations

from pathlib import Path

from heed.answers.form import Example
from heed.running import preparing
from heed.running.opening import read_config
from heed.running.stories import story
from heed.storage.run_folder import RunFolder


def kept(path: Path, part: str) -> list[Example]:
    """Those of a part."""
    folder = RunFolder(path)
    config = read_config(folder)
    codec = story(config.task).tokens(folder, config)
    return list(preparing.kept(folder, part, codec.of_data, "pairs"))
