"""Initial weights: a module knows how each of its parameters is drawn, and draws them again.

A network that was built on "meta" has no numbers. `to_empty` gives it memory, and then
`reset_parameters()` of each module in it, in the order of `modules()`, the weights of a new one:

    with torch.device("meta"):
        network = build(settings)
    network.to_empty(device="cuda")
    for module in network.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Self
from weakref import ref

import torch
from torch import Tensor, nn

from heed.errors import Refused

ALONE = ("heads", "groups", "hint_width")
"""Arguments that are told only where they are not one."""

Rule = Callable[[Tensor], object]
"""Draws a tensor in place; a function at the top of a file or a partial of one, to be pickled."""


def normal(spread: float) -> Rule:
    """Draws from a normal distribution around zero."""
    return partial(nn.init.normal_, std=spread)


def drawn(rule: Rule, *shape: int) -> nn.Parameter:
    """A parameter that is drawn now, and again by its module's `reset_parameters`."""
    made = nn.Parameter(torch.empty(shape))
    _draw(made, rule)
    vars(made)["rule"] = rule  # until a module takes it over
    return made


class Drawn(nn.Module):
    """A module whose own parameters are `drawn`. Printed, it tells what it was made with."""

    _given: dict[str, int | float | str]

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Note the numbers and words that it is made with, for printing."""
        made = super().__new__(cls)
        vars(made)["_given"] = {n: x for n, x in given.items() if isinstance(x, int | float | str)}
        return made

    def extra_repr(self) -> str:
        """Each argument of its making: as it was given, else as the module knows it, else by
        default; what says nothing is left out."""
        told = []
        for name, argument in signature(type(self)).parameters.items():
            value = self._given.get(name, getattr(self, name, argument.default))
            plain = isinstance(value, int | float | str) and value is not False
            if plain and not (name in ALONE and value == 1):
                number = isinstance(value, float)
                told.append(f"{name}={value:.6g}" if number else f"{name}={value!r}")
        return ", ".join(told)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Own a parameter, and know how it is drawn."""
        super().register_parameter(name, param)
        rule = None if param is None else vars(param).pop("rule", None)
        if rule is not None:
            _rules(self)[name] = rule

    def reset_parameters(self) -> None:
        """Draw its own parameters again; those of modules inside it are theirs to draw."""
        rules = _rules(self)
        for name, _ in self.named_parameters(recurse=False):
            if name not in rules:
                raise Refused(
                    f"{type(self).__name__}.{name} has no rule by which it is drawn; make it by "
                    "heed.attention.initial_weights.drawn(rule, *shape), or define reset_parameters"
                )
        for name, rule in rules.items():
            _draw(getattr(self, name, None), rule)


def initialise(module: nn.Module, **rules: Rule) -> None:
    """Draw some parameters or buffers of a module by rules, now and in its `reset_parameters`.

    A module of PyTorch first draws as PyTorch does: what has no rule stays so.
    """
    for name, rule in rules.items():
        _draw(getattr(module, name), rule)
    _rules(module).update(rules)
    if not isinstance(module, Drawn):
        vars(module)["reset_parameters"] = Again(module)


def tie(module: nn.Module, other: nn.Module) -> None:
    """Give a module of PyTorch the weight of another, and the rule by which it is drawn.

    `to_empty` gives each module a weight of its own; `reset_parameters` ties them again.
    """
    module.weight = other.weight
    _rules(module)["weight"] = _rules(other)["weight"]
    vars(module)["reset_parameters"] = Again(module, other)


class Again:
    """`reset_parameters` of one module of PyTorch; it does not keep that module alive.

    tied  another module, whose weight it shares
    """

    def __init__(self, module: nn.Module, tied: nn.Module | None = None) -> None:
        self.module, self.tied = ref(module), None if tied is None else ref(tied)

    def __call__(self) -> None:
        module, tied = self._alive()
        assert module is not None
        if tied is not None and module.weight is not tied.weight:
            module.weight = tied.weight
        as_pytorch: Any = type(module)
        as_pytorch.reset_parameters(module)
        for name, rule in _rules(module).items():
            _draw(getattr(module, name), rule)

    def __reduce__(self) -> tuple[Any, ...]:
        return Again, self._alive()

    def _alive(self) -> tuple[nn.Module | None, nn.Module | None]:
        return self.module(), None if self.tied is None else self.tied()


def _rules(module: nn.Module) -> dict[str, Rule]:
    """The rules by which parameters and buffers of a module are drawn, by name, in order."""
    rules: dict[str, Rule] = vars(module).setdefault("_rules", {})
    return rules


@torch.no_grad()
def _draw(weight: Any, rule: Rule) -> None:
    """Draw a tensor; a sharded one whole, since rules look at places, before each process keeps
    its shard of what the first has drawn."""
    if weight is None:
        return
    mesh = getattr(weight, "device_mesh", None)
    if mesh is None:
        rule(weight)
        return
    from torch.distributed.tensor import distribute_tensor

    whole = weight.full_tensor().clone()  # a rule may leave some of it as it is
    rule(whole)
    weight.copy_(distribute_tensor(whole, mesh, weight.placements))
