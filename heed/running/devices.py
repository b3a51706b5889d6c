"""Where to compute, and which heed this is."""

import os
from importlib import metadata

import torch

from heed.errors import Refused


def chosen(name: str) -> torch.device:
    """A device by name; "auto" is a GPU where there is one."""
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
    return device


def speaks() -> bool:
    """Whether this process prints: the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def version() -> str:
    """The installed version; "unknown" where heed runs from a source tree."""
    try:
        return metadata.version("heed-attention")
    except metadata.PackageNotFoundError:
        return "unknown"
