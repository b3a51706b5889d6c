"""Self-attention within a fixed window, block by block: time and memory O(T·d), not T².

Queries are cut into blocks; each block meets, through PyTorch's fused attention, only the slice of
keys that its windows touch. Its twin is the reference under the mask |s - t| <= d.

    cost per query: (block + 2·d) keys, block = max(d, 64)
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.kernels import sdpa
from heed.kernels.ability import known
from heed.kernels.refusing import additions
from heed.records import Call
from heed.visible import Causal, Places, Visible, Window, conjuncts


def refusal(call: Call) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    windows, others = _sorted(call.visible)
    if not windows:
        return "there is no fixed window"
    if any(type(x) is not Causal and not x.about_keys_alone for x in others):
        return "it knows windows, causal masks and hidden keys, and no other mask"
    if (reason := additions(call)) is not None:
        return reason
    if not (known(call.places.T == call.places.S) and known(call.places.last_at_end)):
        return "it serves whole texts that attend to themselves, T = S"
    if not known(4 * _block(windows) < call.places.S):
        return "the text is short enough for one mask"
    return sdpa.refusal(call)


def run(call: Call) -> Tensor:
    """The context.    B H T R"""
    windows, others = _sorted(call.visible)
    half, rows = min(w.half for w in windows), _block(windows)
    ahead = 0 if any(type(x) is Causal for x in others) else half
    B, H, T, _ = call.q.shape
    q = pad(call.q, (0, 0, 0, -T % rows))
    blocks = q.shape[2] // rows
    q = q.reshape(B, H, blocks, rows, -1).transpose(1, 2).flatten(0, 1)  # B·N H rows D
    k, v = (_slices(x, rows, half, ahead) for x in (call.k, call.v))  # B·N G columns D

    away = torch.arange(k.shape[2], device=q.device) - half
    away = away - torch.arange(rows, device=q.device)[:, None]  # key's place less query's
    exists = _slices(_exists(others, call.places, B), rows, half, ahead)[..., 0]  # B·N 1 columns
    ok = (away.abs() <= half) & (away <= ahead) & exists[:, :, None]
    context = sdpa.masked(call, q, k, v, ok, None)
    context = context.view(B, blocks, H, rows, -1).transpose(1, 2)  # B H N rows R
    return context.flatten(2, 3)[:, :, :T]


def _sorted(visible: Visible | None) -> tuple[list[Window], list[Visible]]:
    """The windows of a conjunction, and the rest."""
    parts = conjuncts(visible)
    windows = [x for x in parts if isinstance(x, Window)]
    return windows, [x for x in parts if not isinstance(x, Window)]


def _block(windows: list[Window]) -> int:
    """Queries per block: as many as a window has keys to one side, so that few keys are wasted."""
    return max(64, min(w.half for w in windows))


def _exists(others: list[Visible], places: Places, B: int) -> Tensor:
    """The keys that exist.    -> B 1 S 1"""
    exists = torch.ones(1, 1, 1, places.S, dtype=torch.bool, device=places.device)
    for part in others:
        if part.about_keys_alone:
            exists = exists & part.dense(places)
    return exists.mT.expand(B, 1, -1, 1)


def _slices(x: Tensor, rows: int, half: int, ahead: int) -> Tensor:
    """The keys that each block of queries can touch, zero beyond the ends.

    B G S D -> B·N G rows+half+ahead D
    """
    S = x.shape[2]
    padded = pad(x, (0, 0, half, ahead + (-S % rows)))
    return padded.unfold(2, rows + half + ahead, rows).transpose(1, 2).mT.flatten(0, 1)
