"""Parts defined by users are never mistaken for those they derive from, and are checked."""

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.align import Aligned, Sample, Softmax, softmax
from heed.attention.catalogue import CATALOGUE
from heed.attention.memory import Memory
from heed.attention.mixed import FixedGate, Mixed
from heed.attention.past import Coverage
from heed.attention.read import Blend
from heed.attention.score import Dot, ScaledDot, Score
from heed.errors import Refused, ShapeError
from heed.records import Claims
from heed.visible import Places

M = 8


class Sharp(Softmax):
    def forward(self, energy: Tensor, ok: Tensor | None, before: object, query: Tensor) -> Aligned:
        return Aligned(softmax(energy * 10, ok))


class Double(Blend):
    def forward(self, weight: Tensor, v: Tensor) -> Tensor:
        return 2 * super().forward(weight, v)


class Opposite(ScaledDot):
    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        return -super().energy(q, memory, places)


class Turned(Score):
    """A dot product that only prepares its keys."""

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return keys.flip(-1)


class Flat(Score):
    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        return (q @ memory.k.mT).sum(-1)


class Far:
    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        return -torch.cdist(q, memory.k)


class Mixin(Far, ScaledDot):
    """A comparison that is not a score of heed."""


def named(name: str, base: type, **methods: object) -> type:
    """A user's class with the name of one of heed's."""
    return type(name, (base,), methods)


OWN = {
    "align": heed.Mechanism(score=ScaledDot(query=M, key=M), align=Sharp()),
    "read": heed.Mechanism(score=ScaledDot(query=M, key=M), read=Double()),
    "score": heed.Mechanism(score=Opposite(query=M, key=M)),
    "mixin": heed.Mechanism(score=Mixin(query=M, key=M)),
    "another Softmax": heed.Mechanism(
        score=ScaledDot(query=M, key=M), align=named("Softmax", Sharp)()
    ),
    "another Blend": heed.Mechanism(score=ScaledDot(query=M, key=M), read=named("Blend", Double)()),
    "another Dot": heed.Mechanism(score=named("Dot", Score, energy=Far.energy)()),
}


@pytest.mark.parametrize("mechanism", OWN.values(), ids=OWN)
def test_asking_for_weights_does_not_change_the_context(mechanism: heed.Mechanism) -> None:
    attend, x = heed.Attention(mechanism), torch.randn(2, 9, M)
    assert attend(x).kernel == "reference"
    torch.testing.assert_close(attend(x).context, attend(x, need="weight").context)


def test_a_score_that_only_prepares_is_served_by_the_fused_kernel() -> None:
    attend, x = heed.Attention(heed.Mechanism(score=Turned())), torch.randn(2, 5, M)
    seen = attend(x)
    assert seen.kernel == "sdpa"
    torch.testing.assert_close(seen.context, (x @ x.flip(-1).mT).softmax(-1) @ x)


def test_names_are_derived_from_classes() -> None:
    for name, entry in CATALOGUE.items():
        if name != "mixed":
            assert entry.part.name == name
    assert Sharp.name.endswith("test_own_parts.Sharp")
    assert Opposite.family == Opposite.name != "opposite"
    assert Turned.family == "dot"


def test_a_class_that_states_no_claims_has_no_more_than_its_bases_guarantee() -> None:
    assert Softmax.claims.is_row_wise
    assert not Sharp.claims.is_row_wise
    assert ScaledDot.claims.ignores_turns
    assert not Opposite.claims.ignores_turns
    assert Opposite.claims.is_row_wise
    assert named("Sample", Sample).claims.gradient == "score-function"
    assert named("Calm", Softmax, claims=Claims()).claims == Claims()


def test_a_part_that_is_exchanged_brings_its_claims() -> None:
    mechanism = heed.Mechanism(score=Dot(query=M, key=M))
    assert mechanism.claims == Claims()
    mechanism.align = Sample()
    assert mechanism.claims == Sample.claims


class Momentum(Softmax):
    """An align with a state, but without places."""

    def forward(self, energy: Tensor, ok: Tensor | None, before: object, query: Tensor) -> Aligned:
        weight = softmax(energy, ok)
        return Aligned(weight, after=(weight[:, :, -1], 3))


def test_an_align_of_your_own_may_have_a_state() -> None:
    attend = heed.Attention(heed.Mechanism(score=Dot(query=M, key=M), align=Momentum()))
    x = torch.randn(2, 5, M)
    memory = attend.remember(x)
    state = attend(x[:, :1], memory, heed.State()).state
    state = attend(x[:, 1:2], memory, state.select(torch.tensor([1, 0]))).state
    assert state.rows == 2


def test_energies_of_the_wrong_shape_are_refused() -> None:
    attend, x = heed.Attention(heed.Mechanism(score=Flat())), torch.randn(2, 5, M)
    with pytest.raises(ShapeError, match=r"Flat must give energies B H T S, \(2, 1, 5, 5\)"):
        attend(x)


def test_what_is_not_a_part_is_refused() -> None:
    with pytest.raises(Refused, match="score takes a Score, not 'dot'"):
        heed.Mechanism(score="dot")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="score takes a Score"):
        heed.Mechanism(score=Softmax())  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"heed\.Mechanism"):
        heed.Attention(Dot(query=M, key=M))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="hint_width=8"):
        heed.Mechanism(score=heed.Attention("additive", query=M).mechanism.score, past=Coverage())


def test_mixed_needs_the_width_of_the_keys() -> None:
    with pytest.raises(Refused, match="kept_width"):
        Mixed(heed.Mechanism(score=Turned()), heed.Mechanism(score=Turned()), FixedGate())
