"""The live state of one hybrid session: named tensors whose addresses never change.

Knows names, shapes and how transformers' layers read and write them. Does not know which tokens
are folded when, or what a capsule is.

Four parts, by the first word of a name: `kv` (keys, values and token ids by position), `fold`
(recurrent and convolution states, a function of the whole prefix with no positions in it),
`checkpoint` (the fold as it was at the last block boundary) and `head` (logits of the newest
token).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.hybrid.config import HybridConfig

KV, FOLD = ('kv/k', 'kv/v'), ('fold/recurrent', 'fold/conv')  # what a layer of each kind keeps
POSITIONAL = {'kv/k': 2, 'kv/v': 2, 'kv/tokens': 0}  # name: its axis of positions


class HybridState:
    """Buffers of one session (batch 1), zero at first; layers of a kind lie in one buffer.

    kv/k, kv/v [full layers, kv_heads, capacity, head_dim]; kv/tokens int64 [capacity]; kv/length
    int64 [1]; fold/recurrent float32 [linear layers, heads, key_dim, value_dim]; fold/conv [linear
    layers, channels, kernel - 1]; checkpoint/... as fold/...; head/logits float32 [vocab].

    by_layer: of each layer, its own part of the buffers of its kind, `KV` or `FOLD`. used:
    positions from here on are zero, as nothing was written there since they were cleared.
    """

    def __init__(self, c: HybridConfig, device: torch.device | str = 'cpu') -> None:
        self.config, self.used = c, 0
        full, linear = len(c.full_layers), len(c.linear_layers)
        own = getattr(torch, c.dtype)
        slots = (full, c.kv_heads, c.capacity, c.head_dim)
        recurrent = (linear, c.linear_heads, c.linear_dim, c.linear_dim)
        conv = (linear, c.linear_channels, c.kernel - 1)
        kinds = {
            'kv/k': (slots, own),
            'kv/v': (slots, own),
            'kv/tokens': ((c.capacity,), torch.int64),
            'kv/length': ((1,), torch.int64),
            'fold/recurrent': (recurrent, torch.float32),
            'fold/conv': (conv, own),
            'checkpoint/recurrent': (recurrent, torch.float32),
            'checkpoint/conv': (conv, own),
            'head/logits': ((c.vocab_size,), torch.float32),
        }
        self.buffers = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in kinds.items()
        }
        self.by_layer: dict[int, dict[str, Tensor]] = {}
        for layers, names in ((c.full_layers, KV), (c.linear_layers, FOLD)):
            for i, layer in enumerate(layers):
                self.by_layer[layer] = {name: self.buffers[name][i] for name in names}

    def __getitem__(self, name: str) -> Tensor:
        return self.buffers[name]

    def names(self, part: str) -> list[str]:
        """Return the names of the buffers of a part."""
        return [name for name in self.buffers if name.startswith(f'{part}/')]

    def valid(self, length: int) -> dict[str, Tensor]:
        """Return all buffers; of those that have positions, a view of the first `length`."""
        return self.buffers | {name: self._positions(name, 0, length) for name in POSITIONAL}

    def claim(self, end: int) -> None:
        """Allow any content in positions before `end` from now on."""
        self.used = max(self.used, end)

    def write(self, saved: Mapping[str, Tensor], length: int) -> None:
        """Copy saved bytes over their `valid(length)`; positions after them become zero.

        A masked slot has weight zero, so its content must be finite, wherever it comes from.
        """
        valid = self.valid(length)
        for name, tensor in saved.items():
            valid[name].copy_(tensor)
        if length < self.used:
            for name in POSITIONAL:
                self._positions(name, length, self.used).zero_()
        self.used = length

    def clear(self) -> None:
        """Reset to no tokens, and zero at every position."""
        for buffer in self.buffers.values():
            buffer.zero_()
        self.used = 0

    def copy_fold(self, source: str, target: str) -> None:
        """Copy the fold of one part ('fold' or 'checkpoint') over the other's."""
        for a, b in zip(self.names(source), self.names(target), strict=True):
            self.buffers[b].copy_(self.buffers[a])

    def _positions(self, name: str, start: int, end: int) -> Tensor:
        return self.buffers[name].narrow(POSITIONAL[name], start, end - start)


@dataclass(frozen=True)
class HybridView:
    """A state with the interface of a cache of transformers' layers, for one call.

    positions: int64 [T], where the call's tokens lie. visible: slots that attention is given; the
    mask decides which of them count. The layers' batch of one is added and removed here.
    """

    state: HybridState
    positions: Tensor
    visible: int

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store k, v [1, kv_heads, T, head_dim] in their slots; return all visible K and V."""
        stored = []
        for name, new in zip(KV, (k, v), strict=True):
            slots = self.state.by_layer[layer][name]
            slots.index_copy_(1, self.positions, new[0])
            stored.append(slots[None, :, : self.visible])
        return stored[0], stored[1]

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Tensor:
        """Return the last inputs of the convolution, [1, channels, kernel - 1].

        `update_conv_state` shifts them in place.
        """
        return self.state.by_layer[layer]['fold/conv'][None]

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> Tensor:
        """Return the fold of all tokens so far, [1, heads, key_dim, value_dim]."""
        return self.state.by_layer[layer]['fold/recurrent'][None]

    def update_conv_state(self, new: Tensor, layer: int, conv_kernel_size: int) -> Tensor:
        """Return new inputs [1, channels, T] after the last ones, and keep the newest."""
        last = self.get_conv_state(layer)
        inputs = torch.cat([last, new], dim=-1)
        last.copy_(inputs[..., 1 - conv_kernel_size :])
        return inputs

    def update_recurrent_state(self, new: Tensor, layer: int) -> None:
        """Store the fold after this call, [1, heads, key_dim, value_dim]."""
        self.get_recurrent_state(layer).copy_(new)

    def is_recording_past(self, layer: int) -> bool:
        """Return False: to go back, a checkpoint is loaded."""
        return False
