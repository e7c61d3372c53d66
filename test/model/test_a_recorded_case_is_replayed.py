"""Every quantity recorded from LeRobot and openpi, from raw images to actions, is reproduced."""

import shutil

import pytest
from cases import (
    ALOHA,
    CASES,
    FAMILIES,
    JAX_ALOHA,
    JAX_DROID,
    LEROBOT,
    LIBERO,
    PI0,
    SMOLVLA,
    retensor,
    rewrite,
)

from embodied_kv.model.parity.__main__ import main

COUNTS = {LEROBOT: 21, LIBERO: 40, ALOHA: 28, PI0: 57}
COUNTS |= {JAX_DROID: 41, JAX_ALOHA: 73, SMOLVLA: 65}


@pytest.mark.parametrize('folder', CASES + FAMILIES, ids=lambda folder: folder.name)
def test_every_quantity_is_within_tolerance(folder, capsys):
    assert main([str(folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert all(line.endswith('ok') for line in lines)
    assert verdict.endswith(f'ok, all {COUNTS[folder]} quantities within tolerance')


def eps(value):
    for step in value['steps']:
        if 'normalizer' in step['registry_name']:
            step['config']['eps'] = 1e-6


@pytest.mark.parametrize(
    ('folder', 'file', 'change', 'named'),
    [
        (LEROBOT, 'policy_*processor.json', eps, 'edge.state_normalised'),
        (
            LEROBOT,
            'case.json',
            lambda value: value['records']['edge'].update(task='open the middle drawer'),
            'edge.tokens',
        ),
        (
            LIBERO,
            'facts.json',
            lambda value: value['input_transforms'][5]['TokenizePrompt'].update(
                discrete_state_input=True
            ),
            'plain.tokens',
        ),
        (
            ALOHA,
            'facts.json',
            lambda value: value['input_transforms'][2]['DeltaActions'].update(mask=[False] * 14),
            'plain.chunk_absolute',
        ),
        (
            ALOHA,
            'facts.json',
            lambda value: value['input_transforms'][1]['AlohaInputs'].update(adapt_to_pi=False),
            'plain.state_decoded',
        ),
    ],
)
def test_a_wrong_convention_fails(tmp_path, capsys, folder, file, change, named):
    copy = tmp_path / 'case'
    shutil.copytree(folder, copy)
    for path in copy.glob(file):
        rewrite(path, change)
    assert main([str(copy)]) == 1
    assert named in capsys.readouterr().out.splitlines()[-1]


def test_swapped_pictures_fail(tmp_path, capsys):
    copy = tmp_path / 'case'
    shutil.copytree(LIBERO, copy)

    def flip(tensors):
        name = 'raw.observation/image'
        tensors[name] = tensors[name].flip(2).contiguous()  # RGB is read as BGR

    retensor(copy / 'case.safetensors', flip)
    assert main([str(copy)]) == 1
    assert 'plain.image_resized.base_0_rgb' in capsys.readouterr().out.splitlines()[-1]


def test_a_folder_without_its_tensors_is_refused(tmp_path, capsys):
    copy = tmp_path / 'case'
    shutil.copytree(LIBERO, copy, ignore=shutil.ignore_patterns('case.safetensors'))
    assert main([str(copy)]) == 2
    assert 'case.safetensors does not exist' in capsys.readouterr().err


def with_executed(folder, rows):
    """Return a copy of LeRobot's case in which these rows were executed one by one."""
    shutil.copytree(LEROBOT, folder)
    rewrite(folder / 'config.json', lambda value: value.update(n_action_steps=4))

    def add(tensors):
        tensors['plain.expected.executed'] = tensors['plain.expected.actions'][0, rows].clone()

    retensor(folder / 'case.safetensors', add)
    return str(folder)


def test_executed_actions_are_the_first_rows_of_the_chunk(tmp_path, capsys):
    assert main([with_executed(tmp_path / 'right', [0, 1, 2, 3])]) == 0
    assert main([with_executed(tmp_path / 'wrong', [1, 2, 3, 4])]) == 1
    assert main([with_executed(tmp_path / 'more', [0, 1, 2, 3, 4])]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith('expected.plain.executed')


def test_a_camera_that_is_not_given_is_masked_at_the_end(tmp_path, capsys):
    folder = tmp_path / 'case'
    shutil.copytree(LEROBOT, folder)
    names = ('image', 'image2', 'empty_camera_0')
    first, second, empty = (f'observation.images.{name}' for name in names)

    def record(value):
        value['records'] = {
            'missing_camera': value['records']['plain']
            | {'cameras_not_given': [first], 'image_slot_order': [second, first, empty]}
        }

    def mask(tensors):
        old = [name for name in tensors if name.startswith(('plain.', 'edge.'))]
        kept = {name: tensors[name] for name in old if name.startswith('plain.')}
        for name in old:
            del tensors[name]
        for name in ('raw.state', 'expected.timesteps', 'expected.tokens'):
            tensors[f'missing_camera.{name}'] = kept[f'plain.{name}']
        seen = kept['plain.expected.image_mask']
        tensors['missing_camera.expected.image_mask'] = seen & seen.new_tensor(
            [True, False, False]
        )

    rewrite(folder / 'case.json', record)
    retensor(folder / 'case.safetensors', mask)
    assert main([str(folder)]) == 0, capsys.readouterr()
    rewrite(
        folder / 'case.json',
        lambda value: value['records']['missing_camera'].update(
            image_slot_order=[first, second, empty]
        ),
    )
    assert main([str(folder)]) == 2
    assert 'the views lie in the order' in capsys.readouterr().err
