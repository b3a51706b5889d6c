"""Mixed mechanisms: two lanes and the gate between them, compared with the two alone."""

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.mixed import FixedGate, HeadGate, Mixed, QueryGate
from heed.attention.reach import FixedWindow
from heed.attention.score import Additive, Dot
from heed.errors import Refused, UnknownName

B, T, S, M = 2, 4, 7, 3


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(B, n, M).double() for n in (T, S, S))  # type: ignore[return-value]


def apart(mixed: Mixed, q: Tensor, k: Tensor, v: Tensor, n: list[int]) -> list[heed.Attended]:
    """The two lanes, each called alone."""
    lanes = [heed.Attention(lane) for lane in mixed.lanes]
    return [
        lane(q, lane.remember(k, v, heed.lengths(n)), heed.State(), need="weight") for lane in lanes
    ]


@pytest.mark.parametrize("gate", [0.3, 0.0, 1, "head", "query"])
@pytest.mark.parametrize(
    "name", ["mixed", "mixed/additive", "mixed/general", "mixed/dot/sparsemax"]
)
def test_mixed_blends_global_and_local_p(name: str, gate: float | str) -> None:
    attend = heed.Attention(name, query=M, window=2, gate=gate).double()
    mixed = attend.mechanism
    assert isinstance(mixed, Mixed)
    if gate == "head":
        with torch.no_grad():
            mixed.gate.logit.fill_(0.7)
    q, k, v = inputs()
    n = [S, 4]
    seen = attend(q, attend.remember(k, v, heed.lengths(n)), heed.State(), need="weight")
    one, two = apart(mixed, q, k, v, n)
    if gate == "query":
        share = torch.sigmoid((q * mixed.gate.weight[0, 0]).sum(-1))  # B T
    else:
        number = torch.sigmoid(torch.tensor(0.7)).item() if gate == "head" else float(gate)
        share = torch.full((B, T), number).double()
    g = share[..., None]
    torch.testing.assert_close(seen.context, g * one.context + (1 - g) * two.context)
    g = g[:, None]
    torch.testing.assert_close(seen.weight, g * one.weight + (1 - g) * two.weight)
    torch.testing.assert_close((seen.weight @ v[:, None])[:, 0], seen.context)
    quick = attend(q, attend.remember(k, v, heed.lengths(n)), heed.State())
    torch.testing.assert_close(quick.context, seen.context)


def test_the_local_lane_equals_local_p() -> None:
    attend = heed.Attention("mixed", query=M, window=1, gate=0.0).double()
    q, k, v = inputs()
    seen = attend(q, attend.remember(k, v), need="weight")
    assert (seen.mass < 1).any()  # the Gaussian is not renormalised
    assert ((seen.weight > 0).sum(-1) <= 3).all()


@pytest.mark.parametrize("cuts", [[T], [1, 3], [1] * T], ids=str)
def test_mixed_passes_on_both_states(cuts: list[int]) -> None:
    """Coverage beside a walk: each lane continues from its own state."""
    first = heed.Attention("coverage/additive", query=M, width=5).mechanism
    second = heed.Attention("forward/dot", query=M).mechanism
    mixed = Mixed(first, second, FixedGate(0.25)).double()
    attend = heed.Attention(mixed)
    q, k, v = inputs()
    memory = attend.remember(k, v, heed.lengths([S, 5]))
    assert memory.k.shape[-1] == first.kept_width + second.kept_width == 5 + M
    state: heed.State | None = heed.State()
    rows, penalties = [], []
    for part in q.split(cuts, 1):
        seen = attend(part, memory, state, need="weight")
        rows.append(seen.weight)
        penalties.append(seen.penalty)
        state = seen.state
    one, two = apart(mixed, q, k, v, [S, 5])
    torch.testing.assert_close(torch.cat(rows, 2), 0.25 * one.weight + 0.75 * two.weight)
    torch.testing.assert_close(torch.cat(penalties, 2), one.penalty)
    assert state is not None
    assert state.step == T
    torch.testing.assert_close(state.slots["first"].slots["coverage"], one.state.slots["coverage"])
    torch.testing.assert_close(state.slots["second"].slots["forward"], two.weight[:, :, -1])

    turned = state.select(torch.tensor([1, 0]))
    torch.testing.assert_close(
        turned.slots["first"].slots["coverage"], one.state.slots["coverage"].flip(0)
    )


def test_mixed_inside_heads_gates_each_head() -> None:
    attend = heed.MultiHeadAttention(8, 2, mechanism="mixed", window=2, gate="head").double()
    with torch.no_grad():
        attend.mechanism.gate.logit.copy_(torch.tensor([50.0, -50.0]).view(2, 1, 1))
    x = torch.randn(B, S, 8).double()
    seen = attend(x, need="weight")
    torch.testing.assert_close(seen.mass[:, 0], torch.ones(B, S).double())  # global
    assert ((seen.weight[:, 1] > 1e-12).sum(-1) <= 5).all()  # local
    memory = attend.remember(x)
    torch.testing.assert_close(attend.shape_context(seen.weight @ memory.v), seen.context)


def test_any_two_mechanisms_can_be_mixed() -> None:
    """The example of the design: additive globally, and a dot product among neighbours."""
    far = heed.Mechanism(score=Additive(query=M, key=M))
    near = heed.Mechanism(score=Dot(query=M, key=M), reach=FixedWindow(window=1))
    mixed = Mixed(far, near, QueryGate(query=M)).double()
    attend = heed.Attention(mixed)
    q, k, v = inputs()
    seen = attend(q, attend.remember(k, v), need="weight")
    torch.testing.assert_close((seen.weight @ v[:, None])[:, 0], seen.context)
    learned = [far.score.query_weight, far.score.key_weight, mixed.gate.weight]
    for back in torch.autograd.grad(seen.context.sum(), learned):
        assert back.abs().max() > 0


def test_invalid_gates_are_refused() -> None:
    with pytest.raises(Refused, match=r"between 0 and 1; got 1\.5"):
        heed.Attention("mixed", query=M, gate=1.5)
    with pytest.raises(UnknownName, match="did you mean query"):
        heed.Attention("mixed", query=M, gate="querry")
    pointer = heed.Attention("pointer", query=M).mechanism
    with pytest.raises(Refused, match="a pointer has none"):
        Mixed(pointer, pointer, HeadGate())


@pytest.mark.parametrize("gate", [0.3, "head", "query"])
def test_shares_of_half_precision_add_up_to_one(gate: float | str) -> None:
    """In bfloat16 g and 1 - g would each be rounded, and weights sum to 1.002."""
    lanes = (heed.Mechanism(score=Dot(query=M, key=M)) for _ in range(2))
    made = {0.3: FixedGate(0.3), "head": HeadGate(), "query": QueryGate(query=M)}[gate]
    if gate == "head":
        with torch.no_grad():
            made.logit.fill_(0.7)
    attend = heed.Attention(Mixed(*lanes, made)).bfloat16()
    q, k, v = (torch.randn(1, 50, M).bfloat16() for _ in range(3))
    seen = attend(q, attend.remember(k, v), need="weight")
    assert (seen.weight.sum(-1) - 1).abs().max() < 1e-6
    assert seen.context.dtype == torch.bfloat16
