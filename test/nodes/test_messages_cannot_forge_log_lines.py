"""Text from a user can neither forge a log line nor make a long one."""

import re

import numpy as np
import pytest
from memory_suite import begin as begin_memory
from memory_suite import call
from std_msgs.msg import String

from embodied_kv.msg import MemorySegment
from embodied_kv.nodes.perception import Perception

FORGED = '[INFO] [1.0] [perception]: forged'
HOSTILE = {
    'odd': f'wave\n{FORGED}\r\x1b[2K\x1b[1A\x1b[31m\u2028\u202e\x9b2J\x07',
    'long': f'wave\n{FORGED}\n' * 3_000,
}
HEAD = re.compile(r'\[(INFO|WARN|ERROR)\] \[\d+\.\d+\] \[[\w.]+\]: ')


@pytest.fixture(params=HOSTILE)
def hostile(request):
    return HOSTILE[request.param]


def harmless(log):
    """Assert that each line has the prefix of the logger, is printable and short; return True."""
    lines = [line for line in log.split('\n') if line]
    assert lines, 'nothing was said'
    for line in lines:
        assert HEAD.match(line), line[:200]
        assert line.isprintable() and len(line) < 1300, line[:200]
    return True


def test_an_instruction_is_shown_in_one_line(robot, capfd, hostile):
    perception = robot.up(Perception)
    robot.until(lambda: robot.handles)
    capfd.readouterr()
    robot.instruction.publish(String(data=hostile))
    robot.until(lambda: perception._frames.instruction == hostile, show=False)
    robot.instruction.publish(String(data=' '))
    robot.until(lambda: not perception._frames.instruction)
    log = capfd.readouterr().err
    assert harmless(log) and rf"instruction: 'wave\n{FORGED}\n"[:-2] in log
    assert perception.report()[2]['instruction'].isprintable()


def test_names_of_joints_and_of_an_encoding_are_shown(robot, capfd, hostile):
    perception = robot.up(Perception)
    capfd.readouterr()
    robot.until(lambda: perception.warning_counts['no frame'], names=[hostile] * 99)
    names = [hostile, *perception.embodiment.axes]
    robot.until(lambda: perception.warning_counts['joint state'], names=names, positions=np.nan)
    image = robot.picture()
    image.encoding = image.header.frame_id = hostile
    robot.cameras['front'].publish(image)
    robot.until(lambda: perception.warning_counts['image of front'], show=False)
    assert harmless(capfd.readouterr().err)


def test_what_is_to_be_remembered_is_shown(robot, tmp_path, capfd, hostile):
    memory = begin_memory(robot, tmp_path)
    publisher = robot.node.create_publisher(MemorySegment, 'memory/observe', 10)
    robot.until(publisher.get_subscription_count, show=False)
    capfd.readouterr()
    for fields in (
        {'id': hostile, 'kind': 'object', 'text': 'a cup'},
        {'id': 'cup', 'kind': hostile, 'text': 'a cup'},
    ):
        before = memory.warning_counts['segment']
        publisher.publish(MemorySegment(**fields))
        robot.until(lambda b=before: memory.warning_counts['segment'] > b, show=False)
    assert harmless(capfd.readouterr().err)
    for verb, fields in (
        ('remove', {'id': hostile}),
        ('query', {'kind': hostile}),
        ('plan', {'question': 'where?', 'method': hostile}),
    ):
        response = call(robot, verb, **fields)
        assert not response.success and response.message.isprintable()
        assert len(response.message) < 1300
    assert not capfd.readouterr().err
    robot.node.destroy_publisher(publisher)
