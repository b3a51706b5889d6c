"""A fast path through a plain Transformer encoder on the CPU; its twin is `Encoder.forward`.

Where a text is read without gradients and nobody asks for weights, the operators around the
products of one sentence would take a third of the time: here queries, keys and values are one
product, and the mask is made once for all layers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import heed
from heed.attention.memory import key_table
from heed.models.layers import pass_through
from heed.models.plain_layer import HiddenPadding, PlainLayer, known
from heed.models.positioned_words import readable
from heed.records import Attended
from heed.visible import Lengths, Visible

if TYPE_CHECKING:
    from heed.models.transformer import Encoder


def encode(
    encoder: Encoder, x: Tensor, exists: Visible | None
) -> tuple[Tensor, dict[str, Attended]] | None:
    """All layers, without weights: B S M -> B S M; None where the fast path does not apply."""
    if encoder.training or torch.is_grad_enabled() or not x.numel() or not readable(x):
        return None
    if not isinstance(exists, Lengths | None) or not _plain(encoder):
        return None
    hidden = None
    if isinstance(exists, Lengths):
        least = int(exists.count.min())
        if not least:  # an empty text is read as zeros, which `Encoder.forward` alone does
            return None
        if least < x.shape[1]:
            hidden = HiddenPadding(key_table(exists, x.shape[1], x.device), x.dtype)
    seen: dict[str, Attended] = {}
    stack = encoder.stack
    for i, layer in enumerate(map(PlainLayer.of, stack.layers)):
        x, look, _ = pass_through(layer, x, partial(_attend, layer, hidden))
        seen[f"{i}.self"] = look.replace(context=None)
    return x if stack.norm is None else stack.norm(x), seen


def _attend(layer: PlainLayer, hidden: HiddenPadding | None, h: Tensor) -> tuple[Tensor, Attended]:
    """Self-attention.    B S M -> B S M"""
    q, k, v = layer.look(h).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    if hidden is None:
        seen = heed.attend(q, k, v)
    else:
        seen = layer.back(q, heed.Memory(k, v), position=hidden)
    return layer.join(seen.context.transpose(1, 2).reshape(h.shape)), seen


def _plain(encoder: Encoder) -> bool:
    """Whether the fast path knows the exact type of every part, and no hook waits for a call."""
    attentions = [layer.attention for layer in encoder.stack.layers]
    return (
        known(encoder)
        and not torch.is_autocast_enabled("cpu")
        and all(x.in_proj_weight is not None and not x.sinks() for x in attentions)
    )
