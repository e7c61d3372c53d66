"""The expert's plans depend only on joints, tables and orders, and each row only on its own."""

import numpy as np
import pytest

from embodied_kv.demo.sim.kinematics import forward, joint_limits, top_down
from embodied_kv.demo.sim.language import say_subtask
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop, Truth
from embodied_kv.demo.sim.tasks import Task, draw_task, task_scene
from training.policy.expert import plan


@pytest.fixture(scope='module')
def moments():
    """Return states, ground truths and tasks of six scenes."""
    found = []
    with Tabletop(task_scene('put'), 0) as table:
        for seed in range(6):
            table.reset(seed)
            task = draw_task(table.objects(), np.random.default_rng(seed))
            found.append((table.state(), table.truth(), task))
    return found


def planned(moments, horizon=10):
    states, truths, tasks = zip(*moments, strict=True)
    names = [[thing.name for thing in truth.things] for truth in truths]
    return plan(np.stack(states), Tables.of(truths), Orders.of(tasks, names), horizon)


def test_a_batch_equals_its_rows(moments):
    actions, phases = planned(moments)
    for i, moment in enumerate(moments):
        alone, phase = planned([moment])
        np.testing.assert_allclose(actions[i], alone[0], atol=1e-6)
        assert phases[i] == phase[0]


def test_a_longer_plan_begins_with_the_shorter(moments):
    np.testing.assert_array_equal(planned(moments, 10)[0][:, :4], planned(moments, 4)[0])


def test_actions_stay_within_the_joint_limits_and_move_smoothly(moments):
    actions, _ = planned(moments)
    low, high = joint_limits()
    assert (actions >= low - 1e-6).all() and (actions <= high + 1e-6).all()
    states = np.stack([state for state, _, _ in moments])
    path = np.concatenate([states[:, None], actions], 1)[..., :6]
    assert np.abs(np.diff(path, axis=1)).max() <= 0.2 + 1e-6


def test_an_order_without_meaning_holds_still(moments):
    states = np.stack([state for state, _, _ in moments])
    actions, phases = planned([(state, truth, None) for state, truth, _ in moments])
    assert (phases == Phase.LOST).all()
    np.testing.assert_allclose(actions, np.repeat(states[:, None], 10, 1), atol=1e-6)
    assert say_subtask(Phase.LOST, None, moments[0][1]) == 'hold still, I do not understand'


def test_a_reach_comes_to_rest_above_the_thing(moments):
    state, truth, _ = moments[0]
    thing = next(t for t in truth.things if t.shape in ('cube', 'cylinder'))
    actions, _ = planned([(state, truth, Task('reach', thing.name))], horizon=40)
    np.testing.assert_allclose(forward(actions[0])[-1, :2], thing.position[:2], atol=0.005)
    assert np.abs(np.diff(actions[0, -3:], axis=0)).max() < 1e-6


def test_the_gripper_closes_only_around_the_thing(moments):
    state, truth, thing = next(
        (state, truth, t) for state, truth, _ in moments for t in truth.things if t.shape == 'cube'
    )
    task = Task('pick', thing.name)
    far = planned([(state, truth, task)])[0][0, :, 6]
    assert (far == np.float32(0.04)).all()
    there = state.copy()
    there[:6] = top_down(thing.position[None], thing.yaw)[0]
    there[6] = 0.04
    roll = there[5]
    there[5] = (roll + np.pi / 4) % (
        np.pi / 2
    ) - np.pi / 4  # a cube looks the same every 90 degrees
    actions, phases = planned([(there, truth, task)])
    assert phases[0] == Phase.CLOSE and actions[0, 0, 6] == 0
    assert forward(actions[0])[-1, 2] > thing.position[2] + 0.03  # then it lifts


def committed(moments, actions, delay):
    states, truths, tasks = zip(*moments, strict=True)
    names = [[thing.name for thing in truth.things] for truth in truths]
    delays = np.full(len(states), delay)
    orders = Orders.of(tasks, names)
    return plan(np.stack(states), Tables.of(truths), orders, 10, actions, delays)


def test_a_plan_begins_with_what_the_arm_is_committed_to_and_goes_on_from_there(moments):
    before = planned(moments)[0]
    swayed = before + np.float32(0.05) * (np.arange(7) < 6)
    swayed[:, 4:] = np.nan
    actions, phases = committed(moments, swayed, 3)
    np.testing.assert_array_equal(actions[:, :3], swayed[:, :3])
    assert np.abs(np.diff(actions[:, 2:], axis=1))[..., :6].max() <= 0.2 + 1e-6
    np.testing.assert_array_equal(phases, planned(moments)[1])
    end = [(row[2], truth, task) for row, (_, truth, task) in zip(swayed, moments, strict=True)]
    np.testing.assert_allclose(actions[:, 3:], planned(end, 7)[0], atol=1e-5)


def test_no_delay_or_no_commitment_is_a_plan_as_ever(moments):
    before = planned(moments)[0]
    np.testing.assert_array_equal(committed(moments, before + 1, 0)[0], before)
    np.testing.assert_array_equal(committed(moments, np.full_like(before, np.nan), 3)[0], before)


def test_a_commitment_that_closes_the_fingers_around_a_thing_lifts_it(moments):
    state, truth, thing = next(
        (state, truth, t) for state, truth, _ in moments for t in truth.things if t.shape == 'cube'
    )
    there = state.copy()
    there[:6] = top_down(thing.position[None], thing.yaw)[0]
    there[5] = (there[5] + np.pi / 4) % (np.pi / 2) - np.pi / 4
    there[6] = 0.04
    closing = np.full((1, 10, 7), np.nan)
    closing[0, :3] = [*there[:6], 0.0]
    actions, phases = committed([(there, truth, Task('reach', thing.name))], closing, 3)
    assert phases[0] != Phase.OPEN
    assert actions[0, 3, 6] == np.float32(0.04)  # a reach holds nothing: it opens again
    pick = committed([(there, truth, Task('pick', thing.name))], closing, 3)[0]
    assert forward(pick[0])[3, 2] > thing.position[2] + 0.015


def test_unknown_names_are_refused(moments):
    _, truth, _ = moments[0]
    with pytest.raises(ValueError, match='pink'):
        Orders.of([Task('reach', 'pink cube')], [[t.name for t in truth.things]])


def test_tables_are_padded_with_nothing(moments):
    _, truth, _ = moments[0]
    fewer = Truth(truth.things[:2], truth.grip, truth.things[1].name)
    tables = Tables.of([truth, fewer])
    assert np.isnan(tables.things[1, 2:]).all() and not np.isnan(tables.things[1, :2]).any()
    assert tables.held.tolist() == [-1, 1]
