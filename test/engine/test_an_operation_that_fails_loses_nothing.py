"""If one operation of a snapshot, a restore or a plan fails, nothing is lost or remains held."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from planning_cases import QUESTION, filled, said

from benchmarks.common.hostile_device import InjectedFaultError
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.runtime.stream import Stream
from embodied_kv.session.engine_part import Branch, EnginePart
from embodied_kv.session.robot_session import RobotSession

FAULTS = 16  # maximum number of failing operations, spread evenly over the work
CONFIGS = {
    'whole': dict(),
    'compressed': dict(compressed_rows=4, language_keep_ratio=0.5, action_keep_ratio=0.5),
    'to be compressed': dict(
        compressed_rows=4, language_keep_ratio=0.5, compression_after_tokens=4
    ),
}


@pytest.fixture
def call(hostile):
    """Yield a function that runs work on another thread and stream, and returns a future."""
    with ThreadPoolExecutor(1) as thread:
        own = Stream.on('cpu')

        def run(work):
            with own.use():
                try:
                    return work()
                finally:
                    own.synchronize()

        yield lambda work: thread.submit(run, work)


def failing(hostile, work):
    """Run the work, then at most FAULTS times with one failing operation; yield after each."""
    with hostile.default.use():  # so operations of this thread are counted, too
        work()  # creates tables that are made only once
        before = hostile.operations
        work()
        count = hostile.operations - before
    assert count
    for operation in range(0, count, -(-count // FAULTS)):
        hostile.fail_after(operation)
        try:
            with (
                pytest.raises((InjectedFaultError, CapsuleError), match='failed'),
                hostile.default.use(),
            ):
                work()
        finally:
            hostile.fail_after(None)
        yield operation


class Robot:
    """A session with live streams, and a capsule c of it."""

    def __init__(self, engine, call, observe, folder):
        self.engine, self.call = engine, call
        self.registry = Registry(fingerprint(engine), TierCapacities(), Disk(folder))
        self.session = RobotSession(EnginePart(engine), self.registry, call)
        self.call(lambda: self._begin(observe(1, in_time=1e6))).result()
        self.session.snapshot('c')

    def _begin(self, frame):
        (handle,) = self.engine.prefill([frame])
        for question in ('what is it?', 'where?'):
            self.engine.open(handle, question, max_tokens=12)
        for _ in range(2):
            self.engine.decode()

    def at_rest(self):
        """Report the ended streams, check integrity, and return what is held."""
        self.call(self.engine.deltas).result()
        self.engine.kv.check_integrity()
        self.registry.check_integrity()
        stats = self.engine.kv.stats()
        names = sorted(entry.name for entry in self.registry.entries())
        return stats.rows_free, stats.leases, stats.streams, stats.compressed, names


@pytest.fixture(params=CONFIGS)
def robot(request, make_engine, call, observe, tmp_path):
    return Robot(make_engine(**CONFIGS[request.param]), call, observe, tmp_path)


@pytest.mark.parametrize('tier', Tier)
def test_a_snapshot_that_fails_is_absent(robot, hostile, tier):
    def work():
        robot.session.snapshot('d', None, tier)
        wanted = robot.registry.get('c').tensors
        found = robot.registry.get('d', Tier.DISK).tensors
        assert found.keys() == wanted.keys()
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor, wanted[name])
        robot.registry.drop('d')

    held = robot.at_rest()
    for _ in failing(hostile, work):
        if 'd' in robot.at_rest()[-1]:  # complete: the failure came after it was stored
            robot.registry.drop('d')
        assert robot.at_rest() == held
    work()


def test_a_rollback_that_fails_changes_nothing(robot, hostile):
    robot.session.rollback('c')
    held = robot.at_rest()
    for _ in failing(hostile, lambda: robot.session.rollback('c')):
        assert robot.at_rest() == held
    assert len(robot.session.rollback('c').streams) == 2


def test_a_fork_that_fails_leaves_no_branch(robot, hostile):
    def work():
        (grown,), _ = robot.session.fork('c', [Branch(seed=1)])
        for stream in grown:
            robot.engine.cancel(stream.id)

    held = robot.at_rest()
    for _ in failing(hostile, work):
        assert robot.at_rest() == held
    work()


def test_a_replay_that_fails_holds_nothing(robot, hostile):
    held, wanted = robot.at_rest(), robot.session.replay('c').values
    for _ in failing(hostile, lambda: robot.session.replay('c')):
        assert robot.at_rest() == held
    np.testing.assert_array_equal(robot.session.replay('c').values, wanted)


def test_candidates_that_fail_hold_nothing(robot, hostile):
    held = robot.at_rest()
    for _ in failing(hostile, lambda: robot.session.fork_chunk('c', [Branch(1), Branch(2)])):
        assert robot.at_rest() == held
    assert len(robot.session.fork_chunk('c', [Branch(1)])[0]) == 1


@pytest.mark.parametrize('method', ['keep', 'full'])
def test_a_plan_that_fails_is_made_again(hostile, call, tmp_path, method):
    with filled(tmp_path, step=lambda work: call(work).result()) as planning:

        def work():
            planning.upsert(('red cube', 'object', 'red cube: in the gripper'))
            planning.upsert(('red cube', 'object', 'red cube: on the left table'))
            return planning.plan(QUESTION, method=method)

        wanted = work()
        for _ in failing(hostile, work):
            planning.row.check_integrity()
            planning.memory.groups.check_integrity()
            assert said(work()) == said(wanted)
