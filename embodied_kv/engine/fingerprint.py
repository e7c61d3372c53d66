"""What the bytes of a capsule depend on, in 32 hex digits.

Weights, dtype and dimensions of the model; the sources of the kernels; the layout of the cache;
the engine's device and threads; what of it is compiled or packed; torch's version. Two engines
that agree in it continue a state alike.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from embodied_kv import kernels
from embodied_kv.engine.engine import Engine
from embodied_kv.model.packed import packed_names


def fingerprint(engine: Engine) -> str:
    """Of an engine. It reads every weight once: about a second per GiB on a CPU."""
    policy, config = engine.policy, engine.config
    facts = {
        'model': asdict(policy.config),
        'weights': weights_digest(policy.model),
        'tokenizer': hashlib.sha256(policy.tokenizer.backend.to_str().encode()).hexdigest(),
        'kernels': sources_digest(Path(kernels.__path__[0])),
        'layout': [engine.kv.prefixes.layout, engine.kv.decode_kv.layout],
        'device': [config.device, config.threads, config.batch_multiple],
        'compiled': engine.graphs.compiled_names,
        'packed': packed_names(policy.model),
        'torch': torch.__version__,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """From the name, dtype, shape and bytes of every parameter."""
    digest = hashlib.blake2b(digest_size=16)
    for name, p in model.named_parameters():
        digest.update(f'{name} {p.dtype} {tuple(p.shape)}'.encode())
        digest.update(_bytes(p.detach()))
    return digest.hexdigest()


def sources_digest(folder: Path) -> str:
    """From the Python sources of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob('*.py')):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return memoryview(plain.contiguous().view(-1).view(torch.uint8).cpu().numpy())
