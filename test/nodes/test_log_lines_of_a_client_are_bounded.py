"""However often a client sends something, the log gets few lines about it and loses no count."""

import re

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import String

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask
from embodied_kv.throttle import Throttled

MANY = 1000


def lines(capfd):
    return [line for line in capfd.readouterr().err.split('\n') if line]


def instructions(capfd):
    return [found[1] for line in lines(capfd) if (found := re.search('instruction: (.+)', line))]


def test_a_thousand_instructions_make_few_lines_and_the_newest_is_in_force(robot, capfd):
    perception = robot.up(Perception)
    robot.until(lambda: robot.handles)
    now = 0.0
    perception._infos = Throttled(perception._infos._say, clock=lambda: now)
    capfd.readouterr()
    for number in range(MANY):
        perception._frames._on_instruction(String(data=f'reach {number}'))
    assert instructions(capfd) == ["'reach 0'"]
    now = 60.0
    robot.more(robot.handles, 15)  # a timer of the node logs a summary
    assert instructions(capfd) == [
        f"'reach {MANY - 1}' (60.0 s ago, and {MANY - 2} more like it before)"
    ]
    assert perception.report()[2]['instruction'] == f'reach {MANY - 1}'
    robot.more(robot.handles)
    assert perception._frames._prefilled[0].instruction == f'reach {MANY - 1}'


def test_instructions_at_a_high_rate_leave_the_newest_in_force(robot, capfd):
    perception = robot.up(Perception)
    robot.until(lambda: robot.handles)
    capfd.readouterr()
    for number in range(MANY):
        robot.instruction.publish(String(data=f'reach {number}'))
        robot.executor.spin_once(timeout_sec=0)
    robot.until(lambda: perception._frames.instruction == f'reach {MANY - 1}')
    assert len([line for line in lines(capfd) if 'instruction' in line]) <= 3


def test_long_and_empty_instructions_make_few_lines(robot, capfd):
    perception = robot.up(Perception)
    capfd.readouterr()
    for _ in range(50):
        for text in ('x' * 10_000, '', '\n'):
            perception._frames._on_instruction(String(data=text))
    assert len(lines(capfd)) <= 3
    assert perception.warning_counts['long instruction'] == 50


def test_a_service_that_fails_makes_few_lines(robot, capfd):
    robot.up(Perception, Action, Language, prompt_interval_frames=0)
    robot.until(lambda: robot.handles)

    def broken(*_, **__):
        raise RuntimeError('broken\n[INFO] forged')

    EngineHost._shared.engine.open = broken
    capfd.readouterr()
    for _ in range(30):
        response = robot.call(Ask, 'language/ask', question='why?')
        assert (response.success, response.message) == (False, 'failed: see the log of the node')
    log = lines(capfd)
    assert len([line for line in log if 'ask failed' in line]) == 1
    assert not [line for line in log if line.startswith('[INFO] forged')]


def test_a_topic_whose_callback_fails_makes_few_lines(robot, capfd):
    perception = robot.up(Perception)
    heard = []

    def broken(message):
        heard.append(message)
        raise RuntimeError('broken\n[INFO] forged')

    perception.subscribe(String, 'odd', broken, qos.TEXT)
    publisher = robot.node.create_publisher(String, 'odd', qos.TEXT)
    robot.until(publisher.get_subscription_count, show=False)
    capfd.readouterr()
    for number in range(50):
        publisher.publish(String())
        robot.until(lambda n=number: len(heard) > n, show=False)
    log = lines(capfd)
    assert len([line for line in log if 'a callback failed' in line]) == 1
    assert not [line for line in log if line.startswith('[INFO] forged')]
    robot.node.destroy_publisher(publisher)


def test_transitions_that_fail_or_are_impossible_make_few_lines(robot, capfd):
    robot.bring(Perception, views=['left', 'right'])
    capfd.readouterr()
    for _ in range(20):
        for id in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
            response = robot.call(
                ChangeState, 'perception/change_state', transition=Transition(id=id)
            )
            assert not response.success
    ours = [line for line in lines(capfd) if 'failed' in line or 'transition refused' in line]
    assert 2 <= len(ours) <= 6
