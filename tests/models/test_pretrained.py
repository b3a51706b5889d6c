"""Names and shapes of heed's weights and Hugging Face's, converted in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from pydantic import BaseModel
from torch import Tensor, nn

from heed.errors import HeedError, Refused, UnknownName
from heed.models import pretrained
from heed.models.layouts import LAYOUTS, HubLayout, Rename

BERT = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 22,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
}
GPT2 = {"vocab_size": 41, "n_embd": 21, "n_layer": 2, "n_head": 7, "n_positions": 17}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
XLNET = {"vocab_size": 43, "d_model": 18, "n_layer": 2, "n_head": 3, "d_inner": 26}
SMALL = {"bert": BERT, "gpt2": GPT2, "xlnet": XLNET}
CLASSES = [(kind, name) for kind, layout in LAYOUTS.items() for name in layout.architectures]


def network(kind: str, name: str, **changes: Any) -> Any:
    """A small model of theirs, with distinct weights."""
    cls = getattr(transformers, name)
    if name.endswith("Classification"):
        changes["num_labels"] = 5
    found = cls(cls.config_class(**{**SMALL[kind], **changes})).eval()
    torch.manual_seed(5)
    for weight in found.parameters():
        nn.init.normal_(weight)
    return found


def described(their: Any, head: str | None = None) -> pretrained.Described:
    config = their.config.to_dict() | {"architectures": [type(their).__name__]}
    return pretrained.describe(config, head)


def header(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}


def shapes(what: pretrained.Described) -> dict[str, Any]:
    return {name: tuple(x.shape) for name, x in what.outline().items()}


def poisoned(what: pretrained.Described) -> nn.Module:
    """An empty network, with NaN wherever nothing was written."""
    torch.use_deterministic_algorithms(True)
    try:
        return what.blank()
    finally:
        torch.use_deterministic_algorithms(False)


def filled(what: pretrained.Described, tensors: dict[str, Tensor]) -> tuple[nn.Module, Any]:
    plan = pretrained.fitted(what, header(tensors))
    model = poisoned(what)
    told = list(pretrained.fill(model, plan, tensors.__getitem__))
    assert not any(x.isnan().any() for x in model.state_dict().values())
    assert [i for i, *_ in told] == list(range(len(plan.sources) + 1))
    return model, plan


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_weight_of_every_architecture_survives_a_round_trip(kind: str, name: str) -> None:
    their = network(kind, name)
    what = described(their)
    state = their.state_dict()
    model, plan = filled(what, state)
    assert plan.unused == ()
    back = pretrained.theirs(what, model.state_dict())
    assert {n: tuple(x.shape) for n, x in back.items()} == {n: tuple(state[n].shape) for n in back}
    again = getattr(transformers, name)(their.config)
    missing, surplus = again.load_state_dict(back, strict=False)
    again.tie_weights()
    assert surplus == []
    for entry, x in again.state_dict().items():
        assert torch.equal(x, state[entry]), (entry, missing)


def test_a_config_survives_a_round_trip() -> None:
    for kind, name in CLASSES:
        what = described(network(kind, name))
        config = what.layout.config(what.settings, what.head)
        assert config["architectures"] == [name]
        again = pretrained.describe(config)
        assert again.layout.config(again.settings, again.head) == config
        assert shapes(again) == shapes(what)


@pytest.mark.parametrize("kind", [kind for kind in ("bert", "gpt2") if kind in LAYOUTS])
def test_the_prefix_of_the_body_is_optional(kind: str) -> None:
    layout = LAYOUTS[kind]
    heads = {head: name for name, head in layout.architectures.items()}
    their = network(kind, heads["masked" if kind == "bert" else "language"])
    what = described(their)
    state = their.state_dict()
    short = {name.removeprefix(layout.prefix): x for name, x in state.items()}
    assert len(short) == len(state)
    one, other = filled(what, state)[0].state_dict(), filled(what, short)[0].state_dict()
    assert all(torch.equal(x, other[name]) for name, x in one.items())
    body = network(kind, heads["none"])
    long = {layout.prefix + name: x for name, x in body.state_dict().items()}
    filled(described(body), long)


def test_old_names_and_masks_are_understood() -> None:
    their = network("bert", "BertForMaskedLM")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): x
        for name, x in their.state_dict().items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(19)[None]
    model, plan = filled(described(their), old)
    assert plan.unused == ()
    assert torch.equal(
        model.state_dict()["words.norm.bias"], old["cls.predictions.transform.LayerNorm.beta"]
    )
    gpt = network("gpt2", "GPT2LMHeadModel")
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 17, 17).bool() for i in range(2)}
    assert filled(described(gpt), gpt.state_dict() | masks)[1].unused == ()


def test_another_head_is_accepted_if_its_weights_exist() -> None:
    their = network("bert", "BertForPreTraining")
    body, plan = filled(described(their, head="none"), their.state_dict())
    assert plan.unused[0].startswith("cls.")
    weight = body.state_dict()["pool.dense.weight"]
    assert torch.equal(weight, their.bert.pooler.dense.weight)
    with pytest.raises(Refused, match=r"lack 'classifier\.weight'"):
        filled(described(their, head="classify"), their.state_dict())
    with pytest.raises(UnknownName, match="did you mean masked"):
        described(their, head="maskd")


COPIES = [
    ("bert", "BertForMaskedLM", "cls.predictions.decoder.weight"),
    ("bert", "BertForPreTraining", "cls.predictions.decoder.bias"),
    ("gpt2", "GPT2LMHeadModel", "lm_head.weight"),
    ("xlnet", "XLNetLMHeadModel", "lm_loss.weight"),
]


@pytest.mark.parametrize(("kind", "name", "copy"), COPIES)
def test_a_copy_of_the_table_is_compared_and_not_read(kind: str, name: str, copy: str) -> None:
    their = network(kind, name)
    what, state = described(their), their.state_dict()
    plan = pretrained.fitted(what, header(state))
    assert copy in [found for found, _ in plan.copies]
    assert all(torch.equal(state[one], state[other]) for one, other in plan.copies)
    asked = []
    told = pretrained.apart(what, plan, header(state), lambda *pair: asked.append(pair) or True)
    assert (told, asked) == ((what, plan), list(plan.copies))
    del state[copy]
    assert copy not in [found for found, _ in pretrained.fitted(what, header(state)).copies]


@pytest.mark.parametrize(("kind", "name", "copy"), COPIES)
def test_an_output_that_is_not_tied_is_the_networks_own_or_refused(
    kind: str, name: str, copy: str
) -> None:
    """Whatever config.json says about tying."""
    their = network(kind, name)
    what, state = described(their), dict(their.state_dict())
    state[copy] = state[copy] + 1
    plan = pretrained.fitted(what, header(state))

    def alike(one: str, other: str) -> bool:
        return torch.equal(state[one], state[other])

    if kind == "bert":
        with pytest.raises(Refused, match=rf"'{copy}' differs from '.*', and heed's bert has one"):
            pretrained.apart(what, plan, header(state), alike)
        return
    what, plan = pretrained.apart(what, plan, header(state), alike)
    assert not what.settings.tied
    model, _ = filled(what, state)
    assert torch.equal(model.state_dict()["output.weight"], state[copy])
    state[copy] = torch.zeros(3, 2)
    with pytest.raises(Refused, match="has the shape"):
        pretrained.fitted(what, header(state))


@pytest.mark.parametrize(("kind", "name", "copy"), COPIES)
def test_an_output_is_listed_among_what_the_body_does_not_use(
    kind: str, name: str, copy: str
) -> None:
    their = network(kind, name.replace("MaskedLM", "PreTraining"))  # which has all of the body
    plan = pretrained.fitted(described(their, head="none"), header(their.state_dict()))
    assert copy in plan.unused
    assert not plan.copies


def test_half_precision_is_read_as_float32() -> None:
    their = network("gpt2", "GPT2Model")
    half = {name: x.bfloat16() for name, x in their.state_dict().items()}
    model, _ = filled(described(their), half)
    weight = model.state_dict()["words.table.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, half["wte.weight"].float())


def lacking(state: dict[str, Tensor]) -> None:
    del state["transformer.h.1.ln_2.bias"]


def longer(state: dict[str, Tensor]) -> None:
    state["transformer.wte.weight"] = torch.zeros(42, 21)


def turned(state: dict[str, Tensor]) -> None:
    state["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(84, 21)


def whole_numbers(state: dict[str, Tensor]) -> None:
    state["transformer.wpe.weight"] = torch.zeros(17, 21).long()


def deeper(state: dict[str, Tensor]) -> None:
    state["transformer.h.2.ln_1.bias"] = torch.zeros(21)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lacking, "lack 'transformer.h.1.ln_2.bias'"),
        (longer, r"'transformer.wte.weight' has the shape \(42, 21\); .* \(41, 21\)"),
        (turned, r"c_fc.weight' has the shape \(84, 21\); .* \(21, 84\)"),
        (whole_numbers, "holds torch.int64, not weights"),
        (deeper, "hold 'transformer.h.2.ln_1.bias', which config.json does not describe"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], None], says: str
) -> None:
    their = network("gpt2", "GPT2LMHeadModel")
    state = dict(their.state_dict())
    change(state)
    with pytest.raises(Refused, match=says):
        pretrained.fitted(described(their), header(state))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "not a table"),
        ({}, "model_type"),
        ({"model_type": 3}, "model_type"),
        ({"model_type": "brt"}, "did you mean bert"),
        ({"model_type": "os.system"}, "no model_type"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLm"]}, "mean BertForMaskedLM"),
        ({"model_type": "bert", "architectures": [["x"]]}, "no architecture"),
        ({"model_type": "bert", "architectures": 7}, "no architecture"),
        ({"model_type": "bert", "architectures": ["LlamaForCausalLM"]}, "known: BertModel"),
        ({"model_type": "bert", "hidden_size": 10**12}, "hidden_size"),
        ({"model_type": "bert", "vocab_size": 10**12}, "vocab_size"),
        ({"model_type": "bert", "num_hidden_layers": -1}, "num_hidden_layers"),
        ({"model_type": "bert", "num_hidden_layers": "x"}, "num_hidden_layers"),
        ({"model_type": "gpt2", "n_layer": 1e12}, "n_layer"),
        ({"model_type": "gpt2", "n_positions": 10**12}, "n_positions"),
        ({"model_type": "gpt2", "layer_norm_epsilon": float("nan")}, "layer_norm_epsilon"),
        ({"model_type": "gpt2", "activation_function": "swish"}, "activation_function"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "relative_key"),
        ({"model_type": "bert", "intermediate_size": None}, "intermediate_size: null"),
        ({"model_type": "xlnet", "d_inner": None}, "d_inner: null"),
    ],
)
def test_an_impossible_config_is_refused(config: Any, says: str) -> None:
    with pytest.raises(HeedError, match=says):
        pretrained.describe(config)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_any_value_of_a_key_gives_a_model_or_a_refusal(kind: str) -> None:
    """Never another error, and never a long wait."""
    for key in SMALL[kind]:
        for value in (None, "a", [], {}, True, 0, -1, 2.5, 10**30, float("inf"), "9" * 50):
            config = SMALL[kind] | {"model_type": kind, key: value}
            try:
                pretrained.describe(config).outline()
            except HeedError:
                continue


@pytest.mark.parametrize("kind", LAYOUTS)
def test_nothing_is_initialised_randomly(kind: str) -> None:
    what = described(network(kind, next(iter(LAYOUTS[kind].architectures))))
    before = torch.random.get_rng_state()
    model = poisoned(what)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, x in model.state_dict().items():
        assert x[~x.isnan()].unique().numel() <= 1, name  # unchanged, or constant


class ToySettings(BaseModel):
    """One linear map, two tables, a tie."""

    head: str = "none"


class Toy(nn.Module):
    """What no family has yet: parts of a concatenated tensor, and transposed axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
        self.both = nn.Linear(6, 8, bias=False)
        self.tied = self.first


def toy_names(settings: Any) -> dict[str, Rename]:
    return {
        "first.weight": Rename("joined", transpose=True, part=(0, 2)),
        "second.weight": Rename("joined", transpose=True, part=(1, 2)),
        "both.weight": Rename(("q", "k"), transpose=True),
    }


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> pretrained.Described:
    layout = HubLayout(
        {"Toy": "none"},
        lambda config, head: ToySettings(head=head),
        lambda settings, head: {"model_type": "toy"},
        lambda settings: Toy(),
        toy_names,
    )
    monkeypatch.setitem(LAYOUTS, "toy", layout)
    return pretrained.describe({"model_type": "toy", "architectures": ["Toy"]})


def test_parts_are_split_and_joined_and_ties_are_found(
    toy: pretrained.Described,
) -> None:
    state = {"joined": torch.randn(3, 8), "q": torch.randn(6, 4), "k": torch.randn(6, 4)}
    model, _ = filled(toy, state)
    assert isinstance(model, Toy)
    assert torch.equal(model.first.weight, state["joined"][:, :4].T)
    assert torch.equal(model.second.weight, state["joined"][:, 4:].T)
    assert torch.equal(model.both.weight, torch.cat([state["q"].T, state["k"].T]))
    back = pretrained.theirs(toy, model.state_dict())
    assert back.keys() == state.keys()
    assert all(torch.equal(x, state[name]) for name, x in back.items())


def test_a_weight_without_a_counterpart_is_not_dropped_silently(
    toy: pretrained.Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {name: each for name, each in toy_names(None).items() if name != "both.weight"}
    monkeypatch.setitem(LAYOUTS, "toy", toy.layout._replace(names=lambda settings: short))
    with pytest.raises(Refused, match=r"no place for 'both\.weight'"):
        pretrained.theirs(toy, Toy().state_dict())


def test_a_layout_that_fails_on_a_config_refuses_it(
    toy: pretrained.Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumbling = toy.layout._replace(settings=lambda config, head: config["absent"] + 1)
    monkeypatch.setitem(LAYOUTS, "toy", stumbling)
    for config in ({"absent": "text"}, {}):
        with pytest.raises(Refused, match="does not describe a valid model"):
            pretrained.describe({"model_type": "toy", **config})
