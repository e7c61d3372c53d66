"""A second implementation of pi0.5: numpy, float64, masks and padding of the references, no cache.

It does not import the package. It writes golden files of any dimensions, with which the model is
compared.
"""

import numpy as np
from safetensors.numpy import save_file

PALIGEMMA = 'paligemma_with_expert.paligemma.'
VISION = PALIGEMMA + 'model.vision_tower.vision_model.'
TEXT = PALIGEMMA + 'model.language_model.'
EXPERT = 'paligemma_with_expert.gemma_expert.model.'
SMALL = dict(
    num_images=2, image_size=28, patch_size=7, vision_width=24, vision_layers=2, vision_heads=3,
    vision_mlp_dim=40, text_width=40, text_layers=2, text_heads=6, text_kv_heads=2,
    text_head_dim=8, text_mlp_dim=56, vocab_size=64, expert_width=24, expert_mlp_dim=48,
    horizon=5, num_steps=4, action_dim=3, max_action_dim=12, max_token_len=9,
)  # fmt: skip
CONSTANTS = dict(
    vision_layer_norm_eps='1e-06', rms_norm_eps='1e-06', rope_theta='10000.0',
    time_min_period='0.004', time_max_period='4.0',
)  # fmt: skip


def random_weights(d, random):
    """Return all weights by their names in LeRobot and openpi, without `model.`."""
    w = {}

    def tensor(name, *shape, std, mean=0.0):
        w[name] = (mean + std * random.standard_normal(shape)).astype(np.float32)

    def linear(name, out, into, bias=None):
        tensor(f'{name}.weight', out, into, std=into**-0.5)
        if bias:
            tensor(f'{name}.bias', out, std=bias)

    def layer_norm(name, width):
        tensor(f'{name}.weight', width, std=0.2, mean=1.0)
        tensor(f'{name}.bias', width, std=0.1)

    def decoder(name, width, mlp):
        heads, kv = (d[f'text_{n}'] * d['text_head_dim'] for n in ('heads', 'kv_heads'))
        for part, rows in (('q', heads), ('k', kv), ('v', kv)):
            linear(f'{name}.self_attn.{part}_proj', rows, width)
        linear(f'{name}.self_attn.o_proj', width, heads)
        linear(f'{name}.mlp.gate_proj', mlp, width)
        linear(f'{name}.mlp.up_proj', mlp, width)
        linear(f'{name}.mlp.down_proj', width, mlp)

    v, t, e = d['vision_width'], d['text_width'], d['expert_width']
    patch = d['patch_size']
    tensor(VISION + 'embeddings.patch_embedding.weight', v, 3, patch, patch, std=0.1)
    tensor(VISION + 'embeddings.patch_embedding.bias', v, std=0.1)
    positions = (d['image_size'] // patch) ** 2
    tensor(VISION + 'embeddings.position_embedding.weight', positions, v, std=0.5)
    for i in range(d['vision_layers']):
        name = f'{VISION}encoder.layers.{i}'
        layer_norm(f'{name}.layer_norm1', v)
        layer_norm(f'{name}.layer_norm2', v)
        for part in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
            linear(f'{name}.self_attn.{part}', v, v, bias=0.1)
        linear(f'{name}.mlp.fc1', d['vision_mlp_dim'], v, bias=0.1)
        linear(f'{name}.mlp.fc2', v, d['vision_mlp_dim'], bias=0.1)
    layer_norm(VISION + 'post_layernorm', v)
    linear(PALIGEMMA + 'model.multi_modal_projector.linear', t, v, bias=0.1)
    tensor(PALIGEMMA + 'lm_head.weight', d['vocab_size'], t, std=t**-0.5)
    for i in range(d['text_layers']):
        decoder(f'{TEXT}layers.{i}', t, d['text_mlp_dim'])
        decoder(f'{EXPERT}layers.{i}', e, d['expert_mlp_dim'])
        for norm in ('input_layernorm', 'post_attention_layernorm'):
            tensor(f'{TEXT}layers.{i}.{norm}.weight', t, std=0.2)
            linear(f'{EXPERT}layers.{i}.{norm}.dense', 3 * e, e, bias=0.5)
    tensor(TEXT + 'norm.weight', t, std=0.2)
    linear(EXPERT + 'norm.dense', 3 * e, e, bias=0.5)
    linear('action_in_proj', e, d['max_action_dim'], bias=0.1)
    linear('action_out_proj', d['max_action_dim'], e, bias=0.1)
    linear('time_mlp_in', e, e, bias=0.1)
    linear('time_mlp_out', e, e, bias=0.1)
    return w


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def rms(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def turn(x, positions):
    """Return x [heads, tokens, dim] rotated by its positions, half-split."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 10_000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
    )


def attend(q, k, v, allowed):
    """Return the attention output [T, heads * D].

    q: [heads, T, D]. k, v: [kv heads, N, D]. allowed: bool [T, N].
    """
    repeat = len(q) // len(k)
    k, v = k.repeat(repeat, 0), v.repeat(repeat, 0)
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    scores = np.where(allowed, scores, -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return out.transpose(1, 0, 2).reshape(len(q[0]), -1)


class Reference:
    """The network for one sample at a time, with all padding."""

    def __init__(self, d, weights):
        self.d = d
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}

    def linear(self, name, x):
        return x @ self.w[f'{name}.weight'].T + self.w.get(f'{name}.bias', 0.0)

    def heads(self, name, part, x, dim):
        y = self.linear(f'{name}.self_attn.{part}_proj', x)
        return y.reshape(len(x), -1, dim).transpose(1, 0, 2)

    def layer_norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x * self.w[f'{name}.weight'] + self.w[f'{name}.bias']

    def image(self, pixels):
        p, side = self.d['patch_size'], self.d['image_size'] // self.d['patch_size']
        patches = pixels.reshape(3, side, p, side, p).transpose(1, 3, 0, 2, 4)
        kernel = self.w[VISION + 'embeddings.patch_embedding.weight']
        x = patches.reshape(side * side, -1) @ kernel.reshape(len(kernel), -1).T
        x = x + self.w[VISION + 'embeddings.patch_embedding.bias']
        first = x = x + self.w[VISION + 'embeddings.position_embedding.weight']
        dim = self.d['vision_width'] // self.d['vision_heads']
        every = np.ones((len(x), len(x)), bool)
        for i in range(self.d['vision_layers']):
            name = f'{VISION}encoder.layers.{i}'
            y = self.layer_norm(f'{name}.layer_norm1', x)
            q, k, v = (self.heads(name, part, y, dim) for part in 'qkv')
            x = x + self.linear(f'{name}.self_attn.out_proj', attend(q, k, v, every))
            y = self.layer_norm(f'{name}.layer_norm2', x)
            x = x + self.linear(f'{name}.mlp.fc2', gelu(self.linear(f'{name}.mlp.fc1', y)))
        last = self.layer_norm(VISION + 'post_layernorm', x)
        return first, last, self.linear(PALIGEMMA + 'model.multi_modal_projector.linear', last)

    def project(self, name, x, positions):
        q, k, v = (self.heads(name, part, x, self.d['text_head_dim']) for part in 'qkv')
        return turn(q, positions), turn(k, positions), v

    def feed_forward(self, name, x):
        gate, up = (self.linear(f'{name}.mlp.{part}_proj', x) for part in ('gate', 'up'))
        return self.linear(f'{name}.mlp.down_proj', gelu(gate) * up)

    def prefix(self, x, positions, allowed):
        cache = []
        for i in range(self.d['text_layers']):
            name = f'{TEXT}layers.{i}'
            y = rms(x) * (1 + self.w[f'{name}.input_layernorm.weight'])
            q, k, v = self.project(name, y, positions)
            cache.append((k, v))
            x = x + self.linear(f'{name}.self_attn.o_proj', attend(q, k, v, allowed))
            y = rms(x) * (1 + self.w[f'{name}.post_attention_layernorm.weight'])
            x = x + self.feed_forward(name, y)
        return rms(x) * (1 + self.w[TEXT + 'norm.weight']), cache

    def condition(self, time):
        fraction = np.linspace(0, 1, self.d['expert_width'] // 2)
        angle = 2 * np.pi * float(np.float32(time)) / (0.004 * 1000.0**fraction)
        sincos = np.concatenate([np.sin(angle), np.cos(angle)])
        return sincos, silu(self.linear('time_mlp_out', silu(self.linear('time_mlp_in', sincos))))

    def adaptive(self, name, x, condition):
        scale, shift, gate = np.split(self.linear(name + '.dense', condition), 3)
        return rms(x) * (1 + scale) + shift, gate

    def suffix(self, x, cache, positions, allowed, condition):
        x = embedded = self.linear('action_in_proj', x)
        for i in range(self.d['text_layers']):
            name = f'{EXPERT}layers.{i}'
            y, gate = self.adaptive(f'{name}.input_layernorm', x, condition)
            q, k, v = self.project(name, y, positions)
            k, v = (np.concatenate(pair, 1) for pair in zip(cache[i], (k, v), strict=True))
            x = x + gate * self.linear(f'{name}.self_attn.o_proj', attend(q, k, v, allowed))
            y, gate = self.adaptive(f'{name}.post_attention_layernorm', x, condition)
            x = x + gate * self.feed_forward(name, y)
        hidden, _ = self.adaptive(EXPERT + 'norm', x, condition)
        return embedded, hidden, self.linear('action_out_proj', hidden)


def run_sample(reference, inputs, sample):
    """Return the quantities of a golden file for one sample, its times and conditions.

    Quantities are by name; steps are their first axis.
    """
    d, out = reference.d, {}
    seen = [reference.image(pixels) for pixels in inputs['images'][sample].astype(np.float64)]
    names = ('vision_patch_embeddings', 'vision_last_hidden', 'image_embeddings')
    for i, name in enumerate(names):
        out[f'{name}_sample{sample}'] = np.stack([stages[i] for stages in seen])
    words = reference.w[PALIGEMMA + 'lm_head.weight'][inputs['tokens'][sample]]
    x = np.concatenate([*(s[2] for s in seen), words * d['text_width'] ** 0.5])
    image_mask = inputs['image_masks'][sample].repeat(len(seen[0][2]))
    valid = np.concatenate([image_mask, inputs['token_mask'][sample]])
    positions, allowed = valid.cumsum() - 1, valid[:, None] & valid
    hidden, cache = reference.prefix(x, positions, allowed)
    last = int(np.flatnonzero(valid)[-1])
    out |= dict(
        prefix_embeddings=x, prefix_pad_mask=valid, prefix_position_ids=positions,
        prefix_attention_allowed=allowed, prefix_last_hidden=hidden,
        last_token_index=np.int64(last),
        last_token_logits=hidden[last] @ reference.w[PALIGEMMA + 'lm_head.weight'].T,
    )  # fmt: skip
    for i, (k, v) in enumerate(cache):
        out |= {f'prefix_k.{i}': k, f'prefix_v.{i}': v}

    chunk, steps = d['horizon'], d['num_steps']
    positions = valid.sum() + np.arange(chunk)
    allowed = np.concatenate([valid, np.ones(chunk, bool)])[None].repeat(chunk, 0)
    out |= dict(suffix_position_ids=positions, suffix_attention_allowed=allowed)
    times = np.array([1.0 - step / steps for step in range(steps)], np.float32)
    x, trajectory, velocities = inputs['noise'][sample].astype(np.float64), [], []
    for time in times:
        sincos, condition = reference.condition(time)
        state = np.float32(x)  # as recorded; v_t is of the recorded x_t
        embedded, hidden, v = reference.suffix(state, cache, positions, allowed, condition)
        if time == 1:
            out |= {'suffix_embeddings_t1.0': embedded, 'suffix_last_hidden_t1.0': hidden}
        trajectory.append(x)
        velocities.append(v)
        x = x - v / steps
    out |= {'x_t': np.stack([*trajectory, x]), 'v_t': np.stack(velocities), 'actions': x}
    out |= {'v_t_t0.5': out['v_t'][steps // 2], 'actions_unpadded': x[:, : d['action_dim']]}
    conditions = [reference.condition(time) for time in times]
    return out, times, conditions


def write_golden(path, image_masks, valid_tokens, seed=0, **dimensions):
    """Write a golden file to `path`; dimensions override SMALL."""
    d, random = {**SMALL, **dimensions}, np.random.default_rng(seed)
    weights, samples = random_weights(d, random), len(valid_tokens)
    size = d['image_size']
    inputs = dict(
        images=random.uniform(-1, 1, (samples, d['num_images'], 3, size, size)).astype(np.float32),
        image_masks=np.array(image_masks),
        tokens=random.integers(0, d['vocab_size'], (samples, d['max_token_len'])),
        token_mask=np.arange(d['max_token_len']) < np.array(valid_tokens)[:, None],
        noise=random.standard_normal((samples, d['horizon'], d['max_action_dim']), np.float32),
    )
    reference, expected = Reference(d, weights), {}
    results = [run_sample(reference, inputs, sample) for sample in range(samples)]
    for name in results[0][0]:
        if '_sample' not in name:
            axis = 1 if name in ('x_t', 'v_t') else 0
            expected[name] = np.stack([out[name] for out, _, _ in results], axis)
    for out, _, _ in results:
        expected |= {name: value for name, value in out.items() if '_sample' in name}
    _, times, conditions = results[0]
    sincos, condition = (np.stack(values) for values in zip(*conditions, strict=True))
    expected |= {
        'timesteps': times,
        'time_sincos': sincos,
        'adarms_cond': condition[:, None].repeat(samples, 1),
    }
    tensors = {f'model.{name}': value for name, value in weights.items()}
    tensors |= {f'input.{name}': value for name, value in inputs.items()}
    for name, value in expected.items():
        value = value.astype(np.float32) if value.dtype == np.float64 else value
        tensors[f'expected.{name}'] = np.ascontiguousarray(value)
    save_file(tensors, path, {**CONSTANTS, **{key: str(value) for key, value in d.items()}})
