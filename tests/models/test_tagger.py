"""Taggers: a label for each place, the same alone and in a batch, with every reader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from heed.models.classifier import Classifier
from heed.models.tagger import TaggerSettings, build
from heed.models.text_settings import BertSettings
from heed.models.text_settings import build as build_text
from heed.models.xlnet_settings import XLNetSettings
from heed.models.xlnet_settings import build as build_xlnet
from tests.models.test_classifier import ENCODERS, spelled, texts

B, S, C = 4, 9, 5


def network(encoder: str, **more: Any) -> Classifier:
    torch.manual_seed(1)
    settings = TaggerSettings(encoder=ENCODERS[encoder], **more)  # type: ignore[arg-type]
    return build(settings, symbols=30, labels=C)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_label_does_not_depend_on_the_batch(encoder: str) -> None:
    model = network(encoder).eval()
    symbols, lengths = texts()
    said = model(symbols, lengths)
    together = said.logits
    assert together is not None
    assert together.shape == (B, S, C)
    assert said.pooled is None
    for row, length in enumerate(lengths.tolist()):
        alone = model(symbols[row : row + 1, :length], [length]).logits
        assert alone is not None
        torch.testing.assert_close(alone[0], together[row, :length], rtol=1e-5, atol=1e-6)
        assert not said.states[row, length:].any()


def test_some_places_may_be_asked_for() -> None:
    """As the first piece of each word."""
    model = network("bert").eval()
    symbols, lengths = texts()
    asked = torch.tensor([[0, 4, 8], [1, 2, 0], [0, 0, 0], [0, 2, 0]])
    whole, some = model(symbols, lengths).logits, model(symbols, lengths, asked=asked).logits
    assert whole is not None
    torch.testing.assert_close(some, whole[torch.arange(B)[:, None], asked])


def test_real_numbers_get_a_label_at_every_place() -> None:
    model = build(TaggerSettings(), features=3, labels=C)
    said = model(torch.randn(B, S, 3), torch.tensor([9, 5, 1, 3])).logits
    assert said is not None
    assert said.shape == (B, S, C)


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_a_pretrained_encoder_has_the_numbers_of_one_with_a_head(kind: str) -> None:
    facts: dict[str, Any] = {"symbols": 30, "head": "label", "labels": C, **ENCODERS[kind]}
    model, (symbols, lengths) = network(kind, dropout=0.0).eval(), texts()
    own = model.state_dict()
    if kind == "bert":
        whole: nn.Module = build_text(BertSettings(**facts))
        whole.load_state_dict(own)
        expected = whole.eval()(symbols, lengths).logits
    else:
        whole = build_xlnet(XLNetSettings(**facts))
        whole.load_state_dict({name.removeprefix("encoder."): own[name] for name in own})
        types = 2 * (torch.arange(S) == lengths[:, None] - 1)
        expected = whole.eval()(symbols, lengths, types).logits
    there = torch.arange(S) < lengths[:, None]
    found = model(symbols, lengths).logits
    assert found is not None
    torch.testing.assert_close(found[there], expected[there])


def test_letters_are_added_to_the_words() -> None:
    reader = spelled("lstm")  # a classifier whose parts are all but the answer the same
    torch.manual_seed(1)
    model = build(
        TaggerSettings(encoder=ENCODERS["lstm"], letters=(3, 5)),  # type: ignore[arg-type]
        symbols=30,
        labels=C,
        letters=(40, 5),
    )
    parts = {n: x for n, x in reader.state_dict().items() if not n.startswith("answer")}
    model.load_state_dict(parts, strict=False)
    symbols, lengths = texts()
    torch.testing.assert_close(
        model.eval()(symbols, lengths).states, reader.eval()(symbols, lengths).states
    )
    assert model.spelled is not None
    model.spelled = None
    assert not torch.equal(model(symbols, lengths).states, reader(symbols, lengths).states)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="which BERT does not read"):
        TaggerSettings(encoder=BertSettings(), letters=(3, 5))
    with pytest.raises(ValidationError, match="Extra inputs"):
        TaggerSettings(pool="mean")  # type: ignore[call-arg]
