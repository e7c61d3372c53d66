"""Types and publishers of a topic, and a monitor of topics that must have one publisher.

A process that was killed counts as a publisher until the middleware notices, which may take 20 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from embodied_kv.text import LINE, listed, shown

if TYPE_CHECKING:  # so that modules without ROS can import `counted`
    from rclpy.node import Node

    from embodied_kv.nodes.common.lifecycle_node import SuiteNode


UNKNOWN = '_NODE_NAME_UNKNOWN_'  # in rmw, until discovery has found the node of a publisher
UNNAMED = 'a node of unknown name'
PATIENCE = 20  # checks until a node without a name is reported


def publishers(node: Node, topic: str) -> list[str]:
    """Return the nodes that publish a topic, one entry for each publisher."""
    return [
        UNNAMED
        if info.node_name == UNKNOWN
        else f'{info.node_namespace.rstrip("/")}/{info.node_name}'
        for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))
    ]


def type_name(kind: type) -> str:
    """Return the name of a message class in ROS, such as sensor_msgs/msg/Image."""
    return '/'.join([*kind.__module__.split('.')[:2], kind.__name__])


def type_named(name: str) -> Any:
    """Return the message or action class of such a name. Raises ImportError, AttributeError."""
    package, folder, kind = name.split('/')
    return getattr(import_module(f'{package}.{folder}'), kind)


def counted(names: Iterable[str]) -> str:
    """Return the sorted names as text, each with its count if that is not 1."""
    found = sorted(Counter(names).items())
    return ', '.join(f'{name} ({count} times)' if count > 1 else name for name, count in found)


class SinglePublishers:
    """Warns of topics with several publishers, and logs when that is over.

    Args:
        node: The node that checks and logs.
        remedy: Remedy against several publishers, for the log.
    """

    def __init__(self, node: SuiteNode, remedy: str) -> None:
        self._node, self._remedy = node, remedy
        self._before: dict[str, str] = {}
        self._several: dict[str, str] = {}
        self._unnamed: Counter[str] = Counter()  # consecutive checks with an UNNAMED publisher

    @property
    def problem(self) -> str:
        """Return the topics that have several publishers, as a report; '' for none."""
        several = listed(sorted(self._several))
        return f'several publishers of {several}' if self._several else ''

    def values(self) -> dict[str, str]:
        """Return the publishers of each topic that has several, for diagnostics."""
        return {f'publishers of {topic}': names for topic, names in self._several.items()}

    def check(self, topics: Iterable[str]) -> None:
        """Compare topics with the ROS graph; call this periodically.

        A result is reported when two consecutive calls agree, because the node of a new publisher
        is not known at once. A node of unknown name is reported after `PATIENCE` calls.
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
