"""What a watch keeps: chosen modules, heads and rows, the words, and no more than its limit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.statistics import statistics
from heed.errors import NotFormed, Refused, UnknownName
from heed.records import Attended, Summary
from heed.watching.watch import StandIn, attentions


class Net(nn.Module):
    """Two attentions in heads, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.low = heed.MultiHeadAttention(8, 4)
        self.high = heed.MultiHeadAttention(8, 4, mechanism="additive")
        self.out = heed.Attention("coverage/additive", query=8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.low(x, visible=heed.causal()).context
        x = x + self.high(x, visible=heed.causal()).context
        seen: Attended = self.out(x)
        return seen.context


@pytest.fixture
def net() -> nn.Module:
    net = nn.ModuleDict({"a": Net(), "b": Net()}).eval()
    net.forward = lambda x: net["b"](net["a"](x))  # type: ignore[assignment]
    return net


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 8)


@pytest.fixture
def whole(net: nn.Module, x: Tensor) -> Any:
    with heed.watch(net) as seen:
        net(x)
    return seen


def test_modules_are_chosen_by_pattern(net: nn.Module, x: Tensor) -> None:
    every = [f"{m}.{name}" for m in "ab" for name in ("low", "high", "out")]
    for pattern, want in (
        ("*", every),
        ("a.*", every[:3]),
        ("*.low", ["a.low", "b.low"]),
        (["b.out", "a.h*"], ["a.high", "b.out"]),
    ):
        with heed.watch(net, modules=pattern) as seen:
            net(x)
        assert list(seen) == want
        assert all(len(seen[path]) == 1 for path in want)


def test_a_pattern_that_matches_nothing_is_refused(net: nn.Module) -> None:
    with pytest.raises(UnknownName, match=r"did you mean a\.low"), heed.watch(net, modules="a.lwo"):
        pass
    with pytest.raises(UnknownName), heed.watch(net, modules=["*.low", "c.*"]):
        pass
    typo: Any = [3]
    with pytest.raises(Refused, match="paths and patterns"), heed.watch(net, modules=typo):
        pass


def test_an_unknown_path_gets_the_nearest(whole: Any) -> None:
    with pytest.raises(UnknownName, match=r"did you mean a\.low"):
        whole["a.loww"]


def test_heads_can_be_chosen(net: nn.Module, x: Tensor, whole: Any) -> None:
    with heed.watch(net, statistics=Summary(top=2, map=(2, 3)), modules="*.*h*") as said:
        net(x)
    with heed.watch(
        net, "energy", statistics=Summary(top=2, map=(2, 3)), modules="a.high", heads=[3, 0]
    ) as seen:
        net(x)
    record, all_heads = seen["a.high"][0], said["a.high"][0].statistics
    assert seen.heads == (3, 0)
    torch.testing.assert_close(record.weight, whole["a.high"][0].weight[:, [3, 0]])
    assert record.energy.shape == (2, 2, 5, 5)
    for name, value in record.statistics._asdict().items():
        want = getattr(all_heads, name)
        if name != "log_sum" and name != "rows":
            torch.testing.assert_close(value, want[:, [3, 0]])


def test_a_head_that_does_not_exist_is_refused(net: nn.Module, x: Tensor) -> None:
    with (
        pytest.raises(Refused, match=r"a\.out has 1 heads, and no head 1"),
        heed.watch(net, heads=[1]),
    ):
        net(x)
    for wrong in ([], "01", [-1], [0.5], 2):
        given: Any = wrong
        with pytest.raises(Refused, match="heads"), heed.watch(net, heads=given):
            pass


def test_only_chosen_rows_are_formed(net: nn.Module, x: Tensor, whole: Any) -> None:
    before = net(x)
    with heed.watch(net, rows=[-1, 1, 77]) as seen:
        during = net(x)
    torch.testing.assert_close(during, before)
    for path in seen:
        record = seen[path][0]
        torch.testing.assert_close(record.weight, whole[path][0].weight[:, :, [1, 4]])
        with pytest.raises(NotFormed):
            _ = record.statistics
    assert seen["a.low"][0].kernel == "sdpa"  # the fast path
    assert whole["a.low"][0].kernel == "reference"


def test_rows_beside_statistics_and_energies(net: nn.Module, x: Tensor, whole: Any) -> None:
    with heed.watch(net, "weight", statistics=True, rows=[2]) as seen:
        net(x)
    record = seen["a.low"][0]
    torch.testing.assert_close(record.weight, whole["a.low"][0].weight[:, :, [2]])
    want = statistics(whole["a.low"][0].weight)
    torch.testing.assert_close(record.statistics.entropy, want.entropy)  # of every query
    with heed.watch(net, "energy", rows=[2], heads=[0]) as seen:
        net(x)
    assert seen["a.low"][0].energy.shape == (2, 1, 1, 5)
    with heed.watch(net, statistics=True, rows=[2]) as seen:  # no weights were asked for
        net(x)
    with pytest.raises(NotFormed):
        _ = seen["a.low"][0].weight


def test_rows_that_no_call_has_leave_no_weights(net: nn.Module, x: Tensor) -> None:
    with heed.watch(net, rows=[9]) as seen:
        net(x)
    with pytest.raises(NotFormed):
        _ = seen["a.low"][0].weight


def test_a_model_keeps_the_rows_that_it_asked_for(x: Tensor) -> None:
    attend = heed.Attention("dot", query=8)
    weight = attend(x, need="weight").weight
    with heed.watch(attend, rows=[0, 3]) as seen:
        mine = attend(x, statistics=Summary(rows=(3, 1))).statistics.rows
    assert mine is not None
    torch.testing.assert_close(mine[:, :, :2], weight[:, :, [3, 1]])
    torch.testing.assert_close(seen[""][0].weight, weight[:, :, [0, 3]])


def test_two_watches_each_get_their_own(net: nn.Module, x: Tensor, whole: Any) -> None:
    with heed.watch(net, rows=[0]) as one, heed.watch(net, heads=[0], modules="*.low") as two:
        net(x)
    torch.testing.assert_close(one["b.low"][0].weight, whole["b.low"][0].weight[:, :, :1])
    torch.testing.assert_close(two["b.low"][0].weight, whole["b.low"][0].weight[:, :1])


NAMES = [name for name, entry in CATALOGUE.items() if entry.slot != "read" or name == "pointer"]


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_can_be_watched(name: str, x: Tensor) -> None:
    """Weights, a row of them, and statistics; and the context stays what it was."""
    options = {"longest": 9} if name == "location" else {}
    attend = heed.Attention(name, query=8, key=8, **options).eval()
    query = None if name == "static" else x[:, :3]

    def run() -> Attended:
        seen: Attended = attend(query, attend.remember(x))
        return seen

    before = run()
    for wish in ({}, {"rows": [0]}, {"statistics": True}):
        asked: Any = wish
        with heed.watch(attend, **asked) as seen:
            during = run()
        if attend.mechanism.claims.gives_context:
            torch.testing.assert_close(during.context, before.context)
        record = seen[""][0]
        if not wish:
            weight = record.weight
        elif "rows" in wish:
            torch.testing.assert_close(record.weight, weight[:, :, :1])
        else:
            torch.testing.assert_close(record.statistics.entropy, statistics(weight).entropy)


def test_words_are_attached(net: nn.Module, x: Tensor) -> None:
    with heed.watch(net, tokens=["a", "b", "c", "d", "e"]) as seen:
        net(x)
    assert seen.labels("a.low") == (("a", "b", "c", "d", "e"),) * 2
    seen.tokens([["x"], ["y", "z"]], [["p", "q"], ["r"]], modules="b.*")
    assert seen.labels("b.out", 1) == (("y", "z"), ("r",))
    assert seen.labels("a.low")[0][0] == "a"
    with pytest.raises(Refused, match="row 2 has none"):
        seen.labels("b.out", 2)
    for wrong in ("words", [["a"], "b"], [1, 2], [["a", 3]]):
        given: Any = wrong
        with pytest.raises(Refused, match="list of words"):
            seen.tokens(given)
    with pytest.raises(UnknownName):
        seen.tokens(["a"], modules="nowhere")


def test_without_words_there_are_none(whole: Any) -> None:
    assert whole.labels("a.low") == ((), ())


def test_more_than_the_limit_is_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(Refused, match="more than limit=1,000 bytes"), heed.watch(net, limit=1000):
        net(x)
    assert not net["a"].low._forward_hooks
    with heed.watch(net, limit=10_000) as seen:
        net(x)
    record = seen["a.low"][0]
    assert not record.weight.requires_grad
    with pytest.raises(NotFormed):
        _ = record.context


def test_records_within_a_limit_hold_no_other_memory(net: nn.Module, x: Tensor) -> None:
    with heed.watch(net, limit=10_000, rows=[0], heads=[1], modules="a.low") as seen:
        net(x)
    assert seen["a.low"][0].weight.untyped_storage().nbytes() == 2 * 5 * 4
    with heed.watch(net, limit=10_000, statistics=True, modules="a.low") as seen:
        net(x)
    for told in seen["a.low"][0].statistics:  # a kernel wrote these into one allocation
        assert told is None or told.untyped_storage().nbytes() == told.nbytes


def test_records_can_be_moved_to_disk(
    net: nn.Module, x: Tensor, whole: Any, tmp_path: Path
) -> None:
    with heed.watch(net, "weight", statistics=True, limit=1500, spill=tmp_path / "w") as seen:
        net(x)
    files = sorted(path.name for path in (tmp_path / "w").iterdir())
    assert len(files) > 1
    assert files[0] == "watch-00000.safetensors"
    held = sum(
        isinstance(e, Attended) for records in seen.records.values() for e in records.entries
    )
    assert held < 3
    for path in seen:
        torch.testing.assert_close(seen[path][0].weight, whole[path][0].weight)
        assert seen[path][0].kernel == whole[path][0].kernel
        assert seen[path][-1].statistics.entropy.shape[:1] == (2,)
        assert len(seen[path][:]) == 1


def test_a_folder_can_be_used_only_once(net: nn.Module, x: Tensor, tmp_path: Path) -> None:
    with heed.watch(net, limit=10, spill=tmp_path):
        net(x)
    with pytest.raises(Refused, match="already holds the records"), heed.watch(net, spill=tmp_path):
        pass
    file = next(tmp_path.iterdir())
    for wrong in (file, file / "below"):
        with pytest.raises(Refused, match="spill takes a folder"), heed.watch(net, spill=wrong):
            pass


def test_a_changed_file_on_disk_is_noticed(net: nn.Module, x: Tensor, tmp_path: Path) -> None:
    with heed.watch(net, limit=10, spill=tmp_path) as seen:
        net(x)
    first, second = sorted(tmp_path.iterdir())[:2]
    first.write_bytes(sorted(tmp_path.iterdir())[2].read_bytes())
    with pytest.raises(heed.HeedError, match="has changed"):
        seen["a.low"][0]
    second.unlink()
    with pytest.raises(Refused, match="there is no file"):
        seen["a.high"][0]


def test_a_substitute_is_watched_under_the_path_of_its_module(x: Tensor) -> None:
    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stand_in = StandIn()

        def forward(self, q: Tensor) -> Tensor:
            def attend(**asked: Any) -> Attended:
                return heed.attend(q, q, q, visible=heed.causal(), **asked)

            return self.stand_in(q, attend).context

    model = nn.Sequential(Foreign(), Foreign())
    q = torch.randn(1, 2, 4, 8)
    assert [path for path, _ in attentions(model)] == ["0", "1"]
    with heed.watch(model, rows=[-1]) as seen:
        model(q)
    assert list(seen) == ["0", "1"]
    assert seen["1"][0].weight.shape == (1, 2, 1, 4)
