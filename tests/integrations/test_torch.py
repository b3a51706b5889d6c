"""torch's MultiheadAttention replaced: the same numbers and calls, and it can be watched."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.statistics import statistics
from heed.errors import HeedError, Refused, ShapeError, UnknownName
from heed.integrations.torch import TorchAttention, replace

B, T, S, M, H = 3, 5, 7, 12, 3

MODULES: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 8, "vdim": 10},
    {"kdim": 8, "batch_first": True, "add_bias_kv": True, "add_zero_attn": True},
    {"num_heads": 1, "dropout": 0.3},
]


def pair(**choices: Any) -> tuple[nn.MultiheadAttention, Any]:
    module = nn.MultiheadAttention(M, choices.pop("num_heads", H), **choices).double().eval()
    for name, weight in module.named_parameters():
        if "bias" in name:  # biases start at zero, where errors would not show
            nn.init.normal_(weight, std=0.5)
    return module, replace(copy.deepcopy(module))


def given(module: nn.MultiheadAttention, batched: bool = True) -> list[Tensor]:
    widths = ((T, M), (S, module.kdim), (S, module.vdim))
    if not batched:
        return [torch.randn(n, width, dtype=torch.double) for n, width in widths]
    made = [torch.randn(B, n, width, dtype=torch.double) for n, width in widths]
    return made if module.batch_first else [x.transpose(0, 1) for x in made]


def masks(heads: int) -> dict[str, dict[str, Any]]:
    """Every kind of mask; each query sees something."""
    padded = torch.arange(S) >= torch.tensor([S, 4, 6])[:, None]
    hidden = torch.rand(T, S) < 0.4
    each = torch.rand(B * heads, T, S) < 0.4
    hidden[:, 0] = each[..., 0] = False
    numbers = torch.randn(T, S, dtype=torch.double)
    return {
        "none": {},
        "padding": {"key_padding_mask": padded},
        "pairs": {"attn_mask": hidden},
        "pairs of heads": {"attn_mask": each},
        "numbers": {"attn_mask": numbers},
        "numbers that hide": {"attn_mask": numbers.masked_fill(hidden, -torch.inf)},
        "numbers of heads": {
            "attn_mask": torch.randn(B * heads, T, S, dtype=torch.double).masked_fill(
                each, -torch.inf
            )
        },
        "both": {"key_padding_mask": padded, "attn_mask": hidden},
        "padding in numbers": {
            "key_padding_mask": torch.randn(B, S, dtype=torch.double).masked_fill(
                padded, -torch.inf
            ),
            "attn_mask": numbers,
        },
    }


@pytest.mark.parametrize("mask", list(masks(H)))
@pytest.mark.parametrize("choices", MODULES)
def test_outputs_and_weights_are_the_same(choices: dict[str, Any], mask: str) -> None:
    theirs, ours = pair(**choices)
    inputs, told = given(theirs), masks(theirs.num_heads)[mask]
    with torch.no_grad():
        for asked in (
            {},
            {"need_weights": False},
            {"average_attn_weights": False},
        ):
            want = theirs(*inputs, **told, **asked)
            got = ours(*inputs, **told, **asked)
            torch.testing.assert_close(got[0], want[0])
            assert (got[1] is None) == (want[1] is None)
            if want[1] is not None:
                torch.testing.assert_close(got[1], want[1])


@pytest.mark.parametrize("choices", MODULES[:4])
def test_without_a_batch(choices: dict[str, Any]) -> None:
    theirs, ours = pair(**choices)
    inputs = given(theirs, batched=False)
    padded, hidden = torch.arange(S) > 4, torch.rand(T, S) < 0.3
    hidden[:, 0] = False
    for told in ({}, {"key_padding_mask": padded}, {"attn_mask": hidden}):
        want, got = theirs(*inputs, **told), ours(*inputs, **told)
        torch.testing.assert_close(got, want)


def test_causal_hints() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(B, T, M, dtype=torch.double)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.double)
    want = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    with heed.watch(ours, statistics=True) as seen:
        got = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    torch.testing.assert_close(got, want)
    assert seen[""][0].kernel == "sdpa"
    with pytest.raises(Refused, match="is_causal describes attn_mask"):
        ours(x, x, x, is_causal=True)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_a_wrong_causal_hint_is_followed_where_torch_does(
    padding: bool, need_weights: bool
) -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(B, T, M, dtype=torch.double)
    hidden = torch.rand(T, T) < 0.4
    hidden[:, 0] = False
    told: dict[str, Any] = {"attn_mask": hidden, "is_causal": True, "need_weights": need_weights}
    if padding:
        told["key_padding_mask"] = torch.arange(T) >= torch.tensor([T, 2, 4])[:, None]
    torch.testing.assert_close(ours(x, x, x, **told), theirs(x, x, x, **told))


def test_gradients_are_the_same() -> None:
    theirs, ours = pair(add_bias_kv=True)
    inputs, told = given(theirs), masks(H)["both"]
    grads = []
    for module in (theirs, ours):
        out, weight = module(*inputs, **told)
        (out.square().sum() + weight.square().sum()).backward()
        grads.append({name: p.grad for name, p in module.named_parameters()})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad)


def test_a_query_that_sees_nothing_reads_zero() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(1, 2, M, dtype=torch.double)
    hidden = torch.tensor([[True, True], [False, True]])
    out, weight = ours(x, x, x, attn_mask=hidden)
    assert theirs(x, x, x, attn_mask=hidden)[0][0, 0].isnan().all()
    torch.testing.assert_close(out[0, 0], ours.out_proj.bias)
    assert (weight[0, 0] == 0).all()


def test_the_state_dict_and_the_parameters_stay() -> None:
    module = nn.MultiheadAttention(M, H, kdim=8)
    before = dict(module.named_parameters())
    before["k_proj_weight"].requires_grad_(False)
    keys = list(module.state_dict())
    made = replace(module.train())
    assert sorted(made.state_dict()) == sorted(keys)
    assert all(p is before[name] for name, p in made.named_parameters())
    assert made.training
    assert not made.k_proj_weight.requires_grad
    assert (made.num_heads, made.batch_first, made.dropout) == (H, False, 0.0)


def transformer(batch_first: bool = True, norm_first: bool = False) -> nn.Transformer:
    model = nn.Transformer(
        M, 2, 2, 2, 16, batch_first=batch_first, norm_first=norm_first, dropout=0.1
    )
    return model.eval()


PATHS = [
    "encoder.layers.0.self_attn",
    "encoder.layers.1.self_attn",
    "decoder.layers.0.self_attn",
    "decoder.layers.0.multihead_attn",
    "decoder.layers.1.self_attn",
    "decoder.layers.1.multihead_attn",
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_whole_transformer(batch_first: bool, norm_first: bool) -> None:
    theirs = transformer(batch_first, norm_first)
    ours: Any = replace(copy.deepcopy(theirs))
    source, target = torch.randn(B, S, M), torch.randn(B, T, M)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    padded = torch.arange(S) >= torch.tensor([S, 4, 6])[:, None]
    told = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(T),
        "src_key_padding_mask": padded,
        "memory_key_padding_mask": padded,
    }
    with torch.no_grad():  # where torch would pack the batch and call no attention
        want = theirs(source, target, **told)
        with heed.watch(ours) as seen:
            got = ours(source, target, **told)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours(source, target, **told), want, rtol=1e-4, atol=1e-5)
    assert list(seen) == PATHS
    assert [len(seen[path]) for path in PATHS] == [1] * 6
    weight = seen["encoder.layers.0.self_attn"][0].weight
    assert (weight.masked_select(padded[:, None, None].expand_as(weight)) == 0).all()
    assert (seen["decoder.layers.1.self_attn"][0].weight.triu(1) == 0).all()
    assert seen["decoder.layers.1.multihead_attn"][0].weight.shape == (B, 2, T, S)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
def test_no_fast_path_bypasses_a_replaced_attention(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.TransformerEncoderLayer(M, 2, 16, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).eval()
    ours: Any = replace(copy.deepcopy(theirs))
    taken, asked = [], []
    fast, plain = torch._transformer_encoder_layer_fwd, TorchAttention.forward

    def taking(*given: Any) -> Tensor:
        taken.append(1)
        return fast(*given)

    def asking(self: TorchAttention, *given: Any, **named: Any) -> Any:
        asked.append(1)
        return plain(self, *given, **named)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", taking)
    monkeypatch.setattr(TorchAttention, "forward", asking)
    x, lengths = torch.randn(B, T, M), torch.tensor([T, 2, 3])
    mask = torch.arange(T) >= lengths[:, None] if padded else None
    with torch.no_grad():
        theirs(x, src_key_padding_mask=mask)
        assert (len(taken), len(asked)) == (2, 0)  # as torch does
        got = ours(x, src_key_padding_mask=mask)
    assert (len(taken), len(asked)) == (2, 2)
    assert got.shape == x.shape


def test_statistics_and_weights_agree_while_the_model_asks_for_neither() -> None:
    ours = replace(transformer())
    source, target = torch.randn(B, S, M), torch.randn(B, T, M)
    with torch.no_grad(), heed.watch(ours) as seen:
        ours(source, target)
    with torch.no_grad(), heed.watch(ours, statistics=True) as said:
        ours(source, target)
    for path in PATHS:
        want = statistics(seen[path][0].weight)
        torch.testing.assert_close(said[path][0].statistics.entropy, want.entropy)
        assert said[path][0].kernel == "sdpa"


@pytest.mark.parametrize("name", ["additive", "sparsemax", "local-m", "monotonic", "mixed"])
def test_another_mechanism_by_name(name: str) -> None:
    model: Any = replace(transformer(), name, modules="decoder.*.multihead_attn")
    source, target = torch.randn(B, S, M), torch.randn(B, T, M)
    with heed.watch(model) as seen:
        before = model(source, target)
    assert list(seen) == [path for path in PATHS if path.endswith("multihead_attn")]
    before.sum().backward()
    cross = model.decoder.layers[0].multihead_attn
    x = torch.randn(B, T, M)
    own = heed.MultiHeadAttention(M, 2, mechanism=name).eval()
    own.load_state_dict(cross.state_dict())
    want = own(x, own.remember(source), need="weight")
    got, weight = cross(x, source, source, average_attn_weights=False)
    torch.testing.assert_close(got, want.context)
    torch.testing.assert_close(weight, want.weight)


def test_a_replaced_attention_can_be_replaced_again() -> None:
    model: Any = replace(transformer())
    weights = {id(p) for p in model.parameters()}
    source, target = torch.randn(B, S, M), torch.randn(B, T, M)
    want = model(source, target)
    replace(model, "entmax", modules="encoder.*")
    assert not torch.allclose(model(source, target), want)
    assert {id(p) for p in model.parameters()} == weights
    replace(model)
    torch.testing.assert_close(model(source, target), want)


def test_a_shared_module_stays_shared() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.MultiheadAttention(M, H)

    model: Any = replace(Twice())
    assert model.one is model.two
    assert isinstance(model.one, TorchAttention)


class Own(nn.MultiheadAttention):
    """A subclass by a user."""


def test_modules_that_cannot_be_replaced_are_refused() -> None:
    with pytest.raises(Refused, match=r"no torch\.nn\.MultiheadAttention"):
        replace(nn.Linear(2, 2))
    with pytest.raises(UnknownName):
        replace(transformer(), modules="encodr.*")
    model = nn.ModuleDict({"plain": nn.MultiheadAttention(M, H), "own": Own(M, H)})
    with pytest.raises(Refused, match="own is a Own"):
        replace(model)
    assert type(model["plain"]) is nn.MultiheadAttention  # nothing was replaced
    replace(model, modules="plain")
    for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
        hooked = nn.MultiheadAttention(M, H)
        getattr(hooked, f"register_{kind}_hook")(lambda *_: None)
        with pytest.raises(Refused, match="has hooks"):
            replace(hooked)
    with pytest.raises(HeedError):
        replace(nn.MultiheadAttention(M, H), "pointer")
    with pytest.raises(Refused, match="add_zero_attn have none"):
        replace(nn.MultiheadAttention(M, H, add_zero_attn=True), "monotonic")


def test_calls_that_do_not_fit_are_refused() -> None:
    _, ours = pair(batch_first=True)
    x = torch.randn(B, T, M, dtype=torch.double)
    for wrong in (
        {"key_padding_mask": torch.zeros(B, T + 1, dtype=torch.bool)},
        {"attn_mask": torch.zeros(T, T + 1)},
        {"attn_mask": torch.zeros(B, T, T)},
    ):
        with pytest.raises(ShapeError):
            ours(x, x, x, **wrong)
    with pytest.raises(Refused, match="attn_mask holds booleans, or numbers"):
        ours(x, x, x, attn_mask=torch.zeros(T, T, dtype=torch.long))
    with pytest.raises(ShapeError):
        ours(x, x[0], x[0])
    with pytest.raises(HeedError):
        ours(x[..., :-1], x, x)


def test_training_drops_weights_and_reports_them_before_dropout() -> None:
    ours: Any = replace(nn.MultiheadAttention(M, H, dropout=0.5, batch_first=True).train())
    x = torch.randn(B, T, M)
    (one, weight), (two, _) = ours(x, x, x), ours(x, x, x)
    assert not torch.equal(one, two)
    torch.testing.assert_close(weight.sum(-1), torch.ones(B, T))
