"""Problems of chains through the serving prefill of memory, one by one, by any way of reuse.

Each segment's KV is computed alone, once, and stored; the pieces of a problem name it. In addition
to the answer, a reply has the share of the asked chain's tokens that each layer computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.memory.reuse_variants import ComparingPrefill
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.prefill import Load, Work
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import LayerState, Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.model.planner import Planner
from training.judge.chains import ASK, BOS, MAX_HOPS, Chains, walk


@dataclass(frozen=True, eq=False)
class Problem:
    """A prompt, its answer, and the indices of the asked chain's segments in the prompt."""

    prompt: Prompt
    answer: int
    chain: tuple[int, ...]


def problems(chains: Chains) -> Iterator[Problem]:
    """Yield the problems that ask for `start`; each segment's KV is computed alone."""
    for row, (keys, values) in enumerate(zip(chains.keys, chains.values, strict=True)):
        pairs = list(zip(keys.tolist(), values.tolist(), strict=True))
        yield problem(
            chains, row, [Piece(str(i), p, f'{p[0]} {p[1]}') for i, p in enumerate(pairs)]
        )


def problem(chains: Chains, row: int, pieces: Sequence[Piece]) -> Problem:
    """Return the problem of a row.

    pieces: its segments, named by their index, in any order and of any units.
    """
    start = chains.start[row]
    path = {str(i) for i in walk(chains.ahead, MAX_HOPS)[row, :, start]}
    prompt = Prompt((BOS,), tuple(pieces), (ASK, int(chains.keys[row, start])))
    chain = tuple(i for i, piece in enumerate(pieces) if piece.segment in path)
    return Problem(prompt, int(chains.answers[row, start]), chain)


class IsolatedKv:
    """Replaces `load_memory`: the KV of a two-token segment, computed alone from position 0."""

    def __init__(self, model: Planner) -> None:
        self._model, self._kv = model, {}

    def __call__(self, unit: str, layer: int) -> tuple[Tensor, Tensor]:
        if unit not in self._kv:
            self._kv[unit] = self._compute([int(token) for token in unit.split()])
        return self._kv[unit][layer]

    @torch.inference_mode()
    def _compute(self, ids: list[int]) -> list[tuple[Tensor, Tensor]]:
        arena, positions = arena_of(self._model, len(ids)), torch.arange(len(ids))
        arena.set_length(0, len(ids))
        view = SparsePositionView(arena, 0).bind(positions)
        self._model(torch.tensor([ids]), positions[None], view)
        return [(k[0], v[0]) for k, v in arena.layers]


def arena_of(model: Planner, tokens: int) -> Arena:
    """Return an arena of one row for this model."""
    b = model.config.backbone
    return Arena(
        layers=b.layers,
        rows=1,
        kv_heads=b.kv_heads,
        max_tokens=tokens,
        head_dim=b.head_dim,
        dtype=model.dtype,
    )


class Watched(Reuse):
    """Wraps another way of reuse and records its choices. masks: of each layer, bool [length]."""

    def __init__(self, reuse: Reuse) -> None:
        self._reuse, self.masks = reuse, []

    def resident(self, prompt: Prompt) -> int:
        return self._reuse.resident(prompt)

    def first(self, prompt: Prompt) -> Tensor:
        self.masks = [self._reuse.first(prompt)]
        return self.masks[0].clone()

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        self.masks.append(self._reuse.after(state, computed))
        return self.masks[-1]


@dataclass(frozen=True, eq=False)
class Reply:
    """Whether the answer is right, and its cost.

    kept: share of the asked chain's tokens that each layer computed.
    """

    right: bool
    kept: tuple[float, ...]
    work: Work


class Asking:
    """A judge with the KV of its segments, and a row to prefill.

    load: returns the KV of a unit; default: `IsolatedKv`.
    """

    def __init__(self, model: Planner, load: Load | None = None) -> None:
        b = model.config.backbone
        self._model = model
        arena = arena_of(model, model.config.max_tokens)
        move = Rotation(wavelengths(b.head_dim, b.rope_theta)[None])
        self._prefill = ComparingPrefill(model, arena, 0, load or IsolatedKv(model), move)

    def ask(self, problem: Problem, reuse: Reuse) -> Reply:
        """Answer greedily from the last token of the prompt."""
        watched, prompt = Watched(reuse), problem.prompt
        hidden, work = self._prefill.run(prompt, watched)
        said = int(self._model.logits(self._model.backbone.norm(hidden)).argmax())
        of_chain = torch.isin(prompt.owner, torch.tensor(problem.chain))
        kept = tuple(float(mask[of_chain].float().mean()) for mask in watched.masks)
        return Reply(said == problem.answer, kept, work)
