"""Rows of KV for several planners in one arena, decoded in one batch.

A row belongs to one robot until it is returned, and no row reads another. A step decodes one token
of every row with an unfinished answer. The threads that wait for an answer request steps, one at a
time: a thread requests none if the step of another thread has decoded its row. The number of steps
is therefore that of one answer, however many threads wait.

On CUDA a step is one copy to the device, one captured graph and one copy back, all asynchronous;
the host waits once, for the tokens. On a CPU the same computation runs eagerly in the same memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_kv.engine.shapes import doubling, smallest
from embodied_kv.errors import ErrorCode
from embodied_kv.kernels.sampling import sample_tokens
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.pool import Evictable
from embodied_kv.kv.transfer import host_memory
from embodied_kv.kv.views import DecodeView
from embodied_kv.memory.prefill import Step
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.model.planner import Planner
from embodied_kv.planning.plan import GREEDY, Choice, RowPlan
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import Fields, StepInputs
from embodied_kv.runtime.stream import Stream

KIND, DRAW = 'planner_token', 'planner_draw'
NONE = -1  # in place of a token whose logits are not finite


class TokenStep:
    """Decoding of a batch of rows by one captured graph per batch size. Not thread-safe.

    A second graph replaces the greedy token of each row that samples; it is replayed only if one
    does. All graphs are captured by the constructor. A batch is padded to the next of the
    ascending sizes.
    """

    def __init__(self, model: Planner, arena: Arena, sizes: Sequence[int]) -> None:
        self._model, self._arena, self._sizes = model, arena, tuple(sizes)
        self.graphs = GraphCache(arena.device)
        most = self._sizes[-1]
        fields: Fields = {
            **DecodeView.fields(arena, most),
            'ids': (most, np.int64),
            'temperatures': (most, np.float64),
            'shares': (most, np.float64),
        }
        self._inputs = StepInputs(arena.device, fields)
        width = model.config.backbone.vocab_size
        self._logits = torch.zeros(most, width, device=arena.device)
        self._chosen = torch.zeros(most, dtype=torch.int64, device=arena.device)
        on_cpu = arena.device.type == 'cpu'
        self._host = self._chosen if on_cpu else host_memory((most,), torch.int64)
        for slots in self._sizes:
            self._capture(slots)
        Stream.current(arena.device).synchronize()  # a replay may be on any other stream

    def _capture(self, slots: int) -> None:
        model, arena = self._model, self._arena
        logits, chosen = self._logits[:slots], self._chosen[:slots]
        ids = self._inputs.cut('ids', slots, 1).device
        temperatures, shares = (
            self._inputs.cut(name, slots).device for name in ('temperatures', 'shares')
        )

        def choose(tokens: torch.Tensor, logits: torch.Tensor) -> None:
            chosen.copy_(torch.where(logits.amax(-1).isfinite(), tokens, NONE))

        def advance(view: DecodeView) -> None:
            logits.copy_(model.logits(model(ids, view.positions, view))[:, -1])
            choose(logits.argmax(-1), logits)

        def draw(_: DecodeView) -> None:
            drawn = sample_tokens(logits, logits.amax(-1), chosen, temperatures, shares)
            choose(drawn, logits)

        view, written = DecodeView(arena, slots, self._inputs), Buffer('chosen', chosen)
        self.graphs.capture(
            Shape(KIND, slots, 1),
            advance,
            view,
            writes=[Buffer('logits', logits), written],
            stores=arena.buffers('planner'),
            reads=[Buffer('ids', ids)],
        )
        self.graphs.capture(
            Shape(DRAW, slots, 1),
            draw,
            view,
            writes=[written],
            reads=[
                Buffer('logits', logits),
                Buffer('temperatures', temperatures),
                Buffer('shares', shares),
            ],
        )

    @torch.inference_mode()
    def run(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        temperatures: Sequence[float] = (),
        shares: Sequence[float] = (),
    ) -> list[int]:
        """Append a token to each row, whose length counts it already; return the next tokens.

        A row whose logits are not finite has NONE.

        temperatures, shares: how the token of each row is sampled, see `sample_tokens`; by default
        all are greedy. Raises ValueError for more rows than the largest batch has.
        """
        slots = smallest(self._sizes, len(rows), 'rows', 'raise planner_rows')
        given = dict(ids=ids, temperatures=temperatures, shares=shares)
        for name, values in given.items():
            sent = self._inputs.cut(name, slots).host
            sent[:] = 0
            sent[: len(values)] = values
        graph = self.graphs[Shape(KIND, slots, 1)]
        graph.view.bind(rows)
        graph.replay()
        if any(temperatures):
            self.graphs[Shape(DRAW, slots, 1)].replay()
        self._host.copy_(self._chosen, non_blocking=True)
        Stream.current(self._arena.device).synchronize()
        return self._host[: len(rows)].tolist()


@dataclass(eq=False)
class Decoding:
    """An answer that is being decoded and has at least one token."""

    row: int
    held: RowPlan  # the plan in the row
    stops: Collection[int]  # tokens of which each ends the answer
    most: int  # maximum number of answer tokens
    on_held: Callable[[RowPlan], None]  # receives `held` after each token, on the engine thread
    choice: Choice = GREEDY
    fault: RobotMemoryError | None = None  # that ended it; raised by `PlannerRows.decode`

    @property
    def can_go_on(self) -> bool:
        """Whether the answer has another token."""
        return self.fault is None and not self.held.plan.over


def not_finite() -> RobotMemoryError:
    """Return the error of an answer whose logits are not finite."""
    return RobotMemoryError(
        'logits of the planner must be finite (got NaN or infinity); plan again', ErrorCode.UNKNOWN
    )


class PlannerRows:
    """The KV rows of a planner; as a pool of the KV budget, the free ones."""

    name = 'free planner rows'

    def __init__(self, model: Planner, rows: int = 1) -> None:
        b = model.config.backbone
        self._model = model
        self.arena = Arena(
            layers=b.layers,
            rows=rows,
            kv_heads=b.kv_heads,
            max_tokens=model.config.max_tokens,
            head_dim=b.head_dim,
            dtype=model.dtype,
            device=model.device,
        )
        # Padding a batch is worthwhile only where each size costs a capture.
        sizes = range(1, rows + 1) if model.device.type == 'cpu' else doubling(rows)
        self._token_step = TokenStep(model, self.arena, sizes)
        self._free = list(range(rows))
        self._decoding: list[Decoding] = []
        # Held while a step computes, so that the end of an answer waits for it. Reentrant because
        # the generator of an abandoned answer may be closed anywhere.
        self._lock = threading.RLock()
        self._asking = threading.Lock()  # to request a step; the engine thread never takes it
        self.steps = self.tokens = 0  # tokens / steps is the mean batch size

    def take(self) -> int:
        """Return a free row. Raise ValueError if there is none."""
        with self._lock:
            if not self._free:
                raise ValueError(f'planners must be at most {self.arena.rows}; raise planner_rows')
            row = self._free.pop(0)
            self.arena.clear(row)
            return row

    def give_back(self, row: int) -> None:
        """Empty a row and mark it as free."""
        with self._lock:
            self.arena.set_length(row, 0)
            self._free.append(row)

    def decode(self, decoding: Decoding, step: Step) -> Iterator[RowPlan]:
        """Yield the plan in the row after each step until its answer ends.

        `step` runs a piece of computation on the engine thread, and waits for it. Raises
        RobotMemoryError if the logits of this answer are not finite; others go on.
        """
        with self._lock:
            self._decoding.append(decoding)
        try:
            while not decoding.held.plan.over:
                said = len(decoding.held.plan.answer)
                with self._asking:
                    if len(decoding.held.plan.answer) == said and decoding.can_go_on:
                        step(self._advance)
                if decoding.fault is not None:
                    raise decoding.fault
                yield decoding.held
            yield decoding.held  # another thread may have requested the last step
        finally:
            with self._lock:
                self._decoding.remove(decoding)

    @torch.inference_mode()
    def _advance(self) -> None:
        """Decode one token of every row with an unfinished answer."""
        with self._lock:
            active = (one for one in self._decoding if one.can_go_on)
            decoding = sorted(active, key=lambda one: one.row)
            if not decoding:
                return
            for one in decoding:
                self.arena.set_length(one.row, one.held.plan.next_position + 1)
            tokens = self._token_step.run(
                [one.row for one in decoding],
                [one.held.plan.answer[-1] for one in decoding],
                [one.choice.temperature for one in decoding],
                [one.choice.share(len(one.held.plan.answer)) for one in decoding],
            )
            for one, token in zip(decoding, tokens, strict=True):
                if token == NONE:
                    one.fault = not_finite()
                    continue
                length = int(self.arena.lengths[0, one.row])
                one.held = one.held.with_token(token, one.stops, one.most, length)
                one.on_held(one.held)
            self.steps, self.tokens = self.steps + 1, self.tokens + len(decoding)

    @property
    def bytes(self) -> int:
        return len(self._free) * self.arena.bytes_per_row

    bytes_used = bytes_reserved = 0

    def evictable(self) -> list[Evictable]:
        """Return nothing: free rows use no memory of the budget."""
        return []

    def check_integrity(self) -> None:
        """Raise AssertionError unless free rows are empty and decode nothing."""
        with self._lock:
            lengths = self.arena.lengths[0, self._free]
            assert not lengths.any(), f'free rows have {lengths} tokens'
            assert not {one.row for one in self._decoding} & {*self._free}, 'a free row decodes'
