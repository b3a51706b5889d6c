"""A start of another kind than the recipe's is refused with a recipe that takes it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from heed.errors import Refused
from heed.models.text_settings import BertSettings, GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.running.recipe import load, resolve
from heed.running.starting import sized
from heed.tasks.task import Start

BERT, GPT2, XLNET = BertSettings(size="tiny"), GPT2Settings(size="nano"), XLNetSettings(size="tiny")


def start(settings: Any) -> Start:
    return Start(Path("my runs/a"), None, {}, settings=settings)


@pytest.mark.parametrize(
    ("recipe", "settings", "said", "taking"),
    [
        ("bert-mini", XLNET, "an XLNet, but the recipe's model.kind=bert is a BERT", "xlnet-mini"),
        ("xlnet-mini", BERT, "a BERT, but the recipe's model.kind=xlnet is an XLNet", "bert-mini"),
        ("bert-mini", GPT2, "a GPT-2, but the recipe's model.kind=bert", "shakespeare-gpt"),
        ("shakespeare-gpt", BERT, "a BERT, but the recipe's model.kind=gpt2", "bert-mini"),
        ("shakespeare-lstm", GPT2, "is another network", "shakespeare-gpt"),
        ("sst2", BERT, "model.encoder.kind=lstm is another network", "sst2-bert"),
        ("sst2-cnn", GPT2, "model.encoder.kind=cnn is another network", "shakespeare-gpt"),
    ],
)
def test_another_kind_is_refused_with_a_recipe_that_takes_it(
    recipe: str, settings: Any, said: str, taking: str
) -> None:
    with pytest.raises(Refused) as refused:
        sized(resolve(load(recipe)), start(settings))
    message = str(refused.value)
    assert message.startswith("my runs/a is ")
    assert said in message
    command = shlex.split(message.partition(": heed train ")[2])
    assert command == [taking, "--from", "my runs/a"]
    model = resolve(load(taking)).model
    assert getattr(model, "encoder", model).kind == settings.kind
