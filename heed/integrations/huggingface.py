"""Hugging Face models that attend through heed, so that they can be watched.

import heed.integrations.huggingface as huggingface

model = huggingface.enable(AutoModelForCausalLM.from_pretrained(...))
with heed.watch(model, statistics=True) as seen:  # any length that the model itself can read
    model(**batch)
seen["transformer.h.0.attn"][0].statistics.entropy
huggingface.disable(model)

AutoModelForCausalLM.from_pretrained(..., attn_implementation="heed")  # the same, after the import

The import registers an attention and a mask function under the name "heed"; `enable`, or the first
watch, puts a stand-in into each module that attends. The numbers are those of the model's own
attention; a query that sees nothing (padding) reads zero. What cannot be served exactly, or only in
part, is refused.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import heed
from heed.attention.bias import Bias, split_mask, summed
from heed.attention.memory import Memory
from heed.attention.score import Score, dot, per_head
from heed.errors import Refused
from heed.integrations.interface import attends, attends_alone, handed
from heed.records import Attended
from heed.visible import Places, Visible, causal
from heed.watching.watch import PREPARING, StandIn, Standing

Model = TypeVar("Model", bound=nn.Module)

NAME = "heed"
"""The name under which transformers knows heed's attention."""

CHILD = "heed_stand_in"
BEFORE = "_attention_before_heed"
FEW = 3
NUMBER = re.compile(r"\b\d+\b")

IGNORED = frozenset(
    {
        "cache_position",
        "deterministic",
        "inputs_embeds",
        "input_ids",
        "labels",
        "layer_idx",
        "logits_to_keep",
        "num_items_in_batch",
        "output_attentions",
        "output_cross_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",
        "token_type_ids",
        "use_cache",
    }
)
"""Arguments that change nothing of an attention; a sliding window is in its mask."""


def enable(model: Model) -> Model:
    """Let every attention of a model go through heed; `disable(model)` undoes it.

    The model may be wrapped: by PEFT, by torch.compile, or as a part of another module. One that
    computes some of its attention by itself, or asks for what heed does not have, is refused.
    """
    _register()
    if not isinstance(model, nn.Module) or not (submodels := _submodels(model)):
        raise Refused(f"enable takes a model of transformers, not {type(model).__name__}")
    attending = {path: module for path, module in model.named_modules() if attends(module)}
    _check(model, submodels, attending)
    changed = [*submodels.values(), *attending.values()]
    before = [_chosen(each) for each in changed]
    for path, each in submodels.items():
        if not _above(path, submodels):
            each.set_attn_implementation(NAME)
    for each, name in zip(changed, before, strict=True):
        if name is not None and (name != NAME or not hasattr(each, BEFORE)):
            setattr(each, BEFORE, "sdpa" if name == NAME else name)
    if deaf := {path: each for path, each in attending.items() if _chosen(each) != NAME}:
        disable(model)
        raise Refused(
            f"{type(model).__name__} does not pass a chosen attention on to {_listed(deaf)}, so "
            "heed cannot replace it"
        )
    for module in attending.values():
        if CHILD not in module._modules:
            module.add_module(CHILD, StandIn())
    return model


def disable(model: Model) -> Model:
    """The model as it was before `enable`."""
    for module in list(model.modules()):
        if CHILD in module._modules:
            delattr(module, CHILD)
        if BEFORE in vars(module):
            config: Any = module.config
            config._attn_implementation_internal = vars(module).pop(BEFORE)
    return model


def _register() -> None:
    """Register the attention and the mask function, always together: else no mask is made."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise Refused(
            "this needs transformers with an AttentionMaskInterface: "
            "pip install 'heed-attention[hf]'"
        ) from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def _complete(model: nn.Module) -> None:
    """Enable what was built with attn_implementation="heed", before it is watched."""
    for each in _submodels(model).values():  # the outermost first, with all that is inside
        attending = (module for module in each.modules() if attends(module))
        if _chosen(each) == NAME and any(CHILD not in module._modules for module in attending):
            enable(each)


def _submodels(model: nn.Module) -> dict[str, Any]:
    """The models of transformers inside a module, itself included, by path."""
    from transformers import PreTrainedModel

    return {path: x for path, x in model.named_modules() if isinstance(x, PreTrainedModel)}


def _above(path: str, submodels: Mapping[str, Any]) -> list[str]:
    """The paths of submodels around a path, the outermost first."""
    around = [each for each in submodels if each != path and f"{path}.".startswith(_within(each))]
    return sorted(around, key=len)


def _within(path: str) -> str:
    return f"{path}." if path else ""


def _chosen(module: nn.Module) -> str | None:
    """The name of the attention that a module's configuration asks for."""
    name: str | None = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return name


def _check(model: nn.Module, submodels: Mapping[str, Any], attending: Mapping[str, Any]) -> None:
    """Refuse a model that heed would serve in part, or not at all, with the reason."""
    name = _name(model)
    alone = {path: module for path, module in model.named_modules() if attends_alone(module)}
    if not alone and not attending:
        raise Refused(
            f"{name} has no attention that weighs keys for a query, so there is nothing for heed "
            "to replace or watch"
        )
    if alone:
        few = f"{len(alone)} of its {len(alone) + len(attending)} attentions"
        every = all(isinstance(module, nn.MultiheadAttention) for module in alone.values())
        cure = "; first exchange it: heed.integrations.torch.replace(model)" if every else ""
        raise Refused(
            f"{name} computes {few if attending else 'its attention'} by itself, not through "
            f"transformers' AttentionInterface, so heed cannot replace it: {_listed(alone)}{cure}"
        )
    for path, module in attending.items():
        around = _above(path, submodels)
        if not around or not _exchangeable(type(submodels[around[-1]])):
            owner = type(submodels[around[-1]]) if around else type(model)
            raise Refused(_closed(owner))
        for key, given in handed(module).items():
            if key not in SERVED:
                _refuse_unknown(module, key, given)


def _name(model: nn.Module) -> str:
    """The name of a model's class, that of the model inside a wrapper."""
    return next(type(each).__name__ for each in _submodels(model).values())


def _listed(modules: Mapping[str, nn.Module]) -> str:
    """The first few of some modules by path and class, those of all layers as one."""
    named = [f"{NUMBER.sub('*', path)} ({type(x).__name__})" for path, x in modules.items()]
    found = list(dict.fromkeys(named))
    rest = [f"and {len(found) - FEW} more"] if len(found) > FEW else []
    return ", ".join(found[:FEW] + rest)


def _exchangeable(kind: Any) -> bool:
    """Whether a model lets any attention be put in, with masks as for fused attention: where none
    is made, the module itself says whether it is causal."""
    told = getattr(kind, "_supports_sdpa", False)
    any_other = getattr(kind, "_supports_attention_backend", False)
    return kind._can_set_attn_implementation() and bool(told or any_other)


def _closed(kind: type) -> str:
    return (
        f"{kind.__name__} does not support the masks of fused attention, so heed cannot replace "
        "its attention"
    )


def _refuse_unknown(module: nn.Module, name: str, given: Any) -> None:
    """Refuse an argument that would change an attention in a way that heed does not know."""
    if name not in IGNORED and given is not None and given is not False:
        raise Refused(
            f"{type(module).__name__} passes '{name}' to its attention, which heed does not "
            "support; use another attn_implementation for this model"
        )


def mask(*given: Any, **named: Any) -> Tensor | None:
    """The visible keys, as booleans B 1 T S; None where the attention knows them by itself.

    It is the mask for PyTorch's fused attention; of one for padding alone, which is the same for
    all queries, only B S is kept.
    """
    from transformers import masking_utils

    table: Tensor | None = masking_utils.sdpa_mask(*given, **named)
    alone = named.get("mask_function") is masking_utils.bidirectional_mask_function
    if table is not None and alone and not named.get("use_vmap"):
        table = table[:, :, :1].clone().expand_as(table)
    return table


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention that transformers calls: B H T D, B G S D -> B T H D, and the weights.

    The weights are formed where the model is asked for them (output_attentions=True).
    """
    for name, argument in others.items():
        _refuse_unknown(module, name, argument)
    deputy = module._modules.get(CHILD)
    if deputy is None:  # built with attn_implementation="heed", and neither enabled nor watched
        _open_to_all(type(module).__module__)
        deputy = UNWATCHED
    look = causal() if is_causal is None and getattr(module, "is_causal", True) else None
    look = causal() if is_causal else look
    key, value, visible, bias = _sight(query, key, value, attention_mask, look, position_bias)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    mechanism = _mechanism(scale, softcap, float(dropout))
    position = None if bias is None else Bias(bias)
    attend = Standing(mechanism, query, mechanism.remember(key, value), visible, position)
    asked = _weights_asked(module, others)
    seen: Attended = deputy(query, attend, need="weight" if asked else "context")
    context = seen.context.transpose(1, 2).contiguous()
    return context, seen.weight.to(query.dtype) if asked else None


SERVED = frozenset(inspect.signature(attention).parameters)
"""Arguments that heed's attention knows."""

UNWATCHED = StandIn()
"""Attends for modules that have no stand-in yet."""


@torch.compiler.assume_constant_result
def _open_to_all(file: str) -> bool:
    """True for a module's file whose models let any attention be put in; others are refused.

    A call of attention does not know the model around it; `enable` does.
    """
    from transformers import PreTrainedModel

    for each in vars(sys.modules[file]).values():
        if not isinstance(each, type) or not issubclass(each, PreTrainedModel):
            continue
        if each.__module__ == file and not _exchangeable(each):
            raise Refused(
                f"{_closed(each)}; for another model of its kind: "
                "heed.integrations.huggingface.enable(model)"
            )
    return True


def _sight(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: Tensor | None,
    look: Visible | None,
    position_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Visible | None, Tensor | None]:
    """Keys, values, who may look where, and what is added to the energies."""
    T, S = query.shape[2], key.shape[2]
    visible: Visible | None = None
    bias = position_bias
    if given is None and look is not None and T > 1:
        # No mask is made where the first query stands at the first key: what a cache holds beyond
        # the last query is not written yet.
        key, value = key[:, :, :T], value[:, :, :T]
        bias = None if bias is None else bias[..., :T]
        visible = look
    elif given is not None:
        if given.ndim != 4 or given.shape[-1] < S:
            raise Refused(f"a mask is B 1 T S with S={S}; got {tuple(given.shape)}")
        given = given[..., :S]
        if given.dtype == torch.bool:
            visible = _predicate(given)
        else:
            seen, added = split_mask("attention_mask", given)
            visible, bias = _predicate(seen), summed(bias, added)
    return key, value, visible, bias


def _predicate(table: Tensor) -> Visible:
    """Booleans B 1 T S; where all queries share a row of them, it is about keys alone."""
    if table.shape[1] == 1 and (table.stride(2) == 0 or table.shape[2] == 1):
        return Visible.keys(table[:, 0, 0])
    return Visible.mask(table)


def _weights_asked(module: nn.Module, others: dict[str, Any]) -> bool:
    """Whether the caller of the model wants the weights in its output."""
    if others.get("output_attentions"):
        return True
    config = getattr(module, "config", None)
    if getattr(config, "output_attentions", False):
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    wanted = None if collector is None else collector.get()
    return any("attentions" in name for name in wanted or ())


class Dot(Score):
    """q·k at a scale that the model chose."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.formula = scale, f"q·k × {scale:.4g}"


class CappedDot(Score):
    """c tanh(q·k / c): energies that never leave ±c. Gemma Team 2024 §2."""

    name = "capped-dot"

    def __init__(self, scale: float, cap: float) -> None:
        super().__init__()
        self.scale, self.cap = scale, cap
        self.formula = f"c·tanh(q·k × {scale:.4g} / c), c = {cap:.4g}"

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        energy = dot(q, per_head(memory.k, q.shape[1]), self.scale)
        return self.cap * torch.tanh(energy / self.cap)


_built = SimpleNamespace()
"""The mechanisms built so far, as attributes: see heed.attention.functional."""


def _mechanism(scale: float, cap: float | None, dropout: float) -> heed.Mechanism:
    """The attention of a module. It has no weights, so that modules that are alike share it."""
    made: heed.Mechanism = getattr(_built, _place(scale, cap, dropout))
    return made


@torch.compiler.assume_constant_result
def _place(scale: float, cap: float | None, dropout: float) -> str:
    """Build a mechanism unless it exists, and give the attribute of `_built` that holds it.

    A compiler calls this while it traces, and looks up what was made.
    """
    place = f"{scale!r} {cap!r} {dropout!r}".replace(".", ",")  # a compiler would split at dots
    if not hasattr(_built, place):
        score = Dot(scale) if cap is None else CappedDot(scale, float(cap))
        setattr(_built, place, heed.Mechanism(score=score, dropout=dropout))
    return place


with suppress(Refused):  # without transformers, `enable` says what to install
    _register()
    PREPARING.append(_complete)
