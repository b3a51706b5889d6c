"""A reader and a writer: from one sequence to another.

network = EncoderDecoder(reader, writer)
written = network(source, lengths, inputs, need="weight")  # B S, B, B T -> B T V
network.alignment(written.seen)                            # B T S
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from heed.models.positioned_words import lengths_of
from heed.models.reader import Encoded, Reader
from heed.models.writer import Writer
from heed.models.written import Written, WrittenStep
from heed.records import Attended, Need

if TYPE_CHECKING:
    from heed.models.native_carry import NativeStep


class EncoderDecoder(nn.Module):
    """Any reader, and any writer behind it; nothing but the reader's record passes between them."""

    encoder: Any
    decoder: Any

    def __init__(self, encoder: Reader, decoder: Writer) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        source: Tensor,
        lengths: Tensor | Sequence[int] | None,
        inputs: Tensor,
        need: Need = "context",
        aligned: bool = False,
    ) -> Written:
        """Source B S, its lengths B, the symbols written so far B T -> logits B T V

        lengths  how many places of each source are not padding; None: all
        aligned  the weights of `alignment` are needed, whatever `need` says
        """
        read = self._read(source, lengths, need)
        written = self.decoder(read, inputs, need, aligned)
        ends = {"encoder": read.seen, "decoder": written.seen}
        return Written(
            written.output,
            {f"{end}.{path}": look for end, looks in ends.items() for path, look in looks.items()},
        )

    if TYPE_CHECKING:
        __call__ = forward

    def _read(
        self, source: Tensor, lengths: Tensor | Sequence[int] | None, need: Need = "context"
    ) -> Encoded:
        lengths = None if lengths is None else lengths_of(lengths, source)
        return cast(Encoded, self.encoder(source, lengths, need))

    def begin(
        self, source: Tensor, lengths: Tensor | Sequence[int] | None, need: Need = "context"
    ) -> Any:
        """Read the source; one hypothesis for each, with nothing written."""
        return self.decoder.begin(self._read(source, lengths), need)

    def step(self, carry: Any, symbols: Tensor) -> WrittenStep | NativeStep:
        """The next symbol of each hypothesis.    N -> N V"""
        return cast("WrittenStep | NativeStep", self.decoder.step(carry, symbols))

    def select(self, carry: Any, rows: Tensor, same: bool = False) -> Any:
        """The carry of the chosen rows; `same`: each row keeps the source it had."""
        return self.decoder.select(carry, rows, same)

    @property
    def aligning(self) -> nn.Module | None:
        """The attention whose weights stand for the alignment; None without any."""
        return cast("nn.Module | None", self.decoder.aligning)

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the alignment.    B T S"""
        start = "decoder."
        own = {path.removeprefix(start): x for path, x in seen.items() if path.startswith(start)}
        return cast(Tensor, self.decoder.alignment(own))
