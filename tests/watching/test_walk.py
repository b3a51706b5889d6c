"""Walks through one query: numbers by hand, and for every mechanism its own context."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import heed
from heed.attention.head_groups import HeadGroups
from heed.attention.mixed import FixedGate, Mixed
from heed.attention.names import build
from heed.attention.position import ALiBi, Rotary
from heed.errors import Refused
from heed.visible import Visible
from heed.watching.walk import follow, listen, walk
from tests.attention.cases import CASES, TIED, Case, close, every

ROW = 1
BLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("expanded-window", {"window": 0, "block": 2}),
    ("global", {}),
]


@every(CASES)
def test_the_walk_of_every_mechanism_ends_at_its_context(case: Case) -> None:
    attend = case.build()
    query, keys, values = case.inputs()
    memory = attend.remember(keys, values, visible=heed.lengths([6, 5, 3]))
    with listen(attend) as heard:
        seen = attend(query, memory, case.first, need="weight")
    heads = case.heads or 1
    for t in range(case.T):
        for head in {0, heads - 1}:
            walked = follow(heard[""], row=ROW, position=t, head=head)
            close(walked.reported, seen.weight[ROW, head, t])
            if case.claims.gives_context:
                assert walked.agrees
                assert walked.context is not None
                assert walked.difference is not None
                assert walked.difference < 1e-12
                if not walked.lanes:
                    close(walked.weighted.sum(0), walked.context)
                if not case.heads:
                    close(walked.context, seen.context[ROW, t])
            else:
                assert walked.context is None
                assert walked.agrees is None


@every([case for case in TIED if case.claims.has_steps])
def test_a_step_is_walked_like_a_whole_call(case: Case) -> None:
    attend = case.build()
    query, keys, _ = case.inputs()
    memory, state = attend.remember(keys), heed.State()
    with listen(attend) as heard:
        for t in range(case.T):
            state = attend(query[:, t : t + 1], memory, state).state
    steps = follow(heard[""], row=ROW, position=2)
    whole = walk(attend, query, memory, heed.State(), row=ROW, position=2)
    close(steps.weight, whole.weight)
    assert (steps.step, steps.place) == (whole.step, whole.place) == (2, 2)
    assert steps.agrees is whole.agrees


def test_scaled_dot_by_hand() -> None:
    attend = heed.Attention("scaled-dot", query=4)
    query = torch.tensor([[[2.0, 0, 0, 0]]])
    keys = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0], [9, 9, 9, 9]]])
    memory = attend.remember(keys, visible=heed.lengths([2]))
    walked = walk(attend, query, memory)
    assert walked.energy.tolist()[:2] == [1.0, 0.0]  # 2 · 1 / √4, and nothing in common
    assert walked.hidden == ("", "", "padding")
    share = math.e / (math.e + 1)
    close(walked.normal, torch.tensor([share, 1 - share, 0]), 1e-6)
    close(walked.context, torch.tensor([share, 1 - share, 0, 0]), 1e-6)  # type: ignore[arg-type]
    assert walked.parts == {
        "score": "scaled-dot",
        "reach": "global",
        "align": "softmax",
        "read": "blend",
    }
    assert walked.formulas["score"] == "q·k / √D"
    assert walked.gain is walked.past is walked.bias is None


def test_what_the_past_adds_by_hand() -> None:
    attend = heed.Attention("coverage/dot", query=1)
    attend.mechanism.past.weight.data.fill_(-1.0)  # type: ignore[union-attr, operator]
    memory = attend.remember(torch.tensor([[[0.0], [0.0]]]))
    query = torch.ones(1, 2, 1)
    walked = walk(attend, query, memory, heed.State(), position=1)
    assert walked.before["looked at"].tolist() == [0.5, 0.5]
    assert walked.past is not None
    assert walked.past.tolist() == [-0.5, -0.5]
    assert walked.energy.tolist() == [-0.5, -0.5]
    first = walk(attend, query, memory, heed.State(), position=0)
    assert first.before["looked at"].tolist() == [0.0, 0.0]


def test_monotonic_by_hand() -> None:
    attend = heed.Attention("monotonic/dot", query=1, offset=0.0).eval()
    memory = attend.remember(torch.tensor([[[-1.0], [1.0], [1.0]]]))
    walked = walk(attend, torch.ones(1, 2, 1), memory, heed.State(), position=1)
    assert walked.before["stood"].tolist() == [0, 1, 0]  # the first step passed what is below 0
    assert walked.weight.tolist() == [0, 1, 0]
    assert walked.facts == {"scale": 1.0, "offset": 0.0}


def test_local_p_by_hand() -> None:
    attend = heed.Attention("local-p/dot", query=1, window=2)
    attend.mechanism.reach.vector.data.zero_()  # type: ignore[union-attr, operator]  # σ(0) = 1/2
    memory = attend.remember(torch.zeros(1, 7, 1))
    walked = walk(attend, torch.ones(1, 1, 1), memory)
    assert walked.facts == {"centre": 3.0, "window": 2.0, "σ": 1.0}
    assert walked.hidden == tuple("outside the window" if s in (0, 6) else "" for s in range(7))
    assert walked.gain is not None
    close(walked.gain[3:5], torch.tensor([1.0, math.exp(-0.5)]), 1e-6)
    close(walked.normal, torch.tensor([0, 0.2, 0.2, 0.2, 0.2, 0.2, 0]), 1e-6)
    close(walked.weight, walked.normal * walked.gain, 0)


def test_forward_by_hand() -> None:
    attend = heed.Attention("forward/dot", query=1)
    memory = attend.remember(torch.zeros(1, 3, 1))
    walked = walk(attend, torch.ones(1, 2, 1), memory, heed.State(), position=1)
    assert walked.before["stood"].tolist() == [0.5, 0.5, 0]  # stayed or advanced, equally likely
    assert walked.weight.tolist() == [0.25, 0.5, 0.25]
    assert walked.facts == {"advance": 0.5}


def test_mixed_shows_both_lanes_and_the_gate() -> None:
    attend = heed.Attention("mixed/dot", query=2, gate=0.25)
    keys = torch.randn(1, 5, 2)
    walked = walk(attend, torch.randn(1, 1, 2), keys)
    assert walked.share == 0.25
    assert walked.facts == {"gate": 0.25}
    one, two = walked.lanes
    assert (one.parts["reach"], two.parts["reach"]) == ("global", "local-p")
    close(walked.weight, 0.25 * one.weight + 0.75 * two.weight, 1e-6)
    assert walked.agrees


def test_far_blocks_are_columns_of_their_own() -> None:
    attend = heed.Attention("expanded-window/dot", query=2, window=0, block=2)
    walked = walk(attend, torch.randn(1, 1, 2), torch.randn(1, 4, 2))
    assert walked.spans[4:] == ((0, 2), (2, 4))
    assert walked.hidden[:2] == ("pooled in its block",) * 2
    assert walked.hidden[4] == ""
    assert walked.bias is not None
    close(walked.bias[4], torch.tensor(math.log(2)), 1e-6)
    close(walked.reported[:2], (walked.weight[4] / 2).expand(2), 1e-6)


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        (heed.causal(), "later position"),
        (heed.window(1), "outside the window"),
        (torch.eye(4, dtype=torch.bool), "masked"),
        (Visible.packed(torch.tensor([[0, 0, 1, 1]])), "another text"),
    ],
)
def test_hidden_keys_are_shown_with_the_reason(visible: Any, why: str) -> None:
    attend = heed.Attention("dot", query=2)
    walked = walk(attend, torch.randn(1, 4, 2), visible=visible, position=1)
    assert walked.hidden[3] == why
    assert walked.hidden[1] == ""
    assert walked.agrees
    assert walked.weight[3] == 0


@pytest.mark.parametrize("position", [Rotary(), ALiBi(heads=2)])
def test_positions_inside_heads_and_sinks(position: Any) -> None:
    torch.manual_seed(0)
    attend = heed.MultiHeadAttention(8, 2, position=position, add_bias_kv=True, add_zero_attn=True)
    walked = walk(attend, torch.randn(2, 5, 8), visible=heed.causal(), row=1, position=3, head=1)
    assert walked.agrees
    assert walked.spans[5:] == ((-1, -1), (-1, -1))
    assert (walked.bias is None) == isinstance(position, Rotary)


def test_groups_of_heads_with_other_mechanisms() -> None:
    sizes: dict[str, Any] = {"query": 3, "key": 3, "value": 3}
    lanes = HeadGroups(
        [
            (build("additive", heads=2, groups=2, **sizes), 2),
            (build("coverage/dot", heads=1, groups=1, **sizes), 1),
        ]
    )
    attend = heed.MultiHeadAttention(9, 3, mechanism=lanes)
    query = torch.randn(1, 4, 9)
    mask = torch.rand(1, 4, 4) > 0.3
    seen = attend(query, visible=mask, need="weight")
    for head, score in enumerate(("additive", "additive", "dot")):
        walked = walk(attend, query, visible=mask, position=2, head=head)
        assert walked.agrees
        assert walked.head == head
        assert walked.parts["score"] == score
        close(walked.weight, seen.weight[0, head, 2], 1e-5)


def test_a_whole_model_can_be_walked() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = heed.MultiHeadAttention(4, 2)
            self.pool = heed.Attention("static/additive", query=4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.own(x, visible=heed.causal()).context
            context: torch.Tensor = self.pool(None, x).context
            return context

    model = Two()
    with listen(model) as heard:
        model(torch.randn(2, 3, 4))
    assert list(heard) == ["own", "pool"]
    assert follow(heard["own"], row=1, position=0).hidden[1:] == ("later position",) * 2
    assert follow(heard["pool"], row=1).agrees
    model(torch.randn(2, 3, 4))
    assert len(heard["own"]) == 1  # no hook is left behind


def test_a_compiled_model_runs_eagerly_during_a_walk() -> None:
    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    attend = heed.Attention("dot", query=2)
    watch, listening = heed.watch(attend), listen(attend)
    before = stance()
    watch.__enter__()
    listening.__enter__()
    watch.__exit__(None, None, None)
    assert stance() == "force_eager"
    listening.__exit__(None, None, None)
    assert stance() == before != "force_eager"


def test_a_copy_is_not_walked() -> None:
    attend, x = heed.Attention("dot", query=2), torch.randn(1, 2, 2)
    with listen(attend) as heard:
        deepcopy(attend)(x)
        assert heard[""] == []
        attend(x)
    assert len(heard[""]) == 1


def test_a_disagreement_is_reported() -> None:
    attend = heed.Attention("dot", query=2)
    with listen(attend) as heard:
        attend(torch.randn(1, 2, 2))
    (call,) = heard[""]
    assert call.context is not None
    call.context[0, 0, 1] += 0.01
    assert follow([call], position=0).agrees is True
    assert follow([call], position=1).agrees is False


def test_half_precision_agrees_within_its_tolerance() -> None:
    attend = heed.Attention("additive", query=8).bfloat16()
    walked = walk(attend, torch.randn(1, 2, 8).bfloat16(), torch.randn(1, 5, 8).bfloat16())
    assert walked.agrees
    assert walked.energy.dtype == torch.float32


def test_random_mechanisms_are_refused_in_training_mode() -> None:
    for attend in (heed.Attention("sample/dot", query=2), heed.Attention(query=2, dropout=0.1)):
        with pytest.raises(Refused, match="eval"):
            walk(attend, torch.randn(1, 2, 2))
        assert walk(attend.eval(), torch.randn(1, 2, 2)).agrees


@pytest.mark.parametrize(
    ("which", "said"),
    [({"row": 1}, "no row 1"), ({"head": 1}, "no head 1"), ({"position": 2}, "no position 2")],
)
def test_a_query_that_does_not_exist_is_refused(which: dict[str, int], said: str) -> None:
    with pytest.raises(Refused, match=said):
        walk(heed.Attention(query=2), torch.randn(1, 2, 2), **which)  # type: ignore[arg-type]


def test_a_notebook_shows_a_table_of_plain_text() -> None:
    html = walk(heed.Attention(query=2), torch.randn(1, 3, 2), visible=heed.causal(), position=0)
    text = html._repr_html_()
    assert text.startswith("<table>")
    assert "later position" in text
    assert text.count("<tr>") == 4


@pytest.mark.parametrize("name", ["dot", "coverage/dot", "mixed/coverage/dot"])
def test_each_row_has_a_mask_of_its_own(name: str) -> None:
    torch.manual_seed(3)
    attend = heed.Attention(name, query=3)
    mask = torch.rand(3, 4, 4) > 0.4
    query = torch.randn(3, 4, 3)
    seen = attend(query, visible=mask, need="weight")
    for row in range(3):
        walked = walk(attend, query, visible=mask, row=row, position=3)
        assert walked.agrees
        close(walked.weight, seen.weight[row, 0, 3], 1e-5)
        assert [why == "" for why in walked.hidden] == mask[row, 3].tolist()


def test_lanes_combined_by_hand_may_have_blocks() -> None:
    torch.manual_seed(0)
    lanes = [build(f"{reach}/dot", query=2, key=2, **options) for reach, options in BLOCKS]
    attend = heed.Attention(Mixed(lanes[0], lanes[1], FixedGate(0.25)))
    query, keys = torch.randn(1, 1, 2), torch.randn(1, 6, 2)
    walked = walk(attend, query, keys)
    assert walked.agrees
    assert walked.context is not None
    close(walked.weight, attend(query, keys, need="weight").weight[0, 0, 0], 1e-6)
    close(walked.weighted.sum(0), walked.context, 1e-6)


def test_what_a_call_hides_of_a_memory_is_padding_and_may_be_nan() -> None:
    attend = heed.Attention("additive", query=3)
    keys = torch.randn(2, 4, 3)
    keys[1, 2:] = torch.nan
    memory = attend.remember(keys)
    walked = walk(attend, torch.randn(2, 1, 3), memory, visible=heed.lengths([4, 2]), row=1)
    assert walked.hidden == ("", "", "padding", "padding")
    assert walked.agrees
    assert walked.weighted[2:].tolist() == [[0, 0, 0]] * 2
