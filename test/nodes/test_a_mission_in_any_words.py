"""A robot with another vocabulary carries out a mission, and its memory answers where things are.

The policy and its answers are scripted; the mission and memory nodes are real.
"""

import pytest
import yaml
from action_msgs.msg import GoalStatus
from memory_suite import done, parameters, texts
from own_folder import FOLDER
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse

from embodied_kv.action import ExecuteInstruction
from embodied_kv.action import Mission as MissionAction
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import ControlState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.mission import Mission
from embodied_kv.robots.reading import SHIPPED
from embodied_kv.srv import Ask

MISSION = 'open the drawer, then put the cup on the shelf'
STEPS = ['open the drawer', 'put the cup on the shelf']


def contract(**language):
    """Return the path of a contract whose policy answers questions about anything."""
    made = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    made['language'] = {'questions': True, 'success': 'Is it done?', **language}
    path = FOLDER / f'open {len(language)}.yaml'
    path.write_text(yaml.safe_dump(made))
    return str(path)


class Kitchen:
    """A scripted policy that carries out each instruction, except the first `failures` ones."""

    def __init__(self, robot, failures=0):
        self.robot, self.failures, self.told, self.asked = robot, failures, [], []
        self.code = ErrorCode.TIMEOUT  # error code of a failure
        self.where, self._stream, self._outcomes = {}, 0, {}
        node = robot.node
        self._texts = node.create_publisher(TextDelta, 'language/text', qos.TEXT)
        node.create_service(Ask, 'language/ask', self._ask)
        self._server = ActionServer(
            node,
            ExecuteInstruction,
            'execute_instruction',
            self._execute,
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
        )
        control = node.create_publisher(ControlState, 'control/state', qos.STATUS)
        control.publish(ControlState(state=ControlState.ARMED))
        self._client = ActionClient(node, MissionAction, 'mission')

    def carry_out(self, mission):
        """Send a mission; return its status and result."""
        assert self._client.wait_for_server(60.0)
        sent = self._client.send_goal_async(MissionAction.Goal(mission=mission))
        self.robot.until(sent.done, show=False)
        assert sent.result().accepted
        ended = sent.result().get_result_async()
        self.robot.until(ended.done, show=False)
        return ended.result().status, ended.result().result

    def _ask(self, request, response):
        self.asked.append(request.question)
        self._stream += 1
        response.success, response.stream = True, self._stream
        said = TextDelta(stream=self._stream, query=request.question, finished=True, reason='eos')
        said.text = self.where.get(request.question, 'I do not know')
        said.header.stamp = self.robot.node.get_clock().now().to_msg()
        self._texts.publish(said)
        return response

    def _execute(self, handle):
        self.told.append(handle.request.instruction)
        if self.failures:
            self.failures -= 1
            handle.abort()
            return ExecuteInstruction.Result(error_code=self.code)
        if 'cup' in self.told[-1]:
            self.where['Where is the cup?'] = 'on the shelf'
        handle.succeed()
        return ExecuteInstruction.Result(success=True)


@pytest.fixture
def kitchen(robot):
    return Kitchen(robot)


def test_a_mission_of_foreign_words_is_carried_out_and_remembered(kitchen, robot, tmp_path):
    robot.up(Memory, Mission, contract=contract(), **parameters(tmp_path))
    status, result = kitchen.carry_out(MISSION)
    assert status == GoalStatus.STATUS_SUCCEEDED and result.success, result.message
    assert result.error_code == ErrorCode.NONE
    assert kitchen.told == STEPS and result.steps == 2
    assert texts(robot)['cup'] == 'cup: on the shelf'
    found = done(robot, 'query', question='Where is the cup?', segments=1).segments
    assert [segment.text for segment in found] == ['cup: on the shelf']


def test_a_step_that_fails_is_told_again(kitchen, robot, tmp_path):
    kitchen.failures = 1
    robot.up(Memory, Mission, contract=contract(), **parameters(tmp_path))
    status, result = kitchen.carry_out(MISSION)
    assert result.success and kitchen.told == [STEPS[0], *STEPS]
    assert 'task 1: open the drawer, not finished' in texts(robot).values()


def test_without_memory_it_is_carried_out_all_the_same(kitchen, robot, capfd):
    robot.up(Mission, contract=contract())
    assert kitchen.carry_out(MISSION)[1].success and kitchen.told == STEPS
    assert (
        'the memory node is not active: this mission is not remembered' in capfd.readouterr().err
    )


@pytest.mark.parametrize('kind', [Memory, Mission])
def test_a_domain_that_is_not_installed_fails_configure(robot, capfd, tmp_path, kind):
    own = parameters(tmp_path) if kind is Memory else {}
    node = robot.bring(kind, contract=contract(domain='kitchen'), **own)
    assert node.trigger_configure().name == 'FAILURE'
    assert 'language.domain must be one of open' in capfd.readouterr().err


@pytest.mark.parametrize('code, told', [(0, ErrorCode.UNKNOWN), (99, ErrorCode.UNKNOWN), (7, 7)])
def test_a_step_that_fails_for_another_reason_than_time_ends_the_mission(
    kitchen, robot, code, told
):
    kitchen.failures, kitchen.code = 1, code
    robot.up(Mission, contract=contract())
    status, result = kitchen.carry_out(MISSION)
    assert status == GoalStatus.STATUS_ABORTED and not result.success
    assert result.error_code == told and kitchen.told == STEPS[:1]


def test_a_memory_that_is_not_active_is_as_none(kitchen, robot, capfd, tmp_path):
    memory, _ = robot.up(Memory, Mission, contract=contract(), **parameters(tmp_path))
    assert memory.trigger_deactivate().name == 'SUCCESS'
    assert kitchen.carry_out(MISSION)[1].success and kitchen.told == STEPS
    assert 'the memory node is not active' in capfd.readouterr().err
