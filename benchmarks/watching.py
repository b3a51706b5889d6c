"""Looking inside a Hugging Face GPT-2: heed.watch against eager attention that returns its weights.

    python benchmarks/watching.py [--device cuda] [--lengths 1024,16384] [--json] [--write]
    python benchmarks/watching.py --tiny                                  # a rehearsal

One text through a GPT-2 of 124M parameters with random weights, without its last projection to
words, which is the same for all sides:

sdpa         not watched, with PyTorch's fused attention
statistics   through heed, watched: entropy, largest share and its place, mean place and spread of
             every query, and what every key received, of all heads and layers
everything   also the 8 largest weights, a map of 256 by 256 cells, and three rows in full
eager        with output_attentions=True, which returns all weights and computes no statistics

Memory is the peak of a call above weights and input, including what it returns. All take turns in
one process, bfloat16 on a GPU, float32 on a CPU.

Results are checked first, and wrong ones are not timed: heed's statistics are compared with those,
by definition, of the eager weights of the same network in float64 (for a short text in float32) and
in float32 (for every text in bfloat16). Their error may be twice that of the eager weights in their
own precision, or a small multiple of that precision. An error is |x - y| / |y| over all queries or
keys of a layer, in the worst layer; for places, the share that differs.

--write puts the tables into docs/performance.md; to measure on one machine and write on another:
--json there, --load FILE --write here.
"""

import argparse
import copy
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from _attention.measuring import in_turns, peak
from _page import DOCS, markdown_table, put
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

import heed
from heed.attention.statistics import statistics
from heed.integrations import huggingface
from heed.records import Statistics, Summary

SMALL = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257}
TINY = {"n_layer": 2, "n_head": 3, "n_embd": 48, "vocab_size": 199}
LENGTHS = {"cuda": (1024, 2048, 4096, 8192, 16384), "cpu": (512, 1024), "tiny": (48, 65)}
SHORT = 512  # symbols of the text that is checked in float32
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TRUTH = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
FEW = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}
EQUALS = 2e-3  # share of queries with two equal largest weights, up to rounding
SAID = {  # what is compared, and its name in a table
    "entropy": "entropy",
    "peak": "largest share",
    "place": "its place",
    "received": "received",
    "map": "map",
    "rows": "rows",
}
SDPA, OURS, ALL, EAGER = "sdpa", "statistics", "everything", "eager"
LIMIT = 2**33  # bytes of records; with any limit they are kept without the contexts

Row = dict[str, Any]


def network(sizes: dict[str, int], longest: int, dtype: torch.dtype, device: str) -> GPT2Model:
    """A network with weights large enough that attention is not uniform."""
    config = GPT2Config(
        **sizes,
        n_positions=longest,
        initializer_range=0.05,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: GPT2Model = GPT2Model(config).eval()
    return model.to(dtype)


def attending(model: GPT2Model, how: str, dtype: torch.dtype | None = None) -> GPT2Model:
    """A copy of the model with another attention, in another precision."""
    twin = copy.deepcopy(model).to(dtype or model.dtype)
    twin.set_attn_implementation("eager" if how == EAGER else "sdpa")
    return twin if how in (EAGER, SDPA) else huggingface.enable(twin)


def asked(T: int) -> Summary:
    """The summary of the side `everything`."""
    return Summary(top=8, map=(256, 256), rows=(1, T // 2, T - 1))


def watched(model: GPT2Model, ids: Tensor, what: Summary) -> list[Statistics]:
    """heed's statistics of each layer."""
    with torch.no_grad(), heed.watch(model, statistics=what, limit=LIMIT) as seen:
        model(ids)
    return [seen[path][0].statistics for path in seen]


def eagerly(model: GPT2Model, ids: Tensor, what: Summary) -> list[Statistics]:
    """The statistics by definition, of the weights that each layer returns, one layer at a time."""
    found = []

    def note(module: nn.Module, args: object, result: tuple[Tensor, Tensor]) -> None:
        heads = result[1].split(1, 1)
        wide = torch.promote_types(result[1].dtype, torch.float32)
        found.append(Statistics.join([statistics(each.to(wide), what) for each in heads], axis=1))

    with torch.no_grad(), ExitStack() as stack:
        for block in model.h:
            stack.callback(block.attn.register_forward_hook(note).remove)
        model(ids)
    return found


def error(name: str, found: list[Statistics], truth: list[Statistics]) -> float:
    """The error of one statistic, in the worst layer."""
    worst = 0.0
    for ours, theirs in zip(found, truth, strict=True):
        x, y = getattr(ours, name), getattr(theirs, name)
        if name == "place":
            off = float((x != y).double().mean())
        else:
            off = float((x.double() - y.double()).norm() / y.double().norm())
        worst = max(worst, off) if off == off else float("inf")
    return worst


def agreement(model: GPT2Model, ids: Tensor) -> Row | None:
    """Errors of heed and of eager weights in a precision; None where weights do not fit."""
    what = asked(ids.shape[1])
    lean = replace(what, top=0)
    found = watched(attending(model, OURS), ids, what)
    truth = attempt(lambda: eagerly(attending(model, EAGER, TRUTH[model.dtype]), ids, lean))
    plain = attempt(lambda: eagerly(attending(model, EAGER), ids, lean))
    if truth is None or plain is None:
        return None
    return {
        "T": ids.shape[1],
        "dtype": str(model.dtype).removeprefix("torch."),
        "heed": {name: error(name, found, truth) for name in SAID},
        "eager": {name: error(name, plain, truth) for name in SAID},
    }


def checked(model: GPT2Model, ids: Tensor) -> Row | None:
    """The errors; exits if one is too large."""
    row = agreement(model, ids)
    if row is None:
        return None
    few = FEW[model.dtype]
    for name in SAID:
        ours, theirs = row["heed"][name], row["eager"][name]
        if not ours <= max(2 * theirs, EQUALS if name == "place" else few):
            sys.exit(
                f"T={row['T']} in {row['dtype']}: {SAID[name]} is off by {ours:.2g}, that of eager "
                f"weights by {theirs:.2g}; a wrong result has no speed"
            )
    return row


def attempt(run: Callable[[], Any]) -> Any:
    """The result of a call; None if there was too little memory, which is then freed again."""
    try:
        return run()
    except RuntimeError as trouble:
        if not isinstance(trouble, torch.OutOfMemoryError) and "allocate" not in str(trouble):
            raise
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def most(run: Callable[[], object], device: str) -> float:
    """The peak of a call in bytes, after a first call that caches."""
    run()
    return peak(run, device)


def timed(model: GPT2Model, ids: Tensor, options: argparse.Namespace) -> Row:
    """The time and memory of all sides, in turns."""
    sides = {how: attending(model, how) for how in (SDPA, OURS, ALL, EAGER)}

    def weights() -> object:
        with torch.no_grad():
            return sides[EAGER](ids, output_attentions=True)

    def unwatched() -> object:
        with torch.no_grad():
            return sides[SDPA](ids)

    runs: dict[str, Callable[[], object]] = {
        SDPA: unwatched,
        OURS: partial(watched, sides[OURS], ids, Summary()),
        ALL: partial(watched, sides[ALL], ids, asked(ids.shape[1])),
        EAGER: weights,
    }
    memory: dict[str, float | None] = {}
    for name in list(runs):
        held = attempt(partial(most, runs[name], options.device))
        memory[name] = None if held is None else held / 2**20
        if held is None:
            del runs[name]
    seconds = in_turns(runs, options.device, options.budget)
    return {
        "T": ids.shape[1],
        "ms": {name: 1e3 * seconds[name] if name in seconds else None for name in memory},
        "MiB": memory,
    }


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Print how long something took."""
    begin = time.perf_counter()
    yield
    print(f"{time.perf_counter() - begin:5.1f} s  {what}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> Row:
    """Agreement first, then times; each printed as it is done."""
    sizes = TINY if options.tiny else SMALL
    lengths = options.lengths or LENGTHS["tiny" if options.tiny else options.device]
    short = min(SHORT, *lengths)
    dtype = DTYPES[options.dtype]
    with telling("the network"):
        model = network(sizes, max(lengths), dtype, options.device)
    text = torch.randint(sizes["vocab_size"], (1, max(lengths)), device=options.device)
    agreed: list[Row] = []
    plan = [(torch.float32, short)] + [
        (dtype, T) for T in lengths if (dtype, T) != (torch.float32, short)
    ]
    for kind, T in plan:
        with telling(f"comparing {T} symbols in {kind}"):
            row = checked(copy.deepcopy(model).to(kind), text[:, :T])
        if row is None:
            print(f"{T} symbols: too many weights to compare with", file=sys.stderr)
            continue
        agreed.append(row)
        print(_sentence(row), file=sys.stderr, flush=True)
    rows = []
    for T in lengths:
        with telling(f"timing {T} symbols"):
            rows.append(timed(model, text[:, :T], options))
    return {
        "device": options.device,
        "machine": _machine(options),
        "agreement": agreed,
        "rows": rows,
    }


def _sentence(row: Row) -> str:
    said = ", ".join(
        f"{SAID[name]} {row['heed'][name]:.1e} ({row['eager'][name]:.1e})" for name in SAID
    )
    return f"T={row['T']} {row['dtype']}, off by, in brackets eager: {said}"


def _machine(options: argparse.Namespace) -> str:
    where = f"a CPU with {torch.get_num_threads()} of its cores"
    if options.device == "cuda":
        where = torch.cuda.get_device_name()
    version = torch.__version__.partition("+")[0]
    return (
        f"{where}, PyTorch {version}, transformers {transformers.__version__}, "
        f"{str(DTYPES[options.dtype]).removeprefix('torch.')}"
    )


def figures(found: Row) -> list[list[str]]:
    """Times and memory; in brackets how many times as long as unwatched."""
    names = (SDPA, OURS, ALL, EAGER)
    heads = [f"{name}, ms" for name in names] + [f"{name}, MiB" for name in names]
    lines = [["symbols", *heads]]
    for row in found["rows"]:
        ms, mib = row["ms"], row["MiB"]
        cells = [
            "out of memory"
            if ms[name] is None
            else f"{_figure(ms[name])} ({ms[name] / ms[SDPA]:.2g}×)"
            for name in names
        ]
        cells[0] = _figure(ms[SDPA])
        cells += ["–" if mib[name] is None else f"{mib[name]:,.0f}" for name in names]
        lines.append([f"{row['T']:,}", *cells])
    return lines


def _figure(x: float) -> str:
    """Three digits, or all digits before the decimal point."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def errors(found: Row) -> list[list[str]]:
    """The errors of heed and of eager weights."""
    lines = [["symbols", "precision", *SAID.values()]]
    for row in found["agreement"]:
        cells = [f"{row['heed'][name]:.1e} / {row['eager'][name]:.1e}" for name in SAID]
        lines.append([f"{row['T']:,}", row["dtype"], *cells])
    return lines


def printed(lines: list[list[str]]) -> str:
    """A table for a terminal."""
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def markdown(found: Row) -> str:
    """The tables for the page."""
    compared = {row["T"] for row in found["agreement"]}
    left = [f"{row['T']:,}" for row in found["rows"] if row["T"] not in compared]
    parts = [
        f"Measured on {found['machine']}.",
        markdown_table(figures(found)),
        "Off by, heed / eager weights in the same precision:",
        markdown_table(errors(found), words=2),
    ]
    if left:
        parts.append(
            f"Not compared, for want of memory for the weights: {', '.join(left)} symbols."
        )
    return "\n\n".join(parts)


def main() -> None:
    """Measure and print; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), help="bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--lengths", type=_lengths, help="symbols of the texts: 1024,16384")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each figure")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the command out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", type=Path, help="what --json printed before; nothing is measured")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device == "cuda" else "fp32")
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found = json.loads(options.load.read_text()) if options.load else measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(found["machine"], printed(figures(found)), printed(errors(found)), sep="\n\n")
    if options.write:
        place = f"watching {found['device']}"
        put(DOCS / "performance.md", place, "benchmarks/watching.py", markdown(found))


def _lengths(told: str) -> tuple[int, ...]:
    return tuple(int(each) for each in told.split(","))


if __name__ == "__main__":
    main()
