"""CUDA graphs: forward and backward of a batch as one launch.

A small model leaves a GPU idle: its kernels take less time than Python needs to launch them. A
graph is captured once for each shape of batch and replayed from then on. Batches of few distinct
shapes (`Batches(..., fixed=True)`) make that pay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

WARM = 2  # eager rounds before a capture, in which libraries choose algorithms and allocate


class Fixed(Protocol):
    """A batch whose tensors can stay where they are while their contents change."""

    @property
    def shape(self) -> Hashable:
        """Its shape, equal for batches that can take each other's place."""

    def clone(self) -> Self:
        """A copy in memory of its own."""

    def copy_(self, other: Self) -> object:
        """Copy the contents of another batch into this one."""


Backward = Callable[[Any, Tensor], dict[str, Tensor]]
"""Adds the gradients of a batch, times a factor, to the weights'; returns figures to report."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    batch: Any
    factor: Tensor
    graph: torch.cuda.CUDAGraph
    figures: dict[str, Tensor]


class Captured:
    """Does what `backward` does; a graph is captured for each new shape, and replayed.

    Gradients must stay in place: zero them, never set them to None. All graphs share one pool of
    memory, since no two run at a time. Eager rounds and captures share one stream, since libraries
    keep a workspace for each stream that they have met.
    """

    def __init__(self, backward: Backward, model: nn.Module) -> None:
        self.backward, self.model = backward, model
        self.recorded: dict[Hashable, _Recorded] = {}
        self.pool: Any = None

    def __call__(self, batch: Any, factor: Tensor) -> dict[str, Tensor]:
        """Do what `backward` does; the next call does not overwrite the figures."""
        found = self.recorded.get(batch.shape)
        if found is None:
            found = self.recorded[batch.shape] = self._record(batch, factor)
        found.batch.copy_(batch)
        found.factor.copy_(factor)
        found.graph.replay()
        return {name: figure.clone() for name, figure in found.figures.items()}

    def _record(self, batch: Any, factor: Tensor) -> _Recorded:
        batch, factor = batch.clone(), factor.clone()
        stream = _stream(factor.device)
        self._rehearse(batch, factor, stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=stream):  # recorded, not run
            figures = self.backward(batch, factor)
        self.pool = graph.pool()
        return _Recorded(batch, factor, graph, figures)

    def _rehearse(self, batch: Any, factor: Tensor, stream: torch.cuda.Stream) -> None:
        """Some eager rounds, whose gradients are dropped; those from before are put back."""
        weights = [w for w in self.model.parameters() if w.requires_grad]
        kept = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                for weight in weights:
                    weight.grad = None
                self.backward(batch, factor)
        torch.cuda.current_stream().wait_stream(stream)
        for weight, grad in zip(weights, kept, strict=True):
            weight.grad = grad


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which the graphs of a device are recorded."""
    return torch.cuda.Stream(device)
