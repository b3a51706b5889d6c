"""The walks on the CPU: the calls of `native.c`."""

import torch
from torch import Tensor

from heed.kernels.native import Function, address
from heed.kernels.strides import dense

KINDS = ("monotonic", "hard", "forward", "forced")
"""The kinds of walks, in the order of the C enumeration."""

_walk = Function("heed_scan_forward", "27q")
_walk_back = Function("heed_scan_backward", "27q")
_mix = Function("heed_mixture_forward", "19q")
_mix_back = Function("heed_mixture_backward", "19q")


def walk(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights, the slot handed on (two parts), and on which row each step stands."""
    energy, before = dense(energy), before.contiguous()
    covered, move = _packed(covered), _packed(move)
    weight = energy.new_empty(energy.shape)
    last, used = torch.empty_like(before), _like(covered, energy)
    stand = energy.new_empty(energy.shape[:3], dtype=torch.int32)
    given = (*_energy(kind, energy), *_visible(ok), *map(address, (before, covered, move)))
    _walk(*given, *map(address, (weight, last, used, stand)), 0, 0, 0, 0, 0)
    return weight, last, used, stand


def walk_back(
    kind: str,
    energy: Tensor,
    ok: Tensor | None,
    before: Tensor,
    covered: Tensor | None,
    move: Tensor | None,
    weight: Tensor,
    stand: Tensor,
    grad: Tensor,
    d_last: Tensor,
    d_used: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the energies, of the slot given (two parts), and of the moves."""
    energy, before, grad = dense(energy), before.contiguous(), grad.contiguous()
    covered, move = _packed(covered), _packed(move)
    d_energy = energy.new_empty(energy.shape)
    d_before, d_covered = _copy(d_last), energy.new_empty(0) if d_used is None else _copy(d_used)
    d_move = _like(move, energy)
    given = (*_energy(kind, energy), *_visible(ok), *map(address, (before, covered, move)))
    found = (address(weight), 0, 0, address(stand))
    _walk_back(*given, *found, *map(address, (grad, d_energy, d_before, d_covered, d_move)))
    return d_energy, d_before, d_covered, d_move


def mix(height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, S: int) -> Tensor:
    """The weights of a mixture of windows.    B H T K (three times) -> B H T S"""
    parts = [x.contiguous() for x in (height, sharpness, centre)]
    weight = centre.new_empty(*centre.shape[:3], S)
    _mix(*_windows(centre, S), *_visible(ok), *map(address, parts), address(weight), 0, 0, 0, 0)
    return weight


def mix_back(
    height: Tensor, sharpness: Tensor, centre: Tensor, ok: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of height, sharpness and centre."""
    grad, *parts = [x.contiguous() for x in (grad, height, sharpness, centre)]
    found = [torch.empty_like(x) for x in parts]
    windows = _windows(centre, grad.shape[-1])
    _mix_back(*windows, *_visible(ok), *map(address, parts), 0, address(grad), *map(address, found))
    return found[0], found[1], found[2]


def _energy(kind: str, energy: Tensor) -> tuple[int, ...]:
    wide = energy.dtype == torch.float64
    return (wide, KINDS.index(kind), *energy.shape, address(energy), *energy.stride()[:3])


def _windows(centre: Tensor, S: int) -> tuple[int, ...]:
    B, H, T, K = centre.shape
    return centre.dtype == torch.float64, B, H, T, S, K


def _visible(ok: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0, 0) if ok is None else (address(ok), *ok.stride())


def _packed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _like(x: Tensor | None, other: Tensor) -> Tensor:
    """Memory for an answer of the shape of x; no elements without x."""
    return other.new_empty(0) if x is None else torch.empty_like(x)
