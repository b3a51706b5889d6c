"""Aligns compared with independent sources: torch, the entmax package, the loops of papers."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import entmax as published
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from heed.attention import align
from heed.attention.catalogue import CATALOGUE
from tests.attention.aligning import WIDTH, made, queries, table

ALIGNS = [name for name, entry in CATALOGUE.items() if entry.slot == "align"]


def test_softmax_equals_torchs() -> None:
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
    """The published function, applied to the visible keys of each row."""
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
def test_sparse_aligns_equal_the_published_ones(name: str, scale: float, masked: bool) -> None:
    energy = torch.randn(2, 2, 6, 9) * scale
    compare_sparse(name, energy, table(2, 2, 6, 9) if masked else None)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_aligns_with_ties_equal_the_published_ones(name: str) -> None:
    compare_sparse(name, torch.randint(-2, 3, (4, 2, 8, 7)), None)
    compare_sparse(name, torch.zeros(1, 1, 1, 5), None)
    compare_sparse(name, torch.tensor([[[[1e4, 1e4, -1e4]]]]), None)
    compare_sparse(name, torch.randint(-2, 3, (4, 2, 8, 7)), table(4, 2, 8, 7))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_aligns_are_accurate_in_float32(name: str) -> None:
    ours, theirs = SPARSE[name]
    for offset, S in ((0.0, 7), (1e4, 7), (-1e4, 7), (0.0, 3000)):
        energy = torch.randn(5, S) + offset
        exact = theirs(energy.double(), dim=-1)
        torch.testing.assert_close(ours(energy).double(), exact, rtol=1e-5, atol=1e-6)
        assert (ours(energy) == 0).any() == (exact == 0).any()


def test_sparsemax_and_entmax_by_hand() -> None:
    energy = torch.tensor([0.6, 0.4, -1.0])
    assert align.sparsemax(energy).tolist() == pytest.approx([0.6, 0.4, 0.0])
    # τ with (0.6/2 − τ)² + (0.4/2 − τ)² = 1; the third key gets no weight
    tau = 0.25 - math.sqrt((1 - 2 * 0.05**2) / 2)
    expected = [(0.3 - tau) ** 2, (0.2 - tau) ** 2, 0.0]
    assert align.entmax(energy).tolist() == pytest.approx(expected)


def test_sample_draws_from_the_softmax() -> None:
    N, energy = 20_000, torch.tensor([1.0, 0.0, -1.0, 2.0, 5.0])
    ok = torch.tensor([True, True, True, True, False])
    part = align.Sample().train()
    aligned = part(energy.expand(1, 1, N, 5), ok.view(1, 1, 1, 5), None, torch.zeros(1, 1, N, 1))
    assert aligned.weight.sum(-1).eq(1).all()
    expected = energy[:4].softmax(-1).double()
    drawn = aligned.weight[0, 0].sum(0)
    assert drawn[4] == 0
    assert chisquare(drawn[:4].tolist(), (N * expected / expected.sum()).tolist()).pvalue > 1e-3
    log_prob = (aligned.weight[0, 0, :, :4] @ expected.float().log()).view(1, 1, N)
    torch.testing.assert_close(aligned.log_prob, log_prob)
    entropy = -(expected * expected.log()).sum().item()
    assert aligned.entropy.flatten()[0].item() == pytest.approx(entropy, rel=1e-5)


def test_sample_draws_without_replacement() -> None:
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


def test_sample_takes_the_largest_in_evaluation() -> None:
    energy = torch.tensor([0.0, 3.0, 1.0, 9.0]).view(1, 1, 1, 4)
    ok = torch.tensor([True, True, True, False]).view(1, 1, 1, 4)
    query = torch.zeros(1, 1, 1, 1)
    one = align.Sample().eval()(energy, ok, None, query)
    assert one.weight.flatten().tolist() == [0, 1, 0, 0]
    two = align.Sample(count=2).eval()(energy, ok, None, query)
    assert two.weight.flatten().tolist() == [0, 0.5, 0.5, 0]
    few = align.Sample(count=4).eval()(energy, ok, None, query)
    assert few.weight.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_sample_uses_expected_weights_in_some_rows() -> None:
    energy = torch.randn(400, 1, 2, 5)
    aligned = align.Sample(soft=0.25).train()(energy, None, None, torch.zeros(400, 1, 2, 1))
    soft = (aligned.weight == energy.softmax(-1)).flatten(1).all(-1)
    assert 60 < soft.sum() < 140
    assert aligned.weight[~soft].max(-1).values.eq(1).all()
    assert aligned.log_prob[soft].eq(0).all()
    assert aligned.log_prob[~soft].lt(0).all()


def test_log_choice_by_hand() -> None:
    energy = torch.tensor([[0.5, 0.3, 0.2]]).double().log().requires_grad_()
    expected = math.log(0.3) + math.log(0.5 / 0.7)
    choice = align.log_choice(energy, None, torch.tensor([[1, 0]]))
    assert choice.item() == pytest.approx(expected)
    (back,) = torch.autograd.grad(choice.sum(), energy)
    assert back[0].tolist() == pytest.approx([-0.5 + 1 - 5 / 7, 1 - 0.3, -0.2 - 2 / 7])
    orders = (torch.tensor([o]) for o in permutations(range(3), 2))
    assert sum(align.log_choice(energy, None, o).exp() for o in orders).item() == pytest.approx(1)
    # The last of all is drawn for certain; a key that cannot be drawn adds nothing.
    whole = align.log_choice(energy, None, torch.tensor([[1, 0, 2]]))
    assert whole.item() == pytest.approx(expected)
    hidden = torch.tensor([[True, False, True]])
    assert align.log_choice(energy, hidden, torch.tensor([[0, 2, 1]])).item() == pytest.approx(
        math.log(5 / 7)
    )


@pytest.mark.parametrize("far", [14.0, 17.0, 1000.0])
def test_log_choice_is_accurate_if_one_key_has_nearly_all_the_weight(far: float) -> None:
    """After the first draw, the remaining probability is too small for float32."""
    energy = torch.tensor([[0.0, -far, -far - 1, -far - 2]], requires_grad=True)
    choice = align.log_choice(energy, None, torch.tensor([[0, 1, 2]]))
    rest = [1, math.exp(-1), math.exp(-2)]
    expected = math.log(rest[0] / sum(rest)) + math.log(rest[1] / sum(rest[1:]))
    assert choice.item() == pytest.approx(expected, abs=2e-4)
    (back,) = torch.autograd.grad(choice.sum(), energy)
    assert back[0, 1].item() == pytest.approx(1 - rest[0] / sum(rest), abs=1e-5)
    assert back.isfinite().all()


def test_gumbel_draws_from_the_softmax_and_has_the_gradient_of_its_soft_twin() -> None:
    N, S, temperature = 20_000, 4, 0.7
    energy = torch.tensor([1.0, 0.0, -1.0, 0.5]).expand(1, 1, N, S).clone().requires_grad_()
    part = align.Gumbel(temperature=temperature).train()
    torch.manual_seed(5)
    weight = part(energy, None, None, torch.zeros(1, 1, N, 1)).weight
    assert weight.detach().sum(-1).eq(1).all()
    expected = energy[0, 0, 0].detach().double().softmax(-1)
    drawn = weight.detach()[0, 0].sum(0).double()
    assert chisquare(drawn.tolist(), (N * expected / expected.sum()).tolist()).pvalue > 1e-3

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


def test_argmax_takes_the_largest_visible_energy() -> None:
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
    assert aligned.weight[1].sum() > 0 or part.claims.mass == "at most one"
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
@pytest.mark.parametrize("name", [name for name in ALIGNS if CATALOGUE[name].claims.uses_energies])
def test_extreme_energies_stay_finite(
    name: str, size: tuple[float, float], training: bool, masked: bool
) -> None:
    """Weights and gradients, in float32, over many steps."""
    # A mask that differs between steps can stop a walk; padding cannot.
    part = made(name).float().train(training)
    pick = torch.rand(20, 1, 9, 7) < 0.5
    energy = torch.where(pick, *(torch.full((), x) for x in size)) + torch.randn(20, 1, 9, 7)
    energy = energy.clamp(min=LOWEST).requires_grad_()
    ok = table(20, 1, 9, 7) if masked else None
    if masked and part.claims.needs_line:
        ok = (torch.arange(7) < torch.randint(1, 8, (20, 1)))[:, None, None]
    query = torch.randn(20, 1, 9, WIDTH)
    aligned = part(energy, ok, None, query)
    weight = aligned.weight
    assert weight.isfinite().all()
    assert (weight >= 0).all()
    mass = weight.sum(-1)
    if part.claims.mass != "any":
        assert (mass <= 1 + 1e-5).all()
    if part.claims.mass == "one":
        torch.testing.assert_close(mass, torch.ones_like(mass))
    loss = (weight * torch.randn_like(weight)).sum()
    if aligned.log_prob is not None:
        assert aligned.log_prob.isfinite().all()
        loss = loss + aligned.log_prob.sum() + aligned.entropy.sum()
    if loss.requires_grad:
        (back,) = torch.autograd.grad(loss, energy)
        assert back.isfinite().all()
