"""Beam search compared with all texts there are, with itself in other batches, with greedy."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heed.decoding import Hypothesis, beam, greedy
from heed.decoding.ranking import candidates, top
from heed.decoding.stepper import Choices
from heed.errors import HeedError, Refused, ShapeError
from tests.decoding.toys import BEGIN, END, Prefixes, Table, Toy, ToyStep

WORDS = {"begin": BEGIN, "end": END, "forbid": (BEGIN,)}


def search(toy: Toy, sentences: list[int], longest: int | Tensor, **how) -> list[list[Hypothesis]]:
    return beam(toy, toy.begin(sentences), len(sentences), longest=longest, **{**WORDS, **how})


@pytest.mark.parametrize("patience", [None, 1.0])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 0.0), (0.6, 0.0), (0.7, 0.3)])
@pytest.mark.parametrize("longest", [0, 1, 3])
def test_a_wide_beam_finds_the_best_of_all_texts(
    longest: int, alpha: float, beta: float, patience: float | None
) -> None:
    for seed in range(2):
        toy = Toy(seed=seed)
        found = search(
            toy, [0, 1], longest, width=40, best=7,
            length_penalty=alpha, coverage_penalty=beta, patience=patience,
        )  # fmt: skip
        for b, hypotheses in enumerate(found):
            wanted = toy.exhaustive(b, longest, alpha, beta)[:7]
            assert [h.symbols for h in hypotheses] == [symbols for _, _, symbols in wanted]
            for h, (score, log_prob, _) in zip(hypotheses, wanted, strict=True):
                assert h.score == pytest.approx(score, rel=1e-9)
                assert h.log_prob == pytest.approx(log_prob, rel=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_stopping_early_by_proof_changes_nothing(
    alpha: float, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"length_penalty": alpha, "coverage_penalty": beta, "patience": None, "best": 2}
    stopped = 0
    for seed in range(6):
        toy = Toy(seed=seed, sharp=4.0)
        early = search(toy, [0, 1, 2], 9, width=3, **how)
        steps = len(toy.rows)
        with monkeypatch.context() as patch:
            patch.setattr("heed.decoding.ranking.reached", lambda beams, live, kept: live[:, 0] > 1)
            late = search(toy, [0, 1, 2], 9, width=3, **how)
        assert [[h[:3] for h in each] for each in early] == [[h[:3] for h in each] for each in late]
        stopped += steps < 10
    assert stopped or alpha >= 1  # with a strong length penalty the proof comes late


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_is_greedy(alpha: float) -> None:
    for seed in range(5):
        toy = Toy(seed=seed)
        sentences = list(range(6))
        longest = torch.tensor([7, 0, 3, 12, 1, 9])
        wide = search(toy, sentences, longest, width=1, length_penalty=alpha)
        plain = greedy(toy, toy.begin(sentences), 6, longest=longest, **WORDS)
        assert [h.symbols for (h,) in wide] == [h.symbols for h in plain]
        assert [h.log_prob for (h,) in wide] == pytest.approx([h.log_prob for h in plain])
        for (one,), other in zip(wide, plain, strict=True):
            torch.testing.assert_close(one.weight, other.weight)


@pytest.mark.parametrize("patience", [None, 1.0, 0.5])
def test_a_sentence_gets_the_same_answer_alone_and_in_a_batch(patience: float | None) -> None:
    toy = Toy(V=9, seed=3)
    sentences = [4, 0, 7, 7, 2, 9]
    longest = torch.tensor([5, 0, 8, 3, 1, 11])
    how = {"width": 4, "best": 3, "patience": patience, "coverage_penalty": 0.2}
    together = search(toy, sentences, longest, **how)
    for b, limit, hypotheses in zip(sentences, longest.tolist(), together, strict=True):
        (alone,) = search(toy, [b], limit, **how)
        assert [h.symbols for h in alone] == [h.symbols for h in hypotheses]
        assert all(len(h.symbols) <= limit for h in alone)
        for one, other in zip(alone, hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-12)
            torch.testing.assert_close(one.weight, other.weight)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_weights_and_scores_equal_those_of_rereading_the_text(width: int) -> None:
    toy = Toy(V=8, seed=5)
    found = search(toy, [0, 1, 2, 3], torch.tensor([9, 4, 0, 7]), width=width, best=width)
    assert any(len(h.symbols) > 2 for each in found for h in each)
    for b, hypotheses in enumerate(found):
        for h in hypotheses:
            log_prob, weight = toy.rescore(b, h.symbols)
            assert h.log_prob == pytest.approx(log_prob, rel=1e-9)
            assert h.score == pytest.approx(log_prob / (len(h.symbols) + 1), rel=1e-9)
            torch.testing.assert_close(h.weight, weight[:-1])
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_finished_sentences_leave_the_batch() -> None:
    toy = Toy(V=8, seed=5)
    search(toy, [0, 1, 2, 3], torch.tensor([9, 4, 0, 7]), width=3, patience=None)
    assert toy.rows[0] == 4  # one row per sentence for the first symbol
    assert toy.rows[1] == 9  # the third has ended
    assert sorted(toy.rows[1:], reverse=True) == toy.rows[1:]
    assert toy.rows[-1] == 3
    assert toy.same[0] is False
    assert any(toy.same)


def test_lengths_limit_the_weights_and_the_coverage() -> None:
    """Padding of a source beside a longer one changes nothing."""

    class Padded(Toy):
        def step(self, carry: Prefixes, symbols: Tensor) -> ToyStep:
            step = super().step(carry, symbols)
            assert step.weight is not None
            return step._replace(weight=torch.nn.functional.pad(step.weight, (0, 3)))

    how = {"coverage_penalty": 0.5, "width": 3}
    ((plain,),) = search(Toy(seed=1), [0], 6, **how)
    ((padded,),) = search(Padded(seed=1), [0], 6, lengths=torch.tensor([4]), **how)
    assert padded.symbols == plain.symbols
    assert padded.score == pytest.approx(plain.score)
    torch.testing.assert_close(padded.weight, plain.weight)
    ((uncut,),) = search(Padded(seed=1), [0], 6, **how)
    assert uncut.score < plain.score - 10


def test_coverage_prefers_texts_that_look_everywhere() -> None:
    changed = 0
    for seed in range(6):
        toy = Toy(seed=seed)
        (plain,), (covered,) = (
            search(toy, [0], 4, width=40, coverage_penalty=b)[0] for b in (0, 9)
        )
        lost = [
            toy.rescore(0, h.symbols)[1].sum(0).clamp(max=1).log().sum() for h in (plain, covered)
        ]
        assert lost[1] >= lost[0]
        changed += plain.symbols != covered.symbols
    assert changed


def test_the_length_penalty_makes_texts_longer() -> None:
    toy = Toy(V=8, seed=2)
    lengths = [
        sum(
            len(h.symbols) for (h,) in search(toy, list(range(9)), 9, width=8, length_penalty=alpha)
        )
        for alpha in (0.0, 1.0, 3.0)
    ]
    assert lengths[0] < lengths[1] <= lengths[2]


def test_an_empty_batch_gives_no_texts() -> None:
    assert beam(Toy(), Toy().begin([]), 0, longest=4, **WORDS) == []


def test_a_text_may_end_at_once() -> None:
    sure = Table([0.0, 50.0, 0.0, 0.0])
    ((h,),) = beam(sure, sure.begin(1), 1, longest=5, **WORDS)
    assert h.symbols == []
    assert h.log_prob == pytest.approx(0.0)
    assert h.weight is None


def test_the_width_may_exceed_the_number_of_texts() -> None:
    two = Table([0.0, 0.0, 1.0])  # begin, end and one word
    (found,) = beam(two, two.begin(1), 1, longest=2, width=9, best=9, **WORDS)
    assert sorted(h.symbols for h in found) == [[], [2], [2, 2]]
    only_end = Table([0.0, 0.0])
    ((h,),) = beam(only_end, only_end.begin(1), 1, longest=3, width=4, **WORDS)
    assert h.symbols == []
    assert h.log_prob == pytest.approx(math.log(0.5))


def test_a_text_ends_if_every_symbol_is_forbidden() -> None:
    low = -math.inf
    mute = Table([low, low, 0.0, low], [0.0, low, low, low])
    ((h,),) = beam(mute, mute.begin(1), 1, longest=5, width=2, **WORDS)
    assert (h.symbols, h.log_prob) == ([2], low)
    assert [h] == greedy(mute, mute.begin(1), 1, longest=5, **WORDS)
    endless = Table([low, low, 0.0, -1.0])
    ((h,),) = beam(endless, endless.begin(1), 1, longest=3, width=2, **WORDS)
    assert (h.symbols, h.log_prob) == ([2, 2, 2], low)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("how", [beam, greedy])
def test_logits_without_a_finite_number_are_an_error(how, bad: float) -> None:
    table = Table([0.0, 0.0, 1.0, 0.0], [bad] * 4)
    with pytest.raises(HeedError, match="symbol 2: its logits are NaN"):
        how(table, table.begin(2), 2, longest=5, **WORDS)


def test_among_equals_the_lowest_id_wins() -> None:
    flat = Table([0.0] * 40)
    (found,) = beam(flat, flat.begin(1), 1, longest=1, width=4, best=4, length_penalty=0, **WORDS)
    assert [h.symbols for h in found] == [[], [2], [3], [4]]
    low = Table([-9.0, -9.0, *[0.0] * 40], [0.0, 9.0, *[0.0] * 40])
    (found,) = beam(low, low.begin(1), 1, longest=3, width=4, best=4, **WORDS)
    assert [h.symbols for h in found] == [[2], [3], [4], [5]]


def test_candidates_are_ordered_by_a_stable_sort() -> None:
    for V in (3, 11, 50):
        live = torch.randn(4, 3).sort(descending=True).values
        log_prob = torch.randint(-4, 0, (4, 3, V)).float()
        total = (live[..., None] + log_prob).flatten(1)
        wanted, place = (x[:, :6].cpu().numpy() for x in total.sort(descending=True, stable=True))
        few = Choices(log_prob, torch.arange(V).expand(4, 3, V))
        for choices, careful in product((Choices(log_prob), few), (False, True)):
            found = candidates(live.cpu().numpy(), choices, 6, careful)
            assert (found.value == wanted).all()
            assert found.tied is not careful
            if careful or choices is few:
                assert (found.row * V + found.symbol == place).all()


def test_nan_among_few_choices_is_an_error() -> None:
    """`topk` ranks NaN first, numpy last."""
    log_prob = torch.randn(2, 3, 9)
    few = Choices(log_prob, torch.arange(9).expand(2, 3, 9))
    live = torch.zeros(2, 3).cpu().numpy()
    assert not candidates(live, few, 4, careful=False).broken
    log_prob[1, 2, 0] = math.nan
    assert candidates(live, few, 4, careful=False).broken
    assert candidates(live, Choices(log_prob), 4, careful=False).broken


@pytest.mark.parametrize(("B", "R", "V"), [(12, 4, 3001), (9, 5, 5000), (70, 1, 1999), (2, 3, 40)])
def test_the_best_are_found_by_columns(B: int, R: int, V: int) -> None:
    live, log_prob = torch.randn(B, R), torch.randn(B, R, V).log_softmax(-1)
    log_prob[0, 0, -3:] = 5 + torch.rand(3)  # after the last full column
    log_prob[1, R - 1, 7::160] = 4.0 + torch.rand(len(range(7, V, 160)))  # several in one column
    wanted = (live[..., None] + log_prob).flatten(1).topk(11)
    value, place = top(live, log_prob, 11)
    torch.testing.assert_close(value, wanted.values, rtol=0, atol=0)
    torch.testing.assert_close(place, wanted.indices)


def test_half_precision_is_converted_to_float32() -> None:
    class Half(Table):
        def step(self, carry: tuple[int, int], symbols: Tensor):
            step = super().step(carry, symbols)
            return step._replace(logits=step.logits.bfloat16())

    table = Half([0.0, 1.0, 2.0, 3.0])
    ((h,),) = beam(table, table.begin(1), 1, longest=3, **WORDS)
    wanted = torch.tensor([0.0, 1.0, 2.0, 3.0]).log_softmax(0)
    assert h.log_prob == pytest.approx((3 * wanted[3] + wanted[1]).item(), rel=1e-6)


class Counting(TorchDispatchMode):
    """Counts the numbers that operations write, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        made = op(*args, **(kwargs or {}))
        if not op.is_view:
            self.numbers += sum(x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))
        return made


def test_memory_and_work_grow_linearly_in_the_steps() -> None:
    """Reordering the weights at every step would cost the square of the length."""

    class Wide(Table):
        def step(self, carry: tuple[int, int], symbols: Tensor):
            return super().step(carry, symbols)._replace(weight=torch.rand(len(symbols), 1000))

    table, written = Wide([0.0, -30.0, 1.0, 2.0, 3.0]), []
    for longest in (20, 40, 80):
        with Counting() as counting:
            ((h,),) = beam(table, table.begin(1), 1, longest=longest, width=4, **WORDS)
        written.append(counting.numbers)
        assert h.weight is not None
        assert h.weight.shape == (longest, 1000)
    assert written[2] - written[1] < 2.2 * (written[1] - written[0])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"best": 3, "width": 2}, "best must be between 1 and the width of the beam, 2; got 3"),
        ({"width": 0}, "best must be between"),
        ({"length_penalty": -1.0}, "length_penalty must be 0 or more; got -1.0"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"coverage_penalty": -1.0}, "coverage_penalty must be 0 or more"),
        ({"coverage_penalty": 1.0}, "needs weights"),
        ({"patience": 0.0}, "patience"),
        ({"forbid": (END,)}, "cannot be forbidden"),
        ({"longest": -1}, "longest must be 0 or more symbols; got -1"),
    ],
)
def test_invalid_arguments_are_refused(how: dict, message: str) -> None:
    table = Table([0.0, 0.0, 1.0])
    with pytest.raises(Refused, match=message):
        beam(table, table.begin(1), 1, **{"longest": 3, **WORDS, **how})


def test_a_limit_for_each_sentence_or_one_for_all() -> None:
    table = Table([0.0, 0.0, 1.0])
    with pytest.raises(ShapeError, match="longest has 3 numbers for 2 sentences"):
        beam(table, table.begin(2), 2, longest=torch.tensor([1, 2, 3]), **WORDS)
