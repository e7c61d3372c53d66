"""The targets of a batch agree with the expert and the simulator for its frames."""

import numpy as np
import pytest
import torch

from embodied_kv.config import TABLETOP
from training.common.words import train_tokenizer
from training.policy.dataset import (
    Frames,
    Sampler,
    frequency,
    gibberish,
    measure,
    on_the_table,
)
from training.policy.episodes import COLOUR_NAMES, SHAPE_NAMES, find_episodes
from training.policy.generate import make_episode


@pytest.fixture(scope='module')
def frames(tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    for index in range(6):
        make_episode(index, root, 7, 20)
    return Frames.read(find_episodes(root))


@pytest.fixture(scope='module')
def tokenizer():
    return train_tokenizer(TABLETOP.backbone.vocab_size)


@pytest.fixture(scope='module')
def normalizer(frames):
    return measure(frames, TABLETOP, seed=0, samples=256)


@pytest.fixture(scope='module')
def sampler(frames, tokenizer, normalizer):
    return Sampler(frames, TABLETOP, tokenizer, normalizer, batch=48, seed=1)


def segments(batch, tokenizer, sample):
    """Yield the question, the expected answer and its tokens for each segment of a sample."""
    for number in range(int(batch.segment[sample].max()) + 1):
        mine = batch.segment[sample] == number
        ids, answers = batch.packed[sample][mine].tolist(), batch.answer[sample][mine].tolist()
        said = [token for token in answers if token >= 0]
        asked = len(ids) - max(0, len(said) - 1)
        yield tokenizer.decode(ids[:asked]), tokenizer.decode(said), said


def test_the_same_number_is_the_same_batch(sampler):
    a, b, other = sampler.batch(3, False), sampler.batch(3, False), sampler.batch(4, False)
    assert torch.equal(a.images, b.images) and torch.equal(a.packed, b.packed)
    assert torch.equal(a.actions, b.actions)
    assert not torch.equal(a.images, other.images)


def test_frames_of_hard_tasks_are_drawn_more_often(frames, sampler):
    drawn = np.concatenate([sampler.draw(np.random.default_rng(i)) for i in range(200)])
    counts = np.bincount(drawn, minlength=len(frames))
    tasks = [frames.tasks[e][t] for e, t in zip(frames.episode, frames.task, strict=True)]
    expected = np.array([frequency(task) for task in tasks])
    assert len(set(expected)) > 1 and counts.min() > 0
    expected *= len(drawn) / expected.sum()
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()


def test_every_sample_says_its_subtask_and_then_ends(sampler, tokenizer):
    batch = sampler.batch(0, False)
    for sample in range(48):
        (asked, said, ids), *rest = segments(batch, tokenizer, sample)
        assert asked == 'Subtask:' and said.startswith(' ')
        assert ids[-1] == tokenizer.eos
        assert all(answer.strip() and ids[-1] == tokenizer.eos for _, answer, ids in rest)


def test_words_of_no_meaning_are_answered_by_holding_still(sampler, tokenizer, normalizer):
    found = 0
    for number in range(4):
        batch = sampler.batch(number, False)
        for sample in range(48):
            (_, said, _), *_ = segments(batch, tokenizer, sample)
            if 'do not understand' in said:
                found += 1
                assert batch.goal[sample].isnan().all()
                steps = batch.actions[sample].diff(dim=0).abs()
                span = torch.from_numpy(
                    np.subtract(*(normalizer.action_scale.statistics[q] for q in ('q99', 'q01')))
                )
                moved = normalizer.actions(batch.actions[sample].numpy(), np.zeros(7, np.float32))
                assert np.abs(moved[:, :6]).max() < 1e-4, (steps, span)
    assert found > 0


def test_actions_are_normalised_deltas_and_an_absolute_gripper(sampler, normalizer):
    actions = sampler.batch(0, False).actions
    assert actions.shape == (48, TABLETOP.chunk_size, 7)
    assert actions.abs().median() < 1 < actions.abs().max() < 8
    assert actions[..., 6].abs().max() <= 1 + 1e-3
    assert normalizer.relative.tolist() == [True] * 6 + [False]


def test_given_actions_are_what_the_arm_is_going_to_do(frames, tokenizer, normalizer):
    """The expert continues from them, without a jump where the arm's own plan ends."""
    sampler = Sampler(frames, TABLETOP, tokenizer, normalizer, batch=96, seed=1, rtc=9)
    batch = sampler.batch(0, False)
    at = sampler.draw(np.random.default_rng((1, 0)))
    delay = batch.delay.numpy()
    assert set(delay) > {0, 1, 2, 3} and delay.max() <= 9
    targets = normalizer.targets(frames.leftover[at], frames.state[at])
    actions = normalizer.actions(batch.actions.numpy(), frames.state[at])
    leftover = normalizer.actions(targets, frames.state[at])
    off = [np.abs(a[:d] - b[:d]) for a, b, d in zip(actions, leftover, delay, strict=True) if d]
    exact = np.mean([np.allclose(each, 0, atol=1e-5) for each in off])
    assert 0.4 < exact < 0.8  # the others deviate slightly, or have reversed fingers
    assert max(each[:, :6].max() for each in off) < 0.2
    steps = np.abs(np.diff(actions[..., :6], axis=1)).max(-1)
    late = np.arange(9) >= delay[:, None] - 1
    assert steps[late].max() <= 0.2 + 1e-4  # rad, the expert's maximum in a period


def test_nothing_is_given_unless_it_is_asked_for(sampler):
    assert not sampler.batch(0, False).delay.any()


@pytest.mark.parametrize('rtc', [-1, 10])
def test_a_chunk_that_is_given_whole_is_refused(frames, tokenizer, normalizer, rtc):
    with pytest.raises(ValueError, match=f'rtc {rtc} is not in 0..9'):
        Sampler(frames, TABLETOP, tokenizer, normalizer, batch=4, seed=1, rtc=rtc)


def test_grounding_asks_where_every_thing_is(sampler, tokenizer):
    batch = sampler.batch(0, True)
    there = batch.colour >= 0
    assert torch.equal(batch.where_at >= 0, there)
    assert batch.where[there].isfinite().all(-1).float().mean() > 0.95
    slot = int(batch.where_at[0, 0])
    assert tokenizer.decode(batch.packed[0][slot - 1 : slot + 1].tolist()).count(' ') == 2


def test_a_thing_that_a_sentence_names_is_asked_for_where_it_is(sampler, tokenizer):
    batch = sampler.batch(1, False)
    asked = 0
    for sample, thing in (batch.where_at >= 0).nonzero().tolist():
        slot = int(batch.where_at[sample, thing])
        name = tokenizer.decode(batch.packed[sample][slot - 1 : slot + 1].tolist())
        colour, shape = int(batch.colour[sample, thing]), int(batch.shape[sample, thing])
        assert name == f' {COLOUR_NAMES[colour]} {SHAPE_NAMES[shape]}'
        asked += 1
    assert asked > 48


def test_what_fell_off_the_table_is_nowhere():
    points = np.array([[0.4, 0.0, 0.02], [0.4, 0.0, -40.0], [0.4, 0.7, 0.02]], np.float32)
    assert np.isnan(on_the_table(points)).all(1).tolist() == [False, True, True]


def test_gibberish_is_no_word_of_ours():
    rng = np.random.default_rng(0)
    assert all(1 <= len(gibberish(rng).split()) <= 3 for _ in range(50))


def test_every_word_and_number_is_one_token(tokenizer):
    for word in (' cube', ' cylinder', ' left', ' 0', ' 255', ' gripper'):
        assert len(tokenizer.encode(word)) == 1
    text = 'something else entirely: äß'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match='300 tokens do not hold the words'):
        train_tokenizer(300)
