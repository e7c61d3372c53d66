"""--init starts a run with the weights of another policy, and other data trains it further."""

import pytest
import robot_cases
import torch
from robot_cases import ROBOT

from embodied_kv.config import TINY
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.weights import Weights
from training.common.learner import TRAINED
from training.data.lerobot_reader import LeRobotDataSet
from training.run.recipe import RunRecipe
from training.run.training import Training, split

RECIPE = RunRecipe(ground_steps=0, joint_steps=2, batch=2, draws=1)


def training(root, first, **how):
    """Return a run on three episodes, whose seeds start at `first`."""
    robot_cases.write(root, [robot_cases.episode(seed) for seed in range(first, first + 3)])
    data = LeRobotDataSet(root, ROBOT)
    return Training(ROBOT, TINY, RECIPE, *split([data], ROBOT.adapted(TINY), 0, []), **how)


@pytest.fixture
def before(tmp_path):
    """Return the folder of a run of one step."""
    torch.set_num_threads(1)
    begun = training(tmp_path / 'one', 0)
    begun.learn(begun.batch(0))
    begun.keep(tmp_path / 'before')
    return tmp_path / 'before'


def test_it_has_the_weights_of_the_other_and_the_numbers_of_its_own_data(before, tmp_path):
    training(tmp_path / 'two', 3, init=before / 'policy').keep(tmp_path / 'after')
    old, new = (open_checkpoint(folder / 'policy') for folder in (before, tmp_path / 'after'))
    wanted = dict(old.load().model.named_parameters())
    for name, p in new.load().model.named_parameters():
        assert torch.equal(p, wanted[name]), name
    files = [folder / 'policy' / 'norm_stats.json' for folder in (before, tmp_path / 'after')]
    assert files[0].read_bytes() != files[1].read_bytes()
    said = Weights(tmp_path / 'after' / 'policy').metadata[TRAINED]
    assert said.startswith('1 steps of 2 samples, EMA weights, then 0 steps')


def test_a_run_does_not_go_on_from_another_start(before, tmp_path):
    training(tmp_path / 'two', 3, init=before / 'policy').keep(tmp_path / 'after')
    with pytest.raises(ValueError, match='another start: give the same'):
        training(tmp_path / 'three', 3).restore(tmp_path / 'after')


def test_a_policy_of_another_robot_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"views is \('front', 'wrist'\), the model has"):
        training(tmp_path / 'two', 3, init=bundled('tabletop'))
