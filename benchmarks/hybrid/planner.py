"""A planner with recurrent state: linear attention in most layers, KV in a few, one session.

Knows when which tokens are folded, and what the next step depends on. Does not know capsules,
frames or robots, and shares no KV with the policy.

Exact append. The gated delta rule folds a prompt chunk by chunk, so a state depends on where the
chunks were cut. A prefill therefore runs in blocks of fixed size from position 0, then the rest
in one call, and keeps the fold of the last whole block as a checkpoint. An append goes back to it
and folds everything after it again, in the same calls on the same shapes as a cold prefill: the
bytes are the same. Tokens that were decoded one by one are folded again too.

Source: Execution-State Capsules, section 5, the chunk-alignment condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from benchmarks.hybrid.check import NEEDED, OPTIONAL, Mark, check, marks
from benchmarks.hybrid.config import HybridConfig
from benchmarks.hybrid.state import HybridState, HybridView


class AlignmentError(ValueError):
    """An append that could not give the bytes of a cold prefill."""


class HybridPlanner:
    """A model and its one session (batch 1), decoded greedily: there is no random state.

    Several planners may share a model. Buffers are allocated once; their addresses never change.
    """

    def __init__(self, config: HybridConfig, model: Qwen3_5ForCausalLM) -> None:
        self.config, self.model = config, model
        self._live = HybridState(config, model.device)
        self._slots = torch.arange(config.capacity, device=model.device)
        self._aligned: int | None = 0  # position of the checkpoint; None: there is none

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Return all buffers, whole: a captured step may hold their addresses.

        See `HybridState`.
        """
        return self._live.buffers

    @property
    def length(self) -> int:
        """Return the number of tokens folded so far."""
        return int(self._live['kv/length'])

    @property
    def logits(self) -> Tensor:
        """Return the live logits of the next token, float32 [vocab]."""
        return self._live['head/logits']

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> None:
        """Fold tokens from empty. Raises ValueError, with nothing changed, if they do not fit."""
        new = self._admit(tokens, 0)
        self._live.clear()
        self._aligned = 0
        self._fold(new)

    @torch.inference_mode()
    def append(self, tokens: Sequence[int]) -> None:
        """Fold more tokens: the same bytes as a cold prefill of all tokens.

        Raises AlignmentError where no checkpoint is kept, ValueError if they do not fit; with
        nothing changed.
        """
        length = self.length
        new = self._admit(tokens, length)
        if self._aligned is None:
            raise AlignmentError(
                f'{length} tokens are folded and no checkpoint of a block of {self.config.block} '
                'tokens is kept: prefill the whole prompt, or load a state that has one'
            )
        self._fold(torch.cat([self._live['kv/tokens'][self._aligned : length], new]))

    @torch.inference_mode()
    def decode(self, n: int) -> list[int]:
        """Return the next n tokens, greedy, each folded before the next.

        Raises ValueError if there is no room, or nothing was prefilled.
        """
        start = self.length
        if not start:
            raise ValueError('nothing has been prefilled: there is nothing to decode from')
        self._check_room(start, n)
        self._live.claim(start + n)
        for _ in range(n):
            self._step()
        return self._live['kv/tokens'][start : start + n].tolist()

    def state(self) -> dict[str, Tensor]:
        """Return live views of all that the next step depends on, valid positions only.

        Clone them to keep them. Names and shapes: `HybridState`, with `length` positions.
        """
        parts = NEEDED if self._aligned is None else (*NEEDED, OPTIONAL)
        valid = self._live.valid(self.length)
        return {name: valid[name] for part in parts for name in self._live.names(part)}

    def facts(self) -> dict[str, Mark]:
        """Return, by part, how many tokens it has folded, and the digest of these tokens."""
        return marks(self._live['kv/tokens'][: self.length], self._aligned)

    def check(self, state: Mapping[str, Tensor], facts: Mapping[str, Mark]) -> None:
        """Raise ValueError for what `load` would refuse."""
        check(state, facts, self._live)

    def load(self, state: Mapping[str, Tensor], facts: Mapping[str, Mark]) -> None:
        """Write a saved state over the live one, in place; nothing of another prompt stays.

        The checkpoint part may be left out: then decode continues, and append is refused unless
        the state is at a block boundary, where its fold is the checkpoint. Raises ValueError, with
        nothing changed, for any other part that is missing or has folded another prompt.
        """
        self.check(state, facts)
        self.put(state, facts)

    @torch.inference_mode()
    def put(self, state: Mapping[str, Tensor], facts: Mapping[str, Mark]) -> None:
        """Write a saved state as `load` does, after `check` has accepted it."""
        length = facts['kv']['length']
        self._live.write(state, length)
        self._aligned = facts.get(OPTIONAL, {}).get('length')
        if self._live.names(OPTIONAL)[0] not in state:
            self._live.copy_fold('fold', 'checkpoint')
            self._aligned = length if self._aligned == length else None

    def _admit(self, tokens: Sequence[int], length: int) -> Tensor:
        """Return tokens int64 [T] on the device, if they can be folded after `length` others."""
        new = torch.as_tensor(tokens, dtype=torch.int64, device=self.model.device)
        if not len(new):
            raise ValueError('there are no tokens to fold')
        for token in (int(new.min()), int(new.max())):
            if not 0 <= token < self.config.vocab_size:
                raise ValueError(f'token {token} is not among {self.config.vocab_size}')
        self._check_room(length, len(new))
        return new

    def _check_room(self, length: int, more: int) -> None:
        if length + more > self.config.capacity:
            raise ValueError(
                f'{length} tokens and {more} more do not fit into {self.config.capacity}'
            )

    def _fold(self, tokens: Tensor) -> None:
        """Fold tokens int64 [T] after the checkpoint: whole blocks, then the rest."""
        live, end = self._live, self._aligned
        live.claim(end + len(tokens))
        live.copy_fold('checkpoint', 'fold')
        for block in tokens.split(self.config.block):
            positions = self._slots[end : end + len(block)]
            end += len(block)
            live['kv/tokens'].index_copy_(0, positions, block)
            self._run(block, positions, visible=end)
            if len(block) == self.config.block:
                live.copy_fold('fold', 'checkpoint')
                self._aligned = end
        live['kv/length'].fill_(end)

    def _step(self) -> None:
        """Decode one token. Shapes and addresses are the same at any position; nothing waits."""
        length, tokens = self._live['kv/length'], self._live['kv/tokens']
        token = self.logits.argmax(keepdim=True)
        tokens.index_copy_(0, length, token)
        self._run(token, length, visible=self.config.capacity)
        length.add_(1)

    def _run(self, tokens: Tensor, positions: Tensor, visible: int) -> None:
        """Compute int64 [T] tokens at their positions: K, V, fold and last logits, in place."""
        causal = self._slots[:visible] <= positions[:, None]  # [T, visible]
        out = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=dict(full_attention=causal[None, None], linear_attention=None),
            past_key_values=HybridView(self._live, positions, visible),
            logits_to_keep=1,
        )
        self.logits.copy_(out.logits[0, 0])
