"""`python -m embodied_kv try` answers an image with a sentence and a path, without ROS 2."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from embodied_kv.demo import try_policy
from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.scene import START

ROOT = Path(__file__).resolve().parents[2]
SHAPES = (48, 64, 3), (64, 48, 3), (600, 800, 3)
SAMPLE = ROOT / 'docs' / 'images' / 'tabletop.png'


def attempt(*arguments, **environment):
    return subprocess.run(
        [sys.executable, '-m', 'embodied_kv', 'try', *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=180,
    )


@pytest.fixture(scope='module')
def blocked(tmp_path_factory):
    """Return a folder that blocks the import of ROS 2, the simulator and the drawing library."""
    folder = tmp_path_factory.mktemp('blocked')
    for name in ('rclpy', 'mujoco', 'matplotlib'):
        (folder / f'{name}.py').write_text(f"raise ImportError('{name} is blocked')\n")
    return folder


@pytest.fixture(scope='module')
def answered(blocked, tmp_path_factory):
    out = tmp_path_factory.mktemp('try') / 'path.png'
    path = os.pathsep.join((str(blocked), os.environ.get('PYTHONPATH', '')))
    return attempt(SAMPLE, 'pick up the red cube', '--out', out, PYTHONPATH=path), out


def test_the_sample_has_a_sentence_and_a_path(answered):
    ended, out = answered
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith('Subtask: move above the red cube\n')
    before, after = cv2.imread(str(SAMPLE)), cv2.imread(str(out))
    scale = len(after) // len(before)
    enlarged = before.repeat(scale, 0).repeat(scale, 1)
    assert after.shape == enlarged.shape
    drawn = (after != enlarged).any(-1).mean()
    assert 0.0005 < drawn < 0.05, 'a path is drawn, and nothing else'


def test_the_gripper_moves_to_the_side_of_what_is_named():
    image, wrist = try_policy.read_picture(SAMPLE), try_policy.read_picture(try_policy.EMPTY)
    columns = {}
    for name in ('red cube', 'orange cube'):
        joints = np.array(try_policy.start(), np.float32)
        answer = try_policy.ask(image, wrist, joints, f'pick up the {name}', 'Subtask:')
        drawn = try_policy.with_path(image, answer)
        scale = len(drawn) // len(image)
        changed = (drawn != image.repeat(scale, 0).repeat(scale, 1)).any(-1)
        columns[name] = np.nonzero(changed)[1].mean() / scale
    middle = image.shape[1] / 2
    assert columns['orange cube'] < middle - 5 and columns['red cube'] > middle + 5


def test_actions_that_are_not_finite_are_an_error_with_a_reason(monkeypatch):
    fault = FloatingPointError('actions of the policy must be finite')
    monkeypatch.setattr(try_policy.Engine, 'denoise', lambda *_: [fault])
    image, wrist = try_policy.read_picture(SAMPLE), try_policy.read_picture(try_policy.EMPTY)
    joints = np.array(try_policy.start(), np.float32)
    with pytest.raises(ValueError, match='must be finite'):
        try_policy.ask(image, wrist, joints, 'pick up the red cube', 'Subtask:')


def test_the_arm_starts_where_that_of_the_simulated_robot_does():
    np.testing.assert_allclose(forward(np.array([try_policy.start()]))[0], START, atol=1e-9)


@pytest.mark.parametrize(
    ('arguments', 'reason'),
    [
        (['no/such.png', 'pick up the red cube'], 'No such file'),
        ([__file__, 'pick up the red cube'], 'picture must be a PNG or JPEG file'),
        ([SAMPLE, 'pick up the red cube', '--out', 'path.txt'], 'out must end with .png or .jpg'),
        ([SAMPLE, 'pick up the red cube', '--prompt', ' '], 'the question is empty'),
        ([SAMPLE, 'pick up the red cube', '--joints', *['nan'] * 7], 'state'),
    ],
)
def test_what_cannot_be_used_is_named(monkeypatch, tmp_path, arguments, reason):
    from embodied_kv import __main__ as command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['embodied_kv', 'try', *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert str(ended.value).startswith('try: ') and reason in str(ended.value)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_picture(tmp_path):
    empty = tmp_path / 'empty.png'
    empty.write_bytes(b'')
    with pytest.raises(ValueError, match='PNG or JPEG'):
        try_policy.read_picture(empty)


@pytest.mark.parametrize('shape', SHAPES)
def test_a_picture_of_any_shape_keeps_its_aspect(shape):
    chunk = type('Chunk', (), {'values': np.tile(try_policy.start(), (4, 1))})
    image = np.zeros(shape, np.uint8)
    answer = try_policy.Answer(chunk, '', np.array(try_policy.start()))
    drawn = try_policy.with_path(image, answer)
    assert drawn.shape[0] * shape[1] == drawn.shape[1] * shape[0]
    rows, columns = np.nonzero(drawn.any(-1))
    assert columns.mean() == pytest.approx((drawn.shape[1] - 1) / 2, abs=2), 'straight ahead'
    assert not image.any(), 'the picture of the caller is untouched'
