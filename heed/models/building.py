"""Models by name: a closed table from settings to networks."""

import re
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from heed.models import recurrent_settings, transformer_settings

Model = Annotated[
    recurrent_settings.RecurrentSettings | transformer_settings.TransformerSettings,
    Field(discriminator="kind"),
]
"""The settings of any model that turns one sequence into another."""

MODELS = {"recurrent": recurrent_settings, "transformer": transformer_settings}


def build(settings: Any, *, source: int, target: int, shared: bool, longest: int) -> nn.Module:
    """The network that the settings describe, for vocabularies of these sizes."""
    return MODELS[settings.kind].build(
        settings, source=source, target=target, shared=shared, longest=longest
    )


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
