"""Sizes of the hybrid planner: a Qwen3.5-class text model and the one session that it keeps.

Knows numbers. Does not know torch or transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 64  # tokens that one chunk of the gated delta rule folds at once


@dataclass(frozen=True)
class HybridConfig:
    """Every `full_every`-th layer attends over KV, the others fold tokens by the gated delta rule.

    linear_heads, linear_dim: of queries, keys and values of a linear layer. kernel: taps of its
    causal convolution. capacity: most tokens a session may hold. block: tokens that one prefill
    call folds, so states are exact at its multiples.
    """

    name: str
    width: int
    layers: int
    full_every: int
    heads: int
    kv_heads: int
    head_dim: int
    linear_heads: int
    linear_dim: int
    mlp: int
    vocab_size: int
    capacity: int
    kernel: int = 4
    block: int = CHUNK
    rope_theta: float = 10_000_000.0
    eps: float = 1e-6
    dtype: str = 'float32'

    def __post_init__(self) -> None:
        if self.block <= 0 or self.block % CHUNK:
            raise ValueError(f'block {self.block} is no multiple of the chunk of {CHUNK} tokens')
        if not (self.full_layers and self.linear_layers):
            raise ValueError(
                f'{self.layers} layers with attention in every {self.full_every}th are no hybrid'
            )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Return the indices of the layers that keep keys and values."""
        return tuple(range(self.full_every - 1, self.layers, self.full_every))

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Return the indices of the layers that keep a recurrent and a convolution state."""
        return tuple(i for i in range(self.layers) if i not in self.full_layers)

    @property
    def linear_channels(self) -> int:
        """Return the channels of a linear layer's convolution: queries, keys and values."""
        return 3 * self.linear_heads * self.linear_dim

    def aligned(self, length: int) -> int:
        """Return the last block boundary within `length` tokens."""
        return length - length % self.block


PLANNER_TINY = HybridConfig(
    name='planner_tiny', width=64, layers=4, full_every=2, heads=4, kv_heads=2, head_dim=16,
    linear_heads=2, linear_dim=16, mlp=128, vocab_size=320, capacity=512,
)  # fmt: skip

# pi05_small's backbone with a fold in eight of its ten layers.
PLANNER_SMALL = HybridConfig(
    name='planner_small', width=640, layers=10, full_every=5, heads=8, kv_heads=1, head_dim=80,
    linear_heads=8, linear_dim=80, mlp=2560, vocab_size=8192, capacity=8192 + 512,
    dtype='bfloat16',
)  # fmt: skip

PLANNERS: dict[str, HybridConfig] = {c.name: c for c in (PLANNER_TINY, PLANNER_SMALL)}


def planner_preset(name: str) -> HybridConfig:
    """Return the planner of that name. Raises ValueError that lists the names."""
    if name not in PLANNERS:
        raise ValueError(f'no planner {name!r}; there are: {", ".join(PLANNERS)}')
    return PLANNERS[name]
