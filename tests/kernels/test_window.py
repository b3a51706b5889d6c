"""Windows, compared with their twin, the reference: by the native library, and on the GPU."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.kernels import KERNELS, window
from heed.kernels.native import missing
from heed.kernels.window import operator
from heed.kernels.window import plain as formula
from heed.records import Claims
from tests.kernels.windows import (
    REACHES,
    TABLES,
    Case,
    introduce,
    plain,
    with_gradients,
)

needs_library = pytest.mark.skipif(missing() is not None, reason=str(missing()))

HALF = (torch.bfloat16, torch.float16)
SHAPES = [  # T, S, heads, widths
    (1, 1, (1, 1), (8, 8)),
    (1, 33, (2, 1), (7, 3)),
    (7, 2, (2, 2), (16, 21)),
    (31, 63, (4, 2), (59, 8)),
    (65, 65, (3, 1), (64, 32)),
    (129, 143, (2, 2), (21, 96)),
]


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    """The window kernel alone, beside the reference."""
    with heed.kernels.off(*(name for name in KERNELS if name != "window")):
        yield


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reach", REACHES)
def test_the_twins_agree(reach: str, table: str, shape: tuple, dtype: torch.dtype) -> None:  # type: ignore[type-arg]
    introduce(Case(reach, table, *shape, dtype=dtype, B=3), window.run)


@needs_library
@pytest.mark.parametrize("size", [1e-3, 30.0, 1e4])
@pytest.mark.parametrize("reach", REACHES)
def test_any_magnitude_is_accurate(reach: str, size: float) -> None:
    introduce(Case(reach, "causal and padded", 65, 65, size=size), window.run)


@needs_library
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("table", ["padded", "holes", "everything", "causal and padded"])
@pytest.mark.parametrize("reach", ["local-p", "local-m", "fixed-window"])
def test_hidden_keys_change_no_bit(reach: str, table: str, poison: float) -> None:
    case = Case(reach, table, 70, 300)
    leaves = case.leaves()
    leaves[3] = leaves[3] // 50 * 50 + 0.5  # few centres, with gaps between their windows
    ok = case.call(*leaves).dense_visible()
    assert ok is not None
    unseen = ~ok.any(2).any(1)[:, None, :, None]
    assert unseen.any()
    bad = [leaves[0], *(x.masked_fill(unseen, poison) for x in leaves[1:3]), leaves[3]]
    loss = torch.randn(2, 2, 70, 8)
    clean, dirty = (
        with_gradients(lambda *x: window.run(case.call(*x)), y, loss) for y in (leaves, bad)
    )
    for x, y in zip(clean, dirty, strict=True):
        assert torch.equal(x, y)


@needs_library
def test_a_centre_of_nan_does_not_spread_from_a_row_without_keys() -> None:
    """0 · NaN is NaN: a gain must not be multiplied onto weights that are hidden."""
    attend = heed.Attention("local-p", query=8)
    keys = torch.randn(2, 1500, 8, requires_grad=True)
    query = torch.randn(2, 90, 8)
    query[1] = torch.nan
    seen = attend(query, attend.remember(keys, visible=heed.lengths([1500, 0])))
    assert seen.kernel == "window"
    assert not seen.context[1].any()
    assert seen.context[0].isfinite().all()
    (slope,) = torch.autograd.grad(seen.context[0].sum(), keys)
    assert slope.isfinite().all()
    assert not slope[1].any()


@needs_library
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_drops_what_its_mask_says(
    reach: str, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = torch.tensor([2**61 + 12345])
    monkeypatch.setattr(window, "_seed", lambda call: seed)
    case = Case(reach, "causal", 65, 65, dropout=p)
    leaves = case.leaves()
    call = case.call(*leaves)
    kept = formula.kept(window.geometry(call), 2, 2, 65, call.k.shape[2])
    assert abs(kept.float().mean().item() - (1 - p)) < 0.02
    loss = torch.randn(2, 2, 65, 8)
    got = with_gradients(lambda *x: window.run(case.call(*x)), leaves, loss)
    if p == 1:
        assert not any(x.any() for x in got)
        return
    want = with_gradients(lambda *x: plain(case.call(*x), kept), leaves, loss)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@needs_library
def test_dropout_differs_between_calls() -> None:
    case = Case("fixed-window", "everything", 65, 65, dropout=0.5)
    leaves = case.leaves()
    one, two = (window.run(case.call(*leaves)) for _ in range(2))
    assert not torch.equal(one, two)


@needs_library
@pytest.mark.parametrize("reach", REACHES)
def test_the_operator_passes_opcheck(reach: str) -> None:
    case = Case(reach, "causal and padded", 70, 80)
    leaves = [x.requires_grad_() for x in case.leaves()]
    call = case.call(*leaves)
    told = operator._told(window.geometry(call))
    inputs = [x.detach().requires_grad_() for x in (call.q, call.k, call.v)]
    torch.library.opcheck(torch.ops.heed.window.default, (*inputs, *told))


@needs_library
@pytest.mark.parametrize("reach", REACHES)
def test_second_derivatives(reach: str) -> None:
    case = Case(reach, "causal", 6, 9, (2, 1), (3, 4), B=1)

    def slopes(attend: object, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(1)
        leaves = [x.to(dtype).requires_grad_() for x in case.leaves()]
        out = attend(case.call(*leaves))  # type: ignore[operator]
        first = torch.autograd.grad(out.square().sum(), leaves[:3], create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), leaves[:3]))

    for x, y in zip(slopes(window.run, torch.float32), slopes(plain, torch.float64), strict=True):
        torch.testing.assert_close(x.double(), y, atol=1e-3, rtol=1e-3)


class Net(nn.Module):
    """One attention by name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.attend = heed.MultiHeadAttention(16, 2, mechanism=name, window=4)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        seen = self.attend(x, visible=heed.causal())
        return seen.context, seen.kernel


@needs_library
@pytest.mark.parametrize("name", REACHES)
def test_compiles_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    net, x = Net(name), torch.randn(2, 200, 16, requires_grad=True)
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    context, kernel = fast(x)
    assert kernel == "window"
    want = net(x)[0]
    torch.testing.assert_close(context, want)
    for got, expected in zip(
        torch.autograd.grad(context.sum(), x), torch.autograd.grad(want.sum(), x), strict=True
    ):
        torch.testing.assert_close(got, expected)
    torch._dynamo.reset()


@needs_library
@pytest.mark.parametrize("name", REACHES)
def test_exports(name: str) -> None:
    net, x = Net(name).eval(), torch.randn(2, 200, 16)
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x)[0], net(x)[0])


@needs_library
def test_autocast_lowers_as_for_fused_attention() -> None:
    net, x = Net("fixed-window"), torch.randn(2, 200, 16)
    with torch.autocast("cpu", torch.bfloat16):
        context, kernel = net(x)
    assert kernel == "window"
    assert context.dtype == torch.bfloat16
    torch.testing.assert_close(context.float(), net(x)[0], atol=2e-2, rtol=2e-2)


@needs_library
@pytest.mark.parametrize("name", REACHES)
def test_it_serves_long_texts_and_not_short_ones(name: str) -> None:
    attend = heed.Attention(name, query=8, window=4)
    for S, kernel in ((200, "window"), (30, "reference")):
        x = torch.randn(2, S, 8)
        seen = attend(x, x)
        assert seen.kernel == kernel
        with heed.kernels.off("window"):
            torch.testing.assert_close(seen.context, attend(x, x).context)
    assert "short enough" in seen.why


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"family": "additive"}, "not additive scores"),
        ({"align": "sparsemax"}, "not sparsemax"),
        ({"need": "weight"}, "the weight was requested"),
        ({"claims": Claims(is_row_wise=False)}, "earlier weights"),
        ({"read": "pointer"}, "sums values"),
        ({"sinks": 1}, "without a position"),
        ({"bias": torch.zeros(1)}, "cannot add a bias"),
        ({"visible": None}, "no window"),
        ({"visible": heed.causal()}, "no window"),
        ({"visible": heed.window(3) | heed.causal()}, "no window"),
        ({"visible": heed.window(3) & ~heed.causal()}, "no other mask"),
        ({"visible": heed.window(30)}, "short enough"),
        ({"q": torch.zeros(1, 1, 100, 8).double()}, "not float64"),
    ],
)
def test_a_refusal_gives_its_reason(options: dict[str, object], words: str) -> None:
    case = Case("fixed-window", "everything", 100, 100, (1, 1), B=1)
    call = case.call(*case.leaves())
    assert window.refusal(call) in (None, missing())
    for name, value in options.items():
        setattr(call, name, value)
    assert words in str(window.refusal(call))


@needs_library
def test_transforms_are_left_to_the_reference() -> None:
    attend, x = heed.Attention("fixed-window", query=8, window=4), torch.randn(3, 1, 200, 8)
    served = []

    def one(x: Tensor) -> Tensor:
        seen = attend(x, x)
        served.append(seen.kernel)
        return seen.context

    torch.testing.assert_close(torch.func.vmap(one)(x), torch.stack([one(y) for y in x]))
    assert served == ["reference", "window", "window", "window"]


@needs_library
@pytest.mark.parametrize("reach", ["local-p", "fixed-window"])
def test_memory_grows_with_the_length_not_its_square(reach: str) -> None:
    """A mask of T² booleans would take 17 gigabytes."""
    case = Case(reach, "everything", 131_072, 131_072, (1, 1), (4, 4), B=1)
    out = with_gradients(
        lambda *x: window.run(case.call(*x)), case.leaves(), torch.ones(1, 1, 131_072, 4)
    )
    assert all(torch.isfinite(x).all() for x in out)


CROWDED = """
import resource, threading, torch
from pathlib import Path
from heed.kernels.window import native
from heed.kernels.window.geometry import Geometry

nothing = dict.fromkeys(Geometry.__slots__[:9])
see = Geometry(
    **nothing, first=0, half=2, radius=0, block=0, sigma=0.0, scale=1.0, causal=False,
    rising=False, dropout=0.0,
)
q = torch.zeros(1, 1, 10_000, 1)
much = q[:, :, :1].expand(1, 1, 10**8, 1)
native.forward(q, q, q, see)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, -1))
done, without, spared = False, 0, 0

def work():
    global spared
    while not done:
        try:
            native.forward(q, q, q, see)
        except MemoryError:
            spared += 1

other = threading.Thread(target=work)
other.start()
for _ in range(300):
    try:
        native.forward(q, much, much, see)
    except MemoryError:
        without += 1
done = True
other.join()
print(without, spared)
"""


@needs_library
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux alone limits memory")
def test_running_out_of_memory_is_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("300 0\n", 0), done.stderr


@needs_library
def test_the_number_of_threads_changes_no_bit() -> None:
    case = Case("local-p", "padded", 150, 200, (4, 2))
    leaves, loss = case.leaves(), torch.randn(2, 4, 150, 8)
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(with_gradients(lambda *x: window.run(case.call(*x)), leaves, loss))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


LONG = [  # T, S, heads, widths
    (1, 129, (8, 2), (128, 128)),
    (143, 587, (4, 2), (64, 64)),
    (1025, 1023, (3, 1), (111, 96)),
    (2048, 2048, (2, 2), (128, 128)),
    (1, 40, (1, 1), (512, 512)),
    (129, 143, (2, 1), (512, 300)),
    (70, 200, (1, 1), (64, 1024)),
    (65, 257, (1, 1), (257, 32)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reach", REACHES)
def test_the_twins_agree_on_the_device(
    reach: str,
    table: str,
    shape: tuple,  # type: ignore[type-arg]
    dtype: torch.dtype,
) -> None:
    introduce(Case(reach, table, *shape, 37, dtype, B=3, device="cuda"), window.run)


@pytest.mark.gpu
def test_heads_too_wide_for_a_row_are_refused_on_the_device() -> None:
    for width, words in ((8192, "None"), (8193, "up to 8192 wide")):
        case = Case("local-p", "everything", 2, 5, (1, 1), (width, 8), B=1, device="cuda")
        assert words in str(window.refusal(case.call(*case.leaves())))


@pytest.mark.gpu
@pytest.mark.parametrize("half", [0, 1, 130, 700])
@pytest.mark.parametrize("T", [1, 2, 7, 31, 63, 65, 127, 129, 1023])
def test_lengths_and_windows_on_the_device(T: int, half: int) -> None:
    for S in (1, 33, 1025):
        for reach in REACHES:
            if half or reach != "local-p":
                case = Case(reach, "padded", T, S, (2, 1), (64, 64), half, device="cuda")
                introduce(case, window.run)


@pytest.mark.gpu
@pytest.mark.parametrize("reach", REACHES)
def test_repeats_give_equal_bits_on_the_device(reach: str) -> None:
    case = Case(reach, "causal and padded", 1000, 1000, (4, 2), (64, 64), 37, torch.bfloat16)
    case = Case(**{**case.__dict__, "device": "cuda"})
    leaves = case.leaves()
    loss = torch.randn(2, 4, 1000, 64, device="cuda")
    first = with_gradients(lambda *x: window.run(case.call(*x)), leaves, loss)
    for _ in range(250):
        again = with_gradients(lambda *x: window.run(case.call(*x)), leaves, loss)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("reach", ["local-p", "fixed-window"])
def test_offsets_beyond_two_to_the_31_on_the_device(reach: str) -> None:
    T, S, H, D = 70, 2**18, 65, 128  # 65 · 2^18 · 128 > 2^31
    k = torch.randn(1, H, S, D, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16)
    centre = torch.rand(1, H, T, device="cuda") * S
    case = Case(reach, "everything", T, S, (H, H), (D, D), 50, torch.bfloat16, 1)
    whole = with_gradients(
        lambda *x: window.run(case.call(*x)),
        [q, k, k, centre],
        torch.ones(1, H, T, D, device="cuda"),
    )
    last = [x[:, -1:] for x in (q, k, k, centre)]
    alone = with_gradients(
        lambda *x: window.run(case.call(*x)), last, torch.ones(1, 1, T, D, device="cuda")
    )
    for x, y in zip(whole, alone, strict=True):
        assert torch.equal(x[:, -1:], y)


@pytest.mark.parametrize("name", ["fixed-window", "local-p"])
def test_the_gradient_is_the_same_if_it_will_be_differentiated(name: str) -> None:
    """Queries, keys and centres come from the same text, and each gets its own gradient."""
    attend = heed.Attention(name, query=8, window=3)
    text = torch.randn(1, 200, 8, requires_grad=True)

    def loss() -> Tensor:
        return attend(text).context.square().sum()

    (want,) = torch.autograd.grad(loss(), text)
    (got,) = torch.autograd.grad(loss(), text, create_graph=True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
