"""Beam-5 translation on the CPU: heed against Hugging Face `generate`, on the same weights.

    python benchmarks/decoding.py [--size tiny|small|base] [--threads 2] [--json]
    python benchmarks/decoding.py --run RUN [--part test] [--most 200] [--batch 1 --batch 8]

A Transformer of heed is copied into a MarianMTModel, parameter by parameter. Both are timed in
float32, in turns, and each figure is the best of its rounds. The target is twice the speed.

Without a run the weights are random and texts never end, so that both sides write the same number
of symbols. In float64 both must find the same five translations of every sentence, and each score
must equal that of rereading the translation; what heed finds in float32, by any kernel, must be as
good.

With a run, its own sentences are translated, in batches of similar length: by
`Translator.translate` on one side, by `generate` on the other. Here sentences end by themselves. In
the row for all of them, heed chooses its batches, and `generate` has batches of 32. Any post-norm
Transformer with sinusoidal positions will do; if RUN does not exist, a tiny one is trained there
first, in a few minutes.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

import heed
from heed.data.tokenise import BOS, UNK
from heed.decoding import Hypothesis, beam
from heed.events import finish
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.layers import TransformerLayer
from heed.models.transformer_settings import TransformerSettings, build
from heed.running.opening import Run, open_run
from heed.running.preparing import examples_of
from heed.running.recipe import resolve
from heed.running.train import train
from heed.tasks.task import Codec

PAD, END = 0, 3
SYMBOLS = {"tiny": 10_000, "small": 16_000, "base": 32_000}
SOURCE, TARGET, WIDTH = 24, 30, 5
RECIPE: dict[str, Any] = {
    "task": "translate",
    "data": {
        "grammar": {"pairs": 20_000, "shortest": 3, "longest": 20, "held_out": 320},
        "tokens": {"kind": "word", "size": 2000, "shared": True},
    },
    "model": {"kind": "transformer", "size": "tiny", "norm": "post", "dropout": 0.0},
    "training": {
        "steps": 220, "batch_tokens": 3000, "rate": 0.001, "schedule": "cosine", "warmup": 40,
    },
    "decoding": {"method": "beam", "width": WIDTH},
}  # fmt: skip


def make(size: str) -> EncoderDecoder:
    """A network with random weights that never ends a sentence."""
    settings = TransformerSettings(size=size, norm="post", dropout=0.0)
    V = SYMBOLS[size]
    network = build(settings, source=V, target=V, shared=True, longest=SOURCE).eval()
    with torch.no_grad():
        # The last feature is always 1 where logits are formed, and only the end's logit uses it.
        last = network.decoder.stack.layers[-1].around_feed.norm
        last.weight[-1], last.bias[-1] = 0, 1
        table = network.decoder.words.table.weight
        table[:, -1] = 0
        table[END], table[END, -1] = 0, -30
    return network


def marian(
    network: EncoderDecoder, begin: int = PAD, activation: str = "relu", places: int = 256
) -> MarianMTModel:
    """The same network in Hugging Face."""
    (V, M) = network.decoder.words.table.weight.shape
    sizes = {}
    for end in ("encoder", "decoder"):
        layers = getattr(network, end).stack.layers
        sizes[f"{end}_layers"] = len(layers)
        sizes[f"{end}_attention_heads"] = layers[0].attention.num_heads
        sizes[f"{end}_ffn_dim"] = layers[0].feed[0].out_features
    config = MarianConfig(
        vocab_size=V, d_model=M, **sizes, activation_function=activation, scale_embedding=True,
        max_position_embeddings=places, pad_token_id=PAD, eos_token_id=END, dropout=0.0,
        forced_eos_token_id=None, decoder_start_token_id=begin, attn_implementation="sdpa",
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        model.model.shared.weight.copy_(network.decoder.words.table.weight)
        table = network.decoder.words.position(torch.zeros(1, places, M))[0]
        for end in ("encoder", "decoder"):
            theirs, ours = getattr(model.model, end), getattr(network, end)
            theirs.embed_positions.weight.copy_(table)
            for layer, other in zip(ours.stack.layers, theirs.layers, strict=True):
                copy_layer(layer, other)
    return model


def copy_layer(ours: TransformerLayer, theirs: nn.Module) -> None:
    """Copy attention, cross-attention where there is one, and feed-forward."""
    copy_attention(ours.attention, theirs.self_attn)
    copy(ours.around_attention.norm, theirs.self_attn_layer_norm)
    if ours.cross is not None and ours.around_cross is not None:
        copy_attention(ours.cross, theirs.encoder_attn)
        copy(ours.around_cross.norm, theirs.encoder_attn_layer_norm)
    copy(ours.feed[0], theirs.fc1)
    copy(ours.feed[3], theirs.fc2)
    copy(ours.around_feed.norm, theirs.final_layer_norm)


def copy_attention(ours: heed.MultiHeadAttention, theirs: nn.Module) -> None:
    weights, biases = ours.in_proj_weight.chunk(3), ours.in_proj_bias.chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        part = getattr(theirs, f"{name}_proj")
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    copy(ours.out_proj, theirs.out_proj)


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())


def sentences(count: int, V: int) -> tuple[Tensor, Tensor]:
    """Sources of several lengths.    -> B S, B"""
    lengths = torch.randint(SOURCE // 2, SOURCE + 1, (count,))
    lengths[0] = SOURCE
    source = torch.randint(4, V, (count, SOURCE))
    return source.masked_fill(torch.arange(SOURCE) >= lengths[:, None], PAD), lengths


@torch.inference_mode()
def ours(
    network: EncoderDecoder, source: Tensor, lengths: Tensor, best: int = 1
) -> list[list[Hypothesis]]:
    carry = network.begin(source, lengths)
    return beam(
        network, carry, len(source), begin=PAD, end=END, longest=TARGET, width=WIDTH, best=best,
        lengths=lengths,
    )  # fmt: skip


@torch.inference_mode()
def theirs(model: MarianMTModel, source: Tensor, lengths: Tensor, best: int = 1) -> Tensor:
    mask = torch.arange(SOURCE) < lengths[:, None]
    written = model.generate(
        input_ids=source, attention_mask=mask.long(), num_beams=WIDTH, max_new_tokens=TARGET,
        use_cache=True, do_sample=False, num_return_sequences=best,
    )  # fmt: skip
    return written[:, 1:].unflatten(0, (len(source), best))


def check(network: EncoderDecoder, model: MarianMTModel, V: int) -> None:
    """Exit unless both agree, in float64, and with a teacher-forced pass."""
    source, lengths = sentences(6, V)
    quick = ours(network, source, lengths, best=WIDTH)
    network.double(), model.double()
    found = ours(network, source, lengths, best=WIDTH)
    wanted = theirs(model, source, lengths, best=WIDTH)
    for b, hypotheses in enumerate(found):
        if {tuple(h.symbols) for h in hypotheses} != {tuple(x) for x in wanted[b].tolist()}:
            sys.exit(f"sentence {b}: the translations differ, so no time is reported")
        told = read_again(network, source[b], lengths[b], hypotheses)
        torch.testing.assert_close(torch.tensor([h.log_prob for h in hypotheses]).double(), told)
        told = read_again(network, source[b], lengths[b], quick[b])
        said = torch.tensor([h.log_prob for h in quick[b]])
        torch.testing.assert_close(said.double(), told, rtol=1e-5, atol=1e-4)
        if quick[b][0].score < hypotheses[0].score - 1e-5:
            sys.exit(f"sentence {b}: float32 finds a worse translation, so no time is reported")
    network.float(), model.float()


@torch.inference_mode()
def read_again(
    network: EncoderDecoder, source: Tensor, length: Tensor, hypotheses: list[Hypothesis]
) -> Tensor:
    """The log-probability of each by a teacher-forced pass."""
    text = torch.tensor([[PAD, *h.symbols, END] for h in hypotheses])
    rows = [source.expand(len(text), -1), length.expand(len(text))]
    log_prob = network(*rows, text[:, :-1]).logits.log_softmax(-1)
    return log_prob.gather(-1, text[:, 1:, None]).sum((1, 2))


def seconds(call: Callable[[], object]) -> float:
    """The time of a call: processor time if one thread works, which other programs disturb less."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def compare(size: str, batches: list[int], rounds: int) -> list[dict[str, object]]:
    """One row per batch size: symbols per second of both, and the ratio."""
    network = make(size)
    model, V = marian(network), SYMBOLS[size]
    check(network, model, V)
    rows: list[dict[str, object]] = []
    for count in batches:
        source, lengths = sentences(count, V)
        calls = (partial(ours, network, source, lengths), partial(theirs, model, source, lengths))
        turns = [[seconds(call) for call in calls] for _ in range(rounds)]
        our_speed, their_speed = (count * TARGET / min(x) for x in zip(*turns, strict=True))
        rows.append({
            "size": size, "sentences": count, "heed symbols/s": round(our_speed),
            "generate symbols/s": round(their_speed), "ratio": round(our_speed / their_speed, 2),
        })  # fmt: skip
    return rows


def opened(path: Path) -> Run:
    """The run, if `generate` can reproduce it; trained first if there is none."""
    if not path.exists():
        print(f"training a tiny Transformer in {path}, a few minutes", file=sys.stderr)
        finish(train(resolve(RECIPE), path, device="cpu"))
    run = open_run(path, torch.device("cpu"))
    model = run.config.model
    if not isinstance(model, TransformerSettings):
        sys.exit(f"{path} holds no Transformer")
    names = {model.encoder_attention, model.decoder_attention, model.cross_attention}
    fits = (model.norm, model.position, model.tied, run.config.shared, names)
    if fits != ("post", "sinusoidal", True, True, {"scaled-dot"}):
        sys.exit("a MarianMTModel is post-norm, sinusoidal, tied and plain, on shared symbols")
    return run


def generated(run: Run, model: MarianMTModel, sentences: list[str], longest: int) -> list[str]:
    """The translations of `generate`, in one batch."""
    ids = [torch.tensor(each) for each in run.worker.vocabulary.source.encode(sentences)]
    source = nn.utils.rnn.pad_sequence(ids, True, PAD)
    written = model.generate(
        input_ids=source, attention_mask=(source != PAD).long(), num_beams=WIDTH,
        max_new_tokens=min(longest, 2 * source.shape[1] + 20), early_stopping=True,
        length_penalty=1.0, use_cache=True, do_sample=False, suppress_tokens=[PAD, UNK, BOS],
    )  # fmt: skip
    return [run.worker.vocabulary.target.decode(each) for each in written[:, 1:].tolist()]


def spread(sentences: list[str], most: int | None) -> list[str]:
    """A number of the sentences, evenly spaced, the longest first."""
    step = 1 if most is None else max(1, len(sentences) // most)
    return sorted(sentences[::step][:most], key=lambda sentence: -len(sentence.split()))


def compare_run(
    path: Path, part: str, most: int | None, batches: list[int | None], rounds: int
) -> Iterator[dict[str, object]]:
    """Sentences per second of both on a run's data, and how many translations agree."""
    run = opened(path)
    network: Any = run.worker.model.eval()
    decoding = run.config.chosen({"method": "beam", "width": WIDTH, "length_penalty": 1.0})
    model = marian(network, BOS, run.config.model.activation, places=1024)
    codec = Codec(run.worker.inputs, run.worker.form)
    kept = examples_of(run.task, codec, run.folder, part)
    sentences = spread([each.inputs[0] for each in kept], most)
    for count in batches:
        groups = [sentences] if count is None else list(batched(sentences, count))

        def heeds(groups: list[list[str]] = groups) -> list[str]:
            found = (run.worker.translate(group, decoding) for group in groups)
            return [best[0].text for each in found for best in each]

        def theirs(size: int = count or 32) -> list[str]:
            found = (
                generated(run, model, each, decoding.longest) for each in batched(sentences, size)
            )
            return [text for each in found for text in each]

        with torch.inference_mode():
            pairs = list(zip(heeds(), theirs(), strict=True))
            times = [[seconds(call) for call in (heeds, theirs)] for _ in range(rounds)]
        our_speed, their_speed = (len(pairs) / min(x) for x in zip(*times, strict=True))
        words = [len(text.split()) for text, _ in pairs]
        yield {
            "run": path.name, "sentences": len(pairs), "at a time": count or "all",
            "words": f"{min(words)}-{max(words)}",
            "alike": round(sum(a == b for a, b in pairs) / len(pairs), 3),
            "heed sentences/s": round(our_speed, 1), "generate sentences/s": round(their_speed, 1),
            "ratio": round(our_speed / their_speed, 2),
        }  # fmt: skip


def batched(sentences: list[str], size: int) -> Iterator[list[str]]:
    """The sentences in batches."""
    return (sentences[i : i + size] for i in range(0, len(sentences), size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SYMBOLS, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--run", type=Path, help="a trained Transformer, or where to train one")
    parser.add_argument("--part", default="test", help="which of the run's sentences")
    parser.add_argument("--most", type=int, help="translate so many of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    if asked.run is not None:
        for row in compare_run(
            asked.run, asked.part, asked.most, asked.batch or [1, 8, 32, None], asked.rounds
        ):
            show(row, asked.json)
        return
    for size in asked.size or SYMBOLS:
        for row in compare(size, asked.batch or [1, 8, 32], asked.rounds):
            show(row, asked.json)


def show(row: dict[str, object], as_json: bool) -> None:
    line = "  ".join(f"{name} {value}" for name, value in row.items())
    print(json.dumps(row) if as_json else line, flush=True)


if __name__ == "__main__":
    main()
