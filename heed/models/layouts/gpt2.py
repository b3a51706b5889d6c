"""GPT-2 as Hugging Face stores it: linear maps transposed, as OpenAI's convolutions of width 1."""

from __future__ import annotations

from typing import Any

from heed.models.layouts.layout import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Copy,
    HubLayout,
    Rename,
    both,
    chosen,
    only,
    plain_attention,
    translated,
    written,
)
from heed.models.text_settings import GPT2Settings, build_gpt2

ARCHITECTURES = {"GPT2LMHeadModel": "language", "GPT2Model": "none"}

FIELDS = {
    "symbols": ("vocab_size", 50257),
    "width": ("n_embd", 768),
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "feed": ("n_inner", None),
    "longest": ("n_positions", 1024),
    "dropout": ("resid_pdrop", 0.1),
    "embedding_dropout": ("embd_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "initial": ("initializer_range", 0.02),
    "epsilon": ("layer_norm_epsilon", 1e-5),
}

OWN_SYMBOLS, OWN_END = 50257, 50256
"""The size of GPT-2's own vocabulary, and its last symbol, which begins and ends a text."""


def settings(config: dict[str, Any], head: str) -> GPT2Settings:
    """The contents of a config.json."""
    only(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        pruned_heads={},
    )
    return translated(
        GPT2Settings,
        config,
        FIELDS,
        activation=chosen(config, "activation_function", "gelu_new", ACTIVATIONS),
        head=head,
        tied=head == "none" or config.get("tie_word_embeddings", True),
    )


def config(settings: GPT2Settings, head: str) -> dict[str, Any]:
    """A config.json that says the same."""
    plain_attention(settings.attention)
    embedding = settings.embedding_dropout
    end = OWN_END if settings.symbols == OWN_SYMBOLS else None
    return {
        **written(settings, head, FIELDS, ARCHITECTURES),
        "embd_pdrop": settings.dropout if embedding is None else embedding,
        "activation_function": THEIR_ACTIVATIONS[settings.activation],
        "tie_word_embeddings": settings.tied,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def names(settings: GPT2Settings) -> dict[str, Rename]:
    """Every weight, and where it is found there."""
    body = "" if settings.head == "none" else "transformer."
    renames = {
        "words.table.weight": Rename(f"{body}wte.weight"),
        "words.position.table.weight": Rename(f"{body}wpe.weight"),
        **both("stack.norm", f"{body}ln_f"),
    }
    for i in range(settings.sizes.layers):
        renames |= _layer(f"stack.layers.{i}", f"{body}h.{i}")
    if not settings.tied:
        renames["output.weight"] = Rename("lm_head.weight")
    return renames


def _layer(ours: str, theirs: str) -> dict[str, Rename]:
    look, attention = f"{theirs}.attn.c_attn", f"{ours}.attention"
    return {
        f"{attention}.in_proj_weight": Rename(f"{look}.weight", transpose=True),
        f"{attention}.in_proj_bias": Rename(f"{look}.bias"),
        **both(f"{attention}.out_proj", f"{theirs}.attn.c_proj", transpose=True),
        **both(f"{ours}.feed.0", f"{theirs}.mlp.c_fc", transpose=True),
        **both(f"{ours}.feed.3", f"{theirs}.mlp.c_proj", transpose=True),
        **both(f"{ours}.around_attention.norm", f"{theirs}.ln_1"),
        **both(f"{ours}.around_feed.norm", f"{theirs}.ln_2"),
    }


GPT2 = HubLayout(
    ARCHITECTURES,
    settings,
    config,
    build_gpt2,
    names,
    prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
    copies=(Copy("lm_head.weight", "transformer.wte.weight", ("language",)),),
)
