"""Multi-head attention: project, split, attend, join, project out."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from heed.attention.attention import Attending, made_on
from heed.attention.initial_weights import Drawn, drawn, initialise
from heed.attention.mechanism import Mechanism
from heed.attention.names import build, options_of
from heed.attention.position import Position
from heed.attention.torch_words import refuse
from heed.errors import Refused
from heed.shapes import check_dtypes, whole


def split(x: Tensor, heads: int) -> Tensor:
    """B T M -> B H T D"""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def join(x: Tensor) -> Tensor:
    """B H T D -> B T M"""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(Attending, Drawn):
    """Project, split into heads, attend with any mechanism, join, project out. Vaswani 2017 §3.2.2.

    The arguments and the state dict are those of `torch.nn.MultiheadAttention`; the conventions of
    a call are heed's: batch first, `visible` (True = may look), one record. A query that sees
    nothing reads zero in every head, so that only the bias of the output projection is left.

    mechanism  a name, or a Mechanism built for these heads; its options follow
    groups     how many keys and values the heads share; by default as many as there are heads
    head_dim   how wide a head is; by default embed_dim / num_heads, which must be whole
    position   `Rotary()` or `ALiBi(heads=...)`, applied inside the heads
    """

    projects = True
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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        mechanism: str | Mechanism = "scaled-dot",
        groups: int | None = None,
        head_dim: int | None = None,
        position: Position | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise Refused("heed keeps the batch first: give queries as B T M")
        whole("embed_dim", embed_dim, 1)
        if whole("num_heads", num_heads, 1) and embed_dim % num_heads and head_dim is None:
            raise Refused(
                f"embed_dim={embed_dim} does not split into num_heads={num_heads} heads; "
                "head_dim=... gives them another width"
            )
        self.num_heads = num_heads
        self.groups = num_heads if groups is None else whole("groups", groups, 1)
        if num_heads % self.groups:
            raise Refused(f"num_heads={num_heads} is not a multiple of groups={self.groups}")
        self.embed_dim = embed_dim
        self.head_dim = whole(
            "head_dim", embed_dim // num_heads if head_dim is None else head_dim, 1
        )
        self.kdim, self.vdim = (
            whole("kdim, vdim", embed_dim if x is None else x, 1) for x in (kdim, vdim)
        )
        self.widths = (embed_dim, self.kdim, self.vdim)
        if position is not None:
            if not isinstance(position, Position):
                raise Refused(f"position takes Rotary() or ALiBi(heads=...), not {position!r}")
            position.check(num_heads, self.head_dim)
        self.position, self.add_zero_attn = position, add_zero_attn
        with made_on(device):
            self._project(bias, add_bias_kv)
            self.mechanism = self._built(mechanism, dropout, options)
        self.to(device=device, dtype=dtype)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **choices: Any) -> Self:
        """A module with the same weights; in eval it gives the same numbers.

        choices  what to exchange, such as `mechanism=...` or `position=...`

        heed's calls are batch first. A module whose calls are not is refused unless you pass
        `batch_first=True`, since the same input would silently give other numbers.
        """
        if not (module.batch_first or choices.get("batch_first")):
            raise Refused(
                "this module takes T B M, but heed takes B T M: call from_torch(module, "
                "batch_first=True) and pass B T M from now on, or keep T B M with "
                "heed.integrations.torch.replace"
            )
        if choices.get("groups", module.num_heads) != module.num_heads:
            raise Refused("torch's module has as many keys as heads; it cannot be given groups")
        if choices.get("head_dim", module.head_dim) != module.head_dim:
            raise Refused(
                f"the heads of this module are {module.head_dim} wide; leave out head_dim"
            )
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
        # A stand-in for torch's module has a mechanism of its own, which is what is exchanged.
        theirs = {n: x for n, x in module.state_dict().items() if not n.startswith("mechanism.")}
        made.load_state_dict({**made.state_dict(), **theirs})
        return made.train(module.training)

    def shape_query(self, query: Tensor) -> Tensor:
        return split(self._projected(query, 0), self.num_heads)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._projected(keys, 1), self._projected(values, 2)
        return split(k, self.groups), split(v, self.groups)

    def shape_context(self, context: Tensor) -> Tensor:
        out: Tensor = self.out_proj(join(context))
        return out

    def extra_repr(self) -> str:
        wide, heads = self.embed_dim, self.num_heads
        usual = {"groups": heads, "kdim": wide, "vdim": wide, "head_dim": wide // heads}
        told = {name: x for name in usual if (x := getattr(self, name)) != usual[name]}
        told = {"embed_dim": wide, "num_heads": heads} | told
        return ", ".join(f"{name}={x}" for name, x in told.items())

    @property
    def inner_dim(self) -> int:
        """The width of all heads together."""
        return self.num_heads * self.head_dim

    def sinks(self) -> list[tuple[Tensor, Tensor]]:
        sinks = []
        if self.bias_k is not None and self.bias_v is not None:
            sinks.append((self.bias_k.view(self.groups, -1), self.bias_v.view(self.groups, -1)))
        if self.add_zero_attn:
            zero = self.out_proj.weight.new_zeros(self.groups, self.head_dim)
            sinks.append((zero, zero))
        return sinks

    def _project(self, bias: bool, add_bias_kv: bool) -> None:
        """Make the parameters, named and initialised as torch does."""
        wide, inner, shared = self.embed_dim, self.inner_dim, self.groups * self.head_dim
        packed = wide == inner == shared == self.kdim == self.vdim
        shapes = {
            "in_proj_weight": (3 * wide, wide) if packed else None,
            "q_proj_weight": None if packed else (inner, wide),
            "k_proj_weight": None if packed else (shared, self.kdim),
            "v_proj_weight": None if packed else (shared, self.vdim),
            "in_proj_bias": (inner + 2 * shared,) if bias else None,
            "bias_k": (1, 1, shared) if add_bias_kv else None,
            "bias_v": (1, 1, shared) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            spread = nn.init.xavier_normal_ if name.startswith("bias_") else nn.init.xavier_uniform_
            rule = nn.init.zeros_ if name == "in_proj_bias" else spread
            self.register_parameter(name, None if shape is None else drawn(rule, *shape))
        self.out_proj = nn.Linear(inner, wide, bias=bias)
        if bias:
            initialise(self.out_proj, bias=nn.init.zeros_)

    def _projected(self, x: Tensor, which: int) -> Tensor:
        """B T M -> B T H·D"""
        weight, bias = self._projection(which)
        check_dtypes(inputs=x, weights=weight)
        return linear(x, weight, bias)

    def _projection(self, which: int) -> tuple[Tensor, Tensor | None]:
        """The weight and bias of the queries (0), keys (1) or values (2)."""
        shared = self.groups * self.head_dim
        sizes = (self.inner_dim, shared, shared)
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
            refuse("module", options.keys() - options_of(mechanism))
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
        name = f"'{mechanism}'" if isinstance(mechanism, str) else "this mechanism"
        if not built.claims.fits_heads:
            raise Refused(f"{name} does not work inside heads; use heed.Attention")
        if built.claims.needs_line and (self.add_zero_attn or self.bias_k is not None):
            raise Refused(
                f"{name} needs keys in order; those of add_bias_kv and add_zero_attn have none"
            )
        return built
