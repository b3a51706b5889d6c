"""Training a Transformer: heed's against `torch.nn.Transformer`, the same sizes, weights and batch.

    python benchmarks/transformer.py [--device cuda] [--size base] [--norm post] [--json]

Forward and backward with dropout, teacher-forced and padded; bf16 autocast on a GPU. Both sides run
in turns in one process, so that a busy machine slows them alike; each figure is the best of many
rounds. On a GPU heed is also timed with CUDA graphs, as its recipes train there. Memory is the peak
on a GPU, and on a CPU the tensors kept for the backward pass. Nothing is reported while the two
disagree on a result.
"""

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from heed.attention.position import Sinusoidal
from heed.models.transformer_settings import SIZES, TransformerSettings, build
from heed.training.capture import Captured
from heed.training.objective import sequence_loss

SYMBOLS = 8000
ROUNDS = 12
BATCHES = {"tiny": (64, 24, 24), "small": (32, 32, 32), "base": (16, 32, 32), "big": (8, 32, 32)}
GPU_BATCHES = dict.fromkeys(BATCHES, (128, 32, 32))  # B S T

NAMES = (  # ours, theirs
    ("encoder.stack.", "net.encoder."),
    ("decoder.stack.", "net.decoder."),
    ("around_attention.norm.", "norm1."),
    ("around_cross.norm.", "norm2."),
    (".attention.", ".self_attn."),
    (".cross.", ".multihead_attn."),
    ("feed.0.", "linear1."),
    ("feed.3.", "linear2."),
    ("decoder.words.table.", "table."),
)


class Theirs(nn.Module):
    """`torch.nn.Transformer` with embeddings and an output layer, to translate."""

    def __init__(self, size: str, norm: str, dropout: float) -> None:
        super().__init__()
        layers, width, feed, heads = SIZES[size]
        self.table, self.position = nn.Embedding(SYMBOLS, width), Sinusoidal()
        self.dropout, self.scale = nn.Dropout(dropout), width**0.5
        self.net = nn.Transformer(
            width, heads, layers, layers, feed, dropout, batch_first=True, norm_first=norm == "pre"
        )
        if norm == "post":
            self.net.encoder.norm = self.net.decoder.norm = None

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        hidden = torch.arange(source.shape[1], device=source.device) >= lengths[:, None]
        later = nn.Transformer.generate_square_subsequent_mask(
            inputs.shape[1], device=source.device
        )
        x, y = (self.dropout(self.position(self.table(w) * self.scale)) for w in (source, inputs))
        masks: dict[str, Any] = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
        y = self.net(x, y, tgt_mask=later, tgt_is_causal=True, **masks)
        return linear(y, self.table.weight)


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names."""
    out = {}
    for name, weight in state.items():
        last = "norm2." if name.startswith("encoder") else "norm3."
        for ours, theirs in (*NAMES, ("around_feed.norm.", last)):
            name = name.replace(ours, theirs)
        out[name] = weight
    return out


def held(run: Callable[[], Tensor]) -> float:
    """MiB kept for the backward pass, each storage counted once."""
    storages: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = run()
    del loss
    return sum(storages.values()) / 2**20


def peak(step: Callable[[], None], run: Callable[[], Tensor], device: str) -> float:
    """MiB: the peak of a whole step on a GPU, tensors kept for backward on a CPU."""
    if device == "cpu":
        return held(run)
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() / 2**20


def seconds(step: Callable[[], None], repeats: int, device: str) -> float:
    """The time of one step, over a round of repeats."""
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def compare(size: str, norm: str, device: str) -> dict[str, object]:
    """Measure both sides in turns."""
    rates = dict.fromkeys(("dropout", "attention_dropout", "feed_dropout"), 0.1)
    settings = TransformerSettings(size=size, norm=norm, **rates)
    ours = build(settings, source=SYMBOLS, target=SYMBOLS, shared=True, longest=64).to(device)
    theirs = Theirs(size, norm, 0.1).to(device)
    theirs.load_state_dict(renamed(ours.state_dict()))
    B, S, T = (BATCHES if device == "cpu" else GPU_BATCHES)[size]
    source = torch.randint(4, SYMBOLS, (B, S), device=device)
    inputs, targets = (torch.randint(4, SYMBOLS, (B, T), device=device) for _ in range(2))
    lengths = torch.randint(S // 2, S + 1, (B,), device=device)

    ours.eval(), theirs.train()  # in eval torch takes a fast path without gradients
    silent = [m for m in theirs.modules() if isinstance(m, nn.Dropout | nn.MultiheadAttention)]
    for module in silent:
        module.eval()
    agree = (ours(source, lengths, inputs).logits, theirs(source, lengths, inputs))
    if not torch.allclose(*agree, rtol=1e-3, atol=1e-3 if device == "cpu" else 2e-2):
        sys.exit(f"{size}: the results differ, so no time is reported")
    ours.train(), theirs.train()

    def lowered() -> AbstractContextManager[object]:
        return nullcontext() if device == "cpu" else torch.autocast(device, torch.bfloat16)

    def our_loss(network: nn.Module = ours) -> Tensor:
        with lowered():
            written = network(source, lengths, inputs)
            return sequence_loss(written.output, targets, {}).total / targets.numel()

    def their_loss() -> Tensor:
        with lowered():
            logits = theirs(source, lengths, inputs)
            return cross_entropy(logits.flatten(0, 1), targets.flatten())

    def our_step() -> None:
        ours.zero_grad()
        our_loss().backward()

    def their_step() -> None:
        theirs.zero_grad()
        their_loss().backward()

    # A copy: gradients that were ever accumulated outside of a graph cannot be captured.
    captured_step = replayed(copy.deepcopy(ours), our_loss) if device != "cpu" else None
    memory = [peak(our_step, our_loss, device), peak(their_step, their_loss, device)]
    repeats = max(1, int(0.5 / seconds(their_step, 2, device)))
    seconds(our_step, 2, device)
    rounds = [
        (seconds(our_step, repeats, device), seconds(their_step, repeats, device))
        for _ in range(ROUNDS)
    ]
    our_time, their_time = (min(x) for x in zip(*rounds, strict=True))
    tokens = B * (S + T)
    extra: dict[str, object] = {}
    if captured_step is not None:
        seconds(captured_step, 2, device)
        graph_time = min(seconds(captured_step, repeats, device) for _ in range(ROUNDS))
        extra = {
            "heed captured tokens/s": round(tokens / graph_time),
            "captured ratio": round(their_time / graph_time, 3),
        }
    return {
        "size": size,
        "norm": norm,
        "device": device,
        "B S T": f"{B} {S} {T}",
        "heed tokens/s": round(tokens / our_time),
        "torch tokens/s": round(tokens / their_time),
        "ratio": round(their_time / our_time, 3),
        "heed MiB": round(memory[0], 1),
        "torch MiB": round(memory[1], 1),
        **extra,
    }


@dataclass(frozen=True)
class Same:
    """A batch that never changes."""

    shape: str = "same"

    def clone(self) -> "Same":
        return self

    def copy_(self, other: "Same") -> "Same":
        return self


def replayed(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Callable[[], None]:
    """A step as the recipes take it on a GPU: forward and backward from a CUDA graph."""

    def backward(batch: Same, factor: Tensor) -> dict[str, Tensor]:
        total = loss(model) * factor
        total.backward()
        return {"loss": total.detach()}

    captured, one = Captured(backward, model), torch.ones((), device="cuda")

    def step() -> None:
        model.zero_grad(set_to_none=False)
        captured(Same(), one)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", action="append", choices=list(SIZES))
    parser.add_argument("--norm", default="pre", choices=("pre", "post"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "enable_nested_tensor")  # torch's, of its own pre-norm
    for size in options.size or ["tiny", "small"]:
        row = compare(size, options.norm, options.device)
        print(json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
