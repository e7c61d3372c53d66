"""Many problems of one length at once, by any way of reuse: the serving prefill, made dense.

With one problem at a time, a prefill spends most of the time on threads and loads. Here each layer
computes all tokens of all problems, and tokens that a way does not compute are replaced by stored
K and V before any token attends to them; the choice for each problem is the library's own
`Reuse.after`. A test compares the answers of both implementations.

Knows prompts whose units are contiguous, as they were computed: rotary attention depends only on
distances, so their KV equals that of a pass in which each unit attends only to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.memory.judge_ask import Problem
from benchmarks.memory.reuse_variants import ComparedState, layer_keys
from embodied_kv.memory.reuse import Reuse
from embodied_kv.model.planner import Planner
from training.common.views import seen


class _Mixed:
    """A cache view: stored K and V, [B, T, kv_heads, head_dim], where `computed` [B, T] is false.

    stored: None uses all computed values. mask: additive, [B or 1, T, T]. After a layer, q, k, v
    and sums (the log-sum-exp of the scores, [B, heads, T]) are those of that layer.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask, self.stored, self.computed = mask[:, None], None, None

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        if self.stored is not None:
            mine = self.computed[..., None, None]
            k, v = (
                torch.where(mine, new, old) for new, old in zip((k, v), self.stored, strict=True)
            )
        self.q, self.k, self.v = q, k, v

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        group = q.shape[2] // k.shape[2]
        keys, values = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (self.k, self.v))
        scores = (q.transpose(1, 2) * q.shape[-1] ** -0.5) @ keys.mT + self._mask
        self.sums = scores.logsumexp(-1)
        return ((scores - self.sums[..., None]).exp() @ values).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Replies:
    """Replies to a batch of problems.

    right: bool [B]. kept: share of the asked chain's tokens that each layer computed, [B, layers].
    computed: share of the prompt's tokens that layers computed on average, [B].
    """

    right: Tensor
    kept: Tensor
    computed: Tensor


class ProblemBatch:
    """Problems of one length with the stored KV of their units."""

    @torch.inference_mode()
    def __init__(self, model: Planner, problems: Sequence[Problem]) -> None:
        self._model, self._problems = model, problems
        self._ids = torch.stack([problem.prompt.ids for problem in problems])
        tokens = self._ids.shape[1]
        self._rope = model.rope(torch.arange(tokens)[None])
        before = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        self._causal = seen(before)[None]
        units = torch.stack([_units(problem) for problem in problems])
        apart = _Mixed(seen(before & (units[:, :, None] == units[:, None])))
        hidden, self._stored = model.embed(self._ids), []
        for layer in range(model.config.backbone.layers):
            hidden = model.layer(layer, hidden, apart, self._rope)
            self._stored.append((apart.k, apart.v))

    @torch.inference_mode()
    def ask(self, reuse: Reuse) -> Replies:
        """Answer all problems by one way of reuse, greedily."""
        layers = len(self._stored)
        computed = torch.stack([reuse.first(problem.prompt) for problem in self._problems])
        hidden, masks = self._model.embed(self._ids), [computed]
        view = _Mixed(self._causal)
        for layer in range(layers):
            view.stored, view.computed = self._stored[layer], masks[-1]
            hidden = self._model.layer(layer, hidden, view, self._rope)
            if layer + 1 < layers:
                masks.append(self._choose(reuse, layer, hidden, view, masks[-1]))
        said = self._model.logits(self._model.backbone.norm(hidden[:, -1])).argmax(-1)
        found = torch.stack(masks, 1).float()  # [B, layers, T]
        kept = [
            mask[:, torch.isin(problem.prompt.owner, torch.tensor(problem.chain))].mean(1)
            for problem, mask in zip(self._problems, found, strict=True)
        ]
        answers = torch.tensor([problem.answer for problem in self._problems])
        return Replies(said == answers, torch.stack(kept), found.mean((1, 2)))

    def _choose(
        self, reuse: Reuse, layer: int, hidden: Tensor, view: _Mixed, computed: Tensor
    ) -> Tensor:
        """Return which tokens of each problem the next layer computes, bool [B, T]."""
        deviations = cache(partial(self._deviations, layer + 1, hidden))
        chosen = []
        for i, problem in enumerate(self._problems):
            positions = computed[i].nonzero()[:, 0]
            state = ComparedState(
                problem.prompt,
                layer,
                positions,
                view.q[i, positions],
                view.sums[i].T[positions],
                view.k[i].transpose(0, 1),
                deviation=lambda i=i, positions=positions: deviations()[i, positions],
            )
            chosen.append(reuse.after(state, computed[i]))
        return torch.stack(chosen)

    def _deviations(self, layer: int, hidden: Tensor) -> Tensor:
        """Return the squared distance of each token's new keys from the stored ones, [B, T]."""
        new = layer_keys(self._model, layer, hidden, self._rope)
        return (new - self._stored[layer][0]).float().square().sum((2, 3))


def _units(problem: Problem) -> Tensor:
    """Return a number for each token's unit, int64 [length].

    Head and question are one unit of their own.
    """
    pieces = problem.prompt.pieces
    names = {name: i for i, name in enumerate(dict.fromkeys(piece.unit for piece in pieces))}
    return torch.tensor([*(names[piece.unit] for piece in pieces), -1])[problem.prompt.owner]
