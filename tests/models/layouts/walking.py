"""A plain traversal of a layout's table of names, in both directions, for the tests."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heed.models.layouts import LAYOUTS, HubLayout, Rename


def named(rename: Rename) -> tuple[str, ...]:
    return (rename.name,) if isinstance(rename.name, str) else rename.name


def taken(
    layout: HubLayout, settings: Any, network: nn.Module, theirs: Mapping[str, Tensor]
) -> Any:
    """The network with their weights."""
    renames, mine = layout.names(settings), {}
    for name, like in network.state_dict().items():
        rename = renames[name]
        tensors = [theirs[each] for each in named(rename)]
        if rename.view is not None:
            tensors = [x.reshape(rename.view) for x in tensors]
        if rename.transpose:
            tensors = [x.transpose(0, 1) for x in tensors]
        mine[name] = torch.cat(tensors).reshape(like.shape)
    network.load_state_dict(mine)
    return network


def given(
    renames: Mapping[str, Rename],
    mine: Mapping[str, Tensor],
    stored: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    """Our weights (or their gradients) in their layout."""
    theirs = {}
    for name, x in mine.items():
        rename = renames[name]
        for other, piece in zip(named(rename), x.chunk(len(named(rename))), strict=True):
            if rename.view is not None:
                view = rename.view[::-1] if rename.transpose else rename.view
                piece = piece.reshape(view)
            piece = piece.transpose(0, 1) if rename.transpose else piece
            theirs[other] = piece.reshape(stored.get(other, piece.shape)).contiguous()
    return theirs


def same_network(theirs: Any) -> Any:
    """heed's network with the weights of one of theirs."""
    layout = LAYOUTS[theirs.config.model_type]
    head = layout.architectures[type(theirs).__name__]
    settings = layout.settings(theirs.config.to_dict(), head)
    network = taken(layout, settings, layout.build(settings), theirs.state_dict())
    return network.to(theirs.dtype).train(theirs.training)
