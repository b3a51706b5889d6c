"""XLNet as Hugging Face stores it: maps with the axes M H D; queries, keys and values apart."""

from __future__ import annotations

from typing import Any

from heed.errors import Refused
from heed.models.layouts.layout import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Copy,
    HubLayout,
    Rename,
    both,
    chosen,
    label_names,
    labels_of,
    only,
    translated,
    written,
)
from heed.models.xlnet_settings import XLNetSettings, build

ARCHITECTURES = {
    "XLNetModel": "none",
    "XLNetLMHeadModel": "language",
    "XLNetForSequenceClassification": "classify",
    "XLNetForTokenClassification": "label",
    "XLNetForQuestionAnsweringSimple": "span",
}

FIELDS = {
    "symbols": ("vocab_size", 32000),
    "width": ("d_model", 1024),
    "layers": ("n_layer", 24),
    "heads": ("n_head", 16),
    "feed": ("d_inner", 4096),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("dropout", 0.1),
    "initial": ("initializer_range", 0.02),
    "epsilon": ("layer_norm_eps", 1e-12),
    "memory": ("mem_len", 512),
    "reuse": ("reuse_len", None),
    "clamp": ("clamp_len", 0),
    "tied": ("tie_word_embeddings", True),
    "summary_activation": ("summary_activation", "tanh"),
    "head_dropout": ("summary_last_dropout", 0.1),
}

DIRECTIONS = {"bi": "both", "uni": "left-to-right"}
SUMMARIES = {name: name for name in ("last", "first", "mean")}
NOTHING = {"mem_len": None, "reuse_len": None, "summary_activation": "none"}
"""heed's value where one of these keys is empty: 0, null or an empty string."""


def settings(config: dict[str, Any], head: str) -> XLNetSettings:
    """The contents of a config.json. There, a query that sees nothing reads the mean of values."""
    only(config, bi_data=False, same_length=False, summary_use_proj=True, untie_r=True)
    empty = {key: ours for key, ours in NOTHING.items() if not config.get(key, True)}
    said = {**config, **empty}
    if isinstance(said.get("clamp_len"), int):
        said["clamp_len"] = max(said["clamp_len"], 0)
    made = translated(
        XLNetSettings,
        said,
        FIELDS,
        activation=chosen(config, "ff_activation", "gelu", ACTIVATIONS),
        direction=chosen(config, "attn_type", "bi", DIRECTIONS),
        summary=chosen(config, "summary_type", "last", SUMMARIES),
        blind="uniform",
        head=head,
        labels=labels_of(config),
    )
    only(config, d_head=made.sizes.width // made.sizes.heads)
    return made


def config(settings: XLNetSettings, head: str) -> dict[str, Any]:
    """A config.json that says the same."""
    if settings.attention != "relative" or settings.options:
        raise Refused(
            "Hugging Face's layout has no place for another attention than 'relative', nor for "
            f"options of it; these settings have {settings.attention!r}, {settings.options!r}"
        )
    bend, dropout = settings.summary_activation, settings.head_dropout
    return {
        **written(settings, head, FIELDS, ARCHITECTURES),
        "dropout": settings.dropout,
        "d_head": settings.sizes.width // settings.sizes.heads,
        "ff_activation": THEIR_ACTIVATIONS[settings.activation],
        "attn_type": "bi" if settings.direction == "both" else "uni",
        "clamp_len": settings.clamp or -1,
        "summary_type": settings.summary,
        "summary_activation": "tanh" if bend == "tanh" else "",
        "summary_last_dropout": settings.dropout if dropout is None else dropout,
        **label_names(settings.labels, head),
    }


def names(settings: XLNetSettings) -> dict[str, Rename]:
    """Every weight, and where it is found there."""
    body, (layers, width, _, heads) = _body(settings), settings.sizes
    renames = {
        "streams.words.weight": Rename(f"{body}word_embedding.weight"),
        "streams.question": Rename(f"{body}mask_emb", view=(width,)),
        **_answers(settings),
    }
    for i in range(layers):
        renames |= _layer(f"streams.layers.{i}", f"{body}layer.{i}", width, heads)
    return renames


def stored(settings: XLNetSettings) -> dict[str, tuple[int, ...]]:
    """The stored shapes of the weights that `names` reshapes."""
    body, (layers, width, _, heads) = _body(settings), settings.sizes
    own = (heads, width // heads)
    shapes: dict[str, tuple[int, ...]] = {f"{body}mask_emb": (1, 1, width)}
    for i in range(layers):
        look = f"{body}layer.{i}.rel_attn"
        shapes |= {f"{look}.{name}": (width, *own) for name in "qkvor"}
        shapes |= {f"{look}.r_{name}_bias": own for name in "wrs"}
    return shapes


def _body(settings: XLNetSettings) -> str:
    return "" if settings.head == "none" else "transformer."


def _answers(settings: XLNetSettings) -> dict[str, Rename]:
    """The weights of a head."""
    if settings.head == "language":
        if not settings.tied:
            return both("output", "lm_loss")
        return {"bias": Rename("lm_loss.bias")}
    if settings.head == "classify":
        return both("pool.dense", "sequence_summary.summary") | both("answer", "logits_proj")
    theirs = {"label": "classifier", "span": "qa_outputs"}
    return both("answer", theirs[settings.head]) if settings.head in theirs else {}


def _layer(ours: str, theirs: str, width: int, heads: int) -> dict[str, Rename]:
    look, score = f"{theirs}.rel_attn", f"{ours}.attention.mechanism.score"
    flat, bias = (width, width), (heads, 1, width // heads)  # M HD, H 1 D
    return {
        f"{ours}.attention.in_proj_weight": Rename(
            (f"{look}.q", f"{look}.k", f"{look}.v"), transpose=True, view=flat
        ),
        f"{ours}.attention.out_proj.weight": Rename(f"{look}.o", view=flat),
        f"{score}.content_bias": Rename(f"{look}.r_w_bias", view=bias),
        f"{score}.distance_bias": Rename(f"{look}.r_r_bias", view=bias),
        f"{score}.segment_bias": Rename(f"{look}.r_s_bias", view=bias),
        f"{score}.distance_weight": Rename(f"{look}.r", transpose=True, view=flat),
        f"{score}.segment_vectors": Rename(f"{look}.seg_embed", transpose=True),
        **both(f"{ours}.around_attention.norm", f"{look}.layer_norm"),
        **both(f"{ours}.feed.0", f"{theirs}.ff.layer_1"),
        **both(f"{ours}.feed.3", f"{theirs}.ff.layer_2"),
        **both(f"{ours}.around_feed.norm", f"{theirs}.ff.layer_norm"),
    }


XLNET = HubLayout(
    ARCHITECTURES,
    settings,
    config,
    build,
    names,
    prefix="transformer.",
    copies=(Copy("lm_loss.weight", "transformer.word_embedding.weight", ("language",)),),
    stored=stored,
)
