"""In mode `strict` each token of an answer attends only to the kept KV, question and answer."""

import pytest
import torch
from compress_bench_cases import QUESTIONS, observe, policy

from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import kept_by
from benchmarks.compress.ways import ROW, STRICT, Way
from embodied_kv.kernels.attention import row_attention
from embodied_kv.kernels.rows import RowBatch


class Dense:
    """A cache with one tensor of K and of V per layer; positions go on after the whole prefix."""

    def __init__(self, layers, position):
        self.layers, self.position = layers, position

    @property
    def positions(self):
        return torch.tensor([[self.position]])

    def store(self, layer, q, k, v):
        new = (k[0].transpose(0, 1), v[0].transpose(0, 1))
        self.layers[layer] = [torch.cat(p, 1) for p in zip(self.layers[layer], new, strict=True)]

    def attend(self, layer, q, k, v):
        self.store(layer, q, k, v)
        keys, values = self.layers[layer]
        own = RowBatch.dense(1, keys.shape[1], 1, q.device)
        return row_attention(q, keys[None].clone(), values[None].clone(), own)[0]

    def newest(self, hidden):
        return hidden[:, -1]


@torch.inference_mode()
def greedy(policy, layers, position, ids, tokens):
    """Append the ids one by one, then return `tokens` greedily decoded tokens."""
    cache, said = Dense(layers, position), []
    ids = list(ids)
    while len(said) < tokens:
        logits = policy.model.extend(torch.tensor([[ids.pop(0)]]), cache)
        cache.position += 1
        if not ids:
            said.append(int(logits.argmax()))
            ids.append(said[-1])
    return said


@pytest.mark.parametrize('by', [STRICT, ROW])
def test_answers_equal_those_over_gathered_keys(by):
    tiny, way = policy(), Way('h2o', 0.3, by)
    harness = Harness(tiny, [way], 6)
    seen = harness.prefill(observe(2))
    asked = harness.ask(seen, QUESTIONS[1])
    ids, kv = list(asked.stream.query.ids), harness.engine.kv
    rows = [[part[seen.lease.row] for part in layer] for layer in kv.prefixes.layers]
    kept = [positions[0] for positions in kept_by(way, seen, asked)]
    layers = [[part[:, own] for part in row] for row, own in zip(rows, kept, strict=True)]
    if by == STRICT:  # all of it but the last token was computed after the whole prefix
        for i, pair in enumerate(layers):
            own = [part[i, :, : len(ids) - 1] for part in asked.decode_kv]
            layers[i] = [torch.cat(p, 1) for p in zip(pair, own, strict=True)]
        wanted = greedy(tiny, layers, seen.n + len(ids) - 1, ids[-1:], 6)
    else:
        wanted = greedy(tiny, layers, seen.n, ids, 6)
    assert list(harness.answers(asked, [way])[way].ids) == wanted
