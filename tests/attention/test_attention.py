"""Attention on B T M: memories and states of other attentions, and common mistakes."""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.head_groups import HeadGroups
from heed.attention.names import build
from heed.attention.position import ALiBi, Rotary
from heed.errors import HeedError, Refused, ShapeError

M = 8
NAN = float("nan")


def test_a_memory_belongs_to_the_attention_that_made_it() -> None:
    x = torch.randn(2, 5, M)
    one, two = (heed.MultiHeadAttention(M, 2) for _ in range(2))
    assert one(x, one.remember(x).extend(x).select(torch.tensor([1, 0]))).context.shape == x.shape
    shared = heed.MultiHeadAttention(M, 2, mechanism=one.mechanism)
    for other in (two, shared, heed.Attention("scaled-dot", query=M)):
        with pytest.raises(Refused, match="made by another attention"):
            other(x, one.remember(x))


@torch.no_grad()
def test_a_wrapped_mechanism_recognises_its_memories() -> None:
    x = torch.randn(2, 5, M)
    for name in ("additive", "mixed"):
        attend = heed.Attention(name, query=M)
        expected = attend(x, attend.remember(x)).context
        attend.mechanism = torch.compile(attend.mechanism, backend="eager")
        torch.testing.assert_close(attend(x, attend.remember(x)).context, expected)
    copied = deepcopy(heed.Attention("additive", query=M))
    assert copied(x, copied.remember(x)).context.shape == x.shape


def test_numpy_numbers_are_accepted() -> None:
    three = np.int64(3)
    assert heed.Attention("local-m", query=M, window=three).mechanism.reach.window == 3
    assert heed.MultiHeadAttention(np.int64(M), 2, dropout=np.float32(0.5)).head_dim == 4
    assert heed.window(three) == heed.window(3)
    for wrong in (True, 2.0, "3"):
        with pytest.raises(Refused, match="whole number"):
            heed.Attention("local-m", query=M, window=wrong)


def test_a_record_can_be_replaced_as_any_dataclass() -> None:
    seen = heed.Attention("additive", query=M)(torch.randn(2, 3, M), need="weight")
    again = replace(seen, kernel="copied")
    assert again.context is seen.context
    assert again.weight is seen.weight
    assert again.kernel == "copied"


def test_keys_after_the_last_query_may_hold_nan() -> None:
    layer, keys = heed.MultiHeadAttention(M, 2), torch.randn(2, 6, M)
    keys[:, 4:] = NAN
    seen = layer(torch.randn(2, 4, M), keys, heed.State(), visible=heed.causal())
    seen.context.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_a_state_belongs_to_the_mechanism_that_made_it() -> None:
    x = torch.randn(2, 5, M)
    coverage, forward, mixture = (
        heed.Attention(name, query=M) for name in ("coverage/additive", "forward", "mixture-window")
    )
    state = forward(x[:, :1], forward.remember(x)).state
    for other in (coverage, mixture):
        with pytest.raises(Refused, match="holds forward: it was made by another mechanism"):
            other(x[:, :1], other.remember(x), state)
    with pytest.raises(ShapeError, match=r"B=2 rows, the query B=4; .*state\.repeat"):
        forward(x[:, :1].repeat(2, 1, 1), forward.remember(x.repeat(2, 1, 1)), state)
    with pytest.raises(ShapeError, match="B=2 rows, the query B=1"):
        forward(x[:1, :1], forward.remember(x[:1]), state)


HIDDEN = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])  # B S
WAYS: dict[str, heed.Visible] = {
    "packed": heed.Visible.packed(HIDDEN.long(), torch.zeros(2, 5).long()),
    "not a mask": ~heed.Visible.mask(HIDDEN[:, None].expand(2, 5, 6)),
    "masks": heed.Visible.mask(~HIDDEN[:, None].expand(2, 5, 6))
    | heed.Visible.mask(~HIDDEN[:, None, None].expand(2, 1, 5, 6)),
    "lengths": heed.lengths([6, 4]),
}


@pytest.mark.parametrize("way", WAYS)
def test_nan_that_a_call_hides_does_not_reach_gradients(way: str) -> None:
    layer, x, keys = heed.MultiHeadAttention(M, 2), torch.randn(2, 5, M), torch.randn(2, 6, M)
    keys[HIDDEN] = NAN
    layer(x, keys, visible=WAYS[way]).context.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("need", ["context", "weight"])
def test_a_query_that_sees_nothing_may_hold_nan(need: Any) -> None:
    q, k, v = (torch.randn(1, 1, 4, M) for _ in range(3))
    q[0, 0, 1] = NAN
    ok = torch.ones(4, 4, dtype=torch.bool)
    ok[1] = False
    tensors = [x.requires_grad_() for x in (q, k, v)]
    seen = heed.attend(*tensors, visible=ok, need=need)
    assert seen.context[0, 0, 1].eq(0).all()
    seen.context.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)


class Top(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.linear = heed.MultiHeadAttention(M, 2), nn.Linear(M, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.attend(x).context).sum()


def test_tensors_in_records_are_found_by_traversal() -> None:
    seen = heed.Attention("coverage/additive", query=M)(torch.randn(2, 3, M), need="energy")
    leaves = [x for x in tree_leaves(seen) if isinstance(x, torch.Tensor)]
    assert any(x is seen.context for x in leaves)
    assert any(x is seen.state.slots["coverage"] for x in leaves)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of views, as for a Linear
def test_fully_sharded() -> None:
    """FSDP2 hooks the tensors of every module's output: it must find them in the record."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with torch.device("cpu"):
            plain, x = Top(), torch.randn(2, 5, M)
        sharded = deepcopy(plain)
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(sharded.attend, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        for model in (plain, sharded):
            model(x).backward()
        for theirs, ours in zip(plain.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
    finally:
        destroy_process_group()


X, L = torch.randn(2, 5, M), heed.MultiHeadAttention(M, 2)
SLIPS: dict[str, Callable[[], Any]] = {
    "lengths as values": lambda: L.remember(X, heed.lengths([5, 3])),  # type: ignore[arg-type]
    "a predicate as memory": lambda: L(X, heed.causal()),  # type: ignore[arg-type]
    "a list of keys": lambda: L.remember(X.tolist()),  # type: ignore[arg-type]
    "a list of queries": lambda: L(X.tolist(), L.remember(X)),  # type: ignore[arg-type]
    "whole numbers": lambda: heed.attend(*[X[:, None].long()] * 3),
    "memory and query swapped": lambda: L(L.remember(X), X),  # type: ignore[arg-type]
    "another precision": lambda: heed.Attention("dot", query=M)(
        X.double(), heed.Attention("dot", query=M).remember(X)
    ),
    "lengths of nothing": lambda: heed.lengths(None),  # type: ignore[arg-type]
    "a ragged list": lambda: heed.lengths([[1], [1, 2]]),  # type: ignore[list-item]
    "a mask as a list": lambda: heed.Visible.keys([[True]]),  # type: ignore[arg-type]
    "a window of 2.0": lambda: heed.window(2.0),  # type: ignore[arg-type]
    "no name": lambda: heed.Attention(None, query=M),  # type: ignore[arg-type]
    "a rotary class": lambda: heed.MultiHeadAttention(M, 2, position=Rotary),  # type: ignore[arg-type]
    "rotary and an odd width": lambda: heed.MultiHeadAttention(6, 2, position=Rotary()),
    "other heads of ALiBi": lambda: heed.MultiHeadAttention(M, 2, position=ALiBi(heads=4)),
    "a query without axes": lambda: L(torch.randn(M), visible=heed.causal()),
    "keys without axes": lambda: L(X, torch.randn(M), visible=heed.causal()),
    "values of no width": lambda: heed.Attention("dot", query=M, value=0),
    "several mechanisms and shared keys": lambda: heed.MultiHeadAttention(
        M, 4, groups=2, mechanism=HeadGroups([(build("dot", query=2, key=2, heads=2), 2)] * 2)
    )(X),
    "groups from torch": lambda: heed.MultiHeadAttention.from_torch(
        nn.MultiheadAttention(M, 2, batch_first=True), groups=1
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_mistakes_are_refused_in_the_users_words(slip: str) -> None:
    with pytest.raises(HeedError):
        SLIPS[slip]()


WRONG = {
    "gumbel": {"temperature": 0.0},
    "cosine": {"sharpness": 0.0},
    "local-p": {"window": 2.5},
    "local-m": {"window": None},
    "fixed-window": {"window": NAN},
    "expanded-window": {"block": 0},
    "additive": {"width": 0},
    "relative": {"width": -2},
    "location": {"longest": 0},
    "location-aware": {"kernel": -1},
    "sample": {"soft": 2.0},
    "monotonic": {"noise": -1.0},
    "mixture-window": {"components": 0},
    "dot": {"dropout": 1.5},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_out_of_range_is_refused_by_name(name: str) -> None:
    (option,) = WRONG[name]
    with pytest.raises(Refused, match=option):
        heed.Attention(name, query=M, **WRONG[name])


ABSURD: dict[str, Callable[[int], Any]] = {
    "a width": lambda n: heed.Attention("additive", query=M, key=n),
    "embed_dim": lambda n: heed.MultiHeadAttention(n, 2),
    "num_heads": lambda n: heed.MultiHeadAttention(M, n),
    "groups": lambda n: heed.MultiHeadAttention(M, 2, groups=n),
    "block": lambda n: heed.Attention("expanded-window", query=M, block=n),
    "hidden": lambda n: heed.Attention("local-p", query=M, hidden=n),
    "width": lambda n: heed.Attention("relative", query=M, width=n),
    "longest": lambda n: heed.Attention("location", query=M, longest=n),
    "channels": lambda n: heed.Attention("location-aware", query=M, channels=n),
    "components": lambda n: heed.Attention("mixture-window", query=M, components=n),
    "sharpness": lambda n: heed.Attention("cosine", query=M, sharpness=n**100),
    "the number of copies": lambda n: heed.State().repeat(n),
    **{
        f"window of {name}": lambda n, name=name: heed.Attention(name, query=M, window=n)
        for name in ("local-m", "local-p", "fixed-window", "expanded-window", "mixed/dot")
    },
}


@pytest.mark.parametrize("size", [2**70, 10**5000], ids=["2**70", "10**5000"])
@pytest.mark.parametrize("name", ABSURD)
def test_absurd_sizes_are_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(Refused, match=name.split(" of ")[0]) as told:
        ABSURD[name](size)
    assert len(str(told.value)) < 120


@pytest.mark.parametrize("name", ["local-m", "local-p", "fixed-window", "expanded-window", "mixed"])
def test_the_largest_window_sees_every_key(name: str) -> None:
    x = torch.randn(2, 5, M)
    seen = heed.Attention(f"{name}/dot", query=M, window=2**31 - 1)(x, need="weight")
    assert (seen.weight > 0).all()


def test_values_of_another_width_are_refused_where_they_are_compared() -> None:
    attend, x = heed.Attention("key-value", query=M), torch.randn(2, 5, M)
    for values in (x[..., :6], x[..., :1], x[..., :0], torch.cat([x, x], -1)):
        with pytest.raises(ShapeError, match=f"wide as the keys: keys {M}, values"):
            attend.remember(x, values)


@pytest.mark.parametrize("mechanism", [None, 3, ["dot"], heed.Attention("dot", query=4)])
def test_what_is_no_mechanism_is_refused(mechanism: Any) -> None:
    x = torch.randn(2, 1, 5, 4)
    makers = (
        lambda: heed.attend(x, x, x, mechanism=mechanism),
        lambda: heed.attend(x, x, x, mechanism=mechanism, need="weight"),
        lambda: heed.Attention(mechanism, query=4),
        lambda: heed.MultiHeadAttention(4, 2, mechanism=mechanism),
    )
    for make in makers:
        with pytest.raises(Refused, match=f"a mechanism.*{type(mechanism).__name__}"):
            make()


@pytest.mark.parametrize("shape", [(2, 4), (2, 1), (1, 3), (2, 0), (3,), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("heads", [False, True])
def test_segments_of_another_length_are_refused(shape: tuple[int, ...], heads: bool) -> None:
    """Those of one row or one query would else be taken for all."""
    attend: Any = heed.Attention("relative", query=M, segments=True)
    if heads:
        attend = heed.MultiHeadAttention(M, 2, mechanism="relative", segments=True)
    query, keys, marks = torch.randn(2, 3, M), torch.randn(2, 5, M), torch.zeros(2, 5)
    memory = attend.remember(keys, segments=marks)
    with pytest.raises(ShapeError, match="segments"):
        attend(query, memory, segments=torch.zeros(shape))
    with pytest.raises(ShapeError, match="segments"):
        attend.remember(keys, segments=torch.zeros(shape))
    assert attend(query, memory, segments=marks[:, :3]).context.shape == query.shape


def test_alibi_distinguishes_distances_in_half_precision() -> None:
    layer = heed.MultiHeadAttention(M, 2, position=ALiBi(heads=2)).bfloat16()
    x = torch.zeros(1, 700, M, dtype=torch.bfloat16)
    weight = layer(x, visible=heed.causal(), need="weight").weight
    assert len(weight[0, 1, -1].unique()) > 500  # one for each distance, except the shortest ones


WIDE, NARROW = torch.float32, torch.bfloat16


@pytest.mark.parametrize("name", ["scaled-dot", "additive", "local-p", "sparsemax", "monotonic"])
def test_shapes_are_computed_on_meta(name: str) -> None:
    attend, x = heed.Attention(name, query=M).to("meta"), torch.randn(2, 70, M, device="meta")
    seen = attend(x, need="weight", statistics=True)
    assert seen.context.shape == (2, 70, M)
    assert seen.statistics.entropy.shape == (2, 1, 70)


@pytest.mark.parametrize("name", ["dot", "additive", "local-m/dot", "sparsemax/additive"])
def test_queries_and_memory_on_different_devices_are_refused(name: str) -> None:
    attend, x = heed.Attention(name, query=M), torch.randn(2, 70, M)
    memory = attend.remember(x)
    far = [replace(memory, **{each: x.to("meta")[:, None]}) for each in ("k", "v")]
    for query, other in ((x.to("meta"), memory), (x, far[0]), (x, far[1])):
        with pytest.raises(Refused, match=r"must be on one device; they are on \w+, \w+, \w+"):
            attend(query, other)
    if "additive" in name:
        with pytest.raises(Refused, match="inputs and weights must be on one device"):
            attend.to("meta")(x)


CURE = r"must share a dtype; they are torch\.\w+ and torch\.\w+: cast by \.to\(torch\.\w+\) or"


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("name", CATALOGUE)
def test_different_dtypes_are_named_with_the_remedy(name: str, step: bool) -> None:
    attend = heed.Attention(name, query=M)
    T = 1 if step or not attend.mechanism.claims.takes_several else 3
    taken = {}
    for kinds in product((WIDE, NARROW), repeat=4):
        q, k, v = (torch.randn(2, n, M, dtype=x) for n, x in zip((T, 5, 5), kinds, strict=False))
        attend.to(kinds[3])
        told = None
        try:
            with torch.no_grad():
                attend(None if name == "static" else q, attend.remember(k, v))
        except Refused as refused:
            told = str(refused)
        assert told is None or re.search(CURE, told)
        taken[kinds] = told is None
    given = slice(1, 4) if name == "static" else slice(3)  # its query is a weight
    brought = {kinds: len(set(kinds[given])) == 1 for kinds in taken}
    met = {kinds: len(set(kinds)) == 1 for kinds in taken}
    assert taken in (brought, met)  # weights are brought to the dtype of what is given, or meet it


@pytest.mark.parametrize("name", ["cosine", "additive", "scaled-dot"])
def test_heads_name_different_dtypes_too(name: str) -> None:
    attend, x = heed.MultiHeadAttention(M, 2, mechanism=name), torch.randn(2, 3, M)
    with pytest.raises(Refused, match=r"torch.bfloat16 and torch.float32: cast by"):
        attend(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(x.bfloat16()).context.dtype == torch.bfloat16


def test_autocast_leaves_double_precision_unchanged() -> None:
    q = torch.randn(1, 1, 3, 4).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert heed.attend(q, q, q, need="weight").context.dtype == torch.float64
