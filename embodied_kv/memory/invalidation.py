"""What changes of memory cost, in tokens of KV that they invalidate, by way of construction.

Knows an order of segments, their tokens, and changes. Does not know KV: it counts what would be
lost. What groups lose, `groups.Groups` counts by itself, from the same changes.

All ways are counted alike. In the steps of a trace: stored KV of a segment that changed or went is
lost; a new segment loses nothing by itself. And what lies behind, each token once in a step:
- blocks of n segments (full reuse and KV recomputation store blocks of fixed size): in the same
  block, behind the first change in it, for KV there was computed in sight of what changed. Blocks
  keep their segments: one that went leaves its slot empty, which favours them.
- a prefix cache: everything behind the first change.
The order is that in which segments came; new ones go to the end, which favours both.

Source: KEEP, section 3, challenge 1, and figure 2.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = 'prefix'


class Invalidation:
    """Tokens lost so far, by 'blocks of N' for each size, and by 'prefix'."""

    def __init__(self, blocks: tuple[int, ...] = (1, 16, 64)) -> None:
        if any(size < 1 for size in blocks):
            raise ValueError(f'blocks of {blocks} segments: the least is 1')
        self._sizes: dict[str, int | None] = {f'blocks of {n}': n for n in blocks}
        self._sizes[PREFIX] = None
        self.lost = dict.fromkeys(self._sizes, 0)
        self._positions: dict[str, int] = {}
        self._tokens: list[int] = []  # by position, 0 where a segment went
        self._noted: dict[str, int | None] = {}

    def note(self, id: str, tokens: int | None) -> None:
        """One more change of the step that `end` ends; of the same segment the last one counts."""
        if tokens is None and id not in self._positions:
            self._noted.pop(id, None)  # it came and went within the step
        else:
            self._noted[id] = tokens

    def end(self) -> dict[str, int]:
        """The step is over -> tokens that what was noted lost."""
        noted, self._noted = self._noted, {}
        return self.step(noted)

    def step(self, changes: Mapping[str, int | None]) -> dict[str, int]:
        """The changes of one step, as id: its tokens now, None if it went -> tokens lost.

        Raises LookupError, before anything is counted, for one that went and was not there.
        """
        for id, tokens in changes.items():
            if tokens is None and id not in self._positions:
                raise LookupError(f'no segment {id!r} to remove')
        changed = sorted(self._positions[id] for id in changes if id in self._positions)
        lost = {way: self._behind(changed, size) for way, size in self._sizes.items()}
        for way, count in lost.items():
            self.lost[way] += count
        for id, tokens in changes.items():
            if tokens is None:
                self._tokens[self._positions.pop(id)] = 0
            elif id in self._positions:
                self._tokens[self._positions[id]] = tokens
            else:
                self._positions[id] = len(self._tokens)
                self._tokens.append(tokens)
        return lost

    def _behind(self, changed: list[int], size: int | None) -> int:
        """Tokens from the first change in each block to its end; size None: one block."""
        size = max(1, len(self._tokens)) if size is None else size
        firsts = {position // size: position for position in reversed(changed)}
        return sum(sum(self._tokens[at : (block + 1) * size]) for block, at in firsts.items())
