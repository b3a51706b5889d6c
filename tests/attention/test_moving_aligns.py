"""Aligns that move, compared with the loops of Raffel 2017, Zhang 2018 and Graves 2013."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import heed
from heed.attention import align, moving_aligns
from tests.attention.aligning import WIDTH, made, queries, table

WALKS = ("forward", "forced-forward", "monotonic")


def naive_soft_monotonic(chance: Tensor) -> Tensor:
    """Raffel 2017 eq. 8: α_ij = p_ij Σ_k α_{i−1,k} Π_{l=k}^{j−1} (1 − p_il), as loops.    T S"""
    T, S = chance.shape
    before = [1.0] + [0.0] * (S - 1)
    rows = []
    for t in range(T):
        p = chance[t].tolist()
        row = []
        for j in range(S):
            total = 0.0
            for k in range(j + 1):
                passed = 1.0
                for l in range(k, j):
                    passed *= 1 - p[l]
                total += before[k] * passed
            row.append(p[j] * total)
        rows.append(row)
        before = row
    return torch.tensor(rows, dtype=torch.float64)


def naive_hard_monotonic(energy: Tensor) -> Tensor:
    """Raffel 2017 Algorithm 1: go on from the last stop; past the end, nothing.    T S"""
    T, S = energy.shape
    weight, stand = torch.zeros(T, S).double(), 0
    for t in range(T):
        while stand < S and energy[t, stand] <= 0:
            stand += 1
        if stand == S:
            break
        weight[t, stand] = 1
    return weight


def each_row(naive: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a naive T S function over B and H."""
    B, H = tensors[0].shape[:2]
    rows = [[naive(*(x[b, h] for x in tensors)) for h in range(H)] for b in range(B)]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_monotonic_equals_raffels_expectation(masked: bool) -> None:
    part = made("monotonic", noise=0.0, offset=-0.5).train()
    with torch.no_grad():
        part.scale.fill_(1.5)
    energy = torch.randn(2, 2, 5, 7).double()
    ok = table(2, 2, 5, 7) if masked else None
    chance = torch.sigmoid(1.5 * energy - 0.5)
    chance = chance if ok is None else chance * ok
    weight = part(energy, ok, None, queries(2, 2, 5)).weight
    torch.testing.assert_close(weight, each_row(naive_soft_monotonic, chance))
    assert (weight.sum(-1) < 1).all()


def test_monotonic_decodes_by_raffels_algorithm() -> None:
    part = made("monotonic", offset=0.0).eval()
    energy = torch.randn(3, 2, 5, 9).double() - 0.7
    weight = part(energy, None, None, queries(3, 2, 5)).weight
    expected = each_row(naive_hard_monotonic, energy)
    assert torch.equal(weight, expected)
    assert 0 < expected.sum() < expected[..., 0].numel()  # some stopped, some ran past the end


def test_monotonic_adds_noise_in_training_only() -> None:
    part = made("monotonic", noise=2.0)
    energy, query = torch.randn(1, 1, 3, 5).double(), queries(1, 1, 3)
    part.train()
    assert not torch.equal(*(part(energy, None, None, query).weight for _ in range(2)))
    part.eval()
    assert torch.equal(*(part(energy, None, None, query).weight for _ in range(2)))


def naive_forward(energy: Tensor, move: Tensor) -> Tensor:
    """Zhang 2018 Algorithms 1 and 2, with y_t = softmax(e_t).    T S, T -> T S"""
    T, S = energy.shape
    before = [1.0] + [0.0] * (S - 1)
    rows = []
    for t in range(T):
        y, u = energy[t].softmax(-1).tolist(), move[t].item()
        row = [((1 - u) * before[s] + u * (before[s - 1] if s else 0.0)) * y[s] for s in range(S)]
        before = [x / sum(row) for x in row]
        rows.append(before)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("agent", [False, True], ids=["equal", "agent"])
def test_forward_equals_zhangs_recurrence(agent: bool) -> None:
    part = made("forward", agent=agent)
    energy, query = torch.randn(2, 1, 5, 7).double() * 2, queries(2, 1, 5)
    # Without an agent, staying and advancing are equally likely; halving both changes nothing.
    move = torch.sigmoid(query @ part.agent[0, 0]) if agent else torch.full((2, 1, 5), 0.5)
    weight = part(energy, None, None, query).weight
    torch.testing.assert_close(weight, each_row(naive_forward, energy, move))
    assert (weight.triu(diagonal=2) == 0).all()  # at most one key per step
    assert (weight.triu(diagonal=1).diagonal(offset=1, dim1=-2, dim2=-1) > 0).all()


def naive_forced(energy: Tensor) -> Tensor:
    """α_t(s) ∝ a_t(s)·(1 − min(1, cov_t(s)))·Σ_{s'≤s} α_{t−1}(s'); all are open at first.    T S"""
    T, S = energy.shape
    reached, covered = [1.0] * S, [0.0] * S
    rows = []
    for t in range(T):
        a = energy[t].softmax(-1).tolist()
        row = [a[s] * max(1 - covered[s], 1e-6) * reached[s] for s in range(S)]
        row = [x / sum(row) for x in row]
        covered = [c + x for c, x in zip(covered, row, strict=True)]
        reached = [sum(row[: s + 1]) for s in range(S)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_forced_forward_equals_its_rule() -> None:
    energy = torch.randn(2, 2, 6, 5).double() * 3
    weight = made("forced-forward")(energy, None, None, queries(2, 2, 6)).weight
    torch.testing.assert_close(weight, each_row(naive_forced, energy))


def test_forced_forward_moves_on_and_stays_at_the_end() -> None:
    """Energies that prefer the first key are forced onwards; the last key is held for a while."""
    energy = torch.tensor([9.0, 6.0, 3.0, 0.0]).double().expand(1, 1, 6, 4)
    weight = made("forced-forward")(energy, None, None, queries(1, 1, 6)).weight[0, 0]
    assert weight.argmax(-1)[[0, 2, 3, 4, 5]].tolist() == [0, 1, 2, 3, 3]
    mean = weight @ torch.arange(4).double()
    assert (mean.diff()[:4] > 0.4).all()
    assert mean[5] > 2.99


def test_forced_forward_has_finite_gradients_when_all_keys_are_used() -> None:
    q, k, v = (torch.randn(64, 1, 256, 128).requires_grad_() for _ in range(3))
    context = heed.attend(q, k, v, "forced-forward").context
    (context * torch.randn_like(context)).sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert q.grad.abs().max() > 0


def test_a_very_small_prior_has_weight_but_no_gradient() -> None:
    prior = torch.tensor([1.0, 1e-35]).requires_grad_()
    weight = align.weighed(torch.tensor([0.0, 90.0]), prior, None)
    weight[1].backward()
    assert weight[1] > 0.99
    assert prior.grad is not None
    assert prior.grad[0] != 0
    assert prior.grad[1] == 0


def test_mixture_window_equals_graves_window() -> None:
    part = made("mixture-window", components=2)
    with torch.no_grad():
        part.bias.normal_()
    B, T, S = 2, 4, 6
    query = queries(B, 1, T)
    expected = torch.zeros(B, 1, T, S).double()
    for b in range(B):
        kappa = [0.0, 0.0]
        for t in range(T):
            numbers = (part.weight[0] @ query[b, 0, t] + part.bias[0, 0]).tolist()
            alpha, beta, step = ([math.exp(x) for x in numbers[i : i + 2]] for i in (0, 2, 4))
            kappa = [k + x for k, x in zip(kappa, step, strict=True)]
            for u in range(1, S + 1):  # Graves counts positions from 1
                expected[b, 0, t, u - 1] = sum(
                    a * math.exp(-w * (k - u) ** 2)
                    for a, w, k in zip(alpha, beta, kappa, strict=True)
                )
    energy = torch.zeros(B, 1, T, S).double()
    at_once = part(energy, None, None, query)
    torch.testing.assert_close(at_once.weight, expected)
    before, rows = None, []
    for t in range(T):
        aligned = part(energy[:, :, :1], None, before, query[:, :, t : t + 1])
        before = aligned.after
        rows.append(aligned.weight)
    torch.testing.assert_close(torch.cat(rows, 2), expected)


@pytest.mark.parametrize("name", WALKS)
def test_walks_continue_from_their_state_in_a_memory_that_grew(name: str) -> None:
    part = made(name).eval() if name == "monotonic" else made(name)
    energy, query = torch.randn(2, 1, 5, 6).double(), queries(2, 1, 5)
    whole = part(energy, None, None, query).weight
    first = part(energy[:, :, :2], None, None, query[:, :, :2])
    then = part(energy[:, :, 2:], None, first.after, query[:, :, 2:]).weight
    torch.testing.assert_close(torch.cat([first.weight, then], 2), whole)
    hidden = torch.ones(2, 1, 5, 6, dtype=torch.bool)
    hidden[:, :, :2, 4:] = False  # the last two keys arrive after the second step
    early = part(energy[:, :, :2, :4], None, None, query[:, :, :2])
    late = part(energy[:, :, 2:], None, early.after, query[:, :, 2:]).weight
    torch.testing.assert_close(late, part(energy, hidden, None, query).weight[:, :, 2:])


@pytest.mark.parametrize("S", [1, 2, 3, 8, 13])
def test_scan_equals_its_loop(S: int) -> None:
    keep, gain = torch.rand(3, S).double(), torch.randn(3, S).double()
    x, rows = torch.zeros(3).double(), []
    for j in range(S):
        x = keep[:, j] * x + gain[:, j]
        rows.append(x)
    torch.testing.assert_close(moving_aligns.scan(keep, gain), torch.stack(rows, -1))


def test_the_closed_form_of_the_paper_is_inexact_where_the_scan_is_exact() -> None:
    """α = p·cumprod(1 − p)·cumsum(α' / cumprod(1 − p)) divides by numbers that underflow."""
    S = 100
    chance, before = torch.rand(S), torch.zeros(S)
    before[-20:] = 1 / 20
    exact = torch.zeros(S).double()
    stand = 0.0
    for j in range(S):
        stand = stand * (1 - chance[j - 1].item() if j else 0.0) + before[j].item()
        exact[j] = chance[j].item() * stand
    passed = torch.cat([torch.ones(1), (1 - chance)[:-1]]).cumprod(0)
    closed = chance * passed * (before / passed.clamp(1e-10, 1)).cumsum(0)
    ours = moving_aligns.monotonic_step(chance, before)
    assert (ours - exact).abs().max() < 1e-6
    assert (closed - exact).abs().max() > 0.03  # nearly all of the weight
    assert closed.sum() < 0.01 < 0.9 < exact.sum()


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e30])
def test_extreme_queries_leave_the_mixture_window_finite(size: float) -> None:
    part = made("mixture-window").float()
    query = (torch.randn(20, 1, 9, WIDTH) * size).requires_grad_()
    weight = part(torch.zeros(20, 1, 9, 7), None, None, query).weight
    assert weight.isfinite().all()
    (back,) = torch.autograd.grad((weight * torch.randn_like(weight)).sum(), query)
    assert back.isfinite().all()


@pytest.mark.parametrize("name", WALKS)
def test_walks_begin_at_the_first_visible_key(name: str) -> None:
    part = made(name).eval()
    energy, query = torch.randn(2, 1, 4, 5).double() + 3, queries(2, 1, 4)
    ok = torch.ones(2, 1, 4, 8, dtype=torch.bool)
    ok[..., :3] = False  # padding on the left
    padded = part(torch.cat([torch.randn(2, 1, 4, 3).double(), energy], -1), ok, None, query)
    alone = part(energy, None, None, query)
    torch.testing.assert_close(padded.weight[..., 3:], alone.weight)
    assert padded.weight[..., :3].eq(0).all()
    assert padded.weight.sum() > 0


@pytest.mark.parametrize("name", WALKS)
def test_a_step_that_sees_nothing_does_not_move(name: str) -> None:
    part = made(name).eval()
    energy, query = torch.randn(1, 1, 5, 6).double() + 3, queries(1, 1, 5)
    ok = torch.ones(1, 1, 5, 6, dtype=torch.bool)
    ok[:, :, 2] = False
    weight = part(energy, ok, None, query).weight
    others = [0, 1, 3, 4]
    assert weight[:, :, 2].eq(0).all()
    torch.testing.assert_close(
        weight[:, :, others], part(energy[:, :, others], None, None, query[:, :, others]).weight
    )
    assert weight[:, :, 3].sum() > 0


@pytest.mark.parametrize("name", ["coverage/additive", *WALKS])
def test_a_state_survives_a_truncated_memory(name: str) -> None:
    attend = heed.Attention(name, query=WIDTH, key=WIDTH).eval()
    memory = attend.remember(torch.randn(2, 6, WIDTH))
    state = attend(torch.randn(2, 1, WIDTH), memory).state
    seen = attend(torch.randn(2, 1, WIDTH), memory.truncate(4), state, need="weight")
    assert seen.weight.shape == (2, 1, 1, 4)
    assert seen.weight.isfinite().all()


@pytest.mark.parametrize("name", ["forward", "forced-forward"])
def test_an_alignment_waits_while_all_visible_keys_are_behind_it(name: str) -> None:
    part = made(name).eval()
    ok = torch.ones(1, 1, 4, 6, dtype=torch.bool)
    ok[:, :, 0, :3] = False  # begins at the fourth key,
    ok[:, :, 1:3, 3:] = False  # sees only keys behind it,
    weight = part(torch.zeros(1, 1, 4, 6).double(), ok, None, queries(1, 1, 4)).weight[0, 0]
    assert weight[0, :3].sum() == 0
    assert weight[1:3].sum() == 0
    assert weight[3].sum().item() == pytest.approx(1)  # and goes on when keys ahead are seen again
    assert weight[3, :3].sum() == 0


def test_forward_skips_hidden_keys() -> None:
    part = made("forward").eval()
    ok = torch.ones(1, 1, 20, 6, dtype=torch.bool)
    ok[..., 3] = False
    weight = part(torch.zeros(1, 1, 20, 6).double(), ok, None, queries(1, 1, 20)).weight[0, 0]
    without = part(torch.zeros(1, 1, 20, 5).double(), None, None, queries(1, 1, 20)).weight[0, 0]
    torch.testing.assert_close(weight[:, [0, 1, 2, 4, 5]], without)
