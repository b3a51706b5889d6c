"""Additive energies alone, compared with their twin, the score of the reference."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.names import build
from heed.attention.score import additive as reference
from heed.attention.score import per_head
from heed.kernels import additive
from heed.kernels import native as library
from heed.kernels.additive import comparing
from heed.records import Summary

pytestmark = pytest.mark.skipif(library.missing() is not None, reason=library.missing() or "")

SHAPES = [
    *((1, 1, 1, 1, 1, 1), (2, 4, 2, 9, 33, 21), (1, 1, 1, 8, 32, 16), (3, 2, 1, 17, 65, 111)),
    *((1, 6, 2, 31, 7, 32), (8, 1, 1, 1, 129, 59)),
]  # B H G T S D
CASES = list(itertools.product(SHAPES, (0.01, 1.0, 30.0, 1e4)))


def drawn(shape: tuple[int, ...], scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    B, H, G, T, S, D = shape
    q = torch.randn(B, T, H, D).transpose(1, 2)
    return q * scale, torch.randn(B, G, S, D) * scale, torch.randn(H, D) * D**-0.5


def both_ways(energies: Any, given: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    learned = [x.detach().requires_grad_() for x in given]
    energy = energies(*learned)
    return [energy.detach(), *torch.autograd.grad(energy, learned, grad.to(energy.dtype))]


def plainly(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return reference(q, per_head(k, q.shape[1]), w)


@pytest.mark.parametrize(("shape", "scale"), CASES)
def test_the_twins_agree(shape: tuple[int, ...], scale: float) -> None:
    given = drawn(shape, scale)
    grad = torch.randn(*given[0].shape[:3], given[1].shape[2])
    assert additive.compares(*given[:2])
    exact = both_ways(plainly, tuple(x.double() for x in given), grad)
    plain, ours = both_ways(plainly, given, grad), both_ways(additive.energies, given, grad)
    largest = given[2].abs().max() * grad.abs().max()  # of the terms that a gradient sums
    for i, (x, y, z) in enumerate(zip(ours, plain, exact, strict=True)):
        floor = 4e-7 * max(z.abs().max(), largest) * shape[-1] ** 0.5
        allowed = (3 if i else 2) * (y - z).abs().max() + floor
        assert (x - z).abs().max() <= allowed


def test_the_operators_pass_opcheck() -> None:
    q, k, w = (x.requires_grad_() for x in drawn((2, 4, 2, 3, 6, 5)))
    torch.library.opcheck(comparing.operator, (q, k, w))
    torch.library.opcheck(comparing.backward, (torch.randn(2, 4, 3, 6), q, k, w))


def test_second_derivatives_are_those_of_the_definition() -> None:
    given = drawn((2, 2, 1, 3, 4, 5))

    def twice(energies: Any, dtype: torch.dtype) -> list[Tensor]:
        learned = [x.detach().to(dtype).requires_grad_() for x in given]
        first = torch.autograd.grad(energies(*learned).square().sum(), learned, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), learned))

    for x, y in zip(
        twice(additive.energies, torch.float32), twice(plainly, torch.float64), strict=True
    ):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)


def test_a_key_of_nan_spoils_only_its_column() -> None:
    q, k, w = drawn((1, 1, 1, 3, 40, 8))
    want = additive.energies(q, k, w)
    k[0, 0, 7] = torch.nan
    got = additive.energies(q, k, w)
    assert got[..., 7].isnan().all()
    others = torch.arange(40) != 7
    assert torch.equal(got[..., others], want[..., others])


@pytest.mark.parametrize(
    "name", ["additive", "monotonic/additive", "sparsemax/concat", "argmax/additive"]
)
def test_every_caller_of_energies_gets_them_here(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    inner = comparing._compare

    def noted(*given: Tensor) -> Tensor:
        asked.append(1)
        return inner(*given)

    monkeypatch.setattr(comparing, "_compare", noted)
    attend = heed.Attention(name, query=8, key=8).eval()
    q, k = torch.randn(2, 5, 8), torch.randn(2, 9, 8)
    visible = heed.lengths([9, 4])
    seen = attend(q, attend.remember(k, visible=visible), need="weight")
    assert asked
    with heed.kernels.off("additive"):
        asked.clear()
        plain = attend(q, attend.remember(k, visible=visible), need="weight")
    assert not asked
    torch.testing.assert_close(seen.weight, plain.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen.context, plain.context, rtol=1e-4, atol=1e-5)


def test_statistics_of_additive_attention_never_form_t_s_d() -> None:
    attend = heed.Attention("additive", query=64, key=64).eval()
    q, k = torch.randn(1, 200, 64), torch.randn(1, 300, 64)
    with torch.profiler.profile(profile_memory=True) as told, torch.no_grad():
        seen = attend(q, attend.remember(k), statistics=Summary(top=2)).statistics
    largest = max(event.self_cpu_memory_usage for event in told.events())
    assert largest <= 3 * 4 * 200 * 300
    with heed.kernels.off("additive"), torch.no_grad():
        want = attend(q, attend.remember(k), statistics=Summary(top=2)).statistics
    torch.testing.assert_close(seen.entropy, want.entropy, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen.share, want.share, rtol=1e-4, atol=1e-6)


def test_it_is_one_node_of_a_compiled_graph() -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    given = drawn((2, 2, 1, 3, 6, 5))
    got = torch.compile(additive.energies, backend=backend, fullgraph=True)(*given)
    torch.testing.assert_close(got, additive.energies(*given))
    assert any("additive_energies" in str(node.target) for node in graphs[0].graph.nodes)
    torch._dynamo.reset()


@pytest.mark.parametrize("need", ["context", "weight"])
def test_heads_may_share_a_score_vector(need: Any) -> None:
    mechanism = build("additive", query=8, key=8, value=8).eval()
    q, k = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 4, 7, 8, requires_grad=True)
    found = []
    for names in ((), ("additive",)):
        with heed.kernels.off(*names):
            context = heed.attend(q, k, k, mechanism, need=need).context
        learned = (q, k, *mechanism.parameters())
        found.append([context, *torch.autograd.grad(context.square().sum(), learned)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_wrong_number_of_heads_is_refused() -> None:
    mechanism = build("additive", query=8, key=8, value=8, heads=2).eval()
    q = torch.randn(1, 4, 5, 8)
    with pytest.raises(heed.HeedError, match=r"built for 2 heads.*H=4"):
        heed.attend(q, q, q, mechanism)
    with pytest.raises(heed.HeedError, match="additive energies take"):
        torch.ops.heed.additive_energies(q, q, torch.randn(2, 8))
