"""The baseline that copies: each stream owns a whole cache.

Caches are batched by concatenation and unbatched by splitting. This is how OxyGen's manager does
it (section 3.2: it duplicates the prefill cache for language, stacks the caches of all requests
along the batch for a frame's decode steps, and splits them again after it).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from embodied_kv.kernels.attention import row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kv.arena import Arena
from embodied_kv.model.pi05 import Pi05


class ContiguousAppend:
    """A KV view over contiguous caches.

    Their shape: [layers, slots, kv_heads, max_tokens, head_dim].
    """

    def __init__(self, k: Tensor, v: Tensor, lengths: list[int], tokens: int) -> None:
        self._k, self._v = k, v
        end = torch.tensor(lengths, dtype=torch.int32)
        self.positions = (end[:, None].long() + torch.arange(tokens)).to(k.device)
        after = (end + tokens)[None].numpy()
        batch = RowBatch(len(lengths), after, tokens, causal=True, device=k.device)
        self._batch = batch.bind(range(len(lengths)))
        self._ids = torch.arange(len(lengths), device=k.device)[:, None]

    def newest(self, hidden: Tensor) -> Tensor:
        """Return the hidden states of the last tokens, [slots, width]."""
        return hidden[:, -1]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self._k[layer][self._ids, :, self.positions] = k
        self._v[layer][self._ids, :, self.positions] = v

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return row_attention(q, self._k[layer], self._v[layer], self._batch)[0]


class CopyingStreams:
    """Live streams with caches of their own; `copying` adds up the seconds spent moving them.

    timer: the clock of these seconds.
    """

    def __init__(
        self, model: Pi05, max_tokens: int, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model, self._max_tokens, self._timer = model, max_tokens, timer
        self.streams: list[dict] = []
        self.copying = 0.0

    def __len__(self) -> int:
        return len(self.streams)

    def open(self, arena: Arena, row: int, ids: list[int], tokens: int, said: int = 0) -> None:
        """Open a stream: duplicate the prefix into a cache with room for its tokens."""
        began = self._timer()
        k, v = arena.row(row)
        length = k.shape[2]
        room = *k.shape[:2], self._max_tokens, k.shape[3]
        own = k.new_zeros(room), v.new_zeros(room)
        own[0][:, :, :length], own[1][:, :, :length] = k, v
        self.copying += self._timer() - began
        stream = dict(
            cache=own,
            length=length + (len(ids) + said - 1 if said else 0),
            ids=ids,
            said=[10] * said,
            tokens=tokens,
        )
        self.streams.append(stream)

    def decode(self, steps: int) -> int:
        """Begin new streams, decode `steps` tokens of all in one batch; return the tokens made."""
        said = sum(self._begin(stream) for stream in self.streams if not stream['said'])
        began = self._timer()
        streams = self.streams
        k, v = (torch.stack([s['cache'][i] for s in streams], dim=1) for i in (0, 1))
        self.copying += self._timer() - began
        for step in range(steps):
            lengths = [s['length'] + step for s in streams]
            ids = torch.tensor([[s['said'][-1]] for s in streams], device=k.device)
            chosen = (
                self._model.extend(ids, ContiguousAppend(k, v, lengths, 1)).argmax(-1).tolist()
            )
            for stream, token in zip(streams, chosen, strict=True):
                stream['said'].append(token)
        began = self._timer()
        for slot, stream in enumerate(streams):
            stream['cache'] = k[:, slot].clone(), v[:, slot].clone()
            stream['length'] += steps
        self.copying += self._timer() - began
        self.streams = [s for s in streams if len(s['said']) < s['tokens']]
        return said + sum(min(steps, s['tokens'] - len(s['said']) + steps) for s in streams)

    def _begin(self, stream: dict) -> int:
        k, v = (part[:, None] for part in stream['cache'])
        view = ContiguousAppend(k, v, [stream['length']], len(stream['ids']))
        ids = torch.tensor([stream['ids']], device=k.device)
        stream['said'].append(int(self._model.extend(ids, view).argmax()))
        stream['length'] += len(stream['ids'])
        return 1
