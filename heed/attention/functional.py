"""Attention as a function, for mechanisms that have no weights of their own."""

from functools import lru_cache

from torch import Tensor

from heed.attention import apply
from heed.attention.mechanism import Mechanism
from heed.attention.naming import build
from heed.errors import Refused
from heed.records import Attended, Need, State
from heed.shapes import check
from heed.visible import Visible


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "scaled-dot",
    visible: Visible | Tensor | None = None,
    state: State | None = None,
    *,
    need: Need = "context",
) -> Attended:
    """Queries B H T D over keys B G S D and values B G S R -> context B H T R.

    mechanism: the name of one without weights (`dot`, `sparsemax/local-m`, ...), or any Mechanism.
    visible: who may look where. With `heed.causal()` and T != S the last query stands at the last
    key. Heads share keys and values where H is a multiple of G.
    """
    check(k=(k, "B G S D"), v=(v, "B G S R"))
    if isinstance(mechanism, str):
        mechanism = _weightless(mechanism, q.shape[-1], k.shape[-1], v.shape[-1])
    return mechanism(q, mechanism.remember(k, v), state, visible=visible, need=need)


@lru_cache(maxsize=256)
def _weightless(name: str, query: int, key: int, value: int) -> Mechanism:
    mechanism = build(name, query=query, key=key, value=value).eval()
    if any(True for _ in mechanism.parameters()):
        raise Refused(
            f"'{name}' has weights to learn: build it once, heed.Attention('{name}', ...), "
            "or pass a Mechanism"
        )
    return mechanism
