"""A run whose files are not those that the training wrote is refused by every verb, in one line."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heed.errors import HeedError
from heed.events import finish
from heed.running.converting import convert
from heed.running.evaluate import evaluate
from heed.running.history import history
from heed.running.learner import Learner
from heed.running.predict import predict
from heed.running.recipe import resolve
from heed.running.showing import show
from heed.running.train import train
from heed.running.walking import walk
from tests.running.small import small

FLIPS = 12  # of each file

TEXT = "我 爱 中国"


def resumed(run: Path) -> object:
    return finish(train(None, run, resume=True, device="cpu"))


def started(run: Path) -> object:
    """A training from the run's weights, in a new folder."""
    new = run.with_name("new")
    return finish(train(resolve(small(epochs=1)), new, start=run, device="cpu"))


def predicted(run: Path) -> object:
    (run.parent / "in.txt").write_text(f"{TEXT}\n")
    return list(predict(run, str(run.parent / "in.txt"), device="cpu"))


VERBS: dict[str, Callable[[Path], object]] = {
    "evaluate": lambda run: finish(evaluate(run, "test", device="cpu")),
    "predict": predicted,
    "show": lambda run: show(run, [TEXT], device="cpu"),
    "show --walk": lambda run: walk(run, [TEXT], device="cpu"),
    "show --history": history,
    "convert": lambda run: finish(convert(str(run), run.with_name("converted"))),
    "train --resume": resumed,
    "train --from": started,
}


def damages(data: bytes, draw: random.Random) -> Iterator[bytes | None]:
    """The data with a bit flipped, cut off, extended; None: the file is removed."""
    for place in [0, len(data) - 1, *draw.choices(range(len(data)), k=FLIPS)]:
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        yield bytes(changed)
    yield from (b"", data[: len(data) // 2], data[:-1], data + b"\n", data + b"\0", None)


def files(run: Path) -> list[str]:
    """What a finished run reads again; the rest is a diary, and checkpoints have their own."""
    diary = ("metrics.jsonl", "events.", "samples/", "checkpoints/", ".heed.lock")
    found = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith(diary))


def refusal(verb: str, run: Path) -> str:
    try:
        VERBS[verb](run)
    except HeedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_damage_is_refused_by_every_verb(trained: Path, tmp_path: Path, verb: str) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    draw = random.Random(5)
    kept = files(run)
    assert {"model.safetensors", "tokenizer.json", "target_tokenizer.json", "manifest.json"} <= {
        *kept
    }
    for name in kept:
        if name.startswith("cache/") and verb != "train --resume":
            continue  # only a training reads it
        whole = (run / name).read_bytes()
        for data in damages(whole, draw):
            (run / name).unlink()
            if data is not None:
                (run / name).write_bytes(data)
            said = refusal(verb, run)
            assert Path(name).name in said, (name, said)
            assert "\n" not in said
            (run / name).write_bytes(whole)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "converted").exists()


def test_what_is_damaged_before_the_last_scoring_is_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.learn

    def late(learner: Learner) -> Any:
        yield from learn(learner)
        path = learner.folder.model
        data = bytearray(path.read_bytes())
        data[-1] ^= 64
        path.write_bytes(data)

    monkeypatch.setattr(Learner, "learn", late)
    with pytest.raises(HeedError, match=r"model\.safetensors is damaged or was changed"):
        finish(train(resolve(small(epochs=1)), tmp_path / "run", device="cpu"))
    assert not (tmp_path / "run/scores.json").exists()


def test_a_run_that_was_never_damaged_is_opened_by_every_verb(
    trained: Path, tmp_path: Path
) -> None:
    """But not converted: Hugging Face has no such model."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    said = {verb: refusal(verb, run) for verb in VERBS}
    assert "no equivalent of the model" in said.pop("convert")
    assert not any(said.values()), said
