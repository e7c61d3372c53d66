"""The nodes that publish a topic, and a watch over topics of which one publisher alone is right.

Knows the graph of ROS. Does not know what the topics are for. A process that was killed counts as
a publisher until the middleware notices that it is gone, which may take 20 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from embodied_kv.text import LINE, listed, shown

if TYPE_CHECKING:  # so that modules without ROS can import `counted`
    from rclpy.node import Node

    from embodied_kv.nodes.common.lifecycle_node import SuiteNode


UNKNOWN = '_NODE_NAME_UNKNOWN_'  # of rmw, until discovery has found the node of a publisher
UNNAMED = 'a node of unknown name'
PATIENCE = 20  # looks in which a node gets its name


def publishers(node: Node, topic: str) -> list[str]:
    """Return the nodes that publish a topic, one entry for each publisher."""
    return [
        UNNAMED
        if info.node_name == UNKNOWN
        else f'{info.node_namespace.rstrip("/")}/{info.node_name}'
        for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))
    ]


def counted(names: Iterable[str]) -> str:
    """Return names in their order, each with its number where that is not 1."""
    found = sorted(Counter(names).items())
    return ', '.join(f'{name} ({count} times)' if count > 1 else name for name, count in found)


class SinglePublishers:
    """Warns of topics with several publishers, and when that is over.

    Args:
        node: The node that looks and logs.
        remedy: What to do about several publishers, for the log.
    """

    def __init__(self, node: SuiteNode, remedy: str) -> None:
        self._node, self._remedy = node, remedy
        self._before: dict[str, str] = {}
        self._several: dict[str, str] = {}
        self._unnamed: Counter[str] = Counter()  # looks at a topic with a node of unknown name

    @property
    def problem(self) -> str:
        """Return what to report of the topics that have several publishers; '' if none has."""
        several = listed(sorted(self._several))
        return f'several publishers of {several}' if self._several else ''

    def values(self) -> dict[str, str]:
        """Return the publishers of each topic that has several, for diagnostics."""
        return {f'publishers of {topic}': names for topic, names in self._several.items()}

    def look(self, topics: Iterable[str]) -> None:
        """Compare all topics with the graph; call this from time to time.

        What two calls in turn find is reported: of a new publisher the node is not known at once.
        A node of unknown name is reported after `PATIENCE` calls.
        """
        found = {
            topic: shown(counted(publishers(self._node, topic)), LINE)
            for topic in map(self._node.resolve_topic_name, topics)
            if self._node.count_publishers(topic) > 1
        }
        for topic in self._several.keys() - found.keys():
            del self._several[topic]
            self._node.log_info(
                f'publishers of {topic}', f'{topic} no longer has several publishers'
            )
        self._unnamed = Counter(
            {topic: self._unnamed[topic] + 1 for topic in found if UNNAMED in found[topic]}
        )
        for topic, names in found.items():
            if 0 < self._unnamed[topic] < PATIENCE:
                continue
            if names == self._before.get(topic) and names != self._several.get(topic):
                self._several[topic] = names
                self._node.log_warning(
                    f'publishers of {topic}',
                    f'{topic} must have one publisher (got several publishers: {names}); '
                    f'{self._remedy}',
                )
        self._before = found
