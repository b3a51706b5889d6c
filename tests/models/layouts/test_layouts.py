"""The same numbers as `transformers`, for random configurations, in both directions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.errors import Refused
from heed.models.layouts import LAYOUTS, HubLayout, Rename
from heed.models.text_settings import BertSettings, GPT2Settings

transformers = pytest.importorskip("transformers")

SYMBOLS, S = 37, 11
BERT, GPT2 = LAYOUTS["bert"], LAYOUTS["gpt2"]
SEEDS = range(4)


def bert_config(seed: int) -> dict[str, Any]:
    """Small and odd: three or five heads, widths that are not powers of two."""
    draw = random.Random(seed)
    heads = draw.choice([1, 3, 5])
    return {
        "vocab_size": SYMBOLS + seed,
        "hidden_size": heads * draw.choice([3, 4, 10]),
        "num_hidden_layers": draw.choice([1, 2, 4]),
        "num_attention_heads": heads,
        "intermediate_size": draw.choice([7, 24, 41]),
        "hidden_act": draw.choice(["gelu", "relu", "gelu_new"]),
        "max_position_embeddings": S + seed,
        "type_vocab_size": draw.choice([1, 2, 3]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-2]),
        "num_labels": draw.choice([1, 2, 5]),
    }


def gpt2_config(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    heads = draw.choice([1, 3, 5])
    return {
        "vocab_size": SYMBOLS + seed,
        "n_embd": heads * draw.choice([3, 4, 10]),
        "n_layer": draw.choice([1, 2, 4]),
        "n_head": heads,
        "n_inner": draw.choice([None, 7, 41]),
        "activation_function": draw.choice(["gelu_new", "gelu", "relu"]),
        "n_positions": 2 * S + seed,
        "layer_norm_epsilon": draw.choice([1e-5, 1e-2]),
        "tie_word_embeddings": draw.choice([True, True, False]),
        "bos_token_id": None,
        "eos_token_id": None,
    }


def theirs_of(layout: HubLayout, architecture: str, config: dict[str, Any]) -> Any:
    """Their model with random weights: with zeros and ones, swapped ones would not show."""
    kind = transformers.BertConfig if layout is BERT else transformers.GPT2Config
    if architecture == "BertForQuestionAnswering":
        config = {**config, "num_labels": 2}
    model = getattr(transformers, architecture)(kind(**config)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def fetch(state: dict[str, Tensor], rename: Rename) -> Tensor:
    """A weight of heed made from theirs, by the fields of a Rename."""
    names = (rename.name,) if isinstance(rename.name, str) else rename.name
    parts = [state[name].mT if rename.transpose else state[name] for name in names]
    return torch.cat(parts).contiguous()


def ours_of(layout: HubLayout, head: str, model: Any) -> tuple[Any, nn.Module]:
    settings = layout.settings(model.config.to_dict(), head)
    network = layout.build(settings)
    state = model.state_dict()
    names = layout.names(settings)
    network.load_state_dict({ours: fetch(state, rename) for ours, rename in names.items()})
    return settings, network.eval()


def near(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-5 of the largest magnitude."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def same_gradients(layout: HubLayout, settings: Any, ours: nn.Module, theirs: Any) -> None:
    """For every weight, under its name there, within 1e-4 of the largest."""
    grads = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    found = dict(ours.named_parameters())
    for name, rename in layout.names(settings).items():
        wanted, got = fetch(grads, rename), found[name].grad
        assert got is not None, name
        assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max(), name


def texts(symbols: int, types: int) -> tuple[Tensor, Tensor, Tensor]:
    """Symbols, which of them exist (all; the last; the first; some), and their types."""
    x = torch.randint(1, symbols, (4, S))
    there = torch.ones(4, S, dtype=torch.bool)
    there[1, :4] = there[2, 7:] = False
    there[3, [0, 5, 6]] = False
    return x, there, torch.randint(0, types, (4, S))


@pytest.mark.parametrize("architecture", BERT.architectures)
@pytest.mark.parametrize("seed", SEEDS)
def test_berts_numbers_equal_theirs(architecture: str, seed: int) -> None:
    model = theirs_of(BERT, architecture, bert_config(seed))
    head = BERT.architectures[architecture]
    _, network = ours_of(BERT, head, model)
    x, there, types = texts(model.config.vocab_size, model.config.type_vocab_size)
    told = {"attention_mask": there.long(), "token_type_ids": types}
    wanted, said = model(x, **told, output_hidden_states=True), network(x, there, types)
    near(said.states[there], wanted.hidden_states[-1][there])
    whole = there[:, 0]  # theirs pools the first column, padding or not
    if head == "none":
        near(said.pooled[whole], wanted.pooler_output[whole])
    if head in ("masked", "pretraining"):
        logits = wanted.logits if head == "masked" else wanted.prediction_logits
        near(said.words.form()[there], logits[there])
    if head in ("next", "pretraining"):
        logits = wanted.logits if head == "next" else wanted.seq_relationship_logits
        near(said.follows[whole], logits[whole])
    if head in ("classify", "label"):
        rows = whole if head == "classify" else there
        near(said.logits[rows], wanted.logits[rows])
    if head == "span":
        near(said.logits[..., 0][there], wanted.start_logits[there])
        near(said.logits[..., 1][there], wanted.end_logits[there])


@pytest.mark.parametrize("seed", SEEDS)
def test_berts_losses_and_gradients_equal_theirs(seed: int) -> None:
    model = theirs_of(BERT, "BertForPreTraining", bert_config(seed))
    settings, network = ours_of(BERT, "pretraining", model)
    x, there, types = texts(model.config.vocab_size, model.config.type_vocab_size)
    there[:, 0] = True
    hidden = there & (torch.rand(there.shape) < 0.5)
    labels, follows = x.where(hidden, -100), torch.tensor([0, 1, 1, 0])
    wanted = model(
        x,
        attention_mask=there.long(),
        token_type_ids=types,
        labels=labels,
        next_sentence_label=follows,
    ).loss
    wanted.backward()
    said = network(x, there, types)
    loss = cross_entropy(said.words.form().flatten(0, 1), labels.flatten())
    loss = loss + cross_entropy(said.follows, follows)
    loss.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    same_gradients(BERT, settings, network, model)


@pytest.mark.parametrize("architecture", GPT2.architectures)
@pytest.mark.parametrize("seed", SEEDS)
def test_gpt2s_numbers_equal_theirs_with_any_padding(architecture: str, seed: int) -> None:
    model = theirs_of(GPT2, architecture, gpt2_config(seed))
    _, network = ours_of(GPT2, GPT2.architectures[architecture], model)
    x = torch.randint(1, model.config.vocab_size, (3, S))
    lengths = torch.tensor([S, 7, 2])
    for side in ("none", "behind", "in front"):
        there = torch.ones_like(x, dtype=torch.bool)
        if side == "behind":
            there = torch.arange(S) < lengths[:, None]
        if side == "in front":
            there = torch.arange(S) >= S - lengths[:, None]
        places = (there.long().cumsum(1) - 1).clamp(min=0)
        wanted = model(x, attention_mask=there.long(), position_ids=places)
        told = {"none": {}, "behind": {"lengths": lengths}, "in front": {"first": S - lengths}}
        said = network(x, **told[side])
        if architecture == "GPT2Model":
            near(said.output.known[there], wanted.last_hidden_state[there])
        else:
            near(said.logits[there], wanted.logits[there])


@pytest.mark.parametrize("seed", SEEDS)
def test_gpt2s_losses_and_gradients_equal_theirs(seed: int) -> None:
    model = theirs_of(GPT2, "GPT2LMHeadModel", gpt2_config(seed))
    settings, network = ours_of(GPT2, "language", model)
    x = torch.randint(1, model.config.vocab_size, (3, S))
    wanted = model(x, labels=x).loss
    wanted.backward()
    loss = cross_entropy(network(x[:, :-1]).logits.flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    same_gradients(GPT2, settings, network, model)


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_gpt2_continues_prompts_of_any_length_as_theirs(seed: int) -> None:
    model = theirs_of(GPT2, "GPT2LMHeadModel", gpt2_config(seed))
    _, network = ours_of(GPT2, "language", model)
    x = torch.randint(1, model.config.vocab_size, (3, S))
    lengths = torch.tensor([S, 6, 1])
    there = torch.arange(S) >= S - lengths[:, None]
    model.generation_config.pad_token_id = 0
    wanted = model.generate(
        x, attention_mask=there.long(), do_sample=False, max_new_tokens=S, use_cache=True
    )[:, S:]
    behind = torch.stack([row.roll(n) for row, n in zip(x, lengths.tolist(), strict=True)])
    for carry in (
        network.begin(x[:, :-1], first=S - lengths),
        network.begin(x[:, :-1], lengths=there[:, :-1].long()),  # as a tokeniser says it
        network.begin(behind, lengths=lengths - 1),
    ):
        symbols, written = x[:, -1], []
        for _ in range(S):
            step = network.step(carry, symbols)
            carry, symbols = step.carry, step.logits.argmax(-1)
            written.append(symbols)
        assert torch.equal(torch.stack(written, 1), wanted)


CASES = [(BERT, name) for name in BERT.architectures] + [(GPT2, n) for n in GPT2.architectures]


@pytest.mark.parametrize(("layout", "architecture"), CASES)
@pytest.mark.parametrize("seed", [0, 2])
@torch.no_grad()
def test_written_weights_load_in_transformers(
    layout: HubLayout, architecture: str, seed: int
) -> None:
    """Settings to a config and back; every weight has a counterpart on both sides."""
    config = (bert_config if layout is BERT else gpt2_config)(seed)
    model = theirs_of(layout, architecture, config)
    head = layout.architectures[architecture]
    settings, _ = ours_of(layout, head, model)
    written = layout.config(settings, head)
    again = layout.settings(written, head)
    assert again.sizes == settings.sizes
    assert layout.names(again) == layout.names(settings)
    kind = type(model.config)
    twin = getattr(transformers, architecture)(kind(**written)).eval()
    shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    assert {name: tuple(x.shape) for name, x in twin.state_dict().items()} == shapes
    twin.load_state_dict(model.state_dict())
    x = torch.randint(1, model.config.vocab_size, (2, S))
    for one, two in zip(twin(x).to_tuple(), model(x).to_tuple(), strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, two)


@pytest.mark.parametrize(("layout", "architecture"), CASES)
def test_the_table_of_names_is_complete(layout: HubLayout, architecture: str) -> None:
    config = (bert_config if layout is BERT else gpt2_config)(1)
    model = theirs_of(layout, architecture, config)
    settings, network = ours_of(layout, layout.architectures[architecture], model)
    names = layout.names(settings)
    assert names.keys() == network.state_dict().keys()
    told = {
        name
        for rename in names.values()
        for name in ([rename.name] if isinstance(rename.name, str) else rename.name)
    }
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "lm_head.weight"}
    assert model.state_dict().keys() - told <= tied


REFUSALS: list[tuple[HubLayout, dict[str, Any], str]] = [
    (BERT, {"hidden_act": "swish"}, "hidden_act: 'swish'; heed supports gelu"),
    (BERT, {"hidden_act": ["gelu"]}, "hidden_act"),
    (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
    (BERT, {"is_decoder": True}, "is_decoder: True"),
    (BERT, {"hidden_size": 10**12}, "hidden_size: 1000000000000"),
    (BERT, {"hidden_size": "wide"}, "hidden_size: 'wide'"),
    (BERT, {"vocab_size": -1}, "vocab_size: -1"),
    (BERT, {"vocab_size": True}, "vocab_size: True"),
    (BERT, {"num_labels": True}, "labels: True"),
    (GPT2, {"n_layer": True}, "n_layer: True"),
    (BERT, {"num_labels": 10**12}, "labels: 1000000000000"),
    (BERT, {"num_attention_heads": 7}, "does not split into heads=7"),
    (GPT2, {"activation_function": "tanh"}, "activation_function: 'tanh'"),
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True"),
    (GPT2, {"scale_attn_weights": False}, "scale_attn_weights: False"),
    (GPT2, {"n_positions": 10**12}, "n_positions: 1000000000000"),
]


@pytest.mark.parametrize(("layout", "config", "says"), REFUSALS)
def test_features_that_heed_lacks_are_refused_by_their_names(
    layout: HubLayout, config: dict[str, Any], says: str
) -> None:
    head = next(iter(layout.architectures.values()))
    small = {"hidden_size": 64, "n_embd": 64, "n_head": 4, "num_attention_heads": 4}
    with pytest.raises(Refused, match=says), torch.device("meta"):
        layout.build(layout.settings({**small, **config}, head))


def test_a_span_has_two_ends() -> None:
    with pytest.raises(Refused, match="3 labels"):
        BERT.settings({"num_labels": 3}, "span")


def test_an_attention_of_another_kind_has_no_counterpart() -> None:
    for layout, settings in (
        (BERT, BertSettings(symbols=9, attention="additive")),
        (GPT2, GPT2Settings(symbols=9, attention=[["scaled-dot", "entmax"], "scaled-dot"])),
    ):
        with pytest.raises(Refused, match=r"no place for '(additive|entmax)'"):
            layout.config(settings, settings.head)
