"""Each robot of a fleet acts whenever its own process and the policy server run.

The processes that `fleet.launch.py` starts are suspended, killed and restarted.
"""

import signal
import socket
import time
from pathlib import Path

import pytest
import yaml
from kill_suite import PATIENCE, arm

from benchmarks.watchdog.stand_ins import Process
from embodied_kv.control.command import FRESH, SOURCES

CONFIG = Path(__file__).parents[2] / 'config' / 'fleet.yaml'
OTHER = {  # differences from the shipped file, because test machines are slow
    '/**': {'instruction': 'pick up the red cube'},
    '/**/policy_server': {'engine.compile': 'off', 'memory.enabled': False},
    '/**/action': {'resume_within': 3600.0, 'max_chunk_age': 30.0, 'camera_timeout': 60.0},
}


class Fleet:
    """The processes of a fleet, and a stand-in for the sensors of each robot."""

    def __init__(self, robots, folder):
        self.robots, self._folder = robots, folder
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self._port = free.getsockname()[1]
        params = {k: {'ros__parameters': v} for k, v in OTHER.items()}
        (folder / 'other.yaml').write_text(yaml.safe_dump(params))
        self.server, self.suites = self.start_server(), [self.start(robot) for robot in robots]

    def _process(self, module, *words):
        files = '--params-file', str(CONFIG), '--params-file', str(self._folder / 'other.yaml')
        return Process(module, '--ros-args', *files, *words)

    def start_server(self):
        port = f'policy_server:port:={self._port}'
        return self._process('embodied_kv.nodes.policy_server', '-p', port)

    def start(self, robot):
        address = f'server.address:=ws://127.0.0.1:{self._port}'
        folder = f'session:capsule_directory:={self._folder / "capsules"}'
        words = '-p', address, '-p', folder, '-r', f'__ns:={robot.namespace}'
        return self._process('embodied_kv.nodes.remote.robot', *words)

    def until(self, happened):
        end = time.monotonic() + PATIENCE
        while not happened():
            texts = [process.text[-4000:] for process in (self.server, *self.suites)]
            assert time.monotonic() < end, '\n\n'.join(texts)
            for robot in self.robots:
                robot.show()
                robot.spin(0.05)

    def act(self, *robots):
        """Wait until each of these robots executes fresh chunks."""
        for robot in robots:
            robot.chunks.clear()
        self.until(lambda: all(fresh(robot) > 2 for robot in robots))

    def rest(self, *robots):
        """Wait until none of these robots has executed a fresh chunk for 1 s."""
        last = {}

        def rests():
            now = time.monotonic()
            for robot in robots:
                count, since = last.get(robot, (-1, now))
                last[robot] = (count, since) if count == fresh(robot) else (fresh(robot), now)
            return all(now - since > 1.0 for _, since in last.values())

        self.until(rests)

    def close(self):
        for process in (self.server, *self.suites):
            process.close()


def fresh(robot):
    return sum(SOURCES[chunk.source] == FRESH for chunk in robot.chunks)


@pytest.mark.slow
def test_each_robot_acts_whatever_becomes_of_the_other_processes(robots, tmp_path):
    two = first, second = [robots(), robots()]
    fleet = Fleet(two, tmp_path)
    try:
        for robot in two:
            arm(robot)
        fleet.act(*two)

        fleet.server.signal(signal.SIGSTOP)
        fleet.rest(*two)
        fleet.server.signal(signal.SIGCONT)
        fleet.act(*two)

        fleet.suites[0].signal(signal.SIGKILL)
        fleet.act(second)
        fleet.suites[0].close()
        fleet.suites[0] = fleet.start(first)  # a respawned process starts disarmed
        first.chunks.clear()
        arm(first)
        fleet.act(*two)

        fleet.suites[1].signal(signal.SIGSTOP)
        fleet.act(first)
        fleet.suites[1].signal(signal.SIGCONT)
        fleet.act(*two)

        fleet.server.signal(signal.SIGKILL)
        fleet.rest(*two)
        fleet.server.close()
        fleet.server = fleet.start_server()
        fleet.act(*two)

        fleet.server.signal(signal.SIGTERM)
        assert fleet.server.wait(PATIENCE) == 0, fleet.server.text
        for suite in fleet.suites:
            suite.signal(signal.SIGTERM)
        assert [suite.wait(PATIENCE) for suite in fleet.suites] == [0, 0]
    finally:
        fleet.close()
