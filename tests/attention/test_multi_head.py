"""Heads compared with torch.nn.MultiheadAttention, naive rotations and the published slopes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.position import ALiBi, Position, Rotary, alibi_slopes
from heed.attention.score import ScaledDot
from heed.errors import Refused, ShapeError

B, T, S, M, H = 2, 4, 6, 12, 3
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "widths": {"kdim": 5, "vdim": 7},
    "one-width": {"vdim": 7},
    "no-bias": {"bias": False},
    "no-bias-widths": {"bias": False, "kdim": 5, "vdim": 7},
    "bias-kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "all": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 7},
}


def drawn(module: nn.Module) -> nn.Module:
    """Every parameter drawn at random: biases start at zero, where errors would not show."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def pair(**layout: Any) -> tuple[nn.MultiheadAttention, heed.MultiHeadAttention]:
    theirs = drawn(nn.MultiheadAttention(M, H, batch_first=True, dtype=torch.float64, **layout))
    assert isinstance(theirs, nn.MultiheadAttention)
    return theirs, heed.MultiHeadAttention.from_torch(theirs)


def inputs(theirs: nn.MultiheadAttention) -> list[Tensor]:
    shapes = ((T, M), (S, theirs.kdim), (S, theirs.vdim))
    return [torch.randn(B, n, d).double().requires_grad_() for n, d in shapes]


MASKS = ("none", "mask", "per-head", "padding", "causal", "padding+mask")


def masks(kind: str) -> tuple[dict[str, Tensor], heed.Visible | None]:
    """The same mask as torch takes it (True hides) and as heed takes it (True shows)."""
    hide = torch.rand(T, S) < 0.4
    hide[:, 0] = False
    by_head = torch.rand(B, H, T, S) < 0.4
    by_head[..., 0] = False
    padding = torch.arange(S) >= torch.tensor([[S], [3]])
    late = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return {
        "none": ({}, None),
        "mask": ({"attn_mask": hide}, heed.Visible.mask(~hide)),
        "per-head": ({"attn_mask": by_head.flatten(0, 1)}, heed.Visible.mask(~by_head)),
        "padding": ({"key_padding_mask": padding}, heed.lengths([S, 3])),
        "causal": ({"attn_mask": late}, heed.causal()),
        "padding+mask": (
            {"attn_mask": hide, "key_padding_mask": padding},
            heed.Visible.keys(~padding) & ~heed.Visible.mask(hide),
        ),
    }[kind]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_outputs_weights_and_gradients_equal_torchs(layout: dict[str, Any], kind: str) -> None:
    theirs, ours = pair(**layout)
    q, k, v = inputs(theirs)
    hide, visible = masks(kind)
    output, by_head = theirs(q, k, v, average_attn_weights=False, **hide)
    memory = ours.remember(k, v)
    seen = ours(q, memory, visible=visible, need="weight")
    torch.testing.assert_close(seen.context, output)
    torch.testing.assert_close(seen.weight, by_head)
    _, average = theirs(q, k, v, **hide)
    torch.testing.assert_close(seen.weight.mean(1), average)
    fused = ours(q, memory, visible=visible)
    assert fused.kernel == "sdpa"
    torch.testing.assert_close(fused.context, output)

    probe = torch.randn_like(output)
    names = [name for name, _ in theirs.named_parameters()]
    expected = torch.autograd.grad((output * probe).sum(), [q, k, v, *theirs.parameters()])
    of_ours = [dict(ours.named_parameters())[name] for name in names]
    for record in (seen, fused):
        back = torch.autograd.grad(
            (record.context * probe).sum(), [q, k, v, *of_ours], retain_graph=True
        )
        for name, mine, other in zip(["q", "k", "v", *names], back, expected, strict=True):
            torch.testing.assert_close(mine, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
def test_self_attention_equals_torchs(kind: str) -> None:
    theirs, ours = pair()
    x = torch.randn(B, S, M).double()
    hide = {
        "none": {},
        "padding": {"key_padding_mask": torch.arange(S) >= torch.tensor([[S], [3]])},
        "causal": {"attn_mask": torch.ones(S, S, dtype=torch.bool).triu(1)},
    }[kind]
    visible = {"none": None, "padding": heed.lengths([S, 3]), "causal": heed.causal()}[kind]
    output, _ = theirs(x, x, x, **hide)
    torch.testing.assert_close(ours(x, visible=visible).context, output)


def test_float32_equals_torchs() -> None:
    theirs = nn.MultiheadAttention(M, H).eval()  # not batch-first: only the conventions differ
    with pytest.raises(Refused, match=r"takes T B M, but heed takes B T M: call from_torch"):
        heed.MultiHeadAttention.from_torch(theirs)
    ours = heed.MultiHeadAttention.from_torch(theirs, batch_first=True)
    x = torch.randn(B, S, M)
    output, _ = theirs(*[x.transpose(0, 1)] * 3)
    torch.testing.assert_close(ours(x).context, output.transpose(0, 1))
    assert ours.out_proj.weight.dtype == torch.float32
    assert not ours.training


def test_from_torch_keeps_dropout_and_mode() -> None:
    theirs = nn.MultiheadAttention(M, H, dropout=0.5, batch_first=True).train()
    ours = heed.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(B, S, M)
    assert not torch.equal(ours(x).context, ours(x).context)
    assert torch.equal(ours(x, need="weight").weight, ours(x, need="weight").weight)
    ours.eval()
    assert torch.equal(ours(x).context, ours(x).context)


def test_from_torch_may_replace_the_mechanism() -> None:
    theirs, _ = pair()
    ours = heed.MultiHeadAttention.from_torch(theirs, mechanism="sparsemax/general")
    torch.testing.assert_close(ours.in_proj_weight, theirs.in_proj_weight)
    weight = ours(torch.randn(B, S, M).double() * 5, need="weight").weight
    assert (weight == 0).any()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_state_dicts_can_be_exchanged_both_ways(layout: dict[str, Any]) -> None:
    theirs = nn.MultiheadAttention(M, H, **layout)
    ours = heed.MultiHeadAttention(M, H, **layout)
    shapes = {name: x.shape for name, x in theirs.state_dict().items()}
    assert {name: x.shape for name, x in ours.state_dict().items()} == shapes
    drawn(theirs)
    ours.load_state_dict(theirs.state_dict())
    drawn(ours)
    theirs.load_state_dict(ours.state_dict())
    for name, x in ours.state_dict().items():
        assert torch.equal(x, theirs.state_dict()[name])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_weights_are_initialised_as_torchs(layout: dict[str, Any]) -> None:
    """The same spread, parameter by parameter, and zeros where torch has zeros."""
    wide = {name: 4 * x if name in ("kdim", "vdim") else x for name, x in layout.items()}
    theirs = dict(nn.MultiheadAttention(96, 4, **wide).named_parameters())
    ours = dict(heed.MultiHeadAttention(96, 4, **wide).named_parameters())
    for name, x in theirs.items():
        assert ours[name].abs().max().item() == pytest.approx(x.abs().max().item(), rel=0.7)
        assert ours[name].square().mean().item() == pytest.approx(x.square().mean().item(), rel=0.5)


@pytest.mark.parametrize(
    ("argument", "cure"),
    [
        (
            {"attn_mask": torch.zeros(S, S, dtype=torch.bool)},
            r"visible=~mask where True hides, as in torch\.nn\.MultiheadAttention",
        ),
        ({"key_padding_mask": torch.zeros(B, S).bool()}, r"remember\(visible=~mask\)"),
        ({"need_weights": True}, r'need="weight"'),
        ({"average_attn_weights": False}, r"\.weight\.mean\(1\)"),
        ({"is_causal": True}, r"visible=heed\.causal\(\)"),
        ({"key": torch.zeros(B, S, M)}, r"attend\.remember\(keys, values\)"),
        ({"value": torch.zeros(B, S, M)}, r"attend\.remember\(keys, values\)"),
        ({"maks": None}, r"no argument 'maks'; a call takes query, memory"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_arguments_of_torch_are_refused_with_the_remedy(
    argument: dict[str, Any], cure: str
) -> None:
    attend = heed.MultiHeadAttention(M, H)
    with pytest.raises(Refused, match=cure):
        attend(torch.randn(B, S, M), **argument)


def test_query_key_value_by_position_are_refused() -> None:
    x = torch.randn(B, S, M)
    for attend in (heed.MultiHeadAttention(M, H), heed.Attention(query=M)):
        with pytest.raises(Refused, match=r"attend\(query, attend\.remember\(keys, values\)\)"):
            attend(x, x, x)


def test_impossible_heads_are_refused() -> None:
    with pytest.raises(Refused, match="batch first"):
        heed.MultiHeadAttention(M, H, batch_first=False)
    with pytest.raises(Refused, match=r"embed_dim=12 does not split into num_heads=5"):
        heed.MultiHeadAttention(12, 5)
    with pytest.raises(Refused, match=r"num_heads=4 is not a multiple of groups=3"):
        heed.MultiHeadAttention(12, 4, groups=3)
    with pytest.raises(Refused, match="does not work inside heads"):
        heed.MultiHeadAttention(M, H, mechanism="static")
    with pytest.raises(Refused, match="add_bias_kv and add_zero_attn"):
        heed.MultiHeadAttention(M, H, mechanism="forward", add_zero_attn=True)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("width", "count"), [(12, 3), (10, 3), (4, 4)])
def test_heads_may_have_any_width(width: int, count: int, layout: dict[str, Any]) -> None:
    """Compared with PyTorch's fused attention between projections written out."""
    D = 5
    attend = drawn(heed.MultiHeadAttention(width, count, head_dim=D, **layout)).double()
    k_width, v_width = layout.get("kdim", width), layout.get("vdim", width)
    query, keys, values = (
        torch.randn(B, n, d).double() for n, d in ((T, width), (S, k_width), (S, v_width))
    )
    biases = (None,) * 3 if attend.in_proj_bias is None else attend.in_proj_bias.chunk(3)
    weights = (attend.q_proj_weight, attend.k_proj_weight, attend.v_proj_weight)
    q, k, v = (
        nn.functional.linear(x, w, b)
        for x, w, b in zip((query, keys, values), weights, biases, strict=True)
    )
    if attend.bias_k is not None:
        k = torch.cat([k, attend.bias_k.expand(B, 1, -1)], 1)
        v = torch.cat([v, attend.bias_v.expand(B, 1, -1)], 1)
    if attend.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(B, 1, count * D)], 1) for x in (k, v))
    q, k, v = (x.unflatten(-1, (count, D)).transpose(1, 2) for x in (q, k, v))
    context = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    wanted = attend.out_proj(context)
    assert wanted.shape == (B, T, width)
    torch.testing.assert_close(attend(query, attend.remember(keys, values)).context, wanted)


def test_head_dim_of_the_usual_width_changes_nothing() -> None:
    told = heed.MultiHeadAttention(M, H, head_dim=M // H)
    plain = heed.MultiHeadAttention(M, H)
    assert list(told.state_dict()) == list(plain.state_dict())
    assert repr(told) == repr(plain)
    grouped = heed.MultiHeadAttention(10, 4, head_dim=6, groups=2, position=Rotary())
    assert grouped(torch.randn(B, T, 10)).context.shape == (B, T, 10)
    assert "embed_dim=10, num_heads=4, groups=2, head_dim=6" in repr(grouped)
    with pytest.raises(Refused, match="heads of this module are 4 wide; leave out head_dim"):
        heed.MultiHeadAttention.from_torch(
            nn.MultiheadAttention(M, H, batch_first=True), head_dim=5
        )
    for wrong in (0, -1, 2.5):
        with pytest.raises(Refused, match="head_dim is a whole number, 1 or more"):
            heed.MultiHeadAttention(M, H, head_dim=wrong)


def test_a_query_of_the_wrong_width_is_named_with_both_widths() -> None:
    attend = heed.MultiHeadAttention(M, H)
    with pytest.raises(ShapeError, match=r"queries are 10 wide.*built for 12"):
        attend(torch.randn(B, T, 10), torch.randn(B, S, M))
    with pytest.raises(ShapeError, match=r"keys are 10 wide.*built for 12"):
        attend.remember(torch.randn(B, S, 10))
    with pytest.raises(ShapeError, match="must have 3 axes, B T M"):
        attend(torch.randn(T, M), torch.randn(B, S, M))


def test_a_mechanism_can_be_passed_in() -> None:
    _, ours = pair()
    score = ScaledDot(query=M // H, key=M // H)
    other = heed.MultiHeadAttention(M, H, mechanism=heed.Mechanism(score=score)).double()
    other.load_state_dict(ours.state_dict())
    x = torch.randn(B, S, M).double()
    assert torch.equal(other(x).context, ours(x).context)
    mechanism = heed.Mechanism(score=score)
    with pytest.raises(Refused, match="takes no window"):
        heed.MultiHeadAttention(M, H, mechanism=mechanism, window=3)
    with pytest.raises(Refused, match="brings its own dropout"):
        heed.MultiHeadAttention(M, H, mechanism=mechanism, dropout=0.1)
    with pytest.raises(Refused, match="already has its widths"):
        heed.Attention(mechanism, query=4)


def regroup(weight: Tensor, groups: int, heads: int) -> Tensor:
    """Each group's rows once for every head of the group.    G·D ... -> H·D ..."""
    return weight.unflatten(0, (groups, -1)).repeat_interleave(heads // groups, 0).flatten(0, 1)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("need", ["context", "weight"])
def test_grouped_heads_equal_torchs_with_repeated_keys(groups: int, need: Any) -> None:
    heads = 4
    ours = drawn(heed.MultiHeadAttention(M, heads, groups=groups, add_bias_kv=True)).double()
    theirs = nn.MultiheadAttention(M, heads, add_bias_kv=True, batch_first=True).double()
    with torch.no_grad():
        weights, biases = zip(*(ours._projection(i) for i in range(3)), strict=True)
        k, v = (regroup(x, groups, heads) for x in weights[1:])
        theirs.in_proj_weight.copy_(torch.cat([weights[0], k, v]))
        k, v = (regroup(x, groups, heads) for x in biases[1:])
        theirs.in_proj_bias.copy_(torch.cat([biases[0], k, v]))
        theirs.bias_k.copy_(regroup(ours.bias_k.flatten(), groups, heads)[None, None])
        theirs.bias_v.copy_(regroup(ours.bias_v.flatten(), groups, heads)[None, None])
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    q, kv = torch.randn(B, T, M).double(), torch.randn(B, S, M).double()
    output, by_head = theirs(q, kv, kv, average_attn_weights=False)
    memory = ours.remember(kv)
    assert memory.k.shape == (B, groups, S + 1, M // heads)
    seen = ours(q, memory, need=need)
    torch.testing.assert_close(seen.context, output)
    if need == "weight":
        torch.testing.assert_close(seen.weight, by_head)


@pytest.mark.parametrize("name", ["additive", "relative", "local-p/general", "forward", "cosine"])
def test_any_mechanism_shares_keys_as_if_they_were_repeated(name: str) -> None:
    """A multi-query layer compared with the mechanism applied to each head with the same keys."""
    attend = heed.MultiHeadAttention(8, 4, groups=2, mechanism=name).double()
    x = torch.randn(B, S, 8).double()
    memory = attend.remember(x)
    wide = replace(memory, k=memory.k.repeat_interleave(2, 1), v=memory.v.repeat_interleave(2, 1))
    one, two = attend(x, memory, need="weight"), attend(x, wide, need="weight")
    torch.testing.assert_close(one.weight, two.weight)
    torch.testing.assert_close(one.context, two.context)


def test_rotary_is_a_complex_rotation() -> None:
    D, places = 6, torch.tensor([0, 3, 17])
    x = torch.randn(1, 2, 3, D).double()
    turned = Rotary().turn(x, places)
    for h in range(2):
        for i, place in enumerate(places.tolist()):
            for j in range(D // 2):
                z = complex(x[0, h, i, j], x[0, h, i, j + D // 2])
                angle = place * 10_000 ** (-2 * j / D)
                z *= complex(math.cos(angle), math.sin(angle))
                pair = turned[0, h, i, [j, j + D // 2]].tolist()
                assert pair == pytest.approx([z.real, z.imag])


def test_rotary_energies_depend_on_the_distance_only() -> None:
    q, k = torch.randn(1, 1, 1, 8).double(), torch.randn(1, 1, 1, 8).double()
    rotary = Rotary(base=100.0)

    def energy(t: int, s: int) -> float:
        return (rotary.turn(q, torch.tensor([t])) @ rotary.turn(k, torch.tensor([s])).mT).item()

    assert energy(5, 2) == pytest.approx(energy(103, 100))
    assert energy(5, 2) != pytest.approx(energy(2, 5))
    assert energy(7, 7) == pytest.approx((q @ k.mT).item())


def rotated(attend: heed.MultiHeadAttention, x: Tensor, which: int) -> Tensor:
    """Projected queries (0) or keys (1), rotated as complex numbers by their positions."""
    weight, bias = attend._projection(which)
    heads = (x @ weight.T + bias).view(B, S, H, -1).transpose(1, 2)
    half = heads.shape[-1] // 2
    z = torch.complex(heads[..., :half], heads[..., half:])
    angle = torch.arange(S)[:, None] * 10_000 ** (-torch.arange(half).double() / half)
    return z * torch.polar(torch.ones_like(angle), angle)


def test_heads_apply_the_rotation() -> None:
    attend = drawn(heed.MultiHeadAttention(M, H, position=Rotary())).double()
    x = torch.randn(B, S, M).double()
    seen = attend(x, visible=heed.causal(), need="energy")
    q, k = rotated(attend, x, 0), rotated(attend, x, 1)
    expected = (q @ k.conj().mT).real / math.sqrt(M // H)
    torch.testing.assert_close(seen.energy, expected)
    torch.testing.assert_close(attend(x, visible=heed.causal()).context, seen.context)


@pytest.mark.parametrize("position", [Rotary, lambda: ALiBi(heads=H)], ids=["rotary", "alibi"])
def test_a_growing_cache_gives_what_one_call_gives(position: Any) -> None:
    attend = drawn(heed.MultiHeadAttention(M, H, position=position())).double()
    x = torch.randn(B, S, M).double()
    whole = attend(x, visible=heed.causal(), need="weight")
    memory, state, rows = None, None, []
    for part in x.split([3, 1, 2], 1):
        memory = attend.remember(part) if memory is None else memory.extend(part)
        seen = attend(part, memory, state, visible=heed.causal())
        state = seen.state
        rows.append(seen.context)
    torch.testing.assert_close(torch.cat(rows, 1), whole.context)
    plain = heed.MultiHeadAttention(M, H).double()
    plain.load_state_dict(attend.state_dict())
    assert not torch.allclose(plain(x, visible=heed.causal()).context, whole.context)


def test_alibi_slopes_equal_the_published_ones() -> None:
    eight = [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(8).tolist() == pytest.approx(eight)
    # For 12 heads the released code takes those of 8, then every other one of 16.
    twelve = [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12).tolist() == pytest.approx(twelve)
    assert alibi_slopes(1).tolist() == pytest.approx([2.0**-8])


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}], ids=["plain", "sink"])
def test_heads_apply_alibi(extra: dict[str, bool]) -> None:
    """Compared with torch and the published bias as a float mask; extra keys have no position."""
    heads = 4
    ours = drawn(heed.MultiHeadAttention(M, heads, position=ALiBi(heads=heads), **extra)).double()
    theirs = nn.MultiheadAttention(M, heads, batch_first=True, **extra).double()
    theirs.load_state_dict(ours.state_dict())
    q, k = torch.randn(B, T, M).double(), torch.randn(B, S, M).double()
    bias = torch.empty(heads, T, S).double()
    for h in range(heads):
        for t in range(T):
            for s in range(S):
                bias[h, t, s] = -(2.0 ** (-8 * (h + 1) / heads)) * abs(t + S - T - s)
    output, weight = theirs(q, k, k, attn_mask=bias.repeat(B, 1, 1), average_attn_weights=False)
    seen = ours(q, k, need="weight")
    torch.testing.assert_close(seen.weight, weight)
    torch.testing.assert_close(seen.context, output)
    torch.testing.assert_close(ours(q, k).context, output)


def test_expanded_window_applies_alibi() -> None:
    """A window that covers everything is global; for a far block the mean distance counts."""
    wide = heed.MultiHeadAttention(
        8, 2, position=ALiBi(heads=2), mechanism="expanded-window", window=9, block=3
    ).double()
    plain = heed.MultiHeadAttention(8, 2, position=ALiBi(heads=2)).double()
    plain.load_state_dict(wide.state_dict())
    x = torch.randn(B, S, 8).double()
    torch.testing.assert_close(wide(x).context, plain(x).context)

    narrow = heed.MultiHeadAttention(
        8, 2, position=ALiBi(heads=2), mechanism="expanded-window", window=0, block=3
    ).double()
    with torch.no_grad():
        narrow.in_proj_weight.zero_()  # every energy is the bias alone
    weight = narrow(x, need="weight").weight[0, :, 5]  # 5 sees 3, 4, 5 and a block of three
    for h, slope in enumerate((2.0**-4, 2.0**-8)):
        block = 3 * math.exp(-slope * 4)
        near = [math.exp(-slope * away) for away in (2, 1, 0)]
        expected = [x / (block + sum(near)) for x in [block / 3] * 3 + near]
        assert weight[h].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("past", ["coverage", "location-aware"])
@pytest.mark.parametrize("score", ["scaled-dot", "additive"])
def test_a_mechanism_with_a_past_applies_alibi(past: str, score: str) -> None:
    """A first query has no past: it looks where it would without one."""
    chosen: dict[str, Any] = {"position": ALiBi(heads=H)}
    attend = drawn(heed.MultiHeadAttention(M, H, mechanism=f"{past}/{score}", **chosen)).double()
    plain = heed.MultiHeadAttention(M, H, mechanism=score, **chosen).double()
    plain.load_state_dict(attend.state_dict(), strict=False)
    x = torch.randn(B, S, M).double()
    memory, state = attend.remember(x), heed.State()
    first = plain(x[:, :1], plain.remember(x), state, need="weight").weight
    whole = attend(x, memory, state, need="weight").weight
    torch.testing.assert_close(whole[:, :, :1], first)
    rows = []
    for query in x.split(1, 1):
        seen = attend(query, memory, state, need="weight")
        state = seen.state
        rows.append(seen.weight)
    torch.testing.assert_close(torch.cat(rows, 2), whole)


def test_no_position_changes_nothing() -> None:
    _, ours = pair()
    still = heed.MultiHeadAttention(M, H, position=Position()).double()
    still.load_state_dict(ours.state_dict())
    x = torch.randn(B, S, M).double()
    assert torch.equal(still(x).context, ours(x).context)
