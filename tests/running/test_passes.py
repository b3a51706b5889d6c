"""One pass over an input: of two streams, the one that a form shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heed.answers.continuation import Continuation
from heed.answers.form import Example
from heed.answers.hidden import HiddenWords, Ordered
from heed.answers.worker import Worker
from heed.data.borrowed import marks_of
from heed.data.kinds.text import MaskedText, RawText
from heed.data.masked_words import with_mask
from heed.data.tokenise import Tokeniser
from heed.data.verbatim import Verbatim
from heed.models.xlnet_settings import XLNetSettings
from heed.running.passes import one_pass
from heed.tasks import language_model, pretrain

XLNET = XLNetSettings(layers=2, width=12, heads=3, feed=16, initial=0.5)
CPU = torch.device("cpu")
TEXT = "the cat sat ."


def writer() -> Worker:
    pieces = Verbatim.train("character", [TEXT])
    model = language_model.build(XLNET, symbols=pieces.size, context=8)
    return Worker(model, {"text": RawText(pieces)}, Continuation(marks_of(pieces), context=8), CPU)


def filler() -> Worker:
    pieces = with_mask(Tokeniser.train("word", [TEXT], 40))
    form = HiddenWords(pieces, Ordered(), longest=16)
    model = pretrain.build(XLNET, Ordered(), symbols=pieces.size, longest=16)
    kind = MaskedText(pieces, form.symbols.mask, paired=False)
    return Worker(model, {"text": kind}, form, CPU)


@pytest.mark.parametrize(
    ("made", "text", "stream"),
    [(writer, TEXT, ".query"), (filler, "the [MASK] sat .", ".content")],
)
def test_maps_are_those_of_the_stream_that_a_form_shows(
    made: object, text: str, stream: str
) -> None:
    torch.manual_seed(0)
    worker = made()  # type: ignore[operator]
    worker.model.eval()
    example = Example((text,), None)
    with torch.inference_mode():
        seen = worker.form.seen(worker, [example], worker.rows([example.inputs]))
    assert all(path.endswith(stream) for path in seen)
    (take,) = one_pass(worker, (text,)).look.takes
    for layer, (record, counts) in zip(take.layers, seen.values(), strict=True):
        n = int(counts[0])
        heads = np.stack([panel.weight for panel in layer.panels()])
        np.testing.assert_allclose(heads, record.weight[0, :, :n, :n].numpy(), atol=1e-4)
