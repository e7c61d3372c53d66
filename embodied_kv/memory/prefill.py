"""A prefill that computes some tokens of a prompt and loads the others, layer by layer.

Knows the order of things: what is loaded before a layer, what is computed in it, what is decided
after it. Which tokens, a `Reuse` decides; the model is handed in and stepped one layer at a time.

Source: KEEP, section 5: `load_memory`, `prefill_layer`, `importance_evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.placed import PlacedTokens
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import Look, Reuse

# unit, layer -> K, V [kv_heads, n, head_dim] as computed from position 0 on
Load = Callable[[str, int], tuple[Tensor, Tensor]]
# K [kv_heads, n, head_dim], how many positions further -> the same keys there
Move = Callable[[Tensor, int], Tensor]


class Model(Protocol):
    """What memory needs of a planner; see `model.planner.Planner`."""

    def embed(self, ids: Tensor) -> Tensor: ...

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]: ...

    def layer(
        self, i: int, hidden: Tensor, cache: PlacedTokens, rope: tuple[Tensor, Tensor]
    ) -> Tensor: ...

    def keys(self, i: int, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor: ...


@dataclass
class Work:
    """Tokens that were computed, and loaded, in each layer."""

    computed: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)


class Prefill:
    """Fills one row of an arena with prompts, one after another."""

    def __init__(self, model: Model, arena: Arena, row: int, load: Load, move: Move) -> None:
        self._model, self._arena, self._row = model, arena, row
        self._load, self._move = load, move
        self._layers = len(arena.layers)

    @torch.inference_mode()
    def run(self, prompt: Prompt, reuse: Reuse) -> tuple[Tensor, Work]:
        """Hidden state of the prompt's last token before the final norm, [1, 1, width].

        Raises ValueError for a prompt that is longer than a row.
        """
        if prompt.length > self._arena.max_tokens:
            raise ValueError(
                f'a prompt of {prompt.length} tokens does not fit a row of '
                f'{self._arena.max_tokens}: retrieve less memory, or raise max_tokens'
            )
        resident = reuse.resident(prompt)
        self._arena.set_length(self._row, prompt.length)
        computed = reuse.first(prompt)
        computed[:resident] = False
        places = computed.nonzero()[:, 0]
        hidden, work = self._model.embed(prompt.ids[places][None]), Work()
        for layer in range(self._layers):
            view = PlacedTokens(self._arena, self._row).bind(places)
            loaded = self._fill(view, layer, prompt, ~computed, resident)
            rope = self._model.rope(places[None])
            hidden = self._model.layer(layer, hidden, view, rope)
            work.computed.append(len(places))
            work.loaded.append(loaded)
            if layer + 1 < self._layers:
                look = self._look(prompt, layer, places, hidden, rope, view)
                computed = reuse.after(look, computed)
                stays = computed[places]
                places, hidden = places[stays], hidden[:, stays]
        return hidden[:, -1:], work

    def _fill(
        self, view: PlacedTokens, layer: int, prompt: Prompt, absent: Tensor, resident: int
    ) -> int:
        """Puts stored KV where tokens are not computed -> how many; whole pieces at once."""
        loaded = 0
        for i, (piece, start) in enumerate(zip(prompt.pieces, prompt.starts, strict=True)):
            end = start + len(piece.ids)
            if start >= resident and absent[start:end].any():
                view.put(layer, start, *self._stored(layer, i, prompt))
                loaded += end - start
        return loaded

    def _stored(self, layer: int, i: int, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """Stored K and V of piece i, as if computed where it lies now."""
        piece = prompt.pieces[i]
        tokens = slice(piece.offset, piece.offset + len(piece.ids))
        k, v = (part[:, tokens] for part in self._load(piece.unit, layer))
        return self._move(k, prompt.starts[i] - piece.offset), v

    def _look(
        self,
        prompt: Prompt,
        layer: int,
        places: Tensor,
        hidden: Tensor,
        rope: tuple[Tensor, Tensor],
        view: PlacedTokens,
    ) -> Look:
        def deviation() -> Tensor:
            new = self._model.keys(layer + 1, hidden, rope)[0]  # [T, kv_heads, head_dim]
            found = torch.zeros(len(places))
            for i, (piece, start) in enumerate(zip(prompt.pieces, prompt.starts, strict=True)):
                at = (places >= start) & (places < start + len(piece.ids))
                if piece.unit and at.any():
                    k, _ = self._stored(layer + 1, i, prompt)
                    old = k[:, places[at] - start].transpose(0, 1)
                    found[at] = (new[at] - old).float().square().sum((1, 2))
            return found

        return Look(prompt, layer, self._layers, places, view.queries, view.keys(layer), deviation)
