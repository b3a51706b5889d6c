"""Score: how alike are a query and a key?    e_ts = f(q_t, k_s)

First the mathematics, as functions of projected queries and keys; then modules that carry the
weights. After projection a score is a dot product or an additive one (`relative` adds a term by
distance; `location` looks at no key), so a few kernels serve them all.
"""

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import normalize

from heed.attention.initial_weights import drawn
from heed.attention.memory import Memory
from heed.attention.part import Part
from heed.attention.position import waves
from heed.errors import Refused, ShapeError
from heed.kernels.ability import known
from heed.records import Claims
from heed.shapes import check_devices, check_dtypes, real, whole
from heed.visible import Places


def dot(q: Tensor, k: Tensor, scale: float = 1.0) -> Tensor:
    """Energy q·k, scaled.    B H T D, B H S D -> B H T S"""
    return q @ k.mT * scale


def additive(q: Tensor, k: Tensor, w: Tensor, hint: Tensor | None = None) -> Tensor:
    """Energy w·tanh(q + k + hint).    B H T D, B H S D, H D, B H T S D -> B H T S"""
    inside = q[:, :, :, None] + k[:, :, None]
    inside = torch.tanh(inside if hint is None else inside + hint)
    if len(w) == 1:  # one head: one product for all rows, where a batched one goes row by row
        return functional.linear(inside, w)[..., 0]
    return (inside @ w[:, None, :, None])[..., 0]


def distance(q: Tensor, r: Tensor, places: Places) -> Tensor:
    """Energy q_t·r_{t-s}: r holds one row per distance, furthest ahead first.

    B H T D, H N D or N D -> B H T S
    """
    t = torch.arange(places.T, device=q.device)
    s = torch.arange(places.S, device=q.device)
    row = t[:, None] - s + places.S - 1  # T S
    return (q @ r.mT).gather(-1, row.expand(*q.shape[:2], -1, -1))


def distance_behind(q: Tensor, r: Tensor, places: Places) -> Tensor:
    """Energy q_t·r_{t-s} of keys not ahead of the query, without a gather. Dai 2019 app. B.

    r holds distances S down to 0, and the last query stands at the last key. Keys ahead get the
    energies of the next query's furthest keys, which must not be seen.

    B H T D, H S+1 D or S+1 D -> B H T S
    """
    return (q @ r.mT).flatten(-2)[..., places.T :].view(*q.shape[:3], places.S)


def direction(x: Tensor) -> Tensor:
    """x / |x|, and zero for zero, which half precision alone would make 0 / 0.    ... D -> ... D"""
    wide = torch.promote_types(x.dtype, torch.float32)
    return normalize(x.to(wide), dim=-1).to(x.dtype)


def per_head(k: Tensor, heads: int) -> Tensor:
    """Give every head its group's keys (or values).    B G S D -> B H S D"""
    return k if k.shape[1] == heads else k.repeat_interleave(heads // k.shape[1], 1)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """A linear map per head.    B H T M, H D M -> B H T D"""
    check_devices(inputs=x, weights=weight)
    check_dtypes(inputs=x, weights=weight)
    if len(weight) == 1:  # one head: nothing to rearrange
        return functional.linear(x, weight[0])
    B, H, T, M = x.shape
    if len(weight) != H:
        raise ShapeError(f"this part was built for {len(weight)} heads; the input has H={H}")
    rows = x.transpose(0, 1).reshape(H, B * T, M)  # one product per head, not one per batch row
    return (rows @ weight.mT).view(H, B, T, weight.shape[1]).transpose(0, 1)


def parameter(*shape: int, fan_in: int | None = None) -> nn.Parameter:
    """A matrix per head, uniform in ±sqrt(3 / fan_in) so that variances are kept.    H D M"""
    bound = math.sqrt(3 / (fan_in or shape[-1]))
    return drawn(partial(nn.init.uniform_, a=-bound, b=bound), *shape)


def constant(value: float, *shape: int) -> nn.Parameter:
    """A parameter that begins as one number everywhere."""
    return drawn(partial(nn.init.constant_, val=value), *shape)


class Score(Part):
    """A way to compare. `ask` prepares queries, `keep` prepares keys once, `energy` compares."""

    slot = "score"
    claims = Claims(ignores_place=False, ignores_shifts=False, ignores_turns=False)
    family: ClassVar[str] = "dot"
    """Its name for kernels, after projection; a score with an `energy` of its own has its own."""
    scale: float = 1.0
    kept_width: int | None = None
    """The width D of a kept key, where it is known; 0 for a score that looks at no key."""
    hint_width: int = 1
    """How wide a past's hint must be: D inside a tanh, 1 where it is added to the energy."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        compares = next(base for base in cls.__mro__ if "energy" in vars(base))
        if "family" not in vars(cls):
            own = compares is cls or not issubclass(compares, Score)
            cls.family = cls.name if own else str(vars(compares)["family"])

    @property
    def vector(self) -> Tensor | None:
        """The score vector of the additive family.    H D"""
        return None

    def vector_for(self, heads: int) -> Tensor | None:
        """The score vector of each head; a single vector serves all of them.    H D"""
        w = self.vector
        if w is None or len(w) == heads:
            return w
        if len(w) != 1:
            raise ShapeError(f"{self.name} was built for {len(w)} heads; the query has H={heads}")
        return w.expand(heads, -1)

    @property
    def query_map(self) -> Tensor | None:
        """The matrix by which `ask` multiplies queries, if by any.    H D M"""
        return None

    def ask(self, query: Tensor) -> Tensor:
        """B H T M -> B H T D"""
        weight = self.query_map
        return query if weight is None else linear(query, weight)

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        """B G S K, B G S R -> B G S D"""
        if self.kept_width and keys.shape[-1] != self.kept_width:
            raise ShapeError(
                f"the keys are {keys.shape[-1]} wide; {self.name} was built for "
                f"key={self.kept_width}"
            )
        return keys if self.kept_width is None else keys[..., : self.kept_width]

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        """B H T D, and the memory -> B H T S"""
        return dot(q, per_head(memory.k, q.shape[1]), self.scale)

    def hinted(self, q: Tensor, memory: Memory, places: Places, hint: Tensor) -> Tensor:
        """The energies under a past's hint, B H T S hint_width."""
        return self.energy(q, memory, places) + hint[..., 0]


class Dot(Score):
    """q·k. Luong 2015 §3.1."""

    formula = "q·k"
    claims = Claims()

    def __init__(self, *, query: int, key: int) -> None:
        super().__init__()
        _same_width(self, query, key)
        self.kept_width = key


class ScaledDot(Score):
    """q·k / sqrt(D). Vaswani 2017 eq. 1.

    scale  another factor than 1 / sqrt(D)
    """

    formula = "q·k / √D"
    claims = Claims()

    def __init__(self, *, query: int, key: int, scale: float | None = None) -> None:
        super().__init__()
        _same_width(self, query, key)
        self.kept_width = key
        self.usual = scale is None  # fast paths compute the usual scale themselves
        self.scale = query**-0.5 if scale is None else real("scale", scale, 1e-6)


class General(Score):
    """q·W k, bilinear. Luong 2015 §3.1. W is applied to the query; keys are kept as they are."""

    formula = "q·W k"
    claims = Claims(ignores_turns=False)

    def __init__(self, *, query: int, key: int, heads: int = 1) -> None:
        super().__init__()
        self.kept_width = key
        self.weight = parameter(heads, key, query)

    @property
    def query_map(self) -> Tensor:
        return self.weight


class Additive(Score):
    """w·tanh(W₁ k + W₂ q). Bahdanau 2015 A.1.2."""

    formula = "w·tanh(W₁ k + W₂ q)"
    claims = Claims(ignores_turns=False)
    family = "additive"
    one_matrix: ClassVar[bool] = False
    """Whether the maps of query and key are drawn as the halves of one matrix."""

    def __init__(
        self, *, query: int, key: int, heads: int = 1, groups: int = 1, width: int | None = None
    ) -> None:
        super().__init__()
        width = whole("width", query if width is None else width, 1)
        fan_in = query + key if self.one_matrix else None
        self.query_weight = parameter(heads, width, query, fan_in=fan_in)
        self.key_weight = parameter(groups, width, key, fan_in=fan_in)
        self.score_vector = parameter(heads, width)
        self.kept_width = self.hint_width = width

    @property
    def vector(self) -> Tensor:
        return self.score_vector

    @property
    def query_map(self) -> Tensor:
        return self.query_weight

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return linear(keys, self.key_weight)

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        return additive(q, per_head(memory.k, q.shape[1]), self.vector.to(q.dtype))

    def hinted(self, q: Tensor, memory: Memory, places: Places, hint: Tensor) -> Tensor:
        return additive(q, per_head(memory.k, q.shape[1]), self.vector.to(q.dtype), hint)


class Concat(Additive):
    """w·tanh(W [q; k]). Luong 2015 §3.1.

    W [q; k] = W₂ q + W₁ k, so this is `additive` with the two halves initialised as one matrix.
    """

    formula = "w·tanh(W [q; k])"
    one_matrix = True


class ConcatIdentity(Additive):
    """w·tanh(W q + k): the half of W that meets the key is fixed to the identity, as Luong did."""

    formula = "w·tanh(W q + k)"

    def __init__(self, *, query: int, key: int, heads: int = 1, groups: int = 1) -> None:
        super().__init__(query=query, key=key, heads=heads, groups=groups, width=key)
        del self.key_weight

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return keys


class Location(Score):
    """Row s of W q: a place is chosen from the query alone. Luong 2015 §3.1."""

    formula = "(W q)_s"
    claims = Claims(ignores_shifts=False, ignores_turns=False, needs_line=True)
    family = "location"
    kept_width = 0

    def __init__(self, *, query: int, heads: int = 1, longest: int = 100) -> None:
        super().__init__()
        self.longest = whole("longest", longest, 1)
        self.weight = parameter(heads, longest, query)

    @property
    def query_map(self) -> Tensor:
        return self.weight  # D is the place asked for

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        if known(self.longest < places.S):
            raise Refused(
                f"location was built for at most {self.longest} places; this source has "
                f"S={places.S}: build it with longest={places.S}"
            )
        return q.index_select(-1, places.key)  # an export knows a slice as whole or as part


class KeyValue(Score):
    """(α q·k + β q·v) / sqrt(D): the value takes part in the comparison, as one effective key."""

    formula = "(α q·k + β q·v) / √D"
    claims = Claims(ignores_turns=False)

    def __init__(self, *, query: int, key: int, value: int, groups: int = 1) -> None:
        super().__init__()
        _same_width(self, query, key)
        self.kept_width = key
        if value != key:
            raise Refused(
                f"key-value compares the query with values too, so they must be as wide as the "
                f"keys; key={key}, value={value}"
            )
        self.scale = query**-0.5
        self.alpha = constant(0.5, groups, 1, 1)
        self.beta = constant(0.5, groups, 1, 1)

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        check_dtypes(keys=keys, weights=self.alpha)
        if values.shape[-1] != keys.shape[-1]:
            raise ShapeError(
                "key-value compares the query with values too, so they must be as wide as the "
                f"keys: keys {keys.shape[-1]}, values {values.shape[-1]}"
            )
        return self.alpha * keys + self.beta * values


class Cosine(Score):
    """β cos(q, k), β > 0 learned. Graves 2014 §3.3.1."""

    formula = "β cos(q, k)"
    claims = Claims()

    def __init__(self, *, query: int, key: int, heads: int = 1, sharpness: float = 5.0) -> None:
        super().__init__()
        _same_width(self, query, key)
        self.kept_width = key
        self.log_sharpness = constant(math.log(real("sharpness", sharpness, 1e-6)), heads, 1, 1)

    def ask(self, query: Tensor) -> Tensor:
        check_dtypes(queries=query, weights=self.log_sharpness)
        return self.log_sharpness.exp() * direction(query)

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return direction(keys)


class Relative(Score):
    """[(q + u)·k + (q + w)·r_{t-s} (+ (q + z)·g)] / sqrt(D). Transformer-XL 2019 §3.3, XLNet.

    r_{t-s} is a sinusoid of the distance under a learned map; g, with `segments`, is one of two
    learned vectors: for a key of the query's own segment, and for one of another.

    segments  False, True, or "optional": then the term is left out of a call without segments
    clamp     distances are clamped to ±clamp; 0: not at all
    """

    formula = "[(q+u)·k + (q+w)·r_{t−s} + (q+z)·g] / √D"
    claims = Claims(ignores_place=False, ignores_turns=False, needs_line=True)
    family = "relative"
    ahead = True  # whether a query may see keys ahead of it; models that read left to right say no

    def __init__(
        self,
        *,
        query: int,
        key: int,
        heads: int = 1,
        width: int | None = None,
        segments: bool | str = False,
        clamp: int = 0,
    ) -> None:
        super().__init__()
        _same_width(self, query, key)
        if isinstance(segments, str) and segments != "optional":
            raise Refused(f"segments takes True, False or 'optional', not '{segments}'")
        self.kept_width = key
        self.scale = query**-0.5
        self.segments, self.clamp = segments, whole("clamp", clamp, 0)
        self.width = whole("width", query + query % 2 if width is None else width, 2)
        if self.width % 2:
            raise Refused(f"width={self.width} must be even: its sinusoids come in pairs")
        self.content_bias = constant(0, heads, 1, query)  # u
        self.distance_bias = constant(0, heads, 1, query)  # w
        self.distance_weight = parameter(heads, query, self.width)
        if segments:
            self.segment_bias = constant(0, heads, 1, query)  # z
            self.segment_vectors = parameter(heads, 2, query)  # same, other

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        first = places.first
        behind = not self.ahead and known(places.last_at_end)
        if behind:
            distances = torch.arange(places.S, -1, -1, device=q.device)
        else:
            distances = torch.arange(first - places.S + 1, first + places.T, device=q.device)
        if self.clamp:
            distances = distances.clamp(-self.clamp, self.clamp)
        pattern = torch.cat(waves(distances.to(q.dtype), self.width), -1)  # N W
        k, weight = per_head(memory.k, q.shape[1]), self.distance_weight.to(q.dtype)
        asked, r = q + self.distance_bias.to(q.dtype), pattern
        if known(
            q.shape[1] * q.shape[2] <= self.width
        ):  # few queries: map them, rather than every r
            asked = asked @ weight  # B H T W
        else:
            r = pattern @ weight.mT  # H N D
        energy = dot(q + self.content_bias.to(q.dtype), k)
        energy = energy + (distance_behind if behind else distance)(asked, r, places)
        if self.segments is True or (self.segments and _has_segments(places)):
            energy = energy + self._same_segment(q, places)
        return energy * self.scale

    def _same_segment(self, q: Tensor, places: Places) -> Tensor:
        if places.segment is None or places.key_segment is None:
            raise Refused(
                "this relative score compares segments: give them to remember(segments=...) "
                "and to the call"
            )
        other = (places.segment[:, :, None] != places.key_segment[:, None]).long()  # B T S
        bias, vectors = self.segment_bias.to(q.dtype), self.segment_vectors.to(q.dtype)
        energy = (q + bias) @ vectors.mT  # B H T 2
        return energy.gather(-1, other[:, None].expand(-1, q.shape[1], -1, -1))


def _has_segments(places: Places) -> bool:
    """Whether a call gives segments; those of queries or keys alone are refused later."""
    return places.segment is not None or places.key_segment is not None


class Blind(Score):
    """Zero for every key: the score of an align that decides by itself (`mixture-window`)."""

    claims = Claims(uses_energies=False)
    family = "blind"
    kept_width = 0

    def energy(self, q: Tensor, memory: Memory, places: Places) -> Tensor:
        return q.new_zeros(*q.shape[:3], memory.k.shape[2])


PLAIN = {ScaledDot.name: True, Dot.name: False}
"""The dot products of queries and keys as they come, and whether they are scaled."""


def _same_width(score: Score, query: int, key: int) -> None:
    if query != key:
        raise Refused(
            f"{score.name} compares queries and keys as they are, so their widths must agree: "
            f"query={query}, key={key}; use 'general', which learns a map between them"
        )
