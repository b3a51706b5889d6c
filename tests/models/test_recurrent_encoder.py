"""Recurrent networks without attention: padding, directions, and the shapes N→N, N→1, 1→N."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import heed
from heed.errors import Refused
from heed.models.cells import CELLS, Dropout, Hidden, Layer
from heed.models.recurrent_encoder import RecurrentEncoder, Turn, turned

B, S, X, M, V = 5, 6, 4, 8, 11
LENGTHS = torch.tensor([6, 1, 3, 5, 1])


def encoder(cell: str = "gru", **settings: object) -> RecurrentEncoder:
    torch.manual_seed(0)
    embed = nn.Embedding(V, X)
    return RecurrentEncoder(embed, inputs=X, hidden=M, cell=cell, **settings).double()  # type: ignore[arg-type]


def symbols(T: int = S) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(V, (B, T))


def packed(
    ours: RecurrentEncoder, x: Tensor, cell: str, bidirectional: bool, layers: int
) -> nn.RNNBase:
    """PyTorch's stack with our weights, over packed rows."""
    own = M // 2 if bidirectional else M
    theirs = (
        CELLS[cell].module(X, own, layers, batch_first=True, bidirectional=bidirectional).double()
    )
    for i in range(layers):
        for ends, layer in (("", ours.ahead), ("_reverse", ours.back)):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if len(layer) else ():
                to = theirs.get_parameter(f"{name}_l{i}{ends}")
                to.data.copy_(layer[i].rnn.get_parameter(f"{name}_l0"))
    return theirs


@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_padded_rows_are_read_like_packed_ones(cell: str, bidirectional: bool, layers: int) -> None:
    ours = encoder(cell, bidirectional=bidirectional, layers=layers)
    x = symbols()
    theirs = packed(ours, x, cell, bidirectional, layers)
    rows = pack_padded_sequence(ours.embed(x), LENGTHS, batch_first=True, enforce_sorted=False)
    states, last = theirs(rows)
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=S)
    last = last[0] if cell == "lstm" else last  # layers·directions B H
    last = torch.cat([last[-2], last[-1]], -1) if bidirectional else last[-1]
    read = ours(x, LENGTHS)
    torch.testing.assert_close(read.states, states)
    torch.testing.assert_close(read.last, last)
    seen = torch.randn_like(states)
    (got,) = torch.autograd.grad((read.states * seen).sum(), ours.embed.weight)
    (want,) = torch.autograd.grad((states * seen).sum(), ours.embed.weight)
    torch.testing.assert_close(got, want)


def test_without_lengths_rows_are_full() -> None:
    read, x = encoder(layers=2), symbols()
    torch.testing.assert_close(read(x).states, read(x, torch.full((B,), S)).states)


def test_reversal_is_its_own_inverse_and_so_is_its_gradient() -> None:
    place = turned(LENGTHS, S)
    x = torch.randn(B, S, 2, dtype=torch.double, requires_grad=True)
    once = Turn.apply(x, place)
    for row, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(once[row, :n], x[row, :n].flip(0))
        torch.testing.assert_close(once[row, n:], x[row, n:])
    torch.testing.assert_close(Turn.apply(once, place), x)
    assert torch.autograd.gradcheck(lambda x: Turn.apply(x, place), x)
    assert torch.autograd.gradgradcheck(lambda x: Turn.apply(x, place), x)


def test_nan_in_padding_reaches_no_gradient() -> None:
    torch.manual_seed(0)
    read = RecurrentEncoder(nn.Linear(3, X), inputs=X, hidden=M, layers=2)
    x = torch.randn(B, S, 3)
    clean = read(x, LENGTHS)
    poisoned = x.where(torch.arange(S)[:, None] < LENGTHS[:, None, None], torch.nan)
    got = read(poisoned, LENGTHS)
    assert torch.equal(got.states, clean.states)
    got.states.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in read.parameters())


def test_a_row_of_no_length_is_all_zero() -> None:
    read = encoder()(symbols(), torch.tensor([6, 0, 3, 5, 1]))
    assert not read.states[1].any()
    assert not read.last[1].any()
    assert not read.summary("mean")[1].any()


def test_the_mean_is_over_existing_symbols() -> None:
    read = encoder()(symbols(), LENGTHS)
    for row, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(read.summary("mean")[row], read.states[row, :n].mean(0))


def test_two_directions_cannot_run_step_by_step() -> None:
    with pytest.raises(Refused, match="bidirectional"):
        encoder().begin(B)


def test_variational_dropout_drops_the_same_units_at_every_step() -> None:
    torch.manual_seed(0)
    ones = torch.ones(3, 7, 50)
    same, plain = Dropout(0.4, variational=True)(ones), Dropout(0.4)(ones)
    assert torch.equal(same, same[:, :1].expand_as(same))
    assert not torch.equal(plain, plain[:, :1].expand_as(plain))
    for dropped in (same, plain):
        assert 0.2 < (dropped == 0).float().mean() < 0.6
        torch.testing.assert_close(dropped[dropped != 0].unique(), torch.tensor([1 / 0.6]))
    assert Dropout(0.4).eval()(ones) is ones


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_both_directions_support_torch_func() -> None:
    read, x = encoder(), symbols()
    weights = dict(read.named_parameters())

    def total(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(read, weights, (x, LENGTHS)).states.sin().sum()

    want = torch.autograd.grad(total(weights), list(weights.values()))
    got = torch.func.grad(total)(weights)
    for (name, one), two in zip(got.items(), want, strict=True):
        torch.testing.assert_close(one, two, msg=lambda m, n=name: f"{n}: {m}")
    along = {name: torch.randn_like(weight) for name, weight in weights.items()}
    _, slope = torch.func.jvp(total, (weights,), (along,))
    dots = ((one * two).sum() for one, two in zip(want, along.values(), strict=True))
    torch.testing.assert_close(slope, sum(dots))


HOOKS = ("forward_pre", "forward", "full_backward_pre", "full_backward")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_on_a_layer_are_called(kind: str, cell: str, bidirectional: bool) -> None:
    """In training too, where both directions run together in steps of our own."""
    ours = encoder(cell, bidirectional=bidirectional, layers=2)
    want, x = ours(symbols(), LENGTHS).states.detach(), symbols()
    for path in ("ahead", "back") if bidirectional else ("ahead",):
        for place in (path, f"{path}.1.rnn") if "backward" not in kind else (f"{path}.1",):
            module, heard = ours.get_submodule(place), []
            module = module[0] if isinstance(module, nn.ModuleList) else module
            handle = getattr(module, f"register_{kind}_hook")(lambda *_, h=heard: h.append(1))
            states = ours(x, LENGTHS).states
            states.sum().backward()
            assert heard == [1], place
            torch.testing.assert_close(states.detach(), want)
            if "backward" not in kind:
                with torch.no_grad():
                    ours.eval()(x, LENGTHS)
                assert heard == [1, 1], place
            handle.remove()


def test_a_layer_of_your_own_is_called() -> None:
    class Twice(Layer):
        def forward(self, x: Tensor, hidden: Hidden | None = None) -> Tensor:
            return 2 * super().forward(x, hidden)

    ours, x = encoder(), symbols()
    want = ours(x, LENGTHS).states
    ours.back[0].__class__ = Twice
    got = ours(x, LENGTHS).states
    with heed.kernels.off("single"):
        torch.testing.assert_close(got, ours(x, LENGTHS).states)
    torch.testing.assert_close(got[..., M // 2 :], 2 * want[..., M // 2 :])


def test_reversal_supports_vmap() -> None:
    place, x = turned(LENGTHS, S), torch.randn(3, B, S, 2)
    got = torch.func.vmap(lambda x: Turn.apply(x, place))(x)
    torch.testing.assert_close(got, torch.stack([Turn.apply(one, place) for one in x]))
