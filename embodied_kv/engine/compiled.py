"""Which buckets of an engine are compiled: of each kind those that are used most.

Knows sizes. Does not know what is computed. They are few, since each takes about
half a minute of the first start.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.engine import buckets
from embodied_kv.engine.graphs import Kind
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model import packed
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.runtime.variants import Shape

SHARES = 1 / 2, 5 / 8, 3 / 4, 1  # of the longest prefix: what shorter ones are padded to
TRACED = 'engine', 'kernels', 'kv', 'model', 'runtime'  # packages whose code is traced
QUERY = 16  # tokens of a query


def compiled_shapes(c: ModelConfig, e: EngineConfig) -> list[Shape]:
    """In the order in which an engine makes them; none where `engine.compile` is off."""
    if e.compile == 'off':
        return []
    lengths = buckets.prefixes(c.prefix_tokens)
    wanted = {buckets.smallest(lengths, math.ceil(s * lengths[-1]), '', '') for s in SHARES}
    queries = {QUERY} & set(buckets.queries(e.decode_tokens))
    return [
        Shape(Kind.ENCODE_IMAGES, len(c.views)),
        *(Shape(Kind.PREFILL, 1, tokens) for tokens in sorted(wanted)),
        *(Shape(Kind.DENOISE, robots) for robots in buckets.doubling(e.robots)),
        *(Shape(Kind.EXTEND, streams, 1) for streams in buckets.doubling(e.streams)),
        *(Shape(Kind.EXTEND, 1, tokens) for tokens in queries),
    ]


def compiler_of(
    policy: Policy, e: EngineConfig, say: Callable[[str], object] | None
) -> Compiler | None:
    """For these buckets; None where there are none."""
    names = [str(shape) for shape in compiled_shapes(policy.config, e)]
    if not names:
        return None
    return Compiler(
        e.threads,
        say,
        names=names,
        lower=packed.lower,
        builds=e.compile == 'now',
        facts=facts(policy, e),
    )


def facts(policy: Policy, e: EngineConfig) -> str:
    """Return all that decides what an engine computes, but the layouts of its tensors."""
    sources = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for path in sorted(path for folder in TRACED for path in (root / folder).rglob('*.py')):
        sources.update(str(path.relative_to(root)).encode() + path.read_bytes())
    settings = replace(e, compile='off'), policy.config, policy.tokenizer.eos
    return f'{sources.hexdigest()} {version("transformers")} {settings}'
