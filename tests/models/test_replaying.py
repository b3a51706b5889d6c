"""Replayed steps are the decoder's own steps; on a GPU they come out of a graph."""

import pytest
import torch

from heed.decoding import beam, greedy, sample
from heed.decoding.sliding import Sliding, padded
from heed.errors import HeedError, Refused
from heed.models.replaying import Replaying
from heed.models.text_settings import GPT2Settings, build
from heed.models.transformer import Decoder

V = 23
PROMPTS = [[5, 6, 7, 8], [9], [], [10, 11, 4]]


@pytest.fixture
def decoder() -> Decoder:
    settings = GPT2Settings(layers=3, width=24, heads=3, symbols=V, longest=20, initial=0.3)
    network = build(settings).double().eval()  # in float64 no other short road is taken
    assert isinstance(network, Decoder)
    return network


@torch.inference_mode()
@pytest.mark.parametrize("mixed", [False, True])
def test_step_by_step_as_the_decoder(decoder: Decoder, mixed: bool) -> None:
    texts = PROMPTS if mixed else [[5, 6], [7, 8], [9, 4]]
    device = torch.get_default_device()
    inputs, lengths = padded(texts, device)
    replaying = Replaying(decoder)
    ours, plain = replaying.begin(inputs, lengths=lengths), decoder.begin(inputs, lengths=lengths)
    for t in range(12):
        symbols = torch.randint(4, V, (len(inputs) if t < 6 else 2,))
        if t == 6:
            rows = torch.tensor([2, 0])
            ours, plain = replaying.select(ours, rows), decoder.select(plain, rows)
        found, wanted = replaying.step(ours, symbols), decoder.step(plain, symbols)
        torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-9, atol=1e-9)
        ours, plain = found.carry, wanted.carry


@torch.inference_mode()
def test_searches_find_the_same(decoder: Decoder) -> None:
    device = torch.get_default_device()
    inputs, lengths = padded(PROMPTS, device)
    rules = {"begin": torch.tensor([3, 4, 5, 6]), "end": 1, "longest": 12, "device": device}
    for search, how in ((greedy, {}), (sample, {"seeds": [1, 2, 3, 4]})):
        found = [
            [h.symbols for h in search(m, m.begin(inputs, lengths=lengths), 4, **rules, **how)]
            for m in (decoder, Replaying(decoder))
        ]
        assert found[0] == found[1]


@torch.inference_mode()
def test_beyond_the_places_it_slides(decoder: Decoder) -> None:
    device = torch.get_default_device()
    rules = {"begin": torch.tensor([3, 4, 5, 6]), "end": 1, "longest": 40, "device": device}
    found = []
    for model in (decoder, Replaying(decoder)):
        sliding = Sliding(model, 20, device)
        found.append([h.symbols for h in greedy(sliding, sliding.begin(PROMPTS), 4, **rules)])
    assert found[0] == found[1]


@torch.inference_mode()
def test_what_cannot_be_replayed_is_refused(decoder: Decoder) -> None:
    replaying = Replaying(decoder, 6)
    carry = replaying.begin(torch.full((2, 4), 5))
    replaying.step(carry, torch.tensor([3, 3]))
    with pytest.raises(HeedError, match="only the last carry"):
        replaying.step(carry, torch.tensor([3, 3]))
    carry = replaying.begin(torch.full((1, 6), 5))
    with pytest.raises(Refused, match="all are full"):
        replaying.step(carry, torch.tensor([3]))
    with pytest.raises(Refused, match="does not fit 6 places"):
        replaying.begin(torch.full((1, 7), 5))
    with pytest.raises(Refused, match="cannot become more"):
        beam(replaying, replaying.begin(torch.full((1, 2), 5)), 1, begin=3, end=1, longest=3)
    decoder.train()
    with pytest.raises(Refused, match="plain decoder"):
        replaying.begin(torch.full((1, 2), 5))
