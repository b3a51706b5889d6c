"""Opening a run or a pretrained folder, trusted or not, as a model that is ready to use.

No code that the folder names is imported, no file outside it is read, and no weight is allocated
before the file of weights is known to hold what the configuration describes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from heed.answers.worker import Worker
from heed.errors import Refused, UnknownName
from heed.running.hub import folder_of
from heed.running.shards import is_pretrained
from heed.settings import check_keys, complaint
from heed.storage.run_folder import RunFolder
from heed.storage.tensors import header, tied
from heed.tasks import task_of
from heed.tasks.task import Codec, Config, Task


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, opened: its worker applies the trained model."""

    folder: RunFolder
    config: Any
    worker: Worker
    task: Task[Any, Any]


def open_run(path: Path, device: torch.device, asked: Collection[str] = ()) -> Run:
    """The model of a run, or of a pretrained folder, ready to use.

    path   a folder, or a pretrained model's name at the Hugging Face hub
    asked  the options that were given: they choose the task of a pretrained model that has several
    """
    path = folder_of(path)
    if is_pretrained(path):
        from heed.running.adopting import adopt  # rarely needed

        return adopt(path, device, asked)
    folder, config, task, codec = checked(path)
    model = config.build()
    model.load_state_dict(folder.load_model())
    return Run(folder, config, task.worker(model.to(device), codec, config, device), task)


def checked(path: Path) -> tuple[RunFolder, Any, Task[Any, Any], Codec]:
    """A run whose weights exist and fit: its folder, config, task and codec."""
    folder = RunFolder.open(path)
    config = read_config(folder)
    task = task_of(config.task)
    codec = task.codec(folder, config)
    check_weights(folder, config)
    return folder, config, task, codec


def check_weights(folder: RunFolder, config: Config) -> None:
    """Refuse a run that has no weights yet, or whose weights do not fit its config.json."""
    if not folder.model.is_file():
        raise Refused(
            f"{folder.path} has no model.safetensors yet: its training has not validated once"
        )
    fits(config.outline(), folder.inside(folder.model))


def read_config(folder: RunFolder) -> Any:
    """The config.json of a run of any task, checked."""
    raw = folder.read_json(folder.config)
    check_keys(raw, folder.config)
    task = raw.get("task") if isinstance(raw, dict) else None
    settings = Config  # refuses a task that is not a name
    if isinstance(task, str):
        try:
            settings = task_of(task).config
        except UnknownName as error:
            raise Refused(f"{folder.config}: task: {error}") from None
    elif isinstance(raw, dict) and "model_type" in raw:
        raise Refused(f"{folder.path} is a pretrained model, not a run of heed: train --from it")
    try:
        return settings.model_validate(raw)
    except ValidationError as error:
        raise Refused(f"{folder.config}: {complaint(settings, error)}") from None


def fits(outline: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a file that does not hold a network's weights, before anything is allocated.

    outline  the network's state without values; shared weights are one tensor
    """
    expected = {name: tuple(x.shape) for name, x in outline.items()}
    there = {name: shape for name, (kind, shape) in header(path).items() if not kind.is_complex}
    if expected != there:
        odd = sorted(set(expected.items()) ^ set(there.items()))[0][0]
        raise Refused(
            f"{path} does not fit config.json: '{odd}' is "
            f"{there.get(odd, 'missing')}, expected {expected.get(odd, 'nothing')}"
        )
    for name, kept in tied(path).items():  # otherwise a small file could claim many weights
        if outline[name] is not outline[kept]:
            raise Refused(
                f"{path} does not fit config.json: it stores '{name}' and '{kept}' as one tensor, "
                "but the model does not share them"
            )
