"""heed: every attention mechanism behind one interface.

attend = heed.Attention("local-p/general", query=512, key=1024, window=10)
memory = attend.remember(keys, values, visible=heed.lengths(n))
seen = attend(query, memory)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed import kernels
    from heed.attention.attention import Attention
    from heed.attention.functional import attend
    from heed.attention.mechanism import Mechanism
    from heed.attention.memory import Memory
    from heed.attention.multi_head import MultiHeadAttention
    from heed.errors import HeedError
    from heed.records import Attended, State, Summary
    from heed.running.loading import load
    from heed.visible import Visible, causal, lengths, window
    from heed.watching.watch import watch
    from heed.watching.watch_file import load_watch
    from heed.watching.watched import Watched

__version__ = "0.1.0"
"""The one place that says it: pyproject.toml reads it from here, without importing anything."""

__all__ = [
    "Attended",
    "Attention",
    "HeedError",
    "Mechanism",
    "Memory",
    "MultiHeadAttention",
    "State",
    "Summary",
    "Visible",
    "Watched",
    "attend",
    "causal",
    "kernels",
    "lengths",
    "load",
    "load_watch",
    "watch",
    "window",
]

_HOMES = {
    "Attended": "heed.records",
    "Attention": "heed.attention.attention",
    "HeedError": "heed.errors",
    "Mechanism": "heed.attention.mechanism",
    "Memory": "heed.attention.memory",
    "MultiHeadAttention": "heed.attention.multi_head",
    "State": "heed.records",
    "Summary": "heed.records",
    "Visible": "heed.visible",
    "Watched": "heed.watching.watched",
    "attend": "heed.attention.functional",
    "causal": "heed.visible",
    "lengths": "heed.visible",
    "load": "heed.running.loading",
    "load_watch": "heed.watching.watch_file",
    "watch": "heed.watching.watch",
    "window": "heed.visible",
}
"""Where each public name lives. It is imported on first use: torch takes seconds to import, and
`heed --help` needs none of it."""


_ROOMS = ("attention", "errors", "kernels", "records", "shapes", "visible")
"""Submodules that are imported when `heed.<name>` is first used."""

if not TYPE_CHECKING:  # a type checker that saw it would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"heed.{name}")
        if name not in _HOMES:
            from difflib import get_close_matches

            near = get_close_matches(name, __all__, n=1)
            cure = f"; did you mean heed.{near[0]}?" if near else ""
            raise AttributeError(f"module 'heed' has no attribute '{name}'{cure}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
