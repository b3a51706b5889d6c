"""Pretrained folders, opened like runs of heed's own tasks.

    GPT-2 with a language head          continues prompts       as language-model
    BERT with a masked head             fills [MASK]            as pretrain
    XLNet with a language head          does either             see below
    BERT, XLNet with a label head       labels texts            as classify

A bidirectional XLNet (attn_type "bi", as the published ones) fills masks, like the run that it may
come from; with options of text generation it continues prompts. A left-to-right XLNet always
continues prompts.

The folder is checked as by `heed.load` (running/loading.py). An incomplete vocabulary, or a head
that no command uses, is refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError

from heed.answers.continuation import Continuation, Decoding
from heed.answers.worker import Worker
from heed.data.borrowed import Borrowed, Renumbered, marks_of
from heed.data.kinds.text import Gathers, RawText, Text
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.running.devices import version
from heed.running.loading import Loaded, load
from heed.running.opening import Run
from heed.settings import complaint
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from heed.tasks.classify import TextLabel
from heed.tasks.language_model import LanguageConfig, places
from heed.tasks.pretrain import Hidden, Objective, Ordered
from heed.tasks.pretrainer import Pretrainer
from heed.tasks.task import Config, Name

READ = 512  # symbols per input of a model without a limit of positions

Opened = tuple[Config, Any]
"""What the verbs of a task need of a run: its config, and its worker."""


class LabelConfig(Config):
    """What the verbs of classification need of a config."""

    task: Literal["classify"] = "classify"
    labels: list[Name] = Field(min_length=2, max_length=65536)
    names: dict[str, str] = Field(default_factory=dict)
    text: None = None  # a pretrained folder has no data files
    label: None = None


def adopt(path: Path, device: torch.device, asked: Collection[str] = ()) -> Run:
    """The model of a pretrained folder, ready to use.

    asked  the options that were given: they choose the task of a model that has several
    """
    found = load(path, device=device)
    task = _task(found, asked)
    if task is None:
        known = ", ".join(f"{kind} '{head}'" for kind, head in HEADS)
        raise Refused(
            f"{path} is {found.kind} with the head '{found.head}', which no command supports; "
            f"supported: {known}; or train --from it"
        )
    words = found.tokeniser
    if words is None:
        raise Refused(f"{path} has no tokeniser: it has no vocabulary files")
    if words.size > found.settings.rows:
        raise Refused(
            f"{path}: its vocabulary has {words.size:,} symbols, but the model "
            f"{found.settings.rows:,}"
        )
    try:
        config, worker = MAKERS[task](found, words, path, device)
    except ValidationError as error:
        said = complaint(task_of(task).config, error)
        raise Refused(
            f"{path}: config.json describes a model that no command supports: {said}"
        ) from None
    return Run(RunFolder(path), config, worker, task_of(task))


def _task(found: Loaded, asked: Collection[str]) -> str | None:
    """The task that a model is opened for; None if no command supports it."""
    task = HEADS.get((found.kind, found.head))
    both = found.kind == "xlnet" and found.settings.direction == "both"
    if task == "language-model" and both and not WRITERS.intersection(asked):
        return "pretrain"
    return task


def _writer(found: Loaded, words: Vocabulary, path: Path, device: torch.device) -> Opened:
    text = Borrowed(words, str(path))
    limit = places(found.settings)
    config = LanguageConfig(
        heed=version(),
        task="language-model",
        model=found.settings,
        symbols=found.settings.rows,
        context=limit or READ,
        decoding=Decoding(),
    )
    form = Continuation(marks_of(text), context=config.context, places=limit)
    return config, Worker(found.model, {"text": RawText(text)}, form, device)


def _filler(found: Loaded, words: Vocabulary, path: Path, device: torch.device) -> Opened:
    pieces = Renumbered(words, found.settings.rows, str(path))
    ordered, pairs = found.kind == "xlnet", found.head == "pretraining"
    objective: Objective = Ordered() if ordered else Hidden(next_sentence=pairs)
    config = PretrainConfig(
        heed=version(),
        task="pretrain",
        model=found.settings,
        objective=objective,
        symbols=pieces.size,
        longest=min(found.settings.longest, READ),
    )
    places = None if ordered else found.settings.longest
    known: dict[str, Any] = {"ordered": ordered, "pairs": pairs, "places": places}
    return config, Pretrainer(found.model, pieces, device, **known)


def _labeller(found: Loaded, words: Vocabulary, path: Path, device: torch.device) -> Opened:
    settings = found.settings
    if settings.labels < 2:
        raise Refused(f"{path} has a head with one label: it is a regression, not a classifier")
    labels = found.labels or tuple(f"LABEL_{i}" for i in range(settings.labels))
    if len(labels) != settings.labels or len(set(labels)) < len(labels) or "" in labels:
        raise Refused(f"{path}: config.json does not name {settings.labels} different labels")
    limits = (words.longest, settings.longest if found.kind == "bert" else None)
    longest = min((limit for limit in limits if limit is not None), default=None)
    place: Gathers = "first" if found.kind == "bert" else "last"
    kind = Text(words, longest=longest, gathers=place)
    names = dict(found.names)
    config = LabelConfig(heed=version(), model=settings, labels=list(labels), names=names)
    gathers = words.roles.get("cls") if found.kind == "xlnet" else None
    form = TextLabel(labels, gathers=gathers)
    return config, Worker(found.model, {"text": kind}, form, device)


Maker = Callable[[Loaded, Vocabulary, Path, torch.device], Opened]

MAKERS: dict[str, Maker] = {
    "language-model": _writer,
    "pretrain": _filler,
    "classify": _labeller,
}
"""For each task, what makes its config and worker."""

HEADS = {
    ("gpt2", "language"): "language-model",
    ("xlnet", "language"): "language-model",
    ("bert", "masked"): "pretrain",
    ("bert", "pretraining"): "pretrain",
    ("bert", "classify"): "classify",
    ("xlnet", "classify"): "classify",
}
"""For each family and head, the task that it is opened for."""

WRITERS = {*Decoding.model_fields, "samples", "overlap"}
"""Options of text generation and of its evaluation."""
