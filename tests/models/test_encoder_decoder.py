"""Any reader goes with any writer: the same alone and in a batch, at once and step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heed.models import reader_settings, transformer_settings
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.reader import Reader, VectorReader
from heed.models.recurrent_settings import RecurrentSettings, build_writer
from heed.models.tagger import TaggerSettings
from heed.models.transformer_settings import TransformerSettings
from tests.models.test_classifier import ENCODERS

B, S, T, V = 4, 7, 5, 19
LENGTHS = torch.tensor([7, 1, 4, 6])
WRITERS: dict[str, dict[str, Any]] = {
    "search": {"decoder": "search"},
    "feeding": {"decoder": "luong"},
    "luong": {"decoder": "luong", "input_feeding": False},
    "first": {"decoder": "fixed", "context": "first"},
    "every": {"decoder": "fixed", "context": "every", "summary": "mean"},
}

TRANSFORMERS = {"transformer": 10, "transformer, bridged": 8}
"""Widths; most readers here are 10 or 12 wide."""


def network(reader: Reader, writer: str) -> EncoderDecoder:
    if writer in TRANSFORMERS:
        small = {"decoder_layers": 2, "width": TRANSFORMERS[writer], "feed": 12, "heads": 2}
        chosen = TransformerSettings(**small, dropout=0.0)  # type: ignore[arg-type]
        other = transformer_settings.build_writer(chosen, symbols=V, memory=reader.width, longest=S)
        return EncoderDecoder(reader, other).double().eval()
    settings = RecurrentSettings(embedding=6, hidden=8, dropout=0.0, **WRITERS[writer])
    made = build_writer(settings, symbols=V, memory=reader.width, longest=S)
    return EncoderDecoder(reader, made).double().eval()


def agree(model: EncoderDecoder, source: Tensor, lengths: Tensor | None) -> Tensor:
    """Single steps equal the whole pass; the logits of that, B T V."""
    inputs = torch.randint(4, V, (B, T))
    written = model(source, lengths, inputs, need="weight")
    carry = model.begin(source, lengths, need="weight")
    for t in range(T):
        step = model.step(carry, inputs[:, t])
        torch.testing.assert_close(step.logits, written.logits[:, t])
        if model.aligning is not None:
            torch.testing.assert_close(step.weight, model.alignment(written.seen)[:, t])
        carry = step.carry
    model(source, lengths, inputs).logits.square().sum().backward()
    for name, weight in model.decoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.any(), name
    if lengths is not None:
        for row, n in enumerate(lengths.tolist()):
            alone = model(source[row : row + 1, :n], lengths[row : row + 1], inputs[row : row + 1])
            torch.testing.assert_close(alone.logits[0], written.logits[row])
    return written.logits


@pytest.mark.parametrize("writer", [*WRITERS, *TRANSFORMERS])
@pytest.mark.parametrize("reader", ENCODERS)
def test_every_writer_stands_behind_every_reader(reader: str, writer: str) -> None:
    torch.manual_seed(1)
    settings = TaggerSettings(encoder=ENCODERS[reader], dropout=0.0)  # type: ignore[arg-type]
    model = network(reader_settings.build(settings, symbols=30), writer)
    agree(model, torch.randint(4, 30, (B, S)), LENGTHS)


@pytest.mark.parametrize("writer", [*WRITERS, *TRANSFORMERS])
def test_every_writer_stands_behind_real_numbers_and_a_class(writer: str) -> None:
    torch.manual_seed(1)
    reader = reader_settings.build(TaggerSettings(dropout=0.0), features=3)
    numbers = torch.randn(B, S, 3).double()
    whole = agree(network(reader, writer), numbers, LENGTHS)
    assert whole.isfinite().all()
    one = VectorReader(nn.Embedding(6, 12), 12)
    if writer in ("first", "every"):  # an attention over one place has nothing to learn
        agree(network(one, writer), torch.tensor([2, 0, 5, 5]), None)


def test_the_attentions_of_both_are_named() -> None:
    settings = TaggerSettings(encoder=ENCODERS["transformer"])  # type: ignore[arg-type]
    model = network(reader_settings.build(settings, symbols=30), "search")
    inputs = torch.randint(4, V, (B, T))
    seen = model(torch.randint(4, 30, (B, S)), LENGTHS, inputs, need="weight").seen
    assert list(seen) == ["encoder.0.self", "encoder.1.self", "decoder.attention"]
    assert model.alignment(seen).shape == (B, T, S)
