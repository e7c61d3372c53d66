"""A planner with full attention in every layer and one session, and its part of a capsule.

It has the interface of the recurrent planner of `benchmarks.hybrid`, but its state is KV alone, so
that an automatic prefix cache can serve it, too. A prefill runs in calls of at most `BLOCK`
tokens. Knows tokens, KV and logits. Does not know capsules' tiers or block tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from benchmarks.frame.copying import ContiguousAppend
from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.config import TINY, preset
from embodied_kv.engine.fingerprint import weights_digest
from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.model.prepacked import pack
from embodied_kv.model.random import init_random

BLOCK = 512  # tokens of one call of a prefill
PLANNERS = {
    'attention_tiny': PlannerConfig('attention_tiny', TINY.backbone, max_tokens=640),
    'attention_small': PlannerConfig(
        'attention_small', preset('pi05_small').backbone, max_tokens=1024, dtype='bfloat16'
    ),
}


class AttentionPlanner:
    """A causal model and its one session (batch 1).

    k, v: [layers, 1, kv_heads, max_tokens, head_dim]; the first `length` positions are valid.
    logits: of the next token, float32 [vocab].
    """

    def __init__(self, config: PlannerConfig, seed: int = 0, device: str = 'cpu') -> None:
        b = config.backbone
        self.config, self.vocab_size = config, b.vocab_size
        self.model = Planner.empty(config, device)
        init_random(self.model, seed)
        pack(self.model)  # as an engine does
        shape = (b.layers, 1, b.kv_heads, config.max_tokens, b.head_dim)
        self.k, self.v = torch.zeros(2, *shape, dtype=self.model.dtype, device=device)
        self.logits = torch.zeros(b.vocab_size, device=device)
        self.length = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        """Compute tokens from empty. Raises ValueError as `append`."""
        self.length = 0
        self.append(tokens)

    @torch.inference_mode()
    def append(self, tokens: Sequence[int]) -> None:
        """Compute more tokens. Raises ValueError, with nothing changed, if they do not fit."""
        if self.length + len(tokens) > self.config.max_tokens:
            raise ValueError(
                f'a session must have <= {self.config.max_tokens} tokens (got '
                f'{self.length + len(tokens)})'
            )
        for block in torch.as_tensor(tokens, device=self.model.device).split(BLOCK):
            view = ContiguousAppend(self.k, self.v, [self.length], len(block))
            hidden = self.model(block[None], view.positions, view)
            self.length += len(block)
        self.logits.copy_(self.model.logits(view.newest(hidden))[0])

    def valid(self) -> tuple[Tensor, Tensor]:
        """Return views of the valid K and V, [layers, kv_heads, length, head_dim]."""
        return self.k[:, 0, :, : self.length], self.v[:, 0, :, : self.length]


class AttentionPart:
    """KV and logits of the planner, as a part of a capsule."""

    name, depth = 'planner', 'planner'

    def __init__(self, planner: AttentionPlanner) -> None:
        self._planner = planner
        self._weights = weights_digest(planner.model)

    def buffers(self) -> Iterable[Tensor]:
        """Return all buffers of the planner."""
        return self._planner.k, self._planner.v, self._planner.logits

    def freeze(self) -> FrozenPart:
        """Return copies of the valid KV and of the logits."""
        k, v = self._planner.valid()
        tensors = dict(k=k.clone(), v=v.clone(), logits=self._planner.logits.clone())
        return FrozenPart(tensors, dict(weights=self._weights, length=self._planner.length))

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError for a state of other weights."""
        if frozen.fact('weights') != self._weights:
            raise CapsuleError('the capsule must be of this planner (got one of other weights)')

    def resume(self, frozen: FrozenPart) -> None:
        """Continue from a frozen state, in place."""
        self._planner.length = int(frozen.facts['length'])
        for live, name in zip(self._planner.valid(), ('k', 'v'), strict=True):
            live.copy_(frozen.tensors[name])
        self._planner.logits.copy_(frozen.tensors['logits'])
