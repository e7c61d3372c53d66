"""An automatic prefix cache: KV in blocks of equal size, found by the hash of their content.

A block is addressed by its tokens and the address of the block before it, so equal prefixes are
stored once. A hit is the longest chain of stored blocks from the first token on. Blocks are
evicted one by one, least recently used first, and of one prompt the last block first, because a
chain without its beginning is of no use. Knows tokens and KV. Does not know planners.

Source: vLLM's automatic prefix caching, the baseline of Execution-State Capsules, section 7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TOKENS = 16  # of a block, vLLM's default


class BlockCache:
    """KV blocks in a pool of bounded size.

    Args:
        size: Bytes of all blocks.
        k: K of a planner, whose V is alike; its shape is [layers, 1, kv_heads, max_tokens,
            head_dim].
    """

    def __init__(self, size: int, k: Tensor) -> None:
        layers, _, heads, _, dim = k.shape
        self.capacity = size // (2 * layers * heads * TOKENS * dim * k.element_size())
        shape = (2, self.capacity, layers, heads, TOKENS, dim)
        self._pool = torch.zeros(shape, dtype=k.dtype, device=k.device)  # K, then V
        self._free = list(range(self.capacity))
        self._blocks: OrderedDict[int, int] = OrderedDict()  # address: place; oldest first

    def __len__(self) -> int:
        """Return the number of stored blocks."""
        return len(self._blocks)

    @property
    def bytes(self) -> int:
        """Return the bytes of the pool."""
        return self._pool.nbytes

    def match(self, tokens: Sequence[int]) -> int:
        """Return how many first tokens have stored KV; at least one token is left to compute."""
        found = 0
        for address in _addresses(tokens[:-1]):
            if address not in self._blocks:
                break
            found += TOKENS
        return found

    def load(self, tokens: Sequence[int], k: Tensor, v: Tensor) -> int:
        """Copy the KV of the longest stored prefix into k and v; return its number of tokens."""
        found = self.match(tokens)
        if not found:
            return 0
        places = [self._blocks[address] for address in _addresses(tokens[:found])]
        for pool, live in zip(self._pool, (k, v), strict=True):
            # [blocks, layers, heads, TOKENS, dim] -> [layers, heads, tokens, dim]
            blocks = pool[places].permute(1, 2, 0, 3, 4)
            live[:, 0, :, :found].unflatten(2, (-1, TOKENS)).copy_(blocks)
        return found

    def store(self, tokens: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Store all whole blocks of tokens whose KV is in k and v, as far as blocks are free."""
        addresses = list(_addresses(tokens))
        for address in addresses:  # in use now, so other blocks are evicted first
            if address in self._blocks:
                self._blocks.move_to_end(address)
        used = set(addresses)
        for number, address in enumerate(addresses):
            if address in self._blocks:
                continue
            if not self._free:
                oldest = next(iter(self._blocks))
                if oldest in used:  # the prompt fills the pool
                    break
                self._free.append(self._blocks.pop(oldest))
            place = self._blocks[address] = self._free.pop()
            span = slice(number * TOKENS, (number + 1) * TOKENS)
            self._pool[0, place].copy_(k[:, 0, :, span])
            self._pool[1, place].copy_(v[:, 0, :, span])
        for address in reversed(addresses):
            if address in self._blocks:
                self._blocks.move_to_end(address)


def _addresses(tokens: Sequence[int]) -> Iterator[int]:
    """Yield the address of each whole block of tokens."""
    address = 0
    for begin in range(0, len(tokens) - TOKENS + 1, TOKENS):
        address = hash((address, *tokens[begin : begin + TOKENS]))
        yield address
