"""VL-Cache's post-vision attention, smoothed over adjacent positions, with equal budgets."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.compress.snapkv import SnapKv


@dataclass(frozen=True)
class VlCachePooled(SnapKv):
    """SnapKV whose window is all text behind the images (VL-Cache 4.2); `window` has no effect.

    Positions next to an attended token often belong to the same object, and later tokens of an
    answer attend to them.
    """

    name = 'vl_cache_pooled'
    queries = 'post_vision'
