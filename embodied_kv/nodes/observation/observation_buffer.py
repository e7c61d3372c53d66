"""The newest observation of a robot without a model.

Knows moments. Does not know what is requested with them.
"""

from __future__ import annotations

from collections.abc import Callable

from sensor_msgs.msg import Image, JointState

from embodied_kv.nodes.common import conversions, images
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

    def images(self, moment: SyncedMoment) -> dict[str, Image] | None:
        """Of the views that there are; None where one of them cannot be read."""
        seen = self.messages(moment)
        if all(view.is_whole and not view.compressed for view, _ in seen):
            return {view.name: message for view, message in seen}
        pixels = self.pixels(moment)
        if pixels is None:
            return None
        return {name: images.image_message(p, moment.stamp) for name, p in pixels.items()}

    def joint_state(self, moment: SyncedMoment) -> JointState:
        """Of the moment."""
        state = moment.state
        return conversions.joint_state(
            self.joints.names, state.positions, state.velocities, state.stamp
        )

    def on_image(self) -> None:
        """Keep the newest moment that is whole, however far the next one has arrived."""
        self._keep(self.now())

    def _keep(self, now: float) -> None:
        self._newest = self._sync.newest(now) or self._newest
