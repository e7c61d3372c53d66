"""`python -m embodied_kv.model.check` reports contract and checkpoint, or why they cannot run."""

import pytest
from PIL import Image

from embodied_kv.model.check import main
from embodied_kv.model.checkpoints.own import ASSETS

TABLETOP = str(ASSETS / 'tabletop')


def test_a_contract_and_its_checkpoint_are_told(tmp_path, capsys):
    png = tmp_path / 'views.png'
    assert main(['tabletop', TABLETOP, '--png', str(png)]) == 0
    said = capsys.readouterr().out
    for told in (
        'joint_states: position.gripper',
        'joint_trajectory: position.shoulder_pan',
        'offset from the state',
        '-1.298 … 1.323 (quantiles)',
        'velocity 6, acceleration 60',
        'State: 128 128 128 128 128 128 128;\\nAction: ',
        'MiB of cache for 16 rows of 128 tokens',
    ):
        assert told in said
    assert Image.open(png).size == (128, 64)  # two views, as the network receives them


def test_a_given_picture_is_cut_as_the_contract_says(tmp_path):
    picture, png = tmp_path / 'front.png', tmp_path / 'views.png'
    Image.new('RGB', (200, 100), (255, 0, 0)).save(picture)
    given = ['--image', f'front={picture}', '--png', str(png)]
    assert main(['tabletop', TABLETOP, *given]) == 0
    views = Image.open(png)
    assert views.getpixel((32, 32)) == (255, 0, 0)  # in the middle of the first view
    assert views.getpixel((32, 8)) == (0, 0, 0)  # padded above


def test_a_contract_alone_is_told(capsys):
    assert main(['franka']) == 0
    said = capsys.readouterr().out
    assert '0.333333 · SI' in said and 'by the checkpoint' in said


@pytest.mark.parametrize('preset', [[], ['--preset', 'tiny']])
def test_untrained_weights_of_a_preset_fit_any_contract(capsys, preset):
    assert main(['ur5e', 'random', *preset]) == 0
    said = capsys.readouterr().out
    assert 'untrained weights of the preset tiny' in said
    assert 'shoulder_pan_joint' in said and 'MiB of cache for 16 rows' in said


@pytest.mark.parametrize(
    'arguments, reason',
    [
        (['ur5e', TABLETOP], 'checkpoint and contract differ'),
        (['so100'], 'must be a file or one of'),
        (['tabletop', '/nowhere'], '/nowhere does not exist'),
        (['tabletop', 'random', '--preset', 'huge'], 'preset must be one of'),
        (['tabletop', TABLETOP, '--image', 'front=/nowhere.png'], 'nowhere.png'),
        (['tabletop', TABLETOP, '--image', 'top=/a.png', '--png', '/b'], 'one of the views front'),
    ],
)
def test_pair_that_cannot_run_is_refused_with_the_reason(arguments, reason, capsys, tmp_path):
    png = ['--png', str(tmp_path / 'views.png')]
    assert main([*arguments, *png]) == 1
    assert 'the checkpoint cannot run' in (said := capsys.readouterr().err) and reason in said
