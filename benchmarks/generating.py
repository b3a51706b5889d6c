"""Generation with a cache: heed's searches against Hugging Face `generate`, the same weights.

    python benchmarks/generating.py [--size small] [--device cuda] [--prompts 1,8,32] [--mixed]
    python benchmarks/generating.py --search beam                         # or sample; else greedy
    python benchmarks/generating.py --living                              # what a GPU would hold
    python benchmarks/generating.py --size tiny --new 8                   # a rehearsal

A GPT-2 with random weights is written in Hugging Face's layout and read there. Both continue the
same prompts by the same number of symbols, in turns; each figure is the best of its rounds. With
--mixed the prompts have different lengths, and are aligned at the end of their rows on both sides.
A beam is 4 wide; samples are drawn from the 50 most likely symbols, each side with its own
generator. float32 on a CPU, bfloat16 weights on a GPU. Memory is the peak above the weights: as
allocated on a GPU, or on a CPU the growth of a process of its own; with --living the bytes of all
tensors that are alive at once, in bfloat16, which shows without a GPU what one would hold. Nothing
is reported unless both write the same symbols in float64 by greedy search.
that are alive at once, in bfloat16, which needs no GPU to tell what one would hold. Nothing is
reported unless both write the same symbols in float64 by greedy search.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel

from heed.decoding import beam, greedy, sample
from heed.decoding.sliding import padded
from heed.models import pretrained
from heed.models.layouts import LAYOUTS
from heed.models.replaying import Replaying
from heed.models.text_settings import GPT2Settings, build
from heed.models.transformer import Decoder

SIZES = {
    "tiny": GPT2Settings(layers=2, width=64, heads=4, symbols=500, longest=256, initial=0.1),
    "nano": GPT2Settings(size="nano", symbols=512, longest=512, initial=0.1),
    "small": GPT2Settings(size="small", symbols=50257, initial=0.1),
}
END = 3
ROUNDS = 3
PAGE = 512  # PyTorch's allocator rounds up to a multiple of this many bytes
WIDTH, LIKELIEST = 4, 50
THEIR_SEARCH: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "top_k": LIKELIEST},
    "beam": {"do_sample": False, "num_beams": WIDTH},
}


def pair(size: str) -> tuple[Decoder, GPT2LMHeadModel]:
    """The same network on both sides."""
    settings = SIZES[size]
    ours = build(settings).eval()
    assert isinstance(ours, Decoder)
    with torch.no_grad():
        ours.words.table.weight[END] = 0  # never the most likely, so that no text ends
    theirs = GPT2LMHeadModel(their_config(settings)).eval()
    described = pretrained.describe(LAYOUTS["gpt2"].config(settings, "language"))
    missing = theirs.load_state_dict(
        pretrained.theirs(described, ours.state_dict()), strict=False
    ).missing_keys
    assert set(missing) <= {"lm_head.weight"}, missing  # tied to the table of words
    return ours, theirs


def their_config(settings: GPT2Settings) -> GPT2Config:
    """Hugging Face's config for the settings; no text ends by itself."""
    config = LAYOUTS["gpt2"].config(settings, "language")
    config |= {"eos_token_id": None, "bos_token_id": None}
    return GPT2Config(**config, attn_implementation="sdpa")


def prompts_of(count: int, length: int, mixed: bool, symbols: int) -> list[list[int]]:
    """Random prompts; mixed: from half to the whole of the length."""
    drawn = torch.Generator().manual_seed(count)
    lengths = [length] * count
    if mixed and count > 1:
        lengths = torch.linspace(length / 2, length, count).long().tolist()
    return [torch.randint(4, symbols, (n,), generator=drawn).tolist() for n in lengths]


def heed_writes(
    model: Decoder,
    prompts: list[list[int]],
    new: int,
    replay: bool = False,
    search: str = "greedy",
) -> list[list[int]]:
    """The continuations by heed; replay: with its steps from a CUDA graph."""
    device = model.words.table.weight.device
    with torch.inference_mode():
        inputs, first = padded([prompt[:-1] for prompt in prompts], device)
        stepper: Any = Replaying(model, new) if replay else model
        carry = stepper.begin(inputs, first=first)
        rules: dict[str, Any] = {
            "begin": torch.tensor([prompt[-1] for prompt in prompts], device=device),
            "end": END,
            "longest": new,
            "device": device,
            "cut": True,
        }
        if search == "beam":
            found = [best for (best,) in beam(stepper, carry, len(prompts), width=WIDTH, **rules)]
        elif search == "sample":
            found = sample(stepper, carry, len(prompts), top_k=LIKELIEST, **rules)
        else:
            found = greedy(stepper, carry, len(prompts), **rules)
    return [each.symbols for each in found]


def theirs_write(
    model: GPT2LMHeadModel,
    prompts: list[list[int]],
    new: int,
    search: str = "greedy",
    **how: Any,
) -> list[list[int]]:
    """The continuations by `generate`."""
    inputs, first = padded(prompts, model.device)
    T = inputs.shape[1]
    there = torch.ones_like(inputs)
    if first is not None:
        there = (torch.arange(T, device=model.device) >= first[:, None]).long()
    with torch.inference_mode():
        found: Tensor = model.generate(
            inputs,
            attention_mask=there,
            max_new_tokens=new,
            pad_token_id=0,
            **THEIR_SEARCH[search],
            **how,
        )
    return found[:, T:].tolist()


def agree(size: str, prompts: list[list[int]], new: int, device: str) -> None:
    """Exit unless both write the same symbols in float64."""
    torch.manual_seed(0)
    ours, theirs = (model.double().to(device) for model in pair(size))
    wanted = theirs_write(theirs, prompts, new)
    for replay in (False, True):
        if heed_writes(ours, prompts, new, replay) != wanted:
            sys.exit(f"{size}: the symbols differ, so no time is reported ({replay=})")


def seconds(run: Callable[[], object], device: str) -> float:
    begun = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def peak(run: Callable[[], object]) -> float:
    """Peak MiB on a GPU, above what was allocated before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def grown(options: argparse.Namespace, side: str, count: int) -> float:
    """The growth, in MiB, of a process of its own on a CPU."""
    command = [sys.executable, __file__, "--side", side, "--prompts", str(count)]
    for name in ("size", "length", "new", "threads", "search"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--mixed"] if options.mixed else []
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(told.split()[-1])


def one_side(options: argparse.Namespace) -> float:
    """How much generating adds to the peak of this process, in MiB; it has one network only."""
    settings = SIZES[options.size]
    prompts = prompts_of(int(options.prompts), options.length, options.mixed, settings.rows)
    run: Callable[[], object]
    if options.side == "heed":
        ours = build(settings).eval()
        assert isinstance(ours, Decoder)
        run = partial(heed_writes, ours, prompts, options.new, search=options.search)
    else:
        theirs = GPT2LMHeadModel(their_config(settings)).eval()
        run = partial(theirs_write, theirs, prompts, options.new, search=options.search)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """The memory of this process in MiB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) / 1024


class Living(TorchDispatchMode):
    """Counts the memory of tensors while they are alive."""

    def __init__(self, *networks: torch.nn.Module) -> None:
        super().__init__()
        there = [x for network in networks for x in (*network.parameters(), *network.buffers())]
        self.known = {x.untyped_storage()._cdata for x in there}
        self.now = self.most = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self._met(x.untyped_storage())
        return made

    def _met(self, storage: torch.UntypedStorage) -> None:
        number, size = storage._cdata, -(-storage.nbytes() // PAGE) * PAGE
        if size and number not in self.known:
            self.known.add(number)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, number, size)

    def _gone(self, number: int, size: int) -> None:
        self.known.discard(number)
        self.now -= size


def counted(options: argparse.Namespace, count: int) -> dict[str, object]:
    """Count the memory of living tensors on both sides, above the weights."""
    torch.manual_seed(0)
    ours, theirs = (model.to(options.device, torch.bfloat16) for model in pair(options.size))
    prompts = prompts_of(count, options.length, options.mixed, len(ours.words.table.weight))
    agree(options.size, prompts, min(options.new, 16), options.device)
    how: dict[str, Any] = {"search": options.search}
    runs: dict[str, Callable[[], object]] = {
        "heed": partial(heed_writes, ours, prompts, options.new, **how),
        "heed replayed": partial(heed_writes, ours, prompts, options.new, True, **how),
        "generate": partial(theirs_write, theirs, prompts, options.new, **how),
    }
    row: dict[str, object] = {"size": options.size, "search": options.search, "prompts": count}
    for name, run in runs.items():
        with Living(ours, theirs) as living:
            run()
        row[f"{name} MiB"] = round(living.most / 2**20, 2)
    return row


def compare(options: argparse.Namespace, count: int) -> dict[str, object]:
    """Measure both sides in turns."""
    device, new = options.device, options.new
    torch.manual_seed(0)
    ours, theirs = pair(options.size)
    if device != "cpu":
        ours, theirs = (model.to(device, torch.bfloat16) for model in (ours, theirs))
    symbols = len(ours.words.table.weight)
    prompts = prompts_of(count, options.length, options.mixed, symbols)
    agree(options.size, prompts, min(new, 16), device)
    how: dict[str, Any] = {"search": options.search}
    ours_run = partial(heed_writes, ours, prompts, new, **how)
    runs: dict[str, Callable[[], object]] = {"heed": ours_run}
    if device != "cpu":
        runs["heed replayed"] = partial(ours_run, replay=True)
    how |= {"cache_implementation": "static"} if options.static else {}
    runs["generate"] = partial(theirs_write, theirs, prompts, new, **how)
    for run in runs.values():
        run()
    rounds = [
        {name: seconds(run, device) for name, run in runs.items()} for _ in range(options.rounds)
    ]
    best = {name: min(each[name] for each in rounds) for name in runs}
    if device == "cpu":
        memory = {name: grown(options, name, count) for name in runs}
    else:
        memory = {name: peak(run) for name, run in runs.items()}
    row: dict[str, object] = {
        "size": options.size,
        "device": device,
        "search": options.search,
        "prompts": count,
        "mixed": options.mixed,
    }
    for name, time_taken in best.items():
        row[f"{name} tokens/s"] = round(count * new / time_taken, 1)
        row[f"{name} MiB"] = round(memory[name], 1)
        if name != "generate":
            row[f"{name} ratio"] = round(best["generate"] / time_taken, 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", default="1,8,32", help="how many at a time, several figures")
    parser.add_argument("--length", type=int, default=32, help="symbols of a prompt")
    parser.add_argument("--new", type=int, default=64, help="symbols to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--mixed", action="store_true", help="prompts of different lengths")
    parser.add_argument("--search", default="greedy", choices=list(THEIR_SEARCH))
    parser.add_argument("--static", action="store_true", help="their static cache")
    parser.add_argument("--living", action="store_true", help="count tensors; take no time")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--side", choices=("heed", "generate"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.side:
        print(one_side(options))
        return
    for count in map(int, options.prompts.split(",")):
        row = (counted if options.living else compare)(options, count)
        print(
            json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
