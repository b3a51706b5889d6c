"""The files of a pretrained folder, trusted or not: checked first, read on demand.

    shelf = Shelf(folder)
    weights = find(shelf)               # model.safetensors, or the shards that an index lists
    weights.header                      # names, types and shapes, before anything is allocated
    with weights.reader() as read:
        read("bert.pooler.dense.bias")

No file outside the folder is read, and nothing in it is executed: pickled weights are read only on
request, and then by `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heed.errors import HeedError, Refused
from heed.storage import durable
from heed.storage.tensors import Header, plain_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

SMALL = 2**20
"""The most bytes of a config, an index or a header: enough for some thousand tensors. Parsed, they
take twenty times as much memory."""

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MANY = 1000  # shards
PART = 2**21  # numbers that are compared at a time

Shards = dict[str, set[str] | None]
"""Files, each with its tensors by the index; None if there is no index."""


class Shelf:
    """A folder, of which only plain files are read.

    In the cache of huggingface_hub the files are links to a folder of blobs beside them; no other
    link is followed out of the folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise Refused(f"{path} is not a folder")
        self.path = path
        self._roots = [path.resolve()]
        if path.resolve().parent.name == "snapshots":
            self._roots.append(path.resolve().parent.parent / "blobs")

    def has(self, name: str) -> bool:
        """Whether there is something of this name."""
        return (self.path / name).exists() or (self.path / name).is_symlink()

    def place(self, name: str) -> Path:
        """The real path of a file; one outside the folder is refused."""
        if PLAIN.fullmatch(name) is None:
            raise Refused(f"{self.path}: {name[:200]!r} is not a valid file name")
        path = self.path / name
        if not self.has(name):
            raise Refused(f"{self.path} has no {name}")
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise Refused(f"{path} is a broken link") from error
        if not any(found.is_relative_to(root) for root in self._roots):
            raise Refused(f"{path} is a link out of its folder")
        return found

    def bytes(self, name: str, limit: int) -> bytes:
        """Read all of a file of at most `limit` bytes."""
        path = self.place(name)
        _sniff(path, self.path / name)
        return durable.read_bytes(path, limit)

    def json(self, name: str) -> Any:
        """The parsed content of a small JSON file."""
        return durable.parse_json(self.bytes(name, SMALL), self.path / name)


def is_pretrained(folder: Path) -> bool:
    """Whether this is a pretrained model and not a run, by its config.json. A folder that cannot be
    read is not; opening it reports the error."""
    try:
        raw = Shelf(folder).json("config.json")
    except HeedError:
        return False
    return isinstance(raw, dict) and "task" not in raw and "model_type" in raw


def _sniff(path: Path, shown: Path) -> bytes:
    """The beginning of a file; a Git LFS pointer or a web page in its place is refused."""
    with durable.open_plain(path) as file:
        start = file.read(512)
    if start.startswith(b"version https://git-lfs"):
        raise Refused(f"{shown} is a Git LFS pointer, not the file: fetch it by git lfs pull")
    if re.match(rb"\s*<(!doctype|html|\?xml)", start, re.IGNORECASE):
        raise Refused(f"{shown} is a web page, not the file: download it again")
    return start


class Weights(NamedTuple):
    """The tensors of a folder: their types and shapes, and the file of each."""

    header: Header
    places: dict[str, Path]
    pickled: bool = False

    @contextmanager
    def reader(self, *names: str) -> Iterator[Callable[[str], Tensor]]:
        """A function from a name to its tensor, for these names or for all. The files are opened
        first, so that no network is allocated for tensors that cannot be read."""
        look = _unpickled if self.pickled else _opened
        wanted = dict.fromkeys(self.places[name] for name in names or self.places)
        files: dict[Path, Any] = {path: look(path) for path in wanted}

        def read(name: str) -> Tensor:
            path = self.places[name]
            tensor: Tensor
            tensor = files[path][name] if self.pickled else _taken(files[path], name, path)
            return tensor

        try:
            yield read
        finally:
            files.clear()

    def alike(self, copy: str, original: str) -> bool:
        """Whether a tensor holds the numbers of another, rounded where its own type is coarser: the
        other can take its place, and no digit is lost.

        They are compared in parts, and the files are opened again for each part: mapped memory is
        held for as long as a file is open, and the folder may still be refused.
        """
        (kind, shape), (other, size) = self.header[copy], self.header[original]
        if shape != size or not (kind.is_floating_point and other.is_floating_point):
            return False
        wide = torch.promote_types(kind, torch.float32)  # in which any can be compared
        count, *rest = shape
        rows = max(1, PART // math.prod(rest))
        for start in range(0, count, rows):
            with self.reader(copy, original) as read:
                parts = (read(name)[start : start + rows] for name in (copy, original))
                ours, theirs = (part.to(kind).to(wide) for part in parts)
                nothing = ours.isnan() & theirs.isnan()
                if not (nothing | (ours == theirs)).all():
                    return False
        return True


def find(shelf: Shelf, pickled: bool = False) -> Weights:
    """The weights of a folder, whole or in shards.

    pickled  read pytorch_model.bin if there is nothing else
    """
    if shelf.has(SINGLE):
        return _gathered(shelf, {SINGLE: None}, _header)
    if shelf.has(INDEX):
        return _gathered(shelf, _listed(shelf, INDEX), _header)
    if not shelf.has(PICKLED) and not shelf.has(PICKLED_INDEX):
        raise Refused(f"{shelf.path} has no {SINGLE}")
    if not pickled:
        raise Refused(
            f"{shelf.path} has its weights only as {PICKLED}, a pickled file; if you trust its "
            "source, allow it: --pickled, or pickled=True"
        )
    files: Shards = {PICKLED: None} if shelf.has(PICKLED) else _listed(shelf, PICKLED_INDEX)
    return _gathered(shelf, files, _pickled_header)._replace(pickled=True)


def _listed(shelf: Shelf, index: str) -> Shards:
    """The shards of an index, each with its tensors."""
    table = shelf.json(index)
    names = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise Refused(f"{shelf.path / index} does not list the file of each tensor")
    shards: Shards = {}
    for name, file in names.items():
        held = shards.setdefault(file, set())
        assert held is not None
        held.add(name)
    if not 0 < len(shards) <= MANY:
        raise Refused(
            f"{shelf.path / index} lists {len(shards):,} files; 1 to {MANY:,} are allowed"
        )
    for file in shards:
        if PLAIN.fullmatch(file) is not None and not shelf.has(file):
            raise Refused(f"{shelf.path} has no {file}, which {index} lists")
    return shards


def _gathered(shelf: Shelf, files: Shards, look: Callable[..., Any]) -> Weights:
    """The headers of all files; each tensor must be in one file, the one that the index names."""
    found = Weights({}, {})
    for file, listed in files.items():
        path = shelf.place(file)
        header = look(path, shelf.path / file)
        odd = set() if listed is None else listed ^ header.keys()
        if odd or found.header.keys() & header.keys():
            name = next(iter(sorted(odd or found.header.keys() & header.keys())))
            raise Refused(f"{shelf.path / file} and the index disagree on '{name}'")
        found.header.update(header)
        found.places.update(dict.fromkeys(header, path))
    return found


def _header(path: Path, shown: Path) -> Header:
    start = _sniff(path, shown)
    if start.startswith(b"PK\3\4"):
        raise Refused(f"{shown} is a zip file, perhaps of pickled weights, not safetensors")
    length = int.from_bytes(start[:8], "little")
    if SMALL < length < path.stat().st_size:
        raise Refused(f"{shown} has a header of {length:,} bytes; {SMALL:,} are allowed")
    return plain_header(path)


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:  # it is stricter about headers than heed
        raise Refused(f"{path} is not a safetensors file: {str(error)[:200]}") from None
    except (OSError, RuntimeError, MemoryError) as error:  # it maps the file twice
        raise Refused(f"{path} cannot be opened: {error}") from None


def _taken(file: Any, name: str, path: Path) -> Tensor:
    from safetensors import SafetensorError

    try:
        tensor: Tensor = file.get_tensor(name)
    except SafetensorError as error:
        raise Refused(f"{path}: cannot read '{name}': {error}") from None
    return tensor


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors that torch.save wrote, mapped into memory; PyTorch's guard runs no code in it."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged pickle may cause any error
        reason = str(error).strip().partition("\n")[0][:200]
        raise Refused(f"{path} cannot be read as weights: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise Refused(f"{path} holds something other than tensors by name")
    return found


def _pickled_header(path: Path, shown: Path) -> Header:
    """Types and shapes of weights that torch.save wrote."""
    _sniff(path, shown)
    return {name: (x.dtype, tuple(x.shape)) for name, x in _unpickled(path).items()}
