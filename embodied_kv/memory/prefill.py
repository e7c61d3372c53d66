"""Prefill that computes some tokens of a prompt and loads the others, layer by layer.

A `Reuse` method decides which tokens are computed; the model is stepped one layer at a time. A
layer is computed in blocks of tokens, each of which attends to those before it. A block, and the
choice after the last one, is a step that the owner of the device runs (`step`), so other work can
run between steps. Loads run on the thread of a `Loader`: a segment that the next layer does not
compute in full is dropped as soon as that is known, and its KV of all later layers may be loaded
from then on. The choice follows the layer on the computing thread; the paper uses a third thread
next to the layer's MLP, which would share a core here.
`benchmarks.memory.pipeline.simulate(decided=...)` computes what that would gain.

Source: KEEP, section 5: `load_memory`, `prefill_layer`, `importance_evaluation`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.transfer import copy_to
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.importance import Importance
from embodied_kv.memory.loader import Loader, LoadQueue
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import LayerState, Reuse
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.runtime.stream import Event, Stream

T = TypeVar('T')
# unit, layer -> K, V [kv_heads, n, head_dim] as computed from position 0 on
Load = Callable[[str, int], tuple[Tensor, Tensor]]
# K [kv_heads, n, head_dim], distance in positions, layer -> the same keys at their new positions
Move = Callable[[Tensor, int, int], Tensor]
Step = Callable[[Callable[[], T]], T]
# Of some tokens: hidden states [1, T, width], queries [T, heads, head_dim], sums [T, heads]
Block = tuple[Tensor, Tensor, Tensor]
LEAST_BLOCK = 16  # tokens of a step, however slow the machine is


class KvLostError(RobotMemoryError):
    """Stored KV of a unit that cannot be loaded."""

    def __init__(self, unit: str, reason: RobotMemoryError) -> None:
        super().__init__(str(reason))
        self.unit = unit


class Model(Protocol):
    """The methods of `model.planner.Planner` that a prefill calls."""

    def embed(self, ids: Tensor) -> Tensor: ...

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]: ...

    def layer(
        self, i: int, hidden: Tensor, cache: SparsePositionView, rope: tuple[Tensor, Tensor]
    ) -> Tensor: ...


@dataclass
class Work:
    """The work of a prefill: tokens computed and loaded by layer; choices by importance."""

    computed: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    chosen: list[Importance] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """The tokens that a layer computes."""

    mask: Tensor  # bool [length]
    positions: Tensor  # int64 [T]
    hidden: Tensor  # [1, T, width]


class Prefill:
    """Prefill of one row of an arena with prompts, one after another.

    Args:
        load: `MemoryStore.load_memory`.
        step: Runs a piece of computation, waits for it, and returns its result.
        block: Tokens of a step, at most.
        longest: Target duration of a step, s. By the median of the largest steps of a prompt, the
            steps of the next one have so many tokens, a power of two from LEAST_BLOCK to `block`.
    """

    loader: type[Loader] = Loader
    queue: Callable[[int, Sequence[str]], LoadQueue] = LoadQueue

    def __init__(
        self,
        model: Model,
        arena: Arena,
        row: int,
        load: Load,
        move: Move,
        step: Step = lambda work: work(),
        block: int = 256,
        longest: float = math.inf,
    ) -> None:
        self._model, self._arena, self._row = model, arena, row
        self._load, self._move, self._step = load, move, step
        self._block, self._layers = block, len(arena.layers)
        self._longest, self._most = longest, block
        self._took: list[tuple[int, float]] = []  # tokens and s of each block of a prompt
        self._loads = Stream.on(arena.device)
        self._computed: Event | None = None  # the end of the last step on the computing stream

    def run(self, prompt: Prompt, reuse: Reuse) -> tuple[Tensor, Work]:
        """Return the hidden state of the last token before the final norm, [1, 1, width].

        Raises:
            ValueError: The prompt is longer than a row.
            KvLostError: Stored KV cannot be loaded; the row must be filled again.
        """
        if prompt.length > self._arena.max_tokens:
            raise ValueError(
                f'prompt must have at most {self._arena.max_tokens} tokens (got '
                f'{prompt.length}); retrieve less memory, or raise max_tokens'
            )
        self._size_steps()
        resident = reuse.resident(prompt)
        tokens = self._run_step(partial(self._first, prompt, reuse, resident))
        pieces = {piece.segment: i for i, piece in enumerate(prompt.pieces)}
        pending, work = self.queue(self._layers, list(pieces)), Work()
        load, device = partial(self._put, prompt, pieces), self._arena.device
        with self.loader(pending, load, device, self._computed, self._loads) as loader:
            absent = _absent(prompt, tokens.mask, resident)
            loader.drop(absent, 0)
            for layer in range(self._layers):
                work.computed.append(len(tokens.positions))
                work.loaded.append(sum(absent.values()))
                with loader.computing(layer):
                    blocks = self.prefill_layer(tokens, layer)
                    state = prompt, reuse, work, layer, tokens, blocks
                    tokens = self._run_step(partial(self._choose, *state))
                    absent = _absent(prompt, tokens.mask, resident)
                    loader.drop(absent, layer + 1)
        return tokens.hidden[:, -1:], work

    def _size_steps(self) -> None:
        """Set the tokens of a step by the largest steps of the last prompt."""
        took, self._took = self._took, []
        most = max((tokens for tokens, _ in took), default=0)
        if self._longest == math.inf or most < LEAST_BLOCK:
            return
        seconds = statistics.median(each for tokens, each in took if tokens == most)
        fits = int(most * self._longest / seconds) if seconds else self._most
        self._block = max(LEAST_BLOCK, min(self._most, 1 << max(0, fits.bit_length() - 1)))

    def prefill_layer(self, tokens: LayerTokens, layer: int) -> list[Block]:
        """Compute a layer of these tokens, whose KV is then in the row, and return the blocks.

        This is the second interface of the paper. All other KV of the layer is in the row already.
        """
        parts = tokens.positions.split(self._block), tokens.hidden.split(self._block, 1)
        return [
            self._run_step(partial(self._compute, layer, *block))
            for block in zip(*parts, strict=True)
        ]

    def _compute(self, layer: int, positions: Tensor, hidden: Tensor) -> Block:
        began = time.perf_counter()
        view = SparsePositionView(self._arena, self._row).bind(positions)
        rope = self._model.rope(positions[None].to(self._arena.device))
        hidden = self._model.layer(layer, hidden, view, rope)
        assert view.queries is not None and view.sums is not None
        if self._longest < math.inf:
            Stream.current(self._arena.device).synchronize()  # else only the launch is measured
        self._took.append((len(positions), time.perf_counter() - began))
        return hidden, view.queries, view.sums

    def _choose(
        self,
        prompt: Prompt,
        reuse: Reuse,
        work: Work,
        layer: int,
        tokens: LayerTokens,
        blocks: list[Block],
    ) -> LayerTokens:
        """Return what the next layer computes; after the last one, the same tokens."""
        hidden, queries, sums = zip(*blocks, strict=True)
        tokens = LayerTokens(tokens.mask, tokens.positions, torch.cat(hidden, 1))
        if layer + 1 == self._layers:
            return tokens
        state = LayerState(
            prompt,
            layer,
            tokens.positions,
            torch.cat(queries),
            torch.cat(sums),
            SparsePositionView(self._arena, self._row).keys(layer),
            work.chosen.append,
        )
        mask = self.choice(reuse, state, tokens)
        stays = mask[tokens.positions]
        stay = tokens.hidden[:, stays.to(tokens.hidden.device)]
        return LayerTokens(mask, tokens.positions[stays], stay)

    def choice(self, reuse: Reuse, state: LayerState, tokens: LayerTokens) -> Tensor:
        """Return the mask of the tokens that the next layer computes."""
        return reuse.after(state, tokens.mask)

    def _run_step(self, work: Callable[[], T]) -> T:
        @wraps(work)
        def launched() -> T:
            with torch.inference_mode():
                result = work()
            self._computed = Stream.current(self._arena.device).record()
            return result

        return self._step(launched)

    def _first(self, prompt: Prompt, reuse: Reuse, resident: int) -> LayerTokens:
        self._arena.set_length(self._row, prompt.length)
        self._arena.clear(self._row, prompt.length)  # earlier content may not be finite
        mask = reuse.first(prompt)
        mask[:resident] = False
        positions = mask.nonzero()[:, 0]
        ids = prompt.ids[positions].to(self._arena.device)
        return LayerTokens(mask, positions, self._model.embed(ids[None]))

    def _put(self, prompt: Prompt, pieces: dict[str, int], segment: str, layer: int) -> None:
        """Write the stored KV of a segment into the row; runs on the loading thread."""
        i = pieces[segment]
        k, v = self.stored(prompt, i, layer)
        SparsePositionView(self._arena, self._row).put(layer, prompt.starts[i], k, v)

    def stored(self, prompt: Prompt, i: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return stored K and V of segment i, on the device, at its positions in the prompt."""
        piece = prompt.pieces[i]
        tokens = slice(piece.offset, piece.offset + len(piece.ids))
        try:
            stored = self._load(piece.unit, layer)
        except RobotMemoryError as fault:
            raise KvLostError(piece.unit, fault) from fault
        k, v = (copy_to(part, self._arena.device, wait=False)[:, tokens] for part in stored)
        return self._move(k, prompt.starts[i] - piece.offset, layer), v


def _absent(prompt: Prompt, mask: Tensor, resident: int) -> dict[str, int]:
    """Return the tokens of each segment that is neither computed in full nor resident."""
    return {
        piece.segment: len(piece.ids)
        for piece, start in zip(prompt.pieces, prompt.starts, strict=True)
        if start >= resident and not mask[start : start + len(piece.ids)].all()
    }
