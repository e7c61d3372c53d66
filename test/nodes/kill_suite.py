"""The executable `robot` with a mission, to be killed by tests.

The policy has random weights. A stand-in in the test process therefore answers the scene queries,
and it also plans if the test wants it to.
"""

import os
import subprocess
import sys
import time

import pytest
import yaml
from std_srvs.srv import SetBool
from table_robot import TableRobot

from embodied_kv.capsule.disk import Disk
from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.msg import MissionState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.srv import Ask, CapsuleSnapshot, MemoryPlan
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
GIVEN = {
    'contract': 'tabletop',
    'preset': 'tiny',
    'checkpoint': 'random',
    'control_frequency': 5.0,
    'instruction': 'reach',
    'armed': True,
    'resume_within': 3600.0,
    'prompt_interval_frames': 0,
    'camera_timeout': 60.0,
    'engine.decode_tokens': 280,
    'engine.time_budget': False,
}
SPOKEN = ('what is red?', 'what is blue?')  # questions with long answers
STEP = 'put the red cube into the green bin'
PATIENCE = 180.0  # s
TRIES = 6  # attempts of a call within PATIENCE
TRUTH = ('memory/plan', 'language/ask')  # services that the stand-in can serve for the mission


class Truth:
    """A stand-in that answers questions about a table truthfully and always plans the same step.

    `heard` contains the states of the mission.
    """

    def __init__(self, robot):
        node, self._stream, self.heard = robot.node, 10**6, []
        self._table = TableRobot(LYING, None)
        self._texts = node.create_publisher(TextDelta, 'language/text', qos.TEXT)
        node.create_service(MemoryPlan, 'truth/memory/plan', self._plan)
        node.create_service(Ask, 'truth/language/ask', self._ask)
        node.create_subscription(MissionState, 'mission/state', self.heard.append, qos.STATUS)

    def _plan(self, _, response):
        response.success, response.text = True, STEP
        return response

    def _ask(self, request, response):
        self._stream += 1
        said = TextDelta(stream=self._stream, text=self._table.answer(request.question))
        said.finished, said.reason = True, 'eos'
        self._texts.publish(said)
        response.success, response.stream = True, self._stream
        return response


def arm(robot):
    """Arm a suite that has just been started; retry until it succeeds."""
    client = robot.node.create_client(SetBool, 'control/arm')
    armed, sent, again = [], None, 0.0

    def done():
        nonlocal sent, again
        if sent is not None and sent.done():
            armed.append(sent.result().success)
            sent = None
        if time.monotonic() > again and client.service_is_ready():
            sent, again = client.call_async(SetBool.Request(data=True)), time.monotonic() + 1.0
        return True in armed

    robot.until(done, timeout=PATIENCE)
    robot.node.destroy_client(client)


class Starter:
    """Starts the executable, any number of times; its files are in `folder`.

    memory: parameters of the memory node. asked: names from `TRUTH` that the mission calls on the
    stand-in.
    """

    def __init__(self, robot, folder, memory, asked=TRUTH):
        self._robot, self._folder, self._started = robot, folder, []
        own = {
            '/**': GIVEN,
            '/**/session': {
                'capsule_directory': str(folder / 'capsules'),
                'max_action_resume_age': 3600.0,
                'max_planner_resume_age': 3600.0,
            },
            '/**/memory': memory,
            '/**/mission': {'step_time_limit': 3600.0},
        }
        params = folder / 'params.yaml'
        params.write_text(yaml.safe_dump({n: {'ros__parameters': v} for n, v in own.items()}))
        self._command = [sys.executable, '-m', 'embodied_kv.nodes.robot', '--ros-args']
        self._command += ['--params-file', str(params), '-r', f'__ns:={robot.namespace}']
        for name in asked:
            self._command += ['-r', f'mission:{name}:=truth/{name}']

    def __call__(self):
        with (self._folder / f'{len(self._started)}.log').open('w') as log:
            environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
            process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        self._started.append(process)
        self._robot.chunks.clear()
        if len(self._started) > 1:  # a respawned process starts disarmed
            arm(self._robot)
        self._robot.until(lambda: self._robot.chunks, timeout=PATIENCE)
        return process

    def close(self):
        for process in self._started:
            process.kill()
            process.wait()


class Caller:
    """Calls services while cameras publish; each client is made once and kept for later calls."""

    def __init__(self, robot, *kinds):
        self._robot, self._clients = robot, {}
        for kind, name in kinds:
            self._clients[kind] = robot.node.create_client(kind, name)

    def ready(self):
        for client in self._clients.values():
            self._robot.until(client.service_is_ready, timeout=PATIENCE)

    def __call__(self, kind, /, **fields):
        """Call a service and return its response.

        The request is repeated while there is no response, because a killed suite still seems
        ready for some time.
        """
        sent = []
        while not any(future.done() for future in sent):
            assert len(sent) < TRIES, f'nobody answers {kind.__name__}'
            sent.append(self._clients[kind].call_async(kind.Request(**fields)))
            self._waited(sent, time.monotonic() + PATIENCE / TRIES)
        (future, *_) = [future for future in sent if future.done()]
        assert future.result().success, future.result().message
        return future.result()

    def _waited(self, sent, end):
        def over():
            return any(future.done() for future in sent) or time.monotonic() > end

        self._robot.until(over, timeout=PATIENCE)


def ask(robot, call, **fields):
    """Return the stream of a question; ask again if a busy machine has no recent frame."""
    for _ in range(TRIES):
        try:
            return call(Ask, **fields).stream
        except AssertionError as error:
            if 'no frame to ask about' not in str(error):
                raise
        robot.more(robot.chunks, 1)
    pytest.fail('there was never a frame to ask about')


def snapshot_amid_speech(robot, call, folder):
    """Take a capsule while both answers are being decoded.

    Return its name and the complete answers, as from `said`.
    """
    for attempt in range(20):
        asked = {
            ask(robot, call, question=q, temperature=1.0, seed=3 + attempt, max_tokens=240)
            for q in SPOKEN
        }
        name = call(CapsuleSnapshot, name=f'home{attempt}', tier='disk').name
        words = said(robot, asked)
        disk = Disk(folder)
        streams = disk.load(name, disk.entry(name).fingerprint).facts['session']['streams']
        if {*SPOKEN} <= {stream['query']['text'] for stream in streams}:
            return name, words
    pytest.fail('the answers were always over before the snapshot')


def said(robot, streams):
    """Wait until streams have ended; return text, tokens and reason by question.

    The text of a restored stream is its remaining part; the tokens count the whole answer.
    """
    ends = {}

    def ended():
        ends.update({text.stream: text for text in robot.texts if text.finished})
        return streams <= ends.keys()

    robot.until(ended, timeout=PATIENCE)
    texts = {s: ''.join(t.text for t in robot.texts if t.stream == s) for s in streams}
    return {ends[s].query: (texts[s], ends[s].tokens, ends[s].reason) for s in streams}
