"""Models by name: their shapes, and how much they can read, without allocating them."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from heed.models import building

SIZES: dict[str, Any] = {"source": 11, "target": 13, "shared": False, "longest": 9}
RECURRENT: dict[str, Any] = {"kind": "recurrent", "embedding": 8, "hidden": 12}
SMALL = {"encoder_layers": 2, "decoder_layers": 1, "width": 16, "feed": 20, "heads": 4}
TRANSFORMER: dict[str, Any] = {"kind": "transformer", **SMALL}

SETTINGS = [
    RECURRENT,
    {**RECURRENT, "decoder": "luong", "cell": "lstm", "layers": 2, "tied": False},
    {**RECURRENT, "attention": "coverage/additive", "readout": "maxout"},
    {**RECURRENT, "attention": "location", "decoder": "luong"},
    {**RECURRENT, "attention": "local-p/general", "input_feeding": False, "decoder": "luong"},
    {**RECURRENT, "decoder": "fixed", "context": "first"},
    TRANSFORMER,
    {**TRANSFORMER, "position": "learned", "norm": "post", "longest": 30},
    {**TRANSFORMER, "position": "rotary", "tied": False},
    {**TRANSFORMER, "cross_attention": "2*additive + 2*location", "options": {"longest": 7}},
]


def settings(given: dict[str, Any]) -> Any:
    return TypeAdapter(building.Model).validate_python(given)


def shapes(chosen: Any, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights, with nothing allocated: as a story estimates a network."""
    with torch.device("meta"):
        network = building.build(chosen, **sizes)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("given", SETTINGS, ids=[str(i) for i in range(len(SETTINGS))])
def test_shapes_equal_those_of_the_real_network(given: dict[str, Any], shared: bool) -> None:
    sizes = SIZES | ({"shared": True, "target": 11} if shared else {})
    real = building.build(settings(given), **sizes).state_dict()
    found = shapes(settings(given), **sizes)
    assert found == {name: tuple(tensor.shape) for name, tensor in real.items()}
    assert list(found) == list(real)


def test_shapes_take_no_memory() -> None:
    """The two embeddings would be 1.6 GiB."""
    large = settings({**RECURRENT, "embedding": 2048})
    shapes(large, **SIZES)  # so that lazy imports do not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = shapes(large, **SIZES | {"source": 100_000, "target": 100_000})
    assert sum(torch.Size(shape).numel() for shape in found.values()) > 2 * 100_000 * 2048
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_the_tables_of_models_and_settings_agree() -> None:
    for kind, known in building.MODELS.items():
        assert known.settings.model_fields["kind"].default == kind
    for kind in ("recurrent", "transformer"):
        assert settings({"kind": kind}).kind == kind
    with pytest.raises(ValueError, match="rnn"):
        settings({"kind": "rnn"})


LOCATION = {"attention": "location", "decoder": "luong"}


@pytest.mark.parametrize(
    ("given", "most"),
    [
        (RECURRENT, None),
        ({**RECURRENT, "attention": "location-aware"}, None),
        ({**RECURRENT, **LOCATION}, 9),
        ({**RECURRENT, **LOCATION, "options": {"longest": 5}}, 5),
        ({**RECURRENT, **LOCATION, "attention": "sparsemax/location"}, 9),
        (TRANSFORMER, None),
        ({**TRANSFORMER, "cross_attention": "location-aware"}, None),
        ({**TRANSFORMER, "cross_attention": "location"}, 9),
        ({**TRANSFORMER, "encoder_attention": ["location", "scaled-dot"]}, 9),
        ({**TRANSFORMER, "encoder_attention": "2*additive + 2*location"}, 9),
        ({**TRANSFORMER, "cross_attention": "location", "options": {"longest": 7}}, 7),
        ({**TRANSFORMER, "decoder_attention": "location"}, None),
        ({**TRANSFORMER, "position": "learned", "longest": 20}, 20),
        ({**TRANSFORMER, "position": "learned", "longest": 5}, 9),
        ({**TRANSFORMER, "position": "learned", "cross_attention": "location"}, 9),
        ({**TRANSFORMER, "position": "rotary"}, None),
    ],
)
def test_the_stated_length_of_input_is_correct(given: dict[str, Any], most: int | None) -> None:
    """A source of that length works, and a longer one does not, where there is a limit."""
    chosen = settings({**given, "dropout": 0})
    assert building.reads(chosen, SIZES["longest"]) == most
    model = building.build(chosen, **SIZES).eval()

    def read(length: int) -> None:
        source, lengths = torch.full((1, length), 5), torch.tensor([length])
        model(source, lengths, torch.tensor([[2, 5]]))

    read(most or 40)
    if most is not None:
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            read(most + 1)
