"""Read the robot_description (URDF) of an action node from its parameter or from the topic.

The parameter has priority: then the topic is not read. ros2_control and robot_state_publisher
publish the latched topic `robot_description`. Its name is relative to the namespace of the node,
so that it can be remapped.

Configure waits for the topic only if the contract or `tool_frame` needs a URDF, or if a publisher
is known already. The subscription lasts until cleanup: a description that arrives later is
compared with the configuration, and a difference forbids arming and motion.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from xml.etree import ElementTree

from std_msgs.msg import String

from embodied_kv.control.limits import LimitError, linear_in_urdf
from embodied_kv.control.limits_from_contract import (
    confine_from_contract,
    limits_from_contract,
    linear_joints,
)
from embodied_kv.control.safety_state_machine import SafetyStateMachine
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.polling import queued
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.text import LINE, reason, shown

TOPIC = 'robot_description'
NEEDED = 10.0  # s to wait for a description that the contract needs
PUBLISHED = 5.0  # s to wait for the message of a publisher that is known
POLL = 0.02  # s between two checks while configure waits
PUBLISHERS = 8  # number of publishers whose latched descriptions are read
# Elements of a joint that the kinematics use.
PLACES = ('parent', 'child', 'origin', 'axis', 'mimic')


class RobotDescription:
    """The robot_description of a node until its cleanup; `text` is the URDF, '' for none.

    Args:
        node: The node, which is being configured.
        parameter: Value of its parameter robot_description; '' to read the topic.
        safety: The safety state machine, which is disarmed if a later description disagrees.
        wanted: Whether something other than the contract needs a URDF, such as `tool_frame`.

    Raises:
        LimitError: The contract needs a URDF and none arrived.
        ValueError: The URDF of the topic cannot be read, or the contract does not fit it.
    """

    def __init__(
        self, node: SuiteNode, parameter: str, safety: SafetyStateMachine, wanted: bool = False
    ) -> None:
        self.text, self._problem = parameter, ''
        if parameter:
            return
        self._node, self._safety, self._robot = node, safety, node.embodiment
        self._subscription = node.subscribe(
            String, TOPIC, self._hear, qos.heard(qos.STATUS, PUBLISHERS), always=True
        )
        self._topic = self._subscription.topic_name  # after remapping
        received = self._wait(wanted)
        if received is None:
            self._used = _used(self._robot, None)
            return
        try:
            self._used = _used(self._robot, received)
        except ValueError as error:
            raise ValueError(f'{reason(error)}; it was received on {self._topic}') from error
        self.text = received
        node.log_info(TOPIC, f'robot_description received on {self._topic}')

    def problem(self, _: float) -> str:
        """Return why a later description forbids motion; '' if none does. Never waits."""
        return self._problem

    def _wait(self, wanted: bool) -> str | None:
        """Return the first description, None without one. Raises LimitError if one is needed.

        `setup` runs on the thread that serves the node, so the message is taken here.
        """
        needed, began = _needed(self._robot), time.monotonic()
        while True:
            for description, _ in queued(self._subscription):
                return description.data  # the first
            published = self._node.count_publishers(self._topic) > 0
            most = NEEDED if needed or wanted else PUBLISHED if published else 0.0
            if time.monotonic() - began >= most:
                break
            time.sleep(POLL)
        if needed:
            raise LimitError(
                f'{needed}, or publish it on {self._topic} (no message within {NEEDED:g} s)'
            )
        if published:
            self._node.log_warning(
                TOPIC,
                f'no message on {self._topic} within {most:g} s, although it has a '
                'publisher; limits are not checked against a URDF until one arrives',
            )
        return None

    def _hear(self, message: String) -> None:
        """Compare a later description; the first difference forbids motion until cleanup."""
        if self._problem or (self.text and message.data == self.text):
            return
        try:
            difference = _difference(self._used, _used(self._robot, message.data))
        except Exception as error:  # any error of a malformed URDF forbids motion
            difference = reason(error)
        if not difference:
            self._node.log_info(TOPIC, f'{self._topic} agrees with the configuration')
            return
        self._problem = shown(
            'robot_description must agree with the configuration of the action node (got another '
            f'one on {self._topic}: {difference}); deactivate, clean up and configure the action '
            'node again',
            LINE,
        )
        self._node.log_error(TOPIC, self._problem)
        if self._safety.is_armed:
            self._safety.disarm('robot_description changed')


def _needed(robot: Embodiment) -> str:
    """Return why the contract needs a URDF; '' if it does not."""
    try:
        confine_from_contract(robot, '', limits_from_contract(robot, ''))
    except LimitError as error:
        return str(error)
    return ''


def _used(robot: Embodiment, urdf: str | None) -> dict[str, object]:
    """Return the properties of a URDF that commands depend on, by name. None: there is no URDF.

    Raises:
        ValueError: The URDF cannot be read, or the contract does not fit it.
    """
    if urdf is not None:
        linear_in_urdf(urdf)  # also refuses an empty URDF
    limits = limits_from_contract(robot, urdf or '')
    columns = {
        'lower limit': limits.lower,
        'upper limit': limits.upper,
        'velocity limit': limits.velocity,
        'continuous': limits.continuous,
        'linear': linear_joints(robot, urdf or ''),
    }
    used: dict[str, object] = {
        f'joint {name}: {what}': values[place].item()
        for place, name in enumerate(limits.joints)
        for what, values in columns.items()
    }
    return used | dict(_places(urdf) if urdf and robot.contract.workspace else ())


def _places(urdf: str) -> Iterator[tuple[str, object]]:
    """Yield the elements of each joint that determine the position of a frame, by name."""
    root = ElementTree.fromstring(urdf)
    for joint in root.findall('joint'):
        elements = [dict(e.attrib) for tag in PLACES for e in joint.findall(tag)]
        yield f'joint {joint.get("name")}: place', [joint.get('type'), *elements]
    for joint in root.findall('ros2_control/joint'):
        yield f'joint {joint.get("name")}: mimic in ros2_control', joint.get('mimic', '')


def _difference(old: dict[str, object], new: dict[str, object]) -> str:
    """Return the first difference; '' if there is none."""
    for name in old | new:
        if old.get(name) != new.get(name):
            return f'{name} is {new.get(name)} instead of {old.get(name)}'
    return ''
