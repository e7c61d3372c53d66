"""A tiny planner, prompts of random tokens, and KV of their units as a store returns it."""

import torch

from embodied_kv.config import BackboneConfig
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.prefill import Prefill
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.model.planner import Planner, PlannerConfig

CONFIG = PlannerConfig('test', BackboneConfig(32, 4, 4, 2, 8, 48, 50), max_tokens=64)
B = CONFIG.backbone


def make_planner():
    torch.manual_seed(0)
    model = Planner(CONFIG).requires_grad_(False)
    for p in model.parameters():
        p.normal_(0, 0.2)
    return model


def make_arena():
    return Arena(
        layers=B.layers,
        rows=1,
        kv_heads=B.kv_heads,
        head_dim=B.head_dim,
        max_tokens=CONFIG.max_tokens,
        dtype=torch.float32,
    )


def make_prompt(head=3, segments=5, together=False, seed=0):
    """Return a prompt with segments of two to four tokens, each in its own unit or all in one."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(50, (count,), generator=generator).tolist()

    pieces, offset = [], 0
    for i in range(segments):
        ids = tokens(2 + i % 3)
        pieces.append(Piece(f's{i}', ids, 'all' if together else f'u{i}', offset))
        offset += len(ids) if together else 0
    return Prompt(tokens(head), tuple(pieces), tokens(4))


class KvOfUnits:
    """A `load_memory` function; it computes the KV of each unit alone, from position 0 on."""

    @torch.inference_mode()
    def __init__(self, model, prompt):
        ids = {}
        for piece in prompt.pieces:
            ids.setdefault(piece.unit, []).extend(piece.ids)
        self.kv = {unit: self._compute(model, tokens) for unit, tokens in ids.items()}

    def _compute(self, model, tokens):
        arena, positions = make_arena(), torch.arange(len(tokens[: CONFIG.max_tokens]))
        arena.set_length(0, len(positions))
        tokens = torch.tensor(tokens[: CONFIG.max_tokens])
        model(tokens[None], positions[None], SparsePositionView(arena, 0).bind(positions))
        return [tuple(part[0, :, : len(positions)] for part in layer) for layer in arena.layers]

    def __call__(self, unit, layer):
        return self.kv[unit][layer]


def make_prefill(model, load, move=None, **more):
    move = move or Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
    return Prefill(model, make_arena(), 0, load, move, **more)
