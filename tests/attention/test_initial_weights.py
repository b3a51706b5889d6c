"""Weights that are drawn again equal those of a new network: without them, or from "meta"."""

import gc
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.initial_weights import Drawn, drawn, initialise, tie
from heed.attention.position import Learned
from heed.attention.read import Generate, Join
from heed.attention.score import Dot, parameter
from heed.errors import Refused
from heed.models import (
    building,
    classifier,
    generator,
    recurrent_language,
    tagger,
    text_settings,
    xlnet_settings,
)
from heed.models.classifier import ClassifierSettings
from heed.models.generator import GeneratorSettings
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.recurrent_settings import RecurrentSettings
from heed.models.tagger import TaggerSettings
from heed.models.text_settings import BertSettings, GPT2Settings
from heed.models.transformer_settings import TransformerSettings
from heed.models.xlnet_settings import XLNetSettings
from tests.attention.cases import CASES, Case, every

Make = Callable[[], nn.Module]


def even(self: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    """Instead of uniform draws: evenly spaced numbers, which tell the bounds."""
    return self if self.is_meta else self.copy_(_spaced(self) * (high - low) + low)


def bell(self: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    """Instead of normal draws: numbers that tell the mean and the spread, and are not even."""
    return self if self.is_meta else self.copy_((_spaced(self) * 2 - 1) ** 3 * std + mean)


def _spaced(like: Tensor) -> Tensor:
    return torch.linspace(0, 1, like.numel(), device="cpu").view(like.shape)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random draws depend on the rule alone, and not on the order of the modules."""
    monkeypatch.setattr(torch.Tensor, "uniform_", even, raising=False)
    monkeypatch.setattr(torch.Tensor, "normal_", bell, raising=False)


def revived(make: Make) -> nn.Module:
    """Built without numbers, given memory full of nonsense, and drawn module by module."""
    with torch.device("meta"):
        made = make()
    assert all(x.is_meta for x in (*made.parameters(), *made.buffers()))
    made.to_empty(device="cpu")
    with torch.no_grad():
        for x in (*made.parameters(), *made.buffers()):
            x.fill_(torch.nan if x.is_floating_point() else -7)
    for module in made.modules():
        reset = getattr(module, "reset_parameters", None)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        assert reset is not None or not own, f"{type(module).__name__} owns {len(own)} tensors"
        if reset is not None:
            reset()
    return made


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, those that are not stored as well."""
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])


def agree(made: nn.Module, want: nn.Module) -> None:
    """Equal in every parameter and buffer, and in which of them are shared."""
    got, new = tensors(made), tensors(want)
    assert list(got) == list(new)
    for name, x in new.items():
        assert torch.equal(got[name], x), name
    assert len(list(made.parameters())) == len(list(want.parameters()))


def case_of(case: Case) -> nn.Module:
    """The module of a case with its initial weights."""
    M, K, R = case.widths
    if not case.heads:
        return heed.Attention(case.name, query=M, key=K, value=R, **case.options)
    sizes: dict[str, Any] = {"kdim": K, "vdim": R, "groups": case.groups}
    return heed.MultiHeadAttention(M, case.heads, mechanism=case.name, **sizes, **case.options)


@every(CASES)
def test_every_mechanism_can_be_drawn_again(steady: None, case: Case) -> None:
    make = partial(case_of, case)
    agree(revived(make), make())
    used = make()
    for x in used.parameters():
        nn.init.constant_(x, 3.0)
    for module in used.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    agree(used, make())


PARTS: dict[str, Make] = {
    "torch's layout": lambda: heed.MultiHeadAttention(8, 2, add_bias_kv=True, vdim=5),
    "no bias": lambda: heed.MultiHeadAttention(8, 2, bias=False),
    "segments": lambda: heed.Attention("relative", query=8, segments=True),
    "a gate per head": lambda: heed.MultiHeadAttention(8, 2, mechanism="mixed/dot", gate="head"),
    "positions": lambda: Learned(longest=9, width=4),
    "join": lambda: Join(context=4, query=3, width=5),
    "generate": lambda: Generate(context=4, query=3, embedding=2),
}

PLAIN: dict[str, Any] = {"width": 8, "heads": 2, "feed": 12, "layers": 2}
PAIR: dict[str, Any] = {
    "width": 8,
    "heads": 2,
    "feed": 12,
    "encoder_layers": 1,
    "decoder_layers": 2,
}
SMALL: dict[str, Any] = {"embedding": 6, "hidden": 8}


def pair(settings: Any, shared: bool = True) -> nn.Module:
    """A network from one sequence to another."""
    return building.build(settings, source=11, target=11 if shared else 9, shared=shared, longest=7)


def reader(**given: Any) -> nn.Module:
    """A classifier."""
    settings = ClassifierSettings(**given)
    return classifier.build(settings, symbols=11, labels=3, letters=(5, 2))


def told(**given: int) -> nn.Module:
    """A generator."""
    settings = GeneratorSettings(vector=3, **SMALL)
    return generator.build(settings, **given, symbols=11)


NETWORKS: dict[str, Make] = {
    "recurrent": lambda: pair(RecurrentSettings(**SMALL)),
    "recurrent, apart": lambda: pair(RecurrentSettings(**SMALL, cell="lstm", layers=2), False),
    "recurrent, luong": lambda: pair(RecurrentSettings(**SMALL, decoder="luong", tied=False)),
    "recurrent, none": lambda: pair(RecurrentSettings(**SMALL, decoder="fixed", cell="tanh")),
    "transformer": lambda: pair(TransformerSettings(**PAIR)),
    "transformer, apart": lambda: pair(
        TransformerSettings(**PAIR, position="learned", tied=False, norm="post"), False
    ),
    "transformer, mixed heads": lambda: pair(
        TransformerSettings(
            **PAIR,
            cross_attention="additive + monotonic/general",
            encoder_attention="mixture-window",
        )
    ),
    **{
        f"bert, {head}": lambda head=head: text_settings.build(
            BertSettings(**PLAIN, symbols=11, head=head)
        )
        for head in ("none", "masked", "pretraining", "classify", "label", "span")
    },
    "gpt2": lambda: text_settings.build(GPT2Settings(**PLAIN, symbols=11)),
    "gpt2, apart": lambda: text_settings.build(GPT2Settings(**PLAIN, symbols=11, tied=False)),
    **{
        f"xlnet, {head}": lambda head=head: xlnet_settings.build(
            XLNetSettings(**PLAIN, symbols=11, head=head)
        )
        for head in ("language", "classify", "span")
    },
    "xlnet, apart": lambda: xlnet_settings.build(XLNetSettings(**PLAIN, symbols=11, tied=False)),
    "recurrent-language": lambda: recurrent_language.build(
        RecurrentLanguageSettings(embedding=8, hidden=8, tied=True, cell="lstm"), symbols=11
    ),
    "recurrent-language, apart": lambda: recurrent_language.build(
        RecurrentLanguageSettings(**SMALL), symbols=11
    ),
    "classifier, lstm": lambda: reader(encoder={"kind": "lstm", **SMALL}, letters=(2, 3)),
    "classifier, filtered": lambda: reader(
        encoder={"kind": "gru", **SMALL, "widths": (3,), "channels": 4}, pool="mean"
    ),
    "classifier, cnn": lambda: reader(
        encoder={"kind": "cnn", "embedding": 6, "channels": 4, "layers": 2}, heads=2
    ),
    "classifier, numbers": lambda: classifier.build(
        ClassifierSettings(encoder={"kind": "lstm", **SMALL}),  # type: ignore[arg-type]
        features=4,
        labels=3,
    ),
    "classifier, bert": lambda: reader(encoder={"kind": "bert", **PLAIN}, pool="first"),
    "classifier, xlnet": lambda: reader(encoder={"kind": "xlnet", **PLAIN}, pool="last"),
    "tagger": lambda: tagger.build(
        TaggerSettings(encoder={"kind": "transformer", **PLAIN}),  # type: ignore[arg-type]
        symbols=11,
        labels=3,
    ),
    "generator": lambda: told(classes=4),
    "generator, numbers": lambda: told(features=4),
}


@pytest.mark.parametrize("name", [*PARTS, *NETWORKS])
def test_every_part_and_every_model_can_be_drawn_again(steady: None, name: str) -> None:
    make = (PARTS | NETWORKS)[name]
    agree(revived(make), make())


def test_every_kind_of_model_is_tried() -> None:
    assert {name.partition(",")[0] for name in NETWORKS} == set(building.MODELS)


@pytest.mark.parametrize("name", ["additive", "relative", "local-p/general", "monotonic/concat"])
def test_the_same_seed_draws_the_same(name: str) -> None:
    """Where the order of drawing is that of the modules: the parts of one attention."""
    make = partial(heed.MultiHeadAttention, 8, 2, mechanism=name)
    torch.manual_seed(3)
    want = make()
    with torch.device("meta"):
        made = make()
    made.to_empty(device="cpu")
    torch.manual_seed(3)
    made.reset_parameters()
    made.out_proj.reset_parameters()
    for part in made.mechanism.modules():
        if isinstance(part, Drawn):
            part.reset_parameters()
    if name == "additive":
        agree(made, want)
    for key, x in tensors(want).items():
        assert tensors(made)[key].isfinite().all()
        assert torch.equal(tensors(made)[key] == 0, x == 0), key


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:DTensor random operators")
@pytest.mark.parametrize("name", ["recurrent, apart", "recurrent", "transformer, mixed heads"])
def test_a_sharded_network_is_drawn_as_one_that_is_not(name: str) -> None:
    """Rules that look at places, such as that of forget gates, are given whole tensors."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with torch.device("meta"):
            made: Any = NETWORKS[name]()
        fully_shard(made, mesh=init_device_mesh("cpu", (1,)))
        made.to_empty(device="cpu")
        for x in made.parameters():
            nn.init.constant_(x, torch.nan)
        for module in made.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        for key, want in tensors(NETWORKS[name]()).items():
            got = tensors(made)[key].full_tensor()
            assert got.isfinite().all(), key
            kinds = want.unique().numel()
            if kinds <= 2:  # constants
                assert torch.equal(got, want), key
            assert 0.8 * kinds <= got.unique().numel() <= 1.2 * kinds, key
        symbols = torch.randint(0, 9, (2, 5))
        assert made(symbols, torch.tensor([5, 4]), symbols).logits.isfinite().all()
    finally:
        destroy_process_group()


def test_a_deep_copy_and_a_pickle_draw_their_own_weights() -> None:
    source = pair(RecurrentSettings(**SMALL, cell="lstm"))
    for copied in (deepcopy(source), pickle.loads(pickle.dumps(source))):
        before = {name: x.clone() for name, x in tensors(source).items()}
        with torch.no_grad():
            for x in copied.parameters():
                x.fill_(torch.nan)
        for module in copied.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        assert all(x.isfinite().all() for x in tensors(copied).values())
        assert all(torch.equal(x, before[name]) for name, x in tensors(source).items())


def test_rules_leave_no_trace_in_stored_weights() -> None:
    """An attribute on a parameter would be stored with it, and refused by a careful reader."""
    attend = heed.Attention("additive", query=4)
    assert not any(vars(x) for x in attend.parameters())


def test_a_module_is_not_kept_alive() -> None:
    table = nn.Embedding(3, 2)
    initialise(table, weight=nn.init.ones_)
    tie(nn.Linear(2, 3), table)
    gc.disable()  # a cycle would wait for the collector, with a GPU's memory
    try:
        kept = ref(table)
        del table
        assert kept() is None
    finally:
        gc.enable()


def test_weights_of_ones_own_parts_need_a_rule() -> None:
    class Ruled(Dot):
        def __init__(self) -> None:
            super().__init__(query=4, key=4)
            self.weight = parameter(1, 4, 4)
            self.offset = drawn(nn.init.ones_, 4)

    class Unruled(Dot):
        def __init__(self) -> None:
            super().__init__(query=4, key=4)
            self.weight = nn.Parameter(torch.zeros(4))

    ruled = Ruled()
    before = ruled.weight.clone()
    ruled.reset_parameters()
    assert not torch.equal(before, ruled.weight)
    assert torch.equal(ruled.offset, torch.ones(4))
    with pytest.raises(Refused, match=r"Unruled\.weight has no rule by which it is drawn"):
        Unruled().reset_parameters()


@every(CASES)
def test_device_and_dtype_are_those_of_all_parameters(case: Case) -> None:
    M, K, R = case.widths
    sizes: dict[str, Any] = {"query": M, "key": K, "value": R}
    make: Callable[..., nn.Module] = partial(heed.Attention, case.name, **sizes, **case.options)
    if case.heads:
        sizes = {"kdim": K, "vdim": R, "groups": case.groups, "mechanism": case.name}
        make = partial(heed.MultiHeadAttention, M, case.heads, **sizes, **case.options)
    here = make()
    there = make(device="meta", dtype=torch.float64)
    assert {n: x.shape for n, x in tensors(there).items()} == {
        n: x.shape for n, x in tensors(here).items()
    }
    assert all((x.is_meta, x.dtype) == (True, torch.float64) for x in tensors(there).values())
    torch.manual_seed(0)
    single = make()
    torch.manual_seed(0)
    double = make(device="cpu", dtype=torch.float64)
    for name, x in tensors(single).items():  # drawn as without, then widened
        assert torch.equal(tensors(double)[name], x.double())


def test_a_device_around_the_making_counts() -> None:
    with torch.device("meta"):
        assert all(x.is_meta for x in heed.Attention("additive", query=4).parameters())
    with pytest.raises((Refused, TypeError), match="float"):
        heed.Attention("additive", query=4, dtype=torch.int64)
