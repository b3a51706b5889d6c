"""Starting from weights that are there: a run, of this task or another, or a pretrained folder.

What fits by name and shape is taken, and said aloud; where nothing fits, nothing begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.running.events import Note
from heed.running.opening import fits, read_config
from heed.running.shards import is_pretrained
from heed.running.stories import story
from heed.running.stories.story import Start, Story
from heed.training.folder import RunFolder
from heed.training.progress import load_weights


def opened(path: Path) -> Start:
    """The weights and the tokeniser of a folder, checked like any run."""
    if is_pretrained(path):
        return _pretrained(path)
    folder = RunFolder.open(path)
    config = read_config(folder)
    told = story(config.task)
    tokens = told.tokens(folder, config)
    if not folder.model.is_file():
        raise Refused(f"{path} has no model.safetensors yet: its training has not validated once")
    fits(config, folder.model_header(), folder.model)
    return Start(path, config.task, folder.load_model(), told.tokeniser(tokens))


def _pretrained(path: Path) -> Start:
    from heed.running.loading import load  # which many never need

    found = load(path)
    return Start(path, None, found.model.state_dict(), found.tokeniser)


def begin(model: nn.Module, start: Start, told: Story) -> Note | None:
    """Copy a start's weights into a model; what was taken is said where that is not all."""
    if told.whole and start.task == told.name:
        load_weights(model, start.weights)
        return None
    there = told.adopted(model, start)
    mine = model.state_dict()
    taken = [name for name, weight in mine.items() if _fit(weight, there.get(name))]
    if not any(mine[name].ndim > 1 for name in taken):  # a bias alone is worth nothing
        raise Refused(f"nothing of {start.path} fits the recipe's model: {_odd(mine, there)}")
    with torch.no_grad():
        for name in taken:
            mine[name].copy_(there[name])
    new = [name for name in mine if name not in set(taken)]
    if not new:
        return None
    share = f"{len(taken)} of {len(mine)} tensors"
    return Note(f"taken from {start.path}: {share}; new: {_listed(new, taken)}")


def _odd(mine: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    """Why nothing fits: other names, or, where some are the same, another size."""
    both = (name for name, weight in mine.items() if name in there and weight.ndim > 1)
    name = next(both, None)
    said = "no weight has its name and shape"
    if name is None:
        return said
    sizes = f"{tuple(there[name].shape)} there and {tuple(mine[name].shape)} here"
    return f"{said}; '{name}' is {sizes}: give the recipe's model that size"


def _fit(mine: Tensor, there: Tensor | None) -> bool:
    return there is not None and there.shape == mine.shape


def _listed(new: list[str], taken: list[str]) -> str:
    """What is new, each part of which nothing was taken by one name: answer.*"""
    known = {".".join(name.split(".")[:n]) for name in taken for n in range(1, name.count(".") + 2)}
    found: dict[str, None] = {}
    for name in new:
        words = name.split(".")
        for n in range(1, len(words) + 1):
            if (part := ".".join(words[:n])) not in known:
                found[part if n == len(words) else f"{part}.*"] = None
                break
    return ", ".join(found)
