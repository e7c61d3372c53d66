"""The expert completes its tasks in the same worlds and with the same latency as a policy."""

from contextlib import closing

import numpy as np
import pytest

from embodied_kv.demo.sim.tasks import FAMILIES
from training.evaluate.actors import Expert
from training.evaluate.cases import Case, Setting
from training.evaluate.report import action_rows
from training.evaluate.worlds import World, run

CASES = [Case(family, 0, episode) for family in FAMILIES for episode in range(3)]


def outcomes(control, cases=CASES):
    with closing(World(64, Setting(dt=0.1, latency=0.04, control=control))) as world:
        return run([world], cases, Expert(chunk_size=10))


def test_a_task_is_done_and_another_colour_gets_the_wrong_object():
    (done,) = outcomes('none', CASES[:1])
    (other,) = outcomes('wrong_colour', CASES[:1])
    assert (done.success, done.wrong, other.success, other.wrong) == (True, False, False, True)


@pytest.mark.slow
def test_the_expert_does_what_it_is_told():
    rows = action_rows(outcomes('none'))
    assert [row['family'] for row in rows] == [*FAMILIES, 'all']
    assert [row['outcomes'] for row in rows[:-1]] == ['sss'] * len(FAMILIES)
    assert rows[-1]['success'] == dict(k=18, n=18, rate=1.0, low=0.8241, high=1.0)
    assert rows[-1]['wrong']['k'] == 0


@pytest.mark.slow
def test_a_wrong_colour_gets_the_wrong_object():
    reach_and_pick = [case for case in CASES if case.family in ('reach', 'pick')]
    (*_, every) = action_rows(outcomes('wrong_colour', reach_and_pick))
    assert (every['success']['k'], every['wrong']['k']) == (0, len(reach_and_pick))


def test_a_path_is_compared_with_the_experts():
    expert = {outcome.case: outcome for outcome in outcomes('none', CASES[:3])}
    (row,) = action_rows(list(expert.values()), expert)
    assert row['path_ratio'] == 1.0
    assert 0.05 < row['path'] < 1.0 and 0.5 <= row['seconds'] < 6.0


@pytest.mark.parametrize('control', ['none', 'blank', 'wrong_colour'])
def test_a_control_changes_what_is_seen_or_told_and_no_more(control):
    with closing(World(64, Setting(dt=0.1, latency=0.0, control=control))) as world:
        world.begin(CASES[0])
        frame = world.look()
    with closing(World(64, Setting(dt=0.1, latency=0.0))) as world:
        world.begin(CASES[0])
        plain = world.look()
    assert frame.scene == plain.scene
    np.testing.assert_array_equal(frame.observation.state, plain.observation.state)
    assert frame.told.target in frame.observation.instruction
    assert (frame.told.target != plain.told.target) == (control == 'wrong_colour')
    assert any(image.any() for image in frame.observation.images) == (control != 'blank')
