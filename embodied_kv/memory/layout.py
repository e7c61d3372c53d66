"""Where a prompt's tokens lie in the row in one layer.

Knows positions and places. Does not know KV or methods. A unit that keeps a part of its tokens is
thin where it is loaded, and whole where it is computed again; so a layer may lack tokens that
another one has. What a layer has lies close together in its row, in the order of the prompt:
whatever reads up to a token reads all that is there before it, and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_kv.memory.prompt import Prompt


class LayerLayout:
    """computed: bool [length], tokens that the layer computes.

    present: bool [length], tokens that it has; of a thin piece that is loaded the first `kept`
    places, which say nothing of which tokens these are. places: int64 [length], where each of
    them lies. lacks: how many are not there.
    """

    def __init__(self, prompt: Prompt, computed: Tensor) -> None:
        self.present = torch.ones(prompt.length, dtype=torch.bool)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            end = start + len(piece.ids)
            if piece.is_thin and not computed[start:end].all():
                self.present[start + piece.kept : end] = False
        self.places = self.present.cumsum(0) - 1
        self.lacks = prompt.length - int(self.present.sum())

    def close_up(self, *rows: Tensor) -> None:
        """Moves what was loaded to its places: K and V [kv_heads, tokens, head_dim], in place."""
        if self.lacks:
            at = self.present.nonzero()[:, 0]
            for row in rows:
                row[:, : len(at)] = row[:, at.to(row.device)]
