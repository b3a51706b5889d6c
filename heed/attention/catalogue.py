"""Every name: its slot, formula and source. A closed table: a name can never import anything."""

from dataclasses import dataclass
from typing import Literal

from heed.attention import align, moving, past, reach, read, score
from heed.attention.mixed import Mixed
from heed.attention.part import Part
from heed.records import Claims

Slot = Literal["score", "past", "reach", "align", "read"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the catalogue."""

    name: str
    slot: Slot
    part: type[Part] | type[Mixed]
    formula: str
    source: str
    about: str
    blind: bool = False  # takes no score: it looks at no key

    @property
    def claims(self) -> Claims:
        """What it can do, as its part declares."""
        return Claims() if issubclass(self.part, Mixed) else self.part.claims


DEFAULTS: dict[Slot, str | None] = {
    "score": "scaled-dot",
    "past": None,
    "reach": "global",
    "align": "softmax",
    "read": "blend",
}

_ENTRIES = (
    Entry("dot", "score", score.Dot, "q·k", "Luong 2015 §3.1", "how far they point the same way"),
    Entry(
        "scaled-dot",
        "score",
        score.ScaledDot,
        "q·k / √D",
        "Vaswani 2017 eq. 1",
        "dot, kept from growing with the width",
    ),
    Entry(
        "general",
        "score",
        score.General,
        "q·W k",
        "Luong 2015 §3.1",
        "bilinear: a learned map between query and key",
    ),
    Entry(
        "additive",
        "score",
        score.Additive,
        "w·tanh(W₁ k + W₂ q)",
        "Bahdanau 2015 A.1.2",
        "a small network compares them",
    ),
    Entry(
        "concat",
        "score",
        score.Concat,
        "w·tanh(W [q; k])",
        "Luong 2015 §3.1",
        "additive, drawn as one matrix",
    ),
    Entry(
        "concat-identity",
        "score",
        score.ConcatIdentity,
        "w·tanh(W q + k)",
        "Luong 2015, released code",
        "concat with half of W fixed to the identity",
    ),
    Entry(
        "location",
        "score",
        score.Location,
        "(W q)_s",
        "Luong 2015 §3.1",
        "places chosen from the query alone",
    ),
    Entry(
        "key-value",
        "score",
        score.KeyValue,
        "(α q·k + β q·v) / √D",
        "after Miller 2016",
        "the value takes part in the comparison",
    ),
    Entry("cosine", "score", score.Cosine, "β cos(q, k)", "Graves 2014 §3.3.1", "angle alone"),
    Entry(
        "relative",
        "score",
        score.Relative,
        "[(q+u)·k + (q+w)·r_{t−s} + (q+z)·g] / √D",
        "Dai 2019 §3.3, Yang 2019",
        "content and distance",
    ),
    Entry(
        "coverage",
        "past",
        past.Coverage,
        "cov_t = Σ_{τ<t} a_τ enters e_t",
        "See 2017 §2.3",
        "knows what has been looked at; penalty Σ min(a, cov)",
    ),
    Entry(
        "location-aware",
        "past",
        past.LocationAware,
        "U (F ∗ a_{t−1}) enters e_t",
        "Chorowski 2015 §2.2",
        "knows where it looked last",
    ),
    Entry("global", "reach", reach.Global, "all visible s", "Luong 2015 §3.1", "every place"),
    Entry(
        "local-m",
        "reach",
        reach.LocalM,
        "|s − min(t, S−1)| ≤ d",
        "Luong 2015 §3.2",
        "a window that moves with the step",
    ),
    Entry(
        "local-p",
        "reach",
        reach.LocalP,
        "|s − p_t| ≤ d, a·exp(−(s−p_t)²/2σ²), p_t = (S−1)σ(v·tanh(W q))",
        "Luong 2015 eq. 9-10",
        "a window around a predicted place",
    ),
    Entry(
        "fixed-window",
        "reach",
        reach.FixedWindow,
        "|s − t| ≤ d",
        "Beltagy 2020 §3.1",
        "self-attention among neighbours",
    ),
    Entry(
        "expanded-window",
        "reach",
        reach.ExpandedWindow,
        "|s − t| ≤ d one by one; a far block: e(q, mean k) + log n, mean v",
        "after Beltagy 2020 and Zhu 2021",
        "near places one by one, far ones by the block",
    ),
    Entry(
        "mixed",
        "reach",
        Mixed,
        "c = g c_global + (1−g) c_local-p",
        "Luong 2015 §3, combined",
        "global and local-p, blended by a gate",
    ),
    Entry(
        "static",
        "reach",
        reach.Static,
        "one query for the whole text",
        "Yang 2016 §2.2",
        "a text becomes a vector",
    ),
    Entry("softmax", "align", align.Softmax, "exp(e) / Σ exp(e)", "Bridle 1990", "a distribution"),
    Entry(
        "sparsemax",
        "align",
        align.Sparsemax,
        "argmin_p ‖p − e‖²",
        "Martins 2016",
        "a distribution with exact zeros",
    ),
    Entry(
        "entmax",
        "align",
        align.Entmax,
        "[e/2 − τ]₊²",
        "Peters 2019",
        "between softmax and sparsemax, α = 1.5",
    ),
    Entry(
        "argmax",
        "align",
        align.Argmax,
        "1[s = argmax e]",
        "Bengio 2013",
        "hard; learns straight through",
    ),
    Entry(
        "sample",
        "align",
        align.Sample,
        "s ~ Categorical(softmax e)",
        "Xu 2015 §4.1",
        "hard; learns by REINFORCE",
    ),
    Entry(
        "gumbel",
        "align",
        align.Gumbel,
        "argmax(e + g), gradient of softmax((e + g)/τ)",
        "Jang 2017",
        "hard draws; learns straight through",
    ),
    Entry(
        "forward",
        "align",
        moving.Forward,
        "a_t(s) ∝ (a_{t−1}(s) + a_{t−1}(s−1)) exp(e)",
        "Zhang 2018 §3",
        "stays or advances by one",
    ),
    Entry(
        "forced-forward",
        "align",
        moving.ForcedForward,
        "a_t(s) ∝ exp(e) (1 − min(1, cov)) Σ_{s'≤s} a_{t−1}(s')",
        "after Zhang 2018 and See 2017",
        "hardly uses a place again, and moves on",
    ),
    Entry(
        "monotonic",
        "align",
        moving.Monotonic,
        "q_j = (1 − p_{j−1}) q_{j−1} + a_{t−1,j}, a_j = p_j q_j",
        "Raffel 2017",
        "reads left to right, never back; rows may sum to less than one",
    ),
    Entry(
        "mixture-window",
        "align",
        moving.MixtureWindow,
        "Σ_k α_k exp(−β_k (κ_k − s)²), κ only grows",
        "Graves 2013 §5.1",
        "soft windows that move forward; looks at no key",
        blind=True,
    ),
    Entry("blend", "read", read.Blend, "Σ_s a_s v_s", "Bahdanau 2015 eq. 5", "gathers values"),
    Entry(
        "pointer",
        "read",
        read.Pointer,
        "a itself",
        "Vinyals 2015 §2.3",
        "the distribution over the input is the answer",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
