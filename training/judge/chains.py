"""Chains over two-token segments: the task on which methods of KV reuse are compared.

A segment is a key and a value. A value either ends its chain or points to the key of another
segment, so that segments form chains of up to MAX_HOPS links. A question names a key; the answer
is the end of the chain from there on. Keys are distinct, and no two values point to one key: a
segment has at most one successor and one predecessor. A prompt is `<bos> (key value) x S <ask>
key`, and its next token is the answer. Each key has one token as a key and another one as a value,
so that the token itself shows that a value is a pointer.

All arrays are int64; B prompts, S segments of each, Q questions of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEGMENTS = (8, 64)  # fewest and most
MAX_HOPS = 3
KEYS, ENDS = SEGMENTS[1], 32  # tokens 0 .. KEYS - 1 are keys
POINTER = KEYS  # first token of values that point to a key
END = POINTER + KEYS  # first token of values that end a chain
BOS = END + ENDS
ASK = BOS + 1
VOCABULARY = ASK + 1
LAYOUTS = ('forward', 'backward')  # a chain leads to later segments, or to earlier ones


@dataclass(frozen=True, eq=False)
class Chains:
    """Segments of prompts, in the order of the prompt.

    keys, values: tokens [B, S]. ahead: the segment that a value points to, [B, S], or -1. behind:
    the segment that points to this one's key, or -1. start: the segment that the question of
    `exam` is about, [B].
    """

    keys: np.ndarray
    values: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    start: np.ndarray

    @property
    def memory(self) -> np.ndarray:
        """Tokens of <bos> and the segments, [B, 1 + 2 S]."""
        size = len(self.keys)
        pairs = np.stack([self.keys, self.values], axis=-1).reshape(size, -1)
        return np.concatenate([np.full((size, 1), BOS), pairs], axis=1)

    @property
    def hops(self) -> np.ndarray:
        """Links from each segment to the end of its chain, [B, S]."""
        return (walk(self.ahead, MAX_HOPS)[:, 1:] >= 0).sum(axis=1)

    @property
    def answers(self) -> np.ndarray:
        """The end of each segment's chain, [B, S]."""
        return at(self.values, furthest(self.ahead, MAX_HOPS))


def walk(link: np.ndarray, steps: int) -> np.ndarray:
    """Return the segments 0 .. steps links away, [B, 1 + steps, S]; -1 beyond the end.

    link: [B, S].
    """
    path = [np.broadcast_to(np.arange(link.shape[1]), link.shape)]
    for _ in range(steps):
        path.append(at(link, path[-1], -1))
    return np.stack(path, axis=1)


def furthest(link: np.ndarray, steps: int) -> np.ndarray:
    """Return the last segment within `steps` links, [B, S]. link: [B, S]."""
    path = walk(link, steps)
    return np.take_along_axis(path, (path >= 0).sum(axis=1, keepdims=True) - 1, axis=1)[:, 0]


def earlier(link: np.ndarray) -> np.ndarray:
    """Return the links [B, S] to earlier segments, which a causal model sees; -1 for others."""
    return np.where(link < np.arange(link.shape[1]), link, -1)


def at(table: np.ndarray, segments: np.ndarray, none: int = -1) -> np.ndarray:
    """Return table [B, S] at segments [B, N]; `none` for -1."""
    found = np.take_along_axis(table, np.maximum(segments, 0), axis=1)
    return np.where(segments < 0, none, found)


def draw_chains(
    rng: np.random.Generator,
    problems: int,
    segments: int,
    hops: int | None = None,
    layout: str | None = None,
) -> Chains:
    """Draw prompts of chains of 1 to 1 + MAX_HOPS segments, each chain in one layout.

    hops, layout: of the chain that starts at `start`; None: any. If the length of the last chain
    does not fit it is shorter. Raises ValueError for an invalid number of segments or hops, or
    layout.
    """
    _check(segments, hops, layout)
    size, index = (problems, segments), np.arange(segments)
    lengths = rng.integers(1, MAX_HOPS + 2, size)
    lengths[:, 0] = lengths[:, 0] if hops is None else 1 + hops
    kinds = rng.integers(0, len(LAYOUTS), size)
    kinds[:, 0] = kinds[:, 0] if layout is None else LAYOUTS.index(layout)
    # What follows is in the order of chains; `position` has the place of each in the prompt.
    chain = (lengths.cumsum(axis=1)[:, None] <= index[:, None]).sum(axis=-1)  # [B, S]
    changes = chain[:, 1:] != chain[:, :-1]
    edge = np.ones((problems, 1), bool)
    begins, ends = np.hstack([edge, changes]), np.hstack([changes, edge])
    position = _positions(rng, chain, np.take_along_axis(kinds, chain, axis=1))

    keys = rng.permuted(np.tile(np.arange(KEYS), (problems, 1)), axis=1)[:, :segments]
    last = END + rng.integers(0, ENDS, size)
    values = np.where(ends, last, POINTER + np.roll(keys, -1, axis=1))
    ahead = np.where(ends, -1, np.roll(position, -1, axis=1))
    behind = np.where(begins, -1, np.roll(position, 1, axis=1))
    order = position.argsort(axis=1)
    in_prompt = (np.take_along_axis(x, order, axis=1) for x in (keys, values, ahead, behind))
    return Chains(*in_prompt, start=position[:, 0])


def _positions(rng: np.random.Generator, chain: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return the position of each segment in the prompt, [B, S].

    Positions are random, and in order within a chain.
    """
    luck = rng.permuted(np.tile(np.arange(chain.shape[1]), (len(chain), 1)), axis=1)
    down = kinds == LAYOUTS.index('backward')
    within = np.lexsort((luck, chain), axis=-1)
    luck = np.take_along_axis(luck, within, axis=1)  # ascending within each chain
    turned = np.lexsort((np.where(down, -luck, luck), chain), axis=-1)
    return np.take_along_axis(luck, turned, axis=1)


def _check(segments: int, hops: int | None, layout: str | None) -> None:
    least, most = SEGMENTS
    if not least <= segments <= most:
        raise ValueError(f'{segments} segments: a prompt has {least} to {most}')
    if hops is not None and not 0 <= hops <= MAX_HOPS:
        raise ValueError(f'{hops} hops: a chain has 0 to {MAX_HOPS}')
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f'no layout {layout!r}; there are: {", ".join(LAYOUTS)}')
