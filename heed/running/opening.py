"""Opening a run folder: a trained model, ready to work, out of a folder that may be anybody's.

Nothing is imported that the folder names, nothing outside of it is read, and no weight is allocated
before the file of weights is seen to hold what the configuration describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from heed.errors import Refused
from heed.models import building
from heed.running.preparing import vocabulary_of
from heed.running.recipe import complaint
from heed.tasks.translator import Decoding, Translator
from heed.training.folder import RunFolder


class Config(BaseModel):
    """config.json: all that is needed to build the model again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heed: str = Field(max_length=100, description="The version that wrote it.")
    task: Literal["translate"]
    model: building.Model
    source: int = Field(ge=4, le=2_000_000, description="Symbols of the source.")
    target: int = Field(ge=4, le=2_000_000)
    shared: bool
    longest: int = Field(ge=1, le=1_000_000, description="The longest source it is built for.")
    lowercase: bool
    decoding: Decoding

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return building.build(self.model, **self.sizes)

    @property
    def reads(self) -> int | None:
        """How long a source it can read, if there is a limit."""
        return building.reads(self.model, self.longest)

    @property
    def writes(self) -> int | None:
        """How much it can write, if there is a limit."""
        return building.writes(self.model, self.longest)

    @property
    def sizes(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "shared": self.shared,
            "longest": self.longest,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, opened."""

    folder: RunFolder
    config: Config
    translator: Translator

    def decoding(self, changes: Mapping[str, Any]) -> Decoding:
        """The run's own way of choosing, with some of it changed."""
        try:
            return Decoding(**{**self.config.decoding.model_dump(), **changes})
        except ValidationError as error:
            raise Refused(f"decoding: {complaint(Decoding, error)}") from None


def open_run(path: Path, device: torch.device) -> Run:
    """The model of a run, ready to translate."""
    folder = RunFolder.open(path)
    config = read_config(folder)
    vocabulary = vocabulary_of(folder)
    sizes = (vocabulary.source.size, vocabulary.target.size, vocabulary.shared)
    if sizes != (config.source, config.target, config.shared):
        raise Refused(f"{folder.config}: its vocabulary is not that of tokenizer.json")
    if not folder.model.is_file():
        raise Refused(f"{path} has no model.safetensors yet: its training has not validated once")
    fits(config, folder.model_header(), folder.model)
    model = config.build()
    model.load_state_dict(folder.load_model())
    translator = Translator(
        model.to(device), vocabulary, device, longest=config.reads, writes=config.writes
    )
    return Run(folder, config, translator)


def read_config(folder: RunFolder) -> Config:
    """config.json, checked."""
    raw = folder.read_json(folder.config)
    if isinstance(raw, dict) and raw.get("task") not in (None, "translate"):
        raise Refused(f"{folder.path} is a run of the task {raw['task']!r}, not of translate")
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise Refused(f"{folder.config}: {complaint(Config, error)}") from None


def fits(
    config: Config, header: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], path: Path
) -> None:
    """Refuse a configuration that is not that of the weights, before anything is allocated."""
    expected = building.shapes(config.model, **config.sizes)
    there = {name: shape for name, (kind, shape) in header.items() if not kind.is_complex}
    if expected == there:
        return
    odd = sorted(set(expected.items()) ^ set(there.items()))[0][0]
    raise Refused(
        f"{path} does not fit config.json: '{odd}' is "
        f"{there.get(odd, 'missing')}, expected {expected.get(odd, 'nothing')}"
    )
