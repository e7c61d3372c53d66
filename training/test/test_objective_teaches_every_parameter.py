"""A gradient step lowers each loss, and the losses train every parameter that serving uses."""

from dataclasses import replace

import pytest
import torch

from training.common.initial import init_for_training
from training.common.objective import LOSSES, thing_of_patch


def losses(objective, batch, *names):
    return objective(batch, dict.fromkeys(names, 1.0), torch.Generator().manual_seed(5))


@pytest.mark.parametrize('name', LOSSES)
def test_a_gradient_step_lowers_the_loss(objective, batch, name):
    init_for_training(objective.model, seed=2)
    before = losses(objective, batch, name)[name]
    before.backward()
    with torch.no_grad():
        for p in objective.parameters():
            if p.grad is not None:
                assert p.grad.isfinite().all()
                p -= 1e-3 * p.grad
    assert losses(objective, batch, name)[name] < before


def test_a_step_of_the_tabletop_has_the_recorded_losses(objective, batch):
    init_for_training(objective.model, seed=2)
    found = losses(objective, batch, *LOSSES)
    known = dict(flow=2.163091, text=5.808998, where=1.229554, goal=1.282342, detect=6.787293)
    known |= dict(text_exact=0.0, where_hit=0.0, goal_cm=48.742424, detect_colour=1 / 3)
    assert {name: value.item() for name, value in found.items()} == pytest.approx(known, rel=1e-4)


def test_every_parameter_of_the_model_gets_a_gradient(objective, batch):
    init_for_training(objective.model, seed=2)
    found = losses(objective, batch, *LOSSES)
    sum(found[name] for name in LOSSES).backward()
    idle = [n for n, p in objective.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_only_losses_with_a_weight_are_computed(objective, batch):
    weights = {'flow': 1.0, 'text': 0.0}
    assert set(objective(batch, weights, torch.Generator().manual_seed(0))) == {'flow'}
    with pytest.raises(ValueError, match=r"no losses \['actions'\]; there are: flow"):
        objective(batch, {'actions': 1.0}, torch.Generator())


def test_the_seed_of_the_generator_decides_the_loss(objective, batch):
    assert losses(objective, batch, 'flow') == losses(objective, batch, 'flow')


def test_a_batch_without_targets_has_no_loss_and_finite_gradients(objective, batch):
    blank = replace(
        batch,
        answer=torch.full_like(batch.answer, -100),
        goal=torch.full_like(batch.goal, torch.nan),
        where_at=torch.full_like(batch.where_at, -1),
        pixels=torch.full_like(batch.pixels, torch.nan),
    )
    found = losses(objective, blank, *LOSSES)
    assert [found[name].item() for name in ('text', 'goal', 'where')] == [0.0, 0.0, 0.0]
    sum(found[name] for name in LOSSES).backward()
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.grad is not None)


def test_an_action_that_is_not_known_changes_no_loss(objective, batch):
    init_for_training(objective.model, seed=2)
    short = replace(batch, known=torch.tensor([2, 6, 6]))
    other = short.actions.clone()
    other[0, 2:] = 7.0  # read by the expert like noise, and not learnt
    before, after = (
        objective(replace(short, actions=a), {'flow': 1.0}, torch.Generator().manual_seed(5))
        for a in (short.actions, other)
    )
    assert before['flow'] != losses(objective, batch, 'flow')['flow']
    assert after['flow'].item() == pytest.approx(before['flow'].item(), rel=0.02)


def test_the_first_of_two_things_on_a_patch_is_its_target(batch):
    nan = torch.nan
    places = torch.tensor(
        [[[15.0, 1.0], [nan, nan]], [[20.0, 2.0], [0.0, 27.9]], [[3.0, 3.0], [28.0, 0.0]]]
    )
    one = replace(batch, pixels=places[None], colour=torch.tensor([[0, 1, -1]]))
    owner, place = thing_of_patch(one, patch_size=14, patches=4)
    # Thing 0 keeps the patch it shares with 1; 2 is absent, and outside the second view.
    assert owner.tolist() == [[[-1, 0, -1, -1], [-1, -1, 1, -1]]]
    torch.testing.assert_close(place[0, 0, 0], torch.tensor([15 / 14 - 1.5, 1 / 14 - 0.5]))


@torch.no_grad()
def test_right_answers_count_as_exact(objective, batch):
    _, prefix, _ = objective.fill(batch)
    said = objective.model.backbone.logits(objective.packed(batch, prefix)[1]).argmax(-1)
    right = replace(batch, answer=said.where(batch.answer >= 0, -100))
    assert losses(objective, right, 'text')['text_exact'] == 1
    right.answer[0, 4] = (right.answer[0, 4] + 1) % 320
    assert losses(objective, right, 'text')['text_exact'] == pytest.approx(5 / 6)


def test_training_starts_near_zero_velocity_and_flat_logits(objective, batch):
    init_for_training(objective.model, seed=2)
    with torch.no_grad():
        found = losses(objective, batch, 'flow', 'text')
        silent = 1 + batch.actions.square().mean().item()
    assert found['text'].item() == pytest.approx(torch.tensor(320.0).log().item(), rel=0.05)
    assert found['flow'].item() == pytest.approx(silent, rel=0.3)
