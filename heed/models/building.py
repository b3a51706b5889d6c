"""Models by name: a closed table from settings to networks."""

import re
from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from heed.models import recurrent_settings, text_settings, transformer_settings, xlnet_settings
from heed.models.text_settings import with_symbols

Model = Annotated[
    recurrent_settings.RecurrentSettings | transformer_settings.TransformerSettings,
    Field(discriminator="kind"),
]
"""The settings of any model that turns one sequence into another."""

MODELS = {"recurrent": recurrent_settings, "transformer": transformer_settings}

TextModel = Annotated[
    text_settings.BertSettings | text_settings.GPT2Settings | xlnet_settings.XLNetSettings,
    Field(discriminator="kind"),
]
"""The settings of any model that reads or writes one text."""

TEXT_MODELS: dict[str, Any] = {
    "bert": text_settings,
    "gpt2": text_settings,
    "xlnet": xlnet_settings,
}


def build(settings: Any, *, source: int, target: int, shared: bool, longest: int) -> nn.Module:
    """The network that the settings describe, for vocabularies of these sizes."""
    return MODELS[settings.kind].build(
        settings, source=source, target=target, shared=shared, longest=longest
    )


def build_text(settings: Any, *, symbols: int) -> nn.Module:
    """The network of a text model, for a vocabulary of this size."""
    network: nn.Module = TEXT_MODELS[settings.kind].build(with_symbols(settings, symbols))
    return network


def reads_text(settings: Any) -> int | None:
    """How long a text the model can read or write at most, in symbols; None: any."""
    longest: int | None = None if settings.kind == "xlnet" else settings.longest
    return longest


def reads(settings: Any, longest: int) -> int | None:
    """How long a source the model can read at most, in symbols; None: any.

    Only learned positions and `location` have a table of places.
    """
    table = settings.options.get("longest", longest)
    if settings.kind == "recurrent":
        return table if _named("location", settings.mechanism) else None
    readers = f"{settings.encoder_attention} {settings.cross_attention}"
    places = [table] if _named("location", readers) else []
    if settings.position == "learned":
        places.append(max(longest, settings.longest))
    return min(places, default=None)


def writes(settings: Any, longest: int) -> int | None:
    """How many symbols the model can write at most, the end included; None: any."""
    if settings.kind == "recurrent":
        return None
    table = settings.options.get("longest", settings.longest)
    places = [table] if _named("location", str(settings.decoder_attention)) else []
    if settings.position == "learned":
        places.append(max(longest, settings.longest))
    return min(places, default=None)


def _named(word: str, mechanisms: str) -> bool:
    """Whether a part is among them, however they are listed; `location-aware` is another."""
    return word in re.findall(r"[\w-]+", mechanisms)


def shapes(settings: Any, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the weights that `build` would make, with nothing allocated."""
    return _shapes(lambda: build(settings, **sizes))


def text_shapes(settings: Any, *, symbols: int) -> dict[str, tuple[int, ...]]:
    """The same of `build_text`."""
    return _shapes(lambda: build_text(settings, symbols=symbols))


def _shapes(make: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        network = make()
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
