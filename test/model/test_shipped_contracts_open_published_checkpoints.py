"""Shipped contracts describe the robots of the checkpoints that openpi and LeRobot publish.

The widths are tiny; statistics, layouts and conventions are those of the published ones.
"""

import pytest
from cases import ALOHA, JAX_ALOHA, JAX_DROID, LIBERO, SMOLVLA, copied, rewrite

from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.files import read_json
from embodied_kv.model.parity.cases import widths
from embodied_kv.robots.embodiment import Embodiment


def opened(contract, folder):
    robot = Embodiment.load(contract)
    dims = None if folder.name.startswith('e2e_lerobot') else widths(case(folder)['dims'])
    found = open_checkpoint(folder, robot.declared, dims)
    robot.check(found.config)
    return found


def case(folder):
    return read_json(folder / 'case.json')


@pytest.mark.parametrize(
    ('contract', 'folder', 'mode', 'has_state_token'),
    [
        ('aloha', JAX_ALOHA, 'mean_std', True),
        ('aloha', ALOHA, 'quantiles', False),
        ('franka', JAX_DROID, 'quantiles', False),
        ('libero', LIBERO, 'quantiles', False),
        ('so101', SMOLVLA, 'mean_std', True),
    ],
    ids=['pi0_aloha', 'pi05_aloha', 'pi05_droid', 'pi05_libero', 'smolvla'],
)
def test_a_contract_opens_the_checkpoint_of_its_robot(contract, folder, mode, has_state_token):
    found = opened(contract, folder)
    assert found.processing.normalizer.state_scale.mode == mode
    assert bool(found.config.state_width) == has_state_token


def test_pi0_droid_has_chunks_of_ten(tmp_path):
    folder = copied(JAX_ALOHA, tmp_path / 'droid')

    def of_eight_numbers(value):
        for part in value['norm_stats'].values():
            for name, numbers in part.items():
                part[name] = numbers[:8]

    rewrite(folder / 'assets/trossen/norm_stats.json', of_eight_numbers)
    found = opened('franka_pi0', folder)
    assert found.config.chunk_size == 10 and found.config.state_width
    assert found.processing.normalizer.action_scale.mode == 'mean_std'
