"""Watching: collect every record of attention while a model runs.

with heed.watch(model) as seen:
    model(batch)
seen["decoder.attention"][0].weight

with heed.watch(model, statistics=heed.Summary(top=4)) as seen:  # from the fast path
    model(batch)
seen["decoder.attention"][0].statistics.entropy
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from heed.attention.attending import Attending
from heed.attention.mechanism import Mechanism
from heed.errors import Refused, UnknownName
from heed.records import NEEDS, Attended, Need, Summary, as_summary

Seen = dict[str, list[Attended]]
"""The records of each attention, by the path of its module, in the order of the calls."""


@contextmanager
def watch(
    model: nn.Module, need: Need | None = None, *, statistics: Summary | bool | None = None
) -> Iterator[Seen]:
    """Collect what every attention inside `model` returns, its weights formed, while this lasts.

    With `statistics` (True or a `heed.Summary`) each record carries those instead of the weights,
    which are then formed only where `need` asks for them; an attention that the model itself asks
    for a Summary answers that one.

    Nothing is left on the model afterwards. Graph capture is off meanwhile: a compiled model runs
    eagerly, since a captured graph would keep its records to itself.
    """
    asked = as_summary(statistics)
    least: Need = need or ("weight" if asked is None else "context")
    if least not in NEEDS:
        raise UnknownName("need", least, NEEDS)
    seen: Seen = {path: [] for path, _ in attentions(model)}
    if not seen:
        raise Refused("there is no heed attention inside this model to watch")

    def ask_for_more(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = kwargs.get("need", "context")
        if wanted not in NEEDS:
            return args, kwargs  # the attention itself will say what is wrong
        more = {"need": max(wanted, least, key=NEEDS.index)}
        if asked is not None and not isinstance(kwargs.get("statistics"), Summary):
            more["statistics"] = asked
        return args, {**kwargs, **more}

    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for path, module in attentions(model):
            before = module.register_forward_pre_hook(ask_for_more, with_kwargs=True)
            after = module.register_forward_hook(_collect(seen[path]))
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield seen


def attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost attentions inside a model, with their paths."""
    found: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}." if outer else "") for outer, _ in found)
        if isinstance(module, Attending | Mechanism) and not inside:
            found.append((path, module))
    return found


def _collect(records: list[Attended]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], record: Attended) -> None:
        records.append(record)

    return hook
