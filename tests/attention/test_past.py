"""Pasts compared with naive loops: what earlier weights add to the energies, step by step."""

import math

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.past import Coverage
from heed.attention.score import Additive
from heed.errors import Refused

B, T, S, M = 2, 4, 6, 3
CUTS = [[T], [1, 3], [1] * T]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(B, n, M).double() for n in (T, S, S))  # type: ignore[return-value]


def plain_energy(attend: heed.Attention, q: Tensor, k: Tensor, hint: Tensor) -> Tensor:
    """One row: the hint is inside the tanh for additive, added for dot.    M, S M, S D -> S"""
    score = attend.mechanism.score
    if isinstance(score, Additive):
        query = score.query_weight[0] @ q
        keys = [score.key_weight[0] @ k[s] for s in range(len(k))]
        return torch.stack(
            [score.score_vector[0] @ torch.tanh(query + keys[s] + hint[s]) for s in range(len(k))]
        )
    return torch.stack([q @ k[s] + hint[s, 0] for s in range(len(k))])


def asked_in_cuts(attend: heed.Attention, q: Tensor, memory: heed.Memory, cuts: list[int]) -> list:
    """The record of queries in pieces, with the state passed on."""
    state, records = None, []
    for part in q.split(cuts, 1):
        records.append(attend(part, memory, state, need="energy"))
        state = records[-1].state
    return records


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("score", ["additive", "dot"])
def test_coverage_and_its_loss_equal_a_loop(score: str, cuts: list[int]) -> None:
    attend = heed.Attention(f"coverage/{score}", query=M, key=M).double()
    w = attend.mechanism.past.weight[0]  # hint
    assert len(w) == (M if score == "additive" else 1)
    q, k, v = inputs()
    n = [S, S - 2]
    records = asked_in_cuts(attend, q, attend.remember(k, v, heed.lengths(n)), cuts)
    weight, energy, penalty, context = (
        torch.cat([getattr(r, name) for r in records], axis)
        for name, axis in (("weight", 2), ("energy", 2), ("penalty", 2), ("context", 1))
    )
    for b in range(B):
        covered = torch.zeros(n[b]).double()
        for t in range(T):
            e = plain_energy(attend, q[b, t], k[b, : n[b]], covered[:, None] * w)
            a = e.softmax(-1)
            torch.testing.assert_close(energy[b, 0, t, : n[b]], e)
            torch.testing.assert_close(weight[b, 0, t, : n[b]], a)
            torch.testing.assert_close(context[b, t], a @ v[b, : n[b]])
            pairs = zip(a.tolist(), covered.tolist(), strict=True)
            loss = sum(min(now, before) for now, before in pairs)
            assert penalty[b, 0, t].item() == pytest.approx(loss)
            covered = covered + a
        torch.testing.assert_close(records[-1].state.slots["coverage"][b, 0, : n[b]], covered)
    assert (penalty[:, :, 0] == 0).all()


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("score", ["additive", "dot"])
def test_location_aware_equals_a_loop(score: str, cuts: list[int]) -> None:
    attend = heed.Attention(
        f"location-aware/{score}", query=M, key=M, channels=2, kernel=3
    ).double()
    past = attend.mechanism.past
    q, k, v = inputs()
    records = asked_in_cuts(attend, q, attend.remember(k, v), cuts)
    weight = torch.cat([r.weight for r in records], 2)
    for b in range(B):
        before = [0.0] * S
        for t in range(T):
            # f_s = F ∗ a_{t−1}: taps at s − 1, s, s + 1, nothing beyond the ends
            found = torch.zeros(S, 2).double()
            for s in range(S):
                for c in range(2):
                    for tap in range(3):
                        if 0 <= s + tap - 1 < S:
                            found[s, c] += past.filters[c, 0, tap].item() * before[s + tap - 1]
            a = plain_energy(attend, q[b, t], k[b], found @ past.weight[0].T).softmax(-1)
            torch.testing.assert_close(weight[b, 0, t], a)
            before = a.tolist()
    assert records[-1].penalty is None


def test_an_even_kernel_size_is_refused() -> None:
    with pytest.raises(Refused, match="kernel must be odd, not 4"):
        heed.Attention("location-aware", query=M, kernel=4)


@pytest.mark.parametrize("name", ["coverage/additive", "location-aware/dot"])
def test_keys_added_to_a_memory_count_as_unseen(name: str) -> None:
    """Two steps over four keys, then two over six: as if the last two had been hidden at first."""
    attend = heed.Attention(name, query=M, key=M).double()
    q, k, v = inputs()
    memory = attend.remember(k[:, :4], v[:, :4])
    first = attend(q[:, :2], memory, heed.State(), need="weight")
    memory = memory.extend(k[:, 4:], v[:, 4:])
    then = attend(q[:, 2:], memory, first.state, need="weight")
    late = torch.ones(T, S, dtype=torch.bool)
    late[:2, 4:] = False
    whole = attend(q, attend.remember(k, v), heed.State(), visible=late, need="weight")
    torch.testing.assert_close(then.weight, whole.weight[:, :, 2:])
    torch.testing.assert_close(then.context, whole.context[:, 2:])
    past = name.split("/")[0]
    torch.testing.assert_close(then.state.slots[past], whole.state.slots[past])


def test_the_state_follows_its_beams() -> None:
    attend = heed.Attention("coverage/dot", query=M).double()
    q, k, v = inputs()
    memory = attend.remember(k, v)
    state = attend(q[:, :2], memory, need="weight").state
    rows = torch.tensor([1, 1, 0])
    picked = attend(q[rows, 2:], memory.select(rows), state.select(rows), need="weight")
    straight = attend(q[:, 2:], memory, state, need="weight")
    torch.testing.assert_close(picked.weight, straight.weight[rows])
    torch.testing.assert_close(picked.penalty, straight.penalty[rows])
    doubled = attend(
        q[:, 2:].repeat_interleave(2, 0), memory.repeat(2), state.repeat(2), need="weight"
    )
    torch.testing.assert_close(doubled.weight, straight.weight.repeat_interleave(2, 0))


def test_coverage_sums_the_weights_that_were_read() -> None:
    """In local-p the Gaussian is part of the weight, and therefore of the coverage."""
    attend = heed.Attention("coverage/dot/local-p", query=M, window=2).double()
    q, k, v = inputs()
    seen = attend(q, attend.remember(k, v), need="weight")
    torch.testing.assert_close(seen.state.slots["coverage"], seen.weight.sum(2))


def test_gradients_flow_through_the_steps() -> None:
    """A loss on the last step only has a gradient at the first query."""
    attend = heed.Attention("coverage/additive", query=M).double()
    q, k, v = inputs()
    q.requires_grad_()
    last = attend(q, attend.remember(k, v)).context[:, -1].square().sum()
    (back,) = torch.autograd.grad(last, q)
    assert back[:, 0].abs().max() > 1e-8
    step = 1e-6

    def again(nudge: float) -> float:
        moved = q.detach().clone()
        moved[0, 0, 0] += nudge
        return attend(moved, attend.remember(k, v)).context[:, -1].square().sum().item()

    numeric = (again(step) - again(-step)) / (2 * step)
    assert math.isclose(back[0, 0, 0].item(), numeric, rel_tol=1e-4, abs_tol=1e-9)


def test_a_hint_of_the_wrong_width_is_refused() -> None:
    score = heed.Attention("additive", query=M, width=5).mechanism.score
    with pytest.raises(Refused, match=r"1 wide; additive takes 5.*hint_width=5"):
        heed.Mechanism(score=score, past=Coverage())
