"""Self-attention whose queries, keys and values are projected by one product."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import linear

import heed
from heed.records import Attended, Need, State
from heed.shapes import check, check_width
from heed.visible import Causal, Visible


def project(heads: heed.MultiHeadAttention, x: Tensor, skip: int = 0) -> Tensor:
    """Queries, keys and values by one product, without the first `skip`.    B T M -> B T 3 H D"""
    assert heads.in_proj_weight is not None
    weight, bias = heads.in_proj_weight, heads.in_proj_bias
    if skip:
        first = skip * heads.embed_dim
        weight, bias = weight[first:], None if bias is None else bias[first:]
    parts: Tensor = linear(x, weight, bias).unflatten(-1, (3 - skip, heads.num_heads, -1))
    return parts


class OwnAttention(heed.MultiHeadAttention):
    """Self-attention that projects a whole text by one product.

    The weights, and up to rounding the results, are those of `heed.MultiHeadAttention`.
    """

    def forward(
        self,
        query: Tensor | None,
        memory: heed.Memory | Tensor | None = None,
        state: State | None = None,
        *,
        visible: Visible | Tensor | None = None,
        need: Need = "context",
        **more: Any,
    ) -> Attended:
        """Attend: queries B T M -> context B T M, weight B H T S."""
        plain = (visible is None or type(visible) is Causal) and more.keys() <= {"statistics"}
        if memory is not None or query is None or not plain or not self.one_product:
            return super().forward(query, memory, state, visible=visible, need=need, **more)
        check(queries=(query, "B T M"))
        check_width("queries", query, self.embed_dim)
        q, k, v = project(self, query).permute(2, 0, 3, 1, 4)  # B H T D
        kept = heed.Memory(self.mechanism.keep(k, v), v)
        seen: Attended = self.mechanism(q, kept, state, visible=visible, need=need, **more)
        return seen.replace(context=self.shape_context(seen.context))

    @property
    def one_product(self) -> bool:
        """Whether query, key and value are equally wide, with neither a position nor sinks."""
        return self.in_proj_weight is not None and self.position is None and not self.sinks()
