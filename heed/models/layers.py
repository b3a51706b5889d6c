"""The layers of a Transformer: attention and feed-forward, each with a residual around it.

`pass_through` is one layer, whatever attends in it: a whole text, a step with a cache, a recorded
step, two streams. What a layer keeps between steps goes in and comes out (`LayerState`). Encoder
and decoder are made of layers in `heed.models.transformer`. Vaswani 2017 §3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

import heed
from heed.attention.initial_weights import initialise
from heed.records import Attended, Need, State
from heed.visible import Visible, both


class LayerState(NamedTuple):
    """State of one layer between steps: of its own text, and of the source where it has one."""

    own: heed.Memory | None = None  # None: the call is the whole text
    own_state: State = State()
    source: heed.Memory | None = None
    source_state: State = State()


Out = TypeVar("Out")
Crossed = TypeVar("Crossed")
Attend = Callable[[Tensor], tuple[Tensor, Out]]
"""An attention inside a layer: what it is given to what it adds, and what else it hands back."""


class Enclosing(Protocol):
    """A residual around a sublayer: what f is given, and what x and f(...) become."""

    @property
    def enter(self) -> Callable[[Tensor], Tensor]:
        """x -> what f is given."""

    @property
    def leave(self) -> Callable[[Tensor, Tensor], Tensor]:
        """x, what f gave -> what the sublayer returns."""


class Sublayers(Protocol):
    """The parts of a layer besides its attentions."""

    @property
    def around_attention(self) -> Enclosing: ...
    @property
    def around_cross(self) -> Enclosing | None: ...
    @property
    def around_feed(self) -> Enclosing: ...
    @property
    def feed(self) -> Callable[[Tensor], Tensor]: ...


def pass_through(
    layer: Sublayers, x: Tensor, attend: Attend[Out], cross: Attend[Crossed] | None = None
) -> tuple[Tensor, Out, Crossed | None]:
    """One layer: attention, cross-attention where there is a source, feed-forward.

    ... M -> ... M, and what each attention hands back
    """
    around = layer.around_attention
    added, out = attend(around.enter(x))
    x, crossed = around.leave(x, added), None
    if cross is not None and layer.around_cross is not None:
        around = layer.around_cross
        added, crossed = cross(around.enter(x))
        x = around.leave(x, added)
    around = layer.around_feed
    return around.leave(x, layer.feed(around.enter(x))), out, crossed


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) as in the paper; dropout on what f gives. §3.1, §5.4"""

    def __init__(self, width: int, dropout: float, pre_norm: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width, eps=epsilon), nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def enter(self, x: Tensor) -> Tensor:
        """The input of f."""
        return self.norm(x) if self.pre_norm else x

    def leave(self, x: Tensor, added: Tensor) -> Tensor:
        """The output of the sublayer, from x and what f gave."""
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


class TransformerLayer(nn.Module):
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
        kept: LayerState,
        visible: Visible | None,
        need: Need = "context",
        exists: Visible | None = None,
    ) -> tuple[Tensor, dict[str, Attended], LayerState]:
        """B T M -> B T M; `exists`: which of these T are not padding."""

        def attend(h: Tensor) -> tuple[Tensor, tuple[Attended, heed.Memory | None]]:
            own, shown = None, visible
            if kept.own is not None:
                own = kept.own.extend(h, visible=exists)
            elif exists is not None:
                shown = both(exists, visible)
            seen = self.attention(h, own, kept.own_state, visible=shown, need=need)
            return seen.context, (seen, own)

        x, (looked, own), read = pass_through(self, x, attend, self.reading(kept, need))
        seen, read_state = {"self": looked}, kept.source_state
        if read is not None:
            seen["cross"] = read
            read_state = read_state if self.folds else read.state
        return x, seen, LayerState(own, looked.state, kept.source, read_state)

    def reading(self, kept: LayerState, need: Need) -> Attend[Attended] | None:
        """Cross-attention, where there is a source.

        A memory with a row per sentence takes K hypotheses as K queries.
        """
        source, cross = kept.source, self.cross
        if source is None or cross is None:
            return None

        def attend(h: Tensor) -> tuple[Tensor, Attended]:
            asked = h.reshape(source.k.shape[0], -1, h.shape[-1])
            seen: Attended = cross(asked, source, kept.source_state, need=need)
            return seen.context.reshape(h.shape), seen

        return attend


class TransformerStack(nn.Module):
    """Layers, and with pre-norm a last norm, since no layer normalised what leaves it."""

    layers: Sequence[TransformerLayer]

    def __init__(
        self, layers: Iterable[TransformerLayer], norm: nn.LayerNorm | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        kept: Sequence[LayerState],
        visible: Visible | None,
        needs: Sequence[Need],
        exists: Visible | None = None,
    ) -> tuple[Tensor, dict[str, Attended], tuple[LayerState, ...]]:
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
