"""Masks of numbers that are added to energies."""

import torch

from heed.integrations.added import Added, parted


def test_a_table_is_cut_to_some_queries_of_one_row() -> None:
    table = torch.arange(2 * 1 * 4 * 3).view(2, 1, 4, 3)
    assert torch.equal(Added(table).cut(1, 2, 4).table, table[1:2, :, 2:4])
    # One that all rows share, or all queries, is not cut along that axis.
    assert torch.equal(Added(table[:1]).cut(1, 0, 1).table, table[:1, :, :1])
    assert torch.equal(Added(table[:, :, :1]).cut(1, 2, 4).table, table[1:2, :, :1])
    assert torch.equal(Added(table[0, 0]).cut(1, 2, 4).table, table[None, 0, :, 2:4])


def test_a_mask_is_what_may_be_seen_and_what_is_added() -> None:
    lowest = torch.finfo(torch.float32).min
    seen, added = parted("mask", torch.tensor([[0.0, -torch.inf, lowest, 1.5]]))
    assert seen.tolist() == [[True, False, False, True]]
    assert added is not None
    assert added.tolist() == [[0.0, 0.0, 0.0, 1.5]]
    assert parted("mask", torch.tensor([[0.0, -torch.inf]]))[1] is None  # it only hides
