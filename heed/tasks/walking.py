"""Every call of a trained model's attentions while it works on a text.

A walk needs words beside the numbers: the word that asks, and the words that are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from heed.errors import Refused
from heed.tasks.cutting import labels
from heed.watching.walk import follow, listen
from heed.watching.walked import Asked, Walk
from heed.watching.watch import attentions

if TYPE_CHECKING:  # each task has its own worker, and needs no other
    from heed.tasks.pretrainer import Pretrainer

__all__ = ["Heard", "Walk", "filled"]


NONE = "this model has no attention to walk through"
WHOLE = "the text"
"""The name of a query that no word asks: one for the whole text."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A text, what was made of it, and every attention that can be walked through.

    calls    by path, the lowest layer first
    chosen   which of them is the most telling, as a place in that order
    queries  the words that ask; where there is one for the whole text, its name
    keys     the words that are asked
    first    the query that is walked with by default
    """

    source: str
    answer: str
    calls: Mapping[str, Sequence[Asked]]
    queries: Sequence[str]
    keys: Sequence[str]
    chosen: int = -1
    first: int = 0

    def walk(self, path: str, position: int, head: int) -> Walk:
        """The walk of one query of one head."""
        return follow(self.calls[path], position=position, head=head)

    def words(self, path: str) -> Sequence[str]:
        """The words that ask an attention; a static one is asked once, for the whole text."""
        count = sum(call.query.shape[2] for call in self.calls[path])
        return self.queries[:count] if count > 1 or len(self.queries) == 1 else [WHOLE]

    def asked(self, path: str) -> Sequence[str]:
        """The words that are asked, the same in all attentions."""
        return self.keys


def _listening(model: nn.Module) -> AbstractContextManager[dict[str, list[Asked]]]:
    """Listen to every attention of a trained model; refuse one that has none."""
    if not attentions(model):
        raise Refused(NONE)
    return listen(model)


def _heard(heard: Mapping[str, Sequence[Asked]]) -> dict[str, Sequence[Asked]]:
    """The attentions that were asked."""
    found = {path: calls for path, calls in heard.items() if calls}
    if not found:
        raise Refused(NONE)
    return found


def filled(worker: Pretrainer, text: str) -> Heard:
    """The words' attention to each other while hidden ones are predicted; the first hidden asks."""
    with _listening(worker.model) as heard:
        (found,) = worker.fill([text])
    if not found.pieces:
        raise Refused("there is nothing to walk through: the text is blank")
    (mask,) = labels(worker.tokeniser, [worker.symbols.mask])
    first = found.pieces.index(mask) if mask in found.pieces else 0
    return Heard(text, found.text, _heard(heard), found.pieces, found.pieces, first=first)
