"""Reaches compared with results by hand, finite differences and naive loops."""

import math
from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor

import heed
from heed.attention import blind_queries
from heed.attention.names import build
from heed.attention.reach import FixedWindow, Global, LocalP, OrEverything
from heed.attention.score import Dot
from heed.errors import Refused

TIGHT = {"atol": 1e-12, "rtol": 1e-12}


def flat(
    reach: str, S: int, T: int, n: list[int] | None = None, **options: object
) -> heed.Attended:
    """Weights where every energy is zero, so that only the reach matters."""
    attend = heed.Attention(f"dot/{reach}", query=2, **options).double()
    B = 1 if n is None else len(n)
    memory = attend.remember(
        torch.zeros(B, S, 2).double(), visible=None if n is None else heed.lengths(n)
    )
    return attend(torch.randn(B, T, 2).double(), memory, heed.State(), need="weight")


def test_local_m_by_hand() -> None:
    third, half = 1 / 3, 1 / 2
    expected = [
        [half, half, 0, 0],
        [third, third, third, 0],
        [0, third, third, third],
        [0, 0, half, half],  # p = S − 1 from here on
        [0, 0, half, half],
    ]
    weight = flat("local-m", S=4, T=5, window=1).weight[0, 0]
    torch.testing.assert_close(weight, torch.tensor(expected).double())


def test_local_m_uses_the_length_of_each_row() -> None:
    weight = flat("local-m", S=4, T=4, n=[4, 2], window=0).weight[:, 0]
    assert weight[0].tolist() == torch.eye(4).tolist()
    assert weight[1].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("first", [None, heed.State(), heed.State(0, origin=3)])
def test_local_m_counts_steps_wherever_the_queries_stand(first: heed.State | None) -> None:
    """p_t = min(t, S − 1): two queries of five keys look at the beginning, not the end."""
    attend = heed.Attention("dot/local-m", query=2, window=1).double()
    keys, third, half = torch.zeros(1, 5, 2).double(), 1 / 3, 1 / 2
    memory = attend.remember(keys)
    seen = attend(keys[:, :2], memory, first, need="weight")
    expected = torch.tensor([[half, half, 0, 0, 0], [third, third, third, 0, 0]]).double()
    torch.testing.assert_close(seen.weight[0, 0], expected)
    if first is not None:
        then = attend(keys[:, :1], memory, seen.state, need="weight")  # t = 2
        expected = torch.tensor([[0, third, third, third, 0]]).double()
        torch.testing.assert_close(then.weight[0, 0], expected)


@pytest.mark.parametrize("learns", [False, True])
def test_local_m_of_a_long_text_is_the_mean_of_its_window(learns: bool) -> None:
    """Equal energies and no state: query t reads the mean of the values t − 7 to t + 7."""
    values = torch.randn(2, 1500, 3)
    attend = heed.Attention("dot/local-m", query=3, window=7)
    keys = torch.zeros(2, 1500, 3, requires_grad=learns)
    seen = attend(torch.zeros(2, 40, 3), attend.remember(keys, values, heed.lengths([1500, 20])))
    assert seen.kernel == "window"
    by_hand = numpy.zeros((2, 40, 3))
    for b, n in enumerate((1500, 20)):
        for t in range(40):
            place = min(t, n - 1)
            by_hand[b, t] = values[b, max(0, place - 7) : min(n, place + 8)].numpy().mean(0)
    torch.testing.assert_close(seen.context.detach(), torch.tensor(by_hand).float())


def test_fixed_window_by_hand() -> None:
    attend = heed.Attention("dot/fixed-window", query=2, window=1).double()
    x = torch.zeros(1, 4, 2).double()
    third, half = 1 / 3, 1 / 2
    expected = [[half, half, 0, 0], [third] * 3 + [0], [0] + [third] * 3, [0, 0, half, half]]
    weight = attend(x, x, need="weight").weight[0, 0]
    torch.testing.assert_close(weight, torch.tensor(expected).double())
    # Two queries at the end of four keys: the last query is at the last key.
    late = attend(x[:, :2], x, need="weight").weight[0, 0]
    torch.testing.assert_close(late, torch.tensor(expected[2:]).double())


def local_p(window: int = 2, M: int = 2) -> heed.Attention:
    return heed.Attention("dot/local-p", query=M, window=window).double()


def place(attend: heed.Attention, logit: float) -> None:
    """Make every query choose the position (S − 1)·σ(logit)."""
    reach = attend.mechanism.reach
    assert isinstance(reach, LocalP)
    with torch.no_grad():
        reach.weight.zero_()
        reach.weight[..., 0, 0] = 1.0  # tanh(q_0), with q_0 = 50: exactly one
        reach.vector.zero_()
        reach.vector[..., 0] = logit


def test_local_p_by_hand() -> None:
    """p = 4·σ(0) = 2 of S = 5, d = 2, σ = 1, every energy zero: softmax 1/5 under the Gaussian."""
    attend = local_p()
    place(attend, 0.0)
    seen = attend(
        torch.tensor([[[50.0, 0.0]]]).double(),
        attend.remember(torch.zeros(1, 5, 2).double()),
        need="weight",
    )
    bell = [math.exp(-2), math.exp(-0.5), 1, math.exp(-0.5), math.exp(-2)]
    assert seen.weight.flatten().tolist() == pytest.approx([x / 5 for x in bell])
    assert seen.mass.item() == pytest.approx(sum(bell) / 5)  # not normalised again


def test_local_p_off_centre_with_energies_and_padding() -> None:
    """p = 4·σ(log ½) = 4/3 in a row of five; 2·σ(log ½) = 2/3 in a row of three."""
    attend = local_p()
    place(attend, math.log(0.5))
    keys = torch.tensor([0.0, 0.01, 0.02, 0.03, 0.04, 9.0]).double()
    keys = torch.stack([keys, torch.zeros(6).double()], -1).expand(2, 6, 2)
    memory = attend.remember(keys, visible=heed.lengths([5, 3]))
    seen = attend(torch.tensor([[[50.0, 7.0]]]).double().expand(2, 1, 2), memory, need="weight")
    for row, n, inside in ((0, 5, [0, 1, 2, 3]), (1, 3, [0, 1, 2])):  # |s − p| ≤ 2
        p = (n - 1) / 3
        total = sum(math.exp(0.5 * s) for s in inside)
        expected = [
            math.exp(0.5 * s) / total * math.exp(-((s - p) ** 2) / 2) if s in inside else 0.0
            for s in range(6)
        ]
        assert seen.weight[row, 0, 0].tolist() == pytest.approx(expected)


def test_local_p_predicts_as_luong_writes_it() -> None:
    attend = heed.Attention("general/local-p", query=3, key=4, window=3, hidden=5).double()
    reach = attend.mechanism.reach
    q, keys, n = torch.randn(2, 4, 3).double(), torch.randn(2, 7, 4).double(), [7, 4]
    seen = attend(q, attend.remember(keys, visible=heed.lengths(n)), need="energy")
    for b in range(2):
        for t in range(4):
            hidden = [
                math.tanh(sum(w * x for w, x in zip(row, q[b, t].tolist(), strict=True)))
                for row in reach.weight[0].tolist()
            ]
            chosen = sum(v * h for v, h in zip(reach.vector[0, 0].tolist(), hidden, strict=True))
            p = (n[b] - 1) / (1 + math.exp(-chosen))
            inside = [s for s in range(n[b]) if abs(s - p) <= 3]
            energy = seen.energy[b, 0, t].tolist()
            total = sum(math.exp(energy[s]) for s in inside)
            for s in range(7):
                expected = 0.0
                if s in inside:
                    softmax = math.exp(energy[s]) / total
                    expected = softmax * math.exp(-((s - p) ** 2) / (2 * 1.5**2))
                assert seen.weight[b, 0, t, s].item() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_reaches_the_centre_through_the_gaussian() -> None:
    """Finite differences over W_p and v_p agree: the window's edge does not move in between."""
    attend = local_p(window=2, M=3)
    reach = attend.mechanism.reach
    q, keys, values = (torch.randn(2, n, 3).double() for n in (4, 9, 9))
    probe = torch.randn(2, 4, 3).double()

    def loss() -> Tensor:
        return (attend(q, attend.remember(keys, values)).context * probe).sum()

    exact = torch.autograd.grad(loss(), [reach.weight, reach.vector])
    for parameter, back in zip([reach.weight, reach.vector], exact, strict=True):
        assert back.abs().max() > 1e-3
        for i in range(parameter.numel()):
            nudge = torch.zeros_like(parameter).flatten()
            nudge[i] = 1e-6
            nudge = nudge.view_as(parameter)
            with torch.no_grad():
                parameter += nudge
                up = loss().item()
                parameter -= 2 * nudge
                down = loss().item()
                parameter += nudge
            assert back.flatten()[i].item() == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_the_gradient_of_the_centre_by_hand() -> None:
    """∂a_s/∂p = a_s (s − p)/σ² where the energies do not depend on what predicts the centre."""
    attend = local_p(window=2)
    place(attend, 0.3)
    reach = attend.mechanism.reach
    memory = attend.remember(torch.zeros(1, 6, 2).double())
    weight = attend(torch.tensor([[[50.0, 0.0]]]).double(), memory, need="weight").weight[0, 0, 0]
    share = 1 / (1 + math.exp(-0.3))
    p = 5 * share
    probe = torch.randn(6).double()
    (back,) = torch.autograd.grad(weight @ probe, reach.vector)
    by_place = sum(weight[s].item() * (s - p) * probe[s].item() for s in range(6))  # σ = 1
    assert back[0, 0, 0].item() == pytest.approx(by_place * 5 * share * (1 - share))


@pytest.mark.parametrize("name", ["local-m", "local-p", "fixed-window", "expanded-window"])
def test_a_window_is_a_whole_number(name: str) -> None:
    with pytest.raises(Refused, match="window is a whole number"):
        heed.Attention(name, query=4, window=-1)


def naive_expanded(
    q: Tensor, k: Tensor, v: Tensor, exists: list[bool], half: int, size: int, causal: bool
) -> tuple[list[list[float]], list[list[float]]]:
    """One row of a batch: contexts and weights, block by block, in Python numbers."""
    T, S = len(q), len(k)
    contexts, weights = [], []
    for t in range(T):
        stand = t + S - T
        columns: list[tuple[list[int], float]] = []  # members, energy
        for begin in range(0, S, size):
            members = [s for s in range(begin, min(begin + size, S)) if exists[s]]
            touched = begin <= stand + half and begin + size > stand - half
            if touched:
                singles = [[s] for s in members if not causal or s <= stand]
            else:
                past = all(s <= stand for s in members)
                singles = [members] if members and (past or not causal) else []
            for group in singles:
                key = sum(k[s] for s in group) / len(group)
                energy = (q[t] @ key).item() / math.sqrt(q.shape[1]) + math.log(len(group))
                columns.append((group, energy))
        total = sum(math.exp(energy) for _, energy in columns)
        weight, context = [0.0] * S, torch.zeros(v.shape[1]).double()
        for group, energy in columns:
            a = math.exp(energy) / total
            context += a * sum(v[s] for s in group) / len(group)
            for s in group:
                weight[s] = a / len(group)
        weights.append(weight)
        contexts.append(context.tolist())
    return contexts, weights


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize("padding", ["none", "end", "inside"])
@pytest.mark.parametrize(
    ("T", "S", "half", "size"), [(11, 11, 2, 3), (4, 12, 1, 4), (12, 12, 0, 1), (70, 70, 1, None)]
)
def test_expanded_window_equals_a_loop(
    T: int, S: int, half: int, size: int | None, padding: str, causal: bool
) -> None:
    given = {} if size is None else {"block": size}
    attend = heed.Attention("expanded-window", query=4, value=3, window=half, **given).double()
    q, k, v = (torch.randn(2, n, d).double() for n, d in ((T, 4), (S, 4), (S, 3)))
    exists = torch.ones(2, S, dtype=torch.bool)
    if padding == "end":
        exists[1, S - 4 :] = False
    if padding == "inside":
        exists[1, 3:6] = False
        exists[0, 1] = False
    memory = attend.remember(k, v, visible=None if padding == "none" else exists)
    visible = heed.causal() if causal else None
    seen = attend(q, memory, visible=visible, need="weight")
    for b in range(2):
        context, weight = naive_expanded(
            q[b], k[b], v[b], exists[b].tolist(), half, size or 32, causal
        )
        torch.testing.assert_close(
            seen.weight[b, 0], torch.tensor(weight, dtype=torch.float64), **TIGHT
        )
        torch.testing.assert_close(
            seen.context[b], torch.tensor(context, dtype=torch.float64), **TIGHT
        )
    torch.testing.assert_close(seen.weight[:, 0] @ v, seen.context)
    fused = attend(q, memory, visible=visible)
    assert fused.kernel == "sdpa"
    torch.testing.assert_close(fused.context, seen.context)


@pytest.mark.parametrize("off", [(), tuple(heed.kernels.KERNELS)], ids=["kernel", "reference"])
def test_the_blocks_of_an_expanded_window_do_not_depend_on_the_padded_length(
    off: tuple[str, ...],
) -> None:
    """60 keys alone, beside a row of 120, and in a memory that grows: the same contexts."""
    attend = heed.Attention("expanded-window", query=8, window=4).double()
    x = 3 * torch.randn(2, 120, 8).double()
    with heed.kernels.off(*off):
        together = attend(x, attend.remember(x, visible=heed.lengths([60, 120])), heed.State())
        alone = attend(x[:1, :60])
        torch.testing.assert_close(alone.context[0], together.context[0, :60])
        whole = attend(x, visible=heed.causal()).context
        memory, state, steps = attend.remember(x[:, :0]), heed.State(), []
        for t in range(120):
            here = x[:, t : t + 1]
            memory = memory.extend(here)
            seen = attend(here, memory, state, visible=heed.causal())
            state = seen.state
            steps.append(seen.context)
        torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_expanded_window_sees_only_complete_past_blocks() -> None:
    """Blocks of four; the query is at 6 with d = 0: its own block one by one, up to itself."""
    attend = heed.Attention("dot/expanded-window", query=2, window=0, block=4)
    keys = torch.zeros(1, 12, 2)
    state = heed.State(step=6)
    seen = attend(
        torch.randn(1, 1, 2), attend.remember(keys), state, visible=heed.causal(), need="weight"
    )
    # The block of four weighs 4, positions 4, 5 and 6 one each; nothing ahead is seen.
    assert seen.weight.flatten().tolist() == pytest.approx([1 / 7] * 7 + [0] * 5)
    apart = torch.zeros(1, 12, 2)
    apart[:, :4] = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    again = attend(
        torch.tensor([[[1.0, 0.0]]]),
        attend.remember(apart),
        state,
        visible=heed.causal(),
        need="weight",
    )
    torch.testing.assert_close(again.weight, seen.weight)  # of a far block, only the mean matters


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
def test_an_expanded_window_that_covers_everything_is_global(causal: bool) -> None:
    x = torch.randn(2, 9, 4).double()
    visible = heed.causal() if causal else None
    wide = heed.Attention("expanded-window", query=4, window=9, block=4).double()
    plain = heed.Attention("scaled-dot", query=4).double()
    n = heed.lengths([9, 5])
    one, two = (
        a(x, a.remember(x, visible=n), visible=visible, need="weight") for a in (wide, plain)
    )
    torch.testing.assert_close(one.context, two.context)
    torch.testing.assert_close(one.weight, two.weight)


@pytest.mark.parametrize("extra", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_expanded_window_leaves_the_extra_keys_alone(extra: dict[str, bool]) -> None:
    heads = {"embed_dim": 8, "num_heads": 2, "dtype": torch.float64, **extra}
    narrow = heed.MultiHeadAttention(mechanism="expanded-window", window=1, block=3, **heads)
    wide = heed.MultiHeadAttention(mechanism="expanded-window", window=9, block=3, **heads)
    plain = heed.MultiHeadAttention(**heads)
    for other in (wide, plain):
        other.load_state_dict(narrow.state_dict())
    x = torch.randn(2, 8, 8).double()
    torch.testing.assert_close(wide(x).context, plain(x).context)
    seen = narrow(x, need="weight")
    torch.testing.assert_close(narrow(x).context, seen.context)
    memory = narrow.remember(x)
    by_weight = narrow.shape_context(seen.weight @ memory.v)
    torch.testing.assert_close(by_weight, seen.context)
    assert (seen.weight[..., -1] > 0).all()


def or_everything(S: int = 3, n: list[int] | None = None) -> tuple[heed.Mechanism, heed.Memory]:
    mechanism = heed.Mechanism(score=Dot(query=2, key=2), reach=OrEverything(Global()))
    keys = torch.randn(1 if n is None else len(n), 1, S, 2).double()
    return mechanism, mechanism.remember(keys, visible=None if n is None else heed.lengths(n))


def test_or_everything_by_hand() -> None:
    """A query that sees nothing weighs all keys equally, and its energies have the gradient of
    any softmax: de_s = a_s (v_s − c)·g with a_s = 1/3. Other queries get the result of the inner
    reach."""
    mechanism, memory = or_everything()
    q = torch.randn(1, 1, 2, 2).double().requires_grad_()
    ok = torch.tensor([[False] * 3, [True, True, False]])
    seen = mechanism(q, memory, visible=ok, need="weight")
    third = torch.tensor([1 / 3] * 3, dtype=torch.double)
    torch.testing.assert_close(seen.weight[0, 0, 0], third, **TIGHT)
    k = memory.k[0, 0]
    torch.testing.assert_close(seen.context[0, 0, 0], k.mean(0), **TIGHT)
    plain = heed.Mechanism(score=mechanism.score)
    same = plain(q, replace(memory, owner=None), visible=ok, need="weight")
    torch.testing.assert_close(seen.weight[:, :, 1], same.weight[:, :, 1], **TIGHT)
    g = torch.randn(2).double()
    (back,) = torch.autograd.grad((seen.context[0, 0, 0] * g).sum(), q)
    energy = (k - k.mean(0)) @ g / 3
    torch.testing.assert_close(back[0, 0, 0], energy @ k, **TIGHT)
    assert not back[0, 0, 1].any()
    assert mechanism(q, memory).refusals == plain(q, replace(memory, owner=None)).refusals


def test_or_everything_leaves_out_keys_that_the_memory_hides() -> None:
    mechanism, memory = or_everything(n=[2, 0])
    seen = mechanism(
        torch.randn(2, 1, 1, 2).double(),
        memory,
        visible=torch.zeros(1, 3, dtype=torch.bool),
        need="weight",
    )
    assert seen.weight[:, 0, 0].tolist() == [[0.5, 0.5, 0], [0, 0, 0]]


def test_or_everything_wraps_a_window() -> None:
    """The first query is one position before the keys."""
    reach = OrEverything(FixedWindow(window=0))
    mechanism = heed.Mechanism(score=Dot(query=2, key=2), reach=reach)
    memory = mechanism.remember(torch.randn(1, 1, 2, 2).double())
    q = torch.randn(1, 1, 3, 2).double()
    seen = mechanism(q, memory, need="weight")
    assert seen.weight[0, 0].tolist() == [[0.5, 0.5], [1, 0], [0, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_or_everything_is_uniform_in_every_precision(dtype: torch.dtype) -> None:
    mechanism = heed.Mechanism(score=Dot(query=8, key=8), reach=OrEverything(Global()))
    memory = mechanism.remember(torch.randn(1, 2, 5, 8, dtype=dtype))
    q = torch.randn(1, 2, 3, 8, dtype=dtype, requires_grad=True)
    ok = torch.ones(3, 5, dtype=torch.bool)
    ok[1] = False
    even = memory.v.mean(2)
    found = []
    for names in ((), ("sdpa",)):
        with heed.kernels.off(*names):
            context = mechanism(q, memory, visible=ok).context
        torch.testing.assert_close(context[:, :, 1], even)
        (back,) = torch.autograd.grad(context.float().square().sum(), q)
        assert back[:, :, 1].any()
        found.append(back)
    torch.testing.assert_close(*found)
    with torch.no_grad():
        fast = mechanism(q, memory, visible=ok)
    assert fast.kernel == "sdpa"
    torch.testing.assert_close(fast.context[:, :, 1], even)
    torch.testing.assert_close(fast.context, context)
    assert mechanism(q, memory, visible=ok | True).kernel == "sdpa"  # every query sees a key


@pytest.mark.parametrize("grad", [True, False])
def test_or_everything_describes_its_uniform_rows(grad: bool) -> None:
    mechanism, memory = or_everything()
    q = torch.randn(1, 1, 2, 2).double().requires_grad_(grad)
    ok = torch.tensor([[False] * 3, [True, True, False]])
    weight = mechanism(q, memory, visible=ok, need="weight").weight.detach()
    said = mechanism(q, memory, visible=ok, statistics=True).statistics
    torch.testing.assert_close(said.mass, torch.ones_like(said.mass))
    torch.testing.assert_close(said.received.double(), weight.sum(2))


def test_a_query_that_may_look_at_everything_keeps_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, too, where queries are not looked at for NaN before those that see nothing go."""
    mechanism = build("scaled-dot", query=4, key=4, heads=2)
    assert isinstance(mechanism, heed.Mechanism)
    mechanism.reach = OrEverything(Global())
    attend = heed.MultiHeadAttention(8, 2, mechanism=mechanism).double()
    x = torch.randn(1, 3, 8).double()
    shown = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    shown[:, :, 1] = False
    slopes = []
    for finite in (True, False):
        monkeypatch.setattr(blind_queries, "_finite", lambda _, known=finite: known)
        energy = attend(x, visible=shown, need="energy").energy
        slopes.append(torch.autograd.grad(energy[:, :, 1].sum(), attend.in_proj_weight)[0])
    assert slopes[0].any()
    assert torch.equal(*slopes)
