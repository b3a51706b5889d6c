"""A small classification run for tests that only read it: a second or two, once per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heed.events import finish
from heed.running.recipe import resolve
from heed.running.train import train

GOOD = ("good", "fine", "lovely", "great")
BAD = ("bad", "dull", "awful", "poor")
AROUND = ("the film is", "a story , and", "it was", "this one seems really")


def lines() -> list[str]:
    """Every mark in every context: one word decides."""
    marked = [("1", word) for word in GOOD] + [("0", word) for word in BAD]
    return [
        f"{label}\t{around} {word} {end}"
        for label, word in marked
        for around in AROUND
        for end in (".", "today", "indeed , i think")
    ]


def files(folder: Path) -> Path:
    """train.tsv, and the same as valid.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train.tsv", "valid.tsv"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines()), "utf-8")
    return folder


def recipe(folder: Path, **training: Any) -> dict[str, Any]:
    """A BiGRU and static attention."""
    return {
        "task": "classify",
        "data": {
            "folder": str(folder),
            "train": {"tsv": "train.tsv"},
            "valid": {"tsv": "valid.tsv"},
            "test": {"tsv": "valid.tsv"},
            "names": {"0": "disliked", "1": "liked"},
            "tokens": {"kind": "word", "size": 100},
            "longest": 20,
        },
        "model": {
            "encoder": {"kind": "gru", "embedding": 16, "hidden": 16},
            "dropout": 0,
            "embedding_dropout": 0,
        },
        "training": {
            "steps": 60,
            "batch_tokens": 250,
            "rate": 0.02,
            "schedule": "cosine",
            "warmup": 5,
            "log_every": 30,
            "validate_every": 60,
            "save_every": 60,
        }
        | training,
    }


def labelled(factory: pytest.TempPathFactory) -> Path:
    """The folder of the run, trained when it is first needed. Copy it before you change it."""
    folder = factory.getbasetemp() / "labelling"
    if not folder.exists():
        data = files(factory.getbasetemp() / "labelling-data")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            finish(train(resolve(recipe(data)), folder, device="cpu"))
        torch.set_num_threads(threads)
    return folder
