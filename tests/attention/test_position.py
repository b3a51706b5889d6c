"""Positions added to the input; those inside heads are tested with the heads."""

import math

import pytest
import torch
from torch import nn

from heed.attention.position import Learned, Position, Sinusoidal, sinusoid, waves
from heed.errors import Refused
from heed.visible import Places

DOUBLE = torch.float64


def test_sinusoids_equal_the_paper() -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/M)), PE(p, 2i+1) = cos of the same."""
    width = 6
    table = sinusoid(torch.arange(5, dtype=DOUBLE), width)
    assert table.shape == (5, width)
    for place in range(5):
        for i in range(width // 2):
            angle = place / 10_000 ** (2 * i / width)
            assert table[place, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[place, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_waves_accept_another_base_and_any_position() -> None:
    places = torch.tensor([-2.0, 0.0, 3.5], dtype=DOUBLE)
    sine, cosine = waves(places, 4, base=100.0)
    angle = places[:, None] * torch.tensor([1.0, 0.1], dtype=DOUBLE)
    torch.testing.assert_close(sine, angle.sin())
    torch.testing.assert_close(cosine, angle.cos())


@pytest.mark.parametrize("width", [1, 3, 7])
def test_an_odd_width_is_refused(width: int) -> None:
    with pytest.raises(Refused, match=f"need an even width; got {width}"):
        sinusoid(torch.arange(3.0), width)
    with pytest.raises(Refused, match=f"need an even width; got {width}"):
        Sinusoidal()(torch.zeros(1, 2, width))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.bfloat16, torch.float16])
def test_sinusoidal_adds_the_table(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 8, dtype=dtype)
    out = Sinusoidal()(x)
    assert out.dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    table = sinusoid(torch.arange(5, dtype=wide), 8)
    torch.testing.assert_close(out, x + table.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_far_positions_differ_in_half_precision(dtype: torch.dtype) -> None:
    """bfloat16 has no 1001; positions must be counted in a wider type."""
    out = Sinusoidal()(torch.zeros(1, 2, 8, dtype=dtype), start=1001)
    want = sinusoid(torch.arange(1001, 1003, dtype=DOUBLE), 8)
    torch.testing.assert_close(out[0].double(), want, rtol=0, atol=5e-3)


def test_a_text_in_pieces_equals_the_whole_text() -> None:
    x = torch.randn(2, 7, 4)
    for module in (Sinusoidal(), Learned(longest=7, width=4)):
        whole = module(x)
        pieces = torch.cat([module(x[:, :3]), module(x[:, 3:], start=3)], 1)
        torch.testing.assert_close(pieces, whole)


def test_fixed_positions_have_no_weights() -> None:
    assert not list(Sinusoidal().parameters())
    assert not Sinusoidal().state_dict()


def test_learned_positions_are_added_and_trained() -> None:
    module = Learned(longest=6, width=3)
    x = torch.randn(2, 2, 3)
    out = module(x, start=3)
    torch.testing.assert_close(out, x + module.table.weight[3:5])
    out.sum().backward()
    grad = module.table.weight.grad
    assert grad is not None
    assert grad.tolist() == [[0.0] * 3] * 3 + [[2.0] * 3] * 2 + [[0.0] * 3]


def test_learned_positions_start_small() -> None:
    weight = Learned(longest=100, width=50).table.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("start", "T"), [(0, 7), (5, 2), (6, 1)])
def test_a_text_beyond_the_longest_is_refused(start: int, T: int) -> None:
    module = Learned(longest=6, width=3)
    with pytest.raises(Refused, match=f"end at 6; this text reaches {start + T}"):
        module(torch.zeros(1, T, 3), start=start)
    assert module(torch.zeros(1, 6 - start, 3), start=start).shape == (1, 6 - start, 3)


def test_half_precision_stays_half() -> None:
    module = Learned(longest=4, width=3)
    assert module(torch.zeros(1, 4, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_default_position_does_nothing() -> None:
    x = torch.randn(1, 2, 3, 4)
    position = Position()
    assert isinstance(position, nn.Module)
    assert position.turn(x, torch.arange(3)) is x
    assert position.bias(Places(3, 3, 0, 0, x.device)) is None
