"""A camera image is cropped and rotated for the model without copying pixels."""

import numpy as np
import pytest
from observation_suite import description, observer, until_moment, view

from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger

PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def of(**options):
    return view('front', **options)['front']


def test_a_whole_view_is_the_picture():
    np.testing.assert_array_equal(of().framed(PICTURE), PICTURE)


def test_a_crop_is_left_top_width_height():
    np.testing.assert_array_equal(of(crop=(1, 2, 3, 2)).framed(PICTURE), PICTURE[2:4, 1:4])


@pytest.mark.parametrize(
    'rotate, corner', [(0, (0, 0)), (90, (0, 3)), (180, (3, 5)), (270, (5, 0))]
)
def test_rotation_is_clockwise(rotate, corner):
    """`corner` is the position of the first pixel of the image after the rotation."""
    framed = of(rotate=rotate).framed(PICTURE)
    np.testing.assert_array_equal(framed[corner], PICTURE[0, 0])
    assert framed.shape == ((4, 6, 3) if rotate % 180 == 0 else (6, 4, 3))


def test_it_is_cropped_before_it_is_rotated_and_nothing_is_copied():
    framed = of(crop=(0, 0, 2, 4), rotate=90).framed(PICTURE)
    np.testing.assert_array_equal(framed, np.rot90(PICTURE[:, :2], -1))
    assert np.shares_memory(framed, PICTURE)


@pytest.mark.parametrize(
    'wrong, said',
    [
        ({'rotate': 45}, 'rotate\n.*0, 90, 180 or 270'),
        ({'crop': (-1, 0, 2, 2)}, 'crop\n.*left, top, width, height'),
        ({'crop': (0, 0, 0, 2)}, 'crop\n.*left, top, width, height'),
    ],
)
def test_invalid_crop_or_rotation_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        of(**wrong)


def test_a_crop_beyond_the_picture_is_refused():
    with pytest.raises(ValueError, match='crop must lie in an image of 6 x 4 pixels'):
        of(crop=(5, 0, 2, 2)).framed(PICTURE)


def test_a_joint_is_read_from_one_topic():
    inputs = JointInput('a', ('hip',)), JointInput('b', ('hip',))
    with pytest.raises(ValueError, match=r'joint hip must be read from one topic \(got a and b\)'):
        JointMerger(inputs, 0.2)


def test_a_node_hands_out_what_the_model_sees(robot):
    node = robot.up(observer(description(view('front', crop=(0, 0, 8, 28), rotate=90), joints=())))
    moment = until_moment(robot, node, lambda: robot.show(names=()))
    sent = np.frombuffer(robot.picture().data, np.uint8).reshape(28, 28, 3)
    np.testing.assert_array_equal(node.inputs.pixels(moment)['front'], np.rot90(sent[:, :8], -1))


def test_a_crop_beyond_the_picture_is_said(robot, capfd):
    node = robot.up(observer(description(view('front', crop=(0, 0, 99, 28)), joints=())))
    moment = until_moment(robot, node, lambda: robot.show(names=()))
    assert node.inputs.pixels(moment) is None and node.warning_counts['image of front'] == 1
    assert (
        'image of view front refused: crop must lie in an image of 28 x 28 pixels'
        in capfd.readouterr().err
    )
