"""A camera's picture -> what the model sees of it, without copying a pixel."""

import numpy as np
import pytest
from observation_suite import description, observer, until_moment, view

from embodied_kv.nodes.observation.description import InputDescription, JointInput, ViewInput

PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def of(**options):
    return ViewInput('front', 'topic', **options)


def test_a_whole_view_is_the_picture():
    np.testing.assert_array_equal(of().framed(PICTURE), PICTURE)


def test_a_crop_is_left_top_width_height():
    np.testing.assert_array_equal(of(crop=(1, 2, 3, 2)).framed(PICTURE), PICTURE[2:4, 1:4])


@pytest.mark.parametrize(
    'rotate, corner', [(0, (0, 0)), (90, (0, 3)), (180, (3, 5)), (270, (5, 0))]
)
def test_rotation_is_clockwise(rotate, corner):
    """Where the picture's first pixel lies then."""
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
        ({'rotate': 45}, 'rotate is 45'),
        ({'crop': (-1, 0, 2, 2)}, 'left, top, width, height'),
        ({'crop': (0, 0, 0, 2)}, 'left, top, width, height'),
    ],
)
def test_what_is_no_crop_or_rotation_is_refused(wrong, said):
    with pytest.raises(ValueError, match=f'view front: .*{said}'):
        of(**wrong)


def test_a_crop_beyond_the_picture_is_refused():
    with pytest.raises(ValueError, match='does not lie in an image of 6 x 4 pixels'):
        of(crop=(5, 0, 2, 2)).framed(PICTURE)


@pytest.mark.parametrize(
    'views, joints, said',
    [
        ((), (), 'no view is described'),
        ((of(), of()), (), 'view front is described twice'),
        (
            (of(),),
            (JointInput('a', ('hip',)), JointInput('b', ('hip',))),
            'joint hip is described',
        ),
    ],
)
def test_a_description_has_every_name_once(views, joints, said):
    with pytest.raises(ValueError, match=said):
        InputDescription(views, joints)


def test_a_node_hands_out_what_the_model_sees(robot):
    node = robot.up(observer(description(view('front', crop=(0, 0, 8, 28), rotate=90), joints=())))
    moment = until_moment(robot, node, lambda: robot.show(names=()))
    sent = np.frombuffer(robot.picture().data, np.uint8).reshape(28, 28, 3)
    np.testing.assert_array_equal(node.inputs.pixels(moment)['front'], np.rot90(sent[:, :8], -1))


def test_a_crop_beyond_the_picture_is_said(robot, capfd):
    node = robot.up(observer(description(view('front', crop=(0, 0, 99, 28)), joints=())))
    moment = until_moment(robot, node, lambda: robot.show(names=()))
    assert node.inputs.pixels(moment) is None and node.warning_counts['image of front'] == 1
    assert 'image of view front refused: crop [0, 0, 99, 28]' in capfd.readouterr().err
