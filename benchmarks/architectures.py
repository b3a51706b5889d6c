"""Which architectures of Hugging Face attend through heed: small random models, against eager.

    python benchmarks/architectures.py [NAME ...] [--json] [--write]

Each model is built from its configuration, as small as it can be, with weights large enough that
attention is not uniform, and called once with eager attention and once through heed. Every output
of the model, every weight of every attention and the statistics of these weights must agree within
1e-5 of the largest magnitude; else the script ends with an error. The eager weights are those that
the model's own eager attention computes, noted while it runs. A model that heed refuses is listed
with the reason.

--write puts the table into docs/looking-inside.md. It takes about a minute on a CPU.
"""

import argparse
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import transformers
from _page import DOCS, markdown_table, put
from torch import Tensor, nn
from transformers.utils import logging

import heed
from heed.attention.statistics import statistics
from heed.errors import Refused
from heed.integrations import huggingface
from heed.integrations.interface import attends, fetching
from heed.records import Summary

EMBEDDED = re.compile("embed|position|token")  # of a parameter's name
AGREED = 1e-5  # of the largest magnitude
COMPARED = ("outputs", "weights", "statistics")
SAID = ("entropy", "peak", "mass", "expected", "spread", "received")
UNEVEN = 1.02  # times the share of a uniform weight: the least of a largest weight

SMALL = """
32 hidden_size d_model n_embd dim embed_dim embedding_size emb_dim encoder_hidden_size
32 word_embed_proj_dim qkv_hidden_size image_size
40 intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner n_inner ffn_hidden_size
40 moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size mlp_dim
40 feed_forward_size
2 num_hidden_layers n_layer n_layers encoder_layers decoder_layers num_layers num_decoder_layers
4 num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads num_heads
4 num_local_experts num_experts n_routed_experts sliding_window
2 num_key_value_heads num_kv_heads num_experts_per_tok type_vocab_size
8 head_dim d_kv kv_channels attention_head_size patch_size num_mel_bins
64 vocab_size max_position_embeddings n_positions n_ctx max_target_positions
0 pad_token_id decoder_start_token_id
1 bos_token_id
2 eos_token_id
"""
"""Small sizes, and the names that configurations give them."""

SIZES = {
    name: int(size) for size, *names in map(str.split, SMALL.split("\n")[1:-1]) for name in names
}
SYMBOLS, SIDE, MELS = (SIZES[name] for name in ("vocab_size", "image_size", "num_mel_bins"))
T = 9
PICTURE = 60  # the symbol that stands for a part of a picture


@dataclass(frozen=True)
class Case:
    """An architecture: a model class, what it is given, and settings beside SIZES."""

    name: str
    kind: str
    given: Callable[[Any], dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)


def text(config: Any) -> dict[str, Any]:
    """Two texts, the second padded at its end."""
    mask = (torch.arange(T) < torch.tensor([[T], [T - 2]])).long()
    return {"input_ids": torch.randint(5, SYMBOLS - 4, (2, T)), "attention_mask": mask}


def alone(config: Any) -> dict[str, Any]:
    """A text for models that take no padding."""
    return {"input_ids": torch.randint(5, SYMBOLS - 4, (2, T))}


def pair(config: Any) -> dict[str, Any]:
    """Two texts, and what is written so far."""
    return {**text(config), "decoder_input_ids": torch.randint(5, SYMBOLS - 4, (2, 5))}


def image(config: Any) -> dict[str, Any]:
    """A picture."""
    return {"pixel_values": torch.randn(1, 3, SIDE, SIDE)}


def larger(config: Any) -> dict[str, Any]:
    """A picture that can be halved four times."""
    return {"pixel_values": torch.randn(1, 3, 64, 64)}


def both(config: Any) -> dict[str, Any]:
    """Texts and a picture for each."""
    return {**text(config), "pixel_values": torch.randn(2, 3, SIDE, SIDE)}


def wave(config: Any) -> dict[str, Any]:
    """Sound."""
    return {"input_values": torch.randn(1, 1600)}


def spectrum(config: Any) -> dict[str, Any]:
    """A spectrogram, and what is written so far.    mels first"""
    return {
        "input_features": torch.randn(1, MELS, 24),
        "decoder_input_ids": torch.randint(5, SYMBOLS - 4, (1, 5)),
    }


def frames(config: Any) -> dict[str, Any]:
    """A spectrogram.    time first"""
    return {"input_values": torch.randn(1, 24, MELS)}


def spoken(config: Any) -> dict[str, Any]:
    """Sound, and what is written so far."""
    ids = torch.randint(5, SYMBOLS - 4, (1, 5))
    return {"input_values": torch.randn(1, 2000), "decoder_input_ids": ids}


def video(config: Any) -> dict[str, Any]:
    """Four pictures in a row."""
    return {"pixel_values": torch.randn(1, 4, 3, SIDE, SIDE)}


def shown(config: Any) -> dict[str, Any]:
    """A picture, and a text with places for it."""
    places = getattr(config, "num_query_tokens", (SIDE // 8) ** 2)
    ids = torch.randint(5, SYMBOLS - 4, (1, places + T))
    ids[:, 2 : 2 + places] = PICTURE
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, SIDE, SIDE)}


def prefixed(config: Any) -> dict[str, Any]:
    """The same, with four symbols that are an answer: what stands before them is read both ways."""
    given = shown(config)
    kinds = torch.zeros_like(given["input_ids"])
    kinds[:, -4:] = 1
    return {**given, "token_type_ids": kinds}


def several(config: Any) -> dict[str, Any]:
    """A picture, as one of several, and a text with its four places."""
    ids = torch.randint(5, SYMBOLS - 4, (1, 4 + T))
    ids[:, 2:6] = PICTURE
    return {"input_ids": ids, "pixel_values": torch.randn(1, 1, 3, SIDE, SIDE)}


def patches(config: Any) -> dict[str, Any]:
    """A picture of four by four patches, cut already, and a text with its four places."""
    ids = torch.randint(5, SYMBOLS - 4, (1, 4 + T))
    ids[:, 2:6] = PICTURE
    return {
        "input_ids": ids,
        "pixel_values": torch.randn(16, 2 * 3 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == PICTURE).long(),
    }


def small(kind: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration with SIZES where it has such a setting, in its parts too."""
    usual = kind().to_dict()
    known = {
        key: size
        for key, size in SIZES.items()
        if key in usual and (key.endswith("_id") or isinstance(usual[key], int))
    }
    parts = {name: type(part) for name in kind.sub_configs if (part := getattr(kind(), name, None))}
    known |= {name: small(part, {}) for name, part in parts.items() if name in usual}
    for name, given in settings.items():
        inside = name in parts and isinstance(given, Mapping)
        known[name] = small(parts[name], given) if inside else given
    return kind(**known)


def made(case: Case) -> Any:
    """The model of a case, its weights large enough that attention is not uniform."""
    torch.manual_seed(0)
    kind = getattr(transformers, case.kind)
    model = kind(small(kind.config_class, case.settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if EMBEDDED.search(name) and weight.ndim > 1:
                nn.init.normal_(weight, std=0.25)
            elif weight.ndim == 2:
                nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return model


@contextmanager
def noted(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The weights that the eager attention of each module computes while the model runs."""
    paths = {id(module): path for path, module in model.named_modules() if attends(module)}
    found: dict[str, list[Tensor]] = {path: [] for path in paths.values()}

    def noting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def eager(module: nn.Module, *given: Any, **named: Any) -> Any:
            context, weight = plain(module, *given, **named)
            found[paths[id(module)]].append(weight)
            return context, weight

        return eager

    with ExitStack() as stack:
        seen = set()
        for module in model.modules():
            for function in fetching(module):
                for name in function.__code__.co_names:
                    place = (id(function.__globals__), name)
                    if name.endswith("eager_attention_forward") and place not in seen:
                        seen.add(place)
                        around = noting(function.__globals__[name])
                        stack.enter_context(patch.dict(function.__globals__, {name: around}))
        yield found


def tensors(said: Any) -> list[Tensor]:
    """The numbers of an output, without weights and caches."""
    if isinstance(said, Tensor):
        return [said] if said.is_floating_point() else []
    if isinstance(said, Mapping):
        kept = [x for key, x in said.items() if "attentions" not in key and "past" not in key]
        return [each for x in kept for each in tensors(x)]
    return [each for x in said for each in tensors(x)] if isinstance(said, tuple | list) else []


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest magnitude."""
    if ours.shape != theirs.shape or not bool(ours.isfinite().all() and theirs.isfinite().all()):
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-9))


@torch.no_grad()
def compared(case: Case) -> dict[str, Any]:
    """A row: how far heed's outputs, weights and statistics are from eager, or the refusal."""
    model = made(case)
    row: dict[str, Any] = {"name": case.name, "model": case.kind}
    try:
        huggingface.enable(model)
    except Refused as refusal:
        return {**row, "refused": str(refusal)}
    huggingface.disable(model)
    torch.manual_seed(1)
    given = case.given(model.config)
    model.set_attn_implementation("eager")
    with noted(model) as theirs:
        want = tensors(model(**given))
    huggingface.enable(model)
    got = tensors(model(**given))
    with heed.watch(model) as seen:
        model(**given)
    with heed.watch(model, statistics=True) as told:
        model(**given)
    weights = [(path, n) for path, every in theirs.items() for n in range(len(every))]
    ours = [len(seen[path]) if path in seen else 0 for path in theirs]
    if not weights or ours != [len(every) for every in theirs.values()] or len(got) != len(want):
        raise SystemExit(f"{case.name}: {ours} calls, {[len(x) for x in theirs.values()]} of eager")
    said: list[float] = []
    for path, n in weights:
        right = statistics(theirs[path][n], Summary())
        here = told[path][n].statistics
        if float(right.peak[..., -1].max()) * theirs[path][n].shape[-1] < UNEVEN:
            raise SystemExit(f"{case.name}: the weights of {path} are uniform, which shows nothing")
        said += [apart(getattr(here, name), getattr(right, name)) for name in SAID]
    return {
        **row,
        "attentions": sum(bool(every) for every in theirs.values()),
        "outputs": max(apart(*both) for both in zip(got, want, strict=True)),
        "weights": max(apart(seen[path][n].weight, theirs[path][n]) for path, n in weights),
        "statistics": max(said),
    }


PAIR = {"decoder_start_token_id": 0, "forced_eos_token_id": None, "forced_bos_token_id": None}
MLA = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 8, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "first_k_dense_replace": 1,
}
REFORMER = {
    **{"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 2},
    **{"local_attn_chunk_length": 3, "lsh_attn_chunk_length": 3},
}
SWIN = {"depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "patch_size": 4}
SEGFORMER = {
    **{"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32]},
    **{"patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [2, 4]},
}
RESNET = transformers.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
)
DETR = {
    **{"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None},
    **{"backbone_config": RESNET, "num_queries": 5},
}
HIERA = {
    **{"hidden_size": 16, "image_size": [64, 64], "blocks_per_stage": [1, 1, 2, 1]},
    **{"embed_dim_per_stage": [16, 32, 64, 128], "num_attention_heads_per_stage": [1, 2, 4, 4]},
    **{"window_size_per_stage": [4, 4, 4, 2], "global_attention_blocks": [3]},
}
SAM2 = {
    "vision_config": {
        **{"backbone_config": transformers.Sam2HieraDetConfig(**HIERA), "fpn_hidden_size": 32},
        **{"backbone_channel_list": [128, 64, 32, 16]},
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "prompt_encoder_config": {"image_size": 64, "patch_size": 16},
    "mask_decoder_config": {"iou_head_hidden_dim": 32},
}
MOONSHINE = {
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
}
CLAP = {"audio_config": {"depths": [1, 1], "num_attention_heads": [2, 4]}}
BLIP2 = {"image_token_index": PICTURE, "num_query_tokens": 4}
LLAVA = {"image_token_index": PICTURE}
PALIGEMMA = {
    "image_token_id": PICTURE,
    "projection_dim": 32,
    "vision_config": {"vision_use_head": False, "projection_dim": 32},
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
QWEN2_VL = {
    "image_token_id": PICTURE,
    "text_config": {"rope_parameters": MROPE},
    "vision_config": {"depth": 2},
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 4}
PERIOD = {"attn_layer_period": 2, "attn_layer_offset": 1}
ZAMBA2 = {"layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "chunk_size": 4}
HALVES = ["linear_attention", "full_attention"]

GROUPS: dict[str, list[Case]] = {
    "Decoders": [
        Case("GPT-2", "GPT2LMHeadModel", text),
        Case("GPT-Neo", "GPTNeoModel", text, {"attention_types": [[["global", "local"], 1]]}),
        Case("GPT-J", "GPTJModel", text, {"rotary_dim": 4}),
        Case("GPT-NeoX", "GPTNeoXForCausalLM", text),
        Case("GPT-BigCode", "GPTBigCodeModel", text),
        Case("gpt-oss", "GptOssForCausalLM", text),
        Case("OpenAI GPT", "OpenAIGPTModel", alone),
        Case("CTRL", "CTRLModel", alone),
        Case("OPT", "OPTForCausalLM", text),
        Case("BLOOM", "BloomForCausalLM", text),
        Case("MPT", "MptModel", text),
        Case("Falcon", "FalconForCausalLM", text),
        Case("BioGPT", "BioGptForCausalLM", text),
        Case("Llama", "LlamaForCausalLM", text),
        Case("Llama 4", "Llama4ForCausalLM", text),
        Case("Mistral", "MistralForCausalLM", text),
        Case("Mixtral", "MixtralForCausalLM", text),
        Case("Qwen2", "Qwen2ForCausalLM", text),
        Case("Qwen3", "Qwen3ForCausalLM", text),
        Case("Qwen3 MoE", "Qwen3MoeForCausalLM", text),
        Case("Gemma", "GemmaForCausalLM", text),
        Case("Gemma 2", "Gemma2ForCausalLM", text, {"attn_logit_softcapping": 1.5}),
        Case("Gemma 3", "Gemma3ForCausalLM", text),
        Case("Phi", "PhiForCausalLM", text),
        Case("Phi-3", "Phi3ForCausalLM", text),
        Case("StableLM", "StableLmForCausalLM", text),
        Case("StarCoder 2", "Starcoder2ForCausalLM", text),
        Case("Cohere 2", "Cohere2ForCausalLM", text),
        Case("OLMo 2", "Olmo2ForCausalLM", text),
        Case("Granite", "GraniteForCausalLM", text),
        Case("GLM-4", "Glm4ForCausalLM", text),
        Case("SmolLM 3", "SmolLM3ForCausalLM", text),
        Case("DeepSeek-V3", "DeepseekV3ForCausalLM", text, MLA),
        Case("DeepSeek-V3.2", "DeepseekV32ForCausalLM", text, MLA),
        Case("OLMoE", "OlmoeForCausalLM", text),
        Case("DiffLlama", "DiffLlamaForCausalLM", text),
        Case("Doge", "DogeForCausalLM", text),
        Case("ModernBERT decoder", "ModernBertDecoderForCausalLM", text),
    ],
    "Text encoders": [
        Case("BERT", "BertModel", text),
        Case("RoBERTa", "RobertaModel", text),
        Case("XLM-RoBERTa", "XLMRobertaModel", text),
        Case("ALBERT", "AlbertModel", text),
        Case("ELECTRA", "ElectraModel", text),
        Case("DistilBERT", "DistilBertModel", text),
        Case("ModernBERT", "ModernBertModel", text),
        Case("MobileBERT", "MobileBertModel", text),
        Case("MPNet", "MPNetModel", text),
        Case("DeBERTa", "DebertaModel", text),
        Case("DeBERTa-v2", "DebertaV2Model", text),
        Case("XLNet", "XLNetModel", text),
        Case("Longformer", "LongformerModel", text),
        Case("BigBird", "BigBirdModel", text),
        Case("RoFormer", "RoFormerModel", text),
        Case("Funnel", "FunnelModel", text, {"block_sizes": [1, 1], "d_head": 8}),
        Case("ConvBERT", "ConvBertModel", text),
        Case("Nyströmformer", "NystromformerModel", text),
        Case("FNet", "FNetModel", alone),
        Case("ESM-2", "EsmModel", text, {"vocab_size": SYMBOLS}),
        Case("LayoutLM", "LayoutLMModel", text),
        Case("Perceiver", "PerceiverModel", text, {"num_latents": 4, "d_latents": 32}),
        Case("Reformer", "ReformerModel", text, REFORMER),
    ],
    "Encoder-decoders": [
        Case("T5", "T5ForConditionalGeneration", pair),
        Case("mT5", "MT5ForConditionalGeneration", pair),
        Case("LongT5", "LongT5Model", pair),
        Case("Switch Transformers", "SwitchTransformersModel", pair),
        Case("T5Gemma", "T5GemmaModel", pair),
        Case("BART", "BartForConditionalGeneration", pair, PAIR),
        Case("mBART", "MBartForConditionalGeneration", pair, PAIR),
        Case("Marian", "MarianMTModel", pair, PAIR),
        Case("M2M-100", "M2M100ForConditionalGeneration", pair, PAIR),
        Case("Pegasus", "PegasusForConditionalGeneration", pair, PAIR),
        Case("PEGASUS-X", "PegasusXForConditionalGeneration", pair, PAIR),
        Case("BigBird-Pegasus", "BigBirdPegasusModel", pair, PAIR),
        Case("Blenderbot", "BlenderbotForConditionalGeneration", pair, PAIR),
        Case("LED", "LEDModel", pair, PAIR),
        Case("ProphetNet", "ProphetNetModel", pair, PAIR),
    ],
    "Vision": [
        Case("ViT", "ViTModel", image),
        Case("DeiT", "DeiTModel", image),
        Case("BEiT", "BeitModel", image),
        Case("DINOv2", "Dinov2Model", image),
        Case("DINOv3", "DINOv3ViTModel", image),
        Case("Swin", "SwinModel", image, SWIN),
        Case("Swin v2", "Swinv2Model", image, SWIN),
        Case("SegFormer", "SegformerModel", image, SEGFORMER),
        Case("DPT", "DPTModel", image),
        Case("MobileViT", "MobileViTModel", image),
        Case("SigLIP, its images", "SiglipVisionModel", image),
        Case("VideoMAE", "VideoMAEModel", video, {"num_frames": 4}),
        Case("DETR", "DetrForObjectDetection", image, DETR),
        Case("Conditional DETR", "ConditionalDetrModel", image, DETR),
        Case("Deformable DETR", "DeformableDetrModel", image, DETR),
        Case("YOLOS", "YolosModel", image, {"image_size": [SIDE, SIDE]}),
        Case("SAM", "SamModel", image),
        Case("SAM 2", "Sam2Model", larger, SAM2),
        Case("ResNet", "ResNetModel", image),
        Case("ConvNeXt", "ConvNextModel", image),
    ],
    "Audio": [
        Case("Whisper", "WhisperForConditionalGeneration", spectrum, {"max_source_positions": 12}),
        Case("wav2vec 2.0", "Wav2Vec2Model", wave),
        Case("HuBERT", "HubertModel", wave),
        Case("WavLM", "WavLMModel", wave),
        Case("Audio Spectrogram Transformer", "ASTModel", frames, {"max_length": 24}),
        Case("Moonshine", "MoonshineModel", spoken, MOONSHINE),
        Case("SpeechT5", "SpeechT5ForSpeechToText", wave),
        Case("CLAP", "ClapModel", both, CLAP),
    ],
    "Several kinds of input": [
        Case("CLIP", "CLIPModel", both),
        Case("SigLIP", "SiglipModel", both),
        Case("BLIP", "BlipForConditionalGeneration", both),
        Case("BLIP-2", "Blip2Model", shown, BLIP2),
        Case("GIT", "GitModel", both),
        Case("ViLT", "ViltModel", both),
        Case("FLAVA", "FlavaModel", both),
        Case("LLaVA", "LlavaForConditionalGeneration", shown, LLAVA),
        Case("Qwen2-VL", "Qwen2VLForConditionalGeneration", patches, QWEN2_VL),
        Case("PaliGemma", "PaliGemmaForConditionalGeneration", prefixed, PALIGEMMA),
        Case("Idefics 3", "Idefics3Model", several, {"image_token_id": PICTURE}),
        Case("LayoutLMv3", "LayoutLMv3Model", both),
        Case("Chameleon", "ChameleonModel", text, {"vocabulary_map": {"<image>": PICTURE}}),
    ],
    "Recurrent models and hybrids": [
        Case("Mamba", "MambaModel", alone),
        Case("Mamba 2", "Mamba2Model", alone, {"head_dim": 16}),
        Case("RWKV", "RwkvModel", alone),
        Case("xLSTM", "xLSTMModel", alone),
        Case("RecurrentGemma", "RecurrentGemmaModel", text, {"num_hidden_layers": 3}),
        Case("Jamba", "JambaModel", text, {**PERIOD, "use_mamba_kernels": False}),
        Case("Zamba", "ZambaModel", text, {**PERIOD, "num_hidden_layers": 5}),
        Case("Zamba 2", "Zamba2Model", text, ZAMBA2),
        Case("Bamba", "BambaModel", text, {**MAMBA, "attn_layer_indices": [1]}),
        Case("Falcon-H1", "FalconH1Model", text, {**MAMBA, "mamba_d_ssm": 64}),
        Case("LFM2", "Lfm2Model", text),
        Case("Qwen3-Next", "Qwen3NextModel", text, {"layer_types": HALVES}),
        Case("MiniMax", "MiniMaxModel", text),
        Case("Kimi Linear", "KimiLinearModel", text, {"layer_types": HALVES}),
    ],
}


def outcome(row: Mapping[str, Any]) -> str:
    """What the table says of a row."""
    if "refused" not in row:
        return "equal"
    said = row["refused"]
    alone = re.search(r"computes (?:its|(.*) of its (.*)) attentions? by itself.*?: ", said)
    if alone is None:
        return f"refused: {said.partition(' ')[2].partition(', so')[0].partition(';')[0]}"
    paths = said[alone.end() :].partition(";")[0]
    kinds = dict.fromkeys(f"`{kind}`" for kind in re.findall(r"\((\w+)\)", paths))
    few = f"{alone[1]} of {alone[2]} attentions" if alone[1] else "attention"
    cure = "; first `replace`" if "replace(model)" in said else ""
    return f"refused: {few} of its own, {', '.join(kinds)}{cure}"


def table(rows: Mapping[str, list[dict[str, Any]]]) -> str:
    """The table of all groups, and what was found."""
    lines = [["", "Architecture", "Class", "Attentions", "Through heed"]]
    for group, each in rows.items():
        for n, row in enumerate(each):
            count = str(row.get("attentions", ""))
            lines.append(
                ["" if n else group, row["name"], f"`{row['model']}`", count, outcome(row)]
            )
    every = [row for each in rows.values() for row in each]
    equal = [row for row in every if "refused" not in row]
    off = ", ".join(f"{key} {max(row[key] for row in equal):.0e}" for key in COMPARED)
    return (
        f"With transformers {transformers.__version__}, {len(equal)} of {len(every)} are equal and "
        f"{len(every) - len(equal)} refused. The largest differences, as a share of the largest "
        f"magnitude: {off}.\n\n{markdown_table(lines, 5)}"
    )


def chosen(names: Sequence[str]) -> dict[str, list[Case]]:
    """The cases of these names, or all of them."""
    if unknown := set(names) - {case.name for cases in GROUPS.values() for case in cases}:
        raise SystemExit(f"there is no architecture {', '.join(sorted(unknown))}")
    kept = {
        group: [case for case in cases if not names or case.name in names]
        for group, cases in GROUPS.items()
    }
    return {group: cases for group, cases in kept.items() if cases}


def main() -> None:
    parser = argparse.ArgumentParser(description="Hugging Face architectures through heed.")
    parser.add_argument("names", nargs="*", help="architectures, as the table names them")
    parser.add_argument("--json", action="store_true", help="print the rows")
    parser.add_argument("--write", action="store_true", help="put the table into docs/")
    options = parser.parse_args()
    if options.write and options.names:
        parser.error("--write takes no names: the table has all architectures")
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    rows: dict[str, list[dict[str, Any]]] = {}
    for group, cases in chosen(options.names).items():
        rows[group] = []
        for case in cases:
            begin = time.perf_counter()
            rows[group].append(row := compared(case))
            took = f"{time.perf_counter() - begin:5.1f} s"
            print(f"{took}  {case.name}: {outcome(row)}", file=sys.stderr, flush=True)
            if wrong := [key for key in COMPARED if not row.get(key, 0.0) <= AGREED]:
                raise SystemExit(f"{case.name}: {', '.join(wrong)} differ: {row}")
    if options.json:
        print(json.dumps(rows))
    if options.write:
        command = "benchmarks/architectures.py"
        put(DOCS / "looking-inside.md", "architectures", command, table(rows))


if __name__ == "__main__":
    main()
