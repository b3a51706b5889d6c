"""Checkpoints: folders of tensors and facts that are there whole, or not at all.

    checkpoints/step-300/
      model.safetensors  optimiser.safetensors  ...     one file for each group of tensors
      facts.json                                        the rest: step, epoch, settings, scores
      manifest.json                                     size and SHA-256 of each (see manifest.py)

A checkpoint is written under another name, synced, and renamed. Killed at any moment, a run finds
the last good one; a flipped bit, a cut-off, missing or added file is found when it is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heed.errors import HeedError, Refused
from heed.storage import atomic, durable, manifest
from heed.storage.durable import Damaged
from heed.storage.manifest import MANIFEST
from heed.storage.tensors import parts, read

FACTS = "facts.json"
GROUP = re.compile(r"[a-z][a-z0-9_-]{0,63}")
STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")
FORMER = re.compile(r"(.+)\.was-[0-9a-f]{8}")


class Saved(NamedTuple):
    """The content of a checkpoint: groups of named tensors, and facts."""

    tensors: dict[str, dict[str, Tensor]]
    facts: dict[str, Any]


def save(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]
) -> Path:
    """Write a checkpoint; one that is there already goes only once the new one is complete.

    tensors   by group ("model", "optimiser", ...) and name; on any device, tied ones included
    facts     what JSON can hold; inf and nan come back as they were
    """
    for group in tensors:
        if not GROUP.fullmatch(group):
            raise Refused(f"a group of tensors cannot be named {group!r}; use lowercase letters")
    durable.make_folder(folder.parent)
    draft, former = atomic.aside(folder), atomic.aside(folder, "was")
    try:
        _fill(draft, tensors, facts)
        if os.path.lexists(folder):
            os.rename(folder, former)
        os.rename(draft, folder)
        atomic.sync(folder.parent)
    except BaseException:
        _take_back(folder, former)
        durable.remove(draft)
        raise
    durable.remove(former)
    return folder


def _fill(
    draft: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]
) -> None:
    os.mkdir(draft)
    files = {
        f"{group}.safetensors": durable.write(draft / f"{group}.safetensors", parts(named))
        for group, named in tensors.items()
    }
    files[FACTS] = durable.write(draft / FACTS, [durable.dump_json(dict(facts), draft / FACTS)])
    told = {name: [digest] for name, digest in files.items()}
    durable.write(draft / MANIFEST, [manifest.dump(told, draft)])
    atomic.sync(draft)


def verify(folder: Path) -> manifest.Files:
    """Check every file against the manifest, whose files are returned; Damaged names the first
    fault."""
    if not folder.is_dir():
        raise Damaged(f"there is no checkpoint {folder}")
    files = manifest.read(folder, _allowed)
    if FACTS not in files:
        raise Damaged(f"{folder / MANIFEST} names no {FACTS}")
    for name in sorted({*files, *os.listdir(folder)} - {MANIFEST}):
        manifest.check(folder / name, files.get(name, ()))
    return files


def _allowed(name: str) -> bool:
    group, _, kind = name.partition(".")
    return name == FACTS or (kind == "safetensors" and GROUP.fullmatch(group) is not None)


def load(folder: Path, groups: Collection[str] | None = None) -> Saved:
    """Read a checkpoint, all of it verified first; only some groups of tensors where asked."""
    files = verify(folder)
    there = [name.removesuffix(".safetensors") for name in files if name != FACTS]
    for group in set(groups or ()) - set(there):
        raise Damaged(f"{folder} holds no {group}; it holds {', '.join(sorted(there))}")
    wanted = there if groups is None else groups
    tensors = {group: read(folder / f"{group}.safetensors") for group in wanted}
    facts = durable.read_json(folder / FACTS)
    if not isinstance(facts, dict):
        raise Damaged(f"{folder / FACTS} is not a table")
    return Saved(tensors, facts)


def at(checkpoints: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return checkpoints / f"step-{step}"


def steps(checkpoints: Path) -> dict[int, Path]:
    """The checkpoints that are there, good or not, the newest first. Links are not looked at."""
    if not checkpoints.is_dir():
        return {}
    with os.scandir(checkpoints) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    found = {int(m[1]): checkpoints / m[0] for m in map(STEP.fullmatch, folders) if m}
    return dict(sorted(found.items(), reverse=True))


def good(checkpoints: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """The checkpoints that are whole, newest first; each damaged one is passed over with a line."""
    for folder in steps(checkpoints).values():
        try:
            verify(folder)
        except HeedError as error:
            say(f"passing over the checkpoint {folder.name}: {error}")
        else:
            yield folder


def newest(checkpoints: Path, say: Callable[[str], None]) -> Path | None:
    """The newest good checkpoint; each damaged one on the way is passed over with a line."""
    return next(good(checkpoints, say), None)


def rewind(checkpoints: Path, step: int) -> None:
    """Remove the checkpoints after a step: the damaged ones that a resumed run passed over."""
    for number, folder in steps(checkpoints).items():
        if number > step:
            _discard(folder)


def prune(checkpoints: Path, keep: int) -> None:
    """Keep the newest few; remove the others, oldest first."""
    if keep < 1:
        raise Refused(f"keep must be at least 1, not {keep}")
    for folder in reversed(list(steps(checkpoints).values())[keep:]):
        _discard(folder)


def forget(checkpoints: Path, unwanted: Callable[[dict[str, Any]], bool]) -> None:
    """Remove the checkpoints whose facts are unwanted; one that cannot be read stays."""
    for folder in steps(checkpoints).values():
        try:
            facts = durable.read_json(folder / FACTS)
        except HeedError:
            continue
        if isinstance(facts, dict) and unwanted(facts):
            _discard(folder)


def _discard(folder: Path) -> None:
    """Rename it first, so that a half-removed checkpoint is never taken for a damaged one."""
    gone = atomic.aside(folder)
    os.rename(folder, gone)
    durable.remove(gone)


def sweep(checkpoints: Path) -> None:
    """Tidy up after a kill: a replaced checkpoint comes back unless the new one is whole."""
    durable.sweep(checkpoints)
    names = os.listdir(checkpoints) if checkpoints.is_dir() else []
    for match in filter(None, map(FORMER.fullmatch, names)):
        folder, former = checkpoints / match[1], checkpoints / match[0]
        try:
            verify(folder)
        except HeedError:
            durable.remove(folder)
        _take_back(folder, former)
        durable.remove(former)


def _take_back(folder: Path, former: Path) -> None:
    if os.path.lexists(former) and not os.path.lexists(folder):
        os.rename(former, folder)


def average(folders: Sequence[Path], group: str = "model") -> dict[str, Tensor]:
    """The mean of several checkpoints' tensors, summed in float64; integers are the last one's.

    Averaging the last few checkpoints: Vaswani 2017 §6.1.
    """
    total: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}  # what was tied in all of them stays tied
    for folder in folders:
        named = load(folder, [group]).tensors[group]
        _check_alike(named, last or named, folder)
        first = {id(x): name for name, x in reversed(named.items())}
        tied = {name: (*tied.get(name, ()), first[id(x)]) for name, x in named.items()}
        total = {name: _wide(x) + total.get(name, 0) for name, x in named.items() if _has_mean(x)}
        last = named
    if not last:
        raise Refused("there is nothing to average")
    means: dict[tuple[str, ...], Tensor] = {}
    for name, x in last.items():
        means.setdefault(
            tied[name], (total[name] / len(folders)).to(x.dtype) if _has_mean(x) else x
        )
    return {name: means[tied[name]] for name in last}


def _has_mean(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _check_alike(named: Mapping[str, Tensor], others: Mapping[str, Tensor], folder: Path) -> None:
    for name in sorted(named.keys() ^ others.keys()):
        raise Refused(f"{folder} cannot be averaged with the others: not all of them have {name!r}")
    for name, x in named.items():
        ours, theirs = ((x.dtype, tuple(x.shape)) for x in (x, others[name]))
        if ours != theirs:
            kinds = f"{ours[0]} {ours[1]}, and {theirs[0]} {theirs[1]} elsewhere"
            raise Refused(f"{folder} cannot be averaged with the others: {name!r} is {kinds}")
