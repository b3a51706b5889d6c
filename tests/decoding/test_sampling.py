"""Sampling compared with exact probabilities."""

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare, kstest

from heed.decoding import Hypothesis, greedy, sample
from heed.decoding.sampling import best, clocks, truncate
from heed.errors import HeedError, Refused, ShapeError
from tests.decoding.toys import BEGIN, END, Table, Toy

WORDS = {"begin": BEGIN, "end": END, "forbid": (BEGIN,)}
LOGITS = [9.0, -0.5, 1.0, 2.0, 0.3, -1.0]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def first_symbols(count: int = 20000, **how) -> Counter[int]:
    """The first symbols drawn from a known first distribution."""
    table = Table(LOGITS, [0.0, 90.0, 0.0, 0.0, 0.0, 0.0])
    found = sample(
        table, table.begin(count), count, longest=1, generator=generator(), **WORDS, **how
    )
    return Counter(h.symbols[0] if h.symbols else END for h in found)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("top_k", [None, 3, 99])
def test_symbols_are_drawn_in_proportion_to_their_probabilities(
    temperature: float, top_k: int | None
) -> None:
    counts = first_symbols(temperature=temperature, top_k=top_k)
    logits = {i: x / temperature for i, x in enumerate(LOGITS) if i != BEGIN}
    inside = sorted(logits, key=lambda i: -logits[i])[:top_k]
    total = sum(math.exp(logits[i]) for i in inside)
    assert set(counts) <= set(inside)
    wanted = [20000 * math.exp(logits[i]) / total for i in inside]
    assert chisquare([counts[i] for i in inside], wanted).pvalue > 1e-3


@pytest.mark.parametrize(
    ("share", "inside"),
    # The probabilities are .577 .212 .105 .047 .029 (symbols 3 2 4 1 5).
    [(0.01, {3}), (0.57, {3}), (0.7, {3, 2}), (0.85, {3, 2, 4}), (1.0, {3, 2, 4, 1, 5})],
)
def test_top_p_keeps_the_smallest_set_with_that_probability(share: float, inside: set[int]) -> None:
    assert set(first_symbols(top_p=share)) == inside


def test_top_k_keeps_the_first_k_of_a_stable_order() -> None:
    """With ties inside, at the border and outside, forbidden symbols, and NaN."""
    logits = torch.randn(6, 40)
    logits[1, 5:9] = logits[1].max()
    logits[2] = logits[2].round()
    logits[3, 2:] = -torch.inf
    logits[4, 7] = torch.nan
    for rows in (logits[:2], logits):
        found, symbols = rows.sort(dim=-1, descending=True, stable=True)
        for k in (1, 4, 39, 40, 50, None):
            few = best(rows, k)
            torch.testing.assert_close(few[0], found[:, :k], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(few[1], symbols[:, :k])


def test_truncation_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()
    torch.testing.assert_close(truncate(logits[:, :2], None), torch.tensor([[0.625, 0.375]]))
    torch.testing.assert_close(truncate(logits, 0.6), torch.tensor([[0.5, 0.3, 0, 0]]))
    # After top-k the first has .625, which exceeds .6.
    torch.testing.assert_close(truncate(logits[:, :2], 0.6), torch.tensor([[0.625, 0.0]]))
    # A share that is reached exactly needs no further symbol; halves and quarters are exact.
    exact = torch.tensor([[0.5, 0.25, 0.25]])
    assert truncate(exact.log(), 0.5).tolist() == [[0.5, 0, 0]]
    assert truncate(exact.log(), 0.75).tolist() == [[0.5, 0.25, 0]]


def drawn(seed: int, **how) -> list[Hypothesis]:
    toy = Toy(V=9, seed=4)
    limits = torch.tensor([7, 2, 0, 9])
    return sample(
        toy, toy.begin([0, 1, 2, 3]), 4, longest=limits, generator=generator(seed), **WORDS, **how
    )


def test_the_same_seed_draws_the_same() -> None:
    once, again, other = (drawn(seed) for seed in (1, 1, 2))
    assert [h[:3] for h in once] == [h[:3] for h in again]
    assert [h.symbols for h in once] != [h.symbols for h in other]


@pytest.mark.parametrize("how", [{}, {"temperature": 0.3, "top_k": 4, "top_p": 0.8}])
def test_the_log_prob_is_that_of_the_model(how: dict) -> None:
    toy = Toy(V=9, seed=4)
    for b, h in enumerate(drawn(5, **how)):
        log_prob, weight = toy.rescore(b, h.symbols)
        assert h.log_prob == h.score == pytest.approx(log_prob, rel=1e-6)
        torch.testing.assert_close(h.weight, weight[:-1])


@pytest.mark.parametrize("how", [{"temperature": 1e-6}, {"temperature": 1e-42}, {"top_k": 1}])
def test_a_low_temperature_is_greedy(how: dict) -> None:
    toy = Toy(V=9, seed=4)
    limits = torch.tensor([7, 2, 0, 9])
    wanted = greedy(toy, toy.begin([0, 1, 2, 3]), 4, longest=limits, **WORDS)
    assert [h.symbols for h in drawn(3, **how)] == [h.symbols for h in wanted]


@pytest.mark.parametrize("how", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_logits_without_a_finite_number_are_an_error(how: dict) -> None:
    table = Table([math.nan] * 4)
    with pytest.raises(HeedError, match="says nothing"):
        sample(table, table.begin(1), 1, longest=3, generator=generator(), **WORDS, **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": 0.0}, "near 0, sampling is greedy"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k must be 1 or more"),
        ({"top_p": 0.0}, "top_p must satisfy 0 < top_p <= 1"),
        ({"top_p": 1.5}, "top_p must satisfy 0 < top_p <= 1"),
    ],
)
def test_invalid_arguments_are_refused(how: dict, message: str) -> None:
    with pytest.raises(Refused, match=message):
        drawn(0, **how)


def test_with_seeds_a_sentence_is_independent_of_its_batch() -> None:
    """Whatever else is in the batch, and in any order."""
    toy, seeds = Toy(seed=3, sharp=1.0), [7, 8, 7, -5, 2**63]
    draw = {"longest": 12, "device": "cpu", **WORDS}
    together = sample(toy, toy.begin([0, 1, 0, 2, 3]), 5, seeds=seeds, **draw)
    for place, (sentence, seed) in enumerate(zip([0, 1, 0, 2, 3], seeds, strict=True)):
        (alone,) = sample(toy, toy.begin([sentence]), 1, seeds=[seed], **draw)
        assert alone.symbols == together[place].symbols
    assert together[0].symbols == together[2].symbols
    assert len({tuple(each.symbols) for each in together}) == 4
    with pytest.raises(ShapeError, match="2 seeds for 1"):
        sample(toy, toy.begin([0]), 1, seeds=[1, 2], **draw)


@pytest.mark.parametrize("how", [{}, {"top_k": 3}, {"temperature": 2.0}])
def test_draws_with_seeds_follow_the_probabilities(how: dict) -> None:
    table, count = Table(LOGITS, [0.0, 90.0, 0.0, 0.0, 0.0, 0.0]), 20000
    found = sample(table, table.begin(count), count, longest=1, seeds=range(count), **WORDS, **how)
    counts = Counter(h.symbols[0] if h.symbols else END for h in found)
    logits = {i: x / how.get("temperature", 1) for i, x in enumerate(LOGITS) if i != BEGIN}
    inside = sorted(logits, key=lambda i: -logits[i])[: how.get("top_k")]
    total = sum(math.exp(logits[i]) for i in inside)
    wanted = [count * math.exp(logits[i]) / total for i in inside]
    assert set(counts) <= set(inside)
    assert chisquare([counts[i] for i in inside], wanted).pvalue > 1e-3


def test_clocks_are_exponential_and_independent_by_row() -> None:
    symbols = torch.arange(200, device="cpu")
    drawn = clocks(torch.arange(50, device="cpu"), 3, symbols)
    assert drawn.unique().numel() > 0.99 * drawn.numel()
    assert kstest(drawn.flatten().numpy(), "expon").pvalue > 1e-3
    again = torch.stack(
        [clocks(torch.tensor([i]), 3, symbols.to(torch.get_default_device()))[0] for i in range(50)]
    )
    assert torch.equal(drawn, again.cpu())
    assert not torch.equal(drawn, clocks(torch.arange(50, device="cpu"), 4, symbols))
    some = torch.randint(0, 200, (50, 7), device="cpu")
    assert torch.equal(drawn.gather(-1, some), clocks(torch.arange(50, device="cpu"), 3, some))
