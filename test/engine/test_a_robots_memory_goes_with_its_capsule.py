"""After restore and rollback, streams, plan, mission and memory agree token for token.

Memory keeps what it learned since the capsule, and the restore reports it.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from capsule_sessions import begin, capsules_of, go_on
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import CONFIG, PLANNER, QUESTION, TABLE, filled, open_planning

from benchmarks.whole.capsules import STAY
from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.memory.sentence_log import sentences
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.planning.memory_part import MemoryPart, differences
from embodied_kv.planning.mission import MissionPart, MissionState, Tried
from embodied_kv.session.robot_session import StepCheckpoints

STATE = MissionState(
    'tidy up',
    2,
    (1,),
    (Tried('say: hi', True),),
    ('hi',),
    acting='put the red cube into the blue bin',
)
VOCABULARY = CONFIG.backbone.vocab_size
LEARNT = ('red cube', 'object', 'red cube: in the blue bin')
SAID = "memory has changed since: 'red cube: in the blue bin' was 'red cube: on the left table'"


def seen(second):
    images = {'front': np.zeros((16, 16, 3), np.uint8)}
    return SceneSummary(np.zeros(7), images, second * 1_000_000_000)


class WholeRobot:
    """Engine, planner over memory, and mission in one session. folder: for its capsules."""

    def __init__(self, engine, folder, planning):
        self.engine, self.planning, self.state = engine, planning, None
        registry = Registry(fingerprint(engine), disk=Disk(folder / 'capsules'))
        self.session = capsules_of(engine, registry)
        self.session.register(MemoryPart(planning))
        self.session.register(MissionPart(lambda: self.state, self._go_on))

    def _go_on(self, state):
        self.state = state

    @property
    def known(self):
        """Return what must agree after a restore: last plan, mission, and sentences of memory."""
        return self.planning.last, self.state, self.planning.memory.sentences


@pytest.fixture
def robot(make_engine, observe, tmp_path):
    """Yield a robot with live streams, a finished plan, and a mission."""
    with filled(tmp_path / 'memory') as planning:
        robot = WholeRobot(make_engine(), tmp_path, planning)
        begin(robot.engine, observe(1), temperature=0.7, seed=4)
        planning.plan(QUESTION)
        robot.state = STATE
        yield robot


def test_rolled_back_all_of_it_agrees_with_the_boundary(robot):
    robot.session.snapshot('here')
    known, words = robot.known, list(go_on(robot.engine).values())
    robot.planning.plan('what does the robot hold?')
    robot.state = replace(STATE, part=3, said=('hi', 'ho'))
    assert robot.known != known
    resumed = robot.session.rollback('here')
    assert robot.known == known and resumed.notes == ()
    assert list(go_on(robot.engine).values()) == words
    robot.planning.plan(QUESTION)
    assert robot.known == known, 'the same question has the same prompt, units and answer'


def test_restored_by_another_engine_over_what_a_kill_left_it_goes_on(
    robot, make_engine, observe, tmp_path
):
    robot.session.snapshot('here', seen(10), Tier.DISK)
    left = shutil.copytree(tmp_path, tmp_path.with_name(f'{tmp_path.name}-left'))
    known, words = robot.known, list(go_on(robot.engine).values())
    with open_planning(left / 'memory') as planning:
        again = WholeRobot(make_engine(), left, planning)
        begin(again.engine, observe(7))  # work of the new process before the restore
        resumed = again.session.restore('here', seen(11))
        assert again.known == known and resumed.notes == ()
        assert list(go_on(again.engine).values()) == words
        assert planning.plan(QUESTION).fresh == 0 and again.known == known


@pytest.mark.parametrize('verb', ['rollback', 'restore'])
def test_memory_that_has_moved_on_stays_and_is_said(robot, verb):
    robot.session.snapshot('here', seen(10))
    plan, words = robot.planning.last, list(go_on(robot.engine).values())
    robot.planning.upsert(LEARNT)
    robot.planning.plan(QUESTION)
    assert robot.planning.last != plan, 'another memory, another prompt'
    there = {'restore': ('here', seen(11)), 'rollback': ('here',)}[verb]
    resumed = getattr(robot.session, verb)(*there)
    assert resumed.notes == (SAID,)
    assert robot.known[:2] == (plan, STATE)
    assert robot.planning.memory.sentences['red cube'] == LEARNT[2]
    assert list(go_on(robot.engine).values()) == words


def test_what_is_left_as_it_is_is_not_said(robot):
    robot.session.snapshot('here')
    robot.planning.upsert(LEARNT)
    assert robot.session.rollback('here', exclude=('memory', 'mission')).notes == ()


def test_a_rewound_step_takes_the_planner_along_and_neither_memory_nor_mission(robot):
    boundaries = StepCheckpoints(robot.session, 'before', Tier.DEVICE)
    boundaries.snapshot(lambda: None)
    plan, row = robot.planning.last, robot.planning.row.held
    robot.planning.upsert(LEARNT)
    robot.planning.plan('what does the robot hold?')
    robot.state = after = STATE.after(STATE.acting, False)
    assert robot.planning.last != plan and robot.planning.row.held != row
    boundaries.roll_back(exclude=STAY)
    assert robot.planning.last == plan and robot.planning.row.held == row
    assert robot.planning.memory.sentences['red cube'] == LEARNT[2] and robot.state == after


def test_a_hold_takes_up_nothing(robot):
    robot.session.snapshot('here', seen(10))
    robot.planning.upsert(LEARNT)
    robot.planning.plan(QUESTION)
    known = robot.known
    assert robot.session.restore('here', None).notes == () and robot.known == known


def test_a_part_that_nobody_takes_up_is_said(robot):
    robot.session.snapshot('here')
    robot.session.unregister(robot.session.parts[-2])  # the part of memory
    robot.planning.upsert(LEARNT)
    assert robot.session.rollback('here').notes == ('no active node resumes its part memory',)


class Arm:
    """A part that is resumed only at the depth of the actor."""

    name, depth = 'action', 'actor'

    def freeze(self):
        return FrozenPart()


@pytest.mark.parametrize('verb, depth', [('restore', 'actor'), ('rollback', 'planner')])
def test_a_part_that_nobody_takes_up_is_said_where_it_would_be_taken_up(robot, verb, depth):
    robot.session.register(arm := Arm())
    robot.session.snapshot('here', seen(10), Tier.DISK)
    robot.session.unregister(arm)
    there = {'restore': ('here', seen(10)), 'rollback': ('here',)}[verb]
    resumed = getattr(robot.session, verb)(*there)
    assert str(resumed.decision.depth) == depth
    notes = ('no active node resumes its part action',) if depth == 'actor' else ()
    assert resumed.notes == notes


def test_the_plan_of_another_planner_is_not_taken_up(robot, make_engine, tmp_path):
    robot.session.snapshot('here')
    other = random_planner(PLANNER.config, seed=8)
    with filled(tmp_path / 'other', planner=other) as planning:
        robot.session.register(MemoryPart(planning))
        planning.plan(QUESTION)
        (note,) = robot.session.rollback('here').notes
        assert note.startswith('the last plan is of another planner') and planning.last is None


def test_a_boundary_waits_for_no_change_that_is_being_written(robot):
    with robot.planning._lock, robot.planning.memory._lock, robot.planning.memory.store._lock:
        with ThreadPoolExecutor(1) as engine_thread:
            frozen = engine_thread.submit(MemoryPart(robot.planning).freeze).result(timeout=60)
    assert sentences(frozen.tensors['sentences']) == {id: text for id, _, text in TABLE}


@pytest.mark.parametrize(
    'change',
    [
        dict(planner=None),
        dict(plan={'question': 'what?'}),
        dict(plan=[]),
        dict(row=[]),
        dict(row={'plan': None, 'tokens': 3}),
        dict(row={'tokens': 3}),
        lambda row, plan: dict(tokens=row['tokens'] - 1),
        lambda row, plan: dict(tokens=row['tokens'] + 2),
        lambda row, plan: dict(tokens=row['tokens'] + 1, plan=plan | dict(over=False)),
        lambda row, plan: dict(plan=plan | dict(answer=[-1, *plan['answer'][1:]])),
        lambda row, plan: dict(plan=plan | dict(answer=[VOCABULARY, *plan['answer'][1:]])),
        lambda row, plan: dict(plan=plan | dict(prompt=[VOCABULARY, *plan['prompt'][1:]])),
    ],
)
def test_damaged_facts_are_refused(robot, change):
    part = MemoryPart(robot.planning)
    frozen = part.freeze()
    facts = json.loads(json.dumps(frozen.facts))  # as read from a file
    part.check_resumable(FrozenPart(frozen.tensors, facts))
    if callable(change):  # a change of the row, whose other facts stay valid
        change = dict(row=facts['row'] | change(facts['row'], facts['row']['plan']))
    with pytest.raises(CapsuleError, match='no list of known sentences|damaged plan'):
        part.check_resumable(FrozenPart(frozen.tensors, facts | change))
    with pytest.raises(CapsuleError, match='no list of known sentences'):
        part.check_resumable(FrozenPart())
    for log in (b'x', b'3\n', b'[]\n', b'["a", 3]\n', b'["a", "b", "c"]\n'):
        known = torch.tensor(list(log), dtype=torch.uint8)
        damaged = FrozenPart(frozen.tensors | {'sentences': known}, facts)
        part.check_resumable(damaged)
        assert 'the list of known sentences is damaged' in part.resume(damaged)()
    for known in (torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(2)):
        with pytest.raises(CapsuleError, match='no list of known sentences'):
            part.check_resumable(FrozenPart(frozen.tensors | {'sentences': known}, facts))


MEMORIES = st.dictionaries(st.sampled_from('abcd'), st.sampled_from(['x', 'y', 'z']))


@given(MEMORIES, MEMORIES)
def test_each_sentence_that_differs_is_told_once(then, now):
    told = list(differences(then, now))
    assert len(told) == len({id for id, _ in then.items() ^ now.items()})
    assert sum(' is new' in line for line in told) == len(now.keys() - then.keys())
    assert sum(' was removed' in line for line in told) == len(then.keys() - now.keys())
