"""Training speed of recurrent encoder-decoders with attention, in target tokens per second.

    python benchmarks/recurrent.py [--device cuda] [--hidden 512] [--compile] [--json]

Against a straightforward PyTorch seq2seq, as tutorials write it but fair (keys are projected once;
each step has its cell, its attention and its output layer), and against JoeyNMT where it can be
imported. The plain networks are given heed's own weights, and nothing is reported unless both find
the same loss and the same gradients. JoeyNMT has no attention before the update, so its row stands
beside heed's decoder of the same design: additive attention after the update, with input feeding.

All run in turns on the same batches in one process; each figure is the best of the rounds. Memory
is the most that a training step holds at a time, beyond weights and what the optimiser keeps.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.profiler import ProfilerActivity, profile

from heed.models.recurrent import RecurrentSettings, RecurrentTranslator, build

try:
    from joeynmt.decoders import RecurrentDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import RecurrentEncoder
    from joeynmt.loss import XentLoss
except ImportError as error:
    JOEY = str(error)
else:
    JOEY = ""


class Batch(NamedTuple):
    """Sentence pairs, sorted by the length of the source as packed sequences want them."""

    source: Tensor  # B S
    lengths: Tensor  # B
    inputs: Tensor  # B T
    target: Tensor  # B T, zero is padding


class Plain(nn.Module):
    """What the straightforward networks share: a packed bidirectional encoder, then a loop."""

    def __init__(self, V: int, E: int, H: int, fed: int) -> None:
        super().__init__()
        self.read, self.embed = nn.Embedding(V, E), nn.Embedding(V, E)
        self.encoder = nn.GRU(E, H // 2, batch_first=True, bidirectional=True)
        self.first = nn.Linear(H, H)
        self.cell = nn.GRUCell(E + fed, H)
        self.out = nn.Linear(H, V)

    def forward(self, batch: Batch) -> Tensor:
        """-> logits B T V"""
        packed = pack_padded_sequence(
            self.read(batch.source), batch.lengths.cpu(), batch_first=True
        )
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        hidden = torch.tanh(self.first(torch.cat([last[0], last[1]], -1)))
        place = torch.arange(states.shape[1], device=states.device)
        padding = place >= batch.lengths[:, None]
        return self.decode(states, hidden, padding, batch.inputs)

    def decode(self, states: Tensor, hidden: Tensor, padding: Tensor, inputs: Tensor) -> Tensor:
        """One step after the other."""
        raise NotImplementedError


class PlainSearch(Plain):
    """Bahdanau's decoder."""

    def __init__(self, V: int, E: int, H: int) -> None:
        super().__init__(V, E, H, fed=H)
        self.query, self.key = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)
        self.energy = nn.Linear(H, 1, bias=False)
        self.readout = nn.Linear(2 * H + E, H)

    def decode(self, states: Tensor, hidden: Tensor, padding: Tensor, inputs: Tensor) -> Tensor:
        keys, logits = self.key(states), []
        for t in range(inputs.shape[1]):
            e = self.embed(inputs[:, t])
            energy = self.energy(torch.tanh(self.query(hidden)[:, None] + keys)).squeeze(-1)
            weight = energy.masked_fill(padding, float("-inf")).softmax(-1)
            context = torch.bmm(weight[:, None], states)[:, 0]
            hidden = self.cell(torch.cat([e, context], -1), hidden)
            known = torch.tanh(self.readout(torch.cat([hidden, context, e], -1)))
            logits.append(self.out(known))
        return torch.stack(logits, 1)

    def copy(self, ours: RecurrentTranslator) -> None:
        """Take the weights of heed's network."""
        decoder: Any = ours.decoder
        score = decoder.attention.mechanism.score
        pairs = [
            (self.query.weight, score.query_weight[0]),
            (self.key.weight, score.key_weight[0]),
            (self.energy.weight, score.score_vector),
            (self.readout.weight, decoder.readout.linear.weight),
            (self.readout.bias, decoder.readout.linear.bias),
        ]
        copy(self, ours, pairs)


class PlainLuong(Plain):
    """Luong's decoder, with the `general` score or the additive one."""

    def __init__(self, V: int, E: int, H: int, *, feeding: bool, additive: bool = False) -> None:
        super().__init__(V, E, H, fed=H if feeding else 0)
        self.feeding, self.additive = feeding, additive
        self.query = nn.Linear(H, H, bias=False)
        if additive:
            self.key, self.energy = nn.Linear(H, H, bias=False), nn.Linear(H, 1, bias=False)
        self.join = nn.Linear(2 * H, H, bias=False)

    def score(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """B H, B S H -> B S"""
        asked = self.query(hidden)
        if self.additive:
            return self.energy(torch.tanh(asked[:, None] + keys)).squeeze(-1)
        return torch.bmm(keys, asked[..., None]).squeeze(-1)

    def decode(self, states: Tensor, hidden: Tensor, padding: Tensor, inputs: Tensor) -> Tensor:
        keys, logits = self.key(states) if self.additive else states, []
        joined = torch.zeros_like(hidden)
        for t in range(inputs.shape[1]):
            e = self.embed(inputs[:, t])
            hidden = self.cell(torch.cat([e, joined], -1) if self.feeding else e, hidden)
            energy = self.score(hidden, keys).masked_fill(padding, float("-inf"))
            context = torch.bmm(energy.softmax(-1)[:, None], states)[:, 0]
            joined = torch.tanh(self.join(torch.cat([context, hidden], -1)))
            logits.append(self.out(joined))
        return torch.stack(logits, 1)

    def copy(self, ours: RecurrentTranslator) -> None:
        """Take the weights of heed's network."""
        decoder: Any = ours.decoder
        score, pairs = decoder.attention.mechanism.score, []
        if self.additive:
            pairs += [(self.query.weight, score.query_weight[0])]
            pairs += [(self.key.weight, score.key_weight[0])]
            pairs += [(self.energy.weight, score.score_vector)]
        else:
            pairs += [(self.query.weight, score.weight[0])]
        copy(self, ours, [*pairs, (self.join.weight, decoder.join.linear.weight)])


@torch.no_grad()
def copy(plain: Plain, ours: RecurrentTranslator, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Give a plain network the weights of heed's."""
    decoder, encoder = ours.decoder, ours.encoder
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        pairs += [
            (getattr(plain.encoder, f"{name}_l0"), getattr(encoder.ahead[0].rnn, f"{name}_l0")),
            (
                getattr(plain.encoder, f"{name}_l0_reverse"),
                getattr(encoder.back[0].rnn, f"{name}_l0"),
            ),
            (getattr(plain.cell, name), getattr(decoder.stack.each[0].rnn, f"{name}_l0")),
        ]
    pairs += [(plain.read.weight, encoder.embed.weight), (plain.embed.weight, decoder.embed.weight)]
    pairs += list(zip(plain.first.parameters(), decoder.first.linear.parameters(), strict=True))
    pairs += list(zip(plain.out.parameters(), decoder.out.parameters(), strict=True))
    for to, source in pairs:
        to.copy_(source)


class Joey(nn.Module):
    """JoeyNMT's recurrent encoder and decoder, driven as its Model drives them."""

    def __init__(self, V: int, E: int, H: int, attention: str, feeding: bool) -> None:
        super().__init__()
        self.read = Embeddings(E, vocab_size=V, padding_idx=0)
        self.embed = Embeddings(E, vocab_size=V, padding_idx=0)
        self.encoder = RecurrentEncoder(hidden_size=H // 2, emb_size=E)
        self.decoder = RecurrentDecoder(
            emb_size=E,
            hidden_size=H,
            encoder=self.encoder,
            attention=attention,
            vocab_size=V,
            input_feeding=feeding,
        )
        self.xent = XentLoss(pad_index=0)

    def loss(self, batch: Batch) -> Tensor:
        """Summed over symbols, as JoeyNMT does."""
        mask = (batch.source != 0)[:, None]
        states, last = self.encoder(self.read(batch.source), batch.lengths, mask)
        logits = self.decoder(self.embed(batch.inputs), states, last, mask, batch.inputs.shape[1])[
            0
        ]
        return self.xent(log_softmax(logits, -1), trg=batch.target)


def batches(args: argparse.Namespace) -> list[Batch]:
    """A few batches of sentences of similar lengths."""
    torch.manual_seed(0)
    found = []
    for _ in range(args.batches):
        lengths = torch.randint(int(0.7 * args.length), args.length + 1, (args.rows,))
        lengths = lengths.sort(descending=True).values
        lengths[0] = args.length
        ends = torch.randint(int(0.7 * args.length), args.length + 1, (args.rows, 1))
        place = torch.arange(args.length)
        source = torch.randint(4, args.vocabulary, (args.rows, args.length))
        target = torch.randint(4, args.vocabulary, (args.rows, args.length))
        source, target = source.where(place < lengths[:, None], 0), target.where(place < ends, 0)
        inputs = torch.cat([torch.full((args.rows, 1), 2), target[:, :-1]], 1)
        found.append(Batch(*(x.to(args.device) for x in (source, lengths, inputs, target))))
    return found


def summed(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, summed over symbols."""
    return cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Runner:
    """One network in training: a step on each batch, timed."""

    def __init__(
        self, name: str, network: nn.Module, loss: Callable[[Batch], Tensor], group: str
    ) -> None:
        self.name, self.network, self.loss, self.group = name, network, loss, group
        self.optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)
        self.best = float("inf")

    def step(self, batch: Batch) -> None:
        """One step of training."""
        self.optimiser.zero_grad()
        symbols = (batch.target != 0).sum()
        (self.loss(batch) / symbols).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()

    def round(self, data: list[Batch]) -> None:
        """Time a step on every batch."""
        wait()
        begin = time.perf_counter()
        for batch in data:
            self.step(batch)
        wait()
        self.best = min(self.best, time.perf_counter() - begin)

    def memory(self, batch: Batch) -> float:
        """The most that a step holds at a time beyond what it began with, in MB."""
        if batch.source.is_cuda:
            wait()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.step(batch)
            return (torch.cuda.max_memory_allocated() - before) / 1e6
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            self.step(batch)
        found = seen.profiler.kineto_results.events()
        events = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
        return max(accumulate(size for _, size in events)) / 1e6


def wait() -> None:
    """Until the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def agree(ours: Runner, theirs: Runner, batch: Batch) -> None:
    """Refuse to time two networks that do not compute the same."""
    losses = []
    for runner in (ours, theirs):
        runner.network.zero_grad()
        loss = runner.loss(batch)
        loss.backward()
        losses.append(loss)
    grads = [
        runner.network.get_parameter(name).grad
        for runner, name in ((ours, "encoder.embed.weight"), (theirs, "read.weight"))
    ]
    close = torch.allclose(losses[0], losses[1], rtol=1e-4)
    if not close or not torch.allclose(grads[0], grads[1], rtol=1e-2, atol=1e-3):
        sys.exit(f"{ours.name} and {theirs.name} disagree, so no time is reported")


GROUPS: dict[str, dict[str, Any]] = {
    "additive": {"decoder": "search", "attention": "additive"},
    "luong, input feeding": {"decoder": "luong", "attention": "general"},
    "luong": {"decoder": "luong", "attention": "general", "input_feeding": False},
    "additive after, input feeding": {"decoder": "luong", "attention": "additive"},
}


def plain(args: argparse.Namespace, chosen: dict[str, Any]) -> Any:
    """The straightforward network of a group."""
    sizes = (args.vocabulary, args.embedding, args.hidden)
    if chosen["decoder"] == "search":
        return PlainSearch(*sizes)
    additive = chosen["attention"] == "additive"
    return PlainLuong(*sizes, feeding=chosen.get("input_feeding", True), additive=additive)


def runners(args: argparse.Namespace, group: str, data: list[Batch]) -> list[Runner]:
    """heed's network of a group and those it is compared with."""
    chosen, V = GROUPS[group], args.vocabulary
    settings = RecurrentSettings(
        embedding=args.embedding, hidden=args.hidden, dropout=0, tied=False, **chosen
    )
    ours = build(settings, source=V, target=V, shared=False, longest=args.length).to(args.device)
    theirs = plain(args, chosen).to(args.device)
    theirs.copy(ours)

    def our_loss(b: Batch) -> Tensor:
        return summed(ours(b.source, b.lengths, b.inputs).logits, b.target)

    def their_loss(b: Batch) -> Tensor:
        return summed(theirs(b), b.target)

    found = [Runner("heed", ours, our_loss, group), Runner("PyTorch", theirs, their_loss, group)]
    agree(*found, data[0])
    if args.compile:
        compiled = torch.compile(theirs)
        found.append(
            Runner("PyTorch, compiled", theirs, lambda b: summed(compiled(b), b.target), group)
        )
    if not JOEY and group != "additive":
        kind = "bahdanau" if chosen["attention"] == "additive" else "luong"
        feeding = chosen.get("input_feeding", True)
        joey = Joey(V, args.embedding, args.hidden, kind, feeding).to(args.device)
        found.append(Runner("JoeyNMT", joey, joey.loss, group))
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every group, its networks in turns."""
    data, rows = batches(args), []
    symbols = sum(int((b.target != 0).sum()) for b in data)
    for group in GROUPS:
        found = runners(args, group, data)
        for _ in range(args.rounds + 1):  # the first warms up, and cannot be the best
            for runner in found:
                runner.round(data)
        for runner in found:
            rows.append(
                {
                    "group": group,
                    "network": runner.name,
                    "tokens_per_s": symbols / runner.best,
                    "memory_mb": runner.memory(data[0]),
                    "heed_is": runner.best / found[0].best,
                }
            )
    return rows


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    for name, size in (
        ("vocabulary", 8000),
        ("embedding", 256),
        ("hidden", 256),
        ("rows", 64),
        ("length", 24),
        ("batches", 2),
        ("rounds", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--compile", action="store_true", help="time the compiled baseline too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if JOEY:
        print(f"JoeyNMT is left out: {JOEY}", file=sys.stderr)
    rows = measure(args)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':31}{'network':19}{'tokens/s':>10}{'MB':>8}{'heed is':>9}")
    for row in rows:
        print(
            f"{row['group']:31}{row['network']:19}{row['tokens_per_s']:10.0f}"
            f"{row['memory_mb']:8.0f}{row['heed_is']:8.2f}×"
        )


if __name__ == "__main__":
    main()
