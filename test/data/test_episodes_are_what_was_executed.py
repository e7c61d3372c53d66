"""A recording becomes episodes of what was observed and executed in each period, nothing else."""

import numpy as np
import pytest
from bag_cases import BEGIN, CONTRACT, ROBOT, SECOND, Bag, position
from sensor_msgs.msg import JointState

from embodied_kv.data import bag_reader
from embodied_kv.data.bag_options import BagOptions
from embodied_kv.data.bag_signals import BagSignals
from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import _joint_topics, recorded_images, unbroken
from embodied_kv.msg import ActionChunk, ControlState
from embodied_kv.robots.reading import load, of_text, to_text


def episodes(bag, **cut):
    (signals,) = unbroken(Recording(bag.finish()))
    return Episodes(signals, Cut(**cut))


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


def test_topics_that_a_contract_names_in_full_are_found_without_a_namespace(tmp_path):
    text = to_text(CONTRACT).replace('topic: camera', 'topic: /camera')
    contract = of_text(text.replace('topic: joint_states', 'topic: /joint_states'), 'full')
    found = episodes(Bag(tmp_path / 'walk.mcap', contract, namespace='').lives(2.0)).found
    assert contract != CONTRACT and len(found) == 1


def test_the_action_is_what_was_due_at_that_moment(bag):
    (episode,) = episodes(bag.lives(3.0)).found
    for moment in episode:
        np.testing.assert_allclose(moment.action, 0.01 * since(moment), atol=1e-9)


def test_a_chunk_counts_from_when_it_took_over_not_from_when_it_was_observed(bag):
    bag.lives(2.0)
    bag.command(1.54, 1.5, rows=10, slope=0.003)  # a different plan from 1.54 s on
    (episode,) = episodes(bag).found
    before = [m for m in episode if since(m) < 1.539]
    (after,) = (m for m in episode if abs(since(m) - 1.54) < 1e-6)
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


def test_the_state_is_the_newest_that_was_felt_by_then(bag):
    (episode,) = episodes(bag.lives(2.0)).found
    for moment in list(episode)[:-2]:
        np.testing.assert_allclose(moment.state, position(moment.stamp), atol=1.1e-4)


def test_no_picture_is_from_after_its_moment(bag):
    found = episodes(bag.lives(2.0))
    series = found._signals.images['front']
    by_place = dict(zip(series.values, series.stamps, strict=True))
    while_it_lived = [moment for moment in found.found[0] if since(moment) < 2]
    assert len(while_it_lived) >= 18
    for moment in while_it_lived:
        assert 0 <= moment.stamp - by_place[moment.images['front']] < SECOND // 20


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
    assert len(found.found) == 2 and found.skipped['while the arm was not armed'] >= 18


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
        np.testing.assert_allclose(
            moment.action, position(moment.stamp + SECOND // 10), atol=1.1e-4
        )


@pytest.mark.parametrize('missing', ['camera/wrist/image/compressed', 'joint_states'])
def test_a_period_that_lacks_something_is_in_no_episode_and_counted(bag, missing):
    bag.lives(6.0)
    gap = range(BEGIN + 2 * SECOND, BEGIN + 4 * SECOND)
    bag.waiting = [e for e in bag.waiting if e[1] != missing or e[0] not in gap]
    found = episodes(bag)
    assert len(found.found) == 2
    word = 'image of wrist' if 'wrist' in missing else 'state'
    assert sum(count for reason, count in found.skipped.items() if word in reason) >= 14


def test_what_is_shorter_than_the_least_is_counted(bag):
    found = episodes(bag.lives(2.0), least=10.0)
    assert found.found == () and found.skipped['of an episode shorter than 10 s'] >= 15


def test_units_are_the_policys():
    assert ROBOT.contract.robot_type == 'tabletop'
    si = np.full(len(ROBOT.axes), 0.02)
    np.testing.assert_allclose(ROBOT.actions.si(ROBOT.actions.policy(si)), si)


def test_a_recorder_that_hears_late_shifts_no_action(bag):
    bag.lives(3.0)
    bag.waiting = [entry for entry in bag.waiting if entry[1] != 'action_chunk']
    for i in range(30):
        bag.command(i / 10 + 0.04, i / 10, heard=0.07)
    (episode,) = episodes(bag).found
    for moment in episode:
        np.testing.assert_allclose(moment.action, 0.01 * since(moment), atol=1e-9)


def test_no_joint_is_from_after_its_moment(bag):
    bag.lives(3.0)
    bag.waiting = [entry for entry in bag.waiting if entry[1] != 'joint_states']
    for i in range(20):
        bag.feel(i * 0.15)
    (episode,) = episodes(bag).found
    felt = [position(BEGIN + round(i * 0.15 * SECOND)) for i in range(20)]
    for moment in episode:
        newest = felt[min(19, int(since(moment) / 0.15 + 1e-9))]
        np.testing.assert_allclose(moment.state, newest, atol=1e-6)


def test_what_comes_out_of_order_is_counted(bag):
    bag.lives(3.0)
    bag.feel(1.0, delay=0.5)
    found = episodes(bag)
    late = {name: count for name, count in found.skipped.items() if 'late values' in name}
    assert late == {f'late values of position {joint}': 1 for joint in ROBOT.joints}


def test_a_clock_that_is_set_back_begins_another_piece(bag, tmp_path):
    bag.lives(2.0)
    again = Bag(tmp_path / 'again.mcap').lives(2.0).waiting
    recording = Recording(bag.finish(again))
    one, two = unbroken(recording)
    found = [Episodes(signals, Cut()).found for signals in (one, two)]
    assert [len(episodes) for episodes in found] == [1, 1]
    assert found[0][0][0].stamp == found[1][0][0].stamp  # the same times, recorded twice
    assert found[1][0][0].images['front'] >= 40 > found[0][0][-1].images['front']
    assert sum(1 for _ in recorded_images(recording)) == 160


def test_piece_begins_with_its_own_instruction(bag, tmp_path):
    bag.lives(3.0)
    bag.tell(1.5, 'pick')
    again = Bag(tmp_path / 'again.mcap').lives(2.0).waiting
    pieces = unbroken(Recording(bag.finish(again)))
    found = [Episodes(signals, Cut()).found for signals in pieces]  # read one after the other
    assert [[e[0].task for e in episodes] for episodes in found] == [['reach', 'pick'], ['reach']]


def test_two_views_of_one_topic_have_its_pictures_both(tmp_path):
    text = to_text(CONTRACT).replace('camera/wrist/image', 'camera/front/image')
    contract = of_text(text, 'one camera')
    bag = Bag(tmp_path / 'walk.mcap', contract).lives(2.0, views=('front',))
    (signals,) = unbroken(Recording(bag.finish()))
    assert len(signals.images['front'].values) == len(signals.images['wrist'].values) == 40


def test_values_with_stamps_from_the_future_cost_no_other(bag):
    bag.lives(3.0)
    bag.see(3601.0, delay=-3600.0)  # a driver with a wrong clock, for one message
    bag.feel(3601.0, delay=-3600.0)
    found = episodes(bag)
    (episode,) = found.found
    assert len(episode) >= 25
    assert found.skipped['values of view front with stamps from the future'] == 1
    assert any('position' in name and 'future' in name for name in found.skipped)


def test_joints_count_only_on_their_own_topic(bag):
    """Another publisher may name joints on a topic from which the contract does not read them."""
    bag.lives(1.0)
    names = [ROBOT.joints[0], 'stranger']
    bag.put('joint_states', 0.5, JointState(name=names, position=[0.02, 5.0]))
    (signals,) = unbroken(Recording(bag.finish()))
    for _ in signals.read():
        pass
    assert 'stranger' in signals.names and 'stranger' not in signals.positions
    topics = _joint_topics(load('ur5e'))
    arm, gripper = topics['joint_states'], topics['gripper/joint_states']
    assert arm.positions and gripper.positions and not arm.positions & gripper.positions


@pytest.mark.parametrize('offset', [0, -900 * SECOND])
def test_chunks_and_observations_of_another_clock_have_times_of_recording(bag, offset):
    """`--stamps receive` replaces the stamps of all topics."""
    bag.lives(3.0)
    for _, _, message in bag.waiting:
        if (header := getattr(message, 'header', None)) is not None:
            at = header.stamp.sec * SECOND + header.stamp.nanosec + offset
            header.stamp.sec, header.stamp.nanosec = divmod(max(at, 1), SECOND)
    options = BagOptions(stamps='receive', namespace='/r')
    signals = BagSignals(bag_reader.Bag(bag.finish(), CONTRACT, options))
    (episode,) = Episodes(signals, Cut()).found
    assert len(episode) >= 25
    for moment in [*episode][3:-3]:
        np.testing.assert_allclose(moment.action, 0.01 * since(moment), atol=2e-3)


def test_a_given_task_is_that_of_episodes_which_a_topic_of_instructions_marks(bag):
    bag.lives(3.0, instruction='words of the topic')
    options = BagOptions(task='given', episode_topic='instruction', namespace='/r')
    signals = BagSignals(bag_reader.Bag(bag.finish(), CONTRACT, options))
    found = [*Episodes(signals, Cut()).found]
    assert found and {moment.task for episode in found for moment in episode} == {'given'}
