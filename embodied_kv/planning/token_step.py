"""The next token of several planner rows: one computation over memory that never moves.

Knows a planner, an arena and sizes of batches. Does not know plans, or which rows decode. On CUDA
a step is one copy to the device, one captured graph and one copy back, all asynchronous; the host
waits once, for the tokens. On a CPU the same computation runs eagerly over the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_kv.engine.shapes import smallest
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.decode_view import DecodeView
from embodied_kv.kv.transfer import host_memory
from embodied_kv.model.planner import Planner
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs
from embodied_kv.runtime.stream import Stream

KIND = 'planner_token'


class TokenStep:
    """The likeliest next tokens, by one graph per size of a batch; one thread at a time.

    All graphs are captured when it is made. A batch is padded to the next of the ascending sizes.

    graphs: what was captured. watched: see `runtime.graph_cache.GraphCache`.
    """

    def __init__(
        self, model: Planner, arena: Arena, sizes: Sequence[int], watched: bool = False
    ) -> None:
        self._model, self._arena, self._sizes = model, arena, tuple(sizes)
        self.graphs = GraphCache(arena.device, watched)
        most = self._sizes[-1]
        fields = {**DecodeView.fields(arena, most), 'ids': (most, np.int64)}
        self._inputs = StepInputs(arena.device, fields)
        self._chosen = torch.zeros(most, dtype=torch.int64, device=arena.device)
        on_cpu = arena.device.type == 'cpu'
        self._host = self._chosen if on_cpu else host_memory((most,), torch.int64)
        for slots in self._sizes:
            self._capture(slots)
        Stream.current(arena.device).synchronize()  # a replay may be on any other stream

    def _capture(self, slots: int) -> None:
        model, arena, chosen = self._model, self._arena, self._chosen[:slots]
        ids = self._inputs.cut('ids', slots, 1).device

        def advance(view: DecodeView) -> None:
            logits = model.logits(model(ids, view.positions, view))
            chosen.copy_(logits[:, -1].argmax(-1))

        self.graphs.capture(
            Shape(KIND, slots, 1),
            advance,
            DecodeView(arena, slots, self._inputs),
            writes=[Buffer('chosen', chosen)],
            stores=arena.buffers('planner'),
            reads=[Buffer('ids', ids)],
        )

    @torch.inference_mode()
    def run(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        positions: Sequence[int],
        absent: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a token to each row, and return the token that follows in each.

        Args:
            rows: Rows whose lengths count the new token already.
            ids: The new token of each row.
            positions: Its logical position.
            absent: Tokens before it that each layer of each row lacks; () where none does.

        Raises:
            ValueError: There are more rows than the largest batch holds.
        """
        slots = smallest(self._sizes, len(rows), 'rows', 'raise planner_rows')
        sent, graph = self._inputs.cut('ids', slots).host, self.graphs[Shape(KIND, slots, 1)]
        sent[:] = 0
        sent[: len(ids)] = ids
        graph.view.bind(rows, positions, absent)
        graph.replay()
        self._host.copy_(self._chosen, non_blocking=True)
        Stream.current(self._arena.device).synchronize()
        return self._host[: len(rows)].tolist()
