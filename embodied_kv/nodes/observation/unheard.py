"""Topics on which nothing has arrived, and why, as far as ROS can tell.

Knows the graph of ROS. Does not know what the topics are for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from embodied_kv.nodes.common.lifecycle_node import SuiteNode

PATIENCE = 5.0  # s, steady clock: discovery over a network takes a second or two


class Unheard:
    """Says once of each topic that nothing arrives there.

    kinds: topic -> type of its messages.
    """

    def __init__(self, node: SuiteNode, kinds: Mapping[str, type]) -> None:
        self._node, self._kinds = node, dict(kinds)
        self.restart()

    def restart(self) -> None:
        """Wait for all of them, from now on."""
        self._began, self._silent = time.monotonic(), set(self._kinds)

    def heard(self, topic: str) -> None:
        """Something has arrived there."""
        self._silent.discard(topic)

    def look(self) -> None:
        """Warn of what is silent since long; called from time to time."""
        if time.monotonic() - self._began < PATIENCE:
            return
        for topic in sorted(self._silent):
            kind, name = _name(self._kinds[topic]), self._node.resolve_topic_name(topic)
            self._node.log_warning(
                f'silent {topic}',
                f'nothing has arrived on {name} ({kind}) for {PATIENCE:.0f} s: '
                f'{self._reason(name, kind)}',
            )
        self._silent.clear()

    def _reason(self, name: str, kind: str) -> str:
        publishers = self._node.get_publishers_info_by_topic(name)
        kinds = sorted({publisher.topic_type for publisher in publishers})
        if not publishers:
            return 'nobody publishes there'
        if kind in kinds:
            return 'somebody publishes there, but sends nothing'
        return f'what is published there is {", ".join(kinds)}'


def _name(kind: type) -> str:
    """Of a message's type, as ROS names it: sensor_msgs/msg/Image."""
    return '/'.join([*kind.__module__.split('.')[:2], kind.__name__])
