"""Layouts of Hugging Face for heed's settings and weights: tables for both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from torch import nn

from heed.errors import Refused

Settings = TypeVar("Settings", bound=BaseModel)


class Rename(NamedTuple):
    """The place of a weight of heed in the other layout."""

    name: str | tuple[str, ...]
    """One tensor, or several joined along axis 0 (query, key and value to `in_proj_weight`)."""

    transpose: bool = False
    """Theirs is the transpose: GPT-2 keeps its linear maps as M_in M_out."""

    part: tuple[int, int] | None = None
    """Ours is the i-th of n equal parts along axis 0 of theirs, once transposed."""

    view: tuple[int, ...] | None = None
    """Theirs is reshaped to this first, before it is transposed or joined."""


def both(ours: str, theirs: str, *, transpose: bool = False) -> dict[str, Rename]:
    """The names of a weight and its bias; the weight of a linear map may be stored transposed."""
    return {
        f"{ours}.weight": Rename(f"{theirs}.weight", transpose),
        f"{ours}.bias": Rename(f"{theirs}.bias"),
    }


def as_viewed(settings: Any) -> dict[str, tuple[int, ...]]:
    """No stored shape differs from what `names` says."""
    return {}


class Copy(NamedTuple):
    """A tensor that a file may hold besides, as a copy of another: an output that is the table."""

    name: str
    of: str
    heads: tuple[str, ...]
    """Those that make use of it."""


class HubLayout(NamedTuple):
    """One family of models as Hugging Face stores it."""

    architectures: dict[str, str]
    """The class names there, and the head each of them stands for here."""

    settings: Callable[[dict[str, Any], str], Any]
    """config.json and a head -> heed's settings; refuses in words what heed cannot reproduce."""

    config: Callable[[Any, str], dict[str, Any]]
    """And back: heed's settings and a head -> a config.json."""

    build: Callable[[Any], nn.Module]
    """The network of the settings."""

    names: Callable[[Any], dict[str, Rename]]
    """Every weight of the network by its name here; tied weights are listed once."""

    prefix: str = ""
    """The prefix of the body's names under a head; old files leave it out, or have it
    where there is no head."""

    ignored: tuple[str, ...] = ()
    """Regular expressions of other names that a file may hold: masks and the like."""

    copies: tuple[Copy, ...] = ()
    """Tensors that a file may hold twice and the network has once. One that is no copy, whatever a
    config says, is a weight of the network's own, if it can have that."""

    stored: Callable[[Any], dict[str, tuple[int, ...]]] = as_viewed
    """The stored shapes of the weights that `names` reshapes."""


SIZES = ("symbols", "width", "layers", "heads", "feed")
"""Fields that null would leave to a named size of heed: refused where it is not the default."""


def translated(
    kind: type[Settings],
    config: Mapping[str, Any],
    names: Mapping[str, tuple[str, Any]],
    **known: Any,
) -> Settings:
    """Settings from a config; every error message uses the config's own names.

    names  of each of heed's fields: the key there, and what holds where it is left out
    """
    given = {field: config.get(key, default) for field, (key, default) in names.items()}
    for field, (key, default) in names.items():
        if field in SIZES and default is not None and given[field] is None:
            raise Refused(f"config.json has {key}: null, which is not a size")
    for field, value in (given | known).items():
        if isinstance(value, bool) and kind.model_fields[field].annotation is not bool:
            key = names[field][0] if field in names else field
            raise Refused(f"config.json has {key}: {value}, which is not a number")
    try:
        return kind(**given, **known)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = str(wrong["loc"][0]) if wrong["loc"] else ""
        key = names[field][0] if field in names else field
        said = repr(wrong["input"])
        said = said if len(said) < 60 else f"{said[:60]}…"
        raise Refused(f"config.json has {key}: {said}: {wrong['msg']}") from None


def written(
    settings: Any,
    head: str,
    names: Mapping[str, tuple[str, Any]],
    architectures: Mapping[str, str],
) -> dict[str, Any]:
    """The inverse of `translated`: what a config.json says of the fields in a table."""
    size, theirs = settings.sizes._asdict(), {ours: name for name, ours in architectures.items()}
    return {
        "architectures": [theirs[head]],
        "model_type": settings.kind,
        **{key: size.get(field, getattr(settings, field)) for field, (key, _) in names.items()},
        "vocab_size": settings.rows,
    }


def labels_of(config: Mapping[str, Any]) -> int:
    """The number of answers that a head chooses from."""
    named = config.get("id2label")
    count: int = len(named) if isinstance(named, dict) else config.get("num_labels", 2)
    return count


def label_names(count: int, head: str) -> dict[str, Any]:
    """Labels by number, as a config.json lists them where a head has labels."""
    if head not in ("classify", "label"):
        return {}
    names = [f"LABEL_{i}" for i in range(count)]
    return {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}


def only(config: Mapping[str, Any], **expected: Any) -> None:
    """Refuse a config that says something else of these keys; what is left out is as expected."""
    for key, value in expected.items():
        found = config.get(key, value)
        if found != value and found is not None:
            raise Refused(f"config.json has {key}: {found!r}; heed supports only {value!r}")


def chosen(config: Mapping[str, Any], key: str, default: str, known: Mapping[str, str]) -> str:
    """heed's name for the value of a key, which must be one of the known ones."""
    found = config.get(key, default)
    if not isinstance(found, str) or found not in known:
        raise Refused(f"config.json has {key}: {found!r}; heed supports {', '.join(sorted(known))}")
    return known[found]


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
"""Hugging Face's names of activations, and heed's; two of theirs compute the same."""

THEIR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new"}


def plain_attention(attention: Any) -> None:
    """Refuse to write down an attention that the other side does not have."""
    looks = attention if isinstance(attention, list) else [attention]
    flat = [name for look in looks for name in (look if isinstance(look, list) else [look])]
    other = next((name for name in flat if name != "scaled-dot"), None)
    if other is not None:
        raise Refused(f"Hugging Face's layout has no place for '{other}', only for 'scaled-dot'")
