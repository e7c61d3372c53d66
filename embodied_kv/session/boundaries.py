"""Boundaries that a robot takes by itself, one at a time: before each step of a mission.

Knows their names, and which of them gives way. Does not know steps, nor why one goes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.tiers import Tier
from embodied_kv.errors import ErrorCode
from embodied_kv.session.robot_session import RobotSession


class Boundaries:
    """Of a session, named `name` and a number. For one thread.

    tier: that keeps them; the host's, where the session has none of that kind.
    """

    def __init__(self, session: RobotSession, name: str, tier: Tier) -> None:
        self._session, self._name, self._tier = session, name, tier
        self._newest = ''  # that was taken here

    def take(self, scene: Callable[[], SceneSummary | None]) -> Tier:
        """A new one. Gives the tier that it is kept in.

        Once it is, earlier ones are given up, whichever process took them: there is one at any
        moment, whenever the process is killed. A pinned one stays. scene: gives that
        of now. Raises CapsuleError, and what `scene` raises; then there is none to go back to.
        """
        self._newest = ''
        now, before = scene(), self._numbers()
        name = f'{self._name}-{max(before, default=0) + 1}'
        has = self._session.registry.capacities.of
        tier = self._tier if has(self._tier) or not has(Tier.HOST) else Tier.HOST
        self._session.snapshot(name, now, tier)
        self._newest = name
        for number in before:
            with suppress(CapsuleError):  # it is pinned, or somebody has dropped it
                self._session.registry.drop(f'{self._name}-{number}')
        return tier

    def go_back(self, but: Collection[str] = ()) -> None:
        """The session rolls back to the one that was taken last; but: see there.

        Raises CapsuleError where none was.
        """
        if not self._newest:
            raise CapsuleError('no boundary was taken', ErrorCode.NOT_FOUND)
        self._session.rollback(self._newest, but)

    def _numbers(self) -> list[int]:
        own = re.compile(rf'{re.escape(self._name)}-(\d{{1,9}})', re.ASCII)
        found = map(own.fullmatch, self._session.registry.names())
        return [int(match[1]) for match in found if match]
