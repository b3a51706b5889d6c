"""Linear maps of few rows in C, compared with `linear`, `log_softmax` and `topk` of PyTorch."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from heed.kernels import native
from heed.kernels.linear import native as kernel
from tests.kernels.levels import LEVELS

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))

SHAPES = [(1, 1, 1), (1, 128, 100), (2, 7, 33), (3, 64, 16), (5, 130, 17), (7, 33, 130)]
SHAPES += [(6, 200, 64), (13, 256, 48), (40, 31, 257), (61, 384, 96), (5, 700, 20)]
MANY = 11


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The functions of each instruction set that this processor supports."""
    for name in ("pack", "mark", "forward", "likeliest"):
        layout = getattr(kernel, f"_{name}").layout
        function = native.Function(f"heed_linear_{name}", layout, at=request.param)
        monkeypatch.setattr(kernel, f"_{name}", function)
    return str(request.param)


def numbers(M: int, K: int, N: int, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    return torch.randn(M, K), torch.randn(N, K), torch.randn(N) if bias else None


def wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.double() for x in tensors]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("M", "K", "N"), SHAPES)
def test_a_product_equals_pytorchs(
    M: int, K: int, N: int, bias: bool, relu: bool, level: str
) -> None:
    x, w, b = numbers(M, K, N, bias)
    exact, plain = linear(*wide(x, w, b)), linear(x, w, b)
    if relu:
        exact, plain = exact.relu(), plain.relu()
    found = kernel.forward(x, kernel.pack(w, b), relu)
    error = (found - exact).abs().max()
    few = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert error <= torch.maximum(2 * (plain - exact).abs().max(), few)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("M", "K", "N"), [*SHAPES, (3, 3100, 19)])
def test_weights_may_be_read_without_packing(
    M: int, K: int, N: int, bias: bool, relu: bool, level: str
) -> None:
    x, w, b = numbers(M, K, N, bias)
    exact, plain = linear(*wide(x, w, b)), linear(x, w, b)
    if relu:
        exact, plain = exact.relu(), plain.relu()
    packed = kernel.as_it_is(w, b)
    assert packed.data.data_ptr() == w.data_ptr()
    found = kernel.forward(x, packed, relu)
    error = (found - exact).abs().max()
    few = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert error <= torch.maximum(2 * (plain - exact).abs().max(), few)
    for m in range(M):  # the same bits alone and in a batch
        assert torch.equal(kernel.forward(x[m : m + 1], packed, relu)[0], found[m])
    wanted = kernel.likeliest(x, kernel.pack(w, b), 3, 0, torch.tensor([N - 1]))
    told = kernel.likeliest(x, packed, 3, 0, torch.tensor([N - 1]))
    assert torch.equal(told.symbol, wanted.symbol)
    torch.testing.assert_close(told.log_prob, wanted.log_prob, rtol=1e-4, atol=1e-4)


def test_rows_and_weights_may_have_strides(level: str) -> None:
    x, w, b = torch.randn(9, 50)[::2, :40], torch.randn(30, 60)[:, 3:43], torch.randn(30)
    torch.testing.assert_close(kernel.forward(x, kernel.pack(w, b)), linear(x, w, b))
    first = kernel.pack(w, b, rows=20)
    torch.testing.assert_close(kernel.forward(x, first), linear(x, w[:20], b[:20]))


def test_a_row_gives_the_same_bits_alone_and_in_a_batch(level: str) -> None:
    x, w, b = numbers(67, 300, 1500)
    packed, forbid = kernel.pack(w, b), torch.tensor([5])
    whole, best = kernel.forward(x, packed), kernel.likeliest(x, packed, MANY, 3, forbid)
    for some in (slice(0, 1), slice(66, 67), slice(10, 15), slice(3, 64)):
        assert torch.equal(kernel.forward(x[some], packed), whole[some])
        for alone, among in zip(
            kernel.likeliest(x[some], packed, MANY, 3, forbid), best, strict=True
        ):
            assert torch.equal(alone, among[some])


def test_the_number_of_threads_changes_no_bit(level: str) -> None:
    x, w, b = numbers(40, 64, 5000)
    packed, before, found = kernel.pack(w, b), torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        best = kernel.likeliest(x, packed, MANY, 3, torch.tensor([]))
        found.append([kernel.forward(x, packed), *best])
        assert kernel.pack(w, b).data is packed.data  # the hash is the same
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def expected(logits: Tensor, many: int, end: int, forbid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best by a stable sort of all, in the order of their ids."""
    log_prob = logits.log_softmax(-1)
    ending = log_prob[:, end].clone()
    log_prob[:, forbid] = -torch.inf
    value, symbol = (x[:, :many] for x in log_prob.sort(descending=True, stable=True))
    symbol, order = symbol.sort()
    return value.gather(1, order), symbol, ending


@pytest.mark.parametrize(("M", "K", "N"), [(1, 16, 11), (2, 9, 33), (7, 40, 1279), (5, 8, 5003)])
def test_the_most_likely_are_those_of_a_sort(M: int, K: int, N: int, level: str) -> None:
    x, w, b = numbers(M, K, N)
    for forbid in (torch.tensor([], dtype=torch.int64), torch.tensor([0, 2, N - 1])):
        many = min(MANY, N - len(forbid))
        value, symbol, ending = expected(linear(*wide(x, w, b)), many, 3, forbid)
        found = kernel.likeliest(x, kernel.pack(w, b), many, 3, forbid)
        torch.testing.assert_close(found.log_prob.double(), value, rtol=1e-6, atol=1e-5)
        assert torch.equal(found.symbol, symbol)
        torch.testing.assert_close(found.ending.double(), ending, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_among_equals_the_lowest_ids_win(threads: int, level: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for N, values in ((40, 3), (3000, 3), (6000, 40), (6000, 1)):
        x = torch.ones(4, 1)
        w = torch.randint(0, values, (N, 1)).float()  # so that many are equal
        _, symbol, _ = expected(linear(x, w), MANY, 3, torch.tensor([1]))
        found = kernel.likeliest(x, kernel.pack(w), MANY, 3, torch.tensor([1]))
        assert torch.equal(found.symbol, symbol)
    torch.set_num_threads(before)


def test_forbidden_symbols_are_never_chosen(level: str) -> None:
    none = torch.tensor([], dtype=torch.int64)
    x, w, b = torch.randn(3, 4), torch.randn(2000, 4), torch.full((2000,), -torch.inf)
    b[[7, 1990]] = 0.0
    found = kernel.likeliest(x, kernel.pack(w, b), 4, 7, none)
    exact = linear(*wide(x, w, b)).log_softmax(-1)
    assert (found.log_prob > -torch.inf).sum(1).tolist() == [2, 2, 2]
    torch.testing.assert_close(found.ending.double(), exact[:, 7], rtol=1e-6, atol=1e-6)
    assert found.log_prob.exp().sum(1).allclose(torch.ones(3))
    for nothing in (torch.nan, torch.inf, -torch.inf):
        b = torch.randn(2000) if nothing != -torch.inf else torch.full((2000,), nothing)
        b[1500] = nothing
        found = kernel.likeliest(x, kernel.pack(w, b), 4, 7, none)
        assert linear(x, w, b).log_softmax(-1).isnan().all()
        assert found.log_prob.isnan().all()
        assert found.ending.isnan().all()


def test_packed_weights_are_never_stale() -> None:
    net, x = nn.Linear(70, 50), torch.randn(3, 70)

    def agrees() -> None:
        with torch.no_grad():
            torch.testing.assert_close(kernel.forward(x, kernel.pack(net.weight, net.bias)), net(x))

    agrees()
    first = kernel.pack(net.weight, net.bias)
    assert kernel.pack(net.weight, net.bias).data is first.data  # nothing changed
    with torch.no_grad():
        net.weight[49, 69] += 1
    agrees()
    net.weight.data[0, 0] -= 1  # no version counter sees this
    agrees()
    net.weight.data = torch.randn(50, 70)
    agrees()
    net.load_state_dict(nn.Linear(70, 50).state_dict())
    agrees()


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "two signs": lambda w: w[:2, 0].neg_(),
    "two rows": lambda w: w[:2].neg_(),
    "all signs": lambda w: w.neg_(),
    "doubled": lambda w: w.mul_(2),
    "halved": lambda w: w.mul_(0.5),
    "turned": lambda w: w.copy_(w.flip(0)),
    "rows swapped": lambda w: w[:2].copy_(w[:2].flip(0)),
    "eighths turned": lambda w: w.copy_(w.roll(16, 0)),
    "the last one": lambda w: w[-1, -1].add_(1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inference", [True, False])
def test_regular_changes_are_noticed(change: str, inference: bool, level: str) -> None:
    with torch.inference_mode(inference):
        weight, x = torch.randn(128, 128), torch.randn(2, 128)
        kernel.pack(weight)
        CHANGES[change](weight.data)  # no version counter sees this
        found = kernel.forward(x, kernel.pack(weight))
        torch.testing.assert_close(found, linear(x, weight), rtol=1e-4, atol=1e-4)


def test_a_weight_that_lost_columns_is_packed_again() -> None:
    weight = nn.Parameter(torch.zeros(16, 64))
    kernel.pack(weight)
    weight.data = weight.data[:, :33]
    assert kernel.pack(weight).data.shape == (1, 33, 16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_does_not_matter(dtype: torch.dtype) -> None:
    x, w, b = numbers(3, 40, 50)
    forbid = torch.tensor([5])
    wanted = linear(x, w, b), *kernel.likeliest(x, kernel.pack(w.clone(), b), 4, 3, forbid)
    torch.set_default_dtype(dtype)
    try:
        packed = kernel.pack(w, b)
        found = kernel.forward(x, packed), *kernel.likeliest(x, packed, 4, 3, forbid)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_packed_weights_die_with_their_weight() -> None:
    weight = torch.randn(20, 20)
    packed = weakref.ref(kernel.pack(weight).data)
    assert packed() is not None
    del weight
    gc.collect()
    assert packed() is None


def test_packed_weights_never_overlap() -> None:
    """In slabs: what does not fit into the rest of one begins another."""
    sizes = (7, 16 * 2**10, 3 * 2**20, 2**20, 5 * 2**20)
    rooms = [kernel._room(size) for size in sizes]
    for i, room in enumerate(rooms):
        room.fill_(i)
    assert [len(room) for room in rooms] == list(sizes)
    assert all((room == i).all() for i, room in enumerate(rooms))
    assert not any(room.data_ptr() % 64 for room in rooms)


def test_only_float32_on_the_cpu_is_accepted() -> None:
    good = torch.randn(4, 4)
    assert kernel.refusal(good, None, nn.Parameter(good)) is None
    assert "float64" in str(kernel.refusal(good, good.double()))
    assert "meta" in str(kernel.refusal(good.to("meta")))
    assert "contiguous" in str(kernel.refusal(torch.randn(5, 4).t()))
    assert "plain" in str(kernel.refusal(good.to_sparse()))
