"""The client of the mission action. It first asks whether the planner was trained for missions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from rclpy.action.client import ClientGoalHandle

UNKNOWN = 'the memory node does not answer'
TIMEOUT = 'the time limit passed'


class MissionClient:
    """The mission client of a node; it belongs to the thread that spins the node.

    states: new states, which the caller removes. refusal: why no mission is possible, '' where one
    is, None until the suite answers. result: None until the mission ends or is rejected.
    """

    def __init__(self, node: Node) -> None:
        self._client = ActionClient(node, Mission, 'mission')
        self._parameters = node.create_client(GetParameters, 'memory/get_parameters')
        node.create_subscription(MissionState, 'mission/state', self._on_state, qos.STATUS)
        self.states: deque[MissionState] = deque()
        self.refusal: str | None = None
        self.result: Mission.Result | None = None
        self._words, self._is_cancelled = '', False
        self._handle: ClientGoalHandle | None = None

    def ask(self) -> None:
        """Ask whether a mission is possible; `refusal` is the answer."""
        if not self._parameters.service_is_ready():
            self.refusal = UNKNOWN
            return
        request = GetParameters.Request(names=['planner', 'contract'])
        self._parameters.call_async(request).add_done_callback(self._answered)

    def send(self, words: str) -> None:
        self._words = words
        sent = self._client.send_goal_async(Mission.Goal(mission=words))
        sent.add_done_callback(self._accepted)

    def cancel(self) -> None:
        """Cancel the mission, as soon as it is accepted."""
        self._is_cancelled = True
        if self._handle is not None:
            self._handle.cancel_goal_async()

    def _answered(self, future: Future) -> None:
        try:
            values = future.result().values
            if len(values) < 2:
                raise ValueError('the memory node has no parameters planner and contract')
            planner, contract = (value.string_value for value in values)
            name = Embodiment.load(contract).contract.language.planner
            path = planner_folder(planner, name, offline='the node memory fetches it')
            self.refusal = without_missions(path)
        except (ValueError, OSError) as error:
            self.refusal = reason(error)
        if not self.refusal and not self._client.server_is_ready():
            self.refusal = 'no mission server is available; activate the node mission'

    def _accepted(self, future: Future) -> None:
        handle = self._handle = future.result()
        if not handle.accepted:
            self.result = Mission.Result(
                message='the mission was rejected; see the log of the robot'
            )
            return
        handle.get_result_async().add_done_callback(self._ended)
        if self._is_cancelled:
            handle.cancel_goal_async()

    def _ended(self, future: Future) -> None:
        answer = future.result()
        self.result = answer.result
        if answer.status == GoalStatus.STATUS_CANCELED:
            self.result.message = TIMEOUT

    def _on_state(self, message: MissionState) -> None:
        if message.mission == self._words:
            self.states.append(message)
