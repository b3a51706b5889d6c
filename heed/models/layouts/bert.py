"""BERT as Hugging Face stores it: separate queries, keys and values, joined here."""

from __future__ import annotations

from typing import Any

from heed.errors import Refused
from heed.models.layouts.layout import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Layout,
    Rename,
    chosen,
    only,
    plain_attention,
    translated,
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
    """What a config.json says."""
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


def labels_of(config: dict[str, Any]) -> int:
    """How many answers a head chooses from."""
    named = config.get("id2label")
    count: int = len(named) if isinstance(named, dict) else config.get("num_labels", 2)
    return count


def label_names(count: int) -> dict[str, Any]:
    """Labels by number, as a config.json lists them."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}


def config(settings: BertSettings, head: str) -> dict[str, Any]:
    """A config.json that says the same."""
    plain_attention(settings.attention)
    size = settings.sizes._asdict()
    said = {key: size.get(field, getattr(settings, field)) for field, (key, _) in FIELDS.items()}
    names = {ours: theirs for theirs, ours in ARCHITECTURES.items()}
    return {
        "architectures": [names[head]],
        "model_type": "bert",
        **said,
        "vocab_size": settings.rows,
        "hidden_act": THEIR_ACTIVATIONS[settings.activation],
        "pad_token_id": 0,
        **(label_names(settings.labels) if head in ("classify", "label") else {}),
    }


def names(settings: BertSettings) -> dict[str, Rename]:
    """Every weight, and where it is found there."""
    body = "" if settings.head == "none" else "bert."
    found = {
        "encoder.words.table.weight": f"{body}embeddings.word_embeddings.weight",
        "encoder.words.position.table.weight": f"{body}embeddings.position_embeddings.weight",
        "encoder.words.types.weight": f"{body}embeddings.token_type_embeddings.weight",
        **_both("encoder.words.norm", f"{body}embeddings.LayerNorm"),
        **_answers(settings, body),
    }
    renames = {ours: Rename(theirs) for ours, theirs in found.items()}
    for i in range(settings.sizes.layers):
        renames |= _layer(f"encoder.stack.layers.{i}", f"{body}encoder.layer.{i}")
    return renames


def _answers(settings: BertSettings, body: str) -> dict[str, str]:
    """The weights of a head."""
    head, found = settings.head, dict[str, str]()
    if head in ("none", "next", "pretraining", "classify"):
        found |= _both("pool.dense", f"{body}pooler.dense")
    if head in ("masked", "pretraining"):
        found |= _both("words.dense", "cls.predictions.transform.dense")
        found |= _both("words.norm", "cls.predictions.transform.LayerNorm")
        found["words.bias"] = "cls.predictions.bias"
    if head in ("next", "pretraining"):
        found |= _both("follows", "cls.seq_relationship")
    if head in ("classify", "label"):
        found |= _both("answer", "classifier")
    if head == "span":
        found |= _both("answer", "qa_outputs")
    return found


def _layer(ours: str, theirs: str) -> dict[str, Rename]:
    looks = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    plain = {
        **_both(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense"),
        **_both(f"{ours}.around_attention.norm", f"{theirs}.attention.output.LayerNorm"),
        **_both(f"{ours}.feed.0", f"{theirs}.intermediate.dense"),
        **_both(f"{ours}.feed.3", f"{theirs}.output.dense"),
        **_both(f"{ours}.around_feed.norm", f"{theirs}.output.LayerNorm"),
    }
    return {
        f"{ours}.attention.in_proj_weight": Rename(tuple(f"{x}.weight" for x in looks)),
        f"{ours}.attention.in_proj_bias": Rename(tuple(f"{x}.bias" for x in looks)),
        **{mine: Rename(other) for mine, other in plain.items()},
    }


def _both(ours: str, theirs: str) -> dict[str, str]:
    """A weight and its bias."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


BERT = Layout(
    ARCHITECTURES,
    settings,
    config,
    build_bert,
    names,
    prefix="bert.",
    ignored=(
        r"(bert\.)?embeddings\.(position|token_type)_ids",
        r"cls\.predictions\.decoder\.(weight|bias)",
    ),
)
