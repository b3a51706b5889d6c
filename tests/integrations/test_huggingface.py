"""Hugging Face models through heed: their eager outputs, weights and statistics, or a refusal."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import heed
from heed.attention.statistics import statistics
from heed.errors import NotFormed, Refused, UnknownName
from heed.integrations import huggingface
from heed.integrations.torch import replace
from heed.records import Summary

SYMBOLS, B, T = 53, 3, 9
LENGTHS = torch.tensor([T, 4, 7])
LLAMA = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": SYMBOLS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {**LLAMA, "num_attention_heads": 3}
BART = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "vocab_size": SYMBOLS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 3}
ENDS = {"vocab_size": SYMBOLS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 12, "n_layer": 2, "n_head": 3, **ENDS}

CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-by-layer": ("GPT2LMHeadModel", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 4}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**LLAMA, "head_dim": 4, "sliding_window": 4, "attn_logit_softcapping": 1.5},
    ),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA, "head_dim": 4, "sliding_window": 4}),
    "phi": ("PhiForCausalLM", {**LLAMA, "num_key_value_heads": 6}),
    "neox": ("GPTNeoXForCausalLM", BERT),
    "opt": ("OPTForCausalLM", {**LLAMA, "ffn_dim": 20, "word_embed_proj_dim": 24}),
}
READING: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", BERT),
    "roberta": ("RobertaModel", BERT),
    "electra": ("ElectraModel", {**BERT, "embedding_size": 24}),
    "albert": ("AlbertModel", {**BERT, "embedding_size": 8}),
    "distilbert": ("DistilBertModel", {**ENDS, "dim": 12, "n_layers": 2, "n_heads": 3}),
}
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", {**T5, **ENDS, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", BART),
    "pegasus": ("PegasusForConditionalGeneration", BART),
}


def made(kind: str, config: dict[str, Any]) -> Any:
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:  # with small weights, attention is uniform
                nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    return model


def ids(n: int = T) -> Tensor:
    return torch.randint(5, SYMBOLS, (B, n))


def padding(side: str) -> Tensor | None:
    """Which symbols exist.    B T"""
    right = (torch.arange(T) < LENGTHS[:, None]).long()
    return {"none": None, "right": right, "left": right.flip(1)}[side]


def eager(model: Any, **given: Any) -> Any:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**given, output_attentions=True)


def near(ours: Tensor, theirs: Tensor, there: Tensor | None = None) -> None:
    """Within 1e-5 of the largest magnitude, where there is a symbol.    B T ..."""
    assert ours.shape == theirs.shape
    if there is not None:
        ours, theirs = ours[there.bool()], theirs[there.bool()]
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def compare(model: Any, there: Tensor | None, sides: Callable[[Any], Any], **given: Any) -> None:
    """Outputs, weights and statistics of a watched model, compared with its eager twin.

    sides   from the eager output to weights by path
    there   which queries are no padding, for all of its attentions
    """
    want = eager(model, **given)
    weights = sides(want)
    huggingface.enable(model)
    key = "logits" if "logits" in want else "last_hidden_state"
    asked = Summary(top=2, map=(3, 3))
    with torch.no_grad():
        near(model(**given)[key], want[key], there)
        with heed.watch(model) as seen:
            near(model(**given)[key], want[key], there)
        with heed.watch(model, statistics=asked) as said:
            near(model(**given)[key], want[key], there)
    assert list(seen) == list(weights)
    for path, weight in weights.items():
        queries = torch.ones(weight.shape[::2][:2]) if there is None else there
        if queries.shape[1] != weight.shape[2]:  # the other text's padding
            queries = torch.ones(B, weight.shape[2])
        assert len(seen[path]) == 1
        near(seen[path][0].weight.transpose(1, 2), weight.transpose(1, 2), queries)
        told, expected = said[path][0].statistics, statistics(weight, asked)
        for name in ("entropy", "peak", "mass", "expected", "spread", "share"):
            near(
                getattr(told, name).transpose(1, 2),
                getattr(expected, name).transpose(1, 2),
                queries,
            )
        if there is None:
            near(told.received, expected.received)
            assert told.map is not None
            assert expected.map is not None
            near(told.map, expected.map)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", CAUSAL)
def test_decoders(name: str, side: str) -> None:
    model, mask = made(*CAUSAL[name]), padding(side)

    def sides(want: Any) -> dict[str, Tensor]:
        paths = [n for n, m in model.named_modules() if huggingface.attends(m)]
        return dict(zip(paths, want.attentions, strict=True))

    given = {} if mask is None else {"attention_mask": mask}
    if mask is not None:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if name == "opt":
            del given["position_ids"]
    compare(model, mask, sides, input_ids=ids(), **given)


@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("name", READING)
def test_encoders(name: str, side: str) -> None:
    model, mask = made(*READING[name]), padding(side)

    def sides(want: Any) -> dict[str, Tensor]:
        paths = [n for n, m in model.named_modules() if huggingface.attends(m)]
        return dict(zip(paths, want.attentions, strict=len(paths) > 1))

    if name == "albert":  # one layer, called again and again: its records are listed in order
        huggingface.enable(model)
        text = ids()
        with torch.no_grad(), heed.watch(model) as seen:
            model(text)
        (records,) = (seen[path] for path in seen)
        for record, weight in zip(records, eager(model, input_ids=text).attentions, strict=True):
            near(record.weight, weight)
        return
    compare(model, mask, sides, input_ids=ids(), attention_mask=mask)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", PAIRS)
def test_encoder_decoders(name: str, side: str) -> None:
    model, mask = made(*PAIRS[name]), padding(side)
    crosses = ("encoder_attn", "EncDecAttention")

    def sides(want: Any) -> dict[str, Tensor]:
        paths = [n for n, m in model.named_modules() if huggingface.attends(m)]
        reading = [p for p in paths if "decoder." not in p]
        cross = [p for p in paths if p.endswith(crosses)]
        own = [p for p in paths if p not in (*reading, *cross)]
        found = dict(zip(reading, want.encoder_attentions, strict=True))
        found |= dict(zip(own, want.decoder_attentions, strict=True))
        found |= dict(zip(cross, want.cross_attentions, strict=True))
        return {path: found[path] for path in paths}

    target = ids(6)
    want = eager(model, input_ids=(source := ids()), attention_mask=mask, decoder_input_ids=target)
    huggingface.enable(model)
    with torch.no_grad(), heed.watch(model) as seen:
        got = model(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    near(got.logits, want.logits)
    weights = sides(want)
    assert list(seen) == list(weights)
    for path, weight in weights.items():
        there = mask if mask is not None and weight.shape[2] == T else None
        near(seen[path][0].weight.transpose(1, 2), weight.transpose(1, 2), there)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "qwen2"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("side", ["none", "left"])
def test_generation_with_caches(name: str, static: bool, side: str) -> None:
    model, mask = made(*CAUSAL[name]), padding(side)
    rules: dict[str, Any] = {
        "input_ids": ids(),
        "attention_mask": torch.ones(B, T) if mask is None else mask,
        "max_new_tokens": 5,
        "do_sample": False,
        "return_dict_in_generate": True,
        "eos_token_id": None,
        "disable_compile": True,
    }
    if static:
        rules["cache_implementation"] = "static"
    model.set_attn_implementation("eager")
    want = model.generate(**rules, output_attentions=True)
    huggingface.enable(model)
    with heed.watch(model) as seen:
        got = model.generate(**rules)
    assert torch.equal(got.sequences, want.sequences)
    for layer, path in enumerate(seen):
        assert len(seen[path]) == 5
        for t, record in enumerate(seen[path]):
            theirs, ours = want.attentions[t][layer], record.weight
            assert theirs[..., ours.shape[-1] :].abs().sum() == 0  # unused room of a static cache
            there = mask if t == 0 else None
            near(ours.transpose(1, 2), theirs[..., : ours.shape[-1]].transpose(1, 2), there)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_model_compiles_before_its_first_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "_built", SimpleNamespace())
    model, text = made(*CAUSAL[name]), ids()
    model.set_attn_implementation("eager")
    want = model(text, use_cache=False).logits
    huggingface.enable(model)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: model(x, use_cache=False).logits, backend="eager", fullgraph=True
    )
    near(compiled(text), want)
    torch._dynamo.reset()


def test_a_text_in_pieces_equals_the_whole_text() -> None:
    model = huggingface.enable(made(*CAUSAL["mistral"]))
    text = ids()
    with torch.no_grad(), heed.watch(model) as seen:
        whole = model(text)
        first = model(text[:, :4], use_cache=True)
        rest = model(text[:, 4:], past_key_values=first.past_key_values)
    near(rest.logits, whole.logits[:, 4:])
    once, before, after = (r.weight for r in seen["model.layers.1.self_attn"])
    near(before, once[:, :, :4, :4])
    near(after, once[:, :, 4:, T - after.shape[-1] :])


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_survivor_of_a_beam_is_followed(name: str) -> None:
    model = huggingface.enable(made(*PAIRS[name]))
    source, mask = ids(), padding("right")
    with heed.watch(model) as seen:
        out = model.generate(
            input_ids=source,
            attention_mask=mask,
            num_beams=3,
            max_new_tokens=6,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            length_penalty=0.3,
        )
    moved = False
    for b in range(B):
        rows = out.beam_indices[b].tolist()
        looked = seen.follow(rows)
        n = sum(row >= 0 for row in rows)
        moved = moved or len(set(rows[:n])) > 1
        with torch.no_grad(), heed.watch(model) as again:
            model(
                input_ids=source[b : b + 1],
                attention_mask=None if mask is None else mask[b : b + 1],
                decoder_input_ids=out.sequences[b : b + 1, :n],
            )
        assert looked
        for path, record in looked.items():
            near(record.weight, again[path][0].weight)
    assert moved  # beams were reordered


def test_rows_and_heads_are_served_by_the_fast_path() -> None:
    model, text = made(*CAUSAL["llama"]), ids()
    want = eager(model, input_ids=text).attentions
    huggingface.enable(model)
    with torch.no_grad(), heed.watch(model, rows=[-1], heads=[5, 0], modules="*.1.*") as seen:
        model(text)
        during = model(text).logits
    (path,) = seen
    record = seen[path][0]
    near(record.weight, want[1][:, [5, 0], -1:])
    assert record.kernel == "sdpa"
    with torch.no_grad():
        assert torch.equal(model(text).logits, during)  # watching changed no bit


def test_half_precision_keeps_energies_and_softmax_in_float32() -> None:
    """Contract 5: no further from the weights in float64 than eager attention is."""
    model, text = made(*CAUSAL["llama"]).double(), ids()
    want = eager(model, input_ids=text).attentions[0]
    model.bfloat16()
    theirs = eager(model, input_ids=text).attentions[0]
    huggingface.enable(model)
    with torch.no_grad(), heed.watch(model) as seen:
        model(text)
    ours = seen["model.layers.0.self_attn"][0].weight
    assert ours.dtype == torch.float32
    assert (ours - want).abs().max() <= 2 * (theirs.double() - want).abs().max()


def test_a_model_returns_weights_if_asked() -> None:
    for name in ("gpt2", "llama"):
        model, text = made(*CAUSAL[name]), ids()
        want = eager(model, input_ids=text).attentions
        huggingface.enable(model)
        got = model(text, output_attentions=True).attentions
        assert len(got) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            near(ours, theirs)
        assert not model(text).attentions


def test_custom_masks() -> None:
    """Booleans and numbers, B 1 T T, as transformers takes them."""
    model, text = made(*CAUSAL["llama"]), ids()
    seen = torch.rand(B, 1, T, T) < 0.5
    seen |= torch.eye(T, dtype=torch.bool)
    low = torch.finfo(torch.float32).min
    added = torch.where(seen, torch.randn(B, 1, T, T), low)
    want = eager(model, input_ids=text, attention_mask=added)
    huggingface.enable(model)
    with torch.no_grad(), heed.watch(model) as looked:
        near(model(input_ids=text, attention_mask=added).logits, want.logits)
    for weight, path in zip(want.attentions, looked, strict=True):
        near(looked[path][0].weight, weight)
    plain = eager(model, input_ids=text, attention_mask=torch.where(seen, 0.0, low))
    huggingface.enable(model)
    with torch.no_grad():
        near(model(input_ids=text, attention_mask=seen).logits, plain.logits)
    seen[:, :, 3] = False  # a query that sees nothing gets zero weights, not uniform ones
    for mask in (seen, torch.where(seen, 0.0, low), torch.where(seen, 0.0, -torch.inf)):
        with torch.no_grad(), heed.watch(model) as looked:
            assert model(input_ids=text, attention_mask=mask).logits.isfinite().all()
        for path in looked:
            assert (looked[path][0].weight[:, :, 3] == 0).all()


def test_gradients_equal_theirs() -> None:
    model, text = made(*CAUSAL["mistral"]), ids()
    grads = []
    for implementation in ("eager", "heed"):
        if implementation == "heed":
            huggingface.enable(model)
        else:
            model.set_attn_implementation(implementation)
        model.zero_grad()
        with (
            heed.watch(model, statistics=True) if implementation == "heed" else torch.enable_grad()
        ):
            model(text, labels=text).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for theirs, ours in zip(*grads, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max().clamp(min=1e-6)


def test_dropout_is_applied() -> None:
    model = huggingface.enable(made("GPT2LMHeadModel", {**GPT2, "attn_pdrop": 0.5}))
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p == 0.1:
            module.p = 0.0
    text = ids()
    model.train()
    assert not torch.equal(model(text).logits, model(text).logits)
    model.eval()
    assert torch.equal(model(text).logits, model(text).logits)


SIGLIP = {
    **{"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3},
    **{"intermediate_size": 20, "image_size": 8, "patch_size": 4},
}
REFUSED = {
    "bloom": ("BloomForCausalLM", {**ENDS, "hidden_size": 12, "n_layer": 1, "n_head": 3}),
    "xlnet": ("XLNetModel", {"d_model": 12, "n_layer": 1, "n_head": 3, "d_inner": 16, **ENDS}),
    "gptj": ("GPTJModel", {**GPT2, "rotary_dim": 2}),
    # Part of it goes through the interface.
    "pegasus-x": ("PegasusXForConditionalGeneration", BART),
    "longt5": ("LongT5Model", {**T5, **ENDS}),
    "siglip": ("SiglipVisionModel", SIGLIP),
    "resnet": ("ResNetModel", {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}),
    "mamba": ("MambaModel", {**ENDS, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}),
    "rwkv": ("RwkvModel", {**ENDS, "hidden_size": 8, "num_hidden_layers": 2}),
    "switch": ("SwitchTransformersModel", {**T5, **ENDS, "num_experts": 2}),
    "gpt-oss": (
        "GptOssForCausalLM",
        {**LLAMA, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}
TOLD = {
    "bloom": r"computes its attention by itself.*: transformer.h.\*.self_attention \(BloomAtt",
    "xlnet": r"computes its attention by itself.*: layer.\*.rel_attn \(XLNetRelativeAttention\)$",
    "gptj": "computes its attention by itself",
    "pegasus-x": r"2 of its 6 attentions by itself.*: model.encoder.layers.\*.self_attn \(Pegas",
    "longt5": r"2 of its 6 attentions .*: encoder.block.\*.layer.\*.LocalSelfAttention \(LongT5Lo",
    "siglip": r"1 of its 2 att.*: head.attention \(MultiheadAttention\); .*torch\.replace\(model\)",
    "resnet": "ResNetModel has no attention that weighs keys",
    "mamba": "MambaModel has no attention that weighs keys",
    "rwkv": "RwkvModel has no attention that weighs keys",
    "switch": "SwitchTransformersStack does not support the masks of fused attention",
    "gpt-oss": "GptOssAttention passes 's_aux' to its attention",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_not_wholly_served_is_refused_at_once(name: str) -> None:
    model = made(*REFUSED[name])
    before = model.config._attn_implementation
    with pytest.raises(Refused, match=TOLD[name]) as refusal:
        huggingface.enable(model)
    assert "\n" not in str(refusal.value)
    assert model.config._attn_implementation == before
    assert not any(huggingface.CHILD in module._modules for module in model.modules())


def test_the_attention_of_torch_inside_a_model_can_be_exchanged_first() -> None:
    model, picture = made(*REFUSED["siglip"]), torch.randn(B, 3, 8, 8)
    want = eager(model, pixel_values=picture)
    huggingface.enable(replace(model))
    with torch.no_grad(), heed.watch(model) as seen:
        got = model(pixel_values=picture)
    near(got.pooler_output, want.pooler_output)
    near(seen["encoder.layers.0.self_attn"][0].weight, want.attentions[0])
    assert seen["head.attention"][0].weight.shape == (B, 3, 1, 4)


def test_a_backbone_without_attention_does_not_matter() -> None:
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    config = transformers.DetrConfig(
        **{key: value for key, value in BART.items() if "layers" in key or "heads" in key},
        **{"d_model": 12, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_queries": 5},
        **{"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None},
        backbone_config=backbone,
    )
    model, picture = transformers.DetrForObjectDetection(config).eval(), torch.randn(1, 3, 32, 32)
    want = eager(model, pixel_values=picture)
    huggingface.enable(model)
    with torch.no_grad(), heed.watch(model) as seen:
        near(model(pixel_values=picture).logits, want.logits)
    assert len(seen) == 6
    near(seen["model.encoder.layers.0.self_attn"][0].weight, want.encoder_attentions[0])
    near(seen["model.decoder.layers.1.encoder_attn"][0].weight, want.cross_attentions[1])


def test_what_is_not_a_model_of_transformers_is_refused() -> None:
    for model in (nn.Linear(2, 2), "bert-base-uncased"):
        wrong: Any = model
        with pytest.raises(Refused, match="takes a model of transformers"):
            huggingface.enable(wrong)


def test_unknown_features_of_a_call_are_refused() -> None:
    model = huggingface.enable(made(*CAUSAL["llama"]))
    with pytest.raises(Refused, match="passes 'cu_seq_lens_q'"):
        model(ids(), cu_seq_lens_q=torch.tensor([0, T]))


def test_a_module_that_would_not_hear_of_it_is_refused() -> None:
    model = made(*CAUSAL["llama"])
    attention: Any = model.model.layers[1].self_attn
    attention.config = copy.deepcopy(model.config)
    attention.config._attn_implementation = "eager"
    with pytest.raises(Refused, match=r"pass a chosen attention on to model.layers.\*.self_attn"):
        huggingface.enable(model)
    assert model.config._attn_implementation == "sdpa"
    assert attention.config._attn_implementation == "eager"


class Wrapped(nn.Module):
    """A model as PEFT wraps it: twice, and with an adapter beside a product of each attention."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for layer in model.get_submodule("model.layers").children():
            attention: Any = layer.self_attn
            attention.q_proj = Adapted(attention.q_proj)
        self.base_model = nn.ModuleDict({"model": model})

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.base_model["model"](*given, **named)


class Adapted(nn.Module):
    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.base_layer = plain
        self.lora_A = nn.Linear(plain.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, plain.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return out


def test_a_wrapped_model_is_enabled_inside_its_wrapper() -> None:
    model = made(*CAUSAL["llama"])
    wrapped, text = Wrapped(model), ids()
    want = eager(model, input_ids=text)
    assert huggingface.enable(wrapped) is wrapped
    with torch.no_grad(), heed.watch(wrapped) as seen:
        near(wrapped(text).logits, want.logits)
    paths = [f"base_model.model.model.layers.{n}.self_attn" for n in range(2)]
    assert list(seen) == paths
    for path, weight in zip(paths, want.attentions, strict=True):
        near(seen[path][0].weight, weight)
    assert huggingface.disable(wrapped) is wrapped
    assert model.config._attn_implementation == "eager"


def test_a_compiled_model_is_enabled() -> None:
    model, text = made(*CAUSAL["llama"]), ids()
    want = eager(model, input_ids=text, use_cache=False)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(text, use_cache=False)  # with its own attention
        huggingface.enable(compiled)
        near(compiled(text, use_cache=False).logits, want.logits)
        with heed.watch(compiled) as seen:
            near(compiled(text, use_cache=False).logits, want.logits)
    near(seen["_orig_mod.model.layers.1.self_attn"][0].weight, want.attentions[1])
    torch._dynamo.reset()


def built(name: str) -> Any:
    """A model made with attn_implementation="heed", in one of transformers' own ways."""
    kind, config = {**CAUSAL, **PAIRS, **REFUSED}[name]
    cls = getattr(transformers, kind)
    return cls._from_config(cls.config_class(**config), attn_implementation="heed").eval()


def test_the_name_is_known_to_transformers(tmp_path: Path) -> None:
    model, text = made(*CAUSAL["mistral"]), ids()
    want = eager(model, input_ids=text, attention_mask=padding("right"))
    model.save_pretrained(tmp_path)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="heed")
    there = padding("right")
    with torch.no_grad():
        near(opened(text, attention_mask=there).logits, want.logits, there)  # not watched yet
        with heed.watch(opened) as seen:
            near(opened(text, attention_mask=there).logits, want.logits, there)
    assert there is not None
    for path, weight in zip(seen, want.attentions, strict=True):
        near(seen[path][0].weight.transpose(1, 2), weight.transpose(1, 2), there)
    assert huggingface.disable(opened).config._attn_implementation == "sdpa"
    chosen = transformers.AutoModel.from_config(opened.config, attn_implementation="heed")
    with heed.watch(nn.ModuleDict({"theirs": chosen, "ours": heed.Attention("dot", query=4)})) as s:
        pass
    assert list(s) == ["theirs.layers.0.self_attn", "theirs.layers.1.self_attn", "ours"]


def test_a_model_built_with_the_name_compiles_before_its_first_call() -> None:
    model, text = built("mistral"), ids()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: model(x, use_cache=False).logits, backend="eager", fullgraph=True
    )
    got = compiled(text)
    near(got, eager(model, input_ids=text, use_cache=False).logits)
    torch._dynamo.reset()


def test_a_model_built_with_the_name_is_checked() -> None:
    text = ids()
    with pytest.raises(Refused, match="GptOssAttention passes 's_aux'"):
        built("gpt-oss")(text)
    with pytest.raises(Refused, match="does not support the masks of fused attention"):
        built("switch")(input_ids=text, decoder_input_ids=text)
    with pytest.raises(Refused, match="2 of its 6 attentions"), heed.watch(built("longt5")):
        pass


def test_a_model_that_was_not_enabled_is_told_how() -> None:
    theirs = made(*CAUSAL["llama"])
    with pytest.raises(Refused, match=r"huggingface\.enable"), heed.watch(theirs):
        pass
    both = nn.ModuleDict({"theirs": theirs, "ours": heed.Attention("dot", query=4)})
    told = r"'theirs.*self_attn' is a LlamaAttention of transf.*huggingface\.enable"
    with pytest.raises(UnknownName, match=told), heed.watch(both, modules="theirs.*"):
        pass


def test_a_part_that_chose_the_name_is_watched_alone() -> None:
    config = transformers.CLIPConfig(
        text_config={**BERT, "eos_token_id": 2}, vision_config=SIGLIP, projection_dim=8
    )
    model = transformers.CLIPModel._from_config(
        config, attn_implementation={"text_config": "heed", "vision_config": "sdpa"}
    )
    with heed.watch(model) as seen:
        model(input_ids=ids(), pixel_values=torch.randn(B, 3, 8, 8))
    assert [len(seen[path]) for path in seen] == [1, 1]
    assert all(path.startswith("text_model.") for path in seen)


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_a_model_can_be_restored(name: str) -> None:
    model = made(*(CAUSAL | PAIRS)[name])
    model.set_attn_implementation("eager")
    before = {path: list(vars(module)) for path, module in model.named_modules()}
    keys = list(model.state_dict())
    assert huggingface.enable(model) is model
    huggingface.enable(model)  # enabling twice is the same as once
    assert list(model.state_dict()) == keys
    with heed.watch(model):
        pass
    assert huggingface.disable(model) is model
    assert {path: list(vars(module)) for path, module in model.named_modules()} == before
    assert model.config._attn_implementation == "eager"
    assert all(
        m.config._attn_implementation == "eager" for m in model.modules() if hasattr(m, "config")
    )
    with pytest.raises(Refused, match=r"huggingface\.enable\(model\)"), heed.watch(model):
        pass


def test_copies_and_saved_models_still_work(tmp_path: Path) -> None:
    model, text = huggingface.enable(made(*CAUSAL["gpt2"])), ids()
    twin = copy.deepcopy(model)
    with torch.no_grad(), heed.watch(twin) as seen:
        near(twin(text).logits, model(text).logits)
    assert len(seen["transformer.h.0.attn"]) == 1
    with pytest.raises(NotFormed):
        _ = seen["transformer.h.0.attn"][0].statistics
    model.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    near(again(text).logits, model(text).logits)


def succeeds(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_needs_no_transformers() -> None:
    succeeds(
        "import sys, heed, heed.integrations.torch\n"
        "assert 'transformers' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "import heed.integrations.huggingface as h, heed.errors\n"
        "try: h.enable(None)\n"
        "except heed.errors.Refused as error: assert 'heed-attention[hf]' in str(error)\n"
        "else: raise SystemExit(1)\n"
        "with heed.watch(heed.Attention('dot', query=4)): pass\n"
    )


def test_the_import_alone_makes_the_name_known() -> None:
    succeeds(
        "import heed.integrations.huggingface, transformers as t\n"
        "c = t.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)\n"
        "m = t.AutoModel.from_config(c, attn_implementation='heed')\n"
        "assert m.config._attn_implementation == 'heed'\n"
    )
