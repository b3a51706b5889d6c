"""torch.nn.MultiheadAttention, exchanged inside a model for one that can be watched.

import heed.integrations.torch as heed_torch

model = heed_torch.replace(model)  # nn.Transformer, or anything with MultiheadAttention inside
with heed.watch(model) as seen:
    model(source, target)
seen["encoder.layers.0.self_attn"][0].weight

heed_torch.replace(model, mechanism="sparsemax", modules="decoder.*.multihead_attn")

What is exchanged is called as before, with torch's masks (True hides), and has the same weights
under the same names. In evaluation it gives the same numbers, but for a query that sees nothing:
torch gives NaN, and heed what a context of zeros becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as renewed
from typing import Any

import torch
from torch import Tensor, nn

from heed.attention.bias import Bias, split_mask, summed
from heed.attention.catalogue import DEFAULTS
from heed.attention.hooks import HOOKS
from heed.attention.multi_head import MultiHeadAttention
from heed.errors import Refused, ShapeError
from heed.records import Attended, Need, Summary
from heed.shapes import check_width
from heed.visible import Visible, both, causal
from heed.watching.watch import StandIn
from heed.watching.watched import matching


def replace(
    model: nn.Module,
    mechanism: str | None = None,
    *,
    modules: str | Sequence[str] | None = None,
    **options: Any,
) -> nn.Module:
    """Exchange every `torch.nn.MultiheadAttention` inside a model; gives the model.

    mechanism  another one by its name, with new weights if it has any; by default scaled dot
               products, as before
    modules    only those whose path matches, such as "decoder.*"
    options    of the mechanism

    The weights are the very same parameters, so that optimisers and tied weights stay right; those
    that a mechanism brings are new to an optimiser that was made before.
    """
    if not isinstance(model, nn.Module):
        raise Refused(f"replace takes a model, a torch.nn.Module, not {type(model).__name__}")
    found = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.MultiheadAttention | TorchAttention)
    }
    if not found:
        raise Refused("there is no torch.nn.MultiheadAttention inside this model")
    wanted = list(found) if modules is None else matching(found, modules)
    chosen = {"mechanism": mechanism or DEFAULTS["score"], **options}
    made = {}
    for path in wanted:  # all of them first: a refusal leaves the model as it was
        if id(found[path]) not in made:
            made[id(found[path])] = TorchAttention.like(path, found[path], chosen)
    for path in wanted:
        if not path:
            return made[id(found[path])]
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made[id(found[path])])
    _leave_fast_paths(model)
    return model


def _leave_fast_paths(model: nn.Module) -> None:
    """Turn nested tensors off: on a packed batch, an encoder's layers call no attention module."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(inner, TorchAttention) for inner in module.modules()
        ):
            module.use_nested_tensor = False


def _check(path: str, module: nn.Module) -> None:
    """Refuse a module that would lose something."""
    if type(module) is not nn.MultiheadAttention:
        raise Refused(
            f"{path} is a {type(module).__name__}, whose own behaviour would be lost; "
            "leave it out: modules=..."
        )
    if any(getattr(module, kept) for kept in HOOKS):
        raise Refused(f"{path} has hooks, which would be lost; remove them first")


class TorchAttention(MultiHeadAttention):
    """heed's heads, called as torch's: masks hide where True, and a pair comes back."""

    _qkv_same_embed_dim = False
    """False keeps torch's layers from computing the attention by themselves."""

    def __init__(self, *given: Any, torch_batch_first: bool = False, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batch_first = torch_batch_first
        self.stand_in = StandIn()

    @staticmethod
    def like(path: str, module: Any, chosen: dict[str, Any]) -> TorchAttention:
        """The attention that takes a module's place."""
        if not isinstance(module, TorchAttention):
            _check(path, module)
        first = module.batch_first
        made = TorchAttention.from_torch(
            module, batch_first=True, torch_batch_first=first, **chosen
        )
        return made._sharing(module)

    def _sharing(self, module: nn.Module) -> TorchAttention:
        """Take over the very parameters of another module."""
        for name, weight in module._parameters.items():
            if weight is not None:
                self._parameters[name] = weight
        self.out_proj = module.out_proj  # type: ignore[assignment]
        return self.train(module.training)

    @property
    def dropout(self) -> float:
        """The dropout on the weights, in training."""
        return float(getattr(self.mechanism, "dropout", 0.0))

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as `torch.nn.MultiheadAttention` does; the weights are those before dropout.

        T B M -> T B M, or B T M -> B T M where batch_first, or T M -> T M
        """
        if any(x.is_nested for x in (query, key, value)):
            raise Refused("nested tensors are not supported; pad them, and give key_padding_mask")
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise ShapeError(f"queries, keys and values have 3 axes, or 2 without batch: {shapes}")
        batched = query.ndim == 3
        q, k, v = (self._first(x, batched) for x in (query, key, value))
        if is_causal and attn_mask is None:
            raise Refused("is_causal describes attn_mask, which is missing: give it too")
        T, S = q.shape[1], k.shape[1]
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        exists, felt = _keys(key_padding_mask, k)
        # is_causal is taken at its word, whatever the mask says, only where torch does so too.
        hint = is_causal and T == S and not need_weights and key_padding_mask is None
        visible, added = (causal(), None) if hint else self._pairs(attn_mask, q, S)
        bias = summed(felt, added)

        def attend(*, need: Need, statistics: Summary | bool | None) -> Attended:
            return self._attend((q, k, v), both(exists, visible), bias, need, statistics)

        seen: Attended = self.stand_in(q, attend, need="weight" if need_weights else "context")
        context = seen.context
        out = context if self.batch_first or not batched else context.transpose(0, 1)
        weight = None
        if need_weights:
            weight = seen.weight.mean(1) if average_attn_weights else seen.weight
            weight = weight.to(out.dtype)
        if not batched:
            out, weight = out[0], None if weight is None else weight[0]
        return out, weight

    def _first(self, x: Tensor, batched: bool) -> Tensor:
        """T B M, B T M or T M -> B T M"""
        if not batched:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _attend(
        self,
        asked: tuple[Tensor, Tensor, Tensor],
        visible: Visible | None,
        bias: Tensor | None,
        need: Need,
        statistics: Summary | bool | None,
    ) -> Attended:
        """heed's own call, with a bias added to the energies."""
        q, k, v = asked
        check_width("queries", q, self.embed_dim)
        exists, rest = (None, None) if visible is None else visible.split()
        memory = self.remember(k, v, exists)
        seen: Attended = self.mechanism(
            self.shape_query(q),
            renewed(memory, owner=self.mechanism.token),
            visible=rest,
            need=need,
            position=None if bias is None else Bias(bias),
            statistics=statistics,
        )
        return seen.replace(context=self.shape_context(seen.context))

    def _pairs(
        self, mask: Tensor | None, q: Tensor, S: int
    ) -> tuple[Visible | None, Tensor | None]:
        """attn_mask, T S or (B · heads) T S: what is seen, and what is added."""
        if mask is None:
            return None, None
        B, T, _ = q.shape
        if mask.shape not in ((T, S), (B * self.num_heads, T, S)):
            raise ShapeError(
                f"attn_mask is T S {(T, S)} or (B · heads) T S {(B * self.num_heads, T, S)}; "
                f"got {tuple(mask.shape)}"
            )
        table = mask[None, None] if mask.ndim == 2 else mask.unflatten(0, (B, self.num_heads))
        if table.dtype == torch.bool:
            return Visible.mask(~table), None
        seen, added = split_mask("attn_mask", table)
        return Visible.mask(seen), added


def _keys(mask: Tensor | None, k: Tensor) -> tuple[Visible | None, Tensor | None]:
    """key_padding_mask, B S: which keys exist, and what is added to all energies of one."""
    if mask is None:
        return None, None
    if mask.shape != k.shape[:2]:
        raise ShapeError(f"key_padding_mask is B S {tuple(k.shape[:2])}; got {tuple(mask.shape)}")
    if mask.dtype == torch.bool:
        return Visible.keys(~mask), None
    seen, added = split_mask("key_padding_mask", mask)
    return Visible.keys(seen), None if added is None else added[:, None, None]
