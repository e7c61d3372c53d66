"""A folder of this project without `delta` is refused unless the contract states `relative`."""

import json

import pytest

from embodied_kv.config import TINY
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import SAYS, save
from embodied_kv.model.policy import Policy
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.declared import Declared


@pytest.fixture
def folder(tmp_path):
    policy = Policy.random(TINY)
    normalizer = policy.processing.normalizer
    save(tmp_path / 'p', policy.model.state_dict(), TINY, normalizer, Tokenizer.bytes())
    return tmp_path / 'p'


def rewrite(folder, **changes):
    path = folder / 'norm_stats.json'
    stats = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({name: value for name, value in stats.items() if value is not None})
    )


@pytest.mark.parametrize('said', ['7', '"Subtask:"', '[7]', '{}', 'null', '[', '["Subtask:"'])
def test_prompts_that_are_no_list_are_refused(tmp_path, said):
    policy = Policy.random(TINY)
    given = policy.model.state_dict(), TINY, policy.processing.normalizer, Tokenizer.bytes()
    save(tmp_path / 'p', *given, {SAYS: said})
    with pytest.raises(CheckpointError, match=f'{SAYS} must be a list'):
        open_checkpoint(tmp_path / 'p')


def test_it_is_read_from_the_folder(folder):
    assert open_checkpoint(folder).processing.normalizer.relative.all()


def test_without_it_the_contract_says_it_or_nobody(folder):
    rewrite(folder, delta=None)
    with pytest.raises(
        CheckpointError, match=r'write actions.action\[\].relative in the contract'
    ):
        open_checkpoint(folder)
    declared = Declared(relative=(False,) * 7)
    assert not open_checkpoint(folder, declared).processing.normalizer.relative.any()


def test_a_contract_that_says_otherwise_is_refused(folder):
    with pytest.raises(CheckpointError, match='differ in relative'):
        open_checkpoint(folder, Declared(relative=(False,) * 7))


@pytest.mark.parametrize(
    ('changes', 'complaint'),
    [
        (dict(delta=[True]), r'delta is \[1\], the model has \[7\]'),
        (dict(delta='all'), 'delta must be a list'),
        (dict(norm_stats={'state': {}}), 'state.q01 is missing'),
    ],
)
def test_statistics_that_cannot_be_are_refused(folder, changes, complaint):
    rewrite(folder, **changes)
    with pytest.raises(CheckpointError, match=complaint):
        open_checkpoint(folder)
