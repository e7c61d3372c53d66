"""A prefill that computes some tokens of a prompt and loads the others, layer by layer.

Knows the order of things: what is computed in a layer, what is decided after it, and that the rest
is loaded beside it. Which tokens, a `Reuse` decides; the model is handed in and stepped one layer
at a time.

A layer is computed in blocks of tokens, each of which sees those before it. A block, and the
choice after the last one, is a step of whoever owns the device (`step`), who gets it back after
each. Loads run on the thread of a `Loader`: a piece that the next layer does not compute in full
is dropped the moment that is known, and its KV of all later layers may be loaded from then on,
beside the steps that are left. The choice follows the whole layer, on the thread that computes; in
the paper a third thread chooses beside the layer's MLP, which would have to share a core here.
`benchmarks.memory.pipeline.simulate(decided=...)` computes what that would gain.

Source: KEEP, section 5: `load_memory`, `prefill_layer`, `importance_evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.sparse_position_view import SparsePositionView
from embodied_kv.kv.transfer import copy_to
from embodied_kv.memory.importance import Importance
from embodied_kv.memory.layout import LayerLayout
from embodied_kv.memory.loader import Loader
from embodied_kv.memory.pending import Pending
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import LayerState, Reuse
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.memory.timeline import Timeline
from embodied_kv.runtime.stream import Event, Stream

T = TypeVar('T')
# unit, layer -> K, V [kv_heads, n, head_dim] as computed from position 0 on
Load = Callable[[str, int], tuple[Tensor, Tensor]]
# K [kv_heads, n, head_dim], how many positions further -> the same keys there
Move = Callable[[Tensor, int], Tensor]
Step = Callable[[Callable[[], T]], T]
# Of some tokens: hidden states [1, T, width], queries [T, heads, head_dim], sums [T, heads]
Block = tuple[Tensor, Tensor, Tensor]


class KvLost(MemoryFault):
    """Stored KV that cannot be had, or not any more. unit: whose."""

    def __init__(self, unit: str, reason: MemoryFault) -> None:
        super().__init__(str(reason))
        self.unit = unit


class Model(Protocol):
    """What memory needs of a planner; see `model.planner.Planner`."""

    def embed(self, ids: Tensor) -> Tensor: ...

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]: ...

    def layer(
        self, i: int, hidden: Tensor, cache: SparsePositionView, rope: tuple[Tensor, Tensor]
    ) -> Tensor: ...

    def keys(self, i: int, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor: ...


@dataclass
class Work:
    """What a prefill did: tokens computed, loaded and lacking by layer; choices by importance."""

    computed: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    lacks: list[int] = field(default_factory=list)
    chosen: list[Importance] = field(default_factory=list)
    timeline: Timeline = field(default=Timeline(()))


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """What a layer computes. mask: bool [length]; positions: int64 [T]; hidden: [1, T, width]."""

    mask: Tensor
    positions: Tensor
    hidden: Tensor

    def only(self, mask: Tensor) -> LayerTokens:
        """Those of them that are in a mask, [length]."""
        stays = mask[self.positions]
        return LayerTokens(
            mask, self.positions[stays], self.hidden[:, stays.to(self.hidden.device)]
        )

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions and hidden states of so many at a time."""
        return zip(self.positions.split(size), self.hidden.split(size, 1), strict=True)


class Prefill:
    """Fills one row of an arena with prompts, one after another.

    load: `MemoryStore.load_memory`; of two threads at once, where a method asks for deviations.
    step: runs each piece of computation, and returns what it returns, when it is done. block:
    tokens of a step.
    """

    def __init__(
        self,
        model: Model,
        arena: Arena,
        row: int,
        load: Load,
        move: Move,
        policy: str = 'balanced',
        step: Step = lambda work: work(),
        block: int = 256,
    ) -> None:
        self._model, self._arena, self._row = model, arena, row
        self._load, self._move, self._policy, self._step = load, move, policy, step
        self._block, self._layers = block, len(arena.layers)
        self._computed: Event | None = (
            None  # the end of the last step, on the stream that computes
        )

    def run(self, prompt: Prompt, reuse: Reuse) -> tuple[Tensor, Work]:
        """Hidden state of the prompt's last token before the final norm, [1, 1, width].

        Raises ValueError for a prompt that is longer than a row, KvLost for a piece whose KV
        cannot be loaded: the row is then only good to be filled again.
        """
        if prompt.length > self._arena.max_tokens:
            raise ValueError(
                f'a prompt of {prompt.length} tokens does not fit a row of '
                f'{self._arena.max_tokens}: retrieve less memory, or raise max_tokens'
            )
        resident = reuse.resident(prompt)
        tokens = self._run_step(partial(self._first, prompt, reuse, resident))
        pieces = {piece.segment: i for i, piece in enumerate(prompt.pieces)}
        pending, work = Pending(self._layers, list(pieces), self._policy), Work()
        load, device = partial(self._put, prompt, pieces), self._arena.device
        with Loader(pending, load, device, after=self._computed) as loader:
            absent = _absent(prompt, tokens.mask, resident)
            loader.drop(absent, 0)
            for layer in range(self._layers):
                work.computed.append(len(tokens.positions))
                work.loaded.append(sum(absent.values()))
                with loader.computing(layer):
                    layout = LayerLayout(prompt, tokens.mask)
                    work.lacks.append(layout.lacks)
                    if layout.lacks:
                        self._run_step(partial(self._close_up, layout, layer))
                    blocks = self.prefill_layer(tokens, layer, layout)
                    state = prompt, reuse, work, layer, layout, tokens, blocks
                    choice = partial(self._choose, *state)
                    tokens = self._run_step(choice)
                    absent = _absent(prompt, tokens.mask, resident)
                    loader.drop(absent, layer + 1)
        if any(work.lacks):
            length = prompt.length - min(work.lacks)
            self._run_step(partial(self._arena.set_length, self._row, length))
        work.timeline = loader.timeline
        return tokens.hidden[:, -1:], work

    def prefill_layer(self, tokens: LayerTokens, layer: int, layout: LayerLayout) -> list[Block]:
        """The paper's second interface: a layer of these tokens; their KV is in the row then.

        Whatever else the layer needs lies there already.
        """
        blocks = tokens.blocks(self._block)
        return [self._run_step(partial(self._compute, layer, layout, *block)) for block in blocks]

    def _compute(
        self, layer: int, layout: LayerLayout, positions: Tensor, hidden: Tensor
    ) -> Block:
        view = SparsePositionView(self._arena, self._row).bind(layout.places[positions])
        rope = self._model.rope(positions[None].to(self._arena.device))
        hidden = self._model.layer(layer, hidden, view, rope)
        assert view.queries is not None and view.sums is not None
        return hidden, view.queries, view.sums

    def _choose(
        self,
        prompt: Prompt,
        reuse: Reuse,
        work: Work,
        layer: int,
        layout: LayerLayout,
        tokens: LayerTokens,
        blocks: list[Block],
    ) -> LayerTokens:
        """What the next layer computes; after the last one the tokens stay."""
        hidden, queries, sums = zip(*blocks, strict=True)
        tokens = LayerTokens(tokens.mask, tokens.positions, torch.cat(hidden, 1))
        if layer + 1 == self._layers:
            return tokens
        state = LayerState(
            prompt,
            layer,
            self._layers,
            tokens.positions,
            torch.cat(queries),
            torch.cat(sums),
            SparsePositionView(self._arena, self._row).keys(layer)[
                :, : prompt.length - layout.lacks
            ],
            layout,
            deviation=partial(self._deviation, prompt, layer + 1, tokens),
            on_choice=work.chosen.append,
        )
        return tokens.only(reuse.after(state, tokens.mask))

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
        self._arena.clear(self._row, prompt.length)  # what it held before may not be finite
        mask = reuse.first(prompt)
        mask[:resident] = False
        positions = mask.nonzero()[:, 0]
        ids = prompt.ids[positions].to(self._arena.device)
        return LayerTokens(mask, positions, self._model.embed(ids[None]))

    def _close_up(self, layout: LayerLayout, layer: int) -> None:
        layout.close_up(*(part[self._row] for part in self._arena.layers[layer]))

    def _put(self, prompt: Prompt, pieces: dict[str, int], segment: str, layer: int) -> None:
        """On the loading thread: the stored KV of a whole piece goes where it lies."""
        i = pieces[segment]
        k, v = self._stored(prompt, i, layer)
        SparsePositionView(self._arena, self._row).put(layer, prompt.starts[i], k, v)

    def _stored(self, prompt: Prompt, i: int, layer: int) -> tuple[Tensor, Tensor]:
        """Stored K and V of piece i, on the device, as if computed where it lies now."""
        piece = prompt.pieces[i]
        tokens = piece.stored or slice(piece.offset, piece.offset + len(piece.ids))
        try:
            stored = self._load(piece.unit, layer)
        except MemoryFault as fault:
            raise KvLost(piece.unit, fault) from fault
        k, v = (copy_to(part, self._arena.device, wait=False)[:, tokens] for part in stored)
        return self._move(k, prompt.starts[i] - piece.offset), v

    def _deviation(self, prompt: Prompt, layer: int, tokens: LayerTokens) -> Tensor:
        """How far the keys of each token in a layer are from the stored ones, float32 [T]."""
        positions = tokens.positions
        rope = self._model.rope(positions[None].to(self._arena.device))
        new = self._model.keys(layer, tokens.hidden, rope)[0]  # [T, kv_heads, head_dim]
        found = torch.zeros(len(positions), device=new.device)
        for i, (piece, start) in enumerate(zip(prompt.pieces, prompt.starts, strict=True)):
            at = (positions >= start) & (positions < start + len(piece.ids))
            if piece.unit and at.any():
                k, _ = self._stored(prompt, i, layer)
                mine = at.to(new.device)
                old = k[:, (positions[at] - start).to(new.device)].transpose(0, 1)
                found[mine] = (new[mine] - old).float().square().sum((1, 2))
        return found.cpu()


def _absent(prompt: Prompt, mask: Tensor, resident: int) -> dict[str, int]:
    """Tokens of each piece that is not computed in full, nor lies in the row already."""
    return {
        piece.segment: piece.kept
        for piece, start in zip(prompt.pieces, prompt.starts, strict=True)
        if start >= resident and not mask[start : start + len(piece.ids)].all()
    }
