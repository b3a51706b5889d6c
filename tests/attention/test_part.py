"""What printing an attention tells: its parts, with widths and options."""

import pickle
from copy import deepcopy

import pytest
import torch

import heed
from heed.attention.position import ALiBi, Rotary
from heed.attention.reach import LocalP
from heed.attention.score import Additive, Relative

TOLD = {
    "Additive(query=4, key=6, heads=2)": lambda: Additive(query=4, key=6, heads=2),
    "Additive(query=4, key=6, groups=2, width=3)": lambda: Additive(
        query=4, key=6, groups=2, width=3
    ),
    "Relative(query=5, key=5, width=6, clamp=3)": lambda: Relative(query=5, key=5, clamp=3),
    "LocalP(query=4, window=7)": lambda: LocalP(query=4, window=7),
    "Rotary(base=10000)": Rotary,
    "ALiBi(heads=4)": lambda: ALiBi(heads=4),
}


@pytest.mark.parametrize("told", TOLD)
def test_a_part_tells_its_widths_and_options(told: str) -> None:
    part = TOLD[told]()  # type: ignore[no-untyped-call]
    assert repr(part) == repr(deepcopy(part)) == repr(pickle.loads(pickle.dumps(part))) == told


def test_an_attention_tells_its_widths_and_its_parts() -> None:
    attend = heed.Attention("local-p/general", query=4, key=6, window=3, dropout=0.25)
    assert repr(attend) == (
        "Attention(\n"
        "  query=4, key=6\n"
        "  (mechanism): Mechanism(\n"
        "    dropout=0.25\n"
        "    (score): General(query=4, key=6)\n"
        "    (reach): LocalP(query=4, window=3)\n"
        "    (align): Softmax()\n"
        "    (read): Blend()\n"
        "  )\n"
        ")"
    )
    heads = heed.MultiHeadAttention(8, 4, groups=2, vdim=5, mechanism="cosine")
    assert "embed_dim=8, num_heads=4, groups=2, vdim=5\n" in repr(heads)
    assert "(score): Cosine(query=2, key=2, heads=4, sharpness=5)" in repr(heads)


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (0.3, "FixedGate(share=0.3)"),
        ("head", "HeadGate(heads=2)"),
        ("query", "QueryGate(query=4, heads=2)"),
    ],
)
def test_a_gate_tells_what_it_is(gate: float | str, told: str) -> None:
    heads = heed.MultiHeadAttention(8, 2, mechanism="mixed/dot", gate=gate)
    assert f"(gate): {told}" in repr(heads)


def test_a_part_of_ones_own_tells_its_options() -> None:
    class Steep(Relative):
        def __init__(self, power: float, *, query: int, key: int, steep: bool = False) -> None:
            super().__init__(query=query, key=key)
            self.power, self.seen = power, torch.zeros(())

    assert repr(Steep(2.0, query=4, key=4)) == "Steep(power=2, query=4, key=4)"
    assert (
        repr(Steep(power=2.5, query=4, key=4, steep=True))
        == "Steep(power=2.5, query=4, key=4, steep=True)"
    )
