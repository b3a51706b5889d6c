"""Contracts of every mechanism: splitting queries, caches, padding, hidden keys, empty inputs."""

import random
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.position import ALiBi, Rotary
from heed.errors import Refused
from tests.attention.cases import (
    ALONE,
    CASES,
    FIRST,
    INSIDE,
    TIED,
    Case,
    S,
    answers,
    close,
    every,
    flat,
    joined,
    main,
    same_record,
)

LENGTHS = torch.tensor([6, 0, 4])  # a full row, one that sees nothing, a padded one
EXISTS = torch.arange(S) < LENGTHS[:, None]
ROADS = pytest.mark.parametrize(
    ("need", "off"),
    [("context", ()), ("context", tuple(heed.kernels.KERNELS)), ("weight", ())],
    ids=["kernel", "reference", "weight"],
)


def cut_up(attend: Any, q: Tensor, memory: heed.Memory, cuts: list[int], **asked: Any) -> Any:
    """The queries in pieces, with the state passed on."""
    records, state = [], FIRST
    for piece in q.split(cuts, 1):
        records.append(attend(piece, memory, state, **asked))
        state = records[-1].state
    return joined(records)


def random_cuts(n: int, seed: int) -> list[int]:
    chance, cuts = random.Random(seed), []
    while sum(cuts) < n:
        cuts.append(chance.randint(1, n - sum(cuts)))
    return cuts


def gradients(out: Tensor, *of: Tensor) -> list[Tensor]:
    """The gradient of a weighted sum, so that rows summing to one do not hide an error."""
    weight = torch.linspace(0.3, 1.7, out.numel(), dtype=out.dtype).view_as(out)
    if not out.requires_grad:
        return [torch.zeros_like(x) for x in of]
    total = (out * weight).sum()
    return list(torch.autograd.grad(total, of, retain_graph=True, materialize_grads=True))


@every(CASES, has_steps=True, takes_several=True)
def test_splitting_the_queries_anywhere_gives_the_same(case: Case) -> None:
    check_cuts(case, case.build())


@every([c for c in CASES if "monotonic" in c.words])
def test_splitting_the_queries_of_a_hard_alignment_gives_the_same(case: Case) -> None:
    check_cuts(case, case.build().eval())


@every(INSIDE, has_steps=True, takes_several=True)
def test_splitting_the_queries_gives_the_same_with_positions(case: Case) -> None:
    check_cuts(case, case.build(position=ALiBi(heads=case.heads)))


def check_cuts(case: Case, attend: Any) -> None:
    """One by one, at random places, with an empty piece, and all at once."""
    q, k, v = case.inputs(T=7)
    memory = attend.remember(k, v, EXISTS)
    whole = attend(q, memory, FIRST, need="weight")
    assert whole.state.step == 7
    for cuts in ([1] * 7, random_cuts(7, 0), random_cuts(7, 1), [3, 0, 4]):
        same_record(cut_up(attend, q, memory, cuts, need="weight"), whole)
    context = cut_up(attend, q, memory, random_cuts(7, 2))
    close(main(context), main(whole))


@every(CASES, has_steps=True, takes_several=True)
def test_gradients_flow_through_the_state(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(T=3, grad=True)
    of = (q, k, v, *attend.parameters())
    whole, pieces = (
        gradients(main(cut_up(attend, q, attend.remember(k, v), cuts)), *of)
        for cuts in ([3], [1, 1, 1])
    )
    for x, y in zip(whole, pieces, strict=True):
        close(y, x)


@every([c for c in CASES if not c.words & {"local-p", "mixed"}], has_steps=True, takes_several=True)
def test_a_growing_cache_agrees_with_one_causal_call(case: Case) -> None:
    # Left out: local-p (and mixed, which contains it) places its centres within the length of the
    # source, which changes while the source grows.
    attend = case.build()
    q, k, v = case.inputs(T=S)
    whole = attend(q, attend.remember(k, v), FIRST, visible=heed.causal())
    steps, state = [], FIRST
    memory = attend.remember(k[:, :0], v[:, :0])
    for t in range(S):
        here = slice(t, t + 1)
        memory = memory.extend(k[:, here], v[:, here])
        steps.append(attend(q[:, here], memory, state, visible=heed.causal()))
        state = steps[-1].state
    if case.claims.gives_context:
        close(torch.cat([main(x) for x in steps], 1), main(whole))
    else:
        rows = [torch.nn.functional.pad(x.weight, (0, S - x.weight.shape[-1])) for x in steps]
        close(torch.cat(rows, 2), main(whole))
    again = attend(q[:, -1:], memory.truncate(S - 2).extend(k[:, -2:], v[:, -2:]), steps[-2].state)
    close(main(again)[..., -1, :], main(steps[-1])[..., -1, :])


@every([c for c in CASES if not c.words & {"local-p", "mixed"}], has_steps=True, takes_several=True)
def test_a_loop_begun_without_a_state_goes_on_while_its_memory_grows(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(T=4)  # of 6 keys: the first query stands at the third
    whole = attend(q, attend.remember(k, v), visible=heed.causal(), need="weight")
    memory = attend.remember(k[:, :4], v[:, :4])
    records = [attend(q[:, :2], memory, visible=heed.causal(), need="weight")]
    for t in (2, 3):
        here = slice(t + 2, t + 3)
        memory = memory.extend(k[:, here], v[:, here])
        state = records[-1].state
        records.append(attend(q[:, t : t + 1], memory, state, visible=heed.causal(), need="weight"))
    rows = [nn.functional.pad(x.weight, (0, S - x.weight.shape[-1])) for x in records]
    close(torch.cat(rows, 2), whole.weight)


@every(CASES, has_steps=True, takes_several=True)
def test_a_query_beyond_the_last_key_is_refused(case: Case) -> None:
    """Without a state the first query stands at the last key, and a fixed memory has no place for
    the next one; where places do not matter, the loop is that of `heed.State()`."""
    attend = case.build()
    q, k, v = case.inputs(T=S + 3)
    memory = attend.remember(k, v)
    asked = [{"visible": heed.causal()}, {"visible": ~heed.window(1) | heed.causal()}]
    for first in (1, 3):
        state, next_one = attend(q[:, :first], memory).state, q[:, first : first + 1]
        for given, need in product(asked, ("context", "weight")):
            for later in (state, state.select(torch.tensor([2, 0, 1]))):
                with pytest.raises(Refused, match=r"begin the loop with heed\.State\(\)"):
                    attend(next_one, memory, later, need=need, **given)
            attend(next_one, memory.extend(k[:, :1], v[:, :1]), state, need=need, **given)
        begun = attend(q[:, :first], memory, FIRST).state
        try:
            seen = attend(next_one, memory, state)
        except Refused:  # a part compares places
            with pytest.raises(Refused, match=r"begin the loop with heed\.State\(\)"):
                attend(next_one, memory, state)
        else:
            close(main(seen), main(attend(next_one, memory, begun)))
    state = heed.State()
    for t in range(S + 3):
        state = attend(q[:, t : t + 1], memory, state, visible=heed.causal()).state
    assert state.step == S + 3


def test_positions_of_queries_beyond_the_last_key_are_refused() -> None:
    for position in (ALiBi(heads=2), Rotary()):
        attend = heed.MultiHeadAttention(8, 2, position=position)
        x = torch.randn(1, 4, 8)
        memory = attend.remember(x)
        state = attend(x[:, :1], memory).state
        with pytest.raises(Refused, match=r"begin the loop with heed\.State\(\)"):
            attend(x[:, :1], memory, state)


@every(CASES)
def test_a_row_alone_agrees_with_the_row_in_a_padded_batch(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    lengths = torch.tensor([6, 1, 4])
    asked = {"need": "weight"}
    batch = attend(q, attend.remember(k, v, heed.lengths(lengths)), case.first, **asked)
    for b, n in enumerate(lengths.tolist()):
        row = slice(b, b + 1)
        alone = attend(q[row], attend.remember(k[row, :n], v[row, :n]), case.first, **asked)
        for name, x in answers(alone):
            want = dict(answers(batch))[name][row]
            close(x, want[..., :n] if name == "weight" else want)
        assert not batch.weight[b, ..., n:].any()


@pytest.mark.parametrize(("T", "S"), [(3, 5), (90, 1500)])
@pytest.mark.parametrize("name", ["scaled-dot", "additive", "fixed-window", "local-m", "local-p"])
@pytest.mark.parametrize("count", [1, 1000, -3], ids=["S+1", "S+1000", "below 0"])
def test_lengths_beyond_the_keys_of_a_memory_mean_all_of_them(
    count: int, name: str, T: int, S: int
) -> None:
    """It may still grow. Behind the last key, where the last query stands, lies NaN."""
    attend = heed.Attention(name, query=8).eval()
    text = torch.full((1, S + 64, 8), torch.nan)
    text[:, :S] = torch.randn(1, S, 8)
    q, k = torch.randn(1, T, 8), text[:, :S]
    given, meant = (count, 0) if count < 0 else (S + count, S)
    with torch.no_grad():
        memory = attend.remember(k)
        for asked in (None, heed.Summary(top=2, map=(2, 2))):
            seen, want = (
                attend(q, memory, visible=heed.lengths([n]), statistics=asked)
                for n in (given, meant)
            )
            assert torch.equal(seen.context, want.context)
            assert seen.context.isfinite().all()
            if asked is not None:
                assert all(torch.equal(x, y) for x, y in zip(*stated(seen, want), strict=True))
    whole = attend(q, memory, need="weight").context if meant else torch.zeros(1, T, 8)
    close(seen.context, whole, 1e-5)


def stated(*records: heed.Attended) -> list[list[Tensor]]:
    return [[x for x in record.statistics if x is not None] for record in records]


NAN_SPREADS = [c for c in ALONE if not CATALOGUE[c.parts["align"]].part.claims.needs_line
               and not c.draws and "past" not in c.parts]  # fmt: skip


@ROADS
@every(NAN_SPREADS, takes_several=True, gives_context=True)
def test_a_query_of_nan_is_not_taken_for_one_that_sees_nothing(
    case: Case, need: Any, off: tuple[str, ...]
) -> None:
    """Its row is NaN, the others are as without it. A loss of zero would hide that it diverged."""
    attend = case.build()
    q, k, v = case.inputs()
    bad = q.clone()
    bad[0, 1] = torch.nan
    with heed.kernels.off(*off, "sdpa"):  # PyTorch's own reads zero for NaN on some CPUs
        memory = attend.remember(k, v, EXISTS)
        fine, seen = (main(attend(x, memory, case.first, need=need)) for x in (q, bad))
    assert seen[0, 1].isnan().all()
    assert not seen[1].any()  # sees no key
    seen[0, 1] = fine[0, 1]
    assert torch.equal(seen, fine)


def poisoned(x: Tensor, exists: Tensor) -> Tensor:
    """NaN and both infinities, in turn, in the padding."""
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype)
    return x.where(exists[..., None], bad.repeat(x.numel())[: x.numel()].view_as(x))


@pytest.mark.parametrize("given", ["lengths", "mask", "later"])
@every(CASES)
def test_the_content_of_padding_changes_no_bit(case: Case, given: str) -> None:
    attend = case.build()
    q, k, v = case.inputs(grad=True)
    seen = heed.lengths(LENGTHS)

    def run(k: Tensor, v: Tensor, need: Any) -> list[Tensor]:
        known, later = (None, seen) if given == "later" else (seen, None)
        memory = attend.remember(k, v, EXISTS if given == "mask" else known)
        out = main(attend(q, memory, case.first, need=need, visible=later))
        # Only `remember` can clean what it projects: a later mask keeps the result and the queries'
        # gradient clean, but not that of a projection which has already read NaN.
        return [
            out,
            *gradients(out, *((q,) if later is not None else (q, k, v, *attend.parameters()))),
        ]

    for need in ("context", "weight"):
        bad = run(poisoned(k, EXISTS), poisoned(v, EXISTS), need)
        for x, y in zip(run(k, v, need), bad, strict=True):
            assert torch.equal(x, y)
            assert x.isfinite().all()


@pytest.mark.parametrize("mask", [False, True], ids=["lengths", "mask"])
@every(TIED)
def test_padding_given_with_bare_keys_is_cleaned_too(case: Case, mask: bool) -> None:
    attend = case.build()
    q, k, _ = case.inputs(grad=True)
    seen = EXISTS[:, None] if mask else heed.lengths(LENGTHS)
    runs = []
    for keys in (k, poisoned(k, EXISTS)):
        out = main(attend(q, keys, case.first, visible=seen))
        runs.append([out, *gradients(out, q, k, *attend.parameters())])
    assert all(torch.equal(x, y) and x.isfinite().all() for x, y in zip(*runs, strict=True))


@ROADS
@every(CASES)
def test_a_query_that_sees_nothing_reads_zero_and_has_zero_gradients(
    case: Case, need: Any, off: tuple[str, ...]
) -> None:
    attend = case.build()
    if case.heads:
        attend.out_proj = nn.Identity()  # only its bias would be left
    q, k, v = case.inputs(grad=True)
    blind = torch.ones(len(q), case.T, S, dtype=torch.bool)
    blind[1] = False
    blind[2, -1] = False
    with heed.kernels.off(*off):
        seen = attend(q, attend.remember(k, v), case.first, visible=blind, need=need)
        everyone = attend(q, attend.remember(k, v), case.first, need=need)
    out = main(seen) if case.claims.gives_context else main(seen)[:, 0]
    assert not out[1].any()
    assert not out[2, -1].any()
    close(out[0], main(everyone)[0] if case.claims.gives_context else main(everyone)[0, 0])
    for x in (q, k, v):
        assert not gradients(out[1], x)[0].any()
    for slope in gradients(out, q, k, v, *attend.parameters()):
        assert slope.isfinite().all()
    if need == "weight":
        assert not seen.weight[1].any()
        assert not seen.weight[2, :, -1].any()


def blind(case: Case, kind: str) -> tuple[Any, Any, Any, Tensor]:
    """What the memory shows, what the call shows, its state, and the queries that see nothing."""
    t, exists = torch.arange(case.T), torch.ones(3, S, dtype=torch.bool)
    lost = torch.zeros(3, case.T, dtype=torch.bool)
    lost[1], lost[2, -1] = True, True
    if kind == "a mask":
        return None, ~lost[:, :, None].expand(-1, -1, S), case.first, lost
    if kind == "an empty row":
        return (
            heed.lengths([6, 0, 4]),
            None,
            case.first,
            (t < 9) & torch.tensor([[0], [1], [0]]).bool(),
        )
    if kind == "an empty row, later":
        return (
            None,
            heed.lengths([6, 0, 4]),
            case.first,
            (t < 9) & torch.tensor([[0], [1], [0]]).bool(),
        )
    if kind == "a causal mask":  # the first two keys of a row do not exist
        exists[1, :2] = False
        first = S - case.T if case.first is None else 0
        return exists, heed.causal(), case.first, (t + first < 2) & ~exists[:, :1]
    if kind == "a window":  # of a query and the one before it, far behind the keys
        lost = t + S >= S + 2
        return None, heed.window(1), case.first and heed.State(0, S - 1), lost.expand(3, -1)
    assert kind == "no key"
    return None, None, case.first, torch.ones(3, case.T, dtype=torch.bool)


BLIND = ("a mask", "an empty row", "an empty row, later", "a causal mask", "a window", "no key")


@pytest.mark.parametrize(
    ("kind", "off"),
    [(kind, ()) for kind in BLIND] + [("a mask", tuple(heed.kernels.KERNELS))],
)
@every(CASES)
def test_nan_in_a_query_that_sees_nothing_changes_no_bit(
    case: Case, kind: str, off: tuple[str, ...]
) -> None:
    """Nor of the gradients of weights, which are sums over all queries."""
    known, given, first, lost = blind(case, kind)
    attend = case.build()
    q, k, v = case.inputs(S=0 if kind == "no key" else S, grad=True)

    def answers_of(q: Tensor, steps: int, **asked: Any) -> list[Tensor]:
        memory, state, records = attend.remember(k, v, known), first, []
        for here in torch.arange(case.T).split(-(-case.T // steps)):
            part = given[:, here] if isinstance(given, Tensor) else given
            seen = attend(q[:, here], memory, state, visible=part, **asked)
            state = seen.state if case.claims.has_steps else None
            records.append(seen)
        told = [x for seen in records for _, x in answers(seen)]
        said = [x for seen in records for x in seen.formed.statistics or () if x is not None]
        out = torch.cat(
            [main(x) if case.claims.gives_context else main(x)[:, 0] for x in records], 1
        )
        if case.claims.gives_context and not case.heads:
            assert not out[lost].any()
        slopes = gradients(out, q, k, v, *attend.parameters())
        assert not slopes[0][lost].any()
        return [*told, *said, *flat(state), *slopes]

    filled = q.detach().masked_fill(lost[..., None], torch.nan).requires_grad_()
    assert filled.isnan().any() or not lost.any()
    with heed.kernels.off(*off):
        for asked in ({}, {"need": "weight", "statistics": True}):
            for steps in (1, case.T) if case.claims.has_steps else (1,):
                want, got = (answers_of(x, steps, **asked) for x in (q, filled))
                for x, y in zip(got, want, strict=True):
                    assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["general/local-m", "additive/local-m", "cosine/local-m"])
def test_nan_in_a_query_whose_window_is_hidden_reaches_no_gradient(name: str) -> None:
    attend = heed.Attention(name, query=4, key=4, window=1).double()
    q, k = torch.randn(1, 6, 4).double(), torch.randn(1, 8, 4).double()
    q[:, 4:] = torch.nan  # their windows are the keys 3 to 6, all of them hidden
    memory = attend.remember(k, visible=heed.Visible.keys(SHOWN))
    seen = attend(q, memory, FIRST)
    assert not seen.context[:, 4:].any()
    assert all(x.isfinite().all() for x in gradients(main(seen), *attend.parameters()))


def test_nan_behind_a_text_reaches_no_gradient_of_windowed_heads() -> None:
    attend = heed.MultiHeadAttention(8, 2, mechanism="fixed-window", window=2)
    x = torch.randn(1, 10, 8)
    x[:, 6:] = torch.nan
    seen = attend(x, visible=heed.lengths(torch.tensor([4])))
    assert all(x.isfinite().all() for x in gradients(seen.context, *attend.parameters()))


@every(CASES)
def test_a_source_hidden_from_all_queries_reads_zero(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(grad=True)
    seen = attend(q, attend.remember(k, v, heed.lengths([0, 0, 0])), case.first, need="weight")
    assert not seen.weight.any()
    if case.claims.gives_context:
        bias = attend.out_proj.bias if case.heads else torch.zeros(1, dtype=q.dtype)
        assert torch.equal(seen.context, bias.expand_as(seen.context))
    assert not any(x.any() for x in gradients(main(seen), q, k, v))


SHOWN = torch.tensor([[True] * 2 + [False] * 5 + [True]])


@every(CASES)
def test_asking_for_weights_does_not_change_the_context(case: Case) -> None:
    attend = case.build(torch.float32)
    q, k, v = case.inputs(dtype=torch.float32)
    memory = attend.remember(k, v, heed.lengths(LENGTHS))
    plain = attend(q, memory, case.first)
    more = attend(q, memory, case.first, need="weight")
    close(main(plain), main(more), 4e-6)
    assert more.weight.shape == (len(q), case.heads or 1, case.T, S)
    if not case.claims.gives_context:
        return
    read = more.weight @ memory.v.repeat_interleave(max(case.heads, 1) // memory.v.shape[1], 1)
    read = attend.shape_context(read)
    close(read, more.context, 4e-6)


@every(CASES)
def test_reported_weights_are_those_before_dropout(case: Case) -> None:
    q, k, v = case.inputs()
    attend = case.build(dropout=0.5)
    memory = attend.remember(k, v)
    dropped = attend(q, memory, case.first, need="weight")
    if case.claims.gives_context and not case.draws:
        assert not torch.equal(
            dropped.context, attend(q, memory, case.first, need="weight").context
        )
    if "coverage" not in case.words and "location-aware" not in case.words:
        for module in attend.modules():
            if isinstance(module, heed.Mechanism):
                module.dropout = 0.0
        close(dropped.weight, attend(q, memory, case.first, need="weight").weight)


@every(CASES, has_steps=True)
def test_states_of_beams_follow_their_rows(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(T=1)
    memory = attend.remember(k, v, heed.lengths([6, 3, 4]))
    state = attend(q, memory, FIRST).state
    rows = torch.tensor([2, 0, 0, 1, 2])
    more = torch.randn(5, 1, q.shape[-1], dtype=q.dtype)
    got = attend(more, memory.select(rows), state.select(rows), need="weight")
    for i, b in enumerate(rows.tolist()):
        row = slice(b, b + 1)
        one = attend.remember(k[row], v[row], heed.lengths([[6, 3, 4][b]]))
        then = attend(q[row], one, FIRST).state
        want = attend(more[i : i + 1], one, then, need="weight")
        for name, x in answers(want):
            close(dict(answers(got))[name][i : i + 1], x)
    wide, each = memory.repeat(2), state.repeat(2)
    twice = torch.arange(3).repeat_interleave(2)
    same_record(
        attend(more[:1].expand(6, 1, -1), wide, each, need="weight"),
        attend(more[:1].expand(6, 1, -1), memory.select(twice), state.select(twice), need="weight"),
    )


@every(CASES, has_steps=True)
def test_mechanisms_work_inside_a_recurrent_step(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs(grad=True)
    memory = attend.remember(k, v, heed.lengths([6, 3, 1]))
    M = q.shape[-1]
    size = main(attend(q[:, :1], memory, FIRST))[..., -1, :].flatten(1).shape[-1]
    cell = nn.GRUCell(size, M, dtype=q.dtype)
    hidden, state, outs = q[:, 0], FIRST, []
    for _ in range(3):
        seen = attend(hidden[:, None], memory, state)
        state = seen.state
        hidden = cell(main(seen)[..., -1, :].flatten(1), hidden)
        outs.append(hidden)
    assert state.step == 3
    slopes = gradients(torch.stack(outs), q, k, v, *cell.parameters())
    assert all(x.isfinite().all() for x in slopes)
    assert all(x.any() for x in (slopes[0], *slopes[3:]))
    for b in range(3):  # rows do not mix
        (alone,) = gradients(outs[-1][b], v)
        assert not alone[[x for x in range(3) if x != b]].any()


@pytest.mark.parametrize(("n", "t", "s"), [(1, 1, 1), (2, 1, 9), (1, 9, 2), (2, 3, 1), (1, 5, 5)])
@every(CASES)
def test_any_shape_works(case: Case, n: int, t: int, s: int) -> None:
    attend = case.build()
    q, k, v = case.inputs(B=n, T=t if case.claims.takes_several else 1, S=s)
    for visible in (None, heed.causal()):
        seen = attend(q, attend.remember(k, v), visible=visible, need="weight")
        assert seen.weight.shape == (n, max(case.heads, 1), q.shape[1], s)
        assert seen.weight.isfinite().all()
        assert main(seen).isfinite().all()
        if visible is not None:
            ahead = torch.ones(q.shape[1], s).triu(s - q.shape[1] + 1).bool()
            assert not seen.weight[..., ahead].any()
        close(main(attend(q, attend.remember(k, v), visible=visible)), main(seen))


@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize(("n", "t", "s"), [(2, 3, 0), (2, 0, 5), (2, 0, 0), (0, 3, 5)])
@every(CASES)
def test_no_query_and_no_key_are_allowed(case: Case, n: int, t: int, s: int, need: Any) -> None:
    attend = case.build()
    q, k, v = case.inputs(B=n, T=t if case.claims.takes_several else min(t, 1), S=s, grad=True)
    for visible in (None, heed.causal()):
        seen = attend(q, attend.remember(k, v), case.first, visible=visible, need=need)
        if case.claims.gives_context:
            out = case.widths[0] if case.heads else case.widths[2]
            assert seen.context.shape == (n, q.shape[1], out)
        if need == "weight":
            assert seen.weight.shape == (n, max(case.heads, 1), q.shape[1], s)
        assert seen.state.step == q.shape[1]
        assert not any(x.any() for x in gradients(main(seen), q, k, v))


@every(CASES, has_steps=True)
def test_a_walk_continues_after_an_empty_source(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    nothing = attend.remember(k[:, :0], v[:, :0])
    state = attend(q[:, :0], nothing, FIRST).state
    same_record(
        attend(q, nothing.extend(k, v), state, need="weight"),
        attend(q, attend.remember(k, v), FIRST, need="weight"),
    )


@every(TIED, takes_several=True)
def test_bare_keys_serve_as_values_and_no_keys_means_self_attention(case: Case) -> None:
    attend = case.build()
    q, k, _ = case.inputs()
    same_record(attend(q, k, need="weight"), attend(q, attend.remember(k, k), need="weight"), 0)
    same_record(attend(q, need="weight"), attend(q, attend.remember(q, q), need="weight"), 0)
