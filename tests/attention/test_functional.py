"""heed.attend, the functional form, compared with PyTorch and for every name without weights."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import heed
from heed import Visible
from heed.attention.catalogue import CATALOGUE
from heed.attention.names import build
from heed.errors import Refused, ShapeError, UnknownName
from tests.attention.cases import Case


def learns(name: str) -> bool:
    """Whether a mechanism has weights."""
    return any(True for _ in build(name, query=5, key=5).parameters())


WEIGHTED = [name for name in CATALOGUE if learns(name)]
WEIGHTLESS = [name for name in CATALOGUE if not learns(name) and not Case(name).draws]


def qkv(
    T: int = 4, S: int = 6, D: int = 5, R: int = 3, H: int = 4, G: int = 2, dtype=torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, H, T, D), (2, G, S, D), (2, G, S, R))
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)  # type: ignore[return-value]


def bottom_right(T: int, S: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


@pytest.mark.parametrize("off", [True, False])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 7), (5, 5), (3, 7), (7, 7)])
@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (4, 1)])
def test_scaled_dot_equals_torchs(T: int, S: int, H: int, G: int, off: bool) -> None:
    q, k, v = qkv(T, S, H=H, G=G)
    with heed.kernels.off(*["sdpa"] * off):
        plain, causal = heed.attend(q, k, v), heed.attend(q, k, v, visible=heed.causal())
        masked = heed.attend(q, k, v, visible=bottom_right(T, S))
    torch.testing.assert_close(plain.context, sdpa(q, k, v, enable_gqa=True))
    want = sdpa(q, k, v, bottom_right(T, S), enable_gqa=True)
    torch.testing.assert_close(causal.context, want)
    torch.testing.assert_close(masked.context, want)


def test_dot_equals_torchs_without_scale() -> None:
    q, k, v = qkv()
    want = sdpa(q, k, v, scale=1.0, enable_gqa=True)
    torch.testing.assert_close(heed.attend(q, k, v, "dot").context, want)
    torch.testing.assert_close(heed.attend(q, k, v, "dot", need="weight").context, want)


def test_gradients_equal_torchs() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = bottom_right(4, 6)
    want = torch.autograd.grad(sdpa(q, k, v, mask, enable_gqa=True).square().sum(), (q, k, v))
    for need in ("context", "weight"):
        seen = heed.attend(q, k, v, visible=heed.causal(), need=need)
        got = torch.autograd.grad(seen.context.square().sum(), (q, k, v))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("S", [4, 6])
def test_the_state_counts_on_after_a_call_without_state(S: int) -> None:
    q, k, v = qkv(4, S)
    for visible in (None, heed.causal()):
        one = heed.attend(q, k, v, visible=visible).state
        two = heed.attend(q, k, v, visible=visible, need="weight").state
        assert (one.step, one.origin, dict(one.slots)) == (two.step, two.origin, dict(two.slots))
        assert (one.step, one.origin) == (4, S - 4)


def test_a_state_is_taken_and_returned() -> None:
    """Queries one by one give the same as all queries at once."""
    q, k, v = qkv(5, 5)
    whole = heed.attend(q, k, v, "forward", visible=heed.causal(), need="weight")
    state, rows = heed.State(), []
    for t in range(5):
        seen = heed.attend(q[:, :, t : t + 1], k, v, "forward", heed.causal(), state, need="weight")
        state = seen.state
        rows.append(seen.weight)
    torch.testing.assert_close(torch.cat(rows, 2), whole.weight)


@pytest.mark.parametrize("score", ["", "dot/"])
@pytest.mark.parametrize("name", WEIGHTLESS)
def test_every_name_without_weights_works(name: str, score: str) -> None:
    if CATALOGUE[name].slot == "score" and score:
        score = ""
    q, k, v = qkv()
    mechanism = build(score + name, query=5, key=5, value=3).eval()
    visible = heed.lengths([6, 3]) & heed.causal()
    seen = heed.attend(q, k, v, score + name, visible=visible, need="weight")
    want = mechanism(q, mechanism.remember(k, v), visible=visible, need="weight")
    torch.testing.assert_close(seen.weight, want.weight)
    assert seen.weight.shape == (2, 4, 4, 6)
    if mechanism.claims.gives_context:
        torch.testing.assert_close(seen.context, want.context)
        torch.testing.assert_close(seen.context, seen.weight @ v.repeat_interleave(2, 1))
        torch.testing.assert_close(heed.attend(q, k, v, name, visible).context.shape, (2, 4, 4, 3))


@pytest.mark.parametrize("name", [*WEIGHTED, "local-p/dot", "coverage/entmax"])
def test_a_name_with_weights_is_refused_with_the_remedy(name: str) -> None:
    q, k, v = qkv(T=1, R=5)
    with pytest.raises(Refused, match=rf"'{name}' has weights to learn.*heed\.Attention\('{name}'"):
        heed.attend(q, k, v, name)
    attend = heed.Attention(name, query=5)  # the remedy
    assert any(True for _ in attend.parameters())


def test_a_mechanism_with_weights_is_accepted() -> None:
    q, k, v = qkv(H=1, G=1)
    mechanism = build("additive", query=5, key=5, value=3).double()
    seen = heed.attend(q, k, v, mechanism)
    want = mechanism(q, mechanism.remember(k, v))
    torch.testing.assert_close(seen.context, want.context)


@pytest.mark.parametrize("name", ["sample", "gumbel/dot"])
def test_a_random_align_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="draws in training and takes the best in evaluation"):
        heed.attend(*qkv(), name)
    mechanism = build(name, query=5, key=5, value=3).eval()  # the remedy
    assert heed.attend(*qkv(), mechanism).context.shape == (2, 4, 4, 3)


def test_arguments_in_torchs_order_or_by_torchs_names_are_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(Refused, match=r"fourth argument is a mechanism.*visible="):
        heed.attend(q, k, v, heed.causal())  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"visible=heed\.causal\(\)"):
        heed.attend(q, k, v, is_causal=True)
    with pytest.raises(Refused, match="visible=~mask"):
        heed.attend(q, k, v, attn_mask=torch.ones(4, 6, dtype=torch.bool))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean scaled-dot"):
        heed.attend(*qkv(), "scaled_dot")
    with pytest.raises(UnknownName, match="did you mean weight"):
        heed.attend(*qkv(), need="weigth")  # type: ignore[arg-type]


SHAPES = {
    "q of three axes": (lambda q, k, v: (q[0], k, v), "q must have 4 axes"),
    "k of three axes": (lambda q, k, v: (q, k[0], v), "k must have 4 axes"),
    "v of three axes": (lambda q, k, v: (q, k, v[0]), "v must have 4 axes"),
    "rows of k": (lambda q, k, v: (q, k[:1], v), "disagree on B"),
    "rows of q": (lambda q, k, v: (q[:1], k, v), "disagree on B"),
    "places": (lambda q, k, v: (q, k[:, :, 1:], v), "k and v disagree on S"),
    "groups": (lambda q, k, v: (q, k[:, :1], v), "disagree on G"),
    "heads": (lambda q, k, v: (q[:, :3], k, v), "H=3 heads, the keys G=2 groups"),
}


@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize("wrong", SHAPES)
def test_shapes_that_disagree_are_named(wrong: str, need: str) -> None:
    change, told = SHAPES[wrong]
    with pytest.raises(ShapeError, match=told):
        heed.attend(*change(*qkv()), need=need)  # type: ignore[arg-type]


@pytest.mark.parametrize("need", ["context", "weight"])
def test_widths_that_disagree_get_a_suggestion(need: str) -> None:
    q, k, v = qkv()
    with pytest.raises(Refused, match=r"query=4, key=5; use 'general'"):
        heed.attend(q[..., :4], k, v, need=need)  # type: ignore[arg-type]


@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("visible", [None, heed.causal(), heed.lengths([3, 2])])
def test_dtypes_that_disagree_are_named(which: int, need: str, visible: Visible | None) -> None:
    tensors = list(qkv(6, dtype=torch.float32))
    tensors[which] = tensors[which].bfloat16()
    with pytest.raises(Refused, match=r"share a dtype.*torch\.bfloat16"):
        heed.attend(*tensors, visible=visible, need=need)  # type: ignore[arg-type, misc]


def test_different_dtypes_on_a_device_without_autocast() -> None:
    q, k, v = (x.to("meta") for x in qkv(6, dtype=torch.float32))
    with pytest.raises(Refused, match="share a dtype"):
        heed.attend(q, k.bfloat16(), v)


def test_no_query_and_no_key_are_allowed() -> None:
    q, k, v = qkv()
    for need in ("context", "weight"):
        none = heed.attend(q[:, :, :0], k, v, need=need)  # type: ignore[arg-type]
        assert none.context.shape == (2, 4, 0, 3)
        empty = heed.attend(q, k[:, :, :0], v[:, :, :0], need=need)  # type: ignore[arg-type]
        assert torch.equal(empty.context, torch.zeros(2, 4, 4, 3, dtype=torch.float64))
