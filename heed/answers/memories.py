"""Memories carried from batch to batch in the training of a language model. Dai 2019 §3.2.

    remembering = Remembering(8, layers=12, places=256, width=768)
    said = model(text, memories=remembering.recall(batch))
    remembering.keep(batch, said.memories)

The rows of a batch continue those of the batch before (`data/packed_rows.py`, onward). The memories
are buffers, so they are saved with a run, and it resumes exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.models.xlnet_sights import Memories


class Remembering(nn.Module):
    """The memories of each lane of rows; a row that continues nothing has none."""

    kept: Tensor  # of each layer, N R L M
    exists: Tensor  # R L
    goes_on: Tensor  # the position in the text where a lane continues; below 0: nowhere  R

    def __init__(self, lanes: int, *, layers: int, places: int, width: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(layers, lanes, places, width))
        self.register_buffer("exists", torch.zeros(lanes, places, dtype=torch.bool))
        self.register_buffer("goes_on", torch.full((lanes,), -1))

    def recall(self, batch: Batch) -> Memories:
        """The memories of a batch's rows."""
        B = len(batch.rows)
        exists = self.exists[:B] & (self.goes_on[:B] == batch.rows)[:, None]
        return Memories(tuple(self.kept[:, :B].clone()), exists)

    @torch.no_grad()
    def keep(self, batch: Batch, left: Memories) -> None:
        """Keep the memories that a batch's rows leave; none of a row that is not finite."""
        assert left.exists is not None
        (B, T), layers = batch.tokens["text"].shape, torch.stack(left.layers)
        sound = layers.isfinite().all(-1).all(-1).all(0)  # B
        self.kept[:, :B].copy_(layers.where(sound[:, None, None], 0))
        self.exists[:B].copy_(left.exists)
        self.goes_on[:B].copy_((batch.rows + T).where(sound & (batch.rows >= 0), -1))
