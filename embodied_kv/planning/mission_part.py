"""A mission as a part of a capsule: how far it is."""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.errors import ErrorCode
from embodied_kv.planning.mission import MissionState, read_state


class MissionPart:
    """state: of the mission that runs, None where none does. go_on: with another one, or none."""

    name, depth = 'mission', 'planner'

    def __init__(
        self,
        state: Callable[[], MissionState | None],
        go_on: Callable[[MissionState | None], None],
    ) -> None:
        self._state, self._go_on = state, go_on

    def buffers(self) -> tuple:
        """None: a mission is words and numbers."""
        return ()

    def freeze(self) -> FrozenPart:
        """Its state, nothing where there is no mission."""
        state = self._state()
        return FrozenPart(facts={'mission': state.facts() if state else None})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError for what is no mission."""
        self._read(frozen)

    def resume(self, frozen: FrozenPart) -> None:
        """It goes on from there; the one that runs ends."""
        self._go_on(self._read(frozen))

    @staticmethod
    def _read(frozen: FrozenPart) -> MissionState | None:
        facts = frozen.facts
        if not isinstance(facts, dict) or 'mission' not in facts:
            raise CapsuleError(
                'the capsule does not say whether there was a mission', ErrorCode.DAMAGED
            )
        try:
            return read_state(facts['mission']) if facts['mission'] is not None else None
        except ValueError as error:
            raise CapsuleError(
                f'the capsule has a damaged mission: {error}', ErrorCode.DAMAGED
            ) from error
