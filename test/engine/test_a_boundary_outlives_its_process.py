"""A mission always has one checkpoint of its step, from which a later process resumes the step."""

import shutil

import numpy as np
import pytest
from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.planning.mission import MissionPart, MissionState
from embodied_kv.session.robot_session import MISSION_PREFIX, StepCheckpoints

ACTING = MissionState('tidy up', acting='put the red cube into the blue bin')


def seen(second):
    images = {'front': np.zeros((16, 16, 3), np.uint8)}
    return SceneSummary(np.zeros(7), images, second * 1_000_000_000)


class Robot:
    """A session with a mission, and the checkpoints of its steps in a folder."""

    def __init__(self, engine, folder, tier=Tier.DISK, **capacities):
        self.engine, self.state = engine, None
        self.registry = Registry(
            fingerprint(engine), TierCapacities(**capacities), disk=Disk(folder)
        )
        self.session = capsules_of(engine, self.registry)
        self.session.register(MissionPart(lambda: self.state, self._go_on))
        self.boundaries = StepCheckpoints(self.session, MISSION_PREFIX, tier)

    def _go_on(self, state):
        self.state = state

    def mark(self, second):
        return self.boundaries.snapshot(lambda: seen(second))

    @property
    def names(self):
        return [record.name for record in self.registry.entries()]


@pytest.fixture
def robot(make_engine, observe, tmp_path):
    """Return a robot with live streams."""
    robot = Robot(make_engine(), tmp_path)
    begin(robot.engine, observe(1))
    return robot


def test_another_process_goes_on_from_a_boundary_with_its_step(
    robot, make_engine, observe, tmp_path
):
    robot.state = ACTING
    robot.mark(10)
    left = shutil.copytree(tmp_path, tmp_path.with_name(f'{tmp_path.name}-left'))
    words = list(go_on(robot.engine).values())
    again = Robot(make_engine(), left)
    begin(again.engine, observe(7))
    again.session.restore(*again.names, seen(11))
    assert again.state == ACTING and list(go_on(again.engine).values()) == words


def test_at_any_moment_there_is_one(robot, monkeypatch):
    robot.mark(10)
    there, put = [], Registry._put

    def told(registry, item):
        put(registry, item)
        there.append(Disk.names(robot.registry._disk))

    monkeypatch.setattr(Registry, '_put', told)
    monkeypatch.setattr(Registry, 'drop', lambda *_: there.append(robot.names))
    robot.mark(11)
    assert len(there) > 1 and all(there)


def test_the_newest_takes_the_place_of_those_before_it(robot, make_engine, tmp_path):
    for second in range(3):
        robot.mark(second)
    assert robot.names == [f'{MISSION_PREFIX}-3']
    robot.registry.close()
    again = Robot(make_engine(), tmp_path)  # a later process with a new mission
    again.mark(10)
    assert again.names == [f'{MISSION_PREFIX}-4']


def test_what_a_user_pinned_or_named_stays(robot):
    robot.session.snapshot('mission')
    robot.mark(10)
    robot.registry.pin(f'{MISSION_PREFIX}-1')
    for second in (11, 12):
        robot.mark(second)
    assert robot.names == ['mission', f'{MISSION_PREFIX}-1', f'{MISSION_PREFIX}-3']


def test_a_rollback_without_a_name_does_not_go_to_a_missions_boundary(robot):
    robot.mark(10)
    with pytest.raises(CapsuleError, match='has no capsule: take a snapshot first'):
        robot.session.rollback()
    robot.session.snapshot('mine')
    robot.engine.decode()
    robot.mark(11)
    assert robot.session.rollback().capsule.name == 'mine'
    assert robot.session.rollback(f'{MISSION_PREFIX}-2').capsule.name == f'{MISSION_PREFIX}-2'


def test_where_none_could_be_taken_nothing_goes_back_to_one_before(make_engine, observe, tmp_path):
    robot = Robot(make_engine(), tmp_path, Tier.HOST, host=1)
    begin(robot.engine, observe(1))
    earlier = StepCheckpoints(robot.session, MISSION_PREFIX, Tier.DISK)
    earlier.snapshot(lambda: seen(10))
    with pytest.raises(CapsuleError, match='larger than the tier'):
        robot.mark(11)
    with pytest.raises(CapsuleError, match='no boundary was taken'):
        robot.boundaries.roll_back()
    assert robot.names == [f'{MISSION_PREFIX}-1'], 'nor is it given up'


def test_where_nothing_could_be_seen_nothing_goes_back_to_one_before(robot):
    def blind():
        raise ValueError('the robot does not answer')

    robot.mark(10)
    with pytest.raises(ValueError, match='does not answer'):
        robot.boundaries.snapshot(blind)
    with pytest.raises(CapsuleError, match='no boundary was taken'):
        robot.boundaries.roll_back()
    assert robot.names == [f'{MISSION_PREFIX}-1'], 'nor is it given up'


def test_without_a_disk_tier_the_host_keeps_it(make_engine, observe, tmp_path):
    robot = Robot(make_engine(), tmp_path, disk=0)
    begin(robot.engine, observe(1))
    assert robot.mark(10) is Tier.HOST
    words = list(go_on(robot.engine).values())
    robot.boundaries.roll_back()
    assert list(go_on(robot.engine).values()) == words


def test_a_name_that_is_no_boundarys_is_left_alone(robot):
    for name in ('7', f'{MISSION_PREFIX}-x', f'{MISSION_PREFIX}-2-1'):
        robot.session.snapshot(name)
    robot.mark(10)
    robot.mark(11)
    own = {'7', f'{MISSION_PREFIX}-x', f'{MISSION_PREFIX}-2-1', f'{MISSION_PREFIX}-2'}
    assert own <= {*robot.names} and f'{MISSION_PREFIX}-1' not in robot.names


def test_a_rewind_takes_back_what_was_said_and_leaves_the_mission(robot):
    robot.state = ACTING
    robot.mark(10)
    words = list(go_on(robot.engine).values())
    robot.state = ACTING.after(ACTING.acting, False)
    robot.boundaries.roll_back(exclude=(MissionPart.name,))
    assert list(go_on(robot.engine).values()) == words and robot.state.tried


def test_a_file_that_cannot_be_read_keeps_its_number(robot, tmp_path):
    robot.mark(10)
    (name,) = robot.names
    (tmp_path / f'{name[:-1]}2.safetensors').write_bytes(bytes(20))
    for second in (11, 12):
        robot.mark(second)
        assert robot.names == [f'{name[:-1]}{second - 8}']
