"""What a call is asked to form: the same word at every door."""

from typing import Any

import pytest
import torch

import heed
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.errors import UnknownName
from heed.models import text_settings, transformer_settings

M, T, S = 8, 3, 5


def doors() -> dict[str, Any]:
    """Calls that take `need`, by name."""
    query, keys = torch.randn(2, T, M), torch.randn(2, S, M)
    heads = query[:, None].expand(-1, 2, -1, -1), keys[:, None].expand(-1, 2, -1, -1)
    two = [(build("dot", query=M // 2, key=M // 2), 1)] * 2
    mechanisms = {
        "Mechanism": build("scaled-dot", query=M, key=M),
        "Mixed": build("mixed/general", query=M, key=M, heads=2),
    }
    modules = {
        "Attention": heed.Attention("additive", query=M),
        "MultiHeadAttention": heed.MultiHeadAttention(M, 2),
        "HeadGroups": heed.MultiHeadAttention(M, 2, mechanism=HeadGroups(two)),
    }
    return {
        "attend": lambda need: heed.attend(heads[0], heads[1], heads[1], need=need),
        **{
            name: lambda need, one=one: one(heads[0], one.remember(heads[1]), need=need)
            for name, one in mechanisms.items()
        },
        **{
            name: lambda need, one=one: one(query, one.remember(keys), need=need)
            for name, one in modules.items()
        },
    }


DOORS = doors()


@pytest.mark.parametrize("door", DOORS)
def test_a_plural_means_the_same(door: str) -> None:
    for need in ("weight", "energy"):
        plural = {"weight": "weights", "energy": "energies"}[need]
        if door == "Mixed" and need == "energy":
            continue  # a blend has no energies
        one, many = DOORS[door](need), DOORS[door](plural)
        assert torch.equal(one.weight, many.weight)
        assert (one.formed.energy is None) == (many.formed.energy is None) == (need == "weight")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("need", ["wieghts", "Weight", None, True, ["weight"]])
def test_any_other_need_is_refused(door: str, need: Any) -> None:
    with pytest.raises(UnknownName, match="no need is called"):
        DOORS[door](need)


def test_watching_takes_a_plural_from_the_watch_and_from_the_model() -> None:
    attend, x = heed.Attention("dot", query=M), torch.randn(1, T, M)
    with heed.watch(attend, "weights") as seen:
        attend(x, need="energies")
    (record,) = seen[""]
    assert record.weight.shape == record.energy.shape == (1, 1, T, T)
    with pytest.raises(UnknownName, match="did you mean weight"), heed.watch(attend, "wheight"):  # type: ignore[arg-type]
        pass


def test_models_refuse_another_need_at_once() -> None:
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "feed": 8}
    told = transformer_settings.TransformerSettings(**sizes, encoder_layers=1, decoder_layers=1)
    network = transformer_settings.build(told, source=7, target=7, shared=True, longest=9).eval()
    source, lengths = torch.randint(0, 7, (2, 4)), torch.tensor([4, 3])
    bert = text_settings.build(text_settings.BertSettings(**sizes, layers=1, symbols=7))
    with torch.no_grad():
        carry = network.begin(source, lengths, "weights")  # type: ignore[arg-type]
        assert network.step(carry, source[:, 0]).weight is not None
        for call in (
            lambda: network.begin(source, lengths, "wieght"),  # type: ignore[arg-type]
            lambda: network(source, lengths, source, "wieght"),
            lambda: bert(source, lengths, need="wieght"),
        ):
            with pytest.raises(UnknownName, match="did you mean weight"):
                call()
