"""Folders that other projects write without the files that describe them name what to do."""

import pytest
from cases import LEROBOT, LIBERO, POST, PRE, copied, opened

from embodied_kv.model.files import CheckpointError


def test_a_lerobot_folder_with_its_statistics_in_the_weights_is_migrated(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'old')
    (folder / PRE).unlink()
    (folder / POST).unlink()
    with pytest.raises(CheckpointError, match='migrate_policy_normalization'):
        opened(folder)


def test_a_folder_of_the_training_of_openpi_gets_its_action_dim(tmp_path):
    folder = copied(LIBERO, tmp_path / 'trained')
    (folder / 'config.json').unlink()
    with pytest.raises(CheckpointError, match=r'config.json.*write \{"action_dim": 32\}'):
        opened(folder)
