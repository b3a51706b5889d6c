"""Several processes, one run: what torchrun starts, and what the processes tell each other.

    with join("cpu") as crew:              # alone without torchrun, and then all of this is free
        for moment in fit(..., distributed=crew):
            if crew.greatest(stop.code): ...   # a signal at one process stops all at this step

Every method that speaks to the others must be called by all of them, in the same order.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heed.errors import Refused

CPU = torch.device("cpu")

SEND_BUFFERS = "forward_sync_buffers"
if SEND_BUFFERS not in inspect.signature(DistributedDataParallel).parameters:
    SEND_BUFFERS = "broadcast_buffers"  # what PyTorch called it before 2.13


@dataclass(frozen=True, slots=True)
class Distributed:
    """The rank of this process among all; `Distributed()` stands for a single process."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def sum(self, *numbers: int) -> list[int]:
        """Whole numbers summed over the processes, without waiting for a GPU."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def greatest(self, number: int) -> int:
        """The greatest number of any process: if one wants to stop, all of them do."""
        return self._reduce((number,), dist.ReduceOp.MAX)[0]

    def _reduce(self, numbers: tuple[int, ...], how: Any) -> list[int]:
        if self.world == 1:
            return list(numbers)
        table = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        dist.all_reduce(table, how)
        return [int(n) for n in table.tolist()]

    def add_(self, figures: Tensor) -> Tensor:
        """The sum over the processes, in place, on the device."""
        if self.world > 1:
            dist.all_reduce(figures)
        return figures

    def collect(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, by rank; equal shapes."""
        if self.world == 1:
            return [tensor]
        tensor = tensor.contiguous()
        every = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(every, tensor)
        return every

    def share(self, value: Any) -> Any:
        """The value of the main process, which JSON must hold; those of the others are ignored."""
        if self.world == 1:
            return value
        said = bytearray(json.dumps(value).encode()) if self.main else bytearray()
        (size,) = self.sum(len(said))
        letters = torch.zeros(size, dtype=torch.uint8, device="cpu")
        if self.main:
            letters.copy_(torch.frombuffer(said, dtype=torch.uint8))
        dist.broadcast(letters, 0)
        return json.loads(bytes(letters.tolist()))

    def wrap(self, model: nn.Module, *, idle: bool = False) -> nn.Module:
        """Average gradients over the processes, beginning from the weights of the main one.

        idle  whether some parameters get no gradient in a step; only then is the graph searched for
              them at each step (see `idle`)
        """
        if self.world == 1:
            return model
        # Tables of positions never change; only running statistics are worth sending round.
        sent: dict[str, Any] = {
            SEND_BUFFERS: any(hasattr(m, "running_mean") for m in model.modules())
        }
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            process_group=dist.new_group(),  # its own: see `join`
            find_unused_parameters=bool(self.greatest(int(idle))),
            gradient_as_bucket_view=True,
            **sent,
        )


def quiet(model: nn.Module) -> AbstractContextManager[Any]:
    """Within it no gradients are averaged over processes: for all but the last batch of a step."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def idle(model: nn.Module, backward: Callable[[nn.Module], object]) -> list[str]:
    """The parameters that get no gradient, found by a backward pass on a copy of the model."""
    cuda = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(cuda):
        rehearsed = copy.deepcopy(model).train()
        rehearsed.zero_grad(set_to_none=True)
        backward(rehearsed)
    learn = [(name, p) for name, p in rehearsed.named_parameters() if p.requires_grad]
    return [name for name, p in learn if p.grad is None]


@contextmanager
def join(device: str | torch.device = "cpu") -> Iterator[Distributed]:
    """Join the other processes that torchrun started, if any, and leave them at the end.

    To leave is to end the threads of gloo that carried our numbers. One of them may still hold a
    tensor that has long arrived, and to let go of it asks for Python: in a process that is ending
    by then, that is an abort. They end with their group, once nobody holds it; a wrapped model
    holds a group as long as it lives, which is why it has one of its own, that carries no tensor of
    Python's.
    """
    device = torch.device(device)
    world, rank, local = _number("WORLD_SIZE", 1), _number("RANK", 0), _number("LOCAL_RANK", 0)
    if device.type == "cuda":
        device = torch.device("cuda", local if device.index is None else device.index)
        torch.cuda.set_device(device)
    if world == 1:
        yield Distributed(device=device)
        return
    if not rank < world:
        raise Refused(f"RANK={rank} does not exist among WORLD_SIZE={world} processes")
    # Functions of this module have the group of the moment it is imported, for good, as a default.
    importlib.import_module("torch.distributed.nn.functional")
    # Numbers that decide something go over gloo, so that deciding does not wait for a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Distributed(rank, world, device)
    finally:
        dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise Refused(f"the variable {name} is set by torchrun to a number; got '{text}'")
    return int(text)
