"""Load pretrained models from a folder, or by their name at the Hugging Face hub.

    bert = heed.load("bert-base-uncased")
    bert.tokeniser.encode(["我爱中国"])
    bert.model(...)

A folder has config.json, model.safetensors (whole or in shards) and the files of a vocabulary,
either as Hugging Face lays them out or as `heed convert` does. It is checked before anything is
allocated: sizes, then names and shapes of all tensors, then the vocabulary, then the weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import nn

from heed.data import vocabularies
from heed.data.vocabularies import Vocabulary
from heed.errors import HeedError, Refused
from heed.events import Progress, Work, finish
from heed.models import pretrained
from heed.models.pretrained import Described
from heed.models.text_settings import BertSettings, GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.running.devices import no_memory
from heed.running.hub import folder_of
from heed.running.opening import fits
from heed.running.shards import Shelf, find
from heed.settings import Settings, check_keys, complaint
from heed.storage import tensors

LINE = 500  # characters of an error; an untrusted file may have names of a megabyte


NAMES = "heed_label_names"
"""The key of a Hugging Face config.json that maps labels in data files to their names."""

Names = dict[Annotated[str, Field(max_length=1000)], str]


class Stored(Settings):
    """config.json of a pretrained model as heed keeps it."""

    heed: str = Field(max_length=100, description="The version that wrote it.")
    model_type: str = Field(max_length=100)
    model: Annotated[BertSettings | GPT2Settings | XLNetSettings, Field(discriminator="kind")]
    labels: list[str] = Field(default_factory=list, max_length=65536)
    names: Names = Field(default_factory=dict, max_length=65536)

    @model_validator(mode="after")
    def _of_one_mind(self) -> Stored:
        if self.model_type != self.model.kind:
            raise ValueError(f"model_type is '{self.model_type}', but model is {self.model.kind}")
        if not set(self.names.values()) <= set(self.labels):
            raise ValueError("names has a name that is not among the labels")
        return self


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pretrained model, in evaluation mode.

    settings   what `heed.models` builds it from
    tokeniser  None if the folder has none
    labels     the names of a head's labels, if the folder has them
    unused     weights of other heads, which were not loaded
    names      from labels in data files to their names, if it was a run that had them
    """

    model: nn.Module
    kind: str
    head: str
    settings: Any
    tokeniser: Vocabulary | None
    labels: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        said = [f"kind={self.kind!r}", f"head={self.head!r}", f"{parameters:,} parameters"]
        said += [repr(self.tokeniser)] if self.tokeniser is not None else []
        return f"Loaded({', '.join(said)})"


def load(
    source: str | os.PathLike[str],
    *,
    head: str | None = None,
    revision: str | None = None,
    pickled: bool = False,
    device: str | torch.device = "cpu",
) -> Loaded:
    """A pretrained BERT, GPT-2 or XLNet, from a folder or by its name at the Hugging Face hub.

    head      another head than the folder names, if it has the weights: "none" is the body alone
    revision  a branch, tag or commit at the hub
    pickled   read pytorch_model.bin if there is no model.safetensors
    """
    found = finish(loading(folder_of(source, revision), head=head, pickled=pickled))
    found.model.to(device)
    return found


def loading(folder: Path, *, head: str | None = None, pickled: bool = False) -> Work[Loaded]:
    """The model of a folder, with progress."""
    shelf = Shelf(folder)
    try:
        raw = shelf.json("config.json")
        ours = isinstance(raw, dict) and "heed" in raw
        if ours:
            return (yield from _own(shelf, raw, head))
        described = pretrained.describe(raw, head)
        weights = find(shelf, pickled)
        plan = pretrained.fitted(described, weights.header)
        tokeniser = _vocabulary(shelf, described, raw.get("tokenizer_class") or "")
        labels = _labels(raw, described.settings)
        names = _names(raw, labels)
        described, plan = pretrained.apart(described, plan, weights.header, weights.alike)
    except HeedError as error:
        raise _placed(error, folder) from None
    with weights.reader() as read:
        model = _blank(described, folder)
        for i, count, name in pretrained.fill(model, plan, read):
            yield Progress("weights", i, count, name)
    return Loaded(model.eval(), *described, tokeniser, labels, plan.unused, names)


def _blank(described: Described, folder: Path) -> nn.Module:
    """The network with uninitialised weights; refused if there is too little memory."""
    try:
        return described.blank()
    except RuntimeError as error:
        if not no_memory(error):
            raise
        size = sum(x.nbytes for x in set(described.outline().values())) / 2**30
        raise Refused(
            f"{folder}: its weights take {size:,.1f} GiB of memory, more than is free; load it "
            "on a machine with more memory"
        ) from None


def _placed(error: HeedError, folder: Path) -> HeedError:
    """The same error with the folder in it, cut to the length of a line."""
    said = str(error)
    said = said if str(folder) in said else f"{folder}: {said}"
    return Refused(said if len(said) < LINE else f"{said[:LINE]}…")


def _own(shelf: Shelf, raw: dict[str, Any], head: str | None) -> Work[Loaded]:
    """The model of a folder that `heed convert` wrote."""
    described, config = stored(shelf, raw)
    if head not in (None, described.head):
        raise Refused(f"{shelf.path} has the head '{described.head}', not '{head}'")
    find(shelf)  # refuses a folder without model.safetensors, and names what it has instead
    path, outline = shelf.place("model.safetensors"), described.outline()
    fits(outline, path)
    tokeniser = _vocabulary(shelf, described)
    yield Progress("weights", 0, len(outline))
    model = _blank(described, shelf.path)
    model.load_state_dict(tensors.read(path))
    yield Progress("weights", len(outline), len(outline))
    labels = tuple(config.labels)
    return Loaded(model.eval(), *described, tokeniser, labels, names=config.names)


def stored(shelf: Shelf, raw: dict[str, Any]) -> tuple[Described, Stored]:
    """The model that heed's own config.json describes, and the whole config."""
    if "task" in raw:
        raise Refused(
            f"{shelf.path} is a run of heed; open it by heed.running.opening.open_run: "
            "heed.load is for pretrained models"
        )
    check_keys(raw, shelf.path / "config.json")
    try:
        config = Stored.model_validate(raw)
    except ValidationError as error:
        raise Refused(f"config.json: {complaint(Stored, error)}") from None
    settings = config.model
    return Described(settings.kind, settings.head, settings), config


CLASSES = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer", "xlnet": "XLNetTokenizer"}
"""For each family, the tokeniser class at Hugging Face, if a folder names no other."""


def _vocabulary(shelf: Shelf, described: Described, named: str | None = None) -> Vocabulary | None:
    """The vocabulary of a folder.

    named  the tokeniser class in config.json; None: it is a folder of heed, which has none
    """
    symbols = described.settings.rows
    usual = "" if named is None else CLASSES[described.kind]
    there = [name for name in vocabularies.FILES if shelf.has(name)]
    files = {name: shelf.bytes(name, vocabularies.largest(symbols)) for name in there}
    return vocabularies.read(files, symbols, str(shelf.path), named or "", usual)


def _labels(config: dict[str, Any], settings: Any) -> tuple[str, ...]:
    """The labels' names in the order of their numbers; none where they only repeat the numbers,
    unless a run called them so."""
    named = config.get("id2label")
    names = [named.get(str(i)) for i in range(len(named))] if isinstance(named, dict) else []
    if all(isinstance(name, str) for name in names) and names != _unnamed(len(names)):
        return tuple(map(str, names))
    return tuple(_unnamed(getattr(settings, "labels", 0))) if config.get(NAMES) else ()


def _names(config: dict[str, Any], labels: tuple[str, ...]) -> dict[str, str]:
    """From labels in data files to their names, as a run's config.json kept them."""
    try:
        names = TypeAdapter(Names).validate_python(config.get(NAMES, {}))
    except ValidationError:
        raise Refused(f"config.json: {NAMES} is not a map from labels to names") from None
    if not set(names.values()) <= set(labels):
        raise Refused(f"config.json: {NAMES} has a name that is not among the labels of id2label")
    return names


def _unnamed(count: int) -> list[str]:
    return [f"LABEL_{i}" for i in range(count)]
