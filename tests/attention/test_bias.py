"""A bias per call: compared with torch.nn.MultiheadAttention, with masks, and with ALiBi."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.bias import Bias, split_mask
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.attention.position import ALiBi, Rotary, alibi_slopes
from heed.errors import Refused, ShapeError
from heed.watching.walk import walk

B, H, T, S, M = 2, 3, 4, 6, 12
SHAPES = [(B, H, T, S), (1, H, T, S), (B, 1, 1, S), (1, 1, T, S)]
MECHANISMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("dot", "additive", "entmax", "sparsemax", "monotonic", "forward")),
    *((name, {}) for name in ("coverage/additive", "cosine", "argmax", "mixed", "local-p/general")),
    *((name, {"window": 1}) for name in ("local-m", "fixed-window")),
    ("expanded-window", {"window": 1, "block": 2}),
]


def heads(**choices: Any) -> heed.MultiHeadAttention:
    torch.manual_seed(0)
    return heed.MultiHeadAttention(M, H, dtype=torch.float64, **choices).eval()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(B, T, M).double(), torch.randn(B, S, M).double()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_bias_and_its_gradient_equal_torchs(
    shape: tuple[int, ...], extra: dict[str, bool], dropout: float
) -> None:
    theirs = nn.MultiheadAttention(
        M, H, dropout, batch_first=True, dtype=torch.float64, **extra
    ).eval()
    ours = heed.MultiHeadAttention.from_torch(theirs)
    query, keys = inputs()
    bias = torch.randn(shape, dtype=torch.float64).requires_grad_()
    table = bias.expand(B, H, T, S).flatten(0, 1)
    wanted, weight = theirs(query, keys, keys, attn_mask=table, average_attn_weights=False)
    seen = ours(query, ours.remember(keys), bias=bias)
    assert seen.kernel == "sdpa"
    torch.testing.assert_close(seen.context, wanted)
    told = ours(query, ours.remember(keys), bias=bias, need="weight")
    torch.testing.assert_close(told.context, wanted)
    torch.testing.assert_close(told.weight, weight)
    slope = torch.randn(wanted.shape).double()
    (want,) = torch.autograd.grad(wanted, bias, slope)
    assert want.abs().max() > 1e-3
    for one in (seen, told):
        torch.testing.assert_close(torch.autograd.grad(one.context, bias, slope)[0], want)


@pytest.mark.parametrize(("name", "options"), MECHANISMS, ids=lambda x: str(x))
def test_every_mechanism_hides_what_minus_infinity_is_added_to(
    name: str, options: dict[str, Any]
) -> None:
    attend, (query, keys) = heads(mechanism=name, **options), inputs()
    memory = attend.remember(keys)
    shown = torch.rand(B, H, T, S) > 0.3
    shown[0, :, 1] = False  # sees nothing: zero, where torch gives NaN
    bias = torch.zeros(B, H, T, S).double().masked_fill(~shown, -math.inf)
    for lowest in (-math.inf, torch.finfo(torch.float64).min):
        found = attend(query, memory, bias=bias.masked_fill(~shown, lowest)).context
        torch.testing.assert_close(found, attend(query, memory, visible=shown).context)
        assert torch.equal(found[0, 1], attend.out_proj.bias)


@pytest.mark.parametrize("name", ["dot", "additive", "entmax", "cosine", "monotonic"])
def test_every_mechanism_adds_the_numbers_to_its_energies(name: str) -> None:
    attend, (query, keys) = heads(mechanism=name), inputs()
    memory, bias = attend.remember(keys), torch.randn(B, H, T, S).double()
    plain = attend(query, memory, need="energy").energy
    seen = attend(query, memory, bias=bias, need="energy")
    torch.testing.assert_close(seen.energy, plain + bias)
    torch.testing.assert_close(attend(query, memory, bias=bias).context, seen.context)
    assert attend(query, memory, bias=bias).kernel in ("reference", "sdpa", "scan")


def test_one_head_takes_a_bias_too() -> None:
    """Of a known softmax: energies 0, so that the weights are those of the bias."""
    attend = heed.Attention("dot", query=M)
    query, keys, bias = torch.zeros(B, T, M), torch.randn(B, S, M), torch.randn(B, 1, T, S)
    context = attend(query, keys, bias=bias).context
    torch.testing.assert_close(context, bias[:, 0].softmax(-1) @ keys)


def test_a_bias_comes_beside_a_position_and_a_mask() -> None:
    query, keys = inputs()
    bias, lengths = torch.randn(1, H, T, S).double(), heed.lengths([S, 4])
    away = (torch.arange(T)[:, None] + S - T - torch.arange(S)).abs()
    slopes = -alibi_slopes(H)[:, None, None].double() * away
    attend, plain = heads(position=ALiBi(heads=H)), heads()
    told = attend(query, attend.remember(keys, visible=lengths), bias=bias, visible=heed.causal())
    want = plain(
        query, plain.remember(keys, visible=lengths), bias=bias + slopes, visible=heed.causal()
    )
    torch.testing.assert_close(told.context, want.context)
    turned = heads(position=Rotary())
    memory = turned.remember(keys)
    energy = turned(query, memory, need="energy").energy
    torch.testing.assert_close(
        turned(query, memory, bias=bias, need="energy").energy, energy + bias
    )


@pytest.mark.parametrize("position", [None, ALiBi(heads=H)], ids=["plain", "alibi"])
def test_groups_of_heads_get_their_own_part(position: Any) -> None:
    """Both lanes are dot products, so that one mechanism for all heads gives the same."""
    lanes = [(build("scaled-dot", query=4, key=4, value=4), n) for n in (1, 2)]
    grouped, plain = heads(mechanism=HeadGroups(lanes), position=position), heads(position=position)
    grouped.load_state_dict(plain.state_dict(), strict=False)
    query, keys = inputs()
    for bias in (None, torch.randn(B, H, T, S).double(), torch.randn(1, 1, T, S).double()):
        found = grouped(query, grouped.remember(keys), bias=bias).context
        torch.testing.assert_close(found, plain(query, plain.remember(keys), bias=bias).context)
    shown = torch.rand(B, H, T, S) > 0.3
    for visible in (shown, heed.causal() & ~heed.Visible.mask(shown)):
        found = grouped(query, grouped.remember(keys), visible=visible).context
        want = plain(query, plain.remember(keys), visible=visible).context
        torch.testing.assert_close(found, want)


def test_a_walk_and_statistics_follow_the_bias() -> None:
    attend, (query, keys) = heads(), inputs()
    memory, bias = attend.remember(keys), torch.randn(B, H, T, S).double()
    weight = attend(query, memory, bias=bias, need="weight").weight
    walked = walk(attend, query, memory, bias=bias, row=1, position=2, head=1)
    torch.testing.assert_close(walked.weight, weight[1, 1, 2])
    stated = attend(query, memory, bias=bias, statistics=True).statistics
    torch.testing.assert_close(stated.received, weight.sum(2))


def test_a_bias_compiles() -> None:
    attend, (query, keys) = heads(), inputs()
    bias = torch.randn(B, H, T, S).double()
    whole = torch.compile(lambda x, y, b: attend(x, y, bias=b).context, backend="eager")
    torch.testing.assert_close(whole(query, keys, bias), attend(query, keys, bias=bias).context)


def test_nan_in_a_bias_is_seen() -> None:
    attend, (query, keys) = heads(), inputs()
    bias = torch.zeros(1, 1, T, S).double()
    bias[0, 0, 1, 2] = math.nan
    context = attend(query, keys, bias=bias).context
    assert context[:, 1].isnan().all()
    assert context[:, [0, 2, 3]].isfinite().all()


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (torch.randn(T, S), r"T S is bias\[None, None\]"),
        (torch.randn(H, T, S), r"H T S is bias\[None\]"),
        (torch.randn(B, T, S), r"B T S is bias\[:, None\]"),
        (torch.randn(B, H, T, S + 1), r"(?s)bias: B=2 H=3 T=4 S=7.*attention: B=2 H=3 T=4 S=6"),
        (torch.randn(B, H, T, 1), r"(?s)bias: .* S=1.*attention: .* S=6"),
        (torch.randn(B, 2, T, S), r"(?s)bias: B=2 H=2"),
    ],
)
def test_a_bias_that_does_not_fit_is_refused(bias: Tensor, says: str) -> None:
    attend, (query, keys) = heads(), inputs()
    with pytest.raises(ShapeError, match=says):
        attend(query, keys, bias=bias.double())


@pytest.mark.parametrize("bias", [torch.ones(1, 1, T, S).bool(), torch.ones(1, 1, T, S).int(), 0.5])
def test_a_bias_is_numbers(bias: Any) -> None:
    attend, (query, keys) = heads(), inputs()
    with pytest.raises(Refused, match=r"bias holds numbers .* is visible=mask"):
        attend(query, keys, bias=bias)


def test_a_table_is_cut_to_some_queries_of_one_row() -> None:
    table = torch.arange(2 * 1 * 4 * 3).view(2, 1, 4, 3)
    assert torch.equal(Bias(table).cut(1, 2, 4).table, table[1:2, :, 2:4])
    # One that all rows share, or all queries, is not cut along that axis.
    assert torch.equal(Bias(table[:1]).cut(1, 0, 1).table, table[:1, :, :1])
    assert torch.equal(Bias(table[:, :, :1]).cut(1, 2, 4).table, table[1:2, :, :1])
    assert torch.equal(Bias(table[0, 0]).cut(1, 2, 4).table, table[None, 0, :, 2:4])


def test_a_mask_is_what_may_be_seen_and_what_is_added() -> None:
    lowest = torch.finfo(torch.float32).min
    seen, added = split_mask("mask", torch.tensor([[0.0, -torch.inf, lowest, 1.5]]))
    assert seen.tolist() == [[True, False, False, True]]
    assert added is not None
    assert added.tolist() == [[0.0, 0.0, 0.0, 1.5]]
    assert split_mask("mask", torch.tensor([[0.0, -torch.inf]]))[1] is None  # it only hides


@pytest.mark.parametrize("kernel", [True, False])
def test_nan_where_a_bias_hides_reaches_no_gradient(kernel: bool) -> None:
    attend, x = heed.MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
    x[:, 3:] = torch.nan
    bias = torch.zeros(1, 1, 5, 5)
    bias[..., 3:] = bias[:, :, 3:] = -torch.inf
    with heed.kernels.off(*(() if kernel else heed.kernels.KERNELS)):
        attend(x, bias=bias).context.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attend.parameters())


def test_nan_in_the_bias_of_a_hidden_row_reaches_no_gradient() -> None:
    attend = heed.MultiHeadAttention(8, 2)
    x = torch.randn(1, 4, 8, requires_grad=True)
    bias, shown = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.bool)
    bias[:, :, 2], shown[:, :, 2] = torch.nan, False
    bias.requires_grad_()
    seen = attend(x, bias=bias, visible=shown)
    assert seen.kernel == "sdpa"
    seen.context.sum().backward()
    assert x.grad.isfinite().all()
    assert bias.grad.isfinite().all()
