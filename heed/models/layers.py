"""The layers of a Transformer: attention and feed-forward, each with a residual around it.

What each of them keeps between steps goes in and comes out (`Kept`). Encoder and decoder are made
of them in `heed.models.transformer`. Vaswani 2017 §3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

import heed
from heed.attention.initial_weights import initialise
from heed.records import Attended, Need, State
from heed.visible import Visible, both


class Kept(NamedTuple):
    """What one layer keeps between steps: of its own text, and of the source where it has one."""

    own: heed.Memory | None = None  # None: the call is the whole text
    own_state: State = State()
    source: heed.Memory | None = None
    source_state: State = State()


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) as in the paper; dropout on what f gives. §3.1, §5.4"""

    def __init__(self, width: int, dropout: float, pre_norm: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width, eps=epsilon), nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def enter(self, x: Tensor) -> Tensor:
        """What f is given."""
        return self.norm(x) if self.pre_norm else x

    def leave(self, x: Tensor, added: Tensor) -> Tensor:
        """What the sublayer returns, from x and what f gave."""
        x = x + self.dropout(added)
        return x if self.pre_norm else self.norm(x)


def bend_of(activation: str) -> nn.Module:
    """An activation by its name. `gelu-tanh` approximates `gelu`: Hendrycks 2016 §2."""
    if activation == "gelu-tanh":
        return nn.GELU(approximate="tanh")
    kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
    return kinds[activation]()


class FeedForward(nn.Sequential):
    """Two linear maps with an activation between them, the same at every place. §3.3"""

    def __init__(self, width: int, feed: int, activation: str, dropout: float) -> None:
        bend = bend_of(activation)
        widen, narrow = nn.Linear(width, feed), nn.Linear(feed, width)
        for end in (widen, narrow):
            initialise(end, weight=nn.init.xavier_uniform_, bias=nn.init.zeros_)
        super().__init__(widen, bend, nn.Dropout(dropout), narrow)


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward."""

    def __init__(
        self,
        attention: heed.MultiHeadAttention,
        feed: FeedForward,
        cross: heed.MultiHeadAttention | None = None,
        *,
        dropout: float = 0.0,
        pre_norm: bool = True,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        around = (attention.embed_dim, dropout, pre_norm, epsilon)
        self.attention, self.cross, self.feed = attention, cross, feed
        self.around_attention = Residual(*around)
        self.around_cross = None if cross is None else Residual(*around)
        self.around_feed = Residual(*around)
        self.folds = cross is not None and cross.mechanism.claims.is_stateless
        """Whether the hypotheses of a sentence may share one memory, as several queries of it."""

    def forward(
        self,
        x: Tensor,
        kept: Kept,
        visible: Visible | None,
        need: Need = "context",
        exists: Visible | None = None,
    ) -> tuple[Tensor, dict[str, Attended], Kept]:
        """B T M -> B T M; `exists`: which of these T are not padding."""
        h = self.around_attention.enter(x)
        own = None
        if kept.own is not None:
            own = kept.own.extend(h, visible=exists)
        elif exists is not None:
            visible = both(exists, visible)
        looked = self.attention(h, own, kept.own_state, visible=visible, need=need)
        x = self.around_attention.leave(x, looked.context)
        seen, read_state = {"self": looked}, kept.source_state
        if kept.source is not None:
            x, seen["cross"] = self.read(x, kept, need)
            read_state = read_state if self.folds else seen["cross"].state
        x = self.around_feed.leave(x, self.feed(self.around_feed.enter(x)))
        return x, seen, Kept(own, looked.state, kept.source, read_state)

    def read(self, x: Tensor, kept: Kept, need: Need) -> tuple[Tensor, Attended]:
        """Cross-attention; a memory with a row per sentence takes K hypotheses as K queries."""
        assert self.cross is not None
        assert self.around_cross is not None
        assert kept.source is not None
        h = self.around_cross.enter(x).reshape(kept.source.k.shape[0], -1, x.shape[-1])
        seen = self.cross(h, kept.source, kept.source_state, need=need)
        return self.around_cross.leave(x, seen.context.reshape(x.shape)), seen


class Stack(nn.Module):
    """Layers, and with pre-norm a last norm, since no layer normalised what leaves it."""

    layers: Sequence[Layer]

    def __init__(self, layers: Iterable[Layer], norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        kept: Sequence[Kept],
        visible: Visible | None,
        needs: Sequence[Need],
        exists: Visible | None = None,
    ) -> tuple[Tensor, dict[str, Attended], tuple[Kept, ...]]:
        """B T M -> B T M, what every attention saw ("0.self", "0.cross"), and what to keep.

        The records lose their contexts, which are in x: each would keep a B T M alive.
        """
        seen: dict[str, Attended] = {}
        after = []
        for i, layer in enumerate(self.layers):
            x, looks, keeps = layer(x, kept[i], visible, needs[i], exists)
            seen |= {f"{i}.{name}": look.replace(context=None) for name, look in looks.items()}
            after.append(keeps)
        return x if self.norm is None else self.norm(x), seen, tuple(after)
