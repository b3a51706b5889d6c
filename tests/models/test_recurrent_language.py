"""Steps, prompts of different lengths and the whole pass agree with each other and with PyTorch."""

import pytest
import torch
from torch import nn

from heed.decoding import greedy
from heed.models.recurrent_language import RecurrentLanguageSettings, build

V = 11


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
@pytest.mark.parametrize("layers", [1, 3])
def test_steps_and_the_whole_pass_agree(cell: str, layers: int) -> None:
    model = build(
        RecurrentLanguageSettings(cell=cell, layers=layers, embedding=5, hidden=7), symbols=V
    ).eval()
    text = torch.randint(V, (3, 9))
    whole = model(text).logits
    for prompt in (0, 4):
        carry = model.begin(text[:, :prompt])
        for t in range(prompt, 9):
            step = model.step(carry, text[:, t])
            carry = step.carry
            torch.testing.assert_close(step.logits, whole[:, t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", ["behind", "in front"])
def test_prompts_are_padded_behind_or_in_front(side: str) -> None:
    model = build(RecurrentLanguageSettings(embedding=5, hidden=7), symbols=V).eval()
    prompts = [[3, 4, 5], [], [6]]
    if side == "behind":
        rows = torch.tensor([p + [0] * (3 - len(p)) for p in prompts])
        carry = model.begin(rows, lengths=[3, 0, 1])
    else:
        rows = torch.tensor([[0] * (3 - len(p)) + p for p in prompts])
        carry = model.begin(rows, first=[0, 3, 2])
    carry = model.select(carry, torch.tensor([2, 0, 1]))
    found = model.step(carry, torch.tensor([1, 2, 3])).logits
    for row, (prompt, symbol) in enumerate([([6], 1), ([3, 4, 5], 2), ([], 3)]):
        alone = model(torch.tensor([[*prompt, symbol]])).logits[0, -1]
        torch.testing.assert_close(found[row], alone, rtol=1e-5, atol=1e-6)


def test_the_numbers_equal_torchs() -> None:
    model = build(RecurrentLanguageSettings(layers=2, embedding=5, hidden=7), symbols=V).eval()
    theirs = nn.LSTM(5, 7, 2, batch_first=True)
    for i, layer in enumerate(model.encoder.ahead):
        for name, weight in layer.rnn.named_parameters():
            getattr(theirs, name.replace("_l0", f"_l{i}")).data.copy_(weight)
    text = torch.randint(V, (2, 6))
    states, _ = theirs(model.encoder.embed(text))
    torch.testing.assert_close(model(text).logits, model.out(states))


def test_tied_weights_are_one_tensor() -> None:
    settings = RecurrentLanguageSettings(embedding=7, hidden=7, tied=True)
    model = build(settings, symbols=V)
    assert model.out.weight is model.encoder.embed.weight
    assert model(torch.zeros(1, 1, dtype=torch.long)).logits.detach().std() < 1


def test_a_language_model_learns_to_count() -> None:
    torch.manual_seed(0)
    model = build(
        RecurrentLanguageSettings(cell="gru", embedding=8, hidden=16, layers=1), symbols=5
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    text = (torch.arange(12) + torch.arange(5)[:, None]) % 5
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(text[:, :-1]).logits.mT, text[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1
    (found,) = greedy(model, model.begin(torch.zeros(1, 0).long()), 1, begin=2, end=1, longest=9)
    assert found.symbols == [3, 4, 0]
