"""The Transformer: an encoder, which reads, and decoders, which write. Vaswani 2017.

Every attention is a `heed.MultiHeadAttention` with any mechanism that goes inside heads. A decoder
writes a whole text at once (`forward`) or symbol by symbol (`begin`, `step`, `select`), with the
same numbers. The layers are in `heed.models.layers`; `heed.models.transformer_settings` builds the
networks from settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

import heed
from heed.errors import Refused
from heed.models.layers import LayerState, TransformerStack
from heed.models.native_carry import NativeCarry, NativeStep
from heed.models.plain_carry import KeepCache, PlainCarry, regroup, shorten
from heed.models.plain_encoder import encode
from heed.models.positioned_words import (
    PositionedNumbers,
    PositionedWords,
    Real,
    at_the_end,
    in_front,
    not_padding,
    sight,
)
from heed.models.reader import Encoded
from heed.models.written import Unformed, Written, WrittenStep, formed
from heed.records import Attended, Need, as_need
from heed.visible import Visible


class Encoder(nn.Module):
    """A reader: symbols or real numbers as vectors with positions, and layers over them."""

    words: Any

    def __init__(self, words: PositionedWords | PositionedNumbers, stack: TransformerStack) -> None:
        super().__init__()
        self.words, self.stack = words, stack

    def forward(
        self,
        source: Tensor,
        lengths: Real | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
        *,
        types: Tensor | None = None,
    ) -> Encoded:
        """B S, B -> B S M, and what every attention saw.

        lengths  of each text, B; or which symbols are not padding, B S, as an attention mask
                 has it, too; None: all
        nudge    what is added to the vectors of the symbols, B S M
        types    which of several texts each symbol belongs to, B S
        Places are counted from the first column, padding or not, as in Hugging Face's BERT.
        """
        exists = sight(lengths, source)
        vectors = self.words(source, types=types, exists=exists)
        vectors = vectors if nudge is None else vectors + nudge
        short = encode(self, vectors, exists) if need == "context" else None
        if short is not None:
            states, seen = short
        else:
            layers = len(self.stack.layers)
            states, seen, _ = self.stack(vectors, [LayerState()] * layers, exists, [need] * layers)
        return Encoded.of(states, exists, seen, vectors)

    if TYPE_CHECKING:
        __call__ = forward

    @property
    def width(self) -> int:
        """The width of a state."""
        return self.stack.layers[0].attention.embed_dim


class DecoderCarry(NamedTuple):
    """State that a decoder hands from step to step."""

    place: int  # how many symbols were written
    layers: tuple[LayerState, ...]
    sentence: Tensor  # which row of a folded memory each hypothesis asks    N
    need: Need
    first: Tensor | None = None  # the column of each text's first symbol; None: 0    N


AnyCarry = DecoderCarry | PlainCarry | NativeCarry
"""The carry of the general path, or of a fast one (heed.models.plain_carry)."""


class Decoder(nn.Module):
    """Writes a text: by itself (a language model), or from a source that it looks at.

    The output is the transposed embedding unless an `output` of its own is given.
    """

    def __init__(
        self,
        words: PositionedWords,
        stack: TransformerStack,
        output: nn.Linear | None = None,
        alignment_layer: int | None = None,
    ) -> None:
        super().__init__()
        layers = len(stack.layers)
        if alignment_layer is not None and alignment_layer >= layers:
            raise Refused(f"alignment_layer={alignment_layer}: the layers are 0 to {layers - 1}")
        self.words, self.stack, self.output = words, stack, output
        self.alignment_layer = max(layers - 2, 0) if alignment_layer is None else alignment_layer

    def forward(
        self,
        inputs: Tensor,
        need: Need = "context",
        source: Tensor | None = None,
        visible: Visible | None = None,
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
        aligned: bool = False,
    ) -> Written:
        """A whole text at once: symbols B T (and an encoded source B S M) -> logits B T V.

        lengths  of each text, B, with padding behind it; or which symbols are not padding, B T;
                 None: all. Each text counts its positions from its own first symbol
        first    the column of each text's first symbol, B, with padding in front of it
        aligned  the weights of the layer that aligns are needed, whatever `need` says
        """
        kept = [LayerState(source=memory) for memory in self._memories(source, visible)]
        exists = not_padding(lengths, first, inputs)
        first = self._counted(in_front(exists, inputs))
        x = self.words(inputs, first=first, exists=exists)
        needs = [need] * len(kept)
        if aligned and need == "context":
            needs[self.alignment_layer] = "weight"
        x, seen, _ = self.stack(x, kept, heed.causal(), needs, exists)
        return Written(self._unformed(x), seen)

    if TYPE_CHECKING:
        __call__ = forward

    def begin(
        self,
        inputs: Tensor,
        need: Need = "context",
        source: Tensor | None = None,
        visible: Visible | None = None,
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
        keep: KeepCache | None = None,
    ) -> AnyCarry:
        """The carry after a prompt, which may be empty.    N T -> carry

        Prompts of different lengths are given as in `forward`: `lengths` for padding behind them,
        `first` for padding in front. All of them are moved to the end of their rows, where they go
        on; padding is never looked at, and each text counts its positions from its own first
        symbol. `keep` stores keys and values on the fast path; by default they go into caches that
        grow.
        """
        exists, first = not_padding(lengths, first, inputs), None
        if exists is not None:
            inputs, exists, first = at_the_end(exists, inputs)
            exists = exists if self._counted(first) is not None else None
        kept = tuple(LayerState(source=memory) for memory in self._memories(source, visible))
        rows = torch.arange(len(inputs), device=inputs.device)
        carry = DecoderCarry(0, kept, rows, as_need(need), first)
        short = shorten(self, carry, inputs, exists, keep)
        if short is not None:
            return short
        nothing = self.words.table.weight.new_empty(len(inputs), 0, self.words.table.embedding_dim)
        owns = [layer.attention.remember(nothing) for layer in self.stack.layers]
        carry = carry._replace(
            layers=tuple(
                each._replace(own=own) for each, own in zip(carry.layers, owns, strict=True)
            )
        )
        return self._further(carry, inputs, exists)[2] if inputs.shape[1] else carry

    def step(self, carry: AnyCarry, symbols: Tensor) -> WrittenStep | NativeStep:
        """One more symbol for each hypothesis.    N -> N V"""
        if isinstance(carry, NativeCarry):
            return carry.step(symbols)
        if isinstance(carry, PlainCarry):
            x, plain, weight = carry.step(symbols)
            x = x if self.stack.norm is None else self.stack.norm(x)
            return WrittenStep(self.logits(x), plain, weight)
        x, seen, carry = self._further(carry, symbols[:, None])
        look = seen.get(f"{self.alignment_layer}.cross")
        weight = None
        if look is not None and carry.need != "context":
            weight = look.weight.mean(1).flatten(0, 1)  # B K S, whatever K
        return WrittenStep(self.logits(x[:, -1]), carry, weight)

    def select(self, carry: AnyCarry, rows: Tensor, same: bool = False) -> AnyCarry:
        """The chosen hypotheses, in that order; `same`: each row keeps the sentence it had."""
        if isinstance(carry, PlainCarry | NativeCarry):
            return carry.select(rows, same)
        kept, sentence = (rows, carry.sentence) if same else regroup(carry.sentence[rows])
        layers = []
        for layer, (own, own_state, source, state) in zip(
            self.stack.layers, carry.layers, strict=True
        ):
            if source is not None and not same:
                source = source.select(kept if layer.folds else rows)
            own = None if own is None else own.select(rows)
            layers.append(LayerState(own, own_state.select(rows), source, state.select(rows)))
        first = None if carry.first is None else carry.first[rows]
        return carry._replace(layers=tuple(layers), sentence=sentence, first=first)

    def _counted(self, first: Tensor | None) -> Tensor | None:
        """The first positions of texts, unless padding in front would move them.    N"""
        layers = () if first is None else self.stack.layers
        if not all(layer.attention.ignores_shifts for layer in layers):
            raise Refused(
                "this attention counts places from the beginning of its row, so padding in "
                "front of a text would move it; take texts of one length together"
            )
        return first

    def _further(
        self, carry: DecoderCarry, symbols: Tensor, exists: Visible | None = None
    ) -> tuple[Tensor, dict[str, Attended], DecoderCarry]:
        needs: list[Need] = ["context"] * len(carry.layers)
        needs[self.alignment_layer] = carry.need  # the only one that a step reports
        x = self.words(symbols, carry.place, first=carry.first, exists=exists)
        x, seen, kept = self.stack(x, carry.layers, heed.causal(), needs, exists)
        return x, seen, carry._replace(place=carry.place + symbols.shape[1], layers=kept)

    def _memories(self, source: Tensor | None, visible: Visible | None) -> list[heed.Memory | None]:
        """The source as each layer's cross-attention keeps it."""
        if source is None:
            return [None] * len(self.stack.layers)
        reads = [layer.cross for layer in self.stack.layers if layer.cross is not None]
        return [cross.remember(source, visible=visible) for cross in reads]

    def _unformed(self, x: Tensor) -> Tensor | Unformed:
        """The logits, computed only when needed."""
        if self.output is not None:
            return Unformed.of(x, self.output)
        table = self.words.table.weight
        return Unformed(x, table.view_as(table), None)

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the next symbol after each state.    ... M -> ... V"""
        return formed(self._unformed(x))


class CrossDecoder(Decoder):
    """A decoder as a writer: it looks at what any reader read.

    memory  the width of the reader's states, which a linear map makes the decoder's
    """

    def __init__(
        self,
        words: PositionedWords,
        stack: TransformerStack,
        output: nn.Linear | None = None,
        alignment_layer: int | None = None,
        *,
        memory: int | None = None,
    ) -> None:
        super().__init__(words, stack, output, alignment_layer)
        width = words.table.embedding_dim
        self.bridge = None if memory in (None, width) else nn.Linear(memory, width)

    def forward(  # type: ignore[override]
        self, read: Encoded, inputs: Tensor, need: Need = "context", aligned: bool = False
    ) -> Written:
        """The whole text at once.    B T -> logits B T V

        aligned  the weights of `alignment` are needed, whatever `need` says
        """
        return super().forward(inputs, need, self._bridged(read), read.exists, aligned=aligned)

    if TYPE_CHECKING:
        __call__ = forward  # type: ignore[assignment]

    def begin(self, read: Encoded, need: Need = "context") -> AnyCarry:  # type: ignore[override]
        """One hypothesis for each input, with nothing written."""
        nothing = torch.empty(len(read.states), 0, dtype=torch.long, device=read.states.device)
        return super().begin(nothing, need, self._bridged(read), read.exists)

    def _bridged(self, read: Encoded) -> Tensor:
        states: Tensor = read.states if self.bridge is None else self.bridge(read.states)
        return states

    @property
    def aligning(self) -> heed.MultiHeadAttention | None:
        """The attention whose weights stand for the word alignment."""
        return self.stack.layers[self.alignment_layer].cross

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the word alignment, the mean of a layer's heads.    B T S

        The last layer but one aligns best: Garg 2019.
        """
        return seen[f"{self.alignment_layer}.cross"].weight.mean(1)
