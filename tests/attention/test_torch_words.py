"""Arguments that a PyTorch user tries: they work, or one line says what to write instead."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import heed
from heed.errors import HeedError, Refused, UnknownName
from heed.models import transformer_settings

B, H, T, S, D = 2, 2, 4, 6, 8
HIDES = torch.zeros(B, S, dtype=torch.bool)
SEEN = torch.ones(T, S, dtype=torch.bool)


def heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, H, n, D, generator=generator) for n in (T, S, S))  # type: ignore[return-value]


def door(name: str, **given: Any) -> Any:
    """Use an argument at a door."""
    query, keys = torch.randn(B, T, D), torch.randn(B, S, D)
    attend = heed.Attention("scaled-dot", query=D)
    if name == "attend":
        return heed.attend(*heads(), **given)
    if name == "Attention":
        return heed.Attention(**given)
    if name == "MultiHeadAttention":
        return heed.MultiHeadAttention(D, H, **given)
    if name == "remember":
        return attend.remember(keys, **given)
    return attend(query, attend.remember(keys), **given)


WAYS: list[tuple[str, str, Any, str]] = [
    # A mask of queries and keys: both senses of True are told.
    ("attend", "mask", SEEN, "visible=mask where True is seen.*visible=~mask where True hides"),
    (
        "attend",
        "attn_mask",
        SEEN,
        "visible=mask where True is seen.*visible=~mask where True hides",
    ),
    ("call", "mask", SEEN, "visible=mask where True is seen.*visible=~mask where True hides"),
    ("call", "attn_mask", SEEN, "visible=mask where True is seen.*visible=~mask where True hides"),
    ("remember", "attn_mask", SEEN, "belongs to the call: visible=mask"),
    ("Attention", "attn_mask", SEEN, "belongs to the call: visible=mask"),
    # A mask of keys.
    ("attend", "key_padding_mask", HIDES, r"visible=heed\.Visible\.keys\(~mask\)"),
    ("call", "key_padding_mask", HIDES, r"remember\(visible=~mask\).*hides where it is True"),
    ("remember", "key_padding_mask", HIDES, "visible=~mask"),
    ("remember", "mask", HIDES, "visible=mask where True exists, visible=~mask where True is pad"),
    ("call", "attention_mask", ~HIDES, r"mask\.bool\(\)"),
    ("remember", "attention_mask", ~HIDES, r"visible=mask\.bool\(\)"),
    ("attend", "is_causal", True, r"visible=heed\.causal\(\)"),
    ("call", "is_causal", True, r"visible=heed\.causal\(\)"),
    ("remember", "is_causal", True, r"belongs to the call: visible=heed\.causal\(\)"),
    ("MultiHeadAttention", "is_causal", True, r"belongs to the call: visible=heed\.causal\(\)"),
    # What is chosen when an attention is made.
    ("call", "scale", 0.1, "chosen when the attention is made: scale=0.1 for scaled-dot"),
    ("call", "dropout_p", 0.1, "chosen when the attention is made: dropout=0.1"),
    ("call", "dropout", 0.1, "chosen when the attention is made: dropout=0.1"),
    ("remember", "dropout_p", 0.1, "chosen when the attention is made: dropout=0.1"),
    ("attend", "dropout_p", 0.1, "here: dropout=0.1"),
    ("Attention", "dropout_p", 0.1, "here: dropout=0.1"),
    ("MultiHeadAttention", "dropout_p", 0.1, "here: dropout=0.1"),
    ("Attention", "num_heads", 8, r"heed\.MultiHeadAttention\(embed_dim, num_heads"),
    ("Attention", "embed_dim", 8, r"heed\.MultiHeadAttention\(embed_dim, num_heads"),
    ("Attention", "heads", 8, r"heed\.MultiHeadAttention\(embed_dim, num_heads"),
    ("Attention", "batch_first", True, "the batch is always first"),
    ("call", "batch_first", True, "the batch is always first"),
    ("attend", "num_heads", 8, "axis 1 of q, k and v"),
    ("attend", "enable_gqa", True, "heads share keys"),
    # What a call returns.
    ("attend", "need_weights", True, 'need="weight"'),
    ("call", "need_weights", True, 'need="weight"'),
    ("call", "average_attn_weights", True, r"\.weight\.mean\(1\)"),
    ("Attention", "need_weights", True, 'belongs to the call: need="weight"'),
    # What nobody knows.
    ("call", "maks", SEEN, "no argument 'maks'; a call takes query, memory, state, visible, need"),
    ("remember", "maks", SEEN, "no argument 'maks'; a call takes keys, values, visible, segments"),
]


@pytest.mark.parametrize(
    ("where", "name", "given", "way"), WAYS, ids=[f"{w[0]}-{w[1]}" for w in WAYS]
)
def test_a_word_of_pytorch_is_told_heeds(where: str, name: str, given: Any, way: str) -> None:
    with pytest.raises(Refused, match=way) as error:
        door(where, **{name: given})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["attend", "Attention", "MultiHeadAttention"])
def test_an_unknown_option_gets_the_nearest(where: str) -> None:
    sizes = {"query": D} if where == "Attention" else {}
    with pytest.raises(
        UnknownName, match=r"no option of 'fixed-window/dot' is called 'widow'.*window"
    ):
        door(where, mechanism="fixed-window/dot", widow=3, **sizes)


def test_a_mechanism_takes_no_more_options() -> None:
    mechanism = heed.Attention("dot", query=D).mechanism
    for given in ({"scale": 0.1}, {"dropout": 0.1}):
        with pytest.raises(Refused, match="a Mechanism already has"):
            heed.attend(*heads(), mechanism, **given)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="here: dropout"):
        heed.attend(*heads(), mechanism, dropout_p=0.1)


@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize("scale", [0.03, 1, 7.5])
def test_a_scale_is_torchs(scale: float, need: Any) -> None:
    q, k, v = heads()
    want = scaled_dot_product_attention(q, k, v, scale=scale)
    torch.testing.assert_close(heed.attend(q, k, v, scale=scale, need=need).context, want)
    attend = heed.Attention("scaled-dot", query=D, scale=scale)
    seen = attend(q[:, 0], attend.remember(k[:, 0], v[:, 0]), need=need)
    torch.testing.assert_close(seen.context, want[:, 0])


def test_a_scale_works_in_combinations_and_is_checked() -> None:
    q, k, v = heads()
    ok = torch.ones(T, S, dtype=torch.bool).tril(S - T + 1).triu(S - T - 1)
    want = scaled_dot_product_attention(q, k, v, attn_mask=ok, scale=0.2)
    got = heed.attend(q, k, v, "scaled-dot/fixed-window", scale=0.2, window=1)
    torch.testing.assert_close(got.context, want)
    for wrong in (0, -1.0, float("nan"), "1"):
        with pytest.raises(Refused, match="scale is a number"):
            heed.attend(q, k, v, scale=wrong)
    with pytest.raises(HeedError, match="scale"):
        heed.attend(q, k, v, "dot", scale=0.1)


def test_scales_that_change_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from heed.attention import functional

    monkeypatch.setattr(functional, "MOST", 5)
    monkeypatch.setattr(functional, "_built", type(functional._built)())
    q, k, v = heads()
    for i in range(1, 12):
        want = scaled_dot_product_attention(q, k, v, scale=i / 10)
        torch.testing.assert_close(heed.attend(q, k, v, scale=i / 10).context, want)
    assert len(vars(functional._built)) == 5


def test_dropout_of_the_function_is_torchs() -> None:
    """Each weight is zero with that chance, or larger by 1 / (1 - p)."""
    q, k, _ = heads()
    eye = torch.eye(S).expand(B, H, S, S)  # the context is the weights
    plain = heed.attend(q, k, eye).context
    torch.testing.assert_close(heed.attend(q, k, eye, dropout=0.0).context, plain)
    torch.manual_seed(1)
    drawn = torch.stack([heed.attend(q, k, eye, dropout=0.25).context for _ in range(200)])
    ratio = drawn / plain
    assert ((ratio.abs() < 1e-6) | ((ratio - 4 / 3).abs() < 1e-4)).all()
    assert (ratio < 0.5).float().mean().item() == pytest.approx(0.25, abs=0.02)
    with pytest.raises(Refused, match="dropout is a number of at least 0 and at most 1"):
        heed.attend(q, k, eye, dropout=1.5)


def test_the_fast_paths_of_a_transformer_keep_its_scale() -> None:
    """Steps of a plain decoder compute the usual scale themselves: another must rule them out."""
    told = transformer_settings.TransformerSettings(
        width=8, heads=2, feed=8, encoder_layers=1, decoder_layers=1, options={"scale": 3.0}
    )
    torch.manual_seed(0)
    network = transformer_settings.build(told, source=9, target=9, shared=True, longest=9).eval()
    source, lengths = torch.randint(0, 9, (2, 5)), torch.tensor([5, 4])
    inputs = torch.randint(0, 9, (2, 4))
    with torch.no_grad():
        want = network(source, lengths, inputs).logits
        carry = network.begin(source, lengths)
        for t in range(4):
            logits, carry, _ = network.step(carry, inputs[:, t])
            torch.testing.assert_close(logits, want[:, t])
