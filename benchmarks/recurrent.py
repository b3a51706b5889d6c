"""Training speed of recurrent encoder-decoders with attention, in target tokens per second.

    python benchmarks/recurrent.py [--device cuda] [--bf16] [--hidden 512] [--rows 256]
        [--kernels both] [--compile step] [--json] [--write]

Compared with a plain PyTorch seq2seq and, if it can be imported, JoeyNMT (see _seq2seq.py). The
plain networks get heed's own weights, and nothing is reported unless both compute the same loss and
gradients. JoeyNMT has no attention before the update, so beside RNNsearch it has additive attention
after it, with input feeding; and it has no windows, so beside local-p it attends to all keys.

--kernels off switches off all kernels but PyTorch's own fused attention and banded windows, to
train as before heed had more; --kernels both measures with and without in one run. --compile
compiles the step of the plain loop, or all of it unrolled (which can take minutes).

same batches   every network takes the same batches, which measures the code itself
whole epoch    sentences of natural lengths, each system making its own batches: heed by length,
               the plain code 64 at random, JoeyNMT by number of tokens at random, with as
               many batches in the epoch; times include making them, padding is not counted

All run in turns in one process with the same optimiser; each figure is the best of the rounds. On
one CPU thread it is processor time, which a busy machine disturbs least. Memory is the peak of a
training step above weights and optimiser state; of a captured step, the memory of its graph.
"""

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _attention.measuring import peak
from _page import DOCS, markdown_table, put
from _seq2seq import JOEY, Batch, Joey, PlainLocal, PlainLuong, PlainSearch, token_batches
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from heed.data.batches import Batches
from heed.data.cache import Corpus
from heed.kernels import KERNELS, off
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.recurrent_settings import RecurrentSettings, build
from heed.training.capture import Captured
from heed.training.objective import sequence_loss

BEFORE = ("banded", "sdpa")  # the kernels of earlier versions
WINDOW = 10
GROUPS: dict[str, dict[str, Any]] = {
    "additive": {"decoder": "search", "attention": "additive"},
    "local-p": {
        "decoder": "luong",
        "attention": "local-p/general",
        "options": {"window": WINDOW},
    },
    "luong, input feeding": {"decoder": "luong", "attention": "general"},
    "luong": {"decoder": "luong", "attention": "general", "input_feeding": False},
    "additive after, input feeding": {"decoder": "luong", "attention": "additive"},
}


class Runner:
    """One network in training: steps on batches, timed.

    loss      of a batch, summed over its symbols
    captured  replay forward and backward as CUDA graphs
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        loss: Callable[[Batch], Tensor],
        args: argparse.Namespace,
        *,
        captured: bool = False,
    ) -> None:
        self.name, self.network, self.loss, self.args = name, network, loss, args
        self.optimiser = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
        self.captured = captured
        self.backward = Captured(self.plainly, network) if captured else self.plainly
        self.best = float("inf")

    def plainly(self, batch: Batch, factor: Tensor) -> dict[str, Tensor]:
        """Add up the gradients of a batch."""
        kind = batch.source.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.args.bf16):
            loss = self.loss(batch)
        (loss * factor).backward()
        return {"loss": loss.detach()}

    def step(self, batch: Batch) -> None:
        """One step of training."""
        self.optimiser.zero_grad(set_to_none=not self.captured)
        self.backward(batch, 1 / (batch.target != 0).sum())
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()

    def works(self, batch: Batch) -> bool:
        """Whether a step works at all: other code may not support autocast."""
        try:
            self.step(batch)
        except RuntimeError as error:
            if self.name.startswith("heed"):
                raise
            print(f"{self.name} is left out: {error}", file=sys.stderr)
            return False
        return True

    def round(self, data: Iterable[Batch]) -> None:
        """Time a step on every batch, and the making of the batches."""
        clock = self.args.clock
        wait()
        begin = clock()
        for batch in data:
            self.step(batch)
        wait()
        self.best = min(self.best, clock() - begin)

    def memory(self, batch: Batch) -> float:
        """The peak of a step above its beginning, in MB."""
        if self.captured:
            return self._kept(batch)
        return peak(partial(self.step, batch), batch.source.device.type) / 1e6

    def _kept(self, batch: Batch) -> float:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        captured = Captured(self.plainly, self.network)
        captured(batch, torch.ones((), device=batch.source.device))
        torch.cuda.empty_cache()
        return (torch.cuda.memory_reserved() - before) / 1e6


def wait() -> None:
    """Wait until the GPU has done all its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def summed(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, summed over symbols."""
    return cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


def agree(ours: Runner, theirs: Runner, batch: Batch) -> None:
    """Refuse to time two networks that do not compute the same."""
    losses = []
    for runner in (ours, theirs):
        runner.network.zero_grad()
        loss = runner.loss(batch)
        loss.backward()
        losses.append(loss.detach())
    grads = [
        runner.network.get_parameter(name).grad
        for runner, name in ((ours, "encoder.embed.weight"), (theirs, "read.weight"))
    ]
    close = torch.allclose(losses[0], losses[1], rtol=1e-4)
    if not close or not torch.allclose(grads[0], grads[1], rtol=1e-2, atol=1e-3):
        sys.exit(f"{ours.name} and {theirs.name} disagree, so no time is reported")


def our_network(args: argparse.Namespace, chosen: dict[str, Any]) -> EncoderDecoder:
    """heed's network of a group."""
    settings = RecurrentSettings(
        embedding=args.embedding, hidden=args.hidden, dropout=0, tied=False, **chosen
    )
    V = args.vocabulary
    return build(settings, source=V, target=V, shared=False, longest=64).to(args.device)


def plain_network(args: argparse.Namespace, chosen: dict[str, Any]) -> Any:
    """The plain network of a group."""
    sizes = (args.vocabulary, args.embedding, args.hidden)
    if chosen["attention"].startswith("local-p"):
        return PlainLocal(*sizes, window=WINDOW).to(args.device)
    if chosen["decoder"] == "search":
        return PlainSearch(*sizes).to(args.device)
    additive = chosen["attention"] == "additive"
    feeding = chosen.get("input_feeding", True)
    return PlainLuong(*sizes, feeding=feeding, additive=additive).to(args.device)


def runners(args: argparse.Namespace, group: str, batch: Batch) -> list[Runner]:
    """heed's network of a group and its rivals."""
    chosen = GROUPS[group]
    ours, theirs = our_network(args, chosen), plain_network(args, chosen)
    theirs.copy(ours)

    def our_loss(network: nn.Module, b: Batch) -> Tensor:
        return sequence_loss(network(b.source, b.lengths, b.inputs).output, b.target, {}).total

    def loss_before(network: nn.Module, b: Batch) -> Tensor:
        with off(*(set(KERNELS) - set(BEFORE))):
            return our_loss(network, b)

    def their_loss(network: nn.Module, b: Batch) -> Tensor:
        return summed(network(b), b.target)

    plain = Runner("PyTorch", theirs, partial(their_loss, theirs), args)
    found = []
    for name, loss in (("heed", our_loss), ("heed before", loss_before)):
        if args.kernels in (("off", "both") if loss is loss_before else ("on", "both")):
            found += our_runners(name, ours, loss, plain, args, batch)
    found.append(plain)
    if args.compile:
        compiled = compiled_network(args, chosen, theirs)
        found.append(Runner("PyTorch, compiled", compiled, partial(their_loss, compiled), args))
    if not JOEY:
        kind = "bahdanau" if chosen["attention"] == "additive" else "luong"
        feeding = chosen.get("input_feeding", True)
        joey = Joey(args.vocabulary, args.embedding, args.hidden, kind, feeding).to(args.device)
        found.append(Runner("JoeyNMT", joey, joey.loss, args))
    return [runner for runner in found if runner.works(batch)]


def our_runners(
    name: str,
    network: EncoderDecoder,
    loss: Callable[[nn.Module, Batch], Tensor],
    plain: Runner,
    args: argparse.Namespace,
    batch: Batch,
) -> list[Runner]:
    """heed's network, checked against the plain one; on a GPU captured too."""
    network = copy.deepcopy(network)
    eager = Runner(name, network, partial(loss, network), args)
    agree(eager, plain, batch)
    if not args.capture:
        return [eager]
    # A copy: gradients that were ever accumulated outside of a graph cannot be captured.
    twin = copy.deepcopy(network)
    twin.zero_grad()
    captured = Runner(f"{name}, captured", twin, partial(loss, twin), args, captured=True)
    return [captured, eager]


def compiled_network(args: argparse.Namespace, chosen: dict[str, Any], plain: nn.Module) -> Any:
    """The plain network with its step, or all of it, compiled for the shapes of the batches."""
    network = plain_network(args, chosen)
    network.load_state_dict(plain.state_dict())
    if args.compile == "whole":
        return torch.compile(network, dynamic=False)
    network.step = torch.compile(network.step, dynamic=False)
    return network


def same_batches(args: argparse.Namespace) -> list[Batch]:
    """A few batches of sentences of similar lengths."""
    torch.manual_seed(0)
    found, shape = [], (args.rows, args.length)
    for _ in range(args.batches):
        lengths = torch.randint(int(0.7 * args.length), args.length + 1, (args.rows,))
        lengths = lengths.sort(descending=True).values
        lengths[0] = args.length
        ends = torch.randint(int(0.7 * args.length), args.length + 1, (args.rows, 1))
        place = torch.arange(args.length)
        source = torch.randint(4, args.vocabulary, shape).where(place < lengths[:, None], 0)
        target = torch.randint(4, args.vocabulary, shape).where(place < ends, 0)
        found.append(Batch.of(source, lengths, target, args.device))
    return found


@dataclass(frozen=True)
class Sentences:
    """Pairs of natural lengths, 5 to 45 words like captions, and how each system batches them."""

    pairs: list[tuple[Tensor, Tensor]]
    args: argparse.Namespace

    @classmethod
    def drawn(cls, args: argparse.Namespace) -> "Sentences":
        """Log-normal lengths; a translation is about as long as its source."""
        torch.manual_seed(0)
        source = (2.5 + 0.35 * torch.randn(args.sentences)).exp()
        target = source * (0.15 * torch.randn(args.sentences)).exp()
        ends = torch.stack([source, target], 1).round().long().clamp(5, 45)
        words = partial(torch.randint, 4, args.vocabulary)
        return cls([(words((int(s),)), words((int(t),))) for s, t in ends], args)

    @property
    def symbols(self) -> int:
        """How many symbols the targets have, without padding."""
        return sum(len(target) for _, target in self.pairs)

    @property
    def batches(self) -> int:
        """How many batches the plain code makes of an epoch, and so every system."""
        return -(-len(self.pairs) // self.args.rows)

    def of(self, system: str) -> Iterator[Batch]:
        """An epoch, as this system batches it."""
        if system.startswith("heed"):
            return self.by_length(fixed=self.args.capture and system.endswith("captured"))
        return self.padded(self.at_random() if system.startswith("PyTorch") else self.by_tokens())

    def by_length(self, fixed: bool) -> Iterator[Batch]:
        """Batches as heed trains: like lengths together; for graphs, on a grid of few shapes."""
        columns = {name: [p[i].tolist() for p in self.pairs] for i, name in enumerate(("s", "t"))}
        make = partial(Batches, Corpus.of(columns), seed=0, fixed=fixed)
        ours = make(tokens=budget(lambda tokens: make(tokens=tokens).count(0), self.batches))
        ours.count(0)
        return (
            Batch.of(b.tokens["s"], b.lengths["s"], b.tokens["t"], self.args.device)
            for b in ours.epoch(0)
        )

    def at_random(self) -> Iterator[list[int]]:
        """Rows batched as in tutorials: shuffled, a fixed number at a time."""
        order = torch.randperm(len(self.pairs), generator=torch.Generator().manual_seed(0))
        return (rows.tolist() for rows in order.split(self.args.rows))

    def by_tokens(self) -> Iterator[list[int]]:
        """Rows as JoeyNMT's own sampler batches them."""
        lists = [(i, s.tolist()[:-1], t.tolist()[:-1]) for i, (s, t) in enumerate(self.pairs)]
        make = partial(token_batches, lists)
        return make(budget(lambda tokens: sum(1 for _ in make(tokens)), self.batches))

    def padded(self, batches: Iterator[list[int]]) -> Iterator[Batch]:
        """Batches of rows sorted by length, padded to the longest."""
        for rows in batches:
            pairs = sorted((self.pairs[i] for i in rows), key=lambda p: -len(p[0]))
            source, target = (pad_sequence(list(x), True) for x in zip(*pairs, strict=True))
            lengths = torch.tensor([len(s) for s, _ in pairs])
            yield Batch.of(source, lengths, target, self.args.device)


def budget(count: Callable[[int], int], wanted: int) -> int:
    """The fewest tokens per batch with which an epoch has at most the wanted number of batches."""
    low, high = 45, 2**20
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) <= wanted else (middle + 1, high)
    return low


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every group, its networks in turns, on the same batches and through an epoch."""
    data, sentences, rows = same_batches(args), Sentences.drawn(args), []
    symbols = sum(int((b.target != 0).sum()) for b in data)
    for group in args.group or GROUPS:
        found = runners(args, group, data[0])
        for runner in found:  # warms up
            runner.round(data)
            runner.best = float("inf")
        for _ in range(args.rounds):
            for runner in found:
                runner.round(data)
        held = [runner.memory(data[0]) for runner in found]
        rows += [figures("same batches", group, found, symbols, held)]
        if args.sentences and args.epochs:
            found = [runner for runner in found if runner.name != "PyTorch, compiled"]
            rows += [
                figures("whole epoch", group, found, sentences.symbols, epochs(found, sentences))
            ]
    return [row for table in rows for row in table]


def epochs(found: list[Runner], sentences: Sentences) -> list[float]:
    """Warm up, then time whole epochs. Returns how much of what each network read was padding."""
    shares = []
    for runner in found:
        made = list(sentences.of(runner.name))
        places = sum(b.target.numel() for b in made)
        shares.append(1 - sentences.symbols / places)
        for batch in made if runner.captured else made[:2]:
            runner.step(batch)
        runner.best = float("inf")
    for _ in range(sentences.args.epochs):
        for runner in found:
            runner.round(sentences.of(runner.name))
    return shares


def figures(
    table: str, group: str, found: list[Runner], symbols: int, extra: list[float]
) -> list[dict[str, Any]]:
    """A row for each network."""
    return [
        {
            "table": table,
            "group": group,
            "network": runner.name,
            "tokens_per_s": symbols / runner.best,
            "memory_mb" if table == "same batches" else "padding": more,
            "heed_is": runner.best / found[0].best,
        }
        for runner, more in zip(found, extra, strict=True)
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """Print both tables."""
    for table in dict.fromkeys(row["table"] for row in rows):
        last = "MB" if table == "same batches" else "padding"
        print(f"{table:31}{'network':19}{'tokens/s':>10}{last:>9}{'heed is':>9}")
        for row in rows:
            if row["table"] == table:
                more = f"{row['memory_mb']:.0f}" if last == "MB" else f"{row['padding']:.0%}"
                print(
                    f"{row['group']:31}{row['network']:19}{row['tokens_per_s']:10.0f}"
                    f"{more:>9}{row['heed_is']:8.2f}×"
                )
        print()


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Both tables in one, for docs/performance.md."""
    head = ["batches", "attention", "network", "tokens/s", "heed is", "MB", "padding"]
    lines = [head]
    for row in rows:
        memory, padding = row.get("memory_mb"), row.get("padding")
        line = [row["table"], row["group"], row["network"]]
        line += [f"{row['tokens_per_s']:,.0f}", f"{row['heed_is']:.2f}×"]
        line += ["" if memory is None else f"{memory:,.0f}"]
        lines.append([*line, "" if padding is None else f"{padding:.0%}"])
    return lines


def main() -> None:
    """Measure and print tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    for name, size in (
        ("vocabulary", 8000),
        ("embedding", 256),
        ("hidden", 256),
        ("rows", 64),
        ("length", 24),
        ("batches", 2),
        ("rounds", 4),
        ("sentences", 1280),
        ("epochs", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--group", action="append", choices=list(GROUPS))
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--kernels", choices=("on", "off", "both"), default="on")
    parser.add_argument("--compile", choices=("step", "whole"), help="time the plain loop compiled")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", type=Path, help="what --json printed before; nothing is measured")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    args = parser.parse_args()
    args.capture = args.device.startswith("cuda")
    alone = args.device == "cpu" and torch.get_num_threads() == 1
    args.clock = time.process_time if alone else time.perf_counter
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", "RNN module weights are not part of single")
    if JOEY:
        print(f"JoeyNMT is left out: {JOEY}", file=sys.stderr)
    rows = json.loads(args.load.read_text()) if args.load else measure(args)
    print(json.dumps(rows, indent=2)) if args.json else show(rows)
    if args.write:
        place = f"recurrent {args.device}"
        put(
            DOCS / "performance.md",
            place,
            "benchmarks/recurrent.py",
            markdown_table(cells(rows), words=3),
        )


if __name__ == "__main__":
    main()
