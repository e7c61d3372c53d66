"""Invalid input causes a clear message and no loss, and the node continues."""

from dataclasses import replace

import numpy as np
import pytest
from std_msgs.msg import String

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception

PERIOD = 0.2  # s, as in conftest
SUITE = (Perception, Action, Language)


@pytest.fixture
def perception(robot):
    node = robot.up(Perception)
    robot.until(lambda: robot.handles)
    return node


def lives(robot):
    """Assert that frames continue and that the cache is consistent; return True."""
    robot.more(robot.handles)
    EngineHost._shared.engine.kv.check_integrity()
    return True


@pytest.mark.parametrize(
    'wrong, message',
    [
        (
            {'encoding': '16UC1'},
            "image of view front refused: encoding '16UC1' is not a colour image",
        ),
        (
            {'height': 0},
            'image of view front refused: width and height must be > 0 (got 28 x 0 pixels)',
        ),
    ],
)
def test_an_image_that_cannot_be_read_is_refused(robot, perception, capfd, wrong, message):
    robot.until(lambda: perception.warning_counts['image of front'], **wrong)
    assert message in capfd.readouterr().err
    assert lives(robot)


def test_an_image_with_too_few_bytes_is_refused(robot, perception, capfd):
    image = robot.picture()
    image.data = image.data[:-1]
    robot.cameras['front'].publish(image)
    robot.until(lambda: perception.warning_counts['image of front'], show=False)
    assert 'data must have 28 rows of 84 bytes (got 2351 bytes)' in capfd.readouterr().err
    assert lives(robot)


def test_an_image_of_another_size_is_resized(robot, perception):
    robot.more(robot.handles, height=48, width=64)
    robot.more(robot.handles, height=1, width=3)
    assert not perception.warning_counts


def test_a_joint_that_is_not_a_number_is_refused(robot, perception, capfd):
    robot.until(lambda: perception.warning_counts['joint state'], positions=np.nan)
    told = 'joint state refused: joint shoulder_pan must be finite (got nan)'
    assert told in capfd.readouterr().err
    assert lives(robot)


def test_a_joint_that_nobody_names_is_said_by_name(robot):
    perception = robot.up(Perception)
    names = list(perception.embodiment.axes)
    names[2] = 'knee'
    robot.until(lambda: perception.report()[1].startswith('no frame: joint elbow'), names=names)
    said = perception.report()[1]
    assert 'no frame: joint elbow must be published on joint_states (got shoulder_pan' in said
    assert 'knee' in said and not robot.handles
    assert lives(robot)


def test_joints_of_several_messages_are_one_state(robot, perception):
    arm, hand = perception.embodiment.axes[:-1], perception.embodiment.axes[-1:]

    def heard():
        stamp = robot.now()
        robot.show(stamp, views=(), names=arm, positions=0.2)
        robot.show(stamp, names=hand, positions=0.03)
        return perception._frames._prefilled[0].state.tolist() == pytest.approx([0.2] * 6 + [0.03])

    robot.until(heard, show=False)
    assert not perception.warning_counts


def test_joints_are_found_by_name_and_others_ignored(robot, perception):
    names = ['wheel', *reversed(perception.embodiment.axes)]
    robot.more(robot.handles, names=names, positions=[9.0, 0.04, *[0.1] * 6])
    assert not perception.warning_counts


def test_a_camera_that_stops_is_a_missing_view_until_it_returns(robot, perception, capfd):
    whole = robot.handles[-1].length
    robot.until(lambda: robot.handles[-1].length < whole, views=('front',))
    robot.until(lambda: perception.report()[1] == 'without view wrist', views=('front',))
    said = capfd.readouterr().err
    assert 'camera of view wrist sends no images: frames lack this view' in said
    robot.until(lambda: robot.handles[-1].length == whole)
    robot.until(lambda: perception.report()[1] == 'prefilling')
    assert 'camera of view wrist sends images' in capfd.readouterr().err


def test_without_any_camera_no_frame_is_made_and_the_reason_is_known(robot, perception, capfd):
    robot.until(lambda: perception.warning_counts['no frame'], views=())
    assert 'no frame: no camera is alive: front, wrist' in capfd.readouterr().err
    assert perception.report()[1] == 'no frame: no camera is alive: front, wrist'
    before = len(robot.handles)
    robot.spin(0.3)
    assert len(robot.handles) == before
    assert lives(robot)


def test_stamps_that_jump_back_start_anew(robot, capfd):
    perception = robot.up(Perception, max_image_age=1e9)
    robot.until(lambda: robot.handles)
    past = robot.now() - 3600 * 10**9
    robot.show(stamp=past)
    robot.until(lambda: perception.warning_counts['stamps set back'], show=False)
    assert 'jumped back to' in capfd.readouterr().err
    before = len(robot.handles)
    for step in range(1, 20):
        robot.show(stamp=past + step * 10**8)
        robot.spin(PERIOD / 2)
    assert len(robot.handles) >= before + 2
    assert conversions.nanoseconds(robot.handles[-1].header.stamp) < past + 10**10
    assert lives(robot)


def test_stamps_that_jump_back_do_not_stop_actions(robot):
    robot.up(*SUITE)
    robot.until(lambda: robot.chunks)
    robot.show(stamp=robot.now() - 3600 * 10**9)
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.FRESH)


def test_without_an_instruction_frames_wait_for_one(robot):
    perception = robot.up(Perception, instruction='')
    robot.until(lambda: perception.report()[1] == 'no instruction: nothing to do')
    robot.spin(2.5 * PERIOD)
    assert not robot.handles and not perception.warning_counts
    robot.instruction.publish(String(data='wave'))
    assert lives(robot)


def test_a_long_instruction_is_cut_to_fit(robot, perception, capfd):
    robot.instruction.publish(String(data='pick up ' * 1250))
    robot.until(lambda: perception.warning_counts['long instruction'])
    said = capfd.readouterr().err
    assert 'instruction of 10000 characters is cut to fit the 64 text tokens of tiny' in said
    model = EngineHost._shared.model
    assert robot.more(robot.handles)[-1].length == model.prefix_tokens


def test_a_handle_that_is_stale_or_of_no_row_is_refused(robot, capfd):
    _, action, _ = robot.up(*SUITE, prompt_interval_frames=0)
    robot.more(robot.handles, 3)
    old = conversions.handle(robot.handles[0], robot.namespace)
    feed = action.host.frames(robot.namespace)
    for wrong in (old, replace(old, layout=7), replace(old, row=10_000)):
        before = action.warning_counts['stale handle']
        action.host.device.call(lambda wrong=wrong: feed.give(wrong)).result(60)
        assert action.warning_counts['stale handle'] == before + 1
    assert 'handle refused: frame 1 is gone: row' in capfd.readouterr().err
    assert lives(robot)


def test_a_handle_that_another_node_publishes_moves_nothing(robot):
    _, action, language = robot.up(*SUITE, prompt_interval_frames=0)
    forged = robot.more(robot.handles, 1)[-1]
    forged.sequence += 1_000_000
    robot.handle.publish(forged)
    robot.until(lambda: any(h.sequence == forged.sequence for h in robot.handles), show=False)
    assert all(chunk.sequence < 1_000_000 for chunk in robot.more(robot.chunks, 3))
    assert not action.warning_counts['stale handle'] + language.warning_counts['stale handle']
    assert lives(robot)


def test_a_row_stays_while_the_action_reads_it_and_perception_is_cleaned_up(robot):
    perception, _, _ = robot.up(*SUITE, prompt_interval_frames=0)
    robot.until(lambda: robot.handles)
    kv = EngineHost._shared.engine.kv
    lease = kv.acquire(kv.frames.current(robot.namespace))
    before = kv.prefixes.row(lease.row)[0].clone()
    assert perception.trigger_deactivate().name == 'SUCCESS'
    assert perception.trigger_cleanup().name == 'SUCCESS'
    assert perception.trigger_configure().name == 'SUCCESS'
    assert perception.trigger_activate().name == 'SUCCESS'
    robot.more(robot.handles, 5)
    assert (kv.prefixes.row(lease.row)[0] == before).all()
    lease.release()
    kv.check_integrity()
    assert kv.stats().leases <= 1
