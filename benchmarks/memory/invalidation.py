"""Tokens of KV that changes of memory invalidate under other constructions than groups.

`groups.Groups` counts its own losses from the same changes. In each step of a trace, the stored KV
of a segment that changed or was removed is lost; a new segment loses nothing. In addition, each
token once in a step:
- blocks of n segments (full reuse and KV recomputation store blocks of fixed size) lose what lies
  after the first change in the same block, because it attended to what changed. A removed segment
  leaves its slot empty, which favours blocks.
- a prefix cache loses everything after the first change.
Segments are in order of arrival and new ones are appended, which favours both.

Source: KEEP, section 3, challenge 1, and figure 2.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = 'prefix'


class Invalidation:
    """The tokens lost so far, by 'blocks of N' for each size, and by 'prefix'."""

    def __init__(self, blocks: tuple[int, ...] = (1, 16, 64)) -> None:
        if any(size < 1 for size in blocks):
            raise ValueError(f'blocks must be >= 1 (got {blocks})')
        self._sizes: dict[str, int | None] = {f'blocks of {n}': n for n in blocks}
        self._sizes[PREFIX] = None
        self.lost = dict.fromkeys(self._sizes, 0)
        self._positions: dict[str, int] = {}
        self._tokens: list[int] = []  # by position; 0 where a segment was removed
        self._noted: dict[str, int | None] = {}

    def note(self, id: str, tokens: int | None) -> None:
        """Record a change of the current step; the last change of a segment counts."""
        self._noted[id] = tokens

    def end(self) -> dict[str, int]:
        """End the step, and return the tokens that its changes lost."""
        noted, self._noted = self._noted, {}
        return self.step(noted)

    def step(self, changes: Mapping[str, int | None]) -> dict[str, int]:
        """Apply the changes of one step, and return the tokens lost.

        `changes` has the tokens of each changed segment, None if it was removed.
        """
        changed = sorted(self._positions[id] for id in changes if id in self._positions)
        lost = {way: self._behind(changed, size) for way, size in self._sizes.items()}
        for way, count in lost.items():
            self.lost[way] += count
        for id, tokens in changes.items():
            if id in self._positions:
                self._tokens[self._positions[id]] = tokens or 0
            elif tokens is not None:  # otherwise it was added and removed within the step
                self._positions[id] = len(self._tokens)
                self._tokens.append(tokens)
            if tokens is None:
                self._positions.pop(id, None)
        return lost

    def _behind(self, changed: list[int], size: int | None) -> int:
        """Return the tokens from the first change in each block to its end; None: one block."""
        size = max(1, len(self._tokens)) if size is None else size
        firsts = {position // size: position for position in reversed(changed)}
        return sum(sum(self._tokens[at : (block + 1) * size]) for block, at in firsts.items())
