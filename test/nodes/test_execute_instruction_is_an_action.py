"""A goal of `execute_instruction` ends by success, standstill, time limit, client or stop."""

import time

import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.parameter import Parameter
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from embodied_kv.action import ExecuteInstruction
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.control.instruction_server import ASK_PERIOD
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask

SUITE = Perception, Action, Language


class Client:
    """Sends goals, and records their feedback."""

    def __init__(self, robot):
        self.robot, self.feedback = robot, []
        self._client = ActionClient(robot.node, ExecuteInstruction, 'execute_instruction')
        assert self._client.wait_for_server(60.0)

    def send(self, **goal):
        """Send a goal and return its handle."""
        request = ExecuteInstruction.Goal(**{'instruction': 'go', **goal})
        future = self._client.send_goal_async(
            request, lambda message: self.feedback.append(message.feedback)
        )
        self.robot.until(future.done)
        return future.result()

    def result(self, handle):
        """Return status and result of a goal after its end."""
        future = handle.get_result_async()
        self.robot.until(future.done)
        return future.result().status, future.result().result


@pytest.fixture
def client(robot):
    robot.up(*SUITE, instruction='', prompt_interval_frames=1)
    robot.until(lambda: robot.suite[1]._joints.now() is not None)
    return Client(robot)


def stands(robot):
    robot.spin(0.5)
    robot.trajectories.clear()
    for _ in range(5):
        robot.show()
        robot.spin(0.1)
    return not robot.trajectories


def test_without_a_goal_the_arm_stands(client, robot):
    assert stands(robot)


def test_goal_moves_an_arm_that_was_armed_before(client, robot, capfd):
    assert robot.call(SetBool, 'control/arm', data=False).success
    assert not client.send().accepted and 'disarmed: arm it' in capfd.readouterr().err
    assert robot.call(SetBool, 'control/arm', data=True).success
    assert stands(robot) and client.send().accepted
    robot.until(lambda: robot.trajectories)


def test_a_goal_ends_with_a_stop_that_is_reset_at_once(client, robot):
    handle = client.send()
    safety = robot.suite[1]._safety
    safety.stop('operator')  # no check of the goal sees this state
    safety.reset()
    safety.arm(time.monotonic())
    status, result = client.result(handle)
    assert (status, result.error_code) == (GoalStatus.STATUS_ABORTED, ErrorCode.STOPPED)


def test_goal_moves_the_arm_and_sends_feedback(client, robot):
    goal = client.send(time_limit=60.0)
    assert goal.accepted
    robot.until(lambda: robot.trajectories and client.feedback and client.feedback[-1].age > 0)
    told = client.feedback[-1]
    assert 0 < told.progress < 1 and told.seconds > 0
    robot.until(lambda: client.feedback[-1].subtask)


def test_a_cancelled_goal_stops_the_arm(client, robot):
    goal = client.send()
    robot.until(lambda: robot.trajectories)
    robot.until(goal.cancel_goal_async().done)
    status, result = client.result(goal)
    assert status == GoalStatus.STATUS_CANCELED and not result.success
    assert result.chunks > 0 and stands(robot)


def test_time_limit_ends_the_goal(client, robot):
    status, result = client.result(client.send(time_limit=1.0))
    assert status == GoalStatus.STATUS_ABORTED and 'time limit' in result.message
    assert 1.0 <= result.seconds < 5.0 and stands(robot)


def test_stop_ends_the_goal_with_its_reason(client, robot):
    goal = client.send()
    robot.until(lambda: robot.trajectories)
    assert robot.call(Trigger, 'control/stop').success
    status, result = client.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and 'control/stop' in result.message
    assert not client.send().accepted  # until it is reset and armed


def test_newer_goal_or_instruction_replaces_the_goal(client, robot):
    first = client.send()
    second = client.send(instruction='go on')
    status, result = client.result(first)
    assert status == GoalStatus.STATUS_ABORTED
    robot.until(lambda: robot.trajectories)
    robot.instruction.publish(String(data='and this'))
    status, result = client.result(second)
    assert status == GoalStatus.STATUS_ABORTED and 'and this' in result.message
    robot.trajectories.clear()
    robot.until(lambda: robot.trajectories)  # the new instruction is in force


def test_instruction_by_parameter_replaces_the_goal(client, robot):
    goal = client.send()
    robot.until(lambda: robot.trajectories)
    robot.suite[0].set_parameters([Parameter('instruction', value='and this')])
    status, result = client.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and 'and this' in result.message
    robot.trajectories.clear()
    robot.until(lambda: robot.trajectories)


@pytest.mark.parametrize(
    'goal', [dict(instruction=' \n'), dict(time_limit=-1.0), dict(time_limit=float('nan'))]
)
def test_invalid_goal_is_refused(client, goal):
    assert not client.send(**goal).accepted


def test_yes_to_the_success_question_is_success(client, robot):
    goals = robot.suite[1]._control_services.goals
    goal = client.send(success_question='Is it done?')
    robot.until(lambda: goals._asked is not None)
    said = robot.node.create_publisher(TextDelta, 'language/text', 10)  # as a trained policy would

    def say():
        said.publish(
            robot.stamped(TextDelta(stream=goals._asked or 0, text=' Yes', finished=True))
        )

    robot.until(lambda: say() or goals._goal is None)
    status, result = client.result(goal)
    assert status == GoalStatus.STATUS_SUCCEEDED and result.success


def test_an_answer_that_takes_longer_than_the_next_question_counts(robot):
    robot.up(Perception, Action, instruction='')
    robot.until(lambda: robot.suite[1]._joints.now() is not None)
    publisher = robot.node.create_publisher(TextDelta, 'language/text', 10)
    opened = []

    def ask(request, response):
        opened.append((response.stream or len(opened) + 1, time.monotonic()))
        response.success, response.stream = True, opened[-1][0]
        return response

    robot.node.create_service(Ask, 'language/ask', ask)

    def answer():
        for stream, since in opened:
            if time.monotonic() > since + 1.5 * ASK_PERIOD:
                message = TextDelta(stream=stream, text='yes', finished=True)
                publisher.publish(robot.stamped(message))

    goal = Client(robot).send(success_question='Is it done?')
    goals = robot.suite[1]._control_services.goals
    robot.until(lambda: answer() or goals._goal is None)
    assert len(opened) == 1
    assert goal.accepted


@pytest.fixture
def asked(robot):
    """Return a client, and answers to the success question, for a standstill_timeout of 1 s."""
    robot.up(*SUITE, instruction='', prompt_interval_frames=1, standstill_timeout=1.0)
    robot.until(lambda: robot.suite[1]._joints.now() is not None)
    goals = robot.suite[1]._control_services.goals
    publisher = robot.node.create_publisher(TextDelta, 'language/text', 10)

    answered = set()

    def answer(text):
        """Answer each question once, as a policy does."""
        if (stream := goals._asked) is not None and stream not in answered:
            answered.add(stream)
            message = TextDelta(stream=stream, text=text, finished=True)
            publisher.publish(robot.stamped(message))

    return Client(robot), goals, answer


def test_standing_arm_that_is_not_done_ends_the_goal(asked, robot, monkeypatch):
    client, goals, answer = asked
    monkeypatch.setattr(robot.suite[1]._stillness, '_near', np.inf)  # else random weights move it
    goal = client.send(success_question='Is it done?')
    robot.until(lambda: answer(' no, not yet') or goals._goal is None)
    status, result = client.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and result.error_code == ErrorCode.NOT_DONE
    assert 'has stood still for 1 s' in result.message and 'no, not yet' in result.message
    assert result.seconds >= 1.0 and stands(robot)


def test_moving_arm_that_is_not_done_continues_the_goal(asked, robot):
    client, goals, answer = asked
    client.send(success_question='Is it done?')
    robot.until(lambda: answer(' no') or goals._goal.denial)
    robot.until(lambda: answer(' no') or goals._goal.seconds > 2.5)
    assert goals._goal is not None


def test_arm_may_stand_without_a_success_question(asked, robot):
    client, goals, _ = asked
    client.send()
    robot.until(lambda: goals._goal.seconds > 2.0)
    assert goals._goal is not None
