"""The words of PyTorch's attention for what heed calls otherwise, or asks for elsewhere.

Every public door hands over the arguments that it does not know, and whoever used one reads in one
line what to write instead.
"""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any, Literal

from heed.errors import Refused

Door = Literal["call", "memory", "function", "module"]
"""Where an argument was given: a call, `remember`, `heed.attend`, or the making of a module."""

MASK = (
    "visible=mask where True is seen, as in scaled_dot_product_attention; visible=~mask where True "
    "hides, as in torch.nn.MultiheadAttention; numbers added to energies are bias=mask in calls of "
    "modules, with four axes B H T S"
)
HEADS = "heed.Attention has one head; use heed.MultiHeadAttention(embed_dim, num_heads, ...)"

OF_CALLS = {
    "mask": MASK,
    "attn_mask": MASK,
    "key_padding_mask": "remember(visible=~mask) or visible=heed.Visible.keys(~mask), since "
    "torch's hides where it is True",
    "attention_mask": "remember(visible=mask.bool()) or visible=heed.Visible.keys(mask.bool())",
    "attn_bias": "bias=..., with four axes B H T S",
    "is_causal": "visible=heed.causal()",
    "need_weights": 'need="weight"',
    "average_attn_weights": 'need="weight" and .weight.mean(1)',
    "key": "attend(query, attend.remember(keys, values))",
    "value": "attend(query, attend.remember(keys, values))",
}
"""Words that belong to a call, and how to say them there."""

OF_MODULES = {
    "dropout_p": "dropout=0.1",
    "dropout": "dropout=0.1",
    "scale": "scale=0.1 for scaled-dot; dot has a scale of 1",
    "embed_dim": HEADS,
    "num_heads": HEADS,
    "heads": HEADS,
    "groups": HEADS,
    "kdim": HEADS,
    "vdim": HEADS,
    "batch_first": "the batch is always first, B T M",
}
"""Words for choices that are made with an attention, and how."""

OF_MEMORIES = {
    "mask": "visible=mask where True exists, visible=~mask where True is padding",
    "key_padding_mask": "visible=~mask, since torch's hides where it is True",
    "attention_mask": "visible=mask.bool()",
    "key": "keys, the first argument",
    "value": "values, the second argument",
}
"""Words that belong to a memory, and how to say them there."""

OF_FUNCTIONS = {
    "bias": "a call of heed.Attention or heed.MultiHeadAttention takes one",
    "attn_bias": "a call of heed.Attention or heed.MultiHeadAttention takes one, as bias=...",
    "key_padding_mask": "visible=heed.Visible.keys(~mask), since torch's hides where it is True",
    "attention_mask": "visible=heed.Visible.keys(mask.bool())",
    "num_heads": "the heads are axis 1 of q, k and v, B H T D",
    "enable_gqa": "heads share keys where their number is a multiple",
}
"""Words that `heed.attend` has others for than a call of a module."""

CALL, MAKING = "here, but belongs to the call", "here, but is chosen when the attention is made"

WAYS: dict[Door, tuple[tuple[Mapping[str, str], str], ...]] = {
    "call": ((OF_CALLS, "here"), (OF_MODULES, MAKING)),
    "memory": ((OF_MEMORIES, "here"), (OF_CALLS, CALL), (OF_MODULES, MAKING)),
    "function": ((OF_FUNCTIONS, "here"), (OF_CALLS, "here"), (OF_MODULES, "here")),
    "module": ((OF_MODULES, "here"), (OF_CALLS, CALL)),
}
"""In which tables a door looks for a word, and where it belongs then."""


def refuse(door: Door, given: Iterable[str]) -> None:
    """Refuse the words of PyTorch among the arguments given, each with what to write instead."""
    for name in given:
        for table, where in WAYS[door]:
            if name in table:
                raise Refused(f"'{name}' is no argument {where}: {table[name]}")


def refuse_all(door: Door, given: Iterable[str], takes: Any) -> None:
    """Refuse all arguments given to a function that takes others."""
    given = list(given)
    refuse(door, given)
    if given:
        kinds = signature(takes).parameters.values()
        known = (x.name for x in kinds if x.kind != x.VAR_KEYWORD and x.name != "self")
        raise Refused(f"there is no argument '{given[0]}'; a call takes {', '.join(known)}")
