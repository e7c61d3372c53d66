"""SmolVLA over a row of the arena equals one dense computation with explicit masks.

The reference follows policies/smolvla/modeling_smolvla.py and smolvlm_with_expert.py of LeRobot:
all slots are computed and masked, the prefix with the state is one sequence with two blocks, and
cross attention projects the cached keys in every layer that needs them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from embodied_kv.config import TINY_SMOLVLA
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation

LAYERS = 5
BASE = replace(TINY_SMOLVLA, backbone=replace(TINY_SMOLVLA.backbone, layers=LAYERS))


def variant(frame=(), empty=0, slots=0, **expert):
    return replace(
        BASE,
        frame=frame,
        empty_views=empty,
        view_slots=slots,
        expert=replace(BASE.expert, **expert),
    )


VARIANTS = {
    'every second layer attends to the actions': variant(),
    'every third': variant(self_every=3),
    'all layers': variant(self_every=1),
    'no layer': variant(self_every=0),
    'an expert layer for two': variant(every=2, self_every=4),
    'framed pictures': variant(frame=(7, 9)),
    'framed pictures and an empty camera': variant(frame=(7, 9), empty=1, slots=3),
}


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x, positions):
    """Return x [T, heads, D] rotated by positions [T]; base 10000, half-split."""
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * 10000.0 ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attention(q, k, v, mask):
    """Return [T, heads * D] of q [T, heads, D]; k, v [S, kv_heads, D]; mask [T, S]."""
    group = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    scores = torch.einsum('tnd,snd->nts', q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum('nts,snd->tnd', weights, v).flatten(1)


class Dense:
    """The network in float64, over all slots of one observation."""

    def __init__(self, policy):
        self.c, self.policy = policy.config, policy
        self.w = {name: value.double() for name, value in policy.model.state_dict().items()}

    def heads(self, x):
        return x.unflatten(-1, (-1, self.c.backbone.head_dim))

    def layer_kv(self, name, x):
        """Return q, k, v of a layer that projects them by one product."""
        b = self.c.backbone
        qkv = self.heads(x @ self.w[f'{name}.qkv.weight'].T)
        return qkv.split([b.heads, b.kv_heads, b.kv_heads], dim=1)

    def branches(self, name, x, attended):
        x = x + attended @ self.w[f'{name}.o.weight'].T
        normed = norm(x, self.w[f'{name}.mlp_norm.weight'], self.c.backbone.eps)
        gate, up = (normed @ self.w[f'{name}.gate_up.weight'].T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ self.w[f'{name}.down.weight'].T

    def prefix(self, pictures, ids, state):
        """Return embeddings and validity of all slots: pictures, text, state."""
        c, scale = self.c, self.c.backbone.width**0.5
        embed = self.w['backbone.embed.weight']
        frame = [embed[i][None] for i in (*c.frame, *c.frame[:1])]
        present = [picture for picture in pictures if picture is not None]
        absent = min(c.empty_views, c.view_slots - len(present))
        parts, valid = [], []
        for picture in [*present, *[None] * absent]:
            tower = self.policy.model.vision
            images = self.policy.images([np.zeros((28, 28, 3), np.uint8)])
            if picture is not None:
                images = self.policy.images([picture])
            tokens = tower.project(tower.encode(tower.embed_patches(images)))[0].double() * scale
            parts += [*frame[:-1], tokens, *frame[-1:]]
            valid += [True] * len(frame[:-1])
            valid += [picture is not None] * len(tokens) + [True] * len(frame[-1:])
        parts += [embed[ids] * scale, torch.zeros(3, embed.shape[1]).double()]  # padded text
        valid += [True] * len(ids) + [False] * 3
        padded = torch.from_numpy(self.policy.state_token(state)).double()
        parts.append((padded @ self.w['state_in.weight'].T + self.w['state_in.bias'])[None])
        return torch.cat(parts), torch.tensor([*valid, True])

    def cache(self, x, valid):
        """Return rotated keys, and values, of each language layer."""
        positions, last = valid.cumsum(0) - 1, len(valid) - 1
        mask = valid[:, None] & valid
        mask[:last, last] = False  # pictures and prompt do not see the state
        mask |= torch.eye(len(valid), dtype=bool)  # a masked slot sees itself, to avoid NaN
        found = []
        for i in range(self.c.backbone.layers):
            name = f'backbone.layers.{i}'
            normed = norm(x, self.w[f'{name}.attn_norm.weight'], self.c.backbone.eps)
            q, k, v = self.layer_kv(name, normed)
            q, k = rotated(q, positions), rotated(k, positions)
            found.append((k, v))
            x = self.branches(name, x, attention(q, k, v, mask))
        return found

    def velocity(self, x_t, time, found, valid):
        c, w = self.c, self.w
        encoded = self.policy.model.expert.time_embedding(torch.tensor([time]))[0].double()
        action = x_t @ w['expert.action_in.weight'].T + w['expert.action_in.bias']
        x = torch.cat([action, encoded.expand_as(action)], -1)
        x = F.silu(x @ w['expert.time_in.weight'].T + w['expert.time_in.bias'])
        x = x @ w['expert.time_out.weight'].T + w['expert.time_out.bias']
        steps, e = torch.arange(len(x)), c.expert
        for i, (keys, values) in enumerate(found):
            if i % e.every:
                continue
            name = f'expert.layers.{i // e.every}'
            normed = norm(x, w[f'{name}.attn_norm.weight'], c.backbone.eps)
            if e.self_every and i % e.self_every == 0:
                q, k, v = self.layer_kv(name, normed)
                places = int(valid.sum()) + steps
                q, k = rotated(q, places), rotated(k, places)
                k, v = torch.cat([keys, k]), torch.cat([values, v])
                seen = valid.expand(len(x), -1)
                mask = torch.cat([seen, torch.ones(len(x), len(x)).tril().bool()], 1)
            else:
                q = rotated(self.heads(normed @ w[f'{name}.q.weight'].T), steps)
                k = self.heads(keys.flatten(1) @ w[f'{name}.k.weight'].T)
                v = self.heads(values.flatten(1) @ w[f'{name}.v.weight'].T)
                mask = valid.expand(len(x), -1)
            x = self.branches(name, x, attention(q, k, v, mask))
        x = norm(x, w['expert.norm.weight'], c.backbone.eps)
        return x @ w['expert.action_out.weight'].T + w['expert.action_out.bias']

    def chunk(self, pictures, ids, state, noise, count=10):
        embedded, valid = self.prefix(pictures, ids, state)
        found, x = self.cache(embedded, valid), torch.from_numpy(noise).double()
        for step in range(count):
            x = x - self.velocity(x, 1.0 - step / count, found, valid) / count
        return x.numpy()


@pytest.mark.parametrize('config', VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize('missing', [False, True])
@torch.inference_mode()
def test_a_chunk_equals_the_dense_one(config, missing):
    policy = Policy.random(config, seed=3)
    engine = Engine(policy, EngineConfig(rows=4, streams=1, time_budget=False, rtc='off'))
    random = np.random.default_rng(1)
    pictures = [random.integers(0, 256, (28, 28, 3), np.uint8) for _ in config.views]
    pictures[0] = None if missing else pictures[0]
    state = random.uniform(-1, 1, config.state_dim).astype(np.float32)
    noise = random.standard_normal((1, config.chunk_size, config.padded_action_dim), np.float32)
    seen = Observation(tuple(pictures), state, 'push the cup', 0, np.inf, 1)
    (handle,) = engine.prefill([seen])
    made, _ = engine._denoiser.run([handle.row], noise, 10)
    ids = policy.prompt_ids('push the cup', state)
    wanted = Dense(policy).chunk(pictures, ids, policy.processing.state(state), noise[0])
    np.testing.assert_allclose(made[0], wanted, atol=5e-5, rtol=0)
