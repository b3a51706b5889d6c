"""Converting: a pretrained folder of Hugging Face to one of heed, and one of heed to Hugging Face.

The folder's config.json decides the direction: heed's own has the key `heed`, the version that
wrote it. A run whose model exists at Hugging Face (BERT, GPT-2, XLNet) can be converted, too. The
target is written under a temporary name and renamed at the end, so it is never incomplete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import processors
from torch import Tensor

from heed.data import vocabularies
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.models import pretrained
from heed.models.layouts import LAYOUTS
from heed.models.pretrained import Described
from heed.running.devices import version
from heed.running.hub import folder_of
from heed.running.loading import NAMES, Loaded, Stored, loading
from heed.running.opening import check_weights, read_config
from heed.running.shards import Shelf
from heed.storage import atomic, durable, tensors
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from heed.tasks.task import Frame

ROLES = ("pad", "bos", "eos", "sep", "cls")  # special symbols whose numbers a config.json holds


UNTYPED = ("input_ids", "attention_mask")
TYPED = ("input_ids", "token_type_ids", "attention_mask")
"""The inputs that a tokeniser makes. Hugging Face's GPT-2 would embed token types like symbols."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The folder that was written, and its layout: "heed" or "huggingface"."""

    folder: Path
    layout: str
    kind: str
    head: str
    parameters: int
    tokeniser: bool
    unused: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {**asdict(self), "folder": str(self.folder)}

    def line(self) -> str:
        """A summary in one line."""
        words = "" if self.tokeniser else ", without a tokeniser"
        return (
            f"{self.folder}: {self.kind} with the head '{self.head}', {self.parameters:,} "
            f"parameters, in the layout of {self.layout}{words}"
        )


def convert(
    source: str,
    target: Path,
    *,
    head: str | None = None,
    revision: str | None = None,
    pickled: bool = False,
) -> Work[Converted]:
    """Write a folder in the other layout; a target that holds anything is refused.

    source  a folder, or a name at the Hugging Face hub
    """
    _check_free(target)
    folder = folder_of(source, revision)
    raw = Shelf(folder).json("config.json")
    if isinstance(raw, dict) and "task" in raw:
        if head is not None:
            raise Refused(f"{folder} is a run, and its task decides the head; leave out --head")
        found = _run(folder)
    else:
        found = yield from loading(folder, head=head, pickled=pickled)
    if found.unused:
        yield Note(
            f"left out, since the head '{found.head}' does not use them: {', '.join(found.unused)}"
        )
    leaves = isinstance(raw, dict) and "heed" in raw
    named = _theirs(found) if leaves else found.model.state_dict()
    yield Progress("writing", 0, 1)
    _write(target, _files(found, leaves, own="task" in raw), named)
    yield Progress("writing", 1, 1)
    count = sum(x.numel() for x in found.model.parameters())
    layout = "huggingface" if leaves else "heed"
    has = found.tokeniser is not None
    return Converted(target, layout, found.kind, found.head, count, has, found.unused)


def _check_free(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise Refused(f"{target} exists, and is not a plain folder; name a new folder")
    if target.is_dir() and os.listdir(target):
        raise Refused(f"{target} holds other files; name a new folder")


def _run(folder: Path) -> Loaded:
    """The model of a run, if Hugging Face has an equivalent."""
    run = RunFolder.open(folder)
    config = read_config(run)
    exported = task_of(config.task).exported(config)
    if exported is None:
        raise Refused(
            f"{folder}: Hugging Face has no equivalent of the model of this run of {config.task}; "
            f"it has {', '.join(LAYOUTS)}, and classifiers by BERT with the pool 'first' or XLNet "
            "with the pool 'last'"
        )
    check_weights(run, config)
    settings = exported.settings
    described = Described(settings.kind, settings.head, settings)
    LAYOUTS[settings.kind].config(settings, settings.head)  # refuses what it cannot express
    model = described.blank()
    model.load_state_dict(
        {
            name.removeprefix("encoder.") if name.startswith("encoder.streams.") else name: x
            for name, x in run.load_model().items()
        }
    )
    limit = vocabularies.largest(settings.rows)
    files = {"tokenizer.json": run.read_bytes(run.tokenizer, limit)}
    tokeniser = vocabularies.read(files, settings.rows, str(folder))
    if tokeniser is not None:  # a run's <mask> is a plain piece, which nobody else would find
        pieces = tokeniser.pieces(tokeniser.roles.values())
        tokeniser.tokenizer.add_special_tokens(pieces)
    if tokeniser is not None and exported.frame is not None:
        tokeniser = _framed(tokeniser, exported.frame)
    if tokeniser is not None and exported.longest is not None:
        tokeniser = replace(tokeniser, longest=exported.longest)
    labels, names = tuple(getattr(config, "labels", ())), getattr(config, "names", {})
    return Loaded(model.eval(), *described, tokeniser, labels, names=names)


def _framed(tokeniser: Vocabulary, frame: Frame) -> Vocabulary:
    """A tokeniser with the template that the model was trained with; one that did not come from
    heed already has its own.

    heed's runs use <s> and </s> as [CLS] and [SEP], and add them outside the tokeniser.
    """
    roles = tokeniser.roles
    if "cls" in roles or not {"bos", "eos"} <= roles.keys():
        return tokeniser
    names = {role: tokeniser.tokenizer.id_to_token(roles[role]) for role in ("bos", "eos")}
    tokeniser.tokenizer.post_processor = processors.TemplateProcessing(
        single=frame.single.format(**names),
        pair=frame.pair.format(**names),
        special_tokens=[(names[role], roles[role]) for role in names],
    )
    return replace(tokeniser, roles={**roles, "cls": roles["bos"], "sep": roles["eos"]})


def _theirs(found: Loaded) -> dict[str, Tensor]:
    """The weights as Hugging Face has them."""
    described = Described(found.kind, found.head, found.settings)
    return pretrained.theirs(described, found.model.state_dict())


def _files(found: Loaded, leaves: bool, own: bool) -> dict[str, bytes]:
    """Everything but the weights.

    own  whether it comes from a run: there XLNet has token types only in classification
    """
    words = {} if found.tokeniser is None else found.tokeniser.files()
    if words:
        xlnet = found.kind == "xlnet"
        typed = found.kind == "bert" or (xlnet and (not own or found.head == "classify"))
        inputs: dict[str, Any] = {"model_input_names": TYPED if typed else UNTYPED}
        inputs |= {"padding_side": "left"} if xlnet else {}  # its summary is the last symbol
        beside = json.loads(words["tokenizer_config.json"]) | inputs
        words["tokenizer_config.json"] = json.dumps(beside, ensure_ascii=False, indent=2).encode()
    config = _their_config(found) if leaves else _own_config(found)
    return {"config.json": json.dumps(config, ensure_ascii=False, indent=2).encode(), **words}


def _own_config(found: Loaded) -> dict[str, Any]:
    stored = Stored(
        heed=version(),
        model_type=found.kind,
        model=found.settings,
        labels=list(found.labels),
        names=dict(found.names),
    )
    return stored.model_dump(mode="json")


def _their_config(found: Loaded) -> dict[str, Any]:
    config = LAYOUTS[found.kind].config(found.settings, found.head)
    if found.labels:
        names = dict(enumerate(found.labels))
        config |= {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    if found.names:
        config[NAMES] = dict(found.names)
    roles = {} if found.tokeniser is None else found.tokeniser.roles
    numbers = {f"{role}_token_id": roles[role] for role in ROLES if role in roles}
    return config | {key: i for key, i in numbers.items() if i < found.settings.rows}


def _write(target: Path, files: Mapping[str, bytes], named: Mapping[str, Tensor]) -> None:
    """Write the whole folder, or nothing."""
    durable.make_folder(target.parent)
    draft = atomic.aside(target)
    try:
        os.mkdir(draft)
        for name, data in files.items():
            durable.write(draft / name, [data])
        durable.write(draft / "model.safetensors", tensors.parts(named))
        atomic.sync(draft)
        os.rename(draft, target)  # replaces an empty folder
    except BaseException:
        durable.remove(draft)
        raise
    atomic.sync(target.parent)
