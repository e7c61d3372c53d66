"""The newest observation of a robot without a model.

Knows moments. Does not know what is requested with them.
"""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.inputs import ObservationInputs
from embodied_kv.nodes.observation.params import described
from embodied_kv.nodes.observation.synchronizer import SyncedMoment


class ObservationBuffer(ObservationInputs):
    """Keeps a node's newest moment. on_instruction: takes each new instruction."""

    def __init__(self, node: SuiteNode, on_instruction: Callable[[str], None]) -> None:
        super().__init__(node, described(node.embodiment.contract), on_instruction)
        self._newest: SyncedMoment | None = None

    def restart(self) -> None:
        super().restart()
        self._newest = None

    def newest(self) -> SyncedMoment | None:
        """The newest moment; None if the robot sees nothing."""
        now = self.now()
        self._keep(now)
        if self._newest is None or now - self._newest.received > self.timeout:
            return None
        return self._newest

    def on_image(self) -> None:
        """Keep the newest moment that is whole, however far the next one has arrived."""
        self._keep(self.now())

    def _keep(self, now: float) -> None:
        self._newest = self._sync.newest(now) or self._newest
