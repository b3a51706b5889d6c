"""A fast path through a plain Transformer encoder on the CPU; its twin is `Encoder.forward`.

When a text is read to be translated, the weights of the encoder's attentions are not needed. For
one sentence the operators around its products would take a third of the time: here queries, keys
and values are one product, and the mask is made once for all layers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import heed
from heed.models.layers import Stack, pass_through
from heed.models.plain import Hidden, PlainLayer, known
from heed.models.words import Words, readable

if TYPE_CHECKING:
    from heed.models.transformer import Encoder


def encode(encoder: Encoder, words: Words, source: Tensor, lengths: Tensor) -> Tensor | None:
    """B S, B -> B S M; None where the fast path does not apply."""
    if encoder.training or torch.is_grad_enabled() or not source.numel():
        return None
    if not readable(lengths) or not _plain(encoder):
        return None
    exists = torch.arange(source.shape[1], device="cpu") < lengths[:, None]
    least = int(lengths.min())
    if not least:  # an empty text is read as zeros, which `Encoder.forward` alone does
        return None
    if least == source.shape[1]:
        return _through(encoder.stack, words(source), None)
    x = words(source, exists=heed.lengths(lengths))
    return _through(encoder.stack, x, Hidden(exists, x.dtype))


def _through(stack: Stack, x: Tensor, hidden: Hidden | None) -> Tensor:
    """All layers.    B S M -> B S M"""
    for layer in map(PlainLayer.of, stack.layers):
        x, _, _ = pass_through(layer, x, partial(_attend, layer, hidden))
    return x if stack.norm is None else stack.norm(x)


def _attend(layer: PlainLayer, hidden: Hidden | None, h: Tensor) -> tuple[Tensor, None]:
    """Self-attention.    B S M -> B S M"""
    q, k, v = layer.look(h).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    if hidden is None:
        context = heed.attend(q, k, v).context
    else:
        context = layer.back(q, heed.Memory(k, v), position=hidden).context
    return layer.join(context.transpose(1, 2).reshape(h.shape)), None


def _plain(encoder: Encoder) -> bool:
    """Whether the fast path knows the exact type of every part, and no hook waits for a call."""
    attentions = [layer.attention for layer in encoder.stack.layers]
    return (
        known(encoder)
        and not torch.is_autocast_enabled("cpu")
        and all(x.in_proj_weight is not None and not x.sinks() for x in attentions)
    )
