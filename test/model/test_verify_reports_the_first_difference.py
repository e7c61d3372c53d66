"""`verify` names the first quantity in which our policy differs, or what is missing."""

import sys

import numpy as np
import pytest
from cases import ALOHA, LEROBOT, LIBERO, declared, opened

from embodied_kv.model import verify
from embodied_kv.model.expert import flow_times
from embodied_kv.model.verify import Reference


@pytest.fixture(scope='module')
def policy():
    return opened(LIBERO).load(dtype='float32')


def other(policy, change):
    """Return a reference that answers as our policy does, after `change(answer)`."""

    def answer(asked):
        found = dict(verify.ours(policy, asked, flow_times(10)))
        change(found)
        return found

    return Reference('other 1.0', declared(LIBERO), flow_times(10), answer)


def test_equal_outputs_pass(policy, capsys):
    assert verify.compare(policy, other(policy, lambda answer: None), 2)
    assert 'other 1.0: ok, 2 observations' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('quantity', 'stage'),
    [
        ('image.left_wrist_0_rgb', 'image.left_wrist_0_rgb'),
        ('state', 'state'),
        ('chunk', 'chunk'),
        ('actions', 'actions'),
    ],
)
def test_the_first_quantity_that_differs_is_named(policy, capsys, quantity, stage):
    def change(answer):
        answer[quantity] = answer[quantity] + np.float32(0.01)
        answer['actions'] = answer['actions'] + 1  # later quantities may differ too

    assert not verify.compare(policy, other(policy, change), 1)
    assert f'first difference: {stage}: ' in capsys.readouterr().out


def test_other_tokens_part_at_the_tokens(policy, capsys):
    assert not verify.compare(policy, other(policy, lambda a: a.update(tokens=a['tokens'][1:])), 1)
    assert 'first difference: tokens: inf' in capsys.readouterr().out


def test_observations_differ_and_come_again(policy):
    first, again, second = (verify.draw(policy, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.state, again.state) and not np.array_equal(
        first.state, second.state
    )
    assert first.images.keys() == {'base_0_rgb', 'left_wrist_0_rgb'}


@pytest.mark.parametrize(
    ('folder', 'arguments', 'complaint'),
    [
        (LEROBOT, ['--against', 'lerobot'], 'lerobot cannot be imported'),
        (ALOHA, ['--against', 'openpi', '--config', 'pi05_aloha'], 'openpi cannot be imported'),
        (ALOHA, ['--against', 'openpi'], 'name its train config'),
    ],
)
def test_missing_package_or_file_is_named(monkeypatch, capsys, folder, arguments, complaint):
    for name in ('lerobot', 'lerobot.policies.factory', 'openpi', 'openpi.training.config'):
        monkeypatch.setitem(sys.modules, name, None)
    assert verify.main([str(folder), *arguments]) == 2
    assert complaint in capsys.readouterr().err
