"""Samples of a policy with a memory have earlier frames of their own episodes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.config import TABLETOP
from embodied_kv.model.pi05 import Pi05
from training.common.initial import init_for_training
from training.common.objective import LOSSES, Objective
from training.common.words import train_tokenizer
from training.policy.dataset import MOST_ASKED, Frames, Sampler, measure
from training.policy.episodes import COLOUR_NAMES, SHAPE_NAMES, find_episodes
from training.policy.generate import make_episode

ROWS, SIZE, BATCHES = 3, 24, range(6)


@pytest.fixture(scope='module')
def frames(tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    for index in range(5):
        make_episode(index, root, 60, 70, covered=5)
    return Frames.read(find_episodes(root), memory=True)


@pytest.fixture(scope='module')
def tokenizer():
    return train_tokenizer(TABLETOP.backbone.vocab_size, memory=True)


@pytest.fixture(scope='module')
def sampler(frames, tokenizer):
    normalizer = measure(frames, TABLETOP, seed=0, samples=256)
    how = dict(batch=SIZE, seed=1, memory=ROWS)
    return Sampler(frames, TABLETOP, tokenizer, normalizer, **how)


@pytest.fixture(scope='module')
def batches(sampler):
    return [sampler.batch(number, False) for number in BATCHES]


def prompts(batch, tokenizer):
    return [
        tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(batch.prompt, batch.prompt_length, strict=True)
    ]


def remembered(batches):
    return [batch for batch in batches if batch.memory_length is not None]


def test_the_same_number_is_the_same_batch(sampler, batches):
    for number in BATCHES:
        again = sampler.batch(number, False).columns()
        assert again.keys() == batches[number].columns().keys()
        for name, column in batches[number].columns().items():
            assert torch.equal(column.nan_to_num(), again[name].nan_to_num()), name


def test_batches_have_up_to_the_largest_number_of_rows(batches):
    rows = {0 if b.memory_length is None else b.memory_length.shape[1] for b in batches}
    assert 0 < max(rows) <= ROWS and len(rows) > 1


def test_rows_are_frames_of_the_own_episode_before_the_present_one(frames, batches):
    by_pixels = {image.tobytes(): at for at, image in enumerate(frames.images)}
    for batch in remembered(batches):
        for sample, image in enumerate(batch.images):
            at = by_pixels[image.numpy().tobytes()]
            before = [
                by_pixels[earlier.numpy().tobytes()]
                for earlier, length in zip(
                    batch.memory_images[sample], batch.memory_length[sample], strict=True
                )
                if length
            ]
            assert {frames.episode[i] for i in before} <= {frames.episode[at]}
            # Pictures of an arm at rest are equal, so frames may be, too.
            assert all(np.diff([at, *before]) <= 0), 'the newest first'


def test_read_tokens_are_those_of_rows_that_there_are(batches):
    views = len(TABLETOP.views) * TABLETOP.vision.tokens
    for batch in remembered(batches):
        seen, lengths = batch.memory_seen, batch.memory_length
        tokens = torch.arange(seen.shape[2])
        assert not seen[lengths == 0].any()
        assert not (seen & (tokens >= views + lengths[..., None])).any()
        assert seen[lengths > 0].any()


def test_some_tasks_are_about_the_past_and_only_where_rows_determine_them(batches, tokenizer):
    found = 0
    for batch in batches:
        for sample, prompt in enumerate(prompts(batch, tokenizer)):
            about_covers = 'the cover over' in prompt
            about_before = 'reached before' in prompt or 'it was' in prompt
            if about_covers or about_before:
                found += 1
            if about_before:
                assert batch.memory_length is not None and batch.memory_length[sample].any()
    assert found


def test_hidden_things_are_no_target_of_what_the_cameras_see(frames, batches):
    hidden = 0
    for batch in batches:
        gone = (batch.colour < 0) & batch.where.isfinite().all(-1)
        hidden += int((batch.colour < 0).sum())
        assert batch.pixels[batch.colour < 0].isnan().all()
        assert (gone.sum(1) <= MOST_ASKED).all(), 'only things of earlier frames are asked for'
    assert hidden


def test_an_earlier_position_is_asked_for_only_where_a_memory_row_contains_it(frames, tokenizer):
    normalizer = measure(frames, TABLETOP, seed=0, samples=256)
    sampler = Sampler(frames, TABLETOP, tokenizer, normalizer, batch=64, seed=1, memory=ROWS)
    asked = 0
    for number in range(30):
        rng = np.random.default_rng(number)
        at = sampler.draw(rng)
        tasks = [
            frames.tasks[e][t] for e, t in zip(frames.episode[at], frames.task[at], strict=True)
        ]
        for past in sampler._pasts(at, tasks, number):
            asked += len(past.points)
            assert past.kept or not past.points
            for thing, point in past.points.items():
                then = frames.things[list(past.kept), thing, :2]
                assert np.hypot(*(then - point).T).min() < 0.01
    assert asked


def test_without_memory_rows_batches_are_as_before(frames, tokenizer):
    normalizer = measure(frames, TABLETOP, seed=0, samples=256)
    plain = Sampler(frames, TABLETOP, tokenizer, normalizer, batch=SIZE, seed=1)
    assert plain.batch(0, False).memory_images is None


def test_all_losses_of_a_batch_with_memory_are_finite_and_teach(batches):
    torch.manual_seed(0)
    model = Pi05.empty(replace(TABLETOP, dtype='float32'), 'cpu')
    init_for_training(model, 0)
    objective = Objective(model, len(COLOUR_NAMES), len(SHAPE_NAMES))
    batch = remembered(batches)[0]
    losses = objective(batch, dict.fromkeys(LOSSES, 1.0), torch.Generator().manual_seed(0), 1)
    sum(losses[name] for name in LOSSES).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)
