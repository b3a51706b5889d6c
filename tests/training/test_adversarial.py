"""Adversarial examples: moved by the given distance to where the loss rises fastest."""

import torch
from torch import Tensor

from heed.training.adversarial import nudge


def losses(vectors: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(vectors @ w).sum(1)


def test_every_text_moves_by_the_given_distance_along_its_gradient() -> None:
    vectors, w = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    lengths = torch.tensor([5, 2, 1])
    there = (torch.arange(5) < lengths[:, None])[..., None]
    read = vectors.where(there, 0)
    found = losses(read, w)
    moved = nudge(found, read, lengths, 0.2)
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), 0.2 * lengths.sqrt())
    (slope,) = torch.autograd.grad(found.sum(), read)  # the graph has not been freed
    torch.testing.assert_close(
        torch.cosine_similarity(moved.flatten(1), slope.flatten(1)), torch.ones(3)
    )
    assert not moved.requires_grad
    assert (losses(read + moved, w) > found).all()


def test_a_text_with_zero_gradient_stays() -> None:
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    found = (vectors * torch.tensor([0.0, 1.0])[:, None, None]).sum((1, 2))
    moved = nudge(found, vectors, torch.tensor([3, 3]), 1e6)
    assert not moved[0].any()
    assert moved[1].isfinite().all()
