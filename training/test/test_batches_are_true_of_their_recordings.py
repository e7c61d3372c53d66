"""A batch of a data set has what was recorded, in the form in which the served policy sees it."""

from dataclasses import replace

import numpy as np
import pytest
import robot_cases
import torch
from hypothesis import given
from hypothesis import strategies as st
from robot_cases import CLOSED, ROBOT

from embodied_kv.config import TINY
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.processing import Processing
from training.data.lerobot_reader import LeRobotDataSet
from training.run import statistics
from training.run.frames import Frames, episodes_of
from training.run.sampler import Sampler, longest_prompt
from training.run.statistics import measure
from training.run.training import space_of
from training.run.words import goal_of, tokenizer_of

CONFIG = ROBOT.adapted(TINY)
RELATIVE = np.array([True, True, False, False])
LENGTH = 12


@pytest.fixture(scope='module')
def frames(tmp_path_factory):
    """Return frames of two data sets, one of which has subtasks."""
    folder = tmp_path_factory.mktemp('data')
    data = [
        LeRobotDataSet(
            robot_cases.write(
                folder / name, [robot_cases.episode(seed, LENGTH, **how) for seed in range(2)]
            ),
            ROBOT,
        )
        for name, how in (('one', dict(speaking=True)), ('two', dict(knowing=False)))
    ]
    return Frames.read(list(episodes_of(data)), CONFIG, data[0].objects)


@pytest.fixture(scope='module')
def words(frames):
    return tokenizer_of([frames], CONFIG.backbone.vocab_size)


@pytest.fixture(scope='module')
def normalizer(frames):
    return measure(frames, CONFIG, RELATIVE)


@pytest.fixture(scope='module')
def sampler(frames, words, normalizer):
    return Sampler(frames, CONFIG, words, normalizer, batch=32, seed=0, rtc=3)


def drawn(sampler, frames):
    """Return the first batch and the indices of its frames."""
    batch = sampler.batch(0)
    at = np.random.default_rng((0, 0)).integers(len(frames), size=32)
    np.testing.assert_array_equal(batch.images.numpy(), frames.images[at])
    return batch, at


def test_targets_are_the_recorded_actions_as_far_as_they_go(sampler, frames, normalizer):
    batch, at = drawn(sampler, frames)
    assert batch.actions.shape == (32, 5, CONFIG.padded_action_dim)
    assert not batch.actions[..., 4:].any()
    actions = normalizer.actions(batch.actions.numpy(), frames.state[at])
    for chunk, known, frame in zip(actions, batch.known, at, strict=True):
        assert known == min(5, LENGTH - frame % LENGTH)
        recorded = frames.action[frame : frame + known]
        np.testing.assert_allclose(chunk[:known], recorded, atol=1e-5)


def test_some_of_what_is_known_may_be_given_and_never_all_of_it(sampler, frames):
    batch, _ = drawn(sampler, frames)
    assert 0 < batch.delay.max() <= 3 and (batch.delay < batch.known).all()


def test_prompts_and_pictures_are_those_of_the_served_policy(sampler, frames, words, normalizer):
    batch, at = drawn(sampler, frames)
    policy = Policy(CONFIG, None, words, Processing(normalizer))
    for ids, length, frame in zip(batch.prompt, batch.prompt_length, at, strict=True):
        served = policy.prompt_ids('slide_to the red square\n', frames.state[frame])
        assert ids[:length].tolist() == served
    picture = np.random.default_rng(0).integers(0, 255, (24, 32, 3)).astype(np.uint8)
    assert policy.pixels([picture]).shape[1:] == frames.images.shape[2:]


def test_an_object_is_in_the_networks_picture_where_the_data_says(frames):
    known = np.flatnonzero(np.isfinite(frames.pixels[:, 0]).all((1, 2)))
    assert len(known) == 2 * LENGTH
    for frame in known[::LENGTH]:
        for view in range(2):
            column, row = frames.pixels[frame, 0, view].astype(int)
            red, green, _ = frames.images[frame, view, row, column]
            assert red > 180 and green < 90
            assert red > frames.images[frame, view, row, (column + 14) % 28, 0] + 100


def test_where_things_are_is_asked_by_name_where_it_is_known(sampler, frames, words):
    batch, at = drawn(sampler, frames)
    known = torch.from_numpy(np.isfinite(frames.positions[at]).all(-1))
    assert 0 < known.sum() < 32
    assert torch.equal(batch.where_at >= 0, known)
    assert torch.equal(batch.goal.isfinite().all(-1), known[:, 0])
    assert torch.equal(batch.colour >= 0, known)
    sample = int(known[:, 0].nonzero()[0])
    said = batch.packed[sample, : batch.where_at[sample, 0] + 1].tolist()
    assert words.decode(said) == ' red square'


def test_what_is_done_is_asked_where_it_is_said_and_not_while_grounding(sampler, frames, words):
    batch, at = drawn(sampler, frames)
    for b, frame in enumerate(at):
        answer = batch.answer[b][batch.answer[b] >= 0].tolist()
        said = frames.subtask[frame]
        assert words.decode(answer) == (f' {frames.subtasks[said]}' if said >= 0 else '')
        assert (answer[-1:] == [words.eos]) == (said >= 0)
    assert (sampler.batch(0, ground=True).answer < 0).all()


def test_a_gripper_that_seldom_closes_keeps_its_way(frames):
    action, state = (np.tile(x, (10, 1)) for x in (frames.action, frames.state))
    action[:, 3] = 0
    action[7, 3] = CLOSED  # once in 480 frames
    seldom = replace(frames, action=action, state=state, left=np.tile(frames.left, 10))
    scale = measure(seldom, CONFIG, RELATIVE).action_scale
    assert scale.unnormalise(np.ones(4))[:, 3] == pytest.approx(CLOSED, abs=1e-5)
    assert scale.unnormalise(-np.ones(4))[:, 3] == pytest.approx(0, abs=1e-5)


def test_percentiles_are_of_so_many_chunks_at_most(frames, monkeypatch):
    seen = []
    monkeypatch.setattr(statistics, 'SAMPLES', 30)  # of 48 frames
    monkeypatch.setattr(
        Frames, 'chunks', lambda self, at, n: seen.append(at) or self.action[at, None]
    )
    monkeypatch.setattr(statistics.Normalizer, 'from_quantiles', lambda *given: None)
    measure(frames, CONFIG, RELATIVE)
    assert 1 < len(seen[0]) <= 30 and seen[0][-1] >= 46


def test_what_is_known_of_the_frames_is_in_their_digest(frames):
    for name in ('state', 'action', 'left', 'task', 'subtask', 'positions', 'pixels'):
        assert replace(frames, **{name: getattr(frames, name) + 1}).digest != frames.digest


def test_offsets_have_a_span_for_each_step_and_positions_one(normalizer):
    reach = normalizer.action_scale.span
    assert (np.diff(reach[:, 0]) > 0).all()  # spans grow with the step
    assert (np.ptp(reach[:, 2:], axis=0) == 0).all()


def test_positions_are_regressed_in_the_space_that_they_have(frames):
    centre, scale = space_of(frames)
    assert centre[1:] == pytest.approx((0.1, 0.8), abs=1e-6) and scale[1:] == (0.02, 0.02)


@pytest.fixture(scope='module')
def longest(frames, words):
    return longest_prompt(frames, words, 5)


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5))
def test_no_state_makes_a_prompt_longer_than_the_longest(frames, words, longest, state):
    policy = Policy(CONFIG, None, words, Processing(Normalizer.identity(CONFIG)))
    assert len(policy.prompt_ids(frames.tasks[0], np.array(state, np.float32))) <= longest


@pytest.mark.parametrize(
    ('task', 'objects', 'goal'),
    [
        ('put the red cube on the plate', ('plate', 'red cube'), 1),
        ('lift the Red Cube', ('cube', 'red cube'), 1),
        ('lift it', ('cube',), 0),
        ('lift it', ('cube', 'plate'), None),
        ('lift the cubes apart', ('plate', 'cubes'), 1),
        ('lift it', (), None),
        ('light the candle', ('can', 'candle'), 1),
        ('light the candle', ('can', 'door'), None),
        ('open the cupboard', ('cup', 'door'), None),
        ('put cups into the cupboard', ('cupboard', 'cup'), 1),
        ('turn off lamp (left)', ('door', 'lamp (left)'), 1),
    ],
)
def test_a_task_is_about_what_it_names_first(task, objects, goal):
    assert goal_of(task, objects) == goal
