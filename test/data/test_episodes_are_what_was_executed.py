"""A recording becomes episodes: what was seen, felt and commanded at each period, and no guess."""

import numpy as np
import pytest
from bag_cases import BEGIN, ROBOT, SECOND, Bag, position

from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import Signals
from embodied_kv.msg import ActionChunk, ControlState


def episodes(bag, **cut):
    return Episodes(Signals(Recording(bag.finish())), Cut(**cut))


@pytest.fixture
def bag(tmp_path):
    return Bag(tmp_path / 'walk.mcap')


def since(moment):
    return (moment.stamp - BEGIN) / SECOND


def test_one_instruction_is_one_episode_at_the_contracts_rate(bag):
    found = episodes(bag.lives(5.0))
    (episode,) = found.found
    assert {moment.task for moment in episode} == {'reach'}
    assert set(np.diff([moment.stamp for moment in episode])) == {SECOND // 10}
    assert 45 <= len(episode) <= 51 and not any(m.is_intervention for m in episode)


def test_the_action_is_what_was_due_at_that_moment(bag):
    (episode,) = episodes(bag.lives(3.0)).found
    for moment in episode:
        np.testing.assert_allclose(moment.action, 0.01 * since(moment), atol=1e-9)


def test_a_chunk_counts_from_when_it_took_over_not_from_when_it_was_observed(bag):
    bag.lives(2.0)
    bag.command(1.54, 1.5, rows=10, slope=0.003)  # another plan for what is from 1.54 s on
    (episode,) = episodes(bag).found
    before = [m for m in episode if since(m) < 1.54]
    (after,) = (m for m in episode if since(m) == 1.54)
    np.testing.assert_allclose(before[-1].action, 0.01 * since(before[-1]), atol=1e-9)
    np.testing.assert_allclose(after.action, 0.03 * since(after), atol=1e-9)


def test_beyond_its_execution_horizon_the_last_action_stays(bag):
    bag.lives(1.5)
    bag.waiting = [
        entry for entry in bag.waiting if entry[1] != 'action_chunk' or entry[0] < BEGIN + SECOND
    ]
    bag.command(1.0, 1.0, rows=2)
    bag.command(1.2, 1.0, rows=2, first=1, source=ActionChunk.PREVIOUS)
    (episode,) = episodes(bag, least=0.5).found
    late = [m for m in episode if since(m) > 1.12]
    assert late
    for moment in late[:2]:
        np.testing.assert_allclose(moment.action, 0.011, atol=1e-9)


def test_the_state_is_the_nearest_that_was_felt(bag):
    (episode,) = episodes(bag.lives(2.0)).found
    for moment in episode[:-2]:
        np.testing.assert_allclose(moment.state, position(moment.stamp), atol=6e-5)


def test_no_picture_is_from_after_its_moment(bag):
    found = episodes(bag.lives(2.0))
    series = found._signals.images['front']
    by_place = dict(zip(series.values, series.stamps, strict=True))
    while_it_lived = [moment for moment in found.found[0] if since(moment) < 2]
    assert len(while_it_lived) >= 18
    for moment in while_it_lived:
        assert 0 <= moment.stamp - by_place[moment.pictures['front']] < SECOND // 20


def test_another_instruction_is_another_episode_and_none_is_none(bag):
    bag.lives(6.0)
    bag.tell(2.0, 'pick')
    bag.tell(4.0, '')
    found = episodes(bag)
    assert [e[0].task for e in found.found] == ['reach', 'pick']
    assert found.skipped['without an instruction'] >= 15


def test_while_nothing_moves_the_arm_there_is_no_action(bag):
    bag.lives(6.0)
    bag.control(2.0, ControlState.STOPPED)
    bag.control(4.0, ControlState.ARMED)
    found = episodes(bag)
    assert len(found.found) == 2 and found.skipped['while nothing moved the arm'] >= 18


def test_in_shadow_nothing_was_executed(bag):
    bag.lives(3.0)
    bag.control(0.0, ControlState.ARMED, shadow=True)
    assert episodes(bag).found == ()


def test_a_command_that_nobody_repeats_is_over(bag):
    bag.lives(4.0)
    late = BEGIN + 2 * SECOND
    bag.waiting = [e for e in bag.waiting if e[1] != 'action_chunk' or e[0] < late]
    found = episodes(bag)
    assert since(found.found[0][-1]) < 2.25 and found.skipped['without a command'] >= 15


def test_of_an_operator_the_action_is_where_the_joints_were_next(bag):
    bag.lives(4.0)
    bag.control(2.0, ControlState.TAKEN_OVER)
    (episode,) = episodes(bag).found
    taken = [m for m in episode if m.is_intervention]
    assert len(taken) >= 15 and since(taken[0]) >= 2.0
    for moment in taken[:-2]:
        np.testing.assert_allclose(moment.action, position(moment.stamp + SECOND // 10), atol=6e-5)


@pytest.mark.parametrize('missing', ['camera/wrist/image/compressed', 'joint_states'])
def test_a_period_that_lacks_something_is_in_no_episode_and_counted(bag, missing):
    bag.lives(6.0)
    gap = range(BEGIN + 2 * SECOND, BEGIN + 4 * SECOND)
    bag.waiting = [e for e in bag.waiting if e[1] != missing or e[0] not in gap]
    found = episodes(bag)
    assert len(found.found) == 2
    word = 'picture of wrist' if 'wrist' in missing else 'state'
    assert sum(count for reason, count in found.skipped.items() if word in reason) >= 14


def test_what_is_shorter_than_the_least_is_counted(bag):
    found = episodes(bag.lives(2.0), least=10.0)
    assert found.found == () and found.skipped['of an episode shorter than 10 s'] >= 15


def test_units_are_the_policys():
    assert ROBOT.contract.robot_type == 'tabletop'
    si = np.full(len(ROBOT.axes), 0.02)
    np.testing.assert_allclose(ROBOT.actions.si(ROBOT.actions.policy(si)), si)
