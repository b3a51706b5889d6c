"""Small pretrained folders in Hugging Face's format, and ways to break them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "爱", "🙂", "a", "."]
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": {
        "vocab_size": 20,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 14,
        "max_position_embeddings": 16,
    },
    "GPT2": {
        "vocab_size": 23,
        "n_embd": 10,
        "n_layer": 2,
        "n_head": 5,
        "n_positions": 12,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "XLNet": {"vocab_size": 22, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 14},
}


def network(name: str, **changes: Any) -> Any:
    """A model of theirs, with weights large enough to tell them apart."""
    torch.manual_seed(3)
    cls = getattr(transformers, name)
    family = next(family for family in CONFIGS if name.startswith(family))
    found = cls(cls.config_class(**CONFIGS[family] | changes)).eval()
    for weight in found.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return found


def save(their: Any, folder: Path, shards: int = 1, words: bool = True) -> Path:
    """A folder as `save_pretrained` writes it, in that many shards."""
    size = sum(x.nbytes for x in their.state_dict().values())
    their.save_pretrained(folder, max_shard_size=max(size // shards, 1))
    if words:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
    return folder


def reconfigure(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: x for key, x in config.items() if x is not None}))


def pointer(path: Path) -> None:
    """What git leaves instead of large files that were not fetched."""
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 438000000\n"
    )


def page(path: Path) -> None:
    """What a browser saves instead of a file."""
    path.write_text("<!DOCTYPE html>\n<html><head><title>Log in</title></head></html>\n" * 40)


def cut(path: Path) -> None:
    """An incomplete download."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def headed(path: Path, header: bytes, size: int = 0) -> None:
    """A safetensors file with this header and that many bytes of numbers, on no disk space."""
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)


def hollow(path: Path, named: Mapping[str, Tensor], metadata: object = None) -> None:
    """A safetensors file of such tensors; their numbers, a byte each, take no disk space."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    end = 0
    for name, x in named.items():
        start, end = end, end + x.numel()
        entry = {"dtype": "F8_E4M3", "shape": list(x.shape), "data_offsets": [start, end]}
        header[name] = entry
    headed(path, json.dumps(header).encode(), end)
