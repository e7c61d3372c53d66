"""JPEG and PNG images are decoded only when their pixels are needed.

A damaged image causes one warning.
"""

import cv2
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from observation_suite import compressed, description, observer, until_moment, view
from remote_suite import NOWHERE
from sensor_msgs.msg import CompressedImage

from embodied_kv.nodes.common import images
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.robots.reading import SHIPPED

# Smooth, so that JPEG preserves it: red increases to the right, green downwards.
RGB = np.stack(
    [*np.meshgrid(np.arange(0, 160, 5), np.arange(0, 120, 5)), np.full((24, 32), 40)], -1
).astype(np.uint8)


def encoded(extension, pixels=RGB):
    return cv2.imencode(extension, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


JPEG, PNG = encoded('.jpg'), encoded('.png')


def test_png_is_exact():
    np.testing.assert_array_equal(images.rgb(CompressedImage(data=PNG)), RGB)


def test_jpeg_is_near():
    got = images.rgb(CompressedImage(data=JPEG))
    assert got.shape == RGB.shape and got.dtype == np.uint8
    assert np.abs(got.astype(int) - RGB).mean() < 3


@pytest.mark.parametrize('data', [JPEG, PNG], ids=['JPEG', 'PNG'])
@given(st.integers(0, 20_000))
def test_zeros_after_the_end_change_nothing(data, zeros):
    padded = images.rgb(CompressedImage(data=data + bytes(zeros)))
    np.testing.assert_array_equal(padded, images.rgb(CompressedImage(data=data)))


@pytest.mark.parametrize('data', [JPEG, PNG], ids=['JPEG', 'PNG'])
@given(st.data(), st.sampled_from([0, 1, 63, 64, 512, 4096]))
def test_truncated_image_is_refused_whatever_zeros_follow(data, draw, zeros):
    kept = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(ValueError):
        images.check(CompressedImage(data=data[:kept] + bytes(zeros)))


def test_grey_is_three_channels():
    grey = cv2.imencode('.png', RGB[..., 0])[1].tobytes()
    np.testing.assert_array_equal(images.rgb(CompressedImage(data=grey)), RGB[..., [0, 0, 0]])


BROKEN = {
    'empty': (b'', "must be JPEG or PNG (got 0 bytes of format 'jpeg')"),
    'depth': (bytes(12) + PNG, 'compressed data must be JPEG or PNG'),
    'cut off': (JPEG[:-20], f'JPEG must be complete (got {len(JPEG) - 20} bytes'),
    'PNG cut off': (PNG[:-20], f'PNG must be complete (got {len(PNG) - 20} bytes'),
    'nothing between the ends': (JPEG[:4] + JPEG[-2:], '6 bytes cannot be decoded'),
}


@pytest.mark.parametrize('kind', BROKEN)
def test_error_of_a_broken_image_states_the_reason(kind):
    data, said = BROKEN[kind]
    with pytest.raises(ValueError, match='.') as refused:
        images.rgb(CompressedImage(format='jpeg', data=data))
    assert said in str(refused.value)


def test_only_frames_that_are_used_are_decoded(robot, monkeypatch):
    node = robot.up(observer(description(view('front', compressed=True), joints=())))
    publish = compressed(robot)
    decoded, decode = [], images._decoded
    monkeypatch.setattr(images, '_decoded', lambda m: decoded.append(m) or decode(m))
    for _ in range(3):
        moment = until_moment(robot, node, lambda: publish(PNG))
    assert not decoded
    np.testing.assert_array_equal(node.inputs.pixels(moment)['front'], RGB)
    assert len(decoded) == 1


def test_a_broken_picture_is_said_once_and_the_next_one_is_used(robot, capfd):
    node = robot.up(observer(description(view('front', compressed=True), joints=())))
    publish = compressed(robot)
    robot.until(lambda: node.warning_counts['image of front'] or publish(JPEG[:-20]), show=False)
    moment = until_moment(robot, node, lambda: publish(JPEG[:4] + JPEG[-2:]))
    assert node.inputs.pixels(moment) is None
    said = capfd.readouterr().err
    assert said.count('refused') == 1
    assert 'image of view front refused: JPEG must be complete' in said
    moment = until_moment(robot, node, lambda: publish(JPEG))
    assert node.inputs.pixels(moment)['front'].shape == RGB.shape


def test_a_policy_server_gets_the_pixels(robot, tmp_path):
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    del contract['observations']['wrist']
    contract['observations']['front']['channel'] = dict(
        topic='camera/front/compressed', type='sensor_msgs/msg/CompressedImage'
    )
    (tmp_path / 'compressed.yaml').write_text(yaml.safe_dump(contract))
    contract = str(tmp_path / 'compressed.yaml')
    node = robot.up(RemoteAction, contract=contract, server__address=NOWHERE)
    publish = compressed(robot)
    robot.until(lambda: publish(PNG) or node._frames.newest(), views=())
    pixels = node._frames.pixels(node._frames.newest())
    np.testing.assert_array_equal(pixels['front'], RGB)
