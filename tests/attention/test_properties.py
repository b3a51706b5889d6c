"""Properties of every mechanism, for shapes, masks, dtypes and memory layouts drawn by hypothesis.

Each example is a mechanism on heads, with shapes, a mask composed of predicates, a dtype, and a
layout for each tensor. Random numbers come from a seed that is part of the example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import heed
from heed import Visible
from heed.attention.catalogue import CATALOGUE
from heed.attention.names import build
from heed.kernels import KERNELS
from heed.visible import Places
from tests.attention.cases import NAMES, Case, claims, takes

DOUBLE, HALVES = torch.float64, (torch.bfloat16, torch.float16)
DTYPES = (DOUBLE, torch.float32, *HALVES)
FIRST = heed.State(0, origin=0)

WORDS = {name: set(name.split("/")) for name in NAMES}
JUMPS = {"local-p", "mixed", "sparsemax", "entmax"} | {
    name for name, entry in CATALOGUE.items() if not entry.claims.is_differentiable
}
"""Where the last digit of an energy can move a whole weight: only float64 makes that unlikely."""

# The dot family with softmax, which a fused kernel serves.
FUSED = ("dot", "scaled-dot", "general", "key-value", "cosine", "local-m", "fixed-window",
         "expanded-window", "expanded-window/general")  # fmt: skip

Order = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mask:
    """A predicate that can be made for some of the queries, and for rows in another order."""

    text: str
    make: Callable[[slice, Order], Visible]

    def __repr__(self) -> str:
        return self.text

    def __and__(self, other: Mask) -> Mask:
        return Mask(f"({self} & {other})", lambda t, o: self.make(t, o) & other.make(t, o))

    def __or__(self, other: Mask) -> Mask:
        return Mask(f"({self} | {other})", lambda t, o: self.make(t, o) | other.make(t, o))

    def __invert__(self) -> Mask:
        return Mask(f"~{self}", lambda t, o: ~self.make(t, o))


@dataclass(frozen=True)
class Example:
    """One drawn call."""

    name: str
    B: int
    H: int
    G: int
    T: int
    S: int
    widths: tuple[int, int, int]  # of queries, keys and values
    dtype: torch.dtype
    mask: Mask | None
    layouts: tuple[str, str, str]
    seed: int

    @property
    def words(self) -> set[str]:
        return WORDS[self.name]

    @property
    def steps(self) -> bool:
        return claims(self.name).has_steps

    @cached_property
    def mechanism(self) -> Any:
        """In training mode, unless that is random."""
        torch.manual_seed(self.seed)
        M, K, R = self.widths
        options = Case(self.name).options
        sizes = {"query": M, "key": K, "value": R, "heads": self.H, "groups": self.G}
        made = build(self.name, **sizes, **options)
        return made.to(self.dtype).train(not Case(self.name).draws)

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each in its layout."""
        torch.manual_seed(self.seed + 1)
        M, K, R = self.widths
        shapes = (
            (self.B, self.H, self.T, M),
            (self.B, self.G, self.S, K),
            (self.B, self.G, self.S, R),
        )
        q, k, v = (
            LAYOUTS[layout](shape, self.dtype)
            for layout, shape in zip(self.layouts, shapes, strict=True)
        )
        return q, k, v

    def visible(self, rows: slice = slice(None), order: Order = lambda x: x) -> Visible | None:
        return None if self.mask is None else self.mask.make(rows, order)

    def table(self, origin: int | None = None) -> Tensor:
        """The mask, as the caller gave it.    B H T S"""
        shape = (self.B, self.H, self.T, self.S)
        visible = self.visible()
        if visible is None:
            return torch.ones(shape, dtype=torch.bool)
        begin = self.S - self.T if origin is None else origin
        return visible.dense(Places(self.T, self.S, 0, begin, torch.get_default_device())).expand(
            shape
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> heed.Attended:
        memory = self.mechanism.remember(k, v)
        seen: heed.Attended = self.mechanism(q, memory, **{"visible": self.visible(), **more})
        return seen

    def close(self, got: Tensor, want: Tensor, times: float = 1.0) -> None:
        """Equal up to the order of summation."""
        eps = torch.finfo(self.dtype).eps if want.dtype == self.dtype else 2 * 1.2e-7
        if self.dtype in HALVES:  # rounded projections move float32 weights by their epsilon
            eps = torch.finfo(self.dtype).eps
        size = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got, want, rtol=0, atol=times * 64 * eps * size)


def contiguous(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE).to(dtype)


def transposed(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """B T H D viewed as B H T D, as heads are split."""
    B, H, T, D = shape
    return contiguous((B, T, H, D), dtype).transpose(1, 2)


def columns_first(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The features are the slowest axis."""
    B, H, T, D = shape
    return contiguous((D, B, H, T), dtype).permute(1, 2, 3, 0)


def expanded_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """One row of the batch, expanded: a stride of zero."""
    return contiguous((1, *shape[1:]), dtype).expand(shape)


def expanded_heads(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    B, _, T, D = shape
    return contiguous((B, 1, T, D), dtype).expand(shape)


def sliced(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The middle of a larger tensor: a storage offset and gaps along every axis."""
    larger = contiguous(tuple(n + 3 for n in shape), dtype)
    return larger[tuple(slice(1, n + 1) for n in shape)]


def strided(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Every other position and feature."""
    B, H, T, D = shape
    return contiguous((B, H, 2 * T, 2 * D), dtype)[:, :, 1::2, ::2]


LAYOUTS = {
    f.__name__: f
    for f in (
        contiguous,
        transposed,
        columns_first,
        expanded_rows,
        expanded_heads,
        sliced,
        strided,
    )
}


@st.composite
def masks(draw: st.DrawFn, B: int, H: int, T: int, S: int, depth: int = 2) -> Mask:
    """Predicates and compositions of them."""
    if depth and draw(st.integers(0, 2)) == 0:
        how = draw(st.sampled_from("&|~"))
        one = draw(masks(B, H, T, S, depth - 1))
        if how == "~":
            return ~one
        two = draw(masks(B, H, T, S, depth - 1))
        return one & two if how == "&" else one | two
    kind = draw(
        st.sampled_from(["lengths", "keys", "causal", "window", "table", "heads", "packed"])
    )
    if kind == "causal":
        return Mask("causal", lambda t, o: heed.causal())
    if kind == "window":
        half = draw(st.integers(0, 4))
        return Mask(f"window {half}", lambda t, o: heed.window(half))
    if kind == "lengths":
        count = torch.tensor(draw(st.lists(st.integers(0, S), min_size=B, max_size=B)))
        return Mask(f"lengths {count.tolist()}", lambda t, o: heed.lengths(o(count)))
    noise = torch.Generator(torch.get_default_device()).manual_seed(draw(st.integers(0, 99)))
    if kind == "packed":
        ids = torch.randint(3, (B, S), generator=noise)
        asking = torch.randint(3, (B, T), generator=noise)
        return Mask("packed", lambda t, o: Visible.packed(o(ids), o(asking)[:, t]))
    if kind == "keys":
        table = torch.rand(B, S, generator=noise) > 0.4
        return Mask("keys", lambda t, o: Visible.keys(o(table)))
    shape = (B, H, T, S) if kind == "heads" else (B, T, S)
    table = torch.rand(shape, generator=noise) > 0.4
    table &= torch.rand(*shape[:-1], 1, generator=noise) > 0.3  # some rows see nothing
    return Mask(kind, lambda t, o: Visible.mask(o(table)[..., t, :]))


@st.composite
def examples(
    draw: st.DrawFn,
    names: tuple[str, ...] = NAMES,
    layouts: tuple[str, ...] = ("contiguous",),
    masked: bool = False,
    steady: bool = False,
) -> Example:
    """masked: there must be a mask; steady: float64 where rounding could move a weight."""
    name = draw(st.sampled_from(names))
    H, G = draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2)]))
    B, S = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    T = draw(st.integers(1, 7)) if claims(name).takes_several else 1
    M, K, R = (draw(st.integers(1, 7)) for _ in "MKR")
    score = Case(name).parts["score"]
    if claims(name).uses_energies:
        K = K if takes(score, M, K, K) else M
        R = R if takes(score, M, K, R) else K
    dtypes = (DOUBLE,) if steady and WORDS[name] & JUMPS else DTYPES
    mask = draw(masks(B, H, T, S)) if masked or draw(st.integers(0, 4)) else None
    return Example(
        name, B, H, G, T, S, (M, K, R), draw(st.sampled_from(dtypes)), mask,
        (draw(st.sampled_from(layouts)), draw(st.sampled_from(layouts)),
         draw(st.sampled_from(layouts))),
        draw(st.integers(0, 999)),
    )  # fmt: skip


def many(n: int) -> settings:
    return settings(max_examples=n, derandomize=True, deadline=None, database=None)


def leaves(example: Example) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in example.inputs]


def gradients(of: Tensor, example: Example, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the inputs, then of the parameters; zero where there is no path."""
    wanted = [*inputs, *example.mechanism.parameters()]
    found = torch.autograd.grad(of, wanted, allow_unused=True, materialize_grads=True)
    return list(found)


@pytest.mark.parametrize("name", NAMES)
@many(5)
@given(st.data())
def test_weights_are_consistent(name: str, data: st.DataObject) -> None:
    example = data.draw(examples((name,)), "example")
    q, k, v = example.inputs
    seen = example.run(q, k, v, need="weight")
    weight, ok = seen.weight, example.table()
    assert weight.shape == ok.shape
    assert weight.dtype == (DOUBLE if example.dtype == DOUBLE else torch.float32)
    assert torch.isfinite(weight).all()
    assert (weight >= 0).all()
    assert not weight[~ok].any()
    sums(example, seen, ok)
    if not claims(example.name).gives_context:
        return
    wide = v.to(weight.dtype).repeat_interleave(example.H // example.G, 1)
    assert seen.context.dtype == example.dtype
    example.close(seen.context, (weight @ wide).to(example.dtype))
    assert not seen.context[~ok.any(-1)].any()
    if not example.words & JUMPS or example.dtype == DOUBLE:
        example.close(example.run(q, k, v).context, seen.context)


def sums(example: Example, seen: heed.Attended, ok: Tensor) -> None:
    """Rows sum to what the parts claim."""
    mass, near = seen.mass, 1e-5
    claimed = claims(example.name).mass
    if claimed == "any":
        return
    assert (mass <= 1 + near).all()
    if claimed == "at most one":
        return
    one, none = (mass - 1).abs() <= near, mass == 0
    assert (one | none).all()
    parts = Case(example.name).parts
    walks = CATALOGUE[parts["align"]].claims.needs_line  # all that is visible may lie behind it
    if not walks and parts["reach"] in ("global", "static"):  # others hide keys of their own
        assert one[ok.any(-1)].all()


@many(110)
@given(examples(masked=True))
def test_a_query_that_sees_nothing_reads_zero_and_has_zero_gradients(example: Example) -> None:
    hidden = ~example.table().any(-1)
    if not claims(example.name).gives_context:
        return
    for need in ("context", "weight"):
        inputs = leaves(example)
        context = example.run(*inputs, need=need).context
        assert not context[hidden].any()
        loss = torch.randn_like(context)
        for grad in gradients((context * loss)[hidden].sum(), example, inputs):
            assert torch.equal(grad, torch.zeros_like(grad))
        context = example.run(*inputs, need=need).context
        for grad in gradients((context * loss).sum(), example, inputs):
            assert torch.isfinite(grad).all()


@many(80)
@given(examples(masked=True), st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_keys_hidden_from_all_queries_change_no_bit(example: Example, poison: float) -> None:
    q, k, v = example.inputs
    unseen = ~example.table().any(2).any(1)[:, None, :, None]
    bad = [x.masked_fill(unseen, poison) for x in (k, v)]
    for need in ("context", "weight"):
        good, got = example.run(q, k, v, need=need), example.run(q, *bad, need=need)
        if claims(example.name).gives_context:
            assert torch.equal(got.context, good.context)
        if need == "weight":
            assert torch.equal(got.weight, good.weight)


@many(110)
@given(examples(FUSED))
def test_a_kernel_agrees_with_the_reference(example: Example) -> None:
    """Errors against float64: twice the reference's at most (gradients: thrice), or a few eps."""
    torch.manual_seed(example.seed + 2)
    shape = (example.B, example.H, example.T, example.widths[2])
    loss = torch.randn(shape, dtype=DOUBLE).to(example.dtype)

    def answer(case: Example, inputs: list[Tensor]) -> list[Tensor]:
        seen = case.run(*inputs)
        got = seen.context
        return [got, *gradients((got * loss.to(got.dtype)).sum(), case, inputs)]

    fast = answer(example, leaves(example))
    assert example.run(*example.inputs).kernel != "reference"
    with heed.kernels.off(*KERNELS):
        slow = answer(example, leaves(example))
        wide = replace(example, dtype=DOUBLE)
        wide.mechanism.load_state_dict(example.mechanism.state_dict())
        exact = answer(wide, [x.detach().double().requires_grad_() for x in example.inputs])
    for i, (x, y, z) in enumerate(zip(fast, slow, exact, strict=True)):
        times, epsilons = (2, 4) if i == 0 else (3, 16)
        if example.dtype == DOUBLE:  # there is no wider dtype to compare with: both twins round
            epsilons *= 8
        floor = epsilons * torch.finfo(example.dtype).eps * max(1.0, z.abs().max().item())
        allowed = max(times * (y.double() - z).abs().max().item(), floor)
        assert (x.double() - z).abs().max().item() <= allowed


@many(150)
@given(examples(layouts=tuple(LAYOUTS), steady=True))
def test_the_memory_layout_does_not_matter(example: Example) -> None:
    awkward = example.inputs
    plain = [x.contiguous() for x in awkward]
    context = claims(example.name).gives_context
    for need in ("context", "weight"):
        got, want = example.run(*awkward, need=need), example.run(*plain, need=need)
        if context:
            example.close(got.context, want.context)
        if need == "weight":
            example.close(got.weight, want.weight)
    if context and example.dtype in (DOUBLE, torch.float32):
        same_gradients(example, awkward, plain)


def same_gradients(example: Example, awkward: tuple[Tensor, ...], plain: list[Tensor]) -> None:
    grads = []
    for given_inputs in (awkward, plain):
        inputs = [x.detach().requires_grad_() for x in given_inputs]
        grads.append(gradients(example.run(*inputs).context.sum(), example, inputs))
    for got, want in zip(*grads, strict=True):
        example.close(got, want, 16)


@pytest.mark.parametrize("name", [name for name in NAMES if claims(name).has_steps])
@many(5)
@given(st.data())
def test_splitting_the_queries_anywhere_gives_the_same(name: str, data: st.DataObject) -> None:
    example = data.draw(examples((name,), steady=True), "example")
    q, k, v = example.inputs
    cuts = data.draw(
        st.lists(st.integers(0, example.T), min_size=1, max_size=3).map(sorted), "cuts"
    )
    whole = example.run(q, k, v, state=FIRST, need="weight")
    state, contexts, weights = FIRST, [], []
    for begin, end in zip([0, *cuts], [*cuts, example.T], strict=True):
        rows = slice(begin, end)
        seen = example.run(q[:, :, rows], k, v, state=state, visible=example.visible(rows),
                           need="weight")  # fmt: skip
        state = seen.state
        weights.append(seen.weight)
        contexts.append(seen.context if claims(example.name).gives_context else seen.weight)
    assert (state.step, state.origin) == (example.T, 0)
    example.close(torch.cat(weights, 2), whole.weight)
    if claims(example.name).gives_context:
        example.close(torch.cat(contexts, 2), whole.context)


@many(80)
@given(examples(steady=True), st.data())
def test_a_row_alone_equals_the_row_in_a_padded_batch(
    example: Example, data: st.DataObject
) -> None:
    q, k, v = example.inputs
    state = FIRST if example.steps else None
    sizes = st.lists(st.integers(0, example.S), min_size=example.B, max_size=example.B)
    count = data.draw(sizes, "lengths")
    causal = data.draw(st.booleans(), "causal") and example.steps
    visible = heed.causal() & heed.lengths(count) if causal else heed.lengths(count)
    batch = example.run(q, k, v, state=state, visible=visible, need="weight")
    for b, n in enumerate(count):
        row = slice(b, b + 1)
        alone = example.run(q[row], k[row, :, :n], v[row, :, :n], state=state,
                            visible=heed.causal() if causal else None, need="weight")  # fmt: skip
        example.close(batch.weight[row, ..., :n], alone.weight)
        assert not batch.weight[row, ..., n:].any()
        if claims(example.name).gives_context:
            example.close(batch.context[row], alone.context)


@many(80)
@given(examples(steady=True), st.data())
def test_reordering_rows_reorders_the_results(example: Example, data: st.DataObject) -> None:
    q, k, v = example.inputs
    order = torch.tensor(data.draw(st.permutations(range(example.B)), "order"))
    moved = [x[order] for x in (q, k, v)]
    for need in ("context", "weight"):
        whole = example.run(q, k, v, need=need)
        visible = example.visible(order=lambda x: x[order])
        got = example.run(*moved, visible=visible, need=need)
        if claims(example.name).gives_context:
            example.close(got.context, whole.context[order])
        if need == "weight":
            example.close(got.weight, whole.weight[order])
