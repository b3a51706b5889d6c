"""Watching collects every record of a forward pass, and leaves nothing on the model."""

from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.statistics import statistics
from heed.errors import NotFormed, Refused, UnknownName
from heed.records import Summary
from heed.watching.watch import attentions


class Block(nn.Module):
    def __init__(self, mechanism: str = "scaled-dot") -> None:
        super().__init__()
        self.heads = heed.MultiHeadAttention(8, 2, mechanism=mechanism)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        seen: heed.Attended = self.heads(x, visible=heed.causal())
        return self.linear(x + seen.context)


class Net(nn.Module):
    """Two blocks, and a decoder that attends once per step."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block("mixed")])
        self.decoder = nn.ModuleDict({"attention": heed.Attention("additive", query=8)})

    def forward(self, x: Tensor, steps: int = 3) -> Tensor:
        for block in self.blocks:
            x = block(x)
        attend = self.decoder["attention"]
        memory, state, out = attend.remember(x), None, []
        for t in range(steps):
            seen = attend(x[:, t : t + 1], memory, state)
            state = seen.state
            out.append(seen.context)
        return torch.cat(out, 1)


PATHS = ["blocks.0.heads", "blocks.1.heads", "decoder.attention"]


@pytest.fixture
def net() -> Net:
    return Net().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 8)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_records_are_listed_by_path_in_the_order_of_the_calls(net: Net, x: Tensor) -> None:
    with heed.watch(net) as seen:
        net(x)
    assert list(seen) == PATHS
    assert [len(seen[path]) for path in PATHS] == [1, 1, 3]
    assert [r.state.step for r in seen["decoder.attention"]] == [1, 2, 3]
    assert seen["blocks.0.heads"][0].weight.shape == (2, 2, 5, 5)
    assert seen["decoder.attention"][2].weight.shape == (2, 1, 1, 5)


def test_the_weights_are_those_of_the_call(net: Net, x: Tensor) -> None:
    with heed.watch(net) as seen:
        net(x)
    want = net.blocks[0].heads(x, visible=heed.causal(), need="weight")
    torch.testing.assert_close(seen["blocks.0.heads"][0].weight, want.weight)
    assert (seen["blocks.0.heads"][0].weight.triu(1) == 0).all()


def test_several_passes_are_collected_in_order(net: Net, x: Tensor) -> None:
    with heed.watch(net) as seen:
        net(x)
        net(x[:, :4])
    assert [r.weight.shape[-1] for r in seen["blocks.1.heads"]] == [5, 4]
    assert len(seen["decoder.attention"]) == 6


def test_records_remain_after_the_watch(net: Net, x: Tensor) -> None:
    with heed.watch(net) as seen:
        net(x)
    net(x)
    assert [len(seen[path]) for path in PATHS] == [1, 1, 3]


def test_watching_changes_no_output(net: Net, x: Tensor) -> None:
    before = net(x)
    for need in ("context", "weight", "energy"):
        with heed.watch(net, need):
            during = net(x)
        torch.testing.assert_close(during, before, rtol=1e-5, atol=1e-6)
    assert torch.equal(net(x), before)


def test_watching_changes_no_gradient(net: Net, x: Tensor) -> None:
    x.requires_grad_()
    (want,) = torch.autograd.grad(net(x).square().sum(), x)
    with heed.watch(net) as seen:
        out = net(x)
    (got,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert seen["blocks.0.heads"][0].weight.requires_grad


def test_nothing_is_left_on_the_model(net: Net, x: Tensor) -> None:
    keys = {name: set(vars(module)) for name, module in net.named_modules()}
    with heed.watch(net):
        assert hooks(net) == 2 * len(PATHS)
        net(x)
    assert hooks(net) == 0
    assert keys == {name: set(vars(module)) for name, module in net.named_modules()}


def test_nothing_is_left_after_an_exception(net: Net, x: Tensor) -> None:
    def fail() -> None:
        net(x)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), heed.watch(net) as seen:
        fail()
    assert hooks(net) == 0
    assert len(seen["decoder.attention"]) == 3
    with pytest.raises(NotFormed):
        _ = net.blocks[0].heads(x).weight


def test_nothing_is_left_after_a_refused_call(net: Net) -> None:
    with pytest.raises(heed.HeedError), heed.watch(net):
        net(torch.randn(2, 5, 7))
    assert hooks(net) == 0


def test_a_copy_of_a_watched_model_is_not_watched(net: Net, x: Tensor) -> None:
    heard: list[nn.Module] = []
    net.blocks[0].heads.register_forward_hook(lambda module, *_: heard.append(module))
    with heed.watch(net) as seen, heed.watch(net, statistics=True):
        twin = deepcopy(net)
        assert hooks(twin) == 1  # the one that was there before
        torch.testing.assert_close(twin(x), net(x))
    assert [len(seen[path]) for path in PATHS] == [1, 1, 3]
    assert heard == [twin.blocks[0].heads, net.blocks[0].heads]
    with heed.watch(twin) as seen:
        twin(x)
    assert len(seen["decoder.attention"]) == 3


def test_watches_can_be_nested(net: Net, x: Tensor) -> None:
    with heed.watch(net) as outer:
        net(x)
        with heed.watch(net.blocks[0], "energy") as inner:
            net(x)
        net(x)
    assert list(inner) == ["heads"]
    assert len(inner["heads"]) == 1
    assert len(outer["blocks.0.heads"]) == 3
    assert inner["heads"][0].energy.shape == (2, 2, 5, 5)
    with pytest.raises(NotFormed):
        _ = outer["blocks.0.heads"][2].energy
    assert hooks(net) == 0


def test_watches_can_end_in_any_order(net: Net, x: Tensor) -> None:
    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    before = stance()
    first, second, third = ExitStack(), ExitStack(), ExitStack()
    one = first.enter_context(heed.watch(net))
    two = second.enter_context(heed.watch(net))
    net(x)
    first.close()
    assert stance() == "force_eager"  # else a compiled model would not record anything
    three = third.enter_context(heed.watch(net))
    net(x)
    second.close()
    net(x)
    assert stance() == "force_eager"
    third.close()
    assert stance() == before != "force_eager"
    assert [len(seen["blocks.0.heads"]) for seen in (one, two, three)] == [1, 2, 2]
    assert hooks(net) == 0


def test_a_watch_never_asks_for_less_than_the_model(x: Tensor) -> None:
    attend = heed.Attention("dot", query=8)
    with heed.watch(attend, "context") as seen:
        assert attend(x, need="energy").energy.shape == (2, 1, 5, 5)
        attend(x)
    assert seen[""][0].energy.shape == (2, 1, 5, 5)
    with pytest.raises(NotFormed):
        _ = seen[""][1].weight
    assert seen[""][1].kernel == "sdpa"


def test_an_attention_itself_can_be_watched(x: Tensor) -> None:
    attend = heed.Attention("coverage", query=8)
    with heed.watch(attend) as seen:
        attend(x)
    assert list(seen) == [""]
    assert seen[""][0].weight.shape == (2, 1, 5, 5)


def test_a_bare_mechanism_can_be_watched(x: Tensor) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = heed.Attention("general", query=8).mechanism

        def forward(self, x: Tensor) -> Tensor:
            memory = self.inside.remember(x[:, None])
            seen: heed.Attended = self.inside(x[:, None], memory)
            return seen.context

    model = Bare()
    with heed.watch(model) as seen:
        model(x)
    assert [path for path, _ in attentions(model)] == ["inside"]
    assert seen["inside"][0].weight.shape == (2, 1, 5, 5)


def test_only_the_outermost_attention_is_watched() -> None:
    """`mixed` contains two mechanisms, and heads contain one; their records are parts of one."""
    model = nn.ModuleDict(
        {
            "a": heed.MultiHeadAttention(8, 2, mechanism="mixed"),
            "ab": heed.Attention("dot", query=8),  # a path that begins like another
        }
    )
    assert [path for path, _ in attentions(model)] == ["a", "ab"]


def test_a_shared_module_has_one_path_for_all_its_calls(x: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = heed.Attention("dot", query=8)

        def forward(self, x: Tensor) -> Tensor:
            once: Tensor = self.first(x).context
            seen: heed.Attended = self.second(once)
            return seen.context

    model = Twice()
    with heed.watch(model) as seen:
        model(x)
    assert list(seen) == ["first"]
    assert len(seen["first"]) == 2


def test_a_model_without_attention_is_refused() -> None:
    for model in (nn.Linear(2, 2), nn.MultiheadAttention(4, 2)):
        with pytest.raises(Refused, match="no heed attention inside this model"), heed.watch(model):
            pass


@pytest.mark.parametrize("modules", [3, []])
def test_an_invalid_choice_of_modules_is_refused(net: Net, modules: Any) -> None:
    with pytest.raises(Refused, match="modules takes paths"), heed.watch(net, modules=modules):
        pass
    with pytest.raises(Refused, match="watch takes a model"), heed.watch(modules):
        pass


def test_torchs_own_attention_is_reported_with_the_remedy() -> None:
    other = torch.nn.MultiheadAttention(8, 2)
    both = torch.nn.ModuleDict({"a": other, "b": heed.MultiHeadAttention(8, 2)})
    with heed.watch(both) as seen:
        pass
    told = r"'a' is a torch.*heed\.integrations\.torch\.replace"
    with pytest.raises(UnknownName, match=told):
        seen["a"]
    with pytest.raises(UnknownName, match=told), heed.watch(both, modules=["b", "a*"]):
        pass
    with pytest.raises(UnknownName, match="known: b"):
        seen["elsewhere"]


def test_an_unknown_need_gets_the_nearest(net: Net, x: Tensor) -> None:
    typo: Any = "wieghts"
    with pytest.raises(UnknownName, match="did you mean weight"), heed.watch(net, typo):
        pass
    attend = heed.Attention("dot", query=8)
    with pytest.raises(UnknownName, match="did you mean energy"), heed.watch(attend):
        attend(x, need="enrgy")


def test_a_compiled_model_runs_eagerly_while_watched(x: Tensor) -> None:
    torch._dynamo.reset()
    net = Block().eval()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        def run(*args: object) -> object:
            graphs.append(graph)
            return graph(*args)

        return run

    fast = torch.compile(net, backend=backend, fullgraph=True)
    before = fast(x)
    assert len(graphs) == 1
    with heed.watch(fast) as seen:
        during = fast(x)
    assert len(graphs) == 1  # no graph ran
    assert list(seen) == ["_orig_mod.heads"]
    assert seen["_orig_mod.heads"][0].weight.shape == (2, 2, 5, 5)
    with heed.watch(net) as seen:  # watching the original of the compiled model
        fast(x)
    assert len(seen["heads"]) == 1
    after = fast(x)
    assert len(graphs) == 2
    assert graphs[0] is graphs[1]  # the same graph as before, not compiled again
    torch.testing.assert_close(during, before, rtol=1e-5, atol=1e-6)
    assert torch.equal(after, before)
    torch._dynamo.reset()


def test_statistics_instead_of_weights(net: Net, x: Tensor) -> None:
    with heed.watch(net) as seen:
        net(x)
    asked = Summary(top=2, map=(4, 4))
    with heed.watch(net, statistics=asked) as said:
        net(x)
    assert [len(said[path]) for path in PATHS] == [1, 1, 3]
    for path in PATHS:
        for one, other in zip(seen[path], said[path], strict=True):
            want = statistics(one.weight, asked)
            torch.testing.assert_close(other.statistics.entropy, want.entropy)
            torch.testing.assert_close(other.statistics.map, want.map)
            with pytest.raises(NotFormed):
                _ = other.weight


def test_statistics_from_the_fast_path_change_no_bit(x: Tensor) -> None:
    net = nn.Sequential(Block(), Block()).eval()
    before = net(x)
    with heed.watch(net, statistics=True) as said:
        during = net(x)
    assert torch.equal(during, before)
    assert torch.equal(net(x), before)
    assert [said[path][0].kernel for path in said] == ["sdpa", "sdpa"]
    assert hooks(net) == 0


def test_without_statistics_none_are_computed(net: Net, x: Tensor) -> None:
    for told in (None, False):
        with heed.watch(net, statistics=told) as seen:
            net(x)
        assert seen["blocks.0.heads"][0].weight.shape == (2, 2, 5, 5)
        with pytest.raises(NotFormed, match="statistics=True"):
            _ = seen["blocks.0.heads"][0].statistics


def test_weights_and_statistics_together(net: Net, x: Tensor) -> None:
    with heed.watch(net, "weight", statistics=True) as seen:
        net(x)
    one = seen["blocks.0.heads"][0]
    torch.testing.assert_close(one.statistics.mass, one.weight.sum(-1))


def test_a_model_that_asks_for_a_summary_gets_its_own(x: Tensor) -> None:
    attend = heed.Attention("dot", query=8)
    with heed.watch(attend, statistics=True) as seen:
        attend(x, statistics=Summary(top=2))
        attend(x)
    first, second = seen[""]
    assert first.statistics.top is not None
    assert second.statistics.top is None


NESTED = [
    (Summary(top=4), Summary(top=2)),
    (Summary(top=1, map=(3, 3), rows=(4, 0)), Summary(top=3)),
    (True, Summary(map=(2, 3), rows=(1,))),
    (Summary(map=(3, 3), rows=(2, 1)), Summary(map=(3, 3), rows=(0, 2))),
    (Summary(received=False), True),
    (Summary(received=False, rows=(3,)), Summary(top=2)),
]


@pytest.mark.parametrize(("one", "two"), [*NESTED, *(pair[::-1] for pair in NESTED)])
def test_each_of_two_watches_gets_what_it_asked_for(
    one: Summary | bool, two: Summary | bool, net: Net, x: Tensor
) -> None:
    block = net.blocks[0]
    with heed.watch(block, statistics=one) as outer, heed.watch(block, statistics=two) as inner:
        net(x)
    for asked, got in ((one, outer), (two, inner)):
        with heed.watch(block, statistics=asked) as alone:
            net(x)
        want = alone["heads"][0].statistics
        for name, value in got["heads"][0].statistics._asdict().items():
            torch.testing.assert_close(value, getattr(want, name), msg=name)


def test_a_watch_of_weights_does_not_get_the_statistics_of_another(net: Net, x: Tensor) -> None:
    with heed.watch(net, statistics=Summary(top=2)), heed.watch(net) as inner:
        net(x)
    with heed.watch(net) as outer, heed.watch(net, statistics=Summary(top=2)):
        net(x)
    for seen in (inner, outer):
        with pytest.raises(NotFormed):
            _ = seen["blocks.0.heads"][0].statistics


def test_rows_of_two_watches_are_kept_apart(x: Tensor) -> None:
    attend = heed.Attention("dot", query=8)
    want = attend(x, need="weight").weight
    with (
        heed.watch(attend, rows=[3, -1]) as outer,
        heed.watch(attend, rows=[0, 3]) as inner,
        heed.watch(attend, statistics=Summary(rows=(2,))) as said,
    ):
        attend(x, statistics=Summary(top=3, rows=(1,)))
    torch.testing.assert_close(outer[""][0].weight, want[:, :, [3, 4]])
    torch.testing.assert_close(inner[""][0].weight, want[:, :, [0, 3]])
    told = said[""][0].statistics
    torch.testing.assert_close(told.rows, want[:, :, [1, 2]])  # the model's own come first
    assert told.top is not None


def test_two_maps_of_one_call_are_refused(x: Tensor) -> None:
    attend = heed.Attention("dot", query=8)
    small, large = Summary(map=(2, 2)), Summary(map=(4, 4))
    with (
        heed.watch(attend, statistics=large),
        heed.watch(attend, statistics=small),
        pytest.raises(Refused, match=r"one map.*4 by 4.*2 by 2"),
    ):
        attend(x)
    with (
        heed.watch(attend, statistics=small),
        pytest.raises(Refused, match=r"one map.*4 by 4.*2 by 2"),
    ):
        attend(x, statistics=large)
    assert hooks(attend) == 0


def test_watching_statistics_changes_no_gradient(net: Net, x: Tensor) -> None:
    x.requires_grad_()
    (want,) = torch.autograd.grad(net(x).square().sum(), x)
    with heed.watch(net, statistics=True) as seen:
        out = net(x)
    (got,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert not seen["blocks.0.heads"][0].statistics.entropy.requires_grad
