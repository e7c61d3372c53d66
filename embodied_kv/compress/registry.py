"""The compression methods by name."""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.compress.base import Method
from embodied_kv.compress.full import Full
from embodied_kv.compress.h2o import H2o, ZipCache
from embodied_kv.compress.knorm import KeyNorm
from embodied_kv.compress.kvpress import PREFIX, from_kvpress
from embodied_kv.compress.pyramidkv import PyramidKv
from embodied_kv.compress.random import Random
from embodied_kv.compress.snapkv import SnapKv
from embodied_kv.compress.streaming_llm import StreamingLlm
from embodied_kv.compress.vl_cache import VlCache
from embodied_kv.compress.vl_cache_pooled import VlCachePooled

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        *(VlCache, VlCachePooled, StreamingLlm, H2o, SnapKv, PyramidKv, ZipCache, KeyNorm),
        *(Random, Full),
    )
}


def method(name: str, **fields: object) -> Method:
    """Return the method of a name, with its fields set; 'kvpress:CLASS' is a scorer of kvpress.

    Raises ValueError for an unknown name, for a field out of range, or as `from_kvpress` does.
    """
    if name.startswith(PREFIX):
        return from_kvpress(name.removeprefix(PREFIX), **fields)
    if name not in METHODS:
        raise ValueError(
            f'compression method must be one of {", ".join(METHODS)}, or {PREFIX}CLASS for a '
            f'scorer of kvpress (got {name!r})'
        )
    made_of: Callable[..., Method] = METHODS[name]
    return made_of(**fields)
