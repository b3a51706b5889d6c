"""Every name: its part and source. A closed table: a name can never import anything."""

from dataclasses import dataclass
from functools import reduce
from operator import and_

from heed.attention import align, moving_aligns, past, reach, read, score
from heed.attention.mixed import Mixed
from heed.attention.part import Part, Slot
from heed.records import Claims


class Called:
    """Names of the literature for what heed calls by other words."""

    __slots__ = ()
    also: str  # these words, in English and Chinese, with commas between

    @property
    def synonyms(self) -> tuple[str, ...]:
        """The words that lead to it. They are no names: each part has one."""
        return tuple(self.also.split(", "))


@dataclass(frozen=True, slots=True)
class Entry(Called):
    """One name of the catalogue."""

    part: type[Part] | type[Mixed]
    source: str
    about: str
    also: str
    lanes: tuple[str, ...] = ()  # the reaches that it mixes

    @property
    def name(self) -> str:
        """As a user writes it."""
        return self.part.name

    @property
    def slot(self) -> Slot:
        """The slot of a mechanism that it fills."""
        return self.part.slot

    @property
    def formula(self) -> str:
        """The formula of its part."""
        return self.part.formula or ""

    @property
    def parts(self) -> tuple[type[Part], ...]:
        """The parts that it stands for."""
        if issubclass(self.part, Part):
            return (self.part,)
        return tuple(part for lane in self.lanes for part in CATALOGUE[lane].parts)

    @property
    def claims(self) -> Claims:
        """Its abilities and needs, as its parts declare."""
        return reduce(and_, (part.claims for part in self.parts))


@dataclass(frozen=True, slots=True)
class Beside(Called):
    """A technique often called an attention that is here a use of any mechanism."""

    name: str  # as a user writes it
    about: str
    also: str


DEFAULTS: dict[Slot, str | None] = {
    "score": "scaled-dot",
    "past": None,
    "reach": "global",
    "align": "softmax",
    "read": "blend",
}

_ENTRIES = (
    Entry(
        score.Dot,
        "Luong 2015 §3.1",
        "how far they point the same way",
        "luong, dot product, inner product, multiplicative, content-based, 点积, 点乘, 内积, 乘性",
    ),
    Entry(
        score.ScaledDot,
        "Vaswani 2017 eq. 1",
        "dot, kept from growing with the width",
        "vaswani, scaled dot product, dot product, sdpa, transformer, multiplicative, "
        "缩放点积, 点积, 点乘, 内积, 乘性",
    ),
    Entry(
        score.General,
        "Luong 2015 §3.1",
        "bilinear: a learned map between query and key",
        "luong, bilinear, multiplicative, content-based, 双线性, 乘性, 一般",
    ),
    Entry(
        score.Additive,
        "Bahdanau 2015 A.1.2",
        "a small network compares them",
        "bahdanau, mlp, perceptron, feed-forward, tanh, rnnsearch, content-based, "
        "加性, 加法, 感知机, 前馈",
    ),
    Entry(
        score.Concat,
        "Luong 2015 §3.1",
        "additive, drawn as one matrix",
        "luong, concatenation, mlp, tanh, content-based, 拼接",
    ),
    Entry(
        score.ConcatIdentity,
        "Luong 2015, released code",
        "concat with half of W fixed to the identity",
        "luong code, identity, 恒等",
    ),
    Entry(
        score.Location,
        "Luong 2015 §3.1",
        "places chosen from the query alone",
        "luong, location-based, position-based, 位置, 基于位置",
    ),
    Entry(
        score.KeyValue,
        "after Miller 2016",
        "the value takes part in the comparison",
        "miller, key-value memory, memory network, 键值, 记忆网络",
    ),
    Entry(
        score.Cosine,
        "Graves 2014 §3.3.1",
        "angle alone",
        "graves, content-based, content addressing, ntm, neural turing machine, "
        "cosine similarity, 余弦, 余弦相似度, 图灵机",
    ),
    Entry(
        score.Relative,
        "Dai 2019 §3.3, Yang 2019",
        "content and distance",
        "dai, transformer-xl, xlnet, relative position, 相对, 相对位置, 位置",
    ),
    Entry(
        past.Coverage,
        "See 2017 §2.3",
        "knows what has been looked at; penalty Σ min(a, cov)",
        "see, pointer-generator, 覆盖, 覆盖度",
    ),
    Entry(
        past.LocationAware,
        "Chorowski 2015 §2.2",
        "knows where it looked last",
        "chorowski, location-sensitive, hybrid, convolutional, tacotron, "
        "位置敏感, 位置感知, 位置, 混合, 卷积",
    ),
    Entry(
        reach.Global,
        "Luong 2015 §3.1",
        "every place",
        "luong global, full, all keys, unrestricted, 全局, 完全",
    ),
    Entry(
        reach.LocalM,
        "Luong 2015 §3.2",
        "a window that moves with the step",
        "luong, local, monotonic local, local monotonic, 局部, 单调局部, 局部单调, 单调",
    ),
    Entry(
        reach.LocalP,
        "Luong 2015 eq. 9-10",
        "a window around a predicted place",
        "luong, local, predictive, local predictive, gaussian, 局部, 预测, 局部预测, 高斯",
    ),
    Entry(
        reach.FixedWindow,
        "Beltagy 2020 §3.1",
        "self-attention among neighbours",
        "beltagy, longformer, sliding window, banded, local, neighbourhood, neighborhood, "
        "滑动窗口, 固定窗口, 窗口, 局部",
    ),
    Entry(
        reach.ExpandedWindow,
        "after Beltagy 2020 and Zhu 2021",
        "near places one by one, far ones by the block",
        "longformer, long-short, zhu, block, pooled, hierarchical, 扩展窗口, 窗口, 分块",
    ),
    Entry(
        Mixed,
        "Luong 2015 §3, combined",
        "global and local-p, blended by a gate",
        "hybrid, gated, global and local, local and global, 混合, 门控, 全局局部",
        lanes=("global", "local-p"),
    ),
    Entry(
        reach.Static,
        "Yang 2016 §2.2",
        "a text becomes a vector",
        "yang, han, hierarchical, pooling, attentive pooling, self-attentive, learned query, "
        "静态, 池化, 层次",
    ),
    Entry(
        align.Softmax,
        "Bridle 1990",
        "a distribution",
        "soft, deterministic, dense, boltzmann, bridle, 软, 柔性, 确定性",
    ),
    Entry(
        align.Sparsemax,
        "Martins 2016",
        "a distribution with exact zeros",
        "sparse, martins, simplex projection, 稀疏",
    ),
    Entry(
        align.Entmax,
        "Peters 2019",
        "between softmax and sparsemax, α = 1.5",
        "sparse, peters, tsallis, entmax15, alpha-entmax, 稀疏",
    ),
    Entry(
        align.Argmax,
        "Bengio 2013",
        "hard; learns straight through",
        "hard, straight-through, ste, one-hot, maximum, 硬, 硬性, 最大值",
    ),
    Entry(
        align.Sample,
        "Xu 2015 §4.1",
        "hard; learns by REINFORCE",
        "hard, stochastic, xu, reinforce, monte carlo, sampling, show attend and tell, "
        "硬, 硬性, 随机, 采样, 抽样",
    ),
    Entry(
        align.Gumbel,
        "Jang 2017",
        "hard draws; learns straight through",
        "hard, stochastic, gumbel-softmax, jang, maddison, concrete, straight-through, "
        "硬, 硬性, 随机",
    ),
    Entry(
        moving_aligns.Forward,
        "Zhang 2018 §3",
        "stays or advances by one",
        "zhang, tts, stay or advance, 前向, 单调",
    ),
    Entry(
        moving_aligns.ForcedForward,
        "after Zhang 2018 and See 2017",
        "hardly uses a place again, and moves on",
        "zhang, forced monotonic, 强制前向, 单调",
    ),
    Entry(
        moving_aligns.Monotonic,
        "Raffel 2017",
        "reads left to right, never back; rows may sum to less than one",
        "raffel, hard monotonic, monotone, online, streaming, 单调, 硬单调, 流式",
    ),
    Entry(
        moving_aligns.MixtureWindow,
        "Graves 2013 §5.1",
        "soft windows that move forward; looks at no key",
        "graves, gmm, gaussian mixture, mixture of gaussians, gaussian, soft window, "
        "高斯混合, 混合高斯, 高斯, 混合",
    ),
    Entry(
        read.Blend,
        "Bahdanau 2015 eq. 5",
        "gathers values",
        "weighted sum, weighted average, expectation, context vector, 加权和, 加权平均, 上下文向量",
    ),
    Entry(
        read.Pointer,
        "Vinyals 2015 §2.3",
        "the distribution over the input is the answer",
        "vinyals, pointer network, ptr-net, pointer-generator, copy, copying, "
        "指针, 指针网络, 复制, 拷贝",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}

BESIDE = (
    Beside(
        "heed.MultiHeadAttention(width, heads, mechanism=...)",
        "any mechanism in several heads",
        also="multi-head, multihead, mha, self-attention, intra-attention, 多头, 自注意力",
    ),
    Beside(
        "heed.MultiHeadAttention(width, heads, groups=...)",
        "heads that share keys and values; groups=1 is multi-query attention",
        also="grouped-query, gqa, multi-query, mqa, 分组查询, 多查询",
    ),
    Beside(
        "attend(x, attend.remember(x))",
        "any mechanism asked about the queries' own text",
        also="self-attention, intra-attention, 自注意力",
    ),
    Beside(
        "attend(query, attend.remember(keys, values))",
        "any mechanism asked about another text",
        also="cross-attention, encoder-decoder attention, 交叉注意力, 编码器-解码器注意力",
    ),
    Beside(
        "visible=heed.causal()",
        "in a call of any mechanism: no query sees the keys after it",
        also="causal, masked, autoregressive, unidirectional, 因果, 掩码",
    ),
    Beside(
        "heed.MultiHeadAttention(..., position=Rotary())",
        "positions inside the heads, from heed.attention.position; or ALiBi(heads=...)",
        also="rotary, rope, alibi, 旋转",
    ),
    Beside(
        "heed.kernels",
        "what computes a mechanism fast, chosen by itself: heed list kernels",
        also="flash, memory-efficient, fused, xformers, 闪存",
    ),
)
"""Words for attention that name no part, and what a user writes instead."""
