"""Attention as a function, for mechanisms that have no weights of their own."""

from typing import Any

import torch
from torch import Tensor

from heed.attention.attending import torch_argument
from heed.attention.mechanism import Mechanism
from heed.attention.naming import build
from heed.errors import Refused
from heed.kernels import choose, sdpa
from heed.records import Attended, Need, State, Summary
from heed.shapes import check, check_groups
from heed.visible import Causal, Visible

SCALED = {"scaled-dot": True, "dot": False}
"""The names of a plain dot product, and whether it is scaled."""

_built: dict[tuple[str, int, int, int], Mechanism] = {}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "scaled-dot",
    visible: Visible | Tensor | None = None,
    state: State | None = None,
    *,
    need: Need = "context",
    statistics: Summary | bool | None = None,
    **torch_arguments: Any,
) -> Attended:
    """Queries B H T D over keys B G S D and values B G S R -> context B H T R.

    mechanism: the name of one without weights (`dot`, `sparsemax/local-m`, ...), or any Mechanism.
    visible: who may look where. With `heed.causal()` and T != S the last query stands at the last
    key. Heads share keys and values where H is a multiple of G. statistics: True or a
    `heed.Summary`, what can be said of the weights without forming them.
    """
    if torch_arguments:
        raise Refused(torch_argument(next(iter(torch_arguments))))
    scaled = SCALED.get(mechanism) if type(mechanism) is str else None
    causal = type(visible) is Causal
    bare = need == "context" and state is None and statistics is None
    if scaled is not None and bare and (causal or visible is None):
        # The commonest call takes the shortest road: a few microseconds over PyTorch's own.
        plain = sdpa.plain(q, k, v, causal, scaled) if choose.is_on("sdpa") else None
        if plain is not None:
            context, T, S = plain
            return Attended(context, State(T, S - T, {}), kernel="sdpa")
    _check(q, k, v)
    if not isinstance(mechanism, str | Mechanism):
        raise Refused(
            f"the fourth argument is a mechanism, by name or built; got {type(mechanism).__name__}"
            " (who may look where is visible=...)"
        )
    if isinstance(mechanism, str):
        mechanism = _weightless(mechanism, q.shape[-1], k.shape[-1], v.shape[-1])
    memory = mechanism.remember(k, v)
    seen = mechanism(q, memory, state, visible=visible, need=need, statistics=statistics)
    assert isinstance(seen, Attended)
    return seen


def _weightless(name: str, query: int, key: int, value: int) -> Mechanism:
    """The mechanism of a name, built once for these widths."""
    widths = (name, query, key, value)
    mechanism = _built.get(widths)
    if mechanism is None:
        mechanism = build(name, query=query, key=key, value=value).eval()
        if any(True for _ in mechanism.parameters()):
            raise Refused(
                f"'{name}' has weights to learn: build it once, heed.Attention('{name}', ...), "
                "or pass a Mechanism"
            )
        if mechanism.align.draws:
            raise Refused(
                f"'{name}' draws in training and takes the best in evaluation, and a function "
                "knows neither: build heed.Attention or a Mechanism"
            )
        if not torch.compiler.is_compiling():  # a traced module must not outlive its trace
            _built[widths] = mechanism
    return mechanism


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    check(q=(q, "B H T D"), k=(k, "B G S K"), v=(v, "B G S R"))
    check_groups(q, k)
    if not q.dtype == k.dtype == v.dtype and not torch.is_autocast_enabled(q.device.type):
        raise Refused(f"q, k and v must share a dtype; they are {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise Refused(
            f"q, k and v must be on one device; they are on {q.device}, {k.device}, {v.device}"
        )
