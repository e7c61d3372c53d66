"""Given actions are at time 0, add no loss, and condition the other actions."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.model.expert import Modulation
from training.common.initial import init_for_training
from training.common.objective import slot_modulation

NOISE = torch.Generator().manual_seed(0)
X = torch.randn(3, TINY.chunk_size, TINY.padded_action_dim, generator=NOISE)
TIMES = torch.tensor([0.2, 0.5, 0.9])
GIVEN = torch.arange(TINY.chunk_size) < torch.tensor([[0], [2], [1]])


@torch.no_grad()
def test_no_action_that_is_given_is_the_plain_velocity(objective, batch):
    _, prefix, _ = objective.fill(batch)
    plain = objective.velocity(X, TIMES, prefix)
    torch.testing.assert_close(objective.velocity(X, TIMES, prefix, GIVEN)[0], plain[0])
    assert not torch.allclose(objective.velocity(X, TIMES, prefix, GIVEN)[1], plain[1])


@torch.no_grad()
def test_a_given_action_is_modulated_by_time_0_and_the_rest_by_t(objective):
    expert = objective.model.expert
    made = slot_modulation(expert, TIMES, GIVEN)
    *timed, clean = expert.modulation(torch.cat([TIMES, torch.zeros(1)]))
    for slot, plain in enumerate(timed):
        for part in Modulation.__dataclass_fields__:
            for norm, values in enumerate(getattr(made, part)):
                for action, given in enumerate(GIVEN[slot]):
                    expected = getattr(clean if given else plain, part)[norm]
                    torch.testing.assert_close(values[slot, action], expected)


def flow(objective, batch):
    return objective(batch, {'flow': 1.0}, torch.Generator().manual_seed(5))['flow']


@torch.no_grad()
def test_the_loss_is_of_the_others_alone(objective, batch):
    """With zero velocity the loss is |noise - action|^2 of the actions that are not given."""
    init_for_training(objective.model, seed=2)
    objective.model.expert.action_out.weight.zero_()
    all_given_alike = replace(batch, delay=torch.tensor([1, 1, 1]))
    other = all_given_alike.actions.clone()
    other[:, 0] += 7.0
    changed = replace(all_given_alike, actions=other)
    assert flow(objective, changed) == flow(objective, all_given_alike)
    assert flow(objective, replace(changed, delay=torch.zeros(3, dtype=torch.long))) > flow(
        objective, changed
    )


def test_the_others_learn_to_go_on_from_what_is_given(objective, batch):
    """If all actions equal the first, giving the first one lowers the loss."""
    init_for_training(objective.model, seed=2)
    generator, rows = torch.Generator().manual_seed(1), len(batch.actions)
    optimiser = torch.optim.Adam(objective.model.expert.parameters(), 3e-3)

    def lesson(delay):
        level = torch.randn(rows, 1, 1, generator=generator)
        actions = level.expand_as(batch.actions).contiguous()
        told = replace(batch, actions=actions, delay=torch.full((rows,), delay))
        return objective(told, {'flow': 1.0}, generator)['flow']

    for step in range(80):
        optimiser.zero_grad()
        lesson(step % 2).backward()
        optimiser.step()
    with torch.no_grad():
        alone, given = (sum(lesson(delay) for _ in range(20)) for delay in (0, 1))
    assert given < 0.9 * alone


def test_a_whole_chunk_that_is_given_leaves_no_loss(objective, batch):
    all_given = replace(batch, delay=torch.full((3,), TINY.chunk_size))
    assert flow(objective, all_given).item() == pytest.approx(0.0)
