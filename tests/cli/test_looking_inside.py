"""docs/looking-inside.md: its commands work as described, and its pictures exist and are small."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import heed
from tests.running.folders import network, save
from tests.running.writing import written

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "looking-inside.md").read_text("utf-8")
LINES = re.findall(r"^    heed (show .*?)(?:  .*)?$", PAGE, re.MULTILINE)


def gpt2(folder: Path) -> None:
    """Two layers of four heads, and a piece for every byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(["<|endoftext|>"])
    transformers.GPT2TokenizerFast(tokenizer_object=words).save_pretrained(folder)
    sizes = {"vocab_size": words.get_vocab_size(), "n_positions": 32, "n_embd": 16, "n_head": 4}
    save(network("GPT2LMHeadModel", **sizes), folder, words=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the page names."""
    folder = tmp_path_factory.mktemp("looking")
    run = written(tmp_path_factory)
    (folder / "runs/demo").mkdir(parents=True)
    for name in ("demo/additive", "mine", "other"):
        (folder / "runs" / name).symlink_to(run)
    gpt2(folder / "path/to/gpt2")
    layer = heed.MultiHeadAttention(8, 2).eval()
    with torch.no_grad(), heed.watch(layer, statistics=heed.Summary(map=(4, 4))) as seen:
        layer(torch.randn(1, 9, 8))
    seen.save(folder / "long.safetensors")
    return folder


@pytest.mark.parametrize("line", LINES)
def test_its_commands_work(
    command: Callable[..., Any], here: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    done = command(*shlex.split(line.replace("--at love", "--at 0")))  # it learned few words
    assert (done.code, done.err) == (0, "")
    for name in re.findall(r"--(?:html|svg) (\S+)", line):
        assert (here / name).stat().st_size > 1000
        assert name in done.out


def test_it_shows_every_kind() -> None:
    assert len(LINES) >= 7
    assert any(line.startswith("show path/to/gpt2") for line in LINES)
    assert any(line.startswith("show long.safetensors") for line in LINES)


def test_its_pictures_exist_and_are_small() -> None:
    named = re.findall(r"^!\[.+\]\((.+)\)$", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in DOCS.glob("looking-inside-*"))
    assert sum((DOCS / name).stat().st_size for name in named) < 400_000
