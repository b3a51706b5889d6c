"""Aligns against independent sources: torch, the entmax package, the papers' loops."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import entmax as published
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

import heed
from heed.attention import align
from heed.attention.catalogue import CATALOGUE

WALKS = ("forward", "forced-forward", "monotonic")
ALIGNS = [name for name, entry in CATALOGUE.items() if entry.slot == "align"]
WIDTH = 3


def made(name: str, **options: object) -> align.Align:
    """The align that goes by a name, in double precision."""
    built = heed.Attention(name, query=WIDTH, key=WIDTH, **options)
    return built.mechanism.align.double()


def queries(B: int, H: int, T: int) -> Tensor:
    return torch.randn(B, H, T, WIDTH, dtype=torch.float64)


def table(*shape: int, chance: float = 0.7) -> Tensor:
    """Who is visible; every row sees its first place."""
    ok = torch.rand(shape) < chance
    ok[..., 0] = True
    return ok


def test_softmax_is_torchs() -> None:
    energy = torch.randn(2, 3, 4, 5).double()
    torch.testing.assert_close(align.softmax(energy), energy.softmax(-1), rtol=0, atol=0)
    ok = table(2, 3, 4, 5)
    masked = energy.masked_fill(~ok, -torch.inf).softmax(-1)
    torch.testing.assert_close(align.softmax(energy, ok), masked, rtol=1e-15, atol=0)


SPARSE: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "sparsemax": (align.sparsemax, published.sparsemax),
    "entmax": (align.entmax, published.entmax15),
}


def by_row(theirs: Callable[..., Tensor], energy: Tensor, ok: Tensor) -> Tensor:
    """The published function on the visible places of each row alone."""
    rows = []
    for e, seen in zip(energy.flatten(0, -2), ok.flatten(0, -2), strict=True):
        weight = torch.zeros_like(e)
        rows.append(weight.masked_scatter(seen, theirs(e[seen], dim=-1)))
    return torch.stack(rows).view_as(energy)


def compare_sparse(name: str, energy: Tensor, ok: Tensor | None) -> None:
    """Values and gradients of ours and of the published function, in double precision."""
    ours, theirs = SPARSE[name]
    energy = energy.double().requires_grad_()
    mine = ours(energy, ok)
    seen = torch.ones_like(energy, dtype=torch.bool) if ok is None else ok
    other = by_row(theirs, energy, seen)
    torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    probe = torch.randn_like(energy)
    mine_back, other_back = (
        torch.autograd.grad((x * probe).sum(), energy)[0] for x in (mine, other)
    )
    torch.testing.assert_close(mine_back, other_back, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_aligns_are_the_published_ones(name: str, scale: float, masked: bool) -> None:
    energy = torch.randn(2, 2, 6, 9) * scale
    compare_sparse(name, energy, table(2, 2, 6, 9) if masked else None)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_aligns_with_ties_are_the_published_ones(name: str) -> None:
    compare_sparse(name, torch.randint(-2, 3, (4, 2, 8, 7)), None)
    compare_sparse(name, torch.zeros(1, 1, 1, 5), None)
    compare_sparse(name, torch.tensor([[[[1e4, 1e4, -1e4]]]]), None)
    compare_sparse(name, torch.randint(-2, 3, (4, 2, 8, 7)), table(4, 2, 8, 7))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_aligns_keep_their_digits_in_float32(name: str) -> None:
    ours, theirs = SPARSE[name]
    for offset, S in ((0.0, 7), (1e4, 7), (-1e4, 7), (0.0, 3000)):
        energy = torch.randn(5, S) + offset
        exact = theirs(energy.double(), dim=-1)
        torch.testing.assert_close(ours(energy).double(), exact, rtol=1e-5, atol=1e-6)
        assert (ours(energy) == 0).any() == (exact == 0).any()


def test_sparsemax_and_entmax_by_hand() -> None:
    energy = torch.tensor([0.6, 0.4, -1.0])
    assert align.sparsemax(energy).tolist() == pytest.approx([0.6, 0.4, 0.0])
    # τ with (0.6/2 − τ)² + (0.4/2 − τ)² = 1, the third place beyond it
    tau = 0.25 - math.sqrt((1 - 2 * 0.05**2) / 2)
    expected = [(0.3 - tau) ** 2, (0.2 - tau) ** 2, 0.0]
    assert align.entmax(energy).tolist() == pytest.approx(expected)


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
    """A naive T S function over B and H."""
    B, H = tensors[0].shape[:2]
    rows = [[naive(*(x[b, h] for x in tensors)) for h in range(H)] for b in range(B)]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_monotonic_expects_what_raffels_sum_says(masked: bool) -> None:
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


def test_monotonic_noise_is_for_training_alone() -> None:
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
def test_forward_is_zhangs_recurrence(agent: bool) -> None:
    part = made("forward", agent=agent)
    energy, query = torch.randn(2, 1, 5, 7).double() * 2, queries(2, 1, 5)
    # Without an agent staying and advancing count alike; halving both changes nothing.
    move = torch.sigmoid(query @ part.agent[0, 0]) if agent else torch.full((2, 1, 5), 0.5)
    weight = part(energy, None, None, query).weight
    torch.testing.assert_close(weight, each_row(naive_forward, energy, move))
    assert (weight.triu(diagonal=2) == 0).all()  # at most one place a step
    assert (weight.triu(diagonal=1).diagonal(offset=1, dim1=-2, dim2=-1) > 0).all()


def naive_forced(energy: Tensor) -> Tensor:
    """α_t(s) ∝ a_t(s)·(1 − min(1, cov_t(s)))·Σ_{s'≤s} α_{t−1}(s'); all open at first.    T S"""
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


def test_forced_forward_is_its_rule() -> None:
    energy = torch.randn(2, 2, 6, 5).double() * 3
    weight = made("forced-forward")(energy, None, None, queries(2, 2, 6)).weight
    torch.testing.assert_close(weight, each_row(naive_forced, energy))


def test_forced_forward_moves_on_and_holds_the_end() -> None:
    """Energies that love the first place are forced onwards; the last place is held for a while."""
    energy = torch.tensor([9.0, 6.0, 3.0, 0.0]).double().expand(1, 1, 6, 4)
    weight = made("forced-forward")(energy, None, None, queries(1, 1, 6)).weight[0, 0]
    assert weight.argmax(-1)[[0, 2, 3, 4, 5]].tolist() == [0, 1, 2, 3, 3]
    mean = weight @ torch.arange(4).double()
    assert (mean.diff()[:4] > 0.4).all()
    assert mean[5] > 2.99


def test_mixture_window_is_graves_window() -> None:
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
            for s in range(S):
                expected[b, 0, t, s] = sum(
                    a * math.exp(-w * (k - s) ** 2)
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
def test_walks_go_on_from_the_slot_and_into_a_grown_memory(name: str) -> None:
    part = made(name).eval() if name == "monotonic" else made(name)
    energy, query = torch.randn(2, 1, 5, 6).double(), queries(2, 1, 5)
    whole = part(energy, None, None, query).weight
    first = part(energy[:, :, :2], None, None, query[:, :, :2])
    then = part(energy[:, :, 2:], None, first.after, query[:, :, 2:]).weight
    torch.testing.assert_close(torch.cat([first.weight, then], 2), whole)
    hidden = torch.ones(2, 1, 5, 6, dtype=torch.bool)
    hidden[:, :, :2, 4:] = False  # the last two places arrive after the second step
    early = part(energy[:, :, :2, :4], None, None, query[:, :, :2])
    late = part(energy[:, :, 2:], None, early.after, query[:, :, 2:]).weight
    torch.testing.assert_close(late, part(energy, hidden, None, query).weight[:, :, 2:])


@pytest.mark.parametrize("S", [1, 2, 3, 8, 13])
def test_scan_is_its_loop(S: int) -> None:
    keep, gain = torch.rand(3, S).double(), torch.randn(3, S).double()
    x, rows = torch.zeros(3).double(), []
    for j in range(S):
        x = keep[:, j] * x + gain[:, j]
        rows.append(x)
    torch.testing.assert_close(align.scan(keep, gain), torch.stack(rows, -1))


def test_the_papers_closed_form_is_inexact_where_the_scan_is_not() -> None:
    """α = p·cumprod(1 − p)·cumsum(α' / cumprod(1 − p)) divides by what has underflowed."""
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
    ours = align.monotonic_step(chance, before)
    assert (ours - exact).abs().max() < 1e-6
    assert (closed - exact).abs().max() > 0.03  # nearly all that there is to see
    assert closed.sum() < 0.01 < 0.9 < exact.sum()


def test_sample_draws_from_the_softmax() -> None:
    N, energy = 20_000, torch.tensor([1.0, 0.0, -1.0, 2.0, 5.0])
    ok = torch.tensor([True, True, True, True, False])
    part = align.Sample().train()
    aligned = part(energy.expand(1, 1, N, 5), ok.view(1, 1, 1, 5), None, torch.zeros(1, 1, N, 1))
    assert aligned.weight.sum(-1).eq(1).all()
    expected = energy[:4].softmax(-1).double()
    drawn = aligned.weight[0, 0].sum(0)
    assert drawn[4] == 0
    assert chisquare(drawn[:4].double(), N * expected / expected.sum()).pvalue > 1e-3
    log_prob = (aligned.weight[0, 0, :, :4] @ expected.float().log()).view(1, 1, N)
    torch.testing.assert_close(aligned.log_prob, log_prob)
    entropy = -(expected * expected.log()).sum().item()
    assert aligned.entropy.flatten()[0].item() == pytest.approx(entropy, rel=1e-5)


def test_sample_of_several_never_draws_one_twice() -> None:
    N, S = 20_000, 4
    energy = torch.tensor([1.0, 0.0, -1.0, 0.5])
    part = align.Sample(count=2).train()
    weight = part(energy.expand(1, 1, N, S), None, None, torch.zeros(1, 1, N, 1)).weight[0, 0]
    assert ((weight == 0.5).sum(-1) == 2).all()
    assert ((weight == 0).sum(-1) == S - 2).all()
    pairs = Counter(tuple(row) for row in weight.nonzero()[:, 1].view(N, 2).tolist())
    p = energy.double().softmax(-1).tolist()
    expected: Counter[tuple[int, ...]] = Counter()
    for i, j in permutations(range(S), 2):
        expected[tuple(sorted((i, j)))] += N * p[i] * p[j] / (1 - p[i])
    observed = [pairs[pair] for pair in expected]
    assert chisquare(observed, list(expected.values())).pvalue > 1e-3


def test_sample_evaluates_by_the_best() -> None:
    energy = torch.tensor([0.0, 3.0, 1.0, 9.0]).view(1, 1, 1, 4)
    ok = torch.tensor([True, True, True, False]).view(1, 1, 1, 4)
    query = torch.zeros(1, 1, 1, 1)
    one = align.Sample().eval()(energy, ok, None, query)
    assert one.weight.flatten().tolist() == [0, 1, 0, 0]
    two = align.Sample(count=2).eval()(energy, ok, None, query)
    assert two.weight.flatten().tolist() == [0, 0.5, 0.5, 0]
    few = align.Sample(count=4).eval()(energy, ok, None, query)
    assert few.weight.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_sample_mixes_in_the_expected_weights_by_row() -> None:
    energy = torch.randn(400, 1, 2, 5)
    aligned = align.Sample(soft=0.25).train()(energy, None, None, torch.zeros(400, 1, 2, 1))
    soft = (aligned.weight == energy.softmax(-1)).flatten(1).all(-1)
    assert 60 < soft.sum() < 140
    assert aligned.weight[~soft].max(-1).values.eq(1).all()
    assert aligned.log_prob[soft].eq(0).all()
    assert aligned.log_prob[~soft].lt(0).all()


def test_log_choice_by_hand() -> None:
    soft = torch.tensor([[0.5, 0.3, 0.2]]).double().requires_grad_()
    chosen = torch.tensor([[1, 0]])
    expected = math.log(0.3) + math.log(0.5 / 0.7)
    choice = align.log_choice(soft, chosen)
    assert choice.item() == pytest.approx(expected)
    (back,) = torch.autograd.grad(choice.sum(), soft)
    assert back[0].tolist() == pytest.approx([1 / 0.5, 1 / 0.3 + 1 / 0.7, 0])
    every = [align.log_choice(soft, torch.tensor([o])).exp() for o in permutations(range(3), 2)]
    assert sum(every).item() == pytest.approx(1)
    # The last of all is drawn for certain; a place that cannot be drawn counts nothing.
    whole = align.log_choice(soft, torch.tensor([[1, 0, 2]]))
    assert whole.item() == pytest.approx(expected)
    certain = torch.tensor([[1.0, 0.0]]).double()
    assert align.log_choice(certain, torch.tensor([[0, 1]])).item() == 0


def test_gumbel_draws_from_the_softmax_and_learns_from_its_soft_twin() -> None:
    N, S, temperature = 20_000, 4, 0.7
    energy = torch.tensor([1.0, 0.0, -1.0, 0.5]).expand(1, 1, N, S).clone().requires_grad_()
    part = align.Gumbel(temperature=temperature).train()
    torch.manual_seed(5)
    weight = part(energy, None, None, torch.zeros(1, 1, N, 1)).weight
    assert weight.detach().sum(-1).eq(1).all()
    expected = energy[0, 0, 0].detach().double().softmax(-1)
    drawn = weight.detach()[0, 0].sum(0).double()
    assert chisquare(drawn, N * expected / expected.sum()).pvalue > 1e-3

    torch.manual_seed(5)
    noise = -torch.log(torch.empty(1, 1, N, S).exponential_())
    soft = ((energy + noise) / temperature).softmax(-1)
    probe = torch.randn(S)
    mine, twin = (torch.autograd.grad((x @ probe).sum(), energy)[0] for x in (weight, soft))
    torch.testing.assert_close(mine, twin)
    part.eval()
    assert part(energy, None, None, torch.zeros(1, 1, N, 1)).weight[..., 0].eq(1).all()


def test_straight_through_has_the_value_of_one_and_the_gradient_of_the_other() -> None:
    hard = torch.tensor([0.0, 1.0, 0.0])
    energy = torch.tensor([0.3, 0.7, -1.0], requires_grad=True)
    through = align.straight_through(hard, energy.softmax(-1))
    assert torch.equal(through.detach(), hard)
    probe = torch.tensor([1.0, -2.0, 3.0])
    (mine,) = torch.autograd.grad(through @ probe, energy)
    (soft,) = torch.autograd.grad(energy.softmax(-1) @ probe, energy)
    assert torch.equal(mine, soft)


def test_argmax_takes_the_best_visible_place() -> None:
    energy = torch.randn(2, 2, 5, 6, requires_grad=True)
    ok = table(2, 2, 5, 6)
    weight = align.Argmax()(energy, ok, None, torch.zeros(2, 2, 5, 1)).weight
    best = energy.masked_fill(~ok, -torch.inf).argmax(-1)
    assert torch.equal(weight.detach(), torch.nn.functional.one_hot(best, 6).float())
    probe = torch.randn_like(energy)
    (mine,) = torch.autograd.grad((weight * probe).sum(), energy)
    (soft,) = torch.autograd.grad((align.softmax(energy, ok) * probe).sum(), energy)
    torch.testing.assert_close(mine, soft)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ALIGNS)
def test_a_row_that_sees_nothing_is_exactly_zero(name: str, training: bool) -> None:
    part = made(name).train(training)
    energy = torch.randn(2, 1, 3, 5).double().requires_grad_()
    query = queries(2, 1, 3).requires_grad_()
    ok = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    ok[0, :, 1:] = False
    aligned = part(energy, ok, None, query)
    assert aligned.weight[0, :, 1:].eq(0).all()
    assert aligned.weight[1].sum() > 0 or name == "monotonic"
    probe = torch.randn_like(energy)
    loss = (aligned.weight * probe).sum()
    if aligned.log_prob is not None:
        assert aligned.log_prob[0, :, 1:].eq(0).all()
        loss = loss + aligned.log_prob.sum() + aligned.entropy.sum()
    for x in (energy, query):
        if loss.requires_grad:
            (back,) = torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)
            assert back is None or (back.isfinite().all() and back[0, :, 1:].eq(0).all())


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    "size", [(0.0, 80.0), (-1e4, 1e4), (-1e30, 1e30), (LOWEST, 0.0), (1e4, 1e4)]
)
@pytest.mark.parametrize("name", [name for name in ALIGNS if name != "mixture-window"])
def test_extreme_energies_stay_finite(
    name: str, size: tuple[float, float], training: bool, masked: bool
) -> None:
    """Weights and gradients, in float32, over many steps."""
    # A mask that differs between steps can leave a walk nowhere to go; padding cannot.
    part = made(name).float().train(training)
    pick = torch.rand(20, 1, 9, 7) < 0.5
    energy = torch.where(pick, *(torch.full((), x) for x in size)) + torch.randn(20, 1, 9, 7)
    energy = energy.clamp(min=LOWEST).requires_grad_()
    ok = table(20, 1, 9, 7) if masked else None
    if masked and name in WALKS:
        ok = (torch.arange(7) < torch.randint(1, 8, (20, 1)))[:, None, None]
    query = torch.randn(20, 1, 9, WIDTH)
    aligned = part(energy, ok, None, query)
    weight = aligned.weight
    assert weight.isfinite().all()
    assert (weight >= 0).all()
    mass = weight.sum(-1)
    assert (mass <= 1 + 1e-5).all()
    if name != "monotonic":
        torch.testing.assert_close(mass, torch.ones_like(mass))
    loss = (weight * torch.randn_like(weight)).sum()
    if aligned.log_prob is not None:
        assert aligned.log_prob.isfinite().all()
        loss = loss + aligned.log_prob.sum() + aligned.entropy.sum()
    if loss.requires_grad:
        (back,) = torch.autograd.grad(loss, energy)
        assert back.isfinite().all()


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e30])
def test_extreme_queries_leave_the_mixture_window_finite(size: float) -> None:
    part = made("mixture-window").float()
    query = (torch.randn(20, 1, 9, WIDTH) * size).requires_grad_()
    weight = part(torch.zeros(20, 1, 9, 7), None, None, query).weight
    assert weight.isfinite().all()
    (back,) = torch.autograd.grad((weight * torch.randn_like(weight)).sum(), query)
    assert back.isfinite().all()
