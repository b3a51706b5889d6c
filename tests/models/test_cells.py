"""Recurrent cells: a step with the input's part given equals PyTorch's cell."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heed.errors import UnknownName
from heed.models.cells import CELLS, Dropout, First, Layer, Readout, Stack, select

THEIRS = {"tanh": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


@pytest.mark.parametrize("cell", list(CELLS))
def test_a_step_equals_pytorchs_with_its_gradients(cell: str) -> None:
    torch.manual_seed(0)
    ours, theirs = Layer(cell, 3, 4).double(), THEIRS[cell](3, 4).double()
    theirs.load_state_dict({n.removesuffix("_l0"): x for n, x in ours.rnn.state_dict().items()})
    x = torch.randn(5, 3).double()
    hidden = tuple(torch.randn(5, 4).double() for _ in range(CELLS[cell].slots))
    got = ours.step(ours.project(x), hidden)
    want = theirs(x, hidden if len(hidden) > 1 else hidden[0])
    want = want if isinstance(want, tuple) else (want,)
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two)
    sum(h.square().sum() for h in got).backward()
    sum(h.square().sum() for h in want).backward()
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(ours.rnn.get_parameter(f"{name}_l0").grad, weight.grad)


@pytest.mark.parametrize("cell", list(CELLS))
def test_steps_have_correct_derivatives(cell: str) -> None:
    torch.manual_seed(0)
    gates = Layer(cell, 2, 3).double()._weight("weight_hh").shape[0]
    x = torch.randn(2, gates, dtype=torch.double, requires_grad=True)
    weight = torch.randn(gates, 3, dtype=torch.double, requires_grad=True)
    bias = torch.randn(gates, dtype=torch.double, requires_grad=True)
    hidden = [
        torch.randn(2, 3, dtype=torch.double, requires_grad=True) for _ in range(CELLS[cell].slots)
    ]

    def step(x: object, weight: object, bias: object, *hidden: object) -> object:
        return CELLS[cell].step(x, hidden, weight, bias)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(step, (x, weight, bias, *hidden))
    assert torch.autograd.gradgradcheck(step, (x, weight, bias, *hidden))


@pytest.mark.parametrize("cell", list(CELLS))
def test_steps_of_a_stack_equal_its_whole_pass(cell: str) -> None:
    torch.manual_seed(0)
    stack = Stack(cell, 3, 4, layers=3).double()
    first = First(2, cell=cell, hidden=4, layers=3).double()
    x, hidden = torch.randn(5, 6, 3).double(), first(torch.randn(5, 2).double())
    whole = stack(x, hidden)
    for t in range(6):
        hidden = stack.step(stack.each[0].project(x[:, t]), hidden)
        torch.testing.assert_close(hidden[-1][0], whole[:, t])
    chosen = select(hidden, torch.tensor([3, 1]))
    assert [len(layer) for layer in chosen] == [CELLS[cell].slots] * 3
    torch.testing.assert_close(chosen[1][0], hidden[1][0][[3, 1]])


def test_the_forget_gate_of_an_lstm_is_open_at_first() -> None:
    layer = Layer("lstm", 3, 4)
    assert layer._weight("bias_ih")[4:8].eq(1).all()
    assert not layer._weight("bias_ih").eq(1).all()


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_between_layers_is_drawn_for_all_steps_at_once(variational: bool) -> None:
    torch.manual_seed(0)
    stack = Stack("gru", 3, 40, layers=3, dropout=Dropout(0.5, variational=variational))
    noise = stack.noise(torch.zeros(2, 1), T=4)
    assert [[x.shape for x in step] for step in noise] == [[(2, 40)] * 2] * 4
    assert torch.equal(noise[0][0], noise[1][0]) == variational
    assert not torch.equal(noise[0][0], noise[0][1])
    hidden = tuple(layer.zero(2) for layer in stack.each)
    gates = stack.each[0].project(torch.randn(2, 3))
    with_noise, without = stack.step(gates, hidden, noise[0]), stack.step(gates, hidden)
    assert torch.equal(with_noise[0][0], without[0][0])
    assert not torch.equal(with_noise[1][0], without[1][0])
    assert stack.eval().noise(torch.zeros(2, 1), T=4) == [()] * 4


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_layer_of_your_own_is_never_bypassed(cell: str) -> None:
    """In training and in evaluation."""

    class Twice(CELLS[cell].module):  # type: ignore[misc,name-defined]
        def forward(self, *given: Tensor) -> tuple[Tensor, Any]:
            states, last = super().forward(*given)
            return 2 * states, last

    layer = Layer(cell, 3, 4)
    layer.rnn.__class__ = Twice
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        evaluated = layer(x)
    torch.testing.assert_close(layer(x), evaluated)


def test_maxout_takes_the_larger_of_each_two() -> None:
    readout = Readout("maxout", parts=2, width=3)
    x, y = torch.randn(4, 1), torch.randn(4, 1)
    pairs = readout.linear(torch.cat([x, y], -1)).view(4, 3, 2)
    torch.testing.assert_close(readout(x, y), pairs.max(-1).values)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean gru"):
        Layer("gruu", 3, 4)
    with pytest.raises(UnknownName, match="maxout"):
        Readout("maxut", parts=2, width=3)
