"""Scores compared with results by hand, naive loops, and XLNet's own attention."""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.names import build
from heed.attention.score import distance, distance_behind
from heed.errors import Refused, ShapeError
from heed.visible import Places

QUERY = torch.tensor([[[1.0, 2.0]]])  # B T M
KEYS = torch.tensor([[[3.0, 4.0], [-1.0, 0.5], [0.0, -2.0]]])  # B S K


def built(name: str, weights: dict[str, Tensor] | None = None, **sizes: object) -> heed.Attention:
    """A mechanism whose score has these weights."""
    attend = heed.Attention(name, **{"query": 2, "key": 2, **sizes})
    score = attend.mechanism.score
    if weights is not None:
        own = score.state_dict()
        score.load_state_dict({name: x.view_as(own[name]) for name, x in weights.items()})
    return attend


def energies(attend: heed.Attention, values: Tensor | None = None) -> list[float]:
    seen = attend(QUERY, attend.remember(KEYS, values), need="energy")
    return seen.energy.flatten().tolist()


def test_dot_by_hand() -> None:
    assert energies(built("dot")) == [11.0, 0.0, -4.0]  # 1·3 + 2·4, −1 + 2·½, 2·−2


def test_scaled_dot_by_hand() -> None:
    root = math.sqrt(2)
    assert energies(built("scaled-dot")) == pytest.approx([11 / root, 0, -4 / root])


def test_general_by_hand() -> None:
    # W q = (1·1 + 2·2, 0·1 − 1·2) = (5, −2)
    attend = built("general", {"weight": torch.tensor([[1.0, 2.0], [0.0, -1.0]])})
    assert energies(attend) == [5 * 3 - 2 * 4, -5 - 1, 4]


def test_additive_by_hand() -> None:
    attend = built(
        "additive",
        {
            "query_weight": torch.tensor([[1.0, 0.0], [0.0, 0.5]]),  # W₂ q = (1, 1)
            "key_weight": torch.tensor(
                [[0.5, 0.0], [1.0, 1.0]]
            ),  # W₁ k = (1.5, 7), (−.5, −.5), (0, −2)
            "score_vector": torch.tensor([2.0, -3.0]),
        },
    )
    tanh = math.tanh
    expected = [
        2 * tanh(2.5) - 3 * tanh(8.0),
        2 * tanh(0.5) - 3 * tanh(0.5),
        2 * tanh(1.0) - 3 * tanh(-1.0),
    ]
    assert energies(attend) == pytest.approx(expected)


def test_concat_by_hand() -> None:
    attend = built(
        "concat",
        {
            "query_weight": torch.tensor([[1.0, 1.0]]),  # W = [1 1 | 2 −1]: 3 + (2, −2.5, 2)
            "key_weight": torch.tensor([[2.0, -1.0]]),
            "score_vector": torch.tensor([4.0]),
        },
        width=1,
    )
    assert energies(attend) == pytest.approx([4 * math.tanh(x) for x in (5, 0.5, 5)])


def test_concat_identity_by_hand() -> None:
    attend = built(
        "concat-identity",
        {
            "query_weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),  # W q = (2, 1)
            "score_vector": torch.tensor([1.0, 10.0]),
        },
    )
    tanh = math.tanh
    expected = [
        tanh(5) + 10 * tanh(5),
        tanh(1) + 10 * tanh(1.5),
        tanh(2) + 10 * tanh(-1),
    ]
    assert energies(attend) == pytest.approx(expected)
    assert "key_weight" not in attend.mechanism.score.state_dict()


def test_location_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [9.0, 9.0]])
    attend = built("location", {"weight": rows}, longest=4)
    assert energies(attend) == [1.0, 2.0, 3.0]
    moved = attend(QUERY, attend.remember(KEYS * 7 - 1), need="energy").energy
    assert moved.flatten().tolist() == [1.0, 2.0, 3.0]  # keys do not matter


def test_cosine_by_hand() -> None:
    attend = built("cosine", sharpness=3.0)
    length = math.sqrt(5)
    assert energies(attend) == pytest.approx([3 * 11 / (length * 5), 0, 3 * -4 / (length * 2)])


def test_key_value_by_hand() -> None:
    values = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]])  # q·v = 1, 2, 6
    attend = built("key-value", {"alpha": torch.tensor([2.0]), "beta": torch.tensor([-0.5])})
    root = math.sqrt(2)
    expected = [(2 * 11 - 0.5) / root, (0 - 1) / root, (2 * -4 - 3) / root]
    assert energies(attend, values) == pytest.approx(expected)


def test_general_is_the_bilinear_form_term_by_term() -> None:
    attend = heed.Attention("general", query=3, key=4).double()
    W = attend.mechanism.score.weight[0]  # K M
    q, k = torch.randn(2, 5, 3).double(), torch.randn(2, 6, 4).double()
    energy = attend(q, attend.remember(k), need="energy").energy[:, 0]
    for b in range(2):
        for t in range(5):
            for s in range(6):
                terms = [q[b, t, i] * W[j, i] * k[b, s, j] for i in range(3) for j in range(4)]
                assert energy[b, t, s].item() == pytest.approx(sum(terms).item(), abs=1e-12)


def test_concat_is_one_matrix_on_the_concatenated_pair() -> None:
    attend = heed.Attention("concat", query=3, key=4, width=5).double()
    score = attend.mechanism.score
    W = torch.cat([score.query_weight[0], score.key_weight[0]], -1)  # width, M + K
    q, k = torch.randn(2, 5, 3).double(), torch.randn(2, 6, 4).double()
    energy = attend(q, attend.remember(k), need="energy").energy[:, 0]
    for t in range(5):
        for s in range(6):
            pair = torch.cat([q[:, t], k[:, s]], -1)
            expected = torch.tanh(pair @ W.T) @ score.score_vector[0]
            torch.testing.assert_close(energy[:, t, s], expected)


def test_concat_initialises_both_halves_for_the_joint_width() -> None:
    score = heed.Attention("concat", query=30, key=60, width=200).mechanism.score
    bound = math.sqrt(3 / 90)
    for half in (score.query_weight, score.key_weight):
        assert 0.9 * bound < half.abs().max().item() <= bound


def test_location_refuses_a_longer_source_with_the_number() -> None:
    attend = heed.Attention("location", query=2, key=2, longest=3)
    attend(QUERY, attend.remember(KEYS))
    with pytest.raises(Refused, match=r"at most 3 places; this source has S=4.*longest=4"):
        attend(QUERY, attend.remember(torch.cat([KEYS, KEYS[:, :1]], 1)))


@pytest.mark.parametrize("name", ["dot", "scaled-dot", "cosine", "key-value", "relative"])
def test_widths_that_disagree_are_refused_and_general_is_suggested(name: str) -> None:
    with pytest.raises(Refused, match=r"query=4, key=6; use 'general'"):
        heed.Attention(name, query=4, key=6)


@pytest.mark.parametrize("name", ["general", "additive", "concat", "concat-identity", "location"])
def test_scores_with_weights_take_any_widths(name: str) -> None:
    attend = heed.Attention(name, query=4, key=6)
    seen = attend(torch.randn(2, 3, 4), attend.remember(torch.randn(2, 5, 6)), need="energy")
    assert seen.energy.shape == (2, 1, 3, 5)
    assert seen.context.shape == (2, 3, 6)


def test_key_value_refuses_values_of_another_width() -> None:
    with pytest.raises(Refused, match=r"key=4, value=5"):
        heed.Attention("key-value", query=4, key=4, value=5)


def test_keys_and_values_of_different_lengths_are_refused() -> None:
    with pytest.raises(ShapeError, match="keys and values disagree on S"):
        heed.Attention("dot", query=2).remember(KEYS, KEYS[:, :2])


D_MODEL, HEADS = 12, 3


def xlnet() -> XLNetRelativeAttention:
    """XLNet's attention with random weights (its own biases start at zero)."""
    config = XLNetConfig(d_model=D_MODEL, n_head=HEADS, d_inner=8, dropout=0.0)
    theirs = XLNetRelativeAttention(config).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    return theirs.to(torch.get_default_device())


def same_weights(theirs: XLNetRelativeAttention, segments: bool = True) -> heed.MultiHeadAttention:
    ours = heed.MultiHeadAttention(
        D_MODEL, HEADS, bias=False, mechanism="relative", width=D_MODEL, segments=segments
    ).double()
    score = ours.mechanism.score
    with torch.no_grad():
        ours.in_proj_weight.copy_(
            torch.cat([x.flatten(1).T for x in (theirs.q, theirs.k, theirs.v)])
        )
        ours.out_proj.weight.copy_(theirs.o.flatten(1))
        score.content_bias.copy_(theirs.r_w_bias[:, None])
        score.distance_bias.copy_(theirs.r_r_bias[:, None])
        score.distance_weight.copy_(theirs.r.permute(1, 2, 0))
        if segments:
            score.segment_bias.copy_(theirs.r_s_bias[:, None])
            score.segment_vectors.copy_(theirs.seg_embed.transpose(0, 1))
    return ours


def their_distances(T: int, S: int, B: int) -> Tensor:
    """The distances that XLNet passes to its layers, in double precision."""
    frequency = 1 / 10000 ** (torch.arange(0, D_MODEL, 2).double() / D_MODEL)
    return XLNetModel.positional_embedding(torch.arange(S, -T, -1).double(), frequency, B)


def their_answer(
    theirs: XLNetRelativeAttention,
    x: Tensor,  # B T M
    old: Tensor | None,  # B S-T M
    segments: tuple[Tensor, Tensor] | None,  # of queries B T, of keys B S
    hide: Tensor | None,  # B T S
    r: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output before the residual and the norm, B T M, and probabilities, B H T S."""
    seen: list[Tensor] = []
    # The input of the norm is the output plus the residual, which is subtracted below.
    theirs.layer_norm.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    h = x.transpose(0, 1)
    keys = x if old is None else torch.cat([old, x], 1)
    B, T, S = len(x), x.shape[1], keys.shape[1]
    seg_mat = None
    if segments is not None:
        other = (segments[0][:, :, None] != segments[1][:, None]).long()  # B T S
        seg_mat = torch.nn.functional.one_hot(other.permute(1, 2, 0), 2).double()
    _, _, probabilities = theirs(
        h,
        None,
        None if hide is None else hide.permute(1, 2, 0)[..., None].double(),
        None,
        their_distances(T, S, B) if r is None else r.to(x.device),
        seg_mat,
        mems=None if old is None else old.transpose(0, 1),
        output_attentions=True,
    )
    return (seen.pop() - h).transpose(0, 1), probabilities.permute(2, 3, 0, 1)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("with_segments", [False, True], ids=["plain", "segments"])
@pytest.mark.parametrize("mems", [0, 3], ids=["alone", "mems"])
def test_relative_equals_xlnets_attention(mems: int, with_segments: bool, masked: bool) -> None:
    B, T = 2, 5
    S = mems + T
    theirs = xlnet()
    ours = same_weights(theirs, with_segments)
    x = torch.randn(B, T, D_MODEL).double().requires_grad_()
    old = torch.randn(B, mems, D_MODEL).double() if mems else None
    mine, keys_segments = torch.randint(0, 2, (B, T)), torch.randint(0, 2, (B, S))
    segments = (mine, keys_segments) if with_segments else None
    hide = None
    if masked:
        hide = torch.rand(B, T, S) < 0.4
        hide[..., 0] = False
    output, probabilities = their_answer(theirs, x, old, segments, hide)

    keys = x if old is None else torch.cat([old, x], 1)
    memory = ours.remember(keys, segments=keys_segments if with_segments else None)
    seen = ours(
        x,
        memory,
        visible=None if hide is None else ~hide,
        segments=mine if with_segments else None,
        need="weight",
    )
    torch.testing.assert_close(seen.weight, probabilities)
    torch.testing.assert_close(seen.context, output)

    probe = torch.randn_like(output)
    (theirs_back,) = torch.autograd.grad((output * probe).sum(), x)
    (ours_back,) = torch.autograd.grad((seen.context * probe).sum(), x)
    torch.testing.assert_close(ours_back, theirs_back)


def test_relative_uses_the_distances_that_xlnet_makes() -> None:
    B, T, S = 2, 4, 6
    theirs = xlnet()
    model = SimpleNamespace(
        d_model=D_MODEL,
        attn_type="bi",
        bi_data=False,
        clamp_len=-1,
        positional_embedding=XLNetModel.positional_embedding,
    )
    r = XLNetModel.relative_positional_encoding(model, T, S, B)
    x, old = torch.randn(B, T, D_MODEL).double(), torch.randn(B, S - T, D_MODEL).double()
    output, _ = their_answer(theirs, x, old, None, None, r)
    ours = same_weights(theirs, segments=False)
    seen = ours(x, ours.remember(torch.cat([old, x], 1)))
    torch.testing.assert_close(seen.context, output, atol=1e-5, rtol=1e-5)  # its r is float32


@pytest.mark.parametrize(("T", "S"), [(4, 4), (3, 7), (1, 5)])
def test_distance_equals_xlnets_shift(T: int, S: int) -> None:
    B, H, D = 2, 3, 4
    q, r = torch.randn(B, H, T, D), torch.randn(H, T + S, D)
    # XLNet lists distances S, S−1, ..., 1−T; ours start at the key furthest ahead and omit distance
    # S.
    theirs = XLNetRelativeAttention.rel_shift_bnij(q @ r.mT, klen=S)
    places = Places(T, S, 0, S - T, q.device)
    torch.testing.assert_close(distance(q, r.flip(1)[:, : T + S - 1], places), theirs)


@pytest.mark.parametrize(("T", "S"), [(4, 4), (3, 7), (1, 5)])
def test_distance_behind_is_xlnets_shift_from_left_to_right(T: int, S: int) -> None:
    """Keys ahead get the same strange numbers as there; all others those of their distance."""
    B, H, D = 2, 3, 4
    q, r = torch.randn(B, H, T, D), torch.randn(H, S + 1, D)  # distances S, S-1, ..., 0
    places = Places(T, S, 0, S - T, q.device)
    ours = distance_behind(q, r, places)
    torch.testing.assert_close(ours, XLNetRelativeAttention.rel_shift_bnij(q @ r.mT, klen=S))
    for t in range(T):
        for s in range(S - T + t + 1):
            energy = (q[:, :, t] * r[:, s - t + T]).sum(-1)  # distance (S - T + t) - s
            torch.testing.assert_close(ours[:, :, t, s], energy)


@pytest.mark.parametrize("steps", [[5], [2, 3], [1] * 5], ids=str)
def test_relative_equals_a_loop_over_pairs(steps: list[int]) -> None:
    """Also step by step: the state carries the position of the queries."""
    B, T, S, M = 2, 5, 7, 4
    attend = heed.Attention("relative", query=M, key=M, segments=True).double()
    score = attend.mechanism.score
    with torch.no_grad():
        for parameter in attend.parameters():
            parameter.normal_()
    q, k = torch.randn(B, T, M).double(), torch.randn(B, S, M).double()
    mine, segments = torch.randint(0, 2, (B, T)), torch.randint(0, 2, (B, S))
    u, w, z = (x[0, 0] for x in (score.content_bias, score.distance_bias, score.segment_bias))
    expected = torch.empty(B, T, S).double()
    for b in range(B):
        for t in range(T):
            for s in range(S):
                away = t + S - T - s
                angles = [away / 10000 ** (2 * i / M) for i in range(M // 2)]
                pattern = [math.sin(x) for x in angles] + [math.cos(x) for x in angles]
                r = score.distance_weight[0] @ torch.tensor(pattern, dtype=torch.float64)
                g = score.segment_vectors[0, int(mine[b, t] != segments[b, s])]
                energy = (q[b, t] + u) @ k[b, s] + (q[b, t] + w) @ r + (q[b, t] + z) @ g
                expected[b, t, s] = energy / math.sqrt(M)

    memory = attend.remember(k, segments=segments)
    state, energies = heed.State(0, S - T), []
    for asked, of_asked in zip(q.split(steps, 1), mine.split(steps, 1), strict=True):
        seen = attend(asked, memory, state, segments=of_asked, need="energy")
        state = seen.state
        energies.append(seen.energy[:, 0])
    torch.testing.assert_close(torch.cat(energies, 1), expected)


def test_relative_requires_its_segments() -> None:
    attend = heed.Attention("relative", query=4, key=4, segments=True)
    with pytest.raises(Refused, match=r"remember\(segments="):
        attend(torch.randn(1, 2, 4), attend.remember(torch.randn(1, 3, 4)))


def test_relative_works_without_segments_if_they_are_optional() -> None:
    attend = heed.Attention("relative", query=4, segments="optional").double()
    plain = heed.Attention("relative", query=4).double()
    for weight in attend.parameters():
        torch.nn.init.normal_(weight)
    plain.load_state_dict(attend.state_dict(), strict=False)
    x, segments = torch.randn(1, 3, 4).double(), torch.tensor([[0, 1, 1]])
    torch.testing.assert_close(attend(x).context, plain(x).context)
    seen = attend(x, attend.remember(x, segments=segments), segments=segments)
    assert not torch.allclose(seen.context, plain(x).context)
    with pytest.raises(Refused, match=r"remember\(segments="):
        attend(x, segments=None, memory=attend.remember(x, segments=segments))
    with pytest.raises(Refused, match="optional"):
        heed.Attention("relative", query=4, segments="perhaps")


def test_relative_clamps_distances() -> None:
    """As XLNet's clamp_len does."""
    B, T, S, clamp = 2, 4, 9, 3
    theirs = xlnet()
    model = SimpleNamespace(
        d_model=D_MODEL,
        attn_type="bi",
        bi_data=False,
        clamp_len=clamp,
        positional_embedding=XLNetModel.positional_embedding,
    )
    r = XLNetModel.relative_positional_encoding(model, T, S, B)
    x, old = torch.randn(B, T, D_MODEL).double(), torch.randn(B, S - T, D_MODEL).double()
    output, _ = their_answer(theirs, x, old, None, None, r)
    ours = same_weights(theirs, segments=False)
    memory = ours.remember(torch.cat([old, x], 1))
    assert not torch.allclose(ours(x, memory).context, output, atol=1e-3)
    ours.mechanism.score.clamp = clamp
    torch.testing.assert_close(ours(x, memory).context, output, atol=1e-5, rtol=1e-5)
    with pytest.raises(Refused, match="clamp"):
        heed.Attention("relative", query=4, clamp=-1)


DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("cast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", [name for name, x in CATALOGUE.items() if x.slot == "score"])
def test_other_dtypes_are_served_or_refused_in_our_words(name: str, cast: bool) -> None:
    """Of queries, of keys, of values and of parameters, each by itself."""
    for weights, asks, keeps, gives in product(DTYPES, repeat=4):
        score = build(name, query=4, key=4, value=4).to(weights).eval()
        q, k, v = (
            torch.randn(1, 1, size, 4).to(kind)
            for size, kind in ((2, asks), (3, keeps), (3, gives))
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            refused, context = served(score, q, k, v)
        if context is None:
            assert "dtype" in refused
            assert len({weights, asks, keeps, gives}) > 1
        else:
            assert context.isfinite().all()


def served(score: heed.Mechanism, q: Tensor, k: Tensor, v: Tensor) -> tuple[str, Tensor | None]:
    """The context; or what the call is refused with."""
    try:
        return "", score(q, score.remember(k, v)).context
    except Refused as refused:
        return str(refused), None
