"""Boundaries that a robot takes by itself, one at a time: before each step of a mission.

Knows their names, and which of them gives way. Does not know steps, nor why one goes back.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.tiers import Tier
from embodied_kv.session.robot_session import RobotSession


class Boundaries:
    """Of a session, named `name` and a number. tier: that keeps them. For one thread."""

    def __init__(self, session: RobotSession, name: str, tier: Tier) -> None:
        self._session, self._name, self._tier = session, name, tier
        self._newest = ''  # that was taken here

    def take(self, scene: SceneSummary | None) -> None:
        """A new one; once it is kept, earlier ones are given up, whichever process took them.

        So there is one at any moment, whenever the process is killed. A pinned one stays. scene:
        of now. Raises CapsuleError; then there is none to go back to.
        """
        self._newest, before = '', self._numbers()
        name = f'{self._name}-{max(before, default=0) + 1}'
        self._session.snapshot(name, scene, self._tier)
        self._newest = name
        for number in before:
            with suppress(CapsuleError):  # it is pinned, or somebody has dropped it
                self._session.registry.drop(f'{self._name}-{number}')

    def go_back(self, but: Collection[str] = ()) -> None:
        """The session rolls back to the one that was taken last; but: see there.

        Raises CapsuleError where none was.
        """
        if not self._newest:
            raise CapsuleError('no boundary was taken')
        self._session.rollback(self._newest, but)

    def _numbers(self) -> list[int]:
        records = self._session.registry.entries()
        found = (record.name.removeprefix(f'{self._name}-') for record in records)
        return [int(number) for number in found if number.isdecimal()]
