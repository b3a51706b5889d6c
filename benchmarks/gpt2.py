"""Training GPT-2: heed against nanoGPT, the same weights, batch and optimiser, in tokens a second.

    python benchmarks/gpt2.py --nanogpt PATH [--device cuda] [--batch 16] [--length 1024]
    python benchmarks/gpt2.py --nanogpt PATH --tiny                        # a rehearsal on a CPU

PATH is a checkout of github.com/karpathy/nanoGPT, from which model.py is loaded. A step is forward,
backward, clipping at norm 1 and fused AdamW; bf16 autocast, both sides compiled, no dropout,
vocabulary 50,304. heed trains as `heed train` does with compile=true; also measured is the loss
that never forms all logits (`training/surprise.py`), which takes less memory. The sides run in
turns, and each figure is the best of its rounds. Memory is the peak of a step above the weights and
the optimiser's state, which are as large on both sides. Nothing is reported while losses or
gradients disagree.
"""

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from heed.models.text_settings import GPT2Settings, build
from heed.models.transformer import Decoder
from heed.training import optimise
from heed.training.objective import sequence_loss
from heed.training.settings import Training
from heed.training.surprise import compiled

SMALL = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50304}
TINY = {"n_layer": 2, "n_head": 3, "n_embd": 48, "vocab_size": 192}
TRAINING = Training(steps=1, rate=6e-4, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1)
NAMES = (  # ours, theirs
    ("stack.layers.", "transformer.h."),
    ("stack.norm.", "transformer.ln_f."),
    ("words.table.", "transformer.wte."),
    ("words.position.table.", "transformer.wpe."),
    ("attention.in_proj_weight", "attn.c_attn.weight"),
    ("attention.in_proj_bias", "attn.c_attn.bias"),
    ("attention.out_proj.", "attn.c_proj."),
    ("around_attention.norm.", "ln_1."),
    ("around_feed.norm.", "ln_2."),
    ("feed.0.", "mlp.c_fc."),
    ("feed.3.", "mlp.c_proj."),
)

Loss = Callable[[Tensor, Tensor], Tensor]


class Side(NamedTuple):
    """A network, its loss as it is trained, and its optimiser."""

    name: str
    model: nn.Module
    loss: Loss
    optimiser: torch.optim.Optimizer


def nanogpt(path: Path, sizes: dict[str, int], length: int) -> nn.Module:
    """nanoGPT's network."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", path / "model.py")
    if spec is None or spec.loader is None or not (path / "model.py").is_file():
        sys.exit(f"{path} has no model.py: give a checkout of nanoGPT with --nanogpt")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    found: nn.Module = module.GPT(module.GPTConfig(block_size=length, dropout=0.0, **sizes))
    return found


def ours(sizes: dict[str, int], length: int) -> Decoder:
    """The same network in heed, with the exact GELU, like theirs."""
    settings = GPT2Settings(
        layers=sizes["n_layer"],
        heads=sizes["n_head"],
        width=sizes["n_embd"],
        symbols=sizes["vocab_size"],
        longest=length,
        activation="gelu",
        dropout=0.0,
        attention_dropout=0.0,
    )
    network = build(settings)
    assert isinstance(network, Decoder)
    return network


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names."""
    out = {}
    for name, weight in state.items():
        for mine, other in NAMES:
            name = name.replace(mine, other)
        out[name] = weight
    out["lm_head.weight"] = state["words.table.weight"]
    return out


def losses(model: Decoder, theirs: nn.Module) -> dict[str, tuple[nn.Module, Loss]]:
    """The results of each side, before compilation."""

    def unformed(inputs: Tensor, labels: Tensor) -> Tensor:
        return sequence_loss(model(inputs).output, labels, {}).total / labels.numel()

    def fused(inputs: Tensor, labels: Tensor) -> Tensor:
        with compiled(inputs.is_cuda):
            return unformed(inputs, labels)

    def their_loss(inputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = theirs(inputs, labels)[1]
        return loss

    return {
        "heed": (model, fused),
        "heed, no logits": (model, unformed),
        "nanoGPT": (theirs, their_loss),
    }


def agree(model: Decoder, theirs: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Exit unless losses and gradients agree in float32."""
    found = {}
    for name, (network, loss) in losses(model, theirs).items():
        network.zero_grad()
        value = loss(inputs, labels)
        value.backward()
        squares = [
            w.grad.double().square().sum() for w in network.parameters() if w.grad is not None
        ]
        found[name] = (float(value.detach()), float(torch.stack(squares).sum().sqrt()))
        network.zero_grad()
    wanted = found["nanoGPT"]
    for name, values in found.items():
        for value, other in zip(values, wanted, strict=True):
            if abs(value - other) > 1e-4 * abs(other):
                sys.exit(f"{name} disagrees with nanoGPT: {values} and {wanted} (loss, norm)")


def sides(model: Decoder, theirs: nn.Module, options: argparse.Namespace) -> list[Side]:
    """The sides, compiled in their own ways, each with an optimiser."""
    how: dict[str, Any] = {"backend": options.backend}
    made = losses(model, theirs)
    found = []
    for name, (network, loss) in made.items():
        if name == "heed":
            network.compile(**how)
        elif network is theirs:
            loss = torch.compile(loss, **how)
        if name == "nanoGPT":
            optimiser: Any = network.configure_optimizers(
                TRAINING.weight_decay, TRAINING.rate, TRAINING.betas, options.device
            )
        else:
            optimiser = optimise.build(network, TRAINING)
        found.append(Side(name, network, loss, optimiser))
    return found


def step(side: Side, inputs: Tensor, labels: Tensor) -> Tensor:
    """One step of training."""
    with torch.autocast(inputs.device.type, torch.bfloat16):
        loss = side.loss(inputs, labels)
    loss.backward()
    clip_grad_norm_(side.model.parameters(), 1.0, foreach=True)
    side.optimiser.step()
    side.optimiser.zero_grad(set_to_none=True)
    return loss.detach()


def seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    """The time of one step, averaged over several."""
    begun = time.perf_counter()
    for _ in range(repeats):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def peak(run: Callable[[], object], device: str) -> float | None:
    """The peak of a step in MiB, above weights and optimiser state."""
    if device == "cpu":
        return None
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def compare(options: argparse.Namespace) -> list[dict[str, object]]:
    """Measure all sides in turns."""
    sizes = TINY if options.tiny else SMALL
    device, B, T = options.device, options.batch, options.length
    model, theirs = ours(sizes, T).to(device), nanogpt(options.nanogpt, sizes, T).to(device)
    theirs.load_state_dict(renamed(model.state_dict()))
    text = torch.randint(1, sizes["vocab_size"], (B, T + 1), device=device)
    inputs, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    agree(model, theirs, inputs[: min(B, 2)], labels[: min(B, 2)])
    runs: dict[str, Callable[[], Tensor]] = {}
    memory, firsts = {}, {}
    for side in sides(model, theirs, options):
        if options.only and side.name not in options.only:
            continue
        runs[side.name] = lambda side=side: step(side, inputs, labels)  # type: ignore[misc]
        begun = time.perf_counter()
        runs[side.name]()
        firsts[side.name] = time.perf_counter() - begun
        memory[side.name] = peak(runs[side.name], device)
    rounds = [
        {name: seconds(run, options.repeats, device) for name, run in runs.items()}
        for _ in range(options.rounds)
    ]
    best = {name: min(each[name] for each in rounds) for name in runs}
    return [
        {
            "side": name,
            "B T": f"{B} {T}",
            "tokens/s": round(B * T / best[name]),
            "ratio": round(best["nanoGPT"] / best[name], 3) if "nanoGPT" in best else None,
            "ms": round(1000 * best[name], 2),
            "MiB": None if memory[name] is None else round(memory[name] or 0),
            "first step, s": round(firsts[name], 1),
        }
        for name in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, to compare with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--only", action="append", help="one side by its name; may be repeated")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to rehearse")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.nanogpt is None:  # `make bench` runs it so
        print("nothing was measured: --nanogpt PATH names the rival, a checkout of nanoGPT")
        return
    if options.tiny:
        options.batch, options.length, options.rounds, options.repeats = 4, 64, 2, 2
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for row in compare(options):
        print(json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
