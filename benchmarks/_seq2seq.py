"""The rivals of heed's recurrent networks: seq2seq as in tutorials, and JoeyNMT's.

The plain networks are fair: keys are projected once, and each step has its cell, its attention and
its output layer. They take heed's own weights, so that results can be compared.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import RandomSampler

from heed.models.encoder_decoder import EncoderDecoder

try:
    from joeynmt.datasets import TokenBatchSampler
    from joeynmt.decoders import RecurrentDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import RecurrentEncoder
    from joeynmt.loss import XentLoss
except ImportError as error:
    JOEY = str(error)
else:
    JOEY = ""


class Batch(NamedTuple):
    """Sentence pairs, sorted by source length as packed sequences require."""

    source: Tensor  # B S
    lengths: Tensor  # B
    inputs: Tensor  # B T
    target: Tensor  # B T, zero is padding

    @classmethod
    def of(cls, source: Tensor, lengths: Tensor, target: Tensor, device: str) -> Self:
        """A batch for predicting each symbol from those before it."""
        first = target.new_full((len(target), 1), 2)
        inputs = torch.cat([first, target[:, :-1]], 1)
        return cls(*(x.to(device, non_blocking=True) for x in (source, lengths, inputs, target)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shapes; batches with equal shapes can replace each other."""
        return (*self.source.shape, *self.target.shape)

    def clone(self) -> "Batch":
        """A copy in memory of its own."""
        return Batch(*(x.clone() for x in self))

    def copy_(self, other: "Batch") -> None:
        """Copy another batch of the same shape into this one."""
        for to, x in zip(self, other, strict=True):
            to.copy_(x, non_blocking=True)


class Plain(nn.Module):
    """What the plain networks share: a packed bidirectional encoder, then a loop."""

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
        """Decode one step after the other."""
        keys, fed, logits = self.keys(states), torch.zeros_like(hidden), []
        for t in range(inputs.shape[1]):
            written, hidden, fed = self.step(inputs[:, t], hidden, fed, keys, states, padding)
            logits.append(written)
        return torch.stack(logits, 1)

    def keys(self, states: Tensor) -> Tensor:
        """The keys, projected once.    B S H"""
        return states

    def step(
        self,
        symbols: Tensor,
        hidden: Tensor,
        fed: Tensor,
        keys: Tensor,
        states: Tensor,
        padding: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One symbol of each row: its logits, the next state, and what is fed back."""
        raise NotImplementedError


class PlainSearch(Plain):
    """Bahdanau's decoder."""

    def __init__(self, V: int, E: int, H: int) -> None:
        super().__init__(V, E, H, fed=H)
        self.query, self.key = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)
        self.energy = nn.Linear(H, 1, bias=False)
        self.readout = nn.Linear(2 * H + E, H)

    def keys(self, states: Tensor) -> Tensor:
        return self.key(states)

    def step(
        self,
        symbols: Tensor,
        hidden: Tensor,
        fed: Tensor,
        keys: Tensor,
        states: Tensor,
        padding: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        e = self.embed(symbols)
        energy = self.energy(torch.tanh(self.query(hidden)[:, None] + keys)).squeeze(-1)
        weight = energy.masked_fill(padding, float("-inf")).softmax(-1)
        context = torch.bmm(weight[:, None], states)[:, 0]
        hidden = self.cell(torch.cat([e, context], -1), hidden)
        known = torch.tanh(self.readout(torch.cat([hidden, context, e], -1)))
        return self.out(known), hidden, fed

    def copy(self, ours: EncoderDecoder) -> None:
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

    def keys(self, states: Tensor) -> Tensor:
        return self.key(states) if self.additive else states

    def score(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """B H, B S H -> B S"""
        asked = self.query(hidden)
        if self.additive:
            return self.energy(torch.tanh(asked[:, None] + keys)).squeeze(-1)
        return torch.bmm(keys, asked[..., None]).squeeze(-1)

    def weigh(self, hidden: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """B H, B S H, B S -> B S"""
        return self.score(hidden, keys).masked_fill(padding, float("-inf")).softmax(-1)

    def step(
        self,
        symbols: Tensor,
        hidden: Tensor,
        fed: Tensor,
        keys: Tensor,
        states: Tensor,
        padding: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        e = self.embed(symbols)
        hidden = self.cell(torch.cat([e, fed], -1) if self.feeding else e, hidden)
        weight = self.weigh(hidden, keys, padding)
        context = torch.bmm(weight[:, None].to(states.dtype), states)[:, 0]
        fed = torch.tanh(self.join(torch.cat([context, hidden], -1)))
        return self.out(fed), hidden, fed

    def copy(self, ours: EncoderDecoder) -> None:
        """Take the weights of heed's network."""
        copy(self, ours, self.pairs(ours.decoder))

    def pairs(self, decoder: Any) -> list[tuple[Tensor, Tensor]]:
        """Pairs of heed's attention weights and those of the plain network."""
        score, pairs = decoder.attention.mechanism.score, []
        if self.additive:
            pairs += [(self.query.weight, score.query_weight[0])]
            pairs += [(self.key.weight, score.key_weight[0])]
            pairs += [(self.energy.weight, score.score_vector)]
        else:
            pairs += [(self.query.weight, score.weight[0])]
        return [*pairs, (self.join.weight, decoder.join.linear.weight)]


class PlainLocal(PlainLuong):
    """Luong's decoder with predicted windows: a window around p_t, under a Gaussian."""

    def __init__(self, V: int, E: int, H: int, *, window: int) -> None:
        super().__init__(V, E, H, feeding=True)
        self.window = window
        self.where, self.place = nn.Linear(H, H, bias=False), nn.Linear(H, 1, bias=False)

    def weigh(self, hidden: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        chosen = self.place(torch.tanh(self.where(hidden))).float()  # B 1
        last = (~padding).sum(-1, keepdim=True) - 1
        away = torch.arange(keys.shape[1], device=keys.device) - last * torch.sigmoid(chosen)
        energy = self.score(hidden, keys).masked_fill(padding, float("-inf"))
        weight = energy.masked_fill(away.abs() > self.window, float("-inf")).softmax(-1)
        return weight * torch.exp(-0.5 * (away / (self.window / 2)) ** 2)

    def pairs(self, decoder: Any) -> list[tuple[Tensor, Tensor]]:
        reach = decoder.attention.mechanism.reach
        predicted = [(self.where.weight, reach.weight[0]), (self.place.weight, reach.vector[0])]
        return [*super().pairs(decoder), *predicted]


@torch.no_grad()
def copy(plain: Plain, ours: EncoderDecoder, pairs: list[tuple[Tensor, Tensor]]) -> None:
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
        """The loss summed over symbols, as JoeyNMT does."""
        mask = (batch.source != 0)[:, None]
        states, last = self.encoder(self.read(batch.source), batch.lengths, mask)
        logits = self.decoder(self.embed(batch.inputs), states, last, mask, batch.inputs.shape[1])[
            0
        ]
        return self.xent(log_softmax(logits, -1), trg=batch.target)


def token_batches(
    pairs: list[tuple[int, list[int], list[int]]], tokens: int
) -> Iterator[list[int]]:
    """Rows batched as by JoeyNMT's sampler; each pair without its end symbol."""
    order = RandomSampler(pairs, generator=torch.Generator().manual_seed(0))
    return iter(TokenBatchSampler(order, batch_size=tokens, drop_last=False, seed=0))
