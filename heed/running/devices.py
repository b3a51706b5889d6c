"""The device to compute on, and heed's version."""

import os
import re

import torch

import heed
from heed.errors import Refused


def chosen(name: str) -> torch.device:
    """A device by name; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise Refused(f"there is no device '{name}'; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise Refused(f"'{name}' is not a device that heed runs on; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refused("there is no CUDA device here; use --device cpu")
    if device.type == "cuda" and device.index is not None:
        last = torch.cuda.device_count() - 1
        if device.index > last:
            raise Refused(f"there is no device '{name}': the last one is cuda:{last}")
    return device


def crowded(device: torch.device) -> str:
    """A warning before long work on a busy CPU; "" if it is idle enough.

    Threads wait for each other after every product, and so for the one with the least CPU time.
    """
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if device.type != "cpu" or threads == 1 or not hasattr(os, "getloadavg"):
        return ""
    load = os.getloadavg()[0]
    if load + threads <= 1.5 * cores:
        return ""
    return (
        f"this machine is busy (load {load:.1f} on {cores} cores), and {threads} threads wait for "
        "each other: with OMP_NUM_THREADS=1 small networks may train many times faster"
    )


def no_memory(error: BaseException) -> str:
    """The message of an error if memory ran out; "" for any other error.

    On a CPU PyTorch raises a plain RuntimeError.
    """
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        wanted = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", said)
        more = f": {wanted[1]} more were needed" if wanted else ""
        return f"the GPU's memory is full{more}"
    if isinstance(error, MemoryError):
        return "memory is full"
    wanted = re.search(r"DefaultCPUAllocator.*?tried to allocate (\d+) bytes", said, re.DOTALL)
    if isinstance(error, RuntimeError) and wanted:
        return f"memory is full: {int(wanted[1]) / 2**30:,.1f} GiB more were needed"
    return ""


def speaks() -> bool:
    """Whether this process prints: the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def version() -> str:
    """The version of heed, installed or not."""
    return heed.__version__
