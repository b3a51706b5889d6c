"""A run folder may be anybody's: its contents are treated as data, and faults are refused.

Each case spoils a copy of a good run in one way, and gives it a valid manifest. All are opened in
one process, which is watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from heed.errors import HeedError
from heed.running.opening import Run, open_run
from heed.running.passes import one_pass
from heed.storage import checkpoint, tensors
from heed.storage.run_folder import RunFolder
from heed.viewing.looking import Look
from tests.running.small import Server

Spoil = Callable[[Path], object]
BOTH = ("evaluate", "resume")
EVALUATE = ("evaluate",)
RESUME = ("resume",)

CASES: dict[str, tuple[Spoil, tuple[str, ...]]] = {}


def translated(run: Run, sentence: str) -> Look:
    return one_pass(run.worker, (sentence,), choice=run.config.decoding).look


def config(**changes: Any) -> Spoil:
    """Change config.json; model_x changes x of its model."""

    def spoil(run: Path) -> None:
        found = json.loads((run / "config.json").read_text())
        for name, value in changes.items():
            place = found["model"] if name.startswith("model_") else found
            place[name.removeprefix("model_")] = value
        (run / "config.json").write_text(json.dumps(found))

    return spoil


def recipe(path: str, value: Any) -> Spoil:
    def spoil(run: Path) -> None:
        found = yaml.safe_load((run / "recipe.yaml").read_text())
        *above, last = path.split(".")
        place = found
        for key in above:
            place = place[key]
        place[last] = value
        (run / "recipe.yaml").write_text(yaml.safe_dump(found))

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda run: [spoil(run) for spoil in spoils]


def written(name: str, text: str | bytes) -> Spoil:
    data = text.encode() if isinstance(text, str) else text
    return lambda run: (run / name).write_bytes(data)


def gone(name: str) -> Spoil:
    def spoil(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def link(name: str) -> Spoil:
    """A link to an identical file elsewhere."""

    def spoil(run: Path) -> None:
        outside = run.with_name(f"{run.name}-outside")
        outside.mkdir()
        (run / name).rename(outside / "taken")
        (run / name).symlink_to(outside / "taken")

    return spoil


def pipe(name: str) -> Spoil:
    """A pipe, on which a reader would wait for ever."""
    return both(gone(name), lambda run: os.mkfifo(run / name))


def tokenizer(**changes: Any) -> Spoil:
    def spoil(run: Path) -> None:
        found = json.loads((run / "tokenizer.json").read_text())
        found |= changes
        (run / "tokenizer.json").write_text(json.dumps(found))

    return spoil


def vocabulary(change: Callable[[dict[str, int]], object]) -> Spoil:
    def spoil(run: Path) -> None:
        found = json.loads((run / "tokenizer.json").read_text())
        change(found["model"]["vocab"])
        (run / "tokenizer.json").write_text(json.dumps(found))

    return spoil


def weights(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Another header over the same numbers."""

    def spoil(run: Path) -> None:
        data = (run / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        head = len(text).to_bytes(8, "little") + text
        (run / "model.safetensors").write_bytes(head + data[8 + size :])

    return spoil


def first(header: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name != "__metadata__")


def cached(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(run: Path) -> None:
        found = json.loads((run / "cache/train.json").read_text())
        change(found)
        (run / "cache/train.json").write_text(json.dumps(found))

    return spoil


def example(part: str = "test", **changes: Any) -> Spoil:
    row = {"source": "我 爱 你", "target": "i love you"} | changes
    return written(f"examples/{part}.jsonl", json.dumps(row) + "\n")


HUGE = {"model_hidden": 8192, "model_embedding": 8192, "model_layers": 16}
DEEP = {"kind": "transformer", "encoder_layers": 100, "decoder_layers": 100, "width": 8192}

CASES |= {
    "huge": (config(**HUGE), BOTH),
    "huge, and the recipe too": (
        both(
            config(**HUGE),
            recipe("model.hidden", 8192),
            recipe("model.embedding", 8192),
            recipe("model.layers", 16),
        ),
        BOTH,
    ),
    "a hundred layers": (
        both(config(model=DEEP), recipe("model", DEEP)),
        BOTH,
    ),
    "two million symbols": (config(source=2_000_000, target=2_000_000), BOTH),
    "a trillion symbols": (config(source=10**12), BOTH),
    "os.system": (config(model_attention="os.system"), BOTH),
    "__import__": (config(model_attention="__import__('os')"), BOTH),
    "a class": (config(model_kind="torch.nn.Linear"), BOTH),
    "wrong type": (config(longest="long"), BOTH),
    "nan": (config(model_dropout=float("nan")), BOTH),
    "inf": (config(model_dropout=float("inf")), BOTH),
    "negative": (config(model_hidden=-16), BOTH),
    "an extra key": (config(extra=1), BOTH),
    "an extra key of the model": (config(model_extra=1), BOTH),
    "another task": (config(task="caption"), BOTH),
    "no task": (config(task=None), BOTH),
    "a list": (written("config.json", "[]"), BOTH),
    "deep": (written("config.json", "[" * 100_000), BOTH),
    "deep and closed": (written("config.json", "[" * 200 + "]" * 200), BOTH),
    "a hundred megabytes": (written("config.json", b'{"heed": "' + b"x" * 10**8 + b'"}'), BOTH),
    "a key twice": (written("config.json", '{"task": "translate", "task": "translate"}'), BOTH),
    "no json": (written("config.json", b"\xff\0"), BOTH),
    "no weights": (gone("model.safetensors"), EVALUATE),
    "no tokeniser": (gone("tokenizer.json"), BOTH),
    "weights cut off": (
        lambda run: os.truncate(run / "model.safetensors", 5000),
        BOTH,
    ),
    "an empty file of weights": (written("model.safetensors", b""), BOTH),
    "a header that lies": (written("model.safetensors", b"\xff" * 7 + b"\x7f{}"), BOTH),
    "a header of words": (written("model.safetensors", b"\x02" + b"\0" * 7 + b"no"), BOTH),
    "overlap": (weights(lambda header: first(header).update(data_offsets=[0, 4])), BOTH),
    "a terabyte": (
        weights(lambda header: first(header).update(shape=[2**40], data_offsets=[0, 2**42])),
        BOTH,
    ),
    "a negative shape": (weights(lambda header: first(header).update(shape=[-1, -4])), BOTH),
    "an unknown dtype": (weights(lambda header: first(header).update(dtype="O")), BOTH),
    "other names": (weights(lambda header: header.update(x=header.pop(list(header)[-1]))), BOTH),
    "another tokeniser": (tokenizer(pre_tokenizer={"type": "Whitespace"}), BOTH),
    "a tokeniser with a path": (
        tokenizer(model={"type": "WordPiece", "vocab": "/etc/passwd", "unk_token": "[UNK]"}),
        BOTH,
    ),
    "a tokeniser that pads": (
        tokenizer(padding={"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0}),
        BOTH,
    ),
    "a symbol number of billions": (vocabulary(lambda words: words.update(x=2**31)), BOTH),
    "a symbol more": (vocabulary(lambda words: words.update(x=len(words))), BOTH),
    "a tokeniser that is none": (written("tokenizer.json", "{}"), BOTH),
    "no tokeniser but a list": (written("tokenizer.json", "[[]]"), BOTH),
    "python in the recipe": (
        written("recipe.yaml", "task: !!python/object/apply:os.system [touch here]\n"),
        RESUME,
    ),
    "an alias in the recipe": (written("recipe.yaml", "a: &a [1]\nb: *a\n"), RESUME),
    "a recipe of another model": (recipe("model.hidden", 8192), RESUME),
    "files outside, and no cache": (
        both(
            recipe("data", {"train": {"tsv": "/etc/passwd"}, "valid": {"tsv": "/etc/passwd"}}),
            gone("cache"),
        ),
        RESUME,
    ),
    "another vocabulary's cache": (
        lambda run: (run / "cache/train.source.tokens").write_bytes(
            b"\xff" * (run / "cache/train.source.tokens").stat().st_size
        ),
        RESUME,
    ),
    "a cache without columns": (cached(lambda head: head["columns"].clear()), RESUME),
    "a cache of another column": (
        cached(lambda head: head["columns"].update({"x\0": 1})),
        RESUME,
    ),
    "a cache with a path": (cached(lambda head: head["columns"].update({"../x": 1})), RESUME),
    "a cache of many rows": (cached(lambda head: head.update(rows=10**15)), RESUME),
    "an example that is no object": (written("examples/test.jsonl", "3\n"), BOTH),
    "an example without end": (written("examples/test.jsonl", "[" * 100_000 + "\n"), BOTH),
    "an example that is not a text": (example(source=["我"]), BOTH),
    "a blank example": (example(source=" "), BOTH),
    "half a surrogate": (example(target="\ud800"), BOTH),
    "an endless example": (example(target="a " * 500_000), BOTH),
    "links to infinity": (example(gold=[[[float("inf"), 0]], []]), BOTH),
    "links that are none": (example(gold=[["ab"], []]), BOTH),
    "no test pairs": (written("examples/test.jsonl", ""), BOTH),
    "no valid pairs": (written("examples/valid.jsonl", ""), RESUME),
    "links as a folder": (link("examples"), BOTH),
}
for name in ("config.json", "tokenizer.json", "model.safetensors", "examples/test.jsonl"):
    CASES |= {f"a link for {name}": (link(name), BOTH), f"a pipe for {name}": (pipe(name), BOTH)}
for name in ("recipe.yaml", "metrics.jsonl", "examples/valid.jsonl", "cache/train.source.tokens"):
    CASES[f"a link for {name}"] = (link(name), RESUME)
    CASES[f"a pipe for {name}"] = (pipe(name), RESUME)
for name in ("cache/train.json", "cache", "checkpoints", "samples", "scores.json"):
    CASES[f"a link for {name}"] = (link(name), RESUME)
CASES["a link for target_tokenizer.json"] = (link("target_tokenizer.json"), BOTH)
CASES["a pipe for target_tokenizer.json"] = (pipe("target_tokenizer.json"), BOTH)


@pytest.fixture(scope="module")
def results(
    server: Server, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The result of each case: message, forbidden actions, memory so far in MiB."""
    place = tmp_path_factory.mktemp("spoilt")
    for i, (spoil, _) in enumerate(CASES.values()):
        shutil.copytree(trained, place / str(i))
        spoil(place / str(i))
        with contextlib.suppress(HeedError):  # it does not hash links and pipes
            RunFolder(place / str(i)).seal()
    good = shutil.copytree(trained, place / "good")
    folders = [str(place / str(i)) for i in range(len(CASES))]
    done = server.call("opened", [str(good), folders]).wait()
    assert done.code == 0, done.err
    found = json.loads(done.out)
    return {
        f"{name} {verb}": found[f"{folders[i]} {verb}"]
        for i, name in enumerate(CASES)
        for verb in BOTH
    }


@pytest.mark.parametrize(
    ("case", "verb"), [(name, verb) for name, (_, verbs) in CASES.items() for verb in verbs]
)
def test_a_fault_is_refused_in_one_line(
    results: dict[str, list[Any]], case: str, verb: str
) -> None:
    message, told, _ = results[f"{case} {verb}"]
    assert not told
    assert message, "accepted"
    assert "\n" not in message.strip()
    assert len(message) < 1000


@pytest.mark.parametrize("case", CASES)
def test_a_fault_without_effect_does_no_harm(results: dict[str, list[Any]], case: str) -> None:
    for verb in BOTH:
        assert not results[f"{case} {verb}"][1]


def test_nothing_large_is_allocated(results: dict[str, list[Any]]) -> None:
    """Memory only grows, so the last value is the maximum over all cases."""
    figures = [memory for _, _, memory in results.values()]
    assert figures[-1] < 1000, figures
    assert figures[-1] < figures[0] + 200, figures


def test_a_good_run_opens_with_the_weights_of_its_file(trained: Path) -> None:
    run = open_run(trained, torch.device("cpu"))
    held = tensors.read(trained / "model.safetensors")
    for name, weight in run.worker.model.state_dict().items():
        assert torch.equal(weight, held[name])
    assert translated(run, "我 爱 中国").leading


def test_weights_that_are_not_finite_are_reported(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    held = tensors.read(run / "model.safetensors")
    held = {name: torch.full_like(weight, float("nan")) for name, weight in held.items()}
    (run / "model.safetensors").write_bytes(b"".join(map(bytes, tensors.parts(held))))
    RunFolder(run).seal()
    with pytest.raises(HeedError, match="diverged"):
        translated(open_run(run, torch.device("cpu")), "我 爱")


def test_a_checkpoint_with_other_sizes_is_refused(
    server: Server, trained: Path, tmp_path: Path
) -> None:
    """With valid hashes, so that only its sizes are wrong."""
    run = shutil.copytree(trained, tmp_path / "run")
    newest = checkpoint.newest(run / "checkpoints", print)
    assert newest is not None
    saved = checkpoint.load(newest)
    name = max(saved.tensors["model"], key=lambda name: saved.tensors["model"][name].numel())
    saved.tensors["model"][name] = torch.zeros(3, 5)
    checkpoint.save(newest, saved.tensors, saved.facts)
    said = server.run("train", run, "--resume").refused()
    assert f"'{name}' is (3, 5), expected " in said
