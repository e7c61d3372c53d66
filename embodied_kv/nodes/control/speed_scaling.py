"""The speed scaling of the trajectory controllers, as a UR's driver publishes it.

A scaled trajectory controller runs its trajectory slower than it was sent. The reference of the
control loop then runs as slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from std_msgs.msg import Float64

from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode

TOPIC = 'speed_scaling_state_broadcaster/speed_scaling'  # percent
MAX_AGE = 1.0  # s for which a value counts


class SpeedScaling:
    """Subscribes for a node until its cleanup.

    Args:
        node: The node.
        now: Returns the moment (s).
    """

    def __init__(self, node: SuiteNode, now: Callable[[], float]) -> None:
        self._now = now
        self._share, self._arrived = 1.0, -math.inf
        node.subscribe(Float64, TOPIC, self._hear, qos.SENSOR, always=True)

    def share(self) -> float:
        """Return the speed scaling, 0 to 1; 1 where no driver publishes one."""
        return self._share if 0.0 <= self._now() - self._arrived <= MAX_AGE else 1.0

    def _hear(self, message: Float64) -> None:
        if math.isfinite(message.data):
            self._share = min(max(message.data / 100.0, 0.0), 1.0)
            self._arrived = self._now()
