"""The facts of a checkpoint, checked: a valid hash does not make a number sensible."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heed.errors import HeedError

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of things that were counted one by one; a larger one would overflow elsewhere."""

Kind = TypeVar("Kind")


class Facts(BaseModel):
    """The base of facts that are saved."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def checked(kind: type[Kind], found: Any, what: str) -> Kind:
    """A value from a checkpoint, as the type that it should have."""
    try:
        return TypeAdapter(kind).validate_python(found, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, (what, *first["loc"])))
        raise HeedError(f"the checkpoint holds no valid {place}: {first['msg']}") from None
