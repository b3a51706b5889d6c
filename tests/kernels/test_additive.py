"""Additive attention as an operator: what it refuses, and how PyTorch's transforms treat it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.errors import Refused, ShapeError
from heed.kernels import additive
from heed.kernels.additive import native, operator
from heed.kernels.additive.plan import Plan
from heed.records import Call, Claims
from heed.visible import Gaussian, Lengths, Near, Places, Visible

B, H, G, T, S, D, R = 2, 4, 2, 5, 9, 6, 3

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available()
    and native.refusal(*(torch.zeros(1),) * 3) is not None,  # built where there is a compiler
    reason="there is neither a GPU nor the native library",
)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(B, H, T, D), torch.randn(B, G, S, D), torch.randn(B, G, S, R)
    return q.to(dtype), k.to(dtype), v.to(dtype), torch.randn(H, D)


def asked(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, visible: Visible | None = None, **others: Any
) -> Call:
    T, S = q.shape[2], k.shape[2]
    told: dict[str, Any] = {
        "family": "additive",
        "scale": 1.0,
        "gain": None,
        "bias": None,
        "places": Places(T, S, 0, S - T, q.device),
        "claims": Claims(),
        "align": "softmax",
        "read": "blend",
        "dropout": 0.0,
        "need": "context",
    }
    return Call(q=q, k=k, v=v, vector=w, visible=visible, **{**told, **others})


def by_hand(call: Call) -> Tensor:
    """The definition, in float64."""
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    assert call.vector is not None
    w = call.vector.double()[:, None, None]
    energy = (torch.tanh(q[:, :, :, None] + k[:, :, None]) * w).sum(-1)
    ok = call.dense_visible()
    ok = torch.ones(energy.shape, dtype=torch.bool) if ok is None else ok.expand(energy.shape)
    sighted = ok.any(-1, keepdim=True)
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1) * sighted
    if call.gain is not None:
        weight = weight * call.gain.dense(call.places)
    return weight @ v


VISIBLE: dict[str, Callable[[], Visible | None]] = {
    "everything": lambda: None,
    "causal": heed.causal,
    "lengths": lambda: heed.lengths([S // 2, 0]),
    "window": lambda: heed.window(2),
    "holes": lambda: Visible.keys(torch.rand(B, S) > 0.5),
    "any mask": lambda: Visible.mask(torch.rand(B, H, T, S) > 0.5),
    "one mask for all rows": lambda: Visible.mask(torch.rand(1, T, S) > 0.5),
    "local-m": lambda: Near(torch.arange(T).expand(B, 1, T), 2),
    "not and or": lambda: heed.causal() | ~heed.window(1),
    "everything at once": lambda: (
        heed.causal() & heed.lengths([S, 4]) & heed.window(5) & Visible.keys(torch.rand(B, S) > 0.2)
    ),
    "two windows": lambda: (
        Near(torch.rand(B, H, T) * S, 4) & Near(torch.rand(1, H, T) * S, 5) & heed.window(6)
    ),
}


@pytest.mark.parametrize("name", list(VISIBLE))
def test_predicates_are_read_correctly(name: str) -> None:
    call = asked(*inputs(), VISIBLE[name]())
    assert additive.refusal(call) is None
    torch.testing.assert_close(additive.run(call).double(), by_hand(call), atol=2e-6, rtol=0)


def test_a_gain_multiplies_after_the_softmax() -> None:
    centre = torch.rand(B, H, T) * S
    call = asked(*inputs(), Near(centre, 4), gain=Gaussian(centre, 2.0))
    torch.testing.assert_close(additive.run(call).double(), by_hand(call), atol=2e-6, rtol=0)


def test_a_mask_that_does_not_fit_is_refused_with_both_shapes() -> None:
    for wrong in (Visible.mask(torch.ones(T, S + 1) > 0), heed.lengths([1, 2, 3])):
        with pytest.raises(heed.HeedError, match="fit"):
            additive.run(asked(*inputs(), wrong))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"family": "dot"}, "additive scores, not dot"),
        ({"need": "weight"}, "the weight was requested"),
        ({"align": "entmax"}, "softmax, not entmax"),
        ({"read": "pointer"}, "a pointer does not"),
        ({"claims": Claims(is_row_wise=False)}, "earlier weights"),
        ({"bias": torch.zeros(1, 1, 1, S)}, "a bias"),
        ({"sinks": 1}, "without a position"),
    ],
)
def test_calls_it_cannot_serve_are_refused(change: dict[str, Any], words: str) -> None:
    reason = additive.refusal(asked(*inputs(), **change))
    assert reason is not None
    assert words in reason


def test_unsupported_dtypes_are_refused() -> None:
    q, k, v, w = inputs()
    assert "float64" in str(additive.refusal(asked(q.double(), k.double(), v.double(), w)))
    assert "differ" in str(additive.refusal(asked(q, k.bfloat16(), v, w)))


def test_transforms_are_left_to_the_reference() -> None:
    q, k, v, w = inputs()
    reasons: list[str | None] = []

    def look(q: Tensor) -> Tensor:
        reasons.append(additive.refusal(asked(q[None], k[:1], v[:1], w)))
        return q

    torch.func.vmap(look)(q)
    assert reasons
    assert all("transform" in str(reason) for reason in reasons)


def arguments(seen: Plan) -> tuple[Any, ...]:
    leaves = [x.requires_grad_() for x in inputs()]
    return (*leaves, *seen, 0.0, None, None)


def plans() -> dict[str, Plan]:
    centre = torch.rand(B, H, T) * S
    stop = torch.tensor([S, 4], dtype=torch.int32)
    return {
        "plain": Plan(),
        "gain": Plan(stop=stop, centre=centre, gain_centre=centre.clone(), sigma=2.0, radius=4),
        "mask": Plan(table=torch.rand(B, 1, T, S) > 0.5, exists=torch.rand(B, S) > 0.2),
    }


@pytest.mark.parametrize("name", list(plans()))
def test_the_operator_passes_opcheck(name: str) -> None:
    seen = plans()[name]
    if seen.gain_centre is not None:
        seen = seen._replace(gain_centre=seen.gain_centre.requires_grad_())
    given = arguments(seen)
    torch.library.opcheck(torch.ops.heed.additive.default, given)
    q, k, v, w, *rest = (x.detach() if isinstance(x, Tensor) else x for x in given)
    context, log_sum = torch.ops.heed.additive(q, k, v, w, *rest)
    given = (torch.randn_like(context), q, k, v, w, context, log_sum, *rest)
    torch.library.opcheck(torch.ops.heed.additive_backward.default, given)


def test_it_compiles_as_one_graph() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return additive.run(asked(q, k, v, w, heed.causal()))

    plain = [x.requires_grad_() for x in inputs()]
    want, got = attend(*plain), torch.compile(attend, fullgraph=True, backend="aot_eager")(*plain)
    torch.testing.assert_close(got, want)
    for x, y in zip(*(torch.autograd.grad(z.sum(), plain) for z in (got, want)), strict=True):
        torch.testing.assert_close(x, y)


def test_it_exports() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
            return additive.run(asked(q, k, v, w, heed.causal()))

    given = inputs()
    program = torch.export.export(Attend(), given)
    assert any("heed.additive" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*given), Attend()(*given))


@pytest.mark.parametrize("of_keys", [False, True])
def test_it_exports_for_batches_of_any_size(of_keys: bool) -> None:
    class Asked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = heed.Attention("additive", query=D)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            exists = torch.arange(S) < n[:, None] if of_keys else heed.lengths(n)
            return self.attend(x, self.attend.remember(x, visible=exists)).context

    def given(rows: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, S, D), torch.randint(S + 1, (rows,))

    asked, rows = Asked(), torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(asked, given(2), dynamic_shapes=({0: rows}, {0: rows}))
    others = given(7)
    torch.testing.assert_close(program.module()(*others), asked(*others))


def test_autocast_lowers_the_inputs() -> None:
    call = asked(*inputs())
    with torch.autocast(call.q.device.type, dtype=torch.bfloat16):
        assert additive.refusal(call) is None
        got = additive.run(call)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), by_hand(call), atol=0.03, rtol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("by_vmap", [False, True])
@pytest.mark.parametrize("name", ["additive", "entmax/additive"])
def test_batched_gradients_equal_single_ones(name: str, by_vmap: bool) -> None:
    attend, x = heed.Attention(name, query=D), torch.randn(B, T, D, requires_grad=True)
    context, by = attend(x).context, torch.randn(3, B, T, D)

    def back(by: Tensor, **how: bool) -> Tensor:
        return torch.autograd.grad(context, x, by, retain_graph=True, **how)[0]

    want = torch.stack([back(each) for each in by])
    got = torch.func.vmap(back)(by) if by_vmap else back(by, is_grads_batched=True)
    torch.testing.assert_close(got, want)


def test_second_derivatives_are_refused() -> None:
    q, k, v, w = (x.requires_grad_() for x in inputs())
    (grad,) = torch.autograd.grad(additive.run(asked(q, k, v, w)).sum(), q, create_graph=True)
    with pytest.raises(Refused, match="first derivatives only"):
        grad.sum().backward()


@pytest.mark.parametrize("name", list(plans()))
def test_bypassing_the_dispatcher_changes_no_bit(name: str) -> None:
    given, seen = inputs(), plans()[name]
    assert torch.equal(*(operator.attend(*given, seen, plainly=by) for by in (True, False)))
    leaves = [x.requires_grad_() for x in given]
    if seen.gain_centre is not None:
        leaves.append(seen.gain_centre.requires_grad_())
    found = []
    for by in (True, False):
        context = operator.attend(*given, seen, plainly=by)
        assert type(context.grad_fn).__name__.startswith("_Attend") == by
        found.append(torch.autograd.grad(context.square().sum(), leaves))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_dropout_differs_between_calls() -> None:
    call = asked(*inputs(), dropout=0.5)
    assert not torch.equal(additive.run(call), additive.run(call))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU prepares nothing")
def test_keys_are_prepared_once() -> None:
    kept: dict[str, Any] = {}
    call = asked(*inputs(), prepared=kept)
    first = additive.run(call)
    made = kept["additive"]
    again = additive.run(call)
    assert kept["additive"] is made
    assert torch.equal(first, again)
    torch.testing.assert_close(first.double(), by_hand(call), atol=2e-6, rtol=0)


@pytest.mark.parametrize("shape", [(3, 40), (2, 9, 40), (2, 3, 10, 40), (10, 39)])
def test_a_mask_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    attend = heed.Attention("additive", query=8).eval()
    with pytest.raises(ShapeError, match=r"visible (does not fit|and keys disagree)"):
        attend(
            torch.randn(2, 10, 8),
            torch.randn(2, 40, 8),
            visible=torch.ones(shape, dtype=torch.bool),
        )


def test_a_query_of_nan_is_not_taken_for_one_that_sees_nothing() -> None:
    attend = heed.Attention("additive", query=8).eval()
    query = torch.randn(1, 3, 8)
    query[0, 1, 2] = torch.nan
    context = attend(query, torch.randn(1, 5, 8)).context
    assert context[0, 1].isnan().all()
    assert context[0, [0, 2]].isfinite().all()


def test_a_memory_first_used_without_gradients_may_learn() -> None:
    attend = heed.Attention("additive", query=8)
    memory = attend.remember(torch.randn(2, 40, 8))
    with torch.inference_mode():
        attend(torch.randn(2, 1, 8), memory)
    query = torch.randn(2, 1, 8, requires_grad=True)
    attend(query, memory).context.sum().backward()
    assert query.grad is not None


@pytest.mark.parametrize("inference", [False, True])
def test_keys_changed_in_place_are_prepared_again(inference: bool) -> None:
    """PyTorch does not count writes to tensors that were made in inference mode."""
    attend = heed.Attention("concat-identity", query=8).eval()
    with torch.inference_mode(inference):
        source, query = torch.randn(2, 40, 8), torch.randn(2, 1, 8)
        memory = attend.remember(source)
        attend(query, memory)
        source[1, 7] = 3
        again = attend(query, memory).context
        with heed.kernels.off("additive"):
            torch.testing.assert_close(again, attend(query, memory).context)


@pytest.mark.parametrize("count", [2**31, 2**62])
def test_huge_lengths_and_windows_mean_the_whole_text(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lengths, "check", lambda *_: None)  # as on a GPU, where they are not read
    attend = heed.Attention("additive", query=8)
    text = torch.randn(2, 40, 8)
    visible = heed.lengths([count, 7])
    far = attend(text, text, visible=visible & heed.window(2**63 - 1)).context
    with heed.kernels.off("additive"):
        torch.testing.assert_close(far, attend(text, text, visible=visible).context)
