"""Starting from existing weights: those of a run, of this task or another, or a pretrained folder.

Sizes that the recipe does not name are those of the start, and those that it names must match.
Weights that fit by name and shape are copied, and a note counts them and lists the new ones; if
none fits, the start is refused.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.events import Note
from heed.models.reader_settings import GATHERED
from heed.models.transformer_settings import Size, TransformerSettings
from heed.running.hub import folder_of
from heed.running.opening import checked
from heed.running.recipe import load, names
from heed.running.shards import is_pretrained
from heed.tasks.task import Start, Task
from heed.training.progress import load_weights

SHAPED = (
    "longest",
    "types",
    "activation",
    "direction",
    "summary_activation",
    "epsilon",
    "tied",
    "multiple",
    "cell",
    "embedding",
    "hidden",
    "bidirectional",
    "channels",
    "widths",
)
"""Keys that the weights of a text model depend on, beside layers, width, feed, heads."""

ALIKE = ("attention", "options", "clamp", "blind")
"""Keys taken from the start, if the recipe names neither an attention nor its options."""

BROUGHT = frozenset((*Size._fields, *SHAPED, *ALIKE, "symbols"))
"""Keys of a model that are taken from the start if the recipe does not name them."""


def opened(path: Path) -> Start:
    """The weights and the tokeniser of a folder, or of a name at the hub, checked like any run."""
    folder = folder_of(path)
    if is_pretrained(folder):
        return _pretrained(folder, path)
    run, config, task, codec = checked(folder)
    return Start(path, config.task, run.load_model(), task.tokeniser(codec), config.model)


def _pretrained(folder: Path, path: Path) -> Start:
    from heed.running import loading  # rarely needed

    found = loading.load(folder)
    return Start(path, None, found.model.state_dict(), found.tokeniser, found.settings)


def sized(recipe: Any, start: Start) -> tuple[Any, Note | None]:
    """The recipe with the start's sizes where it names none, and a note of the changes.

    A size that the recipe names and that differs is refused: the start's weights would not fit.
    """
    where, mine = _reader("model", recipe.model)
    _, there = _reader("model", start.settings)
    if type(there) is not type(mine) or there.kind != mine.kind:
        _check_kinds(recipe, f"{where}.kind", mine, there, start)
        return recipe, None  # names and shapes decide what fits
    named = mine.model_fields_set
    taken: dict[str, Any] = {}
    odd: list[tuple[str, Any, Any]] = []
    for key, here, other in _sizes(mine, there):
        said = key in named or ("size" in named and key in Size._fields)
        if here != other and said:
            odd.append((f"{where}.{key}", here, other))
        elif here != other:
            taken[key] = other
    taken |= _rows(mine, there, start)
    if odd:
        both = ", ".join(f"{key}={_told(here)} (there {_told(other)})" for key, here, other in odd)
        cure = " ".join(f"{key}={_told(other)}" for key, _, other in odd)
        raise Refused(f"the recipe's sizes differ from {start.path}: {both}; to match: {cure}")
    if not {"attention", "options"} & named:
        same = ((key, getattr(there, key)) for key in ALIKE if hasattr(there, key))
        taken |= {k: x for k, x in same if k not in named and x != getattr(mine, k)}
    if not taken:
        return recipe, None
    known = type(mine).model_validate({**mine.model_dump(exclude_unset=True), **taken})
    whole = known if mine is recipe.model else recipe.model.model_copy(update={"encoder": known})
    told = ", ".join(f"{where}.{key}={_told(x)}" for key, x in taken.items())
    return recipe.model_copy(update={"model": whole}), Note(f"set as in {start.path}: {told}")


KINDS = {"bert": "a BERT", "gpt2": "a GPT-2", "xlnet": "an XLNet"}


def _check_kinds(recipe: Any, key: str, mine: Any, there: Any, start: Start) -> None:
    """Refuse a pretrained model of another kind than the recipe's: nothing but a head would fit. A
    Transformer that translates may start from the layers of another model."""
    kind = KINDS.get(getattr(there, "kind", ""))
    if kind is None or isinstance(mine, TransformerSettings):
        return
    changed = f"{key}={there.kind}"
    if hasattr(recipe.model, "pool"):
        changed += f" model.pool={GATHERED.get(there.kind)}"
    if mine is not recipe.model and {mine.kind, there.kind} <= GATHERED.keys():
        cure = f"to take it: {changed}"
    else:
        ready = None
        if mine is not recipe.model and there.kind in GATHERED:
            other = next((name for one in GATHERED if (name := _ready(one, recipe.task))), None)
            ready = _ready(there.kind, recipe.task) or (other and f"{other} {changed}")
        path = shlex.quote(str(start.path))
        cure = f"for {kind}: heed train {ready or _ready(there.kind)} --from {path}"
    wants = KINDS.get(mine.kind, "another network")
    raise Refused(f"{start.path} is {kind}, but the recipe's {key}={mine.kind} is {wants}; {cure}")


def _ready(kind: str, task: str | None = None) -> str | None:
    """A ready recipe with a model of a kind; of a task, one that has it as its encoder."""
    for name in names():
        raw = load(name)
        model = raw.get("model") or {}
        if task is not None:
            model = model.get("encoder") or {} if raw["task"] == task else {}
        if model.get("kind") == kind:
            return name
    return None


def _reader(where: str, model: Any) -> tuple[str, Any]:
    """The settings of a text model by itself, or of the encoder of a classifier."""
    encoder = getattr(model, "encoder", None)
    return (where, model) if encoder is None else (f"{where}.encoder", encoder)


def _sizes(mine: Any, there: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each size by its key, as the recipe and as the start has it."""
    if isinstance(getattr(mine, "sizes", None), Size):
        yield from zip(Size._fields, mine.sizes, there.sizes, strict=True)
    elif "layers" in type(mine).model_fields:
        yield "layers", mine.layers, there.layers
    for key in SHAPED:
        beyond = key == "longest" and mine.kind == "xlnet"  # it has no table of positions
        if key in type(mine).model_fields and not beyond:
            yield key, getattr(mine, key), getattr(there, key)


def _rows(mine: Any, there: Any, start: Start) -> dict[str, int]:
    """The rows of the start's embedding table, if there are more than symbols in its vocabulary."""
    rows, words = getattr(there, "symbols", None), getattr(start.tokeniser, "size", None)
    if rows is None or words is None or rows <= words or mine.symbols is not None:
        return {}
    return {"symbols": rows}


def _told(value: Any) -> str:
    """A value as it is written in an override of a recipe's key."""
    return json.dumps(value)


def begin(model: nn.Module, start: Start, task: Task[Any, Any]) -> Note:
    """Copy a start's weights into a model; the note counts them and lists the new ones, if any."""
    mine = model.state_dict()
    every = Note(f"taken from {start.path}: all {len(mine)} tensors")
    if task.whole and start.task == task.name:
        load_weights(model, start.weights)
        return every
    there = task.adopted(model, start)
    taken = [name for name, weight in mine.items() if _fit(weight, there.get(name))]
    if not any(mine[name].ndim > 1 for name in taken):  # biases alone are of no use
        raise Refused(f"nothing of {start.path} fits the recipe's model: {_odd(mine, there)}")
    with torch.no_grad():
        for name in taken:
            mine[name].copy_(there[name])
    new = [name for name in mine if name not in set(taken)]
    if not new:
        return every
    share = f"{len(taken)} of {len(mine)} tensors"
    return Note(f"taken from {start.path}: {share}; new: {_listed(new, taken)}")


def _odd(mine: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    """The reason why nothing fits: other names, or, if some are the same, another size."""
    both = (name for name, weight in mine.items() if name in there and weight.ndim > 1)
    name = next(both, None)
    said = "no weight has its name and shape"
    if name is None:
        return said
    sizes = f"{tuple(there[name].shape)} there and {tuple(mine[name].shape)} here"
    return f"{said}; '{name}' is {sizes}: give the recipe's model that size"


def _fit(mine: Tensor, there: Tensor | None) -> bool:
    return there is not None and there.shape == mine.shape


def _listed(new: list[str], taken: list[str]) -> str:
    """The names of new weights; a module that is new as a whole has one: answer.*"""
    known = {".".join(name.split(".")[:n]) for name in taken for n in range(1, name.count(".") + 2)}
    found: dict[str, None] = {}
    for name in new:
        words = name.split(".")
        for n in range(1, len(words) + 1):
            if (part := ".".join(words[:n])) not in known:
                found[part if n == len(words) else f"{part}.*"] = None
                break
    return ", ".join(found)
