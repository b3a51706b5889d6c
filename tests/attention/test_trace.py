"""Traces: what the reference computed on its way is what it returned."""

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.attention.score import per_head
from heed.attention.trace import Blended, Grouped, Trace, Traces
from heed.records import Attended
from tests.attention.cases import CASES, Case, close, every


def traced(case: Case) -> tuple[Attended, Attended]:
    """A call, by kernels where they serve it, and its trace."""
    attend = case.build()
    q, k, v = case.inputs()
    memory = attend.remember(k, v, visible=heed.lengths([6, 5, 3]))
    seen = attend.mechanism(
        attend.shape_query(q), heed.Memory(memory.k, memory.v, memory.visible), case.first
    )
    return seen, attend(q, memory, case.first, need="trace")


def blended(trace: Traces) -> Tensor:
    """The weights of a trace, blocks of keys shared out."""
    if isinstance(trace, Trace):
        return trace.reported
    assert isinstance(trace, Blended)
    one, two = map(blended, trace.lanes)
    return trace.share * one + (1 - trace.share) * two


@every(CASES)
def test_a_trace_is_of_the_call(case: Case) -> None:
    served, seen = traced(case)
    assert set(seen.kernel.split(" + ")) == {"reference"}
    close(blended(seen.trace), seen.weight)
    lanes = seen.trace.lanes if isinstance(seen.trace, Blended) else (seen.trace,)
    contexts = []
    for lane in lanes:
        shape = lane.weight.shape
        gain = 1 if lane.gain is None else lane.gain
        close((lane.normal * gain).expand(shape), lane.weight)
        if lane.ok is not None:
            assert not lane.weight.where(lane.ok, 0).isnan().any()
            close(lane.weight.where(lane.ok, 0), lane.weight)
        contexts.append(lane.weight @ per_head(lane.v, shape[1]))
        if case.claims.gives_context:
            close(contexts[-1], lane.context)
    if case.claims.gives_context:
        share = seen.trace.share if len(lanes) > 1 else 1
        whole = share * contexts[0] + (1 - share) * contexts[-1]
        close(whole, served.context)


def test_what_is_added_to_the_energies() -> None:
    attend = heed.Attention("coverage/general", query=4).double()
    attend.mechanism.past.weight.data.fill_(-2.0)  # type: ignore[union-attr, operator]
    x = torch.randn(2, 3, 4).double()
    bias = torch.randn(2, 1, 3, 3).double()
    seen = attend(x, x, heed.State(), bias=bias, need="trace")
    looked_at = torch.cat([torch.zeros(2, 1, 1, 3), seen.weight[:, :, :-1].cumsum(2)], 2)
    close(seen.trace.past, -2 * looked_at)
    close(seen.trace.bias, bias)
    plain = (attend.mechanism.score.ask(x[:, None]) @ x[:, None].mT) + bias
    close(seen.trace.energy, plain + seen.trace.past)
    assert not seen.trace.before["looked at"].any()
    later = attend(x, x, seen.state, need="trace")
    close(later.trace.before["looked at"], seen.weight.sum(2))


def test_groups_have_a_trace_each() -> None:
    lanes = HeadGroups(
        [
            (build("additive", query=2, key=2), 1),
            (build("expanded-window/dot", query=2, key=2, heads=2), 2),
        ]
    )
    attend = heed.MultiHeadAttention(6, 3, mechanism=lanes)
    seen = attend(torch.randn(1, 4, 6), need="trace")
    assert isinstance(seen.trace, Grouped)
    assert seen.trace.heads == (1, 2)
    close(torch.cat([lane.reported for lane in seen.trace.lanes], 1), seen.weight)
    assert [lane.parts["score"] for lane in seen.trace.lanes] == ["additive", "dot"]


def test_no_other_call_keeps_a_trace() -> None:
    attend, x = heed.Attention("dot", query=4), torch.randn(1, 2, 4)
    assert attend(x, need="energy").trace is None
    assert attend(x, need="trace").replace(context=None).trace is not None


@pytest.mark.parametrize("name", ["dot", "mixed", "coverage/additive"])
def test_a_trace_has_gradients(name: str) -> None:
    attend, x = heed.Attention(name, query=4).eval(), torch.randn(1, 3, 4, requires_grad=True)
    seen = attend(x, x, heed.State(), need="trace")
    seen.context.sum().backward()
    assert x.grad is not None
    assert x.grad.any()
