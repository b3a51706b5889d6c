"""What several verbs take alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.errors import Refused

if TYPE_CHECKING:
    from heed.running.evaluate import Files


def files_from(paths: Sequence[Path], alignments: Path | None = None) -> Files:
    """Pairs as they are named on the command line: one file, or source and target."""
    from heed.running.evaluate import Files

    if len(paths) == 2:
        return Files(source=paths[0], target=paths[1], alignments=alignments)
    if len(paths) != 1:
        raise Refused(f"give one file of pairs, or source and target; got {len(paths)} files")
    name = paths[0].name.removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return Files(jsonl=paths[0], alignments=alignments)
    return Files(tsv=paths[0], alignments=alignments)


def decoding_options(**given: Any) -> dict[str, Any]:
    """What was said of decoding; the rest is as the run's recipe has it."""
    said = {name: value for name, value in given.items() if value is not None}
    sampling = [name for name in ("temperature", "top_k", "top_p", "seed") if name in said]
    if sampling and said.setdefault("method", "sample") != "sample":
        option = sampling[0].replace("_", "-")
        raise Refused(f"--{option} is for --method sample, not {said['method']}")
    if "width" in said:
        said.setdefault("method", "beam")
    return said
