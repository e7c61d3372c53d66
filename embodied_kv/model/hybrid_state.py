"""The live state of one hybrid session: named tensors whose addresses never change.

Knows names, shapes and how transformers' layers read and write them. Does not know which tokens
are folded when, or what a capsule is.

Four parts, by the first word of a name: `kv` (keys, values and token ids by position), `fold`
(recurrent and convolution states, a function of the whole prefix with no positions in it),
`checkpoint` (the fold as it was at the last block boundary) and `head` (logits of the newest
token).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.model.hybrid_config import HybridConfig


class HybridState:
    """Buffers of one session (batch 1), zero at first.

    kv/I/k, kv/I/v [kv_heads, capacity, head_dim]; kv/tokens int64 [capacity]; kv/length int64 [1];
    fold/I/recurrent float32 [heads, key_dim, value_dim]; fold/I/conv [channels, kernel - 1];
    checkpoint/I/... as fold/I/...; head/logits float32 [vocab]. I: index of the layer.
    """

    def __init__(self, c: HybridConfig, device: torch.device | str = 'cpu') -> None:
        self.config = c
        self._positional: dict[str, int] = {}  # name: its axis of positions
        self.buffers: dict[str, Tensor] = {}

        def buffer(name: str, *shape: int, dtype: torch.dtype, positions: int | None = None):
            self.buffers[name] = torch.zeros(shape, dtype=dtype, device=device)
            if positions is not None:
                self._positional[name] = positions

        dtype = getattr(torch, c.dtype)
        for i in c.full_layers:
            for name in ('k', 'v'):
                shape = (c.kv_heads, c.capacity, c.head_dim)
                buffer(f'kv/{i}/{name}', *shape, dtype=dtype, positions=1)
        buffer('kv/tokens', c.capacity, dtype=torch.int64, positions=0)
        buffer('kv/length', 1, dtype=torch.int64)
        for part in ('fold', 'checkpoint'):
            for i in c.linear_layers:
                shape = (c.linear_heads, c.linear_dim, c.linear_dim)
                buffer(f'{part}/{i}/recurrent', *shape, dtype=torch.float32)
                buffer(f'{part}/{i}/conv', c.linear_channels, c.kernel - 1, dtype=dtype)
        buffer('head/logits', c.vocab_size, dtype=torch.float32)

    def __getitem__(self, name: str) -> Tensor:
        return self.buffers[name]

    def names(self, part: str) -> list[str]:
        """Of the buffers of a part."""
        return [name for name in self.buffers if name.startswith(f'{part}/')]

    def valid(self, name: str, length: int) -> Tensor:
        """The buffer itself, or a view of its first `length` positions where it has any."""
        if name in self._positional:
            return self.buffers[name].narrow(self._positional[name], 0, length)
        return self.buffers[name]

    def write(self, name: str, saved: Tensor, length: int) -> None:
        """Copies saved bytes over `valid(name, length)`, and zeros over all other positions.

        A masked slot has weight zero, so what lies there must be finite.
        """
        self.valid(name, length).copy_(saved)
        if name in self._positional:
            rest = self.config.capacity - length
            self.buffers[name].narrow(self._positional[name], length, rest).zero_()

    def clear(self) -> None:
        """Back to no tokens."""
        for buffer in self.buffers.values():
            buffer.zero_()

    def copy_fold(self, source: str, target: str) -> None:
        """Copies the fold of one part ('fold' or 'checkpoint') over the other's."""
        for a, b in zip(self.names(source), self.names(target), strict=True):
            self.buffers[b].copy_(self.buffers[a])


@dataclass(frozen=True)
class HybridView:
    """A state as transformers' layers want their cache, for one call.

    positions: int64 [T], where the call's tokens lie. visible: slots that attention is given; the
    mask decides which of them count. The layers' batch of one is added and taken off here.
    """

    state: HybridState
    positions: Tensor
    visible: int

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """k, v [1, kv_heads, T, head_dim] into their slots -> all visible keys and values."""
        stored = []
        for name, new in (('k', k), ('v', v)):
            slots = self.state[f'kv/{layer}/{name}']
            slots.index_copy_(1, self.positions, new[0])
            stored.append(slots[None, :, : self.visible])
        return stored[0], stored[1]

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Tensor:
        """The last inputs of the convolution, [1, channels, kernel - 1], shifted in place."""
        return self.state[f'fold/{layer}/conv'][None]

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> Tensor:
        """The fold of all tokens so far, [1, heads, key_dim, value_dim]."""
        return self.state[f'fold/{layer}/recurrent'][None]

    def update_conv_state(self, new: Tensor, layer: int, conv_kernel_size: int) -> Tensor:
        """New inputs [1, channels, T] -> with the kept ones before them."""
        kept = self.get_conv_state(layer)
        inputs = torch.cat([kept, new], dim=-1)
        kept.copy_(inputs[..., 1 - conv_kernel_size :])
        return inputs

    def update_recurrent_state(self, new: Tensor, layer: int) -> None:
        """The fold after this call, [1, heads, key_dim, value_dim]."""
        self.get_recurrent_state(layer).copy_(new)

    def is_recording_past(self, layer: int) -> bool:
        """Never: to go back, a checkpoint is loaded."""
        return False
