"""A translation run for tests that only read it: a few seconds, once per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heed.events import finish
from heed.running.recipe import resolve
from heed.running.train import train


def recipe(**training: Any) -> dict[str, Any]:
    """Luong's decoder without input feeding: the fastest to train."""
    return {
        "task": "translate",
        "data": {
            "grammar": {"pairs": 150, "shortest": 3, "longest": 5, "beyond": 7, "held_out": 6},
            "tokens": {"kind": "word", "size": 500},
        },
        "model": {
            "kind": "recurrent",
            "decoder": "luong",
            "input_feeding": False,
            "embedding": 24,
            "hidden": 32,
            "dropout": 0,
        },
        "training": {
            "steps": 60,
            "batch_tokens": 300,
            "rate": 0.02,
            "warmup": 5,
            "log_every": 30,
            "validate_every": 60,
            "save_every": 60,
        }
        | training,
        "decoding": {"method": "greedy", "longest": 20},
    }


def written(factory: pytest.TempPathFactory) -> Path:
    """The folder of the run, trained when it is first needed. Copy it before you change it."""
    folder = factory.getbasetemp() / "writing"
    if not folder.exists():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            finish(train(resolve(recipe()), folder, device="cpu"))
        torch.set_num_threads(threads)
    return folder
