"""A capsule on disk resumes its streams after the suite was killed and restarted.

The capsule is taken while the arm moves.
"""

import itertools
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from kill_suite import arm
from own_folder import loose_contract

from embodied_kv.msg import ActionChunk
from embodied_kv.srv import Ask, CapsuleList, CapsuleRestore, CapsuleSnapshot

PARAMETERS = {
    'armed': 'true',
    'resume_within': '3600.0',
    'preset': 'tiny',
    'checkpoint': 'random',
    'control_frequency': '5.0',
    'prompt_interval_frames': '0',
    'engine.decode_tokens': '280',
    'engine.time_budget': 'false',  # late chunks are made too, for a busy machine
    'camera_timeout': '20.0',
    'publish_rate': '2.0',  # few messages, so that a busy machine loses none
    'instruction': 'reach',
    'max_action_resume_age': '3600.0',
    'max_planner_resume_age': '3600.0',
}
SEEDS = range(4)
SNAPSHOTS = 8
ROUNDS = 5  # at most


class Suite:
    """The executable `robot`, which can be killed and started again."""

    def __init__(self, namespace, folder):
        self.log = folder / 'robot.log'
        given = [f'{name}:={value}' for name, value in PARAMETERS.items()]
        given += [f'capsule_directory:={folder / "capsules"}', f'contract:={loose_contract()}']
        self.command = [sys.executable, '-m', 'embodied_kv.nodes.robot', '--ros-args']
        self.command += [word for p in given for word in ('-p', p)]
        self.command += ['-r', f'__ns:={namespace}']
        self.start()

    def start(self):
        with self.log.open('a') as log:
            self.handle = subprocess.Popen(
                self.command, stdout=log, stderr=log, env={**os.environ, 'OMP_NUM_THREADS': '1'}
            )

    def kill(self):
        self.handle.send_signal(signal.SIGKILL)
        assert self.handle.wait(30) == -signal.SIGKILL


@pytest.fixture(scope='module')
def robot(robots_of_module):
    robot = robots_of_module()
    robot.follows = False  # `move` sets the joints of each frame
    return robot


@pytest.fixture(scope='module')
def suite(robot, tmp_path_factory):
    suite = Suite(robot.namespace, tmp_path_factory.mktemp('suite'))
    yield suite
    if suite.handle.poll() is None:
        suite.kill()


def move(robot, happened, timeout=180):
    """Change the joints with each frame until `happened` returns true."""
    joints = itertools.cycle(np.linspace(0.0, 0.3, 7))
    while not happened():
        chunks = len(robot.chunks)
        robot.until(
            lambda n=chunks: happened() or len(robot.chunks) > n,
            timeout=timeout,
            positions=next(joints),
        )


def call(robot, kind, name, /, **fields):
    """Call a service that must succeed while the arm moves; return its response."""
    client = robot.node.create_client(kind, name)
    move(robot, client.service_is_ready)
    future = client.call_async(kind.Request(**fields))
    move(robot, future.done)
    robot.node.destroy_client(client)
    assert future.result().success, future.result().message
    return future.result()


def acts(robot):
    return any(chunk.source == ActionChunk.FRESH for chunk in robot.chunks)


def whole(robot, streams):
    """Wait until streams have ended; return text, tokens and reason by frame and question."""
    ended = {}

    def all_ended():
        for text in robot.texts:
            if text.finished:
                ended[text.stream] = text
        return streams <= ended.keys()

    move(robot, all_ended)
    return {
        (ended[s].sequence, ended[s].query): (
            ''.join(text.text for text in robot.texts if text.stream == s),
            ended[s].tokens,
            ended[s].reason,
        )
        for s in streams
    }


@pytest.mark.slow
def test_snapshots_cost_no_deadline(robot, suite):
    """One undisturbed round is enough.

    A busy machine misses deadlines with and without snapshots.
    """
    move(robot, lambda: acts(robot))

    def missed():
        return sum(not chunk.deadline_met for chunk in robot.chunks[: 3 * SNAPSHOTS])

    rounds = []
    while len(rounds) < ROUNDS:
        robot.chunks.clear()
        move(robot, lambda: len(robot.chunks) >= 3 * SNAPSHOTS)
        before = missed()
        robot.chunks.clear()
        for _ in range(SNAPSHOTS):
            call(robot, CapsuleSnapshot, 'capsule/snapshot', tier='disk')
            goal = len(robot.chunks) + 2
            move(robot, lambda goal=goal: len(robot.chunks) >= goal)
        rounds.append((before, missed()))
        if missed() < before + SNAPSHOTS:  # else each snapshot cost a deadline
            return
    pytest.fail(f'missed deadlines before and during {SNAPSHOTS} snapshots: {rounds}')


def test_after_kill_and_restart_the_streams_say_the_same_words(robot, suite):
    robot.chunks.clear()  # an old frame is not asked about
    move(robot, lambda: acts(robot))
    asked = {
        call(
            robot,
            Ask,
            'language/ask',
            question=f'what is {seed}?',
            seed=seed,
            temperature=1.0,
            max_tokens=240,
        ).stream
        for seed in SEEDS
    }
    snapshot = call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home', tier='disk')
    assert snapshot.tier == 'disk' and acts(robot)
    words = whole(robot, asked)
    suite.kill()

    robot.chunks.clear()
    robot.texts.clear()
    suite.start()
    arm(robot)  # a respawned process starts disarmed
    move(robot, lambda: acts(robot))
    home = next(c for c in call(robot, CapsuleList, 'capsule/list').capsules if c.name == 'home')
    assert (home.bytes, home.tier, home.saved, home.fits) == (snapshot.bytes, 'disk', True, True)
    restored = call(robot, CapsuleRestore, 'capsule/restore', name='home')
    assert restored.depth in ('actor', 'planner') and len(restored.streams) > 0, restored.message
    for key, (text, tokens, reason) in whole(robot, set(restored.streams)).items():
        before, all_tokens, ending = words[key]
        assert before.endswith(text) and (tokens, reason) == (all_tokens, ending)
    assert acts(robot)
