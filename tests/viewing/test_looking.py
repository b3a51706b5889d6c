"""A text and all attention to it: the page of one model, and of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heed.viewing.atlas import Layer, Take
from heed.viewing.looking import Look, beside

TAKES = [Take("", [Layer.of("cross", np.eye(2)[None], ["i", "love"], ["我", "爱"])])]
MINE = Look("我 爱", "i love", TAKES, readings=["i love"])
THEIRS = Look("我 爱", "you love", TAKES, readings=["you love"])


def test_the_page_says_which_model_wrote_the_words() -> None:
    both = beside(MINE, THEIRS, ("one", "two"))
    assert both.remark.split(" · ") == [
        "answer of two: you love",
        "both models read the answer of one here",
    ]
    assert [take.side for take in both.takes] == ["one", "two"]
    label = beside(replace(MINE, readings=[]), replace(THEIRS, readings=[]), ("one", "two"))
    assert label.remark == "answer of two: you love"  # each read the text alone
    blind = beside(MINE, replace(THEIRS, takes=[]), ("one", "two"))
    assert blind.remark == "answer of two: you love · two: no attention to show"
