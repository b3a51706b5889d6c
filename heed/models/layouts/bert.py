"""BERT as Hugging Face stores it: separate queries, keys and values, joined here."""

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
    plain_attention,
    translated,
    written,
)
from heed.models.text_settings import BertSettings, build_bert

ARCHITECTURES = {
    "BertModel": "none",
    "BertForMaskedLM": "masked",
    "BertForNextSentencePrediction": "next",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "label",
    "BertForQuestionAnswering": "span",
}

FIELDS = {
    "symbols": ("vocab_size", 30522),
    "width": ("hidden_size", 768),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "feed": ("intermediate_size", 3072),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "longest": ("max_position_embeddings", 512),
    "types": ("type_vocab_size", 2),
    "initial": ("initializer_range", 0.02),
    "epsilon": ("layer_norm_eps", 1e-12),
    "head_dropout": ("classifier_dropout", None),
}


def settings(config: dict[str, Any], head: str) -> BertSettings:
    """The contents of a config.json."""
    only(
        config,
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
        pruned_heads={},
    )
    labels = labels_of(config)
    if head == "span" and labels != 2:
        raise Refused(f"a span has a beginning and an end; config.json has {labels} labels")
    return translated(
        BertSettings,
        config,
        FIELDS,
        activation=chosen(config, "hidden_act", "gelu", ACTIVATIONS),
        head=head,
        labels=labels,
    )


def config(settings: BertSettings, head: str) -> dict[str, Any]:
    """A config.json that says the same."""
    plain_attention(settings.attention)
    return {
        **written(settings, head, FIELDS, ARCHITECTURES),
        "hidden_act": THEIR_ACTIVATIONS[settings.activation],
        "pad_token_id": 0,
        **label_names(settings.labels, head),
    }


def names(settings: BertSettings) -> dict[str, Rename]:
    """Every weight, and where it is found there."""
    body = "" if settings.head == "none" else "bert."
    words = f"{body}embeddings"
    renames = {
        "encoder.words.table.weight": Rename(f"{words}.word_embeddings.weight"),
        "encoder.words.position.table.weight": Rename(f"{words}.position_embeddings.weight"),
        "encoder.words.types.weight": Rename(f"{words}.token_type_embeddings.weight"),
        **both("encoder.words.norm", f"{words}.LayerNorm"),
        **_answers(settings, body),
    }
    for i in range(settings.sizes.layers):
        renames |= _layer(f"encoder.stack.layers.{i}", f"{body}encoder.layer.{i}")
    return renames


def _answers(settings: BertSettings, body: str) -> dict[str, Rename]:
    """The weights of a head."""
    head, found = settings.head, dict[str, Rename]()
    if head in ("none", "next", "pretraining", "classify"):
        found |= both("pool.dense", f"{body}pooler.dense")
    if head in ("masked", "pretraining"):
        found |= both("words.dense", "cls.predictions.transform.dense")
        found |= both("words.norm", "cls.predictions.transform.LayerNorm")
        found["words.bias"] = Rename("cls.predictions.bias")
    if head in ("next", "pretraining"):
        found |= both("follows", "cls.seq_relationship")
    if head in ("classify", "label"):
        found |= both("answer", "classifier")
    if head == "span":
        found |= both("answer", "qa_outputs")
    return found


def _layer(ours: str, theirs: str) -> dict[str, Rename]:
    looks = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    return {
        f"{ours}.attention.in_proj_weight": Rename(tuple(f"{x}.weight" for x in looks)),
        f"{ours}.attention.in_proj_bias": Rename(tuple(f"{x}.bias" for x in looks)),
        **both(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense"),
        **both(f"{ours}.around_attention.norm", f"{theirs}.attention.output.LayerNorm"),
        **both(f"{ours}.feed.0", f"{theirs}.intermediate.dense"),
        **both(f"{ours}.feed.3", f"{theirs}.output.dense"),
        **both(f"{ours}.around_feed.norm", f"{theirs}.output.LayerNorm"),
    }


BERT = HubLayout(
    ARCHITECTURES,
    settings,
    config,
    build_bert,
    names,
    prefix="bert.",
    ignored=(r"(bert\.)?embeddings\.(position|token_type)_ids",),
    copies=(
        Copy(
            "cls.predictions.decoder.weight",
            "bert.embeddings.word_embeddings.weight",
            ("masked", "pretraining"),
        ),
        Copy(
            "cls.predictions.decoder.bias",
            "cls.predictions.bias",
            ("masked", "pretraining"),
        ),
    ),
)
