"""Attention on B T M: one head as it is, or project, split into heads, attend, join."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory, clean
from heed.attention.naming import build
from heed.attention.position import Position
from heed.errors import Refused
from heed.records import Attended, Need, State
from heed.shapes import check, check_width
from heed.visible import Mask, Visible, as_visible, conjuncts


def split(x: Tensor, heads: int) -> Tensor:
    """B T M -> B H T D"""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def join(x: Tensor) -> Tensor:
    """B H T D -> B T M"""
    return x.transpose(1, 2).flatten(2)


class Attending(nn.Module):
    """What `Attention` and `MultiHeadAttention` share: remember once, then ask.

    `shape_query` and `shape_keys` bring B T M into heads, `shape_context` brings the answer back.
    """

    mechanism: Mechanism
    position: Position | None  # set by each: a default on the class would hide the module
    widths: tuple[int | None, int | None, int | None] = (None, None, None)
    """Of the queries, keys and values it was built for, where that is known."""

    def shape_query(self, query: Tensor) -> Tensor:
        """B T M -> B H T D"""
        raise NotImplementedError

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """B S K, B S R -> B G S D, B G S D"""
        raise NotImplementedError

    def shape_context(self, context: Tensor) -> Tensor:
        """B H T R -> B T R"""
        raise NotImplementedError

    def remember(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """Project keys and values (default: the keys) once, to be asked many times.

        keys: B S K.  values: B S R.  visible: which keys exist, `heed.lengths(n)` or booleans B S.
        """
        check(keys=(keys, "B S K"))
        values = keys if values is None else values
        return Memory.of(keys, values, self._keep, visible, segments)

    def forward(
        self,
        query: Tensor | None,
        memory: Memory | Tensor | None = None,
        state: State | None = None,
        *,
        visible: Visible | Tensor | None = None,
        need: Need = "context",
        segments: Tensor | None = None,
        **torch_arguments: Any,
    ) -> Attended:
        """Attend: queries B T M -> context B T R, weight B H T S.

        memory: what `remember` gave; or keys that serve as values too (B S K); or nothing, for
        self-attention. state: what the last step's record carries. visible: who may look where,
        beyond what the memory hides.
        """
        if torch_arguments:
            raise Refused(_torch_argument(next(iter(torch_arguments))))
        if state is not None and not isinstance(state, State):
            raise Refused(
                "the third argument is the state; keys and values go into a memory: "
                "attend(query, attend.remember(keys, values))"
            )
        if visible is not None:
            visible = as_visible(visible)
        if memory is None:
            memory = query
        if isinstance(memory, Tensor):
            memory = self._remember_for(memory, visible, segments)
        if memory is None:
            raise Refused("there is neither a query nor a memory")
        if query is not None:
            check(queries=(query, "B T M"))
            check_width("queries", query, self.widths[0])
        seen: Attended = self.mechanism(
            None if query is None else self.shape_query(query),
            memory,
            state,
            visible=visible,
            need=need,
            segments=segments,
            position=self.position,
        )
        if not self.mechanism.claims.context:
            return seen
        return seen.replace(context=self.shape_context(seen.context))

    def _keep(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        check_width("keys", keys, self.widths[1])
        check_width("values", values, self.widths[2])
        k, v = self.shape_keys(keys, values)
        if self.position is not None:
            k = self.position.turn(k, torch.arange(start, start + k.shape[2], device=k.device))
        return self.mechanism.keep(k, v), v

    def _remember_for(
        self, keys: Tensor, visible: Visible | None, segments: Tensor | None
    ) -> Memory:
        """A memory for this call alone: what the call hides from every query is cleaned first."""
        values = keys
        for part in conjuncts(visible):
            if isinstance(part, Mask):
                keys, values = clean(part.anyone(), keys, values)
        exists = None if visible is None else visible.split()[0]
        return self.remember(keys, values, exists, segments)


class Attention(Attending):
    """One attention by name or from a Mechanism, on queries B T M and keys B S K.

    heed.Attention("local-p/general", query=512, key=1024, window=10)

    Nothing is projected but what the score itself projects; values are read as they are. Without
    `query` (the name `static`) the query is a learned vector.
    """

    def __init__(
        self,
        mechanism: str | Mechanism = "scaled-dot",
        *,
        query: int | None = None,
        key: int | None = None,
        value: int | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.position = None
        if isinstance(mechanism, Mechanism):
            if options or dropout or (query, key, value) != (None, None, None):
                raise Refused("a Mechanism is complete: it takes no widths, dropout or options")
            self.mechanism = mechanism
            return
        if "heads" in options or "groups" in options:
            raise Refused("heed.Attention has one head; use heed.MultiHeadAttention")
        key = query if key is None else key
        if key is None:
            raise Refused(f"'{mechanism}' needs the widths it compares: query=..., key=...")
        query = key if query is None else query
        self.widths = (query, key, value)
        self.mechanism = build(
            mechanism,
            query=query,
            key=key,
            value=value,
            dropout=dropout,
            **options,
        )

    def shape_query(self, query: Tensor) -> Tensor:
        return query.unsqueeze(1)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys.unsqueeze(1), values.unsqueeze(1)

    def shape_context(self, context: Tensor) -> Tensor:
        return context.squeeze(1)


class MultiHeadAttention(Attending):
    """Project, split into heads, attend with any mechanism, join, project out. Vaswani 2017 §3.2.2.

    The arguments and the state dict are those of `torch.nn.MultiheadAttention`; the conventions of
    a call are heed's: batch first, `visible` (True = may look), one record. A query that sees
    nothing reads zero in every head, so that only the bias of the output projection is left.

    mechanism  a name, or a Mechanism built for these heads; its options follow
    groups     how many keys and values the heads share; as many as heads unless told
    position   `Rotary()` or `ALiBi(heads=...)`, felt inside the heads
    """

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        mechanism: str | Mechanism = "scaled-dot",
        groups: int | None = None,
        position: Position | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise Refused("heed keeps the batch first: give queries as B T M")
        if num_heads < 1 or embed_dim % num_heads:
            raise Refused(f"embed_dim={embed_dim} does not split into num_heads={num_heads} heads")
        self.num_heads, self.groups = num_heads, groups or num_heads
        if num_heads % self.groups:
            raise Refused(f"num_heads={num_heads} is not a multiple of groups={self.groups}")
        self.embed_dim, self.head_dim = embed_dim, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.widths = (embed_dim, self.kdim, self.vdim)
        self.position, self.add_zero_attn = position, add_zero_attn
        self._project(bias, add_bias_kv)
        self.mechanism = self._built(mechanism, dropout, options)
        self.to(device=device, dtype=dtype)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **choices: Any) -> Self:
        """The same weights, and in eval the same numbers; `mechanism=...` may exchange the rest."""
        made = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
            **choices,
        )
        state = {**made.state_dict(), **module.state_dict()}
        made.load_state_dict(state)
        return made.train(module.training)

    def shape_query(self, query: Tensor) -> Tensor:
        weight, bias = self._projection(0)
        return split(linear(query, weight, bias), self.num_heads)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (linear(x, *self._projection(i)) for i, x in ((1, keys), (2, values)))
        return split(k, self.groups), split(v, self.groups)

    def shape_context(self, context: Tensor) -> Tensor:
        out: Tensor = self.out_proj(join(context))
        return out

    def remember(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        memory = super().remember(keys, values, visible, segments)
        for k, v in self._sinks():
            k = self.mechanism.keep(k[None, :, None], v[None, :, None])[0, :, 0]
            memory = memory.with_sink(k, v)
        return memory

    def _sinks(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that every query may look at.    G D, G D"""
        sinks = []
        if self.bias_k is not None and self.bias_v is not None:
            sinks.append((self.bias_k.view(self.groups, -1), self.bias_v.view(self.groups, -1)))
        if self.add_zero_attn:
            zero = self.out_proj.weight.new_zeros(self.groups, self.head_dim)
            sinks.append((zero, zero))
        return sinks

    def _project(self, bias: bool, add_bias_kv: bool) -> None:
        """The parameters under torch's names, drawn as torch draws them."""
        wide, shared = self.embed_dim, self.groups * self.head_dim
        packed = wide == self.kdim == self.vdim and self.groups == self.num_heads
        shapes = {
            "in_proj_weight": (3 * wide, wide) if packed else None,
            "q_proj_weight": None if packed else (wide, wide),
            "k_proj_weight": None if packed else (shared, self.kdim),
            "v_proj_weight": None if packed else (shared, self.vdim),
            "in_proj_bias": (wide + 2 * shared,) if bias else None,
            "bias_k": (1, 1, shared) if add_bias_kv else None,
            "bias_v": (1, 1, shared) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(
                name, None if shape is None else nn.Parameter(torch.zeros(shape))
            )
            if name.endswith("proj_weight") and shape is not None:
                nn.init.xavier_uniform_(getattr(self, name))
            if name.startswith("bias_") and shape is not None:
                nn.init.xavier_normal_(getattr(self, name))
        self.out_proj = nn.Linear(wide, wide, bias=bias)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def _projection(self, which: int) -> tuple[Tensor, Tensor | None]:
        """The weight and bias of the queries (0), keys (1) or values (2)."""
        shared = self.groups * self.head_dim
        sizes = (self.embed_dim, shared, shared)
        begin = sum(sizes[:which])
        part = slice(begin, begin + sizes[which])
        bias = None if self.in_proj_bias is None else self.in_proj_bias[part]
        if self.in_proj_weight is not None:
            return self.in_proj_weight[part], bias
        return (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[which], bias

    def _built(
        self, mechanism: str | Mechanism, dropout: float, options: dict[str, Any]
    ) -> Mechanism:
        if isinstance(mechanism, Mechanism):
            if options:
                raise Refused(f"a Mechanism is complete: it takes no {', '.join(options)}")
            if dropout:
                raise Refused("a Mechanism brings its own dropout: Mechanism(..., dropout=...)")
            built = mechanism
        else:
            width = self.head_dim
            built = build(
                mechanism,
                query=width,
                key=width,
                value=width,
                heads=self.num_heads,
                groups=self.groups,
                dropout=dropout,
                **options,
            )
        name = mechanism if isinstance(mechanism, str) else "this mechanism"
        if not built.claims.heads:
            raise Refused(f"'{name}' does not go inside heads; use heed.Attention")
        if built.in_line and (self.add_zero_attn or self.bias_k is not None):
            raise Refused(
                f"'{name}' moves along the keys; it cannot have add_bias_kv or add_zero_attn"
            )
        return built


def _torch_argument(name: str) -> str:
    """What to say to someone who calls this as torch.nn.MultiheadAttention."""
    if name in ("attn_mask", "key_padding_mask"):
        where = "remember(visible=~mask), or visible=heed.Visible.keys(~mask)"
        cure = "visible=~mask" if name == "attn_mask" else where
        return f"'{name}' hides where it is True; heed's visible shows where it is True: {cure}"
    cures = {
        "need_weights": 'need="weight"',
        "average_attn_weights": 'need="weight" and .weight.mean(1)',
        "is_causal": "visible=heed.causal()",
        "key": "attend(query, attend.remember(keys, values))",
        "value": "attend(query, attend.remember(keys, values))",
    }
    if name in cures:
        return f"'{name}' is an argument of torch's module; here it is {cures[name]}"
    return (
        f"there is no argument '{name}'; a call takes query, memory, state, visible, need, segments"
    )
