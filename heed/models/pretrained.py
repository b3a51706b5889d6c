"""Weights to and from the layouts of Hugging Face: what they are called there, and their shapes.

    described = describe(config)                # config.json -> family, head, settings
    plan = fitted(described, header)            # each of heed's weights, where it is found there
    described, plan = apart(described, plan, header, alike)     # alike(name, name) -> bool
    fill(described.blank(), plan, read)         # read(name) -> tensor
    theirs(described, model.state_dict())       # and back

A config is data. Its architecture is looked up in a closed table, its sizes are bounded, and before
anything is allocated every tensor of a file is checked to have the shape that the config gives it.
This module opens no files: `heed.running.loading` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heed.errors import HeedError, Refused, UnknownName
from heed.models.layouts import LAYOUTS, HubLayout, Rename

Header = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""dtype and shape of each tensor that a folder has."""

LONG = 100  # characters of a name from a file that an error message quotes

# The names of a norm's weights in the first files that were published.
OLD = {"gamma": "weight", "beta": "bias"}


class Undrawn(TorchFunctionMode):
    """A mode in which random initialisation leaves tensors as they are."""

    # Some of nn.init come here as such, others as the methods that they call.
    DRAWS = (
        Tensor.normal_,
        Tensor.uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in self.DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


class Described(NamedTuple):
    """A model as heed builds it."""

    kind: str
    head: str
    settings: Any

    @property
    def layout(self) -> HubLayout:
        """The way Hugging Face stores it."""
        return LAYOUTS[self.kind]

    def blank(self) -> nn.Module:
        """The network before its weights are filled in: drawing them would take most of the time.
        The caller's random state stays as it was."""
        with torch.random.fork_rng(devices=[]), Undrawn():
            return self.layout.build(self.settings)

    def outline(self) -> dict[str, Tensor]:
        """The network's weights without their numbers: nothing is allocated."""
        with torch.device("meta"), Undrawn():
            return self.layout.build(self.settings).state_dict(keep_vars=True)


class Fitting(NamedTuple):
    """The tensors of a folder that make each weight, are of no use, or must be alike."""

    sources: dict[str, tuple[Rename, tuple[str, ...]]]
    unused: tuple[str, ...]
    copies: tuple[tuple[str, str], ...] = ()


def describe(config: Any, head: str | None = None) -> Described:
    """The network that a config.json describes, with another head if one is given."""
    if not isinstance(config, dict):
        raise Refused("config.json is not a table")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise Refused("config.json does not say its model_type")
    if kind not in LAYOUTS:
        raise UnknownName("model_type", kind[:LONG], LAYOUTS)
    layout = LAYOUTS[kind]
    return _settled(kind, config, head or _head(layout, config.get("architectures")))


def _head(layout: HubLayout, named: Any) -> str:
    """The head of the first architecture that is named; "none" where none is named."""
    if named in (None, []):
        return "none"
    name = named[0] if isinstance(named, list) else named
    if not isinstance(name, str) or name not in layout.architectures:
        raise UnknownName("architecture", str(name)[:LONG], layout.architectures)
    return layout.architectures[name]


def _settled(kind: str, config: dict[str, Any], head: str) -> Described:
    known = sorted(set(LAYOUTS[kind].architectures.values()))
    if head not in known:
        raise UnknownName(f"head of {kind}", head, known)
    try:
        return Described(kind, head, LAYOUTS[kind].settings(config, head))
    except HeedError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise Refused("config.json does not describe a valid model") from None


def fitted(described: Described, header: Header) -> Fitting:
    """Find each weight in a folder; refuses a tensor that is missing, has another shape or is of no
    use to any head of the family."""
    layout = described.layout
    outline = described.outline()
    found = {_current(name): name for name in header}
    wanted = _expected(described, outline)
    places = {name: _found(name, layout.prefix, found) for name in wanted}
    for name, shape in wanted.items():
        if places[name] is None:
            raise Refused(f"the weights lack '{name}', which config.json describes")
        _check(name, header[found[str(places[name])]], shape)
    sources = {
        mine: (rename, tuple(found[str(places[name])] for name in _names(rename)))
        for mine, rename in layout.names(described.settings).items()
    }
    used = {name for _, names in sources.values() for name in names}
    left = [name for name in found if found[name] not in used]
    doubles = [copy for copy in layout.copies if copy.name in left and described.head in copy.heads]
    unused = _unused(described, [n for n in left if n not in {copy.name for copy in doubles}])
    copies = [(found[x.name], found[str(_found(x.of, layout.prefix, found))]) for x in doubles]
    return Fitting(sources, unused, tuple(copies))


def apart(
    described: Described, plan: Fitting, header: Header, alike: Callable[[str, str], bool]
) -> tuple[Described, Fitting]:
    """The network to build, and its tensors, once it is seen whether each copy is one.

    An output that differs from the table, whatever config.json says, is the network's own; a family
    that cannot have one is refused.
    """
    odd = next((pair for pair in plan.copies if not alike(*pair)), None)
    if odd is None:
        return described, plan
    if "tied" not in type(described.settings).model_fields:
        raise Refused(
            f"'{odd[0]}' differs from '{odd[1]}', and heed's {described.kind} has one weight for "
            "both: take another head, or tie them and save it again"
        )
    settings = described.settings.model_copy(update={"tied": False})
    described = described._replace(settings=settings)
    return described, fitted(described, header)


def _current(name: str) -> str:
    front, dot, last = name.rpartition(".")
    return f"{front}{dot}{OLD.get(last, last)}"


def _found(name: str, prefix: str, names: Mapping[str, str]) -> str | None:
    """A name as the file has it: with or without the prefix of the body."""
    other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
    return next((each for each in (name, other) if each in names), None)


def _check(name: str, there: tuple[torch.dtype, tuple[int, ...]], shape: tuple[int, ...]) -> None:
    kind, size = there
    if not kind.is_floating_point:
        raise Refused(f"'{name}' holds {kind}, not weights")
    if size != shape:
        raise Refused(f"'{name}' has the shape {size}; config.json describes {shape}")


def _unused(described: Described, left: list[str]) -> tuple[str, ...]:
    """Names that another head of the family would use; any other is refused."""
    layout = described.layout
    ignored = [re.compile(pattern) for pattern in layout.ignored]
    left = [name for name in left if not any(each.fullmatch(name) for each in ignored)]
    others = {name for head in set(layout.architectures.values()) for name in _all(described, head)}
    others |= {copy.name for copy in layout.copies}
    bare = {name.removeprefix(layout.prefix) for name in others}
    for name in left:
        if name.removeprefix(layout.prefix) not in bare:
            raise Refused(f"the weights hold '{name}', which config.json does not describe")
    return tuple(sorted(left))


def _all(described: Described, head: str) -> Iterator[str]:
    """Every name that the layout has for the family with this head."""
    settings = described.settings.model_copy(update={"head": head})
    for rename in described.layout.names(settings).values():
        yield from _names(rename)


def _names(rename: Rename) -> tuple[str, ...]:
    return (rename.name,) if isinstance(rename.name, str) else rename.name


def _expected(described: Described, outline: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in Hugging Face's layout."""
    return {name: tuple(x.shape) for name, x in _given(described, outline, outline)}


@torch.no_grad()
def fill(
    model: nn.Module, plan: Fitting, read: Callable[[str], Tensor]
) -> Iterator[tuple[int, int, str]]:
    """Copy the weights in, one by one; yields how many are done, how many there are, the next."""
    mine = model.state_dict()
    for i, (name, (rename, sources)) in enumerate(plan.sources.items()):
        yield i, len(plan.sources), name
        taken = _taken(rename, [read(source) for source in sources])
        mine[name].copy_(taken.reshape(mine[name].shape))  # as H D M where theirs is HD M
    yield len(plan.sources), len(plan.sources), ""


def _taken(rename: Rename, tensors: list[Tensor]) -> Tensor:
    """Their tensors as ours: reshaped, transposed, joined, and cut to the part that is meant."""
    if rename.view is not None:
        tensors = [x.reshape(rename.view) for x in tensors]
    if rename.transpose:
        tensors = [x.transpose(0, 1) for x in tensors]
    x = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    return x if rename.part is None else x.chunk(rename.part[1])[rename.part[0]]


def theirs(described: Described, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """heed's weights under Hugging Face's names and in its shapes."""
    return {name: x.detach() for name, x in _given(described, described.outline(), state)}


def _renames(described: Described, outline: Mapping[str, Tensor]) -> dict[str, Rename]:
    """The place where each weight is stored; one that is not must be tied to one that is."""
    renames = described.layout.names(described.settings)
    listed = {id(outline[name]) for name in renames}
    for name, weight in outline.items():
        if id(weight) not in listed:
            raise Refused(f"Hugging Face's layout of {described.kind} has no place for '{name}'")
    return renames


def _given(
    described: Described, outline: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Our tensors as theirs: the inverse of `_taken`."""
    stored = described.layout.stored(described.settings)
    parts: dict[tuple[str, ...], list[Tensor | None]] = {}
    for mine, rename in _renames(described, outline).items():
        names, x = _names(rename), state[mine]
        if rename.part is not None:
            place, count = rename.part
            gathered = parts.setdefault(names, [None] * count)
            gathered[place] = x
            if any(part is None for part in gathered):
                continue
            x = torch.cat([part for part in gathered if part is not None])
        for name, piece in zip(names, x.chunk(len(names)), strict=True):
            if rename.view is not None:
                first, *rest = rename.view
                turned = (rest[0], first, *rest[1:]) if rename.transpose else rename.view
                piece = piece.reshape(turned)
            piece = piece.transpose(0, 1) if rename.transpose else piece
            yield name, piece.reshape(stored.get(name, piece.shape)).contiguous()
