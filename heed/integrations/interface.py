"""Modules of a model that attend through transformers' interface, or by themselves.

It is read from the code that each module would run, not from names of models, so that it holds for
models that did not exist when this was written.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from heed.attention.watchable import Watchable

NAMED = re.compile(r"att(entio)?n", re.IGNORECASE)
FUSED = frozenset(
    {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
)
WEIGHING = frozenset({"softmax", "Softmax", "matmul", "einsum", "bmm", "baddbmm", "@"})
"""What attention is made of. A module with one of these may also be a router, or anything else, so
that only one that is also named an attention is taken for one."""


@dataclass(frozen=True)
class Code:
    """The code that a call of a module runs, without that of the modules inside it.

    names    every name and attribute in it, and "@" for a product
    asking   the functions that fetch an attention from an AttentionInterface
    """

    names: frozenset[str]
    asking: tuple[FunctionType, ...]


def attends(module: nn.Module) -> bool:
    """Whether a module asks transformers for its attention function."""
    return bool(fetching(module))


def attends_alone(module: nn.Module) -> bool:
    """Whether a module computes attention by itself, where nothing can be put in its place."""
    kind = type(module)
    if isinstance(module, nn.MultiheadAttention):
        return not isinstance(module, Watchable)
    if kind.__module__.startswith(("torch.", "heed.")) or attends(module):
        return False
    names = _code_of(module).names
    return bool(names & FUSED or (NAMED.search(kind.__name__) and names & WEIGHING))


def fetching(module: nn.Module) -> tuple[FunctionType, ...]:
    """The functions by which a module asks transformers for its attention function."""
    return _code_of(module).asking


def handed(module: nn.Module) -> dict[str, Any]:
    """Arguments a module hands to its attention by name; a value only a call would tell is True."""
    return {
        str(keyword.arg): _value(keyword.value, module)
        for function in fetching(module)
        for call in _calls(function)
        for keyword in call.keywords
        if keyword.arg is not None
    }


def _code_of(module: nn.Module) -> Code:
    kind: Any = type(module)  # mypy takes no class of modules for hashable
    return _code(kind)


@functools.cache
def _code(kind: Any) -> Code:
    """The code of a class: its forward, and what that calls in the class or beside it."""
    names: set[str] = set()
    asking = []
    waiting: list[Any] = [kind.forward]
    met = set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function in met:
            continue
        met.add(function)
        used = set(_names(function.__code__))
        names |= used
        if any(map(_is_interface, map(function.__globals__.get, used))):
            asking.append(function)
        for name in used:
            beside = function.__globals__.get(name)
            if not str(getattr(beside, "__module__", "torch")).startswith("torch"):
                waiting.append(beside)
            waiting.append(inspect.getattr_static(kind, name, None))
    return Code(frozenset(names), tuple(asking))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    if any(step.argrepr.startswith("@") for step in dis.get_instructions(code)):
        yield "@"
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_interface(found: Any) -> bool:
    from transformers import AttentionInterface

    return isinstance(found, AttentionInterface)


@functools.cache
def _calls(function: FunctionType) -> tuple[ast.Call, ...]:
    """The calls of the attention that a function fetches, without those of flash attention."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    fetched = set()
    for step in ast.walk(tree):
        if isinstance(step, ast.Assign | ast.AnnAssign) and step.value is not None:
            used = {x.id for x in ast.walk(step.value) if isinstance(x, ast.Name)}
            if any(_is_interface(function.__globals__.get(name)) for name in used):
                targets = step.targets if isinstance(step, ast.Assign) else [step.target]
                fetched |= {x.id for x in targets if isinstance(x, ast.Name)}
    return tuple(
        step
        for step in _steps(tree)
        if isinstance(step, ast.Call)
        and isinstance(step.func, ast.Name)
        and step.func.id in fetched
    )


def _steps(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree from the top, without branches that only flash attention takes."""
    yield tree
    flash = isinstance(tree, ast.If) and "flash" in ast.unparse(tree.test)
    inside = tree.orelse if flash and isinstance(tree, ast.If) else ast.iter_child_nodes(tree)
    for each in inside:
        yield from _steps(each)


def _value(given: ast.expr, module: nn.Module) -> Any:
    """The value of an argument: a constant, or an attribute of the module; else True."""
    if isinstance(given, ast.Constant):
        return given.value
    path, _, rest = ast.unparse(given).partition(".")
    if path != "self" or not re.fullmatch(r"[\w.]+", rest):
        return True
    found: Any = module
    for name in rest.split("."):
        found = getattr(found, name, None)
    return found
