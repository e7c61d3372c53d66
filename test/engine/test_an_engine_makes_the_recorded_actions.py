"""The engine reproduces the recorded actions of the public references; a difference is a FAIL."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from embodied_kv.engine.parity import main
from embodied_kv.model.parity.cases import ABOUT, TENSORS

DATA = Path(__file__).parents[1] / 'data'
FOLDERS = sorted(path.parent for path in DATA.glob(f'*/{ABOUT}'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: folder.name)
def test_actions_of_raw_observations_are_the_recorded_ones(folder, capsys):
    assert main([str(folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    compared = [line for line in lines if 'not compared; its state' not in line]
    assert compared and all('.actions, eager' in line for line in compared)
    assert f'{folder}: ok' in verdict


def test_other_actions_are_a_failure(tmp_path, capsys):
    folder = tmp_path / 'case'
    shutil.copytree(DATA / 'e2e_lerobot_smolvla', folder)
    tensors = load_file(folder / TENSORS)
    tensors['plain.expected.actions'] += 0.01
    save_file(tensors, folder / TENSORS)
    assert main([str(folder)]) == 1
    assert 'expected.plain.actions, eager\n' in capsys.readouterr().out


def test_a_folder_that_cannot_be_compared_is_named(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert f'{tmp_path}: cannot be compared: ' in capsys.readouterr().err
