"""Gives a suite a mission, as any other program could, and asks whether its planner knows any.

Knows an action, a topic and parameters. Does not know what the mission is about. One thread's.
"""

from __future__ import annotations

from collections import deque

from action_msgs.msg import GoalStatus
from rcl_interfaces.srv import GetParameters
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future

from embodied_kv.action import Mission
from embodied_kv.model.planner_checkpoint import without_missions
from embodied_kv.msg import MissionState
from embodied_kv.nodes.common import qos
from embodied_kv.planning.planning import planner_folder
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.text import reason

UNKNOWN = 'memory does not answer'


class MissionClient:
    """node: whose executor is spun. states: what is new, for whoever takes it out.

    refusal: why no mission can be given, '' where one can; None until the suite has answered.
    result: None until the mission is over, or was refused.
    """

    def __init__(self, node: Node) -> None:
        self._client = ActionClient(node, Mission, 'mission')
        self._parameters = node.create_client(GetParameters, 'memory/get_parameters')
        node.create_subscription(MissionState, 'mission/state', self._hear, qos.STATUS)
        self.states: deque[MissionState] = deque()
        self.refusal: str | None = None
        self.result: Mission.Result | None = None
        self._words, self._handle, self._is_cancelled = '', None, False

    def ask(self) -> None:
        """Whether a mission can be given; `refusal` is the answer."""
        if not self._parameters.service_is_ready():
            self.refusal = UNKNOWN
            return
        request = GetParameters.Request(names=['planner', 'contract'])
        self._parameters.call_async(request).add_done_callback(self._answered)

    def send(self, words: str) -> None:
        """The mission."""
        self._words = words
        sent = self._client.send_goal_async(Mission.Goal(mission=words))
        sent.add_done_callback(self._accepted)

    def cancel(self) -> None:
        """It took too long; one that nobody has accepted yet is cancelled as soon as it is."""
        self._is_cancelled = True
        if self._handle is not None:
            self._handle.cancel_goal_async()

    def _answered(self, future: Future) -> None:
        try:
            values = future.result().values
            if len(values) < 2:
                raise ValueError('memory does not say which planner it has')
            planner, contract = (value.string_value for value in values)
            path = planner_folder(planner, Embodiment.load(contract).contract.language.planner)
            self.refusal = without_missions(path)
        except (ValueError, OSError) as error:
            self.refusal = reason(error)
        if not self.refusal and not self._client.server_is_ready():
            self.refusal = 'nobody takes missions: is the node mission active?'

    def _accepted(self, future: Future) -> None:
        self._handle = future.result()
        if not self._handle.accepted:
            self.result = Mission.Result(message='refused: see the log of the robot')
            return
        self._handle.get_result_async().add_done_callback(self._ended)
        if self._is_cancelled:
            self._handle.cancel_goal_async()

    def _ended(self, future: Future) -> None:
        answer = future.result()
        self.result = answer.result
        if answer.status == GoalStatus.STATUS_CANCELED:
            self.result.message = 'it took too long'

    def _hear(self, message: MissionState) -> None:
        if message.mission == self._words:
            self.states.append(message)
