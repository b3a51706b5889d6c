"""Writers: from what a reader read to a text, at once or symbol by symbol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from heed.models.reader import Encoded
from heed.models.written import Written, WrittenStep
from heed.records import Attended, Need

if TYPE_CHECKING:
    from heed.models.native_carry import NativeStep


class Writer(Protocol):
    """From what was read, and the symbols written so far, to the next symbol."""

    def __call__(
        self, read: Encoded, inputs: Tensor, /, need: Need = "context", aligned: bool = False
    ) -> Written:
        """A whole text at once.    B T -> logits B T V

        aligned  the weights of `alignment` are needed, whatever `need` says
        """

    def begin(self, read: Encoded, /, need: Need = "context") -> Any:
        """The carry before the first symbol; a hypothesis for each input."""

    def step(self, carry: Any, symbols: Tensor) -> WrittenStep | NativeStep:
        """The next symbol of each hypothesis.    N -> N V"""

    def select(self, carry: Any, rows: Tensor, same: bool = False) -> Any:
        """The carry of the chosen rows, in that order; rows may repeat or be left out.

        same  each row goes on with the same input in the same place: what was kept of it is not
              copied
        """

    @property
    def aligning(self) -> nn.Module | None:
        """The attention whose weights stand for the alignment; None without any."""

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the alignment, of what `Written.seen` has.    B T S"""
