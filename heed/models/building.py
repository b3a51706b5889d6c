"""Models by name: a closed table of all, and the networks of those that read one text and write
another."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field
from torch import nn

from heed.attention.catalogue import CATALOGUE
from heed.attention.names import options_of
from heed.models import (
    classifier,
    generator,
    recurrent_language,
    recurrent_settings,
    tagger,
    transformer_settings,
    xlnet_settings,
)
from heed.models.classifier import ClassifierSettings
from heed.models.generator import GeneratorSettings
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.recurrent_settings import RecurrentSettings
from heed.models.tagger import TaggerSettings
from heed.models.text_settings import BERT_SIZES, GPT2_SIZES, BertSettings, GPT2Settings
from heed.models.transformer_settings import TransformerSettings
from heed.models.xlnet_settings import XLNetSettings


class Known(NamedTuple):
    """A model that recipes can name.

    told   the object whose docstring says in its first line what the model is
    sizes  by name
    """

    settings: type[BaseModel]
    told: Any
    sizes: Mapping[str, Any]

    @property
    def about(self) -> str:
        """A line that says what it is."""
        return (self.told.__doc__ or "").strip().partition("\n")[0].rstrip(".")


MODELS = {
    "recurrent": Known(RecurrentSettings, recurrent_settings, recurrent_settings.SIZES),
    "transformer": Known(TransformerSettings, transformer_settings, transformer_settings.SIZES),
    "bert": Known(BertSettings, BertSettings, BERT_SIZES),
    "gpt2": Known(GPT2Settings, GPT2Settings, GPT2_SIZES),
    "xlnet": Known(XLNetSettings, XLNetSettings, xlnet_settings.SIZES),
    "recurrent-language": Known(RecurrentLanguageSettings, recurrent_language, {}),
    "classifier": Known(ClassifierSettings, classifier, {}),
    "tagger": Known(TaggerSettings, tagger, {}),
    "generator": Known(GeneratorSettings, generator, {}),
}
"""Every model that a recipe can name; a task's settings say which of them it takes."""

Model = Annotated[RecurrentSettings | TransformerSettings, Field(discriminator="kind")]
"""The settings of any model that turns one sequence into another."""


def build(settings: Model, *, source: int, target: int, shared: bool, longest: int) -> nn.Module:
    """The network that the settings describe, for vocabularies of these sizes."""
    sizes: dict[str, Any] = {
        "source": source,
        "target": target,
        "shared": shared,
        "longest": longest,
    }
    if isinstance(settings, RecurrentSettings):
        return recurrent_settings.build(settings, **sizes)
    return transformer_settings.build(settings, **sizes)


def reads(settings: Model, longest: int) -> int | None:
    """The longest source that the model can read, in symbols; None: any.

    Only learned positions, and parts with an option `longest`, have a table of places.
    """
    table = int(settings.options.get("longest", longest))
    if settings.kind == "recurrent":
        return table if _has_table(settings.mechanism) else None
    readers = f"{settings.encoder_attention} {settings.cross_attention}"
    places = [table] if _has_table(readers) else []
    if settings.position == "learned":
        places.append(max(longest, settings.longest))
    return min(places, default=None)


def writes(settings: Model | GeneratorSettings, longest: int) -> int | None:
    """The most symbols that the model can write, the end included; None: any."""
    if settings.kind != "transformer":
        return None
    table = int(settings.options.get("longest", settings.longest))
    places = [table] if _has_table(str(settings.decoder_attention)) else []
    if settings.position == "learned":
        places.append(max(longest, settings.longest))
    return min(places, default=None)


def _has_table(mechanisms: str) -> bool:
    """Whether a part named among the mechanisms has a table of places."""
    words = re.findall(r"[\w-]+", mechanisms)
    return any("longest" in options_of(word) for word in words if word in CATALOGUE)
