"""VL-Cache's post-vision attention, smoothed over neighbours, with equal budgets."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.compress.snapkv import SnapKv


@dataclass(frozen=True)
class VlCachePooled(SnapKv):
    """SnapKV whose window is all text behind the images (VL-Cache 4.2); `window` says nothing.

    Beside a token that is attended to stands what belongs to it, which the next tokens of an
    answer ask for, after the choice.
    """

    name = 'vl_cache_pooled'
    queries = 'post_vision'
