"""Logits that are formed when they are accessed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from heed.models.recurrent_settings import RecurrentSettings, build
from heed.models.written import Unformed, Written
from heed.records import Attended
from heed.training.objective import sequence_loss

B, S, T, V = 3, 6, 5, 13


def test_formed_logits_are_returned() -> None:
    logits, seen = torch.randn(B, T, V), {"decoder.attention": Attended()}
    for written in (Written(logits, seen), Written(logits=logits, seen=seen)):
        assert written.logits is written.output is logits
        assert written.seen is seen
    assert Written(logits).seen == {}


@pytest.mark.parametrize("bias", [True, False])
def test_unformed_logits_are_formed_by_the_output_layer(bias: bool) -> None:
    out, known = nn.Linear(4, V, bias=bias), torch.randn(B, T, 4)
    written = Written(Unformed.of(known, out))
    assert torch.equal(written.logits, out(known))
    written.logits.sum().backward()
    assert out.weight.grad is not None


def test_an_output_layer_with_a_hook_is_called() -> None:
    out, known, heard = nn.Linear(4, V), torch.randn(B, T, 4), []
    handle = out.register_forward_hook(lambda *_: heard.append(1))
    written = Written(Unformed.of(known, out))
    assert torch.equal(written.logits, nn.functional.linear(known, out.weight, out.bias))
    assert heard == [1]
    handle.remove()
    assert isinstance(Unformed.of(known, out), Unformed)


def test_an_output_layer_of_your_own_is_called() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    out, known = Twice(4, V), torch.randn(B, T, 4)
    assert torch.equal(Written(Unformed.of(known, out)).logits, out(known))


def leaves(x: Tensor) -> set[int]:
    """The parameters behind a tensor, found as DistributedDataParallel finds them."""
    met, todo = set(), [x.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in met:
            met.add(node)
            todo += [after for after, _ in node.next_functions]
    return {id(node.variable) for node in met if hasattr(node, "variable")}


@pytest.mark.parametrize("decoder", ["search", "luong", "fixed"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_network_leaves_its_logits_unformed(decoder: str, tied: bool) -> None:
    torch.manual_seed(0)
    settings = RecurrentSettings(decoder=decoder, embedding=8, hidden=8, dropout=0, tied=tied)
    net = build(settings, source=V, target=V, shared=False, longest=S).double()
    source, labels = torch.randint(1, V, (B, S)), torch.randint(1, V, (B, T))
    labels[1, 2:] = 0
    written = net(source, torch.tensor([6, 3, 1]), labels)
    assert isinstance(written.output, Unformed)
    assert dataclasses.fields(written)[0].name == "output"  # where DDP looks first
    behind = set().union(*(leaves(x) for x in written.output if x is not None))
    assert behind == {id(p) for p in net.parameters()}

    both = []
    for logits in (written.output, written.logits):
        total = sequence_loss(logits, labels, {}, smoothing=0.1).total
        both.append((total, *torch.autograd.grad(total, list(net.parameters()), retain_graph=True)))
    torch.testing.assert_close(*both)
