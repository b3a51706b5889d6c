"""Reads and the output stage compared with loops."""

import math

import pytest
import torch

import heed
from heed.attention.read import Blend, Generate, Join, blend, copy_mixture
from heed.errors import NotFormed, Refused


def test_blend_equals_a_loop() -> None:
    weight, v = torch.rand(2, 3, 4, 5).double(), torch.randn(2, 3, 5, 6).double()
    context = blend(weight, v)
    for b in range(2):
        for h in range(3):
            for t in range(4):
                expected = sum(weight[b, h, t, s] * v[b, h, s] for s in range(5))
                torch.testing.assert_close(context[b, h, t], expected)


def test_heads_read_the_values_of_their_group() -> None:
    weight, v = torch.rand(2, 4, 3, 5), torch.randn(2, 2, 5, 6)
    context = Blend()(weight, v)
    for h in range(4):
        torch.testing.assert_close(context[:, h], weight[:, h] @ v[:, h // 2])


def test_a_pointer_returns_its_distribution() -> None:
    attend = heed.Attention("pointer/additive", query=3, key=4)
    blended = heed.Attention("additive", query=3, key=4)
    blended.load_state_dict(attend.state_dict())
    q, k = torch.randn(2, 3, 3), torch.randn(2, 5, 4)
    n = heed.lengths([5, 2])
    seen = attend(q, attend.remember(k, visible=n))  # weights are formed without being asked for
    same = blended(q, blended.remember(k, visible=n), need="weight")
    torch.testing.assert_close(seen.weight, same.weight)
    torch.testing.assert_close(seen.mass, torch.ones(2, 1, 3))
    with pytest.raises(NotFormed, match=r"\.weight"):
        _ = seen.context


def test_a_pointer_is_refused_inside_heads() -> None:
    with pytest.raises(Refused, match=r"'pointer' does not work inside heads"):
        heed.MultiHeadAttention(8, 2, mechanism="pointer")


def test_join_by_hand() -> None:
    join = Join(context=2, query=1, width=1)
    with torch.no_grad():
        join.linear.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    out = join(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[4.0]]]))
    assert out.item() == pytest.approx(math.tanh(3 - 2 + 2))
    bare = Join(context=2, query=1, width=1, activation=torch.nn.Identity())
    bare.load_state_dict(join.state_dict())
    assert bare(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[4.0]]])).item() == pytest.approx(3)


def test_generate_by_hand() -> None:
    gate = Generate(context=1, query=1, embedding=1)
    with torch.no_grad():
        gate.linear.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
        gate.linear.bias.fill_(0.5)
    chance = gate(*(torch.tensor([[[x]]]) for x in (1.0, 0.5, 3.0)))
    assert chance.item() == pytest.approx(1 / (1 + math.exp(0.5)))  # 1 + 1 − 3 + ½ = −½
    assert Generate(context=3, query=2)(torch.randn(2, 4, 3), torch.randn(2, 4, 2)).shape == (
        2,
        4,
        1,
    )


def test_copy_mixture_equals_a_loop() -> None:
    """Source words outside the vocabulary get numbers of their own; repeated words add up."""
    B, T, S, V, size = 2, 3, 5, 4, 6
    vocabulary = torch.randn(B, T, V).double().softmax(-1)
    weight = torch.randn(B, T, S).double().softmax(-1)
    source = torch.tensor([[0, 4, 4, 2, 5], [1, 1, 1, 3, 4]])
    generate = torch.rand(B, T, 1).double()
    mixed = copy_mixture(vocabulary, weight, source, generate, size)
    for b in range(B):
        for t in range(T):
            p = generate[b, t].item()
            expected = [p * x for x in vocabulary[b, t].tolist()] + [0.0] * (size - V)
            for s in range(S):
                expected[source[b, s]] += (1 - p) * weight[b, t, s].item()
            assert mixed[b, t].tolist() == pytest.approx(expected)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(B, T).double())


def test_copy_mixture_is_differentiable() -> None:
    source = torch.tensor([[0, 3, 3]])
    vocabulary, weight = (torch.rand(1, 2, 3).double().requires_grad_() for _ in range(2))
    generate = torch.rand(1, 2, 1).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v, a, g: copy_mixture(v, a, source, g, 4), (vocabulary, weight, generate)
    )
