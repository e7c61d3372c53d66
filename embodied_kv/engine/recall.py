"""Recall tokens: the instruction once more, behind the memory rows and the present frame.

The prefill reads no memory rows. Recall tokens read both, so they resolve what the instruction
refers to in earlier frames; chunks and texts read them in addition. They are computed once a
frame, by the layers of the backbone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from embodied_kv.engine.shapes import Kind
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import TailAppend
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.prompt import RECALL_TOKENS
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import Fields, StepInputs

Layers = list[tuple[Tensor, Tensor]]  # K and V of each layer, [kv_heads, tokens, head_dim]


class Recaller:
    """Computes recall tokens; for the engine thread. capacity: as for `PrefixRead`."""

    def __init__(
        self,
        model: Pi05,
        prefixes: Arena,
        compressed: CompressedArena,
        graphs: GraphCache,
        capacity: int = 0,
    ) -> None:
        b, self._graphs = model.config.backbone, graphs
        self._own = own = Arena(
            layers=b.layers,
            rows=1,
            kv_heads=b.kv_heads,
            max_tokens=RECALL_TOKENS,
            head_dim=b.head_dim,
            dtype=model.dtype,
            device=model.device,
        )
        sizes = prefixes, own, 1, RECALL_TOKENS
        fields: Fields = {
            **TailAppend.fields(*sizes, compressed),
            'ids': (RECALL_TOKENS, np.int64),
        }
        inputs = StepInputs(model.device, fields)
        self._ids = inputs.cut('ids', 1, RECALL_TOKENS)
        ids = self._ids.device

        def recall(cache: TailAppend) -> None:
            model.backbone.fill(model.embed_tokens(ids), cache.positions, cache)

        graphs.capture(
            Shape(Kind.RECALL, 1, RECALL_TOKENS),
            recall,
            TailAppend(*sizes, compressed, inputs, capacity),
            writes=[],
            stores=own.buffers('recall'),
            reads=[
                Buffer('recall.ids', ids),
                *prefixes.buffers('prefixes'),
                *compressed.buffers('compressed'),
            ],
        )

    def run(self, ids: Sequence[int], copy: int) -> Layers:
        """Return K and V of the recall tokens behind a compressed row, valid until the next call.

        [] without tokens.
        """
        if not ids:
            return []
        self._ids.host[:] = 0
        self._ids.host[0, : len(ids)] = ids
        self._own.set_length(0, len(ids))
        graph = self._graphs[Shape(Kind.RECALL, 1, RECALL_TOKENS)]
        graph.view.bind([-1], [0], len(ids), [copy])
        graph.replay()
        return [(k[0, :, : len(ids)], v[0, :, : len(ids)]) for k, v in self._own.layers]
