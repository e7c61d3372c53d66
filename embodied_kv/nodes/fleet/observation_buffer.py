"""What a robot sees and feels, as messages, for an engine elsewhere.

Knows moments. Pixels are not looked at: the fleet does that.
"""

from __future__ import annotations

import time

from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.inputs import ObservationInputs
from embodied_kv.nodes.observation.synchronizer import SyncedMoment


class ObservationBuffer(ObservationInputs):
    """Keeps a node's newest moment, its images and joints as messages."""

    def __init__(self, node: SuiteNode) -> None:
        super().__init__(node)
        self._newest: SyncedMoment | None = None

    def restart(self) -> None:
        super().restart()
        self._newest = None

    def newest(self, now: float) -> SyncedMoment | None:
        """The newest moment; None if the robot sees nothing. now: s on the steady clock."""
        self._keep(now)
        if self._newest is None or now - self._newest.received > self.timeout:
            return None
        return self._newest

    def on_image(self) -> None:
        """Keep the newest moment that is whole, however far the next one has arrived."""
        self._keep(time.monotonic())

    def _keep(self, now: float) -> None:
        self._newest = self._sync.newest(now) or self._newest
