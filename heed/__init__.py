"""heed: every attention mechanism behind one interface.

attend = heed.Attention("local-p/general", query=512, key=1024, window=10)
memory = attend.remember(keys, values, visible=heed.lengths(n))
seen = attend(query, memory)
"""

from heed import kernels
from heed.attention.attending import Attention
from heed.attention.functional import attend
from heed.attention.heads import MultiHeadAttention
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.watching import watch
from heed.errors import HeedError
from heed.records import Attended, State
from heed.visible import Visible, causal, lengths, window

__all__ = [
    "Attended",
    "Attention",
    "HeedError",
    "Mechanism",
    "Memory",
    "MultiHeadAttention",
    "State",
    "Visible",
    "attend",
    "causal",
    "kernels",
    "lengths",
    "watch",
    "window",
]
