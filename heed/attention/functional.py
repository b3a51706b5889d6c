"""Attention as a function, for mechanisms that have no weights of their own."""

from math import ldexp
from operator import index
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from heed.attention.mechanism import Mechanism
from heed.attention.memory import check_counts
from heed.attention.names import build, options_of
from heed.attention.score import PLAIN
from heed.attention.torch_words import refuse
from heed.errors import Refused
from heed.kernels import choose, sdpa
from heed.kernels.ability import unchanging
from heed.records import Attended, Need, State, Summary
from heed.shapes import check, check_devices, check_dtypes, check_groups
from heed.visible import Causal, Visible

MOST = 1024
"""How many built mechanisms are kept."""

_built = SimpleNamespace()
"""The mechanisms built so far; of a dict, a compiler would see only its first contents."""


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
    dropout: float = 0.0,
    **options: Any,
) -> Attended:
    """Queries B H T D over keys B G S D and values B G S R -> context B H T R.

    mechanism: the name of one without weights (`dot`, `sparsemax/local-m`, ...), or any Mechanism.
    visible: who may look where. With `heed.causal()` and T != S the last query stands at the last
    key. Heads share keys and values where H is a multiple of G. statistics: True or a
    `heed.Summary`, for statistics of the weights without forming them. dropout: on the weights, in
    every call. options: of the parts named, such as scale=0.1 of `scaled-dot` or window=10.
    """
    scaled = PLAIN.get(mechanism) if type(mechanism) is str else None
    causal = type(visible) is Causal
    bare = need == "context" and state is None and statistics is None
    bare = bare and not options and not dropout
    if scaled is not None and bare and (causal or visible is None):
        # The commonest call takes the shortest road: a few microseconds over PyTorch's own.
        plain = sdpa.plain(q, k, v, causal, scaled) if choose.is_on("sdpa") else None
        if plain is not None:
            context, T, S = plain
            return Attended(context, State(T, S - T, at_end=True), kernel="sdpa")
    _check(q, k, v)
    if not isinstance(mechanism, str | Mechanism):
        raise Refused(
            f"the fourth argument is a mechanism, by name or built; got {type(mechanism).__name__}"
            " (who may look where is visible=...)"
        )
    if isinstance(mechanism, str):
        widths = (index(q.shape[-1]), index(k.shape[-1]), index(v.shape[-1]))
        mechanism = _weightless(mechanism, widths, dropout, options)
    elif options or dropout:
        refuse("function", options.keys() - {"scale"})
        raise Refused("a Mechanism already has its dropout and options; pass its name for others")
    if isinstance(visible, Visible) and not causal:
        check_counts(visible, k.shape[2])
    memory = mechanism.remember(k, v)
    return mechanism(q, memory, state, visible=visible, need=need, statistics=statistics)


def _weightless(
    name: str, widths: tuple[int, int, int], dropout: float, options: dict[str, Any]
) -> Mechanism:
    """The mechanism of a name, built once for these widths and options."""
    told = tuple((option, _constant(x)) for option, x in options.items())
    place = _shelved(name, *widths, _constant(dropout), told)
    mechanism: Mechanism = getattr(_built, place)
    return mechanism


def _constant(x: Any) -> Any:
    """The same number, which a compiler that takes it for any number then compiles for alone."""
    if isinstance(x, float):
        return ldexp(x, 0)
    return index(x) if isinstance(x, int) and not isinstance(x, bool) else x


@unchanging
def _shelved(
    name: str,
    query: int,
    key: int,
    value: int,
    dropout: float,
    options: tuple[tuple[str, Any], ...],
) -> str:
    """Build a mechanism unless it exists, and give the attribute of `_built` that holds it.

    A compiler calls this while tracing, but does not trace it: it cannot trace the making of a
    module, only the use of one that exists.
    """
    place = f"{name} {query} {key} {value} {dropout!r} {options!r}"
    place = place.replace(".", ",")  # a compiler would split at dots
    if hasattr(_built, place):
        return place
    told = dict(options)
    refuse("function", told.keys() - options_of(name))
    mechanism = build(name, query=query, key=key, value=value, dropout=dropout, **told)
    mechanism.train(dropout > 0)
    if any(True for _ in mechanism.parameters()):
        raise Refused(
            f"'{name}' has weights to learn: build it once, heed.Attention('{name}', ...), "
            "or pass a Mechanism"
        )
    if mechanism.claims.draws:
        raise Refused(
            f"'{name}' draws in training and takes the best in evaluation, and a function "
            "has no such modes: build heed.Attention or a Mechanism"
        )
    if len(vars(_built)) >= MOST:  # a scale that differs in every call must not fill the memory
        vars(_built).pop(next(iter(vars(_built))), None)
    setattr(_built, place, mechanism)
    return place


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    check(q=(q, "B H T D"), k=(k, "B G S K"), v=(v, "B G S R"))
    check_groups(q, k)
    check_dtypes(q=q, k=k, v=v)
    check_devices(q=q, k=k, v=v)
