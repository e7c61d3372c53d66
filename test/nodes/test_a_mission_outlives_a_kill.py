"""kill -9 in the middle of a mission: streams, plan, mission and memory go on from the capsule.

The suite is the executable `robot`; the policy is random, so what a mission sees and plans is a
stand-in's of this process. Everything else is the suite's own.
"""

import os
import signal
import subprocess
import sys

import pytest
import yaml
from memory_suite import done, parameters, segments, texts
from rclpy.action import ActionClient
from table_robot import TableRobot

from embodied_kv.action import Mission
from embodied_kv.capsule.disk import Disk
from embodied_kv.msg import MissionState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.sim.mission_table import TABLE, KnownTable
from embodied_kv.srv import Ask, CapsuleRestore, CapsuleSnapshot, MemoryPlan

LYING = KnownTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
GIVEN = {
    'contract': 'tabletop',
    'preset': 'tiny',
    'checkpoint': 'random',
    'rate': 5.0,
    'instruction': 'reach',
    'armed': True,
    'prompt_interval': 0,
    'camera_timeout': 60.0,
    'engine.decode_tokens': 280,
    'engine.time_budget': False,
}
QUESTION = 'when is tea drunk?'
SPOKEN = ('what is red?', 'what is blue?')  # long answers
NOTES = (
    ('tea', 'note', 'tea is drunk at five'),
    ('cup', 'note', 'a cup breaks easily'),
)
STEP = 'put the red cube into the green bin'
PATIENCE = 180.0  # s
TRUTH = ('memory/plan', 'language/ask')  # what the mission asks the stand-in


class Truth:
    """Sees a table as it is, plans one step for ever, and hears how the mission is."""

    def __init__(self, robot):
        node, self._stream, self.heard = robot.node, 10**6, []
        self._table = TableRobot(LYING, None)
        self._texts = node.create_publisher(TextDelta, 'language/text', qos.TEXT)
        node.create_service(MemoryPlan, 'truth/memory/plan', self._plan)
        node.create_service(Ask, 'truth/language/ask', self._ask)
        node.create_subscription(MissionState, 'mission/state', self.heard.append, qos.STATUS)

    def _plan(self, _, response):
        response.ok, response.text = True, STEP
        return response

    def _ask(self, request, response):
        self._stream += 1
        said = TextDelta(stream=self._stream, text=self._table.answer(request.question))
        said.finished, said.reason = True, 'eos'
        self._texts.publish(said)
        response.ok, response.stream = True, self._stream
        return response


@pytest.fixture
def start(robot, tmp_path):
    """Starts the executable, again and again."""
    memory = parameters(tmp_path)
    own = {
        '/**': GIVEN,
        '/**/session': {
            'folder': str(tmp_path / 'capsules'),
            'max_age': 3600.0,
            'max_planner_age': 3600.0,
        },
        '/**/memory': memory,
        '/**/mission': {'step_time_limit': 3600.0},
    }
    params = tmp_path / 'params.yaml'
    params.write_text(yaml.safe_dump({n: {'ros__parameters': v} for n, v in own.items()}))
    command = [sys.executable, '-m', 'embodied_kv.nodes.robot', '--ros-args']
    command += ['--params-file', str(params), '-r', f'__ns:={robot.namespace}']
    command += [word for name in TRUTH for word in ('-r', f'mission:{name}:=truth/{name}')]
    started = []

    def begin():
        with (tmp_path / f'{len(started)}.log').open('w') as log:
            environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        started.append(process)
        robot.chunks.clear()
        robot.until(lambda: robot.chunks, timeout=PATIENCE)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


class Caller:
    """Services' answers, while cameras send; a client is made once, so that it is ready later."""

    def __init__(self, robot, *kinds):
        self._robot, self._clients = robot, {}
        for kind, name in kinds:
            self._clients[kind] = robot.node.create_client(kind, name)

    def ready(self):
        for client in self._clients.values():
            self._robot.until(client.service_is_ready, timeout=PATIENCE)

    def __call__(self, kind, /, **fields):
        future = self._clients[kind].call_async(kind.Request(**fields))
        self._robot.until(future.done, timeout=PATIENCE)
        assert future.result().ok, future.result().message
        return future.result()


def snapshot_amid_speech(robot, call, folder):
    """A capsule whose session says both answers; its name, and what they came to be."""
    for attempt in range(20):
        asked = {
            call(Ask, question=q, temperature=1.0, seed=3 + attempt, max_tokens=240).stream
            for q in SPOKEN
        }
        name = call(CapsuleSnapshot, name=f'home{attempt}', tier='disk').name
        words = said(robot, asked)
        streams = Disk(folder).entry(name).facts['session']['streams']
        if {*SPOKEN} <= {stream['query']['text'] for stream in streams}:
            return name, words
    pytest.fail('the answers were always over before the snapshot')


def said(robot, streams):
    """By question, what streams said, once they have ended: the last of it, and all tokens."""
    ends = {}

    def ended():
        ends.update({text.stream: text for text in robot.texts if text.finished})
        return streams <= ends.keys()

    robot.until(ended, timeout=PATIENCE)
    texts = {s: ''.join(t.text for t in robot.texts if t.stream == s) for s in streams}
    return {ends[s].query: (texts[s], ends[s].tokens, ends[s].reason) for s in streams}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_a_robot_goes_on_after_a_kill(robot, start, tmp_path):
    truth, process = Truth(robot), start()
    folder = tmp_path / 'capsules' / robot.namespace.strip('/')
    client = ActionClient(robot.node, Mission, 'mission')
    robot.until(client.server_is_ready, timeout=PATIENCE)
    client.send_goal_async(Mission.Goal(mission='tidy up'))
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    call = Caller(
        robot,
        (MemoryPlan, 'memory/plan'),
        (Ask, 'language/ask'),
        (CapsuleSnapshot, 'capsule/snapshot'),
        (CapsuleRestore, 'capsule/restore'),
    )
    call.ready()
    call(MemoryPlan, question='what was done?')
    done(robot, 'upsert', segments=segments(*NOTES))
    planned = done(robot, 'plan', question=QUESTION)
    name, words = snapshot_amid_speech(robot, call, folder)
    known = texts(robot)
    done(robot, 'upsert', segments=segments(('mug', 'object', 'mug: on the plate')))
    process.send_signal(signal.SIGKILL)
    process.wait()
    truth.heard.clear()
    robot.texts.clear()

    start()
    call.ready()
    back = call(CapsuleRestore, name=name)
    assert back.depth in ('actor', 'planner') and len(back.streams) >= 2, back.message
    assert "'mug: on the plate' is new" in back.message
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    assert truth.heard[-1].running and truth.heard[-1].mission == 'tidy up'
    for query, (text, tokens, reason) in said(robot, set(back.streams)).items():
        before, *ending = words[query]
        assert before.endswith(text) and [tokens, reason] == ending
    now = texts(robot)
    assert known.items() <= now.items() and 'mug' in now, 'memory is that of now'
    for id in now.keys() - known.keys():
        done(robot, 'remove', id=id)
    again = done(robot, 'plan', question=QUESTION)
    assert (again.text, again.tokens, again.fresh) == (planned.text, planned.tokens, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_is_told_again_after_a_kill_though_nobody_took_a_capsule(robot, start, tmp_path):
    truth, process = Truth(robot), start()
    folder = tmp_path / 'capsules' / robot.namespace.strip('/')
    client = ActionClient(robot.node, Mission, 'mission')
    robot.until(client.server_is_ready, timeout=PATIENCE)
    client.send_goal_async(Mission.Goal(mission='tidy up'))
    robot.until(lambda: Disk(folder).names(), timeout=PATIENCE)
    process.send_signal(signal.SIGKILL)
    process.wait()
    truth.heard.clear()

    start()
    call = Caller(robot, (CapsuleRestore, 'capsule/restore'))
    call.ready()
    (name,) = Disk(folder).names()
    back = call(CapsuleRestore, name=name)
    assert name == 'mission-boundary-1' and back.depth in ('actor', 'planner'), back.message
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    assert truth.heard[-1].running and truth.heard[-1].mission == 'tidy up'
