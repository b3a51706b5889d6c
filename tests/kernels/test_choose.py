"""Which kernel serves a call, and why others do not."""

import pytest
import torch
from torch import nn

import heed
from heed.errors import UnknownName
from heed.kernels import KERNELS, NAMES, choose, scan


def seen(name: str, need: str = "context", **more: object) -> heed.Attended:
    attend = heed.Attention(name, query=4, **more).eval()  # type: ignore[arg-type]
    answer = attend(torch.randn(2, 1, 4), torch.randn(2, 3, 4), need=need)
    assert isinstance(answer, heed.Attended)
    return answer


SERVED = ("dot", "scaled-dot", "general", "key-value", "cosine", "local-m", "fixed-window",
          "expanded-window", "static")  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_the_dot_family_is_served_by_sdpa(name: str) -> None:
    answer = seen(name)
    assert answer.kernel == "sdpa"
    assert answer.why.startswith("served by sdpa")
    assert "sdpa" not in dict(answer.refusals)


REASONS = {
    "additive": "it computes dot products, not additive scores",
    "concat": "it computes dot products, not additive scores",
    "concat-identity": "it computes dot products, not additive scores",
    "relative": "it computes dot products, not relative scores",
    "location": "it computes dot products, not location scores",
    "mixture-window": "it computes dot products, not blind scores",
    "sparsemax": "it normalises by softmax, not sparsemax",
    "entmax": "it normalises by softmax, not entmax",
    "argmax": "it normalises by softmax, not argmax",
    "sample": "it normalises by softmax, not sample",
    "gumbel": "it normalises by softmax, not gumbel",
    "forward": "it normalises by softmax, not forward",
    "forced-forward": "it normalises by softmax, not forced-forward",
    "monotonic": "it normalises by softmax, not monotonic",
    "local-p": "it cannot multiply the weights by a gain",
    "coverage": "it cannot pass earlier weights to the next step",
    "location-aware": "it cannot pass earlier weights to the next step",
    "pointer": "it sums values; a pointer does not",
}


def server(name: str) -> str:
    """Which kernel serves what the fused dot product does not."""
    if name in ("additive", "concat", "concat-identity"):
        return "additive"
    return "scan" if name in scan.ALIGNS else "reference"


@pytest.mark.parametrize("name", REASONS)
def test_every_refusal_gives_its_reason(name: str) -> None:
    answer = seen(name)
    assert answer.kernel == server(name)
    assert dict(answer.refusals)["sdpa"] == REASONS[name]
    assert answer.why.startswith(f"served by {answer.kernel}; ")
    assert f"; sdpa: {REASONS[name]}" in answer.why


def test_every_kernel_that_did_not_serve_has_a_reason() -> None:
    answer = seen("sparsemax")
    assert [name for name, _ in answer.refusals] == list(KERNELS)
    parts = [f"{name}: {reason}" for name, reason in answer.refusals]
    assert answer.why == "; ".join(["served by reference", *parts])


def test_mixed_reports_both_lanes() -> None:
    answer = seen("mixed")
    assert answer.kernel == "sdpa + reference"
    assert f"; sdpa: {REASONS['local-p']}" in answer.why


@pytest.mark.parametrize("need", ["weight", "energy"])
def test_the_need_can_be_the_reason(need: str) -> None:
    reason = f"the {need} was requested, and fused attention forms none"
    answer = seen("dot", need)
    assert answer.kernel == "reference"
    assert dict(answer.refusals)["sdpa"] == reason


def test_a_kernel_can_be_switched_off() -> None:
    with heed.kernels.off("sdpa"):
        answer = seen("dot")
    assert answer.kernel == "reference"
    assert dict(answer.refusals)["sdpa"] == "it is switched off"
    assert seen("dot").kernel == "sdpa"


def test_the_fast_path_of_the_function_obeys_the_switch() -> None:
    q = torch.randn(1, 1, 3, 4)
    for visible in (None, heed.causal()):
        assert heed.attend(q, q, q, visible=visible).why == "served by sdpa"
        with heed.kernels.off("sdpa"):
            answer = heed.attend(q, q, q, visible=visible)
        assert answer.kernel == "reference"
        assert "; sdpa: it is switched off" in answer.why


def test_off_can_be_nested() -> None:
    with heed.kernels.off("sdpa"):
        with heed.kernels.off("sdpa"), heed.kernels.off():
            assert not choose.is_on("sdpa")
        assert not choose.is_on("sdpa")
        assert seen("dot").kernel == "reference"
    assert choose.is_on("sdpa")


def test_off_ends_after_an_exception() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), heed.kernels.off("sdpa"):
        raise RuntimeError("on purpose")
    assert choose.is_on("sdpa")


def test_off_without_names_switches_nothing_off() -> None:
    with heed.kernels.off():
        assert seen("dot").kernel == "sdpa"


def test_off_accepts_every_kernel() -> None:
    with heed.kernels.off(*KERNELS):
        assert seen("dot").kernel == "reference"
    with heed.kernels.off(*NAMES):
        assert not any(map(choose.is_on, NAMES))
        assert [name for name, _ in seen("dot").refusals] == list(KERNELS)  # these alone attend


def test_an_unknown_kernel_gets_the_nearest_name() -> None:
    told = "no kernel is called 'spda'; did you mean sdpa"
    with pytest.raises(UnknownName, match=told), heed.kernels.off("spda"):
        pass
    with pytest.raises(UnknownName), heed.kernels.off("sdpa", "flash"):
        pass
    assert choose.is_on("sdpa")


class Net(nn.Module):
    """An attention that reports which kernel served it."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = heed.Attention("general", query=4)

    def forward(self, x: torch.Tensor) -> heed.Attended:
        answer: heed.Attended = self.attend(x, visible=heed.causal())
        return answer


def test_switching_off_affects_a_compiled_model() -> None:
    torch._dynamo.reset()
    net, x = Net(), torch.randn(2, 5, 4)
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert fast(x).kernel == "sdpa"
    with heed.kernels.off("sdpa"):
        slow = fast(x)
    assert slow.kernel == "reference"
    assert dict(slow.refusals)["sdpa"] == "it is switched off"
    torch.testing.assert_close(slow.context, net(x).context)
    assert fast(x).kernel == "sdpa"
    torch._dynamo.reset()


def test_contexts_may_overlap() -> None:
    q = torch.randn(1, 1, 3, 4)
    one, two = heed.kernels.off("sdpa"), heed.kernels.off("banded", "sdpa")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert heed.attend(q, q, q).kernel == "reference"
    two.__exit__(None, None, None)
    assert heed.attend(q, q, q).kernel == "sdpa"
