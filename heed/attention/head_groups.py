"""Groups of heads, each with a mechanism of its own, inside one multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from heed.attention.mechanism import Lanes, Mechanism
from heed.attention.memory import Memory, concat
from heed.attention.position import OfHeads, Position
from heed.attention.trace import Grouped
from heed.errors import Refused
from heed.records import Attended, Need, State, Statistics, Summary
from heed.visible import Visible


class HeadGroups(Lanes):
    """A mechanism of its own for every group of heads, over one memory.

    The groups' kept keys are stacked along the heads of `Memory.k`, padded to the widest.
    """

    def __init__(self, lanes: Sequence[tuple[Mechanism, int]]) -> None:
        super().__init__([lane for lane, _ in lanes])
        self.lanes = nn.ModuleList(lane for lane, _ in lanes)  # type: ignore[assignment]
        self.heads = [heads for _, heads in lanes]
        self.names = [str(i) for i in range(len(lanes))]

    @property
    def kept_width(self) -> int:
        return max(self.widths)

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        if keys.shape[1] != sum(self.heads):
            raise Refused(
                f"{sum(self.heads)} heads of several mechanisms have keys of their own each; these "
                f"are G={keys.shape[1]} groups of keys"
            )
        parts = zip(self.lanes, keys.split(self.heads, 1), values.split(self.heads, 1), strict=True)
        kept = [lane.keep(k, v) for lane, k, v in parts]
        return concat([pad(k, (0, self.kept_width - k.shape[-1])) for k in kept], 1)

    def memories(self, memory: Memory) -> list[Memory]:
        """The memory of each group: its own heads' keys, only as wide as it keeps them, and values.

        B H S D, B H S R -> for each group B h S d, B h S R
        """
        k, v = (x.split(self.heads, 1) for x in (memory.k, memory.v))
        return [
            replace(memory, k=k[i][..., : self.widths[i]], v=v[i], owner=lane.token, prepared={})
            for i, lane in enumerate(self.lanes)
        ]

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        state: State | None,
        visible: Visible | None,
        need: Need,
        segments: Tensor | None,
        position: Position | None,
        asked: Summary | None,
    ) -> Attended:
        """Each group attends on its own heads: queries B H T M -> context B H T R."""
        queries, memories = query.split(self.heads, 1), self.memories(memory)
        states = self.states(state)
        spans = list(pairwise([0, *accumulate(self.heads)]))
        seen = [
            lane(
                queries[i],
                memories[i],
                states[i],
                visible=None if visible is None else visible.of_heads(*spans[i]),
                need=need,
                segments=segments,
                position=None if position is None else OfHeads(position, *spans[i]),
                statistics=asked,
            )
            for i, lane in enumerate(self.lanes)
        ]
        together = self._together(seen, need)
        if asked is None:
            return together
        return together.replace(statistics=Statistics.join([one.statistics for one in seen], 1))

    def _together(self, seen: list[Attended], need: Need) -> Attended:
        states = {name: one.state for name, one in zip(self.names, seen, strict=True)}
        traced = need == "trace"
        energies = [one.energy for one in seen] if need == "energy" else None
        return Attended(
            torch.cat([one.context for one in seen], 1),
            seen[0].state._replace(slots=states),
            weight=None if need == "context" else torch.cat([one.weight for one in seen], 1),
            energy=None if energies is None else torch.cat(energies, 1),
            log_prob=self._fact([one.log_prob for one in seen]),
            entropy=self._fact([one.entropy for one in seen]),
            penalty=self._fact([one.penalty for one in seen]),
            kernel=" + ".join(one.kernel for one in seen),
            refusals=tuple(refusal for one in seen for refusal in one.refusals),
            trace=Grouped(tuple(one.trace for one in seen), tuple(self.heads)) if traced else None,
        )

    def _fact(self, facts: list[Tensor | None]) -> Tensor | None:
        """A fact that some groups report, zero for the heads of the others.    -> B H T"""
        like = next((x for x in facts if x is not None), None)
        if like is None:
            return None
        B, _, T = like.shape
        filled = zip(facts, self.heads, strict=True)
        return torch.cat([like.new_zeros(B, n, T) if x is None else x for x, n in filled], 1)


def head_groups(layer: str | Sequence[str], heads: int) -> list[tuple[str, int]]:
    """The mechanisms of a layer's heads: "a" or "2*a + 2*b" or ["a", "a", "b", "b"]."""
    words = layer.split("+") if isinstance(layer, str) else layer
    groups = [_counted(word.strip()) for word in words]
    if isinstance(layer, str) and len(groups) == 1 and "*" not in layer:
        groups = [(groups[0][0], heads)]
    if sum(count for _, count in groups) != heads:
        raise Refused(
            f"there are {heads} heads, and '{layer}' names {sum(n for _, n in groups)}; "
            f"a layer takes one name, or as many as heads: '{heads - 1}*scaled-dot + 1*additive'"
        )
    merged = groupby(groups, key=lambda group: group[0])
    return [(name, sum(count for _, count in group)) for name, group in merged]


def _counted(word: str) -> tuple[str, int]:
    """ "2*additive" -> ("additive", 2); without a number, one head."""
    count, star, name = word.rpartition("*")
    if not star:
        return word, 1
    if not count.strip().isdecimal() or int(count) == 0:
        raise Refused(f"'{word}': before the * stands how many heads, as in 2*additive")
    return name.strip(), int(count)
