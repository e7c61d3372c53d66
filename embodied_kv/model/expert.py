"""The action expert: flow matching over a shared prefix, conditioned on time by adaptive norms.

The modulation depends on time alone, so the tables of all steps are computed once (`modulation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import BackboneConfig, ExpertConfig
from embodied_kv.kv.views import KvView
from embodied_kv.model.layers import DecoderLayer, Rope


@dataclass(frozen=True)
class Modulation:
    """The modulation of the norms in one denoise step.

    scale (including 1), shift, gate: each [norms, width]; or, where the slots of a batch differ in
    time, one tensor for each norm that broadcasts over [B, chunk, width].
    """

    scale: Tensor | Sequence[Tensor]
    shift: Tensor | Sequence[Tensor]
    gate: Tensor | Sequence[Tensor]


class ExpertLayer(DecoderLayer):
    """A decoder layer whose two norms are dense(conditioning) -> scale, shift, gate."""

    def __init__(self, e: ExpertConfig, b: BackboneConfig) -> None:
        super().__init__(e.width, e.mlp, b.heads, b.kv_heads, b.head_dim)
        self.attn_norm = nn.Linear(e.width, 3 * e.width)
        self.mlp_norm = nn.Linear(e.width, 3 * e.width)


class Expert(nn.Module):
    """Layers over the backbone's KV (layer i reads layer i), action and time projections."""

    def __init__(self, e: ExpertConfig, b: BackboneConfig, action_dim: int) -> None:
        super().__init__()
        self.config, self.eps = e, b.eps
        self.layers = nn.ModuleList(ExpertLayer(e, b) for _ in range(b.layers))
        self.norm = nn.Linear(e.width, 3 * e.width)
        self.action_in = nn.Linear(action_dim, e.width)
        self.action_out = nn.Linear(e.width, action_dim)
        self.time_in = nn.Linear(e.width, e.width)
        self.time_out = nn.Linear(e.width, e.width)
        self.rope = Rope(b.head_dim, b.rope_theta)

    def time_embedding(self, times: Tensor) -> Tensor:
        """Return sines, then cosines, [S, width] float32 of times [S]; angles in float64."""
        e = self.config
        fraction = torch.linspace(0, 1, e.width // 2, dtype=torch.float64, device=times.device)
        period = e.time_min_period * (e.time_max_period / e.time_min_period) ** fraction
        angle = times.double()[:, None] * (2 * torch.pi / period)
        return torch.cat([angle.sin(), angle.cos()], dim=-1).float()

    def conditioning(self, times: Tensor) -> Tensor:
        """Return [S, width] of times [S]: linear, SiLU, linear, SiLU."""
        embedding = self.time_embedding(times).to(self.time_in.weight.dtype)
        return F.silu(self.time_out(F.silu(self.time_in(embedding))))

    def modulation(self, times: Tensor) -> list[Modulation]:
        """Return one table for each of times [S].

        The norms are in the order attention, MLP of each layer, then final.
        """
        condition = self.conditioning(times)
        dense = [norm for layer in self.layers for norm in (layer.attn_norm, layer.mlp_norm)]
        table = torch.stack([norm(condition) for norm in (*dense, self.norm)], dim=1)
        scale, shift, gate = table.chunk(3, dim=-1)  # each [S, norms, width]
        return [
            Modulation(1 + s.float(), h.float(), g)
            for s, h, g in zip(scale, shift, gate, strict=True)
        ]

    def embed(self, x: Tensor) -> Tensor:
        """Return [B, chunk, width] of x_t [B, chunk, action_dim]."""
        return self.action_in(x)

    def forward(
        self, hidden: Tensor, m: Modulation, cache: KvView, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return hidden [B, chunk, width] after the final adaptive norm (its gate is unused)."""
        for i, layer in enumerate(self.layers):
            a, f = 2 * i, 2 * i + 1
            branch = layer.attention(i, self._norm(hidden, m, a), cache, rope)
            hidden = torch.addcmul(hidden, branch, m.gate[a])
            branch = layer.feed_forward(self._norm(hidden, m, f))
            hidden = torch.addcmul(hidden, branch, m.gate[f])
        return self._norm(hidden, m, -1)

    def _norm(self, x: Tensor, m: Modulation, i: int) -> Tensor:
        normed = F.rms_norm(x.float(), x.shape[-1:], eps=self.eps)
        return torch.addcmul(m.shift[i], normed, m.scale[i]).to(x.dtype)
