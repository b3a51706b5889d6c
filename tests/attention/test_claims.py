"""Claims are true, and no other code tells mechanisms apart.

Each claim by which other code takes a shorter way is compared with what the mechanism does.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.align import Align
from heed.attention.catalogue import CATALOGUE
from heed.attention.mechanism import Lanes, Mechanism
from heed.attention.part import Part
from heed.attention.past import Past
from heed.attention.position import ALiBi, Rotary
from heed.attention.reach import Reach
from heed.attention.read import Read
from heed.attention.score import Score
from tests.attention.cases import ALONE, FIRST, INSIDE, Case, close, every, main, small

SINGLE = [case for case in ALONE if len(case.words) == 1]
DIFFERENT = 1e-6


def rows(case: Case, attend: Any, state: heed.State, memory: heed.Memory, query: Tensor) -> Tensor:
    """The answers to each query by itself; of the state, only the step goes on."""
    asked = []
    for t in range(query.shape[1]):
        here = state._replace(step=state.step + t)
        asked.append(main(attend(query[:, t : t + 1], memory, here)))
    return torch.cat(asked, 1 if case.claims.gives_context else 2)


def differ(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).abs().max() > DIFFERENT)


@every(SINGLE, has_steps=True)
def test_is_row_wise(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    memory = attend.remember(k, v)
    whole, alone = main(attend(q, memory, FIRST)), rows(case, attend, FIRST, memory, q)
    assert differ(whole, alone) != case.claims.is_row_wise


@every(SINGLE, has_steps=True)
def test_ignores_place(case: Case) -> None:
    attend = case.build().eval()
    q, k, v = case.inputs(T=1)
    memory = attend.remember(k, v)
    here, there = (main(attend(q, memory, heed.State(step))) for step in (0, 4))
    assert differ(here, there) != case.claims.ignores_place


def shifted(attend: Any, x: Tensor, by: int) -> Tensor:
    """What a text attends to in itself, behind some padding.    B T M"""
    more = torch.randn(x.shape[0], by, x.shape[2], dtype=x.dtype)
    exists = torch.arange(by + x.shape[1]) >= by
    memory = attend.remember(torch.cat([more, x], 1), visible=exists.expand(len(x), -1))
    seen = attend(torch.cat([more, x], 1), memory, FIRST, visible=heed.causal())
    context: Tensor = seen.context
    return context[:, by:]


@pytest.mark.parametrize("position", [None, Rotary(), ALiBi(heads=4)], ids=repr)
@every([Case(case.name, 4, tied=True) for case in INSIDE if len(case.words) == 1])
def test_ignores_shifts(case: Case, position: Any) -> None:
    width = 16
    options = {**small(case.name), **({"longest": 20} if case.name == "location" else {})}
    attend = (
        heed.MultiHeadAttention(width, 4, mechanism=case.name, position=position, **options)
        .double()
        .eval()
    )
    for parameter in attend.parameters():
        torch.nn.init.uniform_(parameter, -0.9, 0.9)
    x = torch.randn(2, 6, width).double()
    if attend.ignores_shifts:
        close(shifted(attend, x, 3), attend(x, x, FIRST, visible=heed.causal()).context)


@every(SINGLE, has_steps=True, takes_several=True, gives_context=True)
def test_needs_length(case: Case) -> None:
    """Without, a text that is read up to a place is read as if it ended there."""
    case = Case(case.name, tied=True)
    attend = case.build().eval()
    x, _, _ = case.inputs(T=6)
    whole = attend(x, x, FIRST, visible=heed.causal()).context[:, :4]
    part = attend(x[:, :4], x[:, :4], FIRST, visible=heed.causal()).context
    assert differ(whole, part) == case.claims.needs_length


@pytest.mark.parametrize("name", [n for n, x in CATALOGUE.items() if x.slot == "reach"])
def test_sees_all(name: str) -> None:
    """Otherwise the weights are not those of a softmax over all keys."""
    case = Case(name)
    attend = case.build()
    q, k, v = case.inputs()
    weight = attend(q, attend.remember(k, v), case.first, need="weight").weight
    whole = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)[:, None]
    assert differ(weight, whole) != case.claims.sees_all


@every(SINGLE)
def test_draws(case: Case) -> None:
    attend = case.build().train()
    assert attend.mechanism.is_random == case.claims.draws
    q, k, v = case.inputs(B=8)
    memory = attend.remember(k, v)
    one, two = (main(attend(q, memory, case.first)) for _ in range(2))
    assert differ(one, two) == case.claims.draws
    assert not attend.eval().mechanism.is_random


def test_what_draws_only_with_noise_or_dropout() -> None:
    assert heed.Attention("monotonic", query=4).mechanism.is_random
    assert heed.Attention("dot", query=4, dropout=0.1).mechanism.is_random
    assert heed.Attention("mixed", query=4, dropout=0.1).mechanism.is_random
    assert not heed.Attention("mixed", query=4).mechanism.is_random


# What some rooms call by the same word as a part.
OTHERWISE = {
    "answers/": {"sample"},
    "attention/hooks.py": {"forward"},
    "cli/": {"sample"},
    "decoding/": {"sample"},
    "integrations/": {"softmax"},
    "kernels/": {"forward"},
    "running/": {"sample"},
    "tasks/": {"sample"},
    "training/": {"cosine"},
    "viewing/": {"coverage", "static"},
}

# What kernels compute, and what architectures and their files on disk are defined by.
DEFINED = {
    "kernels/additive/": {"additive"},
    "kernels/banded.py": {"dot"},
    "kernels/choose.py": {"additive"},
    "kernels/refusing.py": {"additive", "blend", "dot", "softmax"},
    "kernels/scan/": {"forced-forward", "forward", "mixture-window", "monotonic"},
    "kernels/sdpa.py": {"dot"},
    "kernels/single.py": {"dot"},
    "kernels/statistics/": {"dot"},
    "kernels/window/": {"dot"},
    "models/layouts/layout.py": {"scaled-dot"},
    "models/layouts/xlnet.py": {"relative"},
    "models/recurrent_settings.py": {"additive", "general"},
    "models/xlnet_settings.py": {"Relative"},
}

# Where mechanisms are put together.
BUILT = {
    "attention/mechanism.py": {"Blend", "Blind", "Global", "OrEverything", "ScaledDot", "Softmax"},
    "attention/names.py": {"Mixed"},
    "models/transformer_settings.py": {"HeadGroups"},
}

HEED = Path(heed.__file__).parent
KINDS = (Part, Mechanism)


def concrete(kind: type) -> Iterator[type]:
    """heed's classes of parts and mechanisms that are not the base of a slot."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("heed.attention."):
            if each not in (Score, Past, Reach, Align, Read, Lanes):
                yield each
            yield from concrete(each)


CLASSES = {each.__name__: each for kind in KINDS for each in concrete(kind)}


def defaults(tree: ast.AST) -> set[int]:
    """The literals that are a default: of an argument, or of a setting."""
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found += [*node.args.defaults, *node.args.kw_defaults]
        if isinstance(node, ast.AnnAssign):
            found.append(node.value)
    return {id(node) for node in found if isinstance(node, ast.Constant)}


def told_apart(source: str) -> Iterator[str]:
    """The names and classes of parts that a source mentions."""
    tree = ast.parse(source)
    usual = defaults(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in CATALOGUE and id(node) not in usual:
            yield str(node.value)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("heed.attention"):
            yield from (each.name for each in node.names if each.name in CLASSES)
        if isinstance(node, ast.Attribute) and node.attr in CLASSES:
            yield node.attr


def allowed(file: Path) -> set[str]:
    """What a file may mention: its own parts, what its room means otherwise, and the lists."""
    path = file.relative_to(HEED).as_posix()
    own = [each for each in CLASSES.values() if inspect.getfile(each) == str(file)]
    names = {name for name, entry in CATALOGUE.items() if entry.part in own}
    lists = (OTHERWISE, DEFINED, BUILT)
    found = [words for each in lists for where, words in each.items() if path.startswith(where)]
    return names.union({each.__name__ for each in own}, *found)


@pytest.mark.parametrize(
    "file",
    [file for file in sorted(HEED.rglob("*.py")) if file.name != "catalogue.py"],
    ids=lambda file: file.relative_to(HEED).as_posix(),
)
def test_no_other_code_knows_a_mechanism(file: Path) -> None:
    """It asks for claims, or a method of the part, so that a new part is known as well."""
    strange = set(told_apart(file.read_text("utf8"))) - allowed(file)
    assert not strange, f"{strange}: let the part's claims say what is asked here"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("if mechanism.reach.name == 'local-p': ...", {"local-p"}),
        ("NAMES = frozenset({'softmax', 'entmax'})", {"softmax", "entmax"}),
        ("from heed.attention.reach import Global, Reach", {"Global"}),
        ("from heed.attention import reach\nx = reach.LocalP", {"LocalP"}),
        ("from heed.attention.mixed import Mixed", {"Mixed"}),
        ("def attend(mechanism: str = 'scaled-dot') -> None: ...", set()),
        ("attention: str = 'additive'", set()),
        ("'''dot'''\nfrom heed.models.reading import Static\nx = 'dots'", {"dot"}),
    ],
)
def test_what_tells_mechanisms_apart_is_found(source: str, named: set[str]) -> None:
    assert set(told_apart(source)) == named
