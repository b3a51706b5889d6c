"""A model at work, watched: what every attention saw, pass by pass, for texts of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.attention.statistics import statistics
from heed.records import Attended
from heed.viewing.taking import summary
from heed.watching.watch import attentions, watch

LIMIT = 2**32
"""How many bytes of maps are kept. However long a text is, its maps have the same size."""


def looked(model: Any, work: Callable[[], Any], stream: int = 0) -> tuple[Any, dict[str, Attended]]:
    """The result of some work that is one pass, and what every attention saw of it, by path.

    A recurrent decoder asks step by step: its steps are joined. A network of two streams (XLNet)
    asks for each in every layer, content first.

    stream  which of the two
    """
    count = len(attentions(model))
    if not count:
        return work(), {}
    with watch(model, statistics=summary(count), limit=LIMIT) as seen:
        done = work()
    streams = hasattr(model, "streams")
    found = {}
    for path, records in seen.items():
        if len(records):
            every = list(records)
            found[path] = every[min(stream, len(every) - 1)] if streams else Attended.join(every)
    return done, found


def sharpness(weight: Tensor, counts: Tensor) -> dict[str, float]:
    """Mean entropy (nats) and largest share over the first `counts` queries of rows. B H T S, B"""
    figures = statistics(weight)  # B H T each
    places = torch.arange(weight.shape[2], device=weight.device)
    real = (places < counts[:, None])[:, None].expand_as(figures.peak)
    entropy, peak = (float(x[real].mean()) for x in (figures.entropy, figures.peak))
    return {"entropy": entropy, "sharpness": peak}
