"""What of a memory goes into a prompt: static groups as a whole, dynamic ones by segment.

Knows similarity and token counts. Does not know text or KV.

Source: KEEP, section 4.1, retrieval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied_kv.memory.groups import Groups


@dataclass(frozen=True)
class RetrievedUnit:
    """A unit in view. ids: its segments, in order. score: similarity of the best one."""

    ids: tuple[str, ...]
    group: int
    static: bool
    tokens: int
    score: float


def retrieve(
    groups: Groups, query: np.ndarray, tokens: int, segments: int | None = None
) -> tuple[RetrievedUnit, ...]:
    """The units that are most similar to a query embedding, within limits.

    tokens: all units together have no more. segments: no further unit is taken once so many
    segments are in view; a group that begins below comes whole. A static group is as similar as
    its best member, so nothing is missed that retrieval by segment would find. The most similar
    unit is taken first, of equals what came first; one that does not fit is passed over.

    Returned are static groups by number, then segments as they came, whatever their similarity: a
    prompt stays the same, from its start on, while the same memory is in view.
    """
    if tokens < 0 or segments is not None and segments < 0:
        raise ValueError(f'limits of {tokens} tokens and {segments} segments cannot be')
    wanted = len(groups.vectors) if segments is None else segments
    found, seen, taken = [], set(), 0
    for id, score in groups.vectors.nearest(query):
        if taken >= wanted or not tokens:
            break
        group = groups.of(id)
        if group.static and group.number in seen:
            continue
        seen.add(group.number)
        ids = groups.ids(group) if group.static else (id,)
        size = group.tokens if group.static else group.members[id]
        if size <= tokens:
            found.append(RetrievedUnit(ids, group.number, group.static, size, score))
            tokens -= size
            taken += len(ids)
    static = sorted((f for f in found if f.static), key=lambda f: f.group)
    dynamic = sorted(
        (f for f in found if not f.static), key=lambda f: groups.vectors.order(f.ids[0])
    )
    return (*static, *dynamic)
