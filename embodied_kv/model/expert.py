"""The action expert: flow matching over a shared prefix, conditioned on time.

Everything that depends on time alone is computed once for all steps (`modulation`): the adaptive
norms of pi0.5, or the encoded time in the input of pi0 and SmolVLA, whose norms are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import BackboneConfig, ExpertConfig, ModelConfig
from embodied_kv.kv.views import KvView
from embodied_kv.model.layers import DecoderLayer, PlainLayer, RmsNorm, Rope, plain_norm


@dataclass(frozen=True)
class Modulation:
    """What a denoise step reads in addition to the actions.

    scale (including 1), shift, gate: of the norms, each [norms, width]. time: the encoded time in
    the input, [1, width]; () without. Where the slots of a batch differ in time, each is a list of
    tensors, which broadcast over [B, chunk, width].
    """

    scale: Tensor | Sequence[Tensor]
    shift: Tensor | Sequence[Tensor]
    gate: Tensor | Sequence[Tensor]
    time: Tensor | Sequence[Tensor] = ()

    @property
    def parts(self) -> tuple[Tensor | Sequence[Tensor], ...]:
        """Return the fields in order, without an empty `time`."""
        norms = self.scale, self.shift, self.gate
        return (*norms, self.time) if len(self.time) else norms


class ExpertLayer(DecoderLayer):
    """A decoder layer whose two norms are dense(conditioning) -> scale, shift, gate."""

    def __init__(self, e: ExpertConfig, b: BackboneConfig) -> None:
        super().__init__(e.width, e.mlp, b)
        self.attn_norm = nn.Linear(e.width, 3 * e.width)
        self.mlp_norm = nn.Linear(e.width, 3 * e.width)


def flow_times(steps: int, is_summed: bool = False) -> Tensor:
    """Return the times of Euler steps, float32 [steps], from 1 down.

    Each is rounded once from double, as in LeRobot, or summed in float32, as in openpi. They
    differ in the last bit, which changes a chunk of pi0.5 by up to 5e-4.
    """
    if is_summed:
        moves = np.full(steps, -1 / steps, np.float32)
        moves[0] = 1
        return torch.from_numpy(np.cumsum(moves, dtype=np.float32))
    return torch.tensor([1.0 + step * (-1.0 / steps) for step in range(steps)])


class Expert(nn.Module):
    """Layers over the backbone's KV, action and time projections.

    rows: the layer of a prefix row that each layer reads, of the backbone or of its projections.
    """

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        e, b, action_dim = c.expert, c.backbone, c.padded_action_dim
        self.config, self.eps, width = e, b.eps, e.width
        places = range(0, b.layers, e.every)
        self.crosses = {i: b.layers + j for j, i in enumerate(c.cross_layers)}
        self.rows = [self.crosses.get(i, i) for i in places]
        self._numbers = {i: number for number, i in enumerate(places)}  # backbone layer -> ours
        self.is_adaptive = e.time == 'norms'
        layers = nn.ModuleList(
            ExpertLayer(e, b)
            if self.is_adaptive
            else PlainLayer(width, e.mlp, b, is_cross=i in self.crosses)
            for i in places
        )
        self.layers = cast(Sequence[DecoderLayer], layers)
        self.norm = nn.Linear(width, 3 * width) if self.is_adaptive else plain_norm(width, b)
        self.action_in = nn.Linear(action_dim, width)
        self.action_out = nn.Linear(width, action_dim)
        self.time_in = nn.Linear(width if self.is_adaptive else 2 * width, width)
        self.time_out = nn.Linear(width, width)
        self.rope = Rope(b.head_dim, b.rope_theta)

    def time_embedding(self, times: Tensor) -> Tensor:
        """Return sines, then cosines, [S, width] float32 of times [S]; angles in float64."""
        e = self.config
        fraction = torch.linspace(0, 1, e.width // 2, dtype=torch.float64, device=times.device)
        period = e.time_min_period * (e.time_max_period / e.time_min_period) ** fraction
        angle = times.double()[:, None] * (2 * torch.pi / period)
        return torch.cat([angle.sin(), angle.cos()], dim=-1).float()

    def conditioning(self, embedding: Tensor) -> Tensor:
        """Return [S, width] of encoded times: linear, SiLU, linear, SiLU."""
        return F.silu(self.time_out(F.silu(self.time_in(embedding))))

    def modulation(self, times: Tensor) -> list[Modulation]:
        """Return one table for each of times [S]."""
        return self.modulation_of(self.time_embedding(times))

    def modulation_of(self, embedding: Tensor) -> list[Modulation]:
        """Return one table for each of the encoded times [S, width].

        The norms are in the order attention, MLP of each layer, then final.
        """
        embedding = embedding.to(self.time_in.weight.dtype)
        layers = [norm for layer in self.layers for norm in (layer.attn_norm, layer.mlp_norm)]
        norms = [*layers, self.norm]
        if not self.is_adaptive:
            scale = torch.stack([norm.scale() for norm in cast(list[RmsNorm], norms)])
            shift, gate = torch.zeros_like(scale), torch.ones_like(scale, dtype=embedding.dtype)
            return [Modulation(scale, shift, gate, time[None]) for time in embedding]
        condition = self.conditioning(embedding)
        table = torch.stack([norm(condition) for norm in norms], dim=1)
        scale, shift, gate = table.chunk(3, dim=-1)  # each [S, norms, width]
        return [
            Modulation(1 + s.float(), h.float(), g)
            for s, h, g in zip(scale, shift, gate, strict=True)
        ]

    def embed(self, x: Tensor, m: Modulation) -> Tensor:
        """Return [B, chunk, width] of x_t [B, chunk, padded_action_dim]."""
        action = self.action_in(x)
        if self.is_adaptive:
            return action
        both = torch.cat([action, m.time[0].expand_as(action)], dim=-1)
        return self.time_out(F.silu(self.time_in(both)))

    def suffix_rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return cos and sin of positions [B, T]; with cross layers, those of 0 .. T-1 too."""
        rope = self.rope(positions, dtype)
        if not self.crosses:
            return rope
        first = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
        return (*rope, *self.rope(first, dtype))

    def cross_kv(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projections of the backbone's K and V of a layer in `crosses`."""
        return self.layers[self._numbers[layer]].cross_kv(k, v)

    def forward(
        self, hidden: Tensor, m: Modulation, cache: KvView, rope: tuple[Tensor, ...]
    ) -> Tensor:
        """Return hidden [B, chunk, width] after the final norm, whose gate is unused."""
        projected = {*self.crosses.values()}
        for i, (layer, row) in enumerate(zip(self.layers, self.rows, strict=True)):
            a, f = 2 * i, 2 * i + 1
            is_cross, normed = row in projected, self._norm(hidden, m, a)
            attend: Callable[..., Tensor] = layer.cross_attention if is_cross else layer.attention
            branch = attend(row, normed, cache, rope[2:] if is_cross else rope[:2])
            hidden = torch.addcmul(hidden, branch, m.gate[a])
            branch = layer.feed_forward(self._norm(hidden, m, f))
            hidden = torch.addcmul(hidden, branch, m.gate[f])
        return self._norm(hidden, m, -1)

    def _norm(self, x: Tensor, m: Modulation, i: int) -> Tensor:
        normed = F.rms_norm(x.float(), x.shape[-1:], eps=self.eps)
        return torch.addcmul(m.shift[i], normed, m.scale[i]).to(x.dtype)
