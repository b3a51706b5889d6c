"""Axes of size zero, in every combination that the door lets through: no batch, no head, no query,
no key, nothing to read. An empty tensor has no address of its own, and C must not miss it."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.names import build, options_of
from heed.errors import Refused
from heed.kernels import native
from heed.kernels.additive import native as additive
from heed.kernels.additive.plan import Plan
from heed.kernels.cell import native as cell
from heed.kernels.choose import NAMES, off
from heed.kernels.linear import native as linear
from heed.kernels.scan import native as scan

needs_library = pytest.mark.skipif(native.missing() is not None, reason=native.missing() or "")

M, G = 4, 1
COMPOSED = (
    "local-m/additive",
    "local-p/additive",
    "local-p/general",
    "coverage/additive",
    "location-aware/additive",
    "monotonic/additive",
    "forward/additive",
    "forced-forward/general",
    "mixed/additive",
    "pointer/additive",
    "sparsemax/additive",
    "fixed-window/additive",
    "mixture-window/local-m",
)
SIZES = [x for x in product((0, 2), (0, 3), (0, 5), (0, 4)) if 0 in x]  # B T S R
SIZES += [(2, 1, 70, 0), (2, 3, 70, 0), (0, 3, 70, 4), (2, 0, 70, 4)]
SUMMARY = heed.Summary(top=2, map=(2, 2))


def test_an_empty_tensor_has_an_address() -> None:
    assert native.address(None) == 0
    assert native.address(torch.empty(3, 0)) != 0
    some = torch.ones(3)
    assert native.address(some) == some.data_ptr()


def answered(name: str, size: tuple[int, ...], **wishes: Any) -> list[Tensor]:
    """All that a call forms, and all its gradients; the last key is hidden."""
    torch.manual_seed(0)
    B, T, S, R = size
    options = {"longest": 70, "agent": True, "window": 2}
    options = {key: x for key, x in options.items() if key in options_of(name)}
    made = build(name, query=M, key=M, value=M, heads=2, groups=G, **options).eval()
    q, k, v = torch.randn(B, 2, T, M), torch.randn(B, G, S, M), torch.randn(B, G, S, R)
    given = [x.requires_grad_() for x in (q, k, v)]
    exists = torch.arange(S).expand(B, S) < S - 1
    seen = made(q, made.remember(k, v, exists), **wishes)
    found = [x for x in seen.formed[:3] if x is not None]
    learnt = [x for x in (*given, *made.parameters()) if x.requires_grad]
    grads = torch.autograd.grad(sum(x.sum() for x in found), learnt, allow_unused=True)
    said = [x for x in seen.formed.statistics or () if x is not None]
    return [*found, *(torch.empty(0) if x is None else x for x in grads), *said]


def sizes(name: str) -> Iterator[tuple[int, ...]]:
    """Those that a mechanism takes."""
    once = not build(name, query=M, key=M).claims.takes_several
    same = "key-value" in name
    return (x for x in SIZES if not (once and x[1] > 1) and not (same and x[3] != M))


@pytest.mark.parametrize("wishes", [{}, {"need": "energy"}, {"statistics": SUMMARY}], ids=str)
@pytest.mark.parametrize("name", [*CATALOGUE, *COMPOSED])
def test_every_mechanism_answers_as_without_kernels(name: str, wishes: dict[str, Any]) -> None:
    for size in sizes(name):
        if "mixed" in name and "statistics" in wishes and not size[2]:
            continue  # refused: there are none of no keys
        ours = answered(name, size, **wishes)
        with off(*NAMES):
            theirs = answered(name, size, **wishes)
        for x, y in zip(ours, theirs, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4, msg=f"{name} {size}")


def test_attention_without_values_is_the_one_that_crashed() -> None:
    attend, keys = heed.Attention("additive", query=M, key=M), torch.randn(1, 9, M)
    seen = attend(torch.randn(1, 7, M), attend.remember(keys, keys[..., :0]))
    assert seen.kernel == "additive"
    assert seen.context.shape == (1, 7, 0)


@needs_library
@pytest.mark.parametrize("sight", ["all", "some"])
def test_additive_attention_and_its_energies(sight: str) -> None:
    for B, H, T, S, D, R in product((0, 2), (0, 2), (0, 3), (0, 9), (0, 5), (0, 4)):
        q, k, v = torch.randn(B, H, T, D), torch.randn(B, 1, S, D), torch.randn(B, 1, S, R)
        w, plan = torch.randn(H, D), Plan()
        if sight == "some":
            hidden = torch.rand(B, S) < 0.5, torch.rand(1, 1, T, S) < 0.5
            centre = torch.zeros(B, H, T)
            stop = torch.full((B,), S, dtype=torch.int32)
            plan = Plan(stop, *hidden, centre, centre, 2.0, 0, True, 3, 2)
        seed = torch.ones(1, dtype=torch.int64)
        context, log_sum = additive.forward(q, k, v, w, plan, 0.5, seed)
        assert context.shape == (B, H, T, R)
        assert not context.isnan().any()
        if not S:
            assert (log_sum == -torch.inf).all()
            assert not context.any()
        grads = additive.backward(context, q, k, v, w, context, log_sum, plan, 0.5, seed)
        for x, y in zip(grads, (q, k, v, w, plan.gain_centre), strict=True):
            assert (x is None) == (y is None)
            assert x is None or (x.shape == y.shape and x.isfinite().all())  # type: ignore[union-attr]
        inner = torch.tanh(q[:, :, :, None] + k[:, :, None])
        want = (inner * w[:, None, None]).sum(-1)
        energy = additive.energies(q, k, w)
        torch.testing.assert_close(energy, want.expand(B, H, T, S), rtol=1e-5, atol=1e-5)
        for x, y in zip(additive.energies_backward(energy, q, k, w), (q, k, w), strict=True):
            assert x.shape == y.shape
            assert x.isfinite().all()


@needs_library
@pytest.mark.parametrize("kind", scan.KINDS)
def test_walks(kind: Any) -> None:
    for B, H, T, S, hides in product((0, 2), (0, 2), (0, 3), (0, 5), (False, True)):
        energy, before = torch.randn(B, H, T, S), torch.zeros(B, H, S)
        ok = torch.ones(B, H, T, S, dtype=torch.bool).tril() if hides else None
        covered = before if kind == "forced" else None
        move = torch.full((B, H, T), 0.5) if kind == "forward" else None
        weight, last, used, stand = scan.walk(kind, energy, ok, before, covered, move)
        assert weight.shape == energy.shape
        assert last.shape == before.shape
        back = scan.walk_back(
            kind, energy, ok, before, covered, move, weight, stand, weight, last,
            used if kind == "forced" else None,
        )  # fmt: skip
        assert [x.shape for x in back[:2]] == [energy.shape, before.shape]


@needs_library
def test_mixtures_of_windows() -> None:
    for B, H, T, S, K in product((0, 2), (0, 1), (0, 3), (0, 5), (0, 2)):
        parts = [torch.rand(B, H, T, K) for _ in range(3)]
        ok = torch.ones(B, H, T, S, dtype=torch.bool)
        weight = scan.mix(*parts, ok, S)
        assert weight.shape == (B, H, T, S)
        if not K:
            assert not weight.any()
        for x in scan.mix_back(*parts, ok, weight):
            assert x.shape == parts[0].shape
            assert S or not x.any()


@needs_library
def test_linear_maps() -> None:
    for rows, N, K, L in product((0, 7), (0, 18), (0, 5), (None, 0, 3)):
        weight, x = torch.randn(N, K), torch.randn(rows, K)
        torch.testing.assert_close(linear.forward(x, linear.pack(weight)), x @ weight.t())
        torch.testing.assert_close(linear.forward(x, linear.as_it_is(weight)), x @ weight.t())
        parts = [x] if L is None else [x, torch.randn(rows, L)]
        widths = [part.shape[1] for part in parts]
        whole = torch.randn(N, sum(widths))
        columns = whole.split(widths, 1)
        y = linear.ahead([linear.panels(w) for w in columns], parts, N, True)
        torch.testing.assert_close(y, (torch.cat(parts, 1) @ whole.t()).tanh())
        turned = [linear.panels(w, turned=True) for w in columns]
        d, by = linear.back(turned, torch.ones(rows, N), y, widths)
        torch.testing.assert_close(torch.cat(by, 1), d @ whole)


@needs_library
def test_likeliest_symbols() -> None:
    for rows, N, K, many in product((0, 7), (0, 18), (0, 5), (0, 1, 3)):
        x, weight = torch.randn(rows, K), torch.randn(N, K)
        none = torch.empty(0, dtype=torch.int64)
        if not N or not many:
            with pytest.raises(Refused, match="at least one"):
                linear.likeliest(x, linear.pack(weight), many, 0, none)
            continue
        found = linear.likeliest(x, linear.pack(weight), many, 0, none)
        assert found.symbol.shape == (rows, min(many, N))
        best = (x @ weight.t()).log_softmax(-1).topk(many).values.sort(-1).values
        torch.testing.assert_close(found.log_prob.sort(-1).values, best)


@needs_library
def test_steps_of_a_gru() -> None:
    for T, N, B, H in product((0, 2), (0, 1), (0, 3), (0, 5)):
        by = cell.Panels.of(torch.randn(N, 3 * H, H), torch.randn(N, 3 * H)) if N else None
        if by is None:  # weights of no direction cannot be packed
            continue
        states, x = torch.zeros(T + 1, N, B, H), torch.randn(T, N, B, 3 * H)
        kept = cell.ahead(x, states[:-1], states[1:], by)
        by_x, by_gates = torch.empty_like(x), torch.empty_like(x)
        by_h, by_fed = cell.back(states[1:], states[:-1], kept, by_x, by_gates, by)
        assert by_h.shape == (N, B, H)
        assert by_fed.shape == (B, 0)
