"""Facts that are missing in files and contract, or differ between them, are refused by name."""

import re
from dataclasses import replace

import pytest
from cases import ALOHA, LEROBOT, LIBERO, copied, declared, opened, rewrite, step

from embodied_kv.config import TINY
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.declared import Declared, contract_field

NAMES = tuple(f'joint_{i}' for i in range(7))


@pytest.mark.parametrize('fact', ['relative', 'state_in_prompt', 'conversion', 'fps'])
def test_what_openpi_keeps_in_code_has_to_be_declared(fact):
    with pytest.raises(
        CheckpointError, match=f'write {re.escape(contract_field(fact))} in the contract'
    ):
        opened(LIBERO, replace(declared(LIBERO), **{fact: None}))


def test_all_missing_declarations_are_reported_at_once():
    with pytest.raises(CheckpointError) as refused:
        opened(LIBERO, Declared())
    for fact in ('relative', 'state_in_prompt', 'conversion', 'fps'):
        assert contract_field(fact) in str(refused.value)


def test_lerobot_needs_its_rate():
    with pytest.raises(CheckpointError, match='write fps in the contract'):
        opened(LEROBOT, Declared())


def test_a_folder_that_may_be_older_than_0_5_asks(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'policy')
    rewrite(folder / 'config.json', lambda value: value.pop('use_relative_actions'))
    with pytest.raises(CheckpointError, match='write checkpoint.lerobot_before_0_5'):
        opened(folder, Declared(fps=30))


def test_names_that_differ_are_shown_as_two_lists(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'policy')
    rewrite(folder / 'config.json', lambda value: value.update(action_feature_names=NAMES))
    other = (*NAMES[:5], NAMES[6], NAMES[5])
    with pytest.raises(CheckpointError) as refused:
        opened(folder, Declared(fps=30, action_names=other))
    lines = str(refused.value).splitlines()
    assert 'action_names' in lines[0]
    assert lines[1:] == [
        '  checkpoint: joint_0, joint_1, joint_2, joint_3, joint_4, joint_5, joint_6',
        '  contract:   joint_0, joint_1, joint_2, joint_3, joint_4, joint_6, joint_5',
    ]


@pytest.mark.parametrize(
    ('contract', 'complaint'),
    [
        (dict(relative=(True,) * 7), 'differ in relative'),
        (dict(state_in_prompt=False), 'differ in state_in_prompt'),
        (dict(resize='pillow'), 'differ in resize'),
        (dict(conversion='aloha'), 'differ in conversion'),
        (dict(lerobot_before_0_5=True), 'differ in lerobot_before_0_5'),
        (dict(chunk_size=50), 'differ in chunk_size'),
        (dict(normalization={'action': 'mean_std'}), 'normalises the action by quantiles'),
        (dict(state_names=NAMES), 'the state has 8 dims, the contract has 7: joint_0'),
        (dict(views=('observation.images.top',)), 'views that the checkpoint does not have'),
    ],
)
def test_lerobot_and_a_contract_of_another_robot(contract, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        opened(LEROBOT, Declared(fps=30, **contract))


@pytest.mark.parametrize(
    ('folder', 'contract', 'complaint'),
    [
        (LIBERO, dict(chunk_size=50), 'differ in chunk_size'),
        (LIBERO, dict(resize='bilinear'), 'differ in resize'),
        (LIBERO, dict(action_names=NAMES[:6], relative=None), 'the action has 7 dims'),
        (LIBERO, dict(conversion='aloha'), 'must have 14 dims for checkpoint.conversion aloha'),
        (LIBERO, dict(action_names=None, relative=(False,) * 6), 'relative has 6 entries'),
        (ALOHA, dict(views=('cam_high',)), 'views that the checkpoint does not have'),
    ],
)
def test_openpi_and_a_contract_of_another_robot(folder, contract, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        opened(folder, replace(declared(folder), **contract))


def test_our_own_says_its_conventions_itself():
    tabletop = bundled('tabletop')
    assert open_checkpoint(tabletop, Declared(fps=10, chunk_size=10)).fps == 10
    with pytest.raises(CheckpointError, match='differ in fps'):
        open_checkpoint(tabletop, Declared(fps=30))
    with pytest.raises(CheckpointError, match='vision.image_size is 64, the model has 28'):
        open_checkpoint(tabletop, config=TINY)


def test_files_of_one_folder_have_to_agree(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'policy')

    def enable(value):
        step(value, 'relative_actions_processor')['enabled'] = True

    rewrite(folder / 'policy_preprocessor.json', enable)
    with pytest.raises(CheckpointError, match='differ in whether actions are relative'):
        opened(folder)


@pytest.mark.parametrize(
    'fields',
    [
        dict(state_names=()),
        dict(views=('a', 'a')),
        dict(action_names=('a', 'b'), relative=(True,)),
        dict(normalization={'state': 'min_max'}),
        dict(normalization={'images': 'mean_std'}),
        dict(resize='nearest'),
        dict(conversion='ur5'),
        dict(chunk_size=0),
        dict(fps=-1.0),
    ],
)
def test_a_contract_that_cannot_be_is_refused_by_its_key(fields):
    with pytest.raises(ValueError, match=re.escape(contract_field([*fields][0]))):
        Declared(**fields)
