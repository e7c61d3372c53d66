"""The facts on which the continuation of a capsule depends, by name.

Weights, tokenizer, dtype and dimensions of the model, the rounding of its flow times, and its
commit on a hub; the sources of the kernels; the layout of the cache; device, threads and batch
multiple; packed weights; torch's version; and every setting of the engine that changes words or
actions: seed, Euler steps, real-time chunking, and the compression of prefixes. Engines that agree
in all of these continue a state in the same way.

Compiled shapes are not part of it, because compiled code gives the results of eager code up to
rounding (`test/engine/test_compiled_equals_eager.py`). Nor are sizes (rows, streams, budgets) and
what the clock decides (deadlines, margins, decode steps per iteration), because they change no
result. Keep ratios may change while an engine runs; `session.engine_part` compares present ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from embodied_kv import kernels
from embodied_kv.capsule.fingerprint import Fingerprint
from embodied_kv.engine.engine import Engine
from embodied_kv.model.prepacked import prepacked_names

SETTINGS = (  # fields of EngineConfig
    'action_keep_ratio',
    'chunk_candidates',
    'decode_batch_multiple',
    'compression_method',
    'compression_after_tokens',
    'compression_queries',
    'compression_layer_budgets',
    'decode_tokens',
    'device',
    'euler_steps',
    'language_keep_ratio',
    'rtc',
    'rtc_horizon',
    'rtc_max_guidance',
    'rtc_schedule',
    'seed',
    'threads',
)


def fingerprint(engine: Engine) -> Fingerprint:
    """Return the fingerprint of an engine. It reads every weight: about 1 s per GiB on a CPU."""
    policy, config = engine.policy, engine.config
    facts = {
        'engine': {name: getattr(config, name) for name in SETTINGS},
        'model': asdict(policy.config),
        'checkpoint': policy.source,
        'sums_times': policy.sums_times,
        'weights': weights_digest(policy.model),
        'tokenizer': hashlib.sha256(policy.tokenizer.backend.to_str().encode()).hexdigest(),
        'kernels': sources_digest(Path(kernels.__path__[0])),
        'layout': [engine.kv.prefixes.layout, engine.kv.decode_kv.layout],
        'packed': prepacked_names(policy.model),
        'torch': torch.__version__,
    }
    return Fingerprint.of(dict(_flat(json.loads(json.dumps(facts, default=str)))))


def _flat(facts: Mapping[str, object], prefix: str = '') -> Iterator[tuple[str, object]]:
    """Yield each value with its path, as 'model.vision.image_size'."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f'{prefix}{name}.')
        else:
            yield f'{prefix}{name}', value


def weights_digest(model: nn.Module) -> str:
    """Return a digest of the name, dtype, shape and bytes of every parameter."""
    digest = hashlib.blake2b(digest_size=16)
    for name, p in model.named_parameters():
        digest.update(f'{name} {p.dtype} {tuple(p.shape)}'.encode())
        digest.update(_bytes(p.detach()))
    return digest.hexdigest()


def sources_digest(folder: Path) -> str:
    """Return a digest of the Python sources of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob('*.py')):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return plain.contiguous().view(-1).view(torch.uint8).cpu().numpy().data
