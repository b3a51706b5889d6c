"""XLNet's layout: every weight has a counterpart, and written weights are read by transformers."""

from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close

from heed.errors import HeedError
from heed.models.layouts import LAYOUTS
from heed.models.layouts.xlnet import ARCHITECTURES, config, names, settings, stored
from heed.models.xlnet_settings import XLNetSettings, build
from tests.models.layouts.walking import given, named

HEADS = {head: kind for kind, head in ARCHITECTURES.items()}
SMALL: dict[str, Any] = {
    **{"d_model": 12, "n_head": 3, "n_layer": 2, "d_inner": 20, "vocab_size": 30},
    **{"ff_activation": "relu", "attn_type": "uni", "mem_len": 7, "reuse_len": 3, "clamp_len": 5},
    **{"summary_type": "mean", "summary_activation": "", "summary_last_dropout": 0.3},
    **{"dropout": 0.2, "layer_norm_eps": 1e-6, "initializer_range": 0.1, "num_labels": 3},
}


def ours(head: str, **choices: Any) -> XLNetSettings:
    small = {"layers": 2, "width": 12, "feed": 20, "heads": 3, "symbols": 29, "multiple": 4}
    return XLNetSettings(**{**small, "head": head, "labels": 3, "initial": 0.3, **choices})


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("head", HEADS)
def test_written_weights_load_in_transformers(head: str, tied: bool) -> None:
    made = ours(head, tied=tied)
    network = build(made).eval()
    assert set(names(made)) == set(network.state_dict())
    state = given(names(made), network.state_dict(), stored(made))
    there = transformers.XLNetConfig.from_dict(config(made, head))
    other = getattr(transformers, HEADS[head])(there).eval()
    missing = set(other.state_dict()) - set(state)
    assert missing == ({"lm_loss.weight"} if head == "language" and tied else set())
    for name, tensor in state.items():
        assert tensor.shape == other.state_dict()[name].shape, name
    loaded = other.load_state_dict(state, strict=False)
    assert not loaded.unexpected_keys
    other.tie_weights()
    symbols = torch.randint(0, 29, (2, 7))
    said = other(symbols)
    if head == "language":
        states = network.streams(symbols).states
        assert_close(network.unformed(states).form(), said.logits)
    elif head == "none":
        assert_close(network(symbols).states, said.last_hidden_state)
    elif head == "span":
        assert_close(network(symbols).logits[..., 1], said.end_logits)
    else:
        assert_close(network(symbols).logits, said.logits)


@pytest.mark.parametrize("head", HEADS)
def test_a_config_survives_a_round_trip(head: str) -> None:
    theirs = transformers.XLNetConfig(**SMALL).to_dict()
    made = settings(theirs, head)
    assert (made.sizes, made.symbols) == ((2, 12, 20, 3), 30)
    assert (made.memory, made.reuse, made.clamp, made.direction) == (7, 3, 5, "left-to-right")
    assert (made.summary, made.summary_activation, made.head_dropout) == ("mean", "none", 0.3)
    assert (made.blind, made.labels, made.activation) == ("uniform", 3, "relu")
    labels = 3 if head in ("classify", "label") else 2  # without labels, no number of them
    again = settings(config(made, head), head)
    assert again == made.model_copy(update={"labels": labels})
    back = transformers.XLNetConfig.from_dict(config(made, head)).to_dict()
    for key in SMALL:
        if key != "num_labels":
            assert back[key] == theirs[key], key


def test_missing_keys_of_a_config_have_their_defaults() -> None:
    assert settings({}, "none") == settings(transformers.XLNetConfig().to_dict(), "none")
    for nothing in (None, 0):
        left = {"mem_len": nothing, "reuse_len": nothing, "clamp_len": -1}
        made = settings({**SMALL, **left, "summary_activation": None}, "none")
        assert (made.memory, made.reuse, made.clamp) == (None, None, 0)
        assert made.summary_activation == "none"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"bi_data": True}, "bi_data"),
        ({"same_length": True}, "same_length"),
        ({"untie_r": False}, "untie_r"),
        ({"summary_use_proj": False}, "summary_use_proj"),
        ({"summary_type": "cls_index"}, "summary_type"),
        ({"summary_activation": "relu"}, "summary_activation"),
        ({"ff_activation": "silu"}, "ff_activation"),
        ({"attn_type": "sideways"}, "attn_type"),
        ({"d_head": 5}, "d_head"),
        ({"d_model": 10**12}, "d_model"),
        ({"n_layer": 10**12}, "n_layer"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"mem_len": -3}, "mem_len"),
        ({"clamp_len": "far"}, "clamp_len"),
        ({"d_model": None}, "d_model: null"),
    ],
)
def test_features_that_heed_lacks_are_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(HeedError, match=words):
        LAYOUTS["xlnet"].settings({**SMALL, **said}, "language")


@pytest.mark.parametrize("choice", [{"attention": "scaled-dot"}, {"options": {"clamp": 3}}])
def test_an_attention_of_our_own_is_not_written(choice: dict[str, Any]) -> None:
    with pytest.raises(HeedError, match="no place"):
        config(ours("none", **choice), "none")


def test_a_weight_is_named_once() -> None:
    found = [name for rename in names(ours("language")).values() for name in named(rename)]
    assert len(found) == len(set(found))
