"""Evaluate: the task's metrics, on what a run keeps or on other pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heed.data.pairs import Files, Report
from heed.running.devices import chosen
from heed.running.events import Note, Progress, Work
from heed.running.opening import open_run
from heed.running.preparing import kept
from heed.tasks.measuring import to_pharaoh
from heed.tasks.translate import Scores, from_files, judged
from heed.tasks.translator import Decoding, Example, Reading, Translation, Translator


class Evaluated(NamedTuple):
    """The scores, and what they are scores of."""

    scores: Scores
    pairs: list[Example]
    written: list[Translation]
    readings: list[Reading]

    def pharaoh(self) -> list[str]:
        """The words that the model links while it reads each pair, "0-0 1-2"; blank without."""
        return [to_pharaoh(each.links or []) for each in self.readings]


def evaluate(
    path: Path,
    data: Files | str = "test",
    *,
    device: str = "auto",
    decoding: Mapping[str, Any] | None = None,
) -> Work[Evaluated]:
    """Score a run on files, or on a part that it keeps (valid, test, long).

    decoding  what to choose otherwise than the recipe did, such as {"width": 1}
    """
    run = open_run(path, chosen(device))
    if isinstance(data, str):
        pairs = list(kept(run.folder, data))
    else:
        report = Report()
        pairs = list(from_files(data, report))
        yield Note(str(report))
    return (
        yield from evaluated(
            run.translator, pairs, run.decoding(decoding or {}), run.config.lowercase
        )
    )


def evaluated(
    translator: Translator,
    pairs: Sequence[Example],
    decoding: Decoding,
    lowercase: bool,
    *,
    stage: str = "translating",
) -> Work[Evaluated]:
    """Translate the sources and judge what comes."""
    sources = [pair.source for pair in pairs]
    found: dict[int, Translation] = {}
    for done in translator.stream(sources, decoding):
        found |= {i: best[0] for i, best in done.items()}
        yield Progress(stage, len(found), len(pairs))
    written = [found[i] for i in range(len(pairs))]
    readings = translator.read(pairs)
    scores = judged(pairs, written, readings, lowercase=lowercase)
    return Evaluated(scores, list(pairs), written, readings)
