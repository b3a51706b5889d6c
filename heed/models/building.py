"""Models by name: a closed table from settings to networks."""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from heed.models import recurrent, transformer

Model = Annotated[
    recurrent.RecurrentSettings | transformer.TransformerSettings, Field(discriminator="kind")
]
"""The settings of any model that turns one sequence into another."""

MODELS = {"recurrent": recurrent, "transformer": transformer}


def build(settings: Any, *, source: int, target: int, shared: bool, longest: int) -> nn.Module:
    """The network that the settings describe, for vocabularies of these sizes."""
    return MODELS[settings.kind].build(
        settings, source=source, target=target, shared=shared, longest=longest
    )


def shapes(settings: Any, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the weights that `build` would make, with nothing allocated."""
    with torch.device("meta"):
        network = build(settings, **sizes)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
