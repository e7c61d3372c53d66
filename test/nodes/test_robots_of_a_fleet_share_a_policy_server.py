"""Robots without a model share a policy server: one batch, but separate chunks for each robot."""

import numpy as np
from remote_suite import acting, busy, fresh, running_server
from std_msgs.msg import String

from embodied_kv.control.command import FRESH, SOURCES
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.serving.scheduling import SchedulingConfig

KAIROS = SchedulingConfig(scheduler='kairos')


def all_until(robots, happened):
    """Spin all robots, publishing frames, until `happened` returns true."""
    first, *others = robots

    def step():
        for robot in others:
            robot.show()
            robot.spin(0.01)
        return happened()

    first.until(step)


def instruct(robots):
    for n, robot in enumerate(robots):
        robot.instruction.publish(String(data=f'task {n}'))


def newest(robot):
    """Return the values of the newest fresh chunk of a robot."""
    return np.array([c.values for c in robot.chunks if SOURCES[c.source] == FRESH][-1])


def test_requests_that_wait_are_one_batch_and_each_robot_executes_its_own_chunks(robots):
    three = [robots() for _ in range(3)]
    with running_server('tabletop', scheduling=KAIROS) as opened:
        address = f'ws://127.0.0.1:{opened.port}'
        options = {'armed': True, 'execution_horizon': 'static:4', 'server__request_ahead': 1}
        for robot in three:
            acting(robot, address, **options)
        with busy(opened):
            instruct(three)
            all_until(three, lambda: opened.sessions.values()['waiting'] == 2)
        all_until(three, lambda: all(fresh(robot) > 2 for robot in three))
        counts = opened.sessions.values()
        assert counts['served'] > counts['batches']
        assert counts['robots'] == 3
        last = [newest(robot) for robot in three]
        assert not np.allclose(last[0], last[1]) and not np.allclose(last[1], last[2])


def test_a_robot_that_leaves_frees_its_row_and_the_others_go_on(robots):
    two = [robots() for _ in range(2)]
    with running_server('tabletop', scheduling=KAIROS) as opened:
        address = f'ws://127.0.0.1:{opened.port}'
        nodes = [acting(robot, address, armed=True) for robot in two]
        instruct(two)
        all_until(two, lambda: all(fresh(robot) > 1 for robot in two))
        assert nodes[0].trigger_deactivate().name == 'SUCCESS'
        before = fresh(two[1])
        all_until(two, lambda: opened.sessions.values()['sessions'] == 1)
        all_until(two, lambda: fresh(two[1]) > before + 1)
        assert len(opened.sessions._rows._leases) == 1
        opened.engine.kv.check_integrity()


def test_the_words_of_a_robot_take_no_share_of_their_own(robots):
    robot = robots()
    with running_server('tabletop') as opened:
        address = f'ws://127.0.0.1:{opened.port}'
        acting(robot, address, armed=True)
        robot.up(RemoteLanguage, server__address=address, prompt_interval_frames=1)
        instruct([robot])
        robot.until(lambda: len({text.query for text in robot.texts}) == 2)
        shares = opened.sessions._quota
        assert opened.sessions.values()['sessions'] == 1
        assert shares.each == shares.capacity == opened.engine.config.streams
