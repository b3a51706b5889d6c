"""Adversarial examples: texts moved a little for the worse, learnt beside the plain. Miyato 2017 §3

    r = ε √n g / ‖g‖,    g the gradient of a text's loss with respect to its word vectors

A network whose loss must stay low all around a text, too, cannot lean on single words. It could
outgrow ε by longer vectors, which weight decay and dropout hold back.
"""

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch._functorch.config as compiling
from torch import Tensor


def twice() -> AbstractContextManager[None]:
    """A context for a forward pass that is followed by two backward passes, and for the first of
    them: a compiled network would free what the second one needs."""
    patched: AbstractContextManager[None] = cast(Any, compiling).patch(donated_buffer=False)
    return patched


def nudge(losses: Tensor, vectors: Tensor, lengths: Tensor, size: float) -> Tensor:
    """The step by which to move the vectors of each text; no gradient flows through it.

    losses   one for each text, from a graph that is still needed, made within `twice`  B
    vectors  what the losses were computed from  B S E
    size     ε: how far a word moves on average
    """
    with twice():
        (found,) = torch.autograd.grad(losses.sum(), vectors, retain_graph=True)
    slope = found.to(torch.promote_types(found.dtype, torch.float32))
    steep = slope.flatten(1).norm(dim=1).clamp(min=torch.finfo(slope.dtype).tiny)
    far = size * lengths.to(slope.dtype).sqrt()
    moved: Tensor = slope / steep[:, None, None] * far[:, None, None]
    return moved.to(vectors.dtype)
