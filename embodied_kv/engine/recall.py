"""Recall tokens: the instruction once more, behind the memory rows and the present frame.

The prefill reads no memory rows. Recall tokens read both, so they resolve what the instruction
refers to in earlier frames; chunks and texts read them in addition. They are computed once a
frame, by the layers of the backbone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from embodied_kv.engine.shapes import Kind, doubling, smallest
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
    """Computes recall tokens; for the engine thread.

    robots: most robots of a batch. capacity: as for `PrefixRead`.
    """

    def __init__(
        self,
        model: Pi05,
        prefixes: Arena,
        compressed: CompressedArena,
        graphs: GraphCache,
        capacity: int = 0,
        robots: int = 1,
    ) -> None:
        b, self._graphs, self._sizes = model.config.backbone, graphs, doubling(robots)
        self._own = own = Arena(
            layers=b.layers,
            rows=robots,
            kv_heads=b.kv_heads,
            max_tokens=RECALL_TOKENS,
            head_dim=b.head_dim,
            dtype=model.dtype,
            device=model.device,
        )
        fields: Fields = {
            **TailAppend.fields(prefixes, own, robots, RECALL_TOKENS, compressed),
            'ids': (robots * RECALL_TOKENS, np.int64),
        }
        self._inputs = inputs = StepInputs(model.device, fields)
        for slots in self._sizes:
            ids = inputs.cut('ids', slots, RECALL_TOKENS).device

            def recall(cache: TailAppend, ids: Tensor = ids) -> None:
                model.backbone.fill(model.embed_tokens(ids), cache.positions, cache)

            graphs.capture(
                Shape(Kind.RECALL, slots, RECALL_TOKENS),
                recall,
                TailAppend(prefixes, own, slots, RECALL_TOKENS, compressed, inputs, capacity),
                writes=[],
                stores=own.buffers('recall'),
                reads=[
                    Buffer('recall.ids', ids),
                    *prefixes.buffers('prefixes'),
                    *compressed.buffers('compressed'),
                ],
            )

    def run(self, asked: Sequence[tuple[Sequence[int], int]]) -> list[Layers]:
        """Return K and V of recall tokens, valid until the next call.

        asked: tokens, at least one, and the compressed row that they are behind, by robot.
        """
        slots = smallest(self._sizes, len(asked), 'robots', 'recall fewer at once')
        inputs, counts = self._inputs.cut('ids', slots, RECALL_TOKENS), []
        inputs.host[:] = 0
        self._own.clear([*range(slots)])  # NaN of a batch before must not reach this one
        for slot, (ids, _) in enumerate(asked):
            inputs.host[slot, : len(ids)] = ids
            self._own.set_length(slot, len(ids))
            counts.append(len(ids))
        graph, copies = (
            self._graphs[Shape(Kind.RECALL, slots, RECALL_TOKENS)],
            [copy for _, copy in asked],
        )
        graph.view.bind([-1] * len(asked), range(len(asked)), np.array(counts), copies)
        graph.replay()
        return [
            [(k[slot, :, :count], v[slot, :, :count]) for k, v in self._own.layers]
            for slot, count in enumerate(counts)
        ]
