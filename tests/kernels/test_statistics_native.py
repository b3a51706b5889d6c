"""Statistics in C, compared with PyTorch for random calls of every kind."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heed.kernels import native as library
from heed.kernels.statistics import native, plain
from heed.kernels.statistics.plan import Question
from tests.kernels.levels import LEVELS

pytestmark = pytest.mark.skipif(library.missing() is not None, reason=library.missing() or "")

NAMES = ("log_sum", "facts", "place", "received", "top", "share", "map")
SIZES = [
    *((1, 1, 1, 1, 1, 1), (2, 3, 1, 7, 17, 5), (1, 2, 2, 49, 31, 8), (2, 4, 2, 100, 130, 21)),
    *((1, 1, 1, 200, 1100, 16), (3, 2, 1, 48, 512, 64), (1, 6, 3, 97, 513, 33)),
]  # B H G T S D; a task is 48 rows, a panel 16 keys, a strip 512


def maybe(chance: float = 0.5) -> bool:
    return bool(torch.rand(()) < chance)


def number(least: int, most: int) -> int:
    return int(torch.randint(least, most + 1, ()))


def drawn(size: tuple[int, ...], scale: float = 1.0) -> Question:
    """A random subset of all options; tensors that may be broadcast sometimes are."""
    B, H, G, T, S, D = size
    sinks = number(1, 3) if maybe(0.3) else 0
    N = S + sinks

    def some(n: int) -> int:
        return 1 if maybe() else n

    def places(B: int, H: int) -> Tensor:
        return torch.rand(B, H, T) * (S - 1)

    q = torch.randn(B, T, H, D).transpose(1, 2) if maybe() else torch.randn(B, H, T, 2 * D)[..., :D]
    k = torch.randn(B, N, G, D).transpose(1, 2) if maybe() else torch.randn(B, G, N, D)
    bias = torch.randn(some(B), some(H), some(T), N) if maybe(0.3) else None
    table = (torch.rand(some(B), some(H), some(T), S) > 0.5).to(torch.uint8)
    cells = (number(1, min(T, 40)), number(1, min(N, 40)))
    return Question(
        q=q * scale,
        k=k * scale,
        log_sum=None,
        stop=torch.randint(S + 1, (B,), dtype=torch.int32) if maybe(0.3) else None,
        exists=(torch.rand(B, S) > 0.3).to(torch.uint8) if maybe(0.3) else None,
        centre=places(some(B), some(H)) if maybe(0.3) else None,
        table=table if maybe(0.3) else None,
        bias=None if bias is None else bias.mT.contiguous().mT if maybe(0.3) else bias,
        gain=places(some(B), some(H)) if maybe(0.3) else None,
        scale=D**-0.5,
        sigma=float(max(1, S // 8)),
        first=number(-3, max(0, S - T) + 3),
        half=number(0, S) if maybe(0.3) else -1,
        radius=number(0, S // 4 + 1),
        causal=maybe(0.3),
        sinks=sinks,
        top=min(number(0, 8), N),
        map=(T, N) if maybe(0.2) else cells if maybe(0.7) else (0, 0),
    )  # fmt: skip


def widened(question: Question) -> Question:
    bias = None if question.bias is None else question.bias.double()
    return replace(question, q=question.q.double(), k=question.k.double(), bias=bias)


def assert_agree(got: list[Tensor], exact: list[Tensor], reach: float) -> None:
    """Shares agree to some epsilons; equal ones may come in any order.

    reach  the largest energy: the exponential makes its rounding a relative error
    """
    said, want = dict(zip(NAMES, got, strict=True)), dict(zip(NAMES, exact, strict=True))
    loose = 1e-6 * max(1.0, reach)
    N = said["received"].shape[-1]
    for name in ("log_sum", "received", "share", "map"):
        atol = loose * max(1.0, want["received"].max().item() if name == "received" else 1.0)
        torch.testing.assert_close(
            said[name].double(), want[name], rtol=loose, atol=atol,
            msg=lambda told, name=name: f"{name}: {told}",
        )  # fmt: skip
    mass, entropy, peak, expected, spread = said["facts"].double()
    sure = want["facts"]
    torch.testing.assert_close(mass, sure[0], rtol=loose, atol=loose)
    torch.testing.assert_close(entropy, sure[1], rtol=loose, atol=10 * loose)
    torch.testing.assert_close(peak, sure[2], rtol=loose, atol=loose)
    torch.testing.assert_close(expected, sure[3], rtol=loose, atol=loose * N)
    torch.testing.assert_close(spread, sure[4], rtol=10 * loose, atol=loose * N)
    same = said["place"] == want["place"]
    assert same.double().mean() > 0.9


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_c_agrees_with_pytorch_in_float64(
    size: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(seed)
    question = drawn(size)
    monkeypatch.setattr(native, "SCRATCH", 4000)  # so that parts are added up several times
    assert native.serves(question)
    exact = plain.summarise(widened(question))
    assert_agree(native.summarise(question), exact, 4.0)


@pytest.mark.parametrize("scale", [0.01, 30.0, 1e4])
def test_any_magnitude_is_accurate(scale: float) -> None:
    """Where the rounding of energies exceeds one, no two sums agree: as accurate as PyTorch.

    By the root mean square over many draws, as the largest error of one draw is random.
    """
    errors: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
    for seed in range(12):
        torch.manual_seed(seed)
        question = drawn((2, 4, 2, 60, 70, 32), scale)
        asked = ((native, question), (plain, question), (plain, widened(question)))
        each = [numbers(kernel.summarise(given)) for kernel, given in asked]
        for name in each[0]:
            ours, theirs, exact = (said[name].double().flatten() for said in each)
            assert torch.equal(ours.isfinite(), exact.isfinite())
            x, y, z = (said[exact.isfinite()] for said in (ours, theirs, exact))
            errors[name].append((x - z, y - z, z))
    for name, found in errors.items():
        x, y, z = (torch.cat(each).square().mean().sqrt() for each in zip(*found, strict=True))
        assert x <= 2 * y + 1e-6 * z, name


def numbers(said: list[Tensor]) -> dict[str, Tensor]:
    """The results that are not places, by name."""
    facts = dict(zip(("mass", "entropy", "peak", "middle", "spread"), said[1], strict=True))
    return {"log_sum": said[0], **facts, "received": said[3], "map": said[6]}


@pytest.mark.parametrize("level", LEVELS)
def test_every_instruction_set_agrees(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = library.Function("heed_statistics", native._say.layout, level)
    monkeypatch.setattr(native, "_say", other)
    for seed in range(6):
        torch.manual_seed(seed)
        question = drawn((2, 4, 2, 77, 91, 24))
        assert_agree(native.summarise(question), plain.summarise(widened(question)), 4.0)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bits(question: Question) -> list[Tensor]:
    return [x.view(torch.int32) for x in native.summarise(question)]


def test_threads_and_repeats_change_no_bit(threads: None) -> None:
    question = drawn((2, 4, 2, 120, 300, 32))
    want = bits(question)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for _ in range(20):
            assert all(map(torch.equal, bits(question), want))


def test_a_row_gets_the_same_statistics_alone_and_in_a_batch() -> None:
    many = Question(**fresh(q=torch.randn(3, 2, 70, 16), k=torch.randn(3, 2, 90, 16)))
    whole = native.summarise(many)
    for b, t in ((0, 0), (1, 47), (2, 69)):
        given = fresh(q=many.q[b : b + 1, :, t : t + 1], k=many.k[b : b + 1], first=t)
        alone = native.summarise(Question(**given))
        for name, x, y in zip(NAMES, alone, whole, strict=True):
            if name in ("received", "map"):
                continue
            y = y[:, b : b + 1, :, t : t + 1] if name == "facts" else y[b : b + 1, :, t : t + 1]
            assert torch.equal(x, y), name


def fresh(**more: Any) -> dict[str, Any]:
    """A causal call, with the positions of its queries."""
    bare: dict[str, Any] = dict.fromkeys(("log_sum", "stop", "exists", "centre", "table", "bias"))
    told = {"scale": 0.25, "sigma": 1.0, "first": 0, "half": -1, "radius": 0, "causal": True}
    return bare | told | {"gain": None, "sinks": 0, "top": 5, "map": (0, 0)} | more


def test_equal_weights_are_listed_from_the_first_on() -> None:
    k = torch.ones(1, 1, 40, 4)
    told = fresh(q=torch.ones(1, 1, 3, 4), k=k, causal=False, top=8)
    _, _, place, _, top, share, _ = native.summarise(Question(**told))
    assert not place.any()
    assert (top == torch.arange(8)).all()
    torch.testing.assert_close(share, torch.full_like(share, 1 / 40))


LISTED = {
    "random": torch.randn(1, 1, 20, 4, generator=torch.Generator().manual_seed(1)),
    "equal": torch.zeros(1, 1, 20, 4),
    "nan": torch.full((1, 1, 20, 4), torch.nan),
    "two values": (torch.arange(20) % 2 * 1.0)[:, None].repeat(1, 1, 1, 4),
}


@pytest.mark.parametrize("kernel", [native, plain], ids=["C", "PyTorch"])
@pytest.mark.parametrize("keys", LISTED)
def test_the_largest_name_no_key_twice(keys: str, kernel: Any) -> None:
    """Not even in a row with fewer keys in sight than it lists, nor among equal weights or NaN."""
    k, top = LISTED[keys], 8
    q = torch.ones(1, 1, 20, 4)
    energy = (q @ k.mT * 0.25)[0, 0].double()
    _, _, _, _, place, share, _ = kernel.summarise(Question(**fresh(q=q, k=k, top=top)))
    for t in range(20):
        named = place[0, 0, t].tolist()
        assert len({*named}) == top
        assert all(0 <= s < 20 for s in named)
        weight = energy[t, : t + 1].softmax(-1)
        want = torch.tensor([weight[s] if s <= t else 0.0 for s in named], dtype=torch.double)
        sure = torch.full_like(want, torch.nan) if keys == "nan" else want
        torch.testing.assert_close(share[0, 0, t].double(), sure, equal_nan=True)
        if keys != "nan":
            best = weight.sort(descending=True).values[:top]
            torch.testing.assert_close(want[: len(best)], best)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_in_a_visible_key_spoils_only_its_rows(poison: float) -> None:
    q, k = torch.randn(1, 1, 6, 4).abs(), torch.randn(1, 1, 6, 4)
    k[0, 0, 4] = poison
    ours, theirs = (each.summarise(Question(**fresh(q=q, k=k, top=0))) for each in (native, plain))
    assert ours[1][:, :, :, :4].isfinite().all()
    assert ours[1][1, :, :, 4:].isnan().all()  # entropy
    assert (ours[1].isnan() == theirs[1].isnan()).all()


def test_no_queries_give_empty_statistics() -> None:
    told = fresh(q=torch.randn(2, 2, 0, 4), k=torch.randn(2, 2, 5, 4), map=(0, 0))
    log_sum, facts, *_ = native.summarise(Question(**told))
    assert (log_sum.shape, facts.shape) == ((2, 2, 0), (5, 2, 2, 0))


def test_float64_is_left_to_pytorch() -> None:
    q = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    assert not native.serves(Question(**fresh(q=q, k=q)))


@pytest.mark.parametrize("kernel", [native, plain])
def test_the_default_device_does_not_matter(kernel: Any) -> None:
    question = drawn((2, 3, 1, 7, 17, 5))
    everything = replace(question, top=2, map=(3, 4), half=3, centre=torch.rand(2, 3, 7) * 17)
    want = kernel.summarise(everything)
    with torch.device("meta"):
        found = kernel.summarise(everything)
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))


def test_places_far_from_the_start_are_accurate() -> None:
    """A sharp row at the end of a long text: its spread must not be a difference of squares."""
    S = 20_000
    k = torch.zeros(1, 1, S, 4)
    k[0, 0, -3:] = 120.0
    question = Question(**fresh(q=torch.ones(1, 1, 1, 4), k=k, causal=False, top=3))
    _, facts, place, *_ = native.summarise(question)
    assert place.item() == S - 3
    torch.testing.assert_close(facts[3].item(), float(S - 2), rtol=1e-7, atol=0)
    torch.testing.assert_close(facts[4].item(), (2 / 3) ** 0.5, rtol=1e-4, atol=0)


def test_more_rows_than_fit_at_once_and_an_odd_number_of_keys() -> None:
    q, k = torch.randn(1, 1, 500, 8), torch.randn(1, 1, 4097, 8)
    told = fresh(q=q, k=k, causal=False, top=4, map=(256, 256))
    exact = plain.summarise(widened(Question(**told)))
    assert_agree(native.summarise(Question(**told)), exact, 4.0)


def test_a_map_with_a_cell_for_every_pair_is_the_weights() -> None:
    for rows, columns in ((90, 130), (90, 129), (89, 130)):  # in the others, cells are sums
        told = fresh(q=torch.randn(2, 3, 90, 8), k=torch.randn(2, 3, 130, 8), map=(rows, columns))
        assert_agree(
            native.summarise(Question(**told)), plain.summarise(widened(Question(**told))), 4.0
        )
    told["map"] = (90, 130)
    question = Question(**told)
    energy = question.q @ question.k.mT * question.scale
    seen = torch.ones(90, 130, dtype=torch.bool).tril(question.first)
    weight = (
        energy.masked_fill(~seen, -torch.inf).softmax(-1) if question.causal else energy.softmax(-1)
    )
    torch.testing.assert_close(native.summarise(question)[-1], weight)


def test_the_spread_is_accurate_if_the_peak_is_far_from_the_mean() -> None:
    k = torch.full((1, 1, 20_000, 4), -120.0)
    k[0, 0, 0], k[0, 0, -2_000:] = 0.001, 0.0
    question = Question(**fresh(q=torch.ones(1, 1, 1, 4), k=k, causal=False))
    exact = plain.summarise(widened(question))[1][4]
    torch.testing.assert_close(native.summarise(question)[1][4].double(), exact, rtol=3e-6, atol=0)


def test_long_rows_are_accurate() -> None:
    """As accurate as PyTorch in float32, which sums in blocks: thousands of keys, flat weights."""
    q, k = torch.randn(1, 1, 4000, 16), torch.randn(1, 1, 6000, 16)
    question = Question(**fresh(q=q, k=k, causal=False, top=0))
    ours, theirs, exact = (
        each.summarise(asked)
        for each, asked in ((native, question), (plain, question), (plain, widened(question)))
    )
    for i in (1, 3):  # facts, received
        for x, y, z in zip(
            *(said[i].double().flatten(1) for said in (ours, theirs, exact)), strict=True
        ):
            floor = 2e-7 * z.abs().max()
            assert (x - z).abs().max() <= 2 * (y - z).abs().max() + floor
