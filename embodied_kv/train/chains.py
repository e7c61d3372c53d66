"""Chains over two-token segments: the task by which ways to reuse KV are judged.

A segment is a key and a value; the value may be the key of another segment, and so segments form
chains. A question names a key and a number of hops; the answer is the value that many links
further. Keys are distinct, and no value occurs twice, so a chain has one way ahead and one back.
A prompt is `<bos> (key value) x S <hops> key`, and its next token is the answer.

Knows numbers alone. All arrays are int64; B prompts, S segments of each, Q questions of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SYMBOLS = 128  # of which S are keys and the others may end a chain: twice the most segments
SEGMENTS = (8, 64)  # fewest and most
MAX_HOPS = 3
BOS = SYMBOLS
HOPS = BOS + 1  # token of 0 hops; 1, 2 and 3 follow
VOCABULARY = HOPS + MAX_HOPS + 1
LAYOUTS = ('forward', 'backward', 'mixed')  # a next link stands later, earlier, or anywhere
END = 0.2  # share of segments that end their chain


@dataclass(frozen=True, eq=False)
class Chains:
    """Segments of prompts, in the order of the prompt.

    keys, values: symbols [B, S]. ahead: the segment whose key a value is, [B, S], or -1. behind:
    the segment whose value a key is, or -1. start: the segment that a question begins with, [B].
    """

    keys: np.ndarray
    values: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    start: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """<bos> and the segments, [B, 1 + 2 S]."""
        size = len(self.keys)
        pairs = np.stack([self.keys, self.values], axis=-1).reshape(size, -1)
        return np.concatenate([np.full((size, 1), BOS), pairs], axis=1)

    def question(self, start: np.ndarray, hops: np.ndarray) -> np.ndarray:
        """start: segments [B, Q]; hops: [B, Q] or [Q] -> tokens [B, Q, 2]."""
        keys = np.take_along_axis(self.keys, start, axis=1)
        return np.stack([np.broadcast_to(HOPS + hops, keys.shape), keys], axis=-1)

    def answer(self, start: np.ndarray, hops: np.ndarray) -> np.ndarray:
        """The values that questions ask for, [B, Q]. Raises ValueError where a chain ends."""
        paths = walk(self.ahead, MAX_HOPS)  # [B, 1 + MAX_HOPS, S]
        rows = np.arange(len(start))[:, None]
        found = paths[rows, np.broadcast_to(hops, start.shape), start]
        if (found < 0).any():
            raise ValueError('a question goes further than its chain')
        return self.values[rows, found]

    def ask(self, rng: np.random.Generator, hops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Random segments from which that many hops can be gone, where there are such.

        hops: wanted, [B, Q]. Returns start and hops, [B, Q]; a prompt without a chain that long
        is asked for less.
        """
        reach = (walk(self.ahead, MAX_HOPS)[:, 1:] >= 0).sum(axis=1)  # links ahead [B, S]
        hops = np.minimum(hops, reach.max(axis=1, keepdims=True))
        luck = rng.random((*hops.shape, reach.shape[1]))
        luck[reach[:, None] < hops[..., None]] = -1
        return luck.argmax(axis=-1), hops


def walk(link: np.ndarray, steps: int) -> np.ndarray:
    """link [B, S] -> the segments 0 .. steps links away, [B, 1 + steps, S]; -1 beyond the end."""
    segments = np.broadcast_to(np.arange(link.shape[1]), link.shape)
    path = [segments]
    for _ in range(steps):
        there = np.take_along_axis(link, np.maximum(path[-1], 0), axis=1)
        path.append(np.where(path[-1] < 0, -1, there))
    return np.stack(path, axis=1)


def resolvable(link: np.ndarray, steps: int) -> np.ndarray:
    """As `walk`, but only along links that lead to an earlier segment: what is -1 is not seen.

    A causal model can know no more of a chain when it has read a segment's last token.
    """
    here = np.arange(link.shape[1])
    return walk(np.where(link < here, link, -1), steps)


def draw_chains(
    rng: np.random.Generator,
    problems: int,
    segments: int,
    hops: int = 0,
    layout: str | None = None,
) -> Chains:
    """Prompts with a chain from `start` that goes on for at least `hops` links.

    layout: of the chain that `start` is in; all others, and it where None, have any. Raises
    ValueError for segments, hops or a layout that there are not.
    """
    _check(segments, hops, layout)
    size, rows = (problems, segments), np.arange(problems)
    first = rng.integers(0, segments - hops, problems)  # of the chain's order, as all below
    ends = rng.random(size) < END
    ends[rows[:, None], first[:, None] + np.arange(hops)] = False
    ends[:, -1] = True
    chain = np.cumsum(ends, axis=1) - ends
    kinds = rng.integers(0, len(LAYOUTS), size)  # of each chain
    if layout is not None:
        kinds[rows, chain[rows, first]] = LAYOUTS.index(layout)
    place = _places(rng, chain, np.take_along_axis(kinds, chain, axis=1))

    symbols = rng.permuted(np.tile(np.arange(SYMBOLS), (problems, 1)), axis=1)
    keys, others = symbols[:, :segments], symbols[:, segments : 2 * segments]
    values = np.where(ends, others, np.roll(keys, -1, axis=1))
    ahead = np.where(ends, -1, np.roll(place, -1, axis=1))
    begins = np.roll(ends, 1, axis=1)
    behind = np.where(begins, -1, np.roll(place, 1, axis=1))
    order = place.argsort(axis=1)
    in_prompt = (np.take_along_axis(x, order, axis=1) for x in (keys, values, ahead, behind))
    return Chains(*in_prompt, start=place[rows, first])


def _places(rng: np.random.Generator, chain: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Where in the prompt each segment stands, [B, S]: at random, in order within its chain."""
    luck = rng.random(chain.shape)
    index = np.broadcast_to(np.arange(chain.shape[1]), chain.shape)
    rank = np.select([kinds == i for i in range(3)], [luck, -luck, index])
    luck = np.take_along_axis(luck, np.lexsort((rank, chain), axis=-1), axis=1)
    return luck.argsort(axis=1).argsort(axis=1)


def _check(segments: int, hops: int, layout: str | None) -> None:
    least, most = SEGMENTS
    if not least <= segments <= most:
        raise ValueError(f'{segments} segments: a prompt has {least} to {most}')
    if not 0 <= hops <= MAX_HOPS:
        raise ValueError(f'{hops} hops: a question asks for 0 to {MAX_HOPS}')
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f'no layout {layout!r}; there are: {", ".join(LAYOUTS)}')
