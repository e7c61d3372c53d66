"""The newest instruction is in force: initial value, message or parameter.

An empty instruction clears it.
"""

import pytest
from rclpy.parameter import Parameter
from std_msgs.msg import String

from embodied_kv.nodes.observation.pipeline import ObservationPipeline
from embodied_kv.nodes.perception import Perception

PERIOD = 0.2  # s, as in conftest


@pytest.fixture
def perception(robot):
    node = robot.up(Perception)
    robot.until(lambda: robot.handles)
    return node


def told(node):
    return node._frames.instruction


def set_parameter(node, text):
    assert node.set_parameters([Parameter('instruction', value=text)])[0].successful


@pytest.mark.parametrize('empty', ['', ' \n'])
def test_an_empty_instruction_stops_frames_and_the_next_one_starts_them(robot, perception, empty):
    robot.instruction.publish(String(data=empty))
    robot.until(lambda: not told(perception))
    robot.spin(PERIOD)  # a frame was being prefilled
    before = len(robot.handles)
    for _ in range(5):
        robot.show()
        robot.spin(PERIOD / 2)
    assert len(robot.handles) == before and not perception.warning_counts
    assert perception.report()[1] == 'no instruction: nothing to do'
    robot.instruction.publish(String(data='wave'))
    robot.more(robot.handles)


def test_of_messages_and_parameters_the_newest_is_in_force(robot, perception):
    assert told(perception) == 'reach'  # as in conftest
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: told(perception) == 'push')
    set_parameter(perception, 'pull')
    assert told(perception) == 'pull'
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: told(perception) == 'push')
    set_parameter(perception, '')
    assert told(perception) == ''


def test_a_parameter_begins_anew_with_the_next_configuration(robot, perception):
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: told(perception) == 'push')
    perception.trigger_deactivate()
    perception.trigger_activate()
    assert told(perception) == 'push'
    perception.trigger_deactivate()
    perception.trigger_cleanup()
    set_parameter(perception, 'pull')
    assert told(perception) == 'push'  # only the next configure reads it
    perception.trigger_configure()
    assert told(perception) == 'pull'


def test_an_instruction_that_is_set_while_inactive_is_published_by_the_activation(
    robot, perception
):
    heard = []
    robot.node.create_subscription(
        String, 'instruction', lambda message: heard.append(message.data), 10
    )
    robot.spin(0.3)
    perception.trigger_deactivate()
    set_parameter(perception, 'pull')
    robot.spin(0.3)
    heard.clear()
    perception.trigger_activate()
    robot.until(lambda: heard == ['pull'], show=False)
    perception.trigger_deactivate()
    perception.trigger_activate()
    robot.spin(0.3)
    assert heard == ['pull'], 'it is published once'


def test_who_asked_hears_each_instruction(robot, monkeypatch):
    heard = []
    prepare = Perception.setup

    def setup(node):
        prepare(node)
        node._frames = ObservationPipeline(node, node._on_handle, heard.append)

    monkeypatch.setattr(Perception, 'setup', setup)
    perception = robot.up(Perception)
    for text in ('push', ''):
        robot.instruction.publish(String(data=text))
        robot.until(lambda t=text: told(perception) == t)
    set_parameter(perception, 'pull')
    assert heard == ['push', '', 'pull']
