"""All images of a dataset have the requested size; other sizes raise a clear error."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TABLETOP, preset
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.tokenizer import Tokenizer
from training.policy.dataset import Frames, Sampler
from training.policy.episodes import (
    IMAGES,
    count_frames,
    episode_path,
    find_episodes,
    read_episode,
    write_episode,
)
from training.policy.generate import make_episode


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp('small')
    for index in range(2):
        make_episode(index, root, 30, 4)
    return root


@pytest.fixture(scope='module')
def large(tmp_path_factory):
    root = tmp_path_factory.mktemp('large')
    for index in range(2):
        make_episode(index, root, 30, 4 + index, size=128)
    return root


def test_a_larger_image_is_of_the_same_moment(small, large):
    a, b = (read_episode(episode_path(root, 0)) for root in (small, large))
    assert (a.size, b.size) == (64, 128)
    np.testing.assert_array_equal(a.frames['observation.state'], b.frames['observation.state'])
    # Pixel centres are integers: at twice the size, pixel x lies at 2 x + 0.5.
    there = np.isfinite(a.frames['truth.pixels'])
    twice = 2 * a.frames['truth.pixels'] + 0.5
    np.testing.assert_allclose(b.frames['truth.pixels'][there], twice[there], atol=1e-3)
    for name in IMAGES:
        halves = b.frames[name].reshape(4, 64, 2, 64, 2, 3).mean((2, 4))
        assert np.abs(halves - a.frames[name]).mean() < 4


def test_frames_are_those_of_the_episodes_in_order(large):
    paths = find_episodes(large)
    assert [count_frames(path) for path in paths] == [4, 5]
    frames = Frames.read(paths)
    assert frames.size == 128
    assert frames.images.shape == (9, 2, 128, 128, 3) and frames.images.dtype == np.uint8
    assert frames.episode.tolist() == [0] * 4 + [1] * 5
    for view, name in enumerate(IMAGES):
        expected = np.concatenate([read_episode(path).frames[name] for path in paths])
        np.testing.assert_array_equal(frames.images[:, view], expected)


def test_two_sizes_in_one_dataset_are_refused(small, large):
    paths = [episode_path(small, 0), episode_path(large, 1)]
    with pytest.raises(ValueError, match=r'episode_000001.npz has images of 128 x 128.*one size'):
        Frames.read(paths)


def test_images_that_are_not_square_are_refused(small, tmp_path):
    episode = read_episode(episode_path(small, 0))
    frames = {**episode.frames, IMAGES[1]: episode.frames[IMAGES[1]][:, :32]}
    write_episode(tmp_path, 0, replace(episode, frames=frames))
    with pytest.raises(ValueError, match=r'images.wrist is \(4, 32, 64, 3\)'):
        read_episode(episode_path(tmp_path, 0))


def test_images_that_are_not_the_models_are_refused(small):
    frames = Frames.read(find_episodes(small))
    parts = Tokenizer.bytes(), Normalizer.identity(TABLETOP)
    Sampler(frames, TABLETOP, *parts, batch=1, seed=0)
    with pytest.raises(
        ValueError, match='images of 64 x 64 pixels, tabletop_long sees 128 x 128.*--size 128'
    ):
        Sampler(frames, preset('tabletop_long'), *parts, batch=1, seed=0)


def test_a_folder_of_another_size_is_not_continued(generate, small):
    run = generate(small, '--episodes', '2', '--size', '96')
    assert run.returncode == 2
    assert '64 x 64 pixels, asked are 96 x 96: give another --out' in run.stderr
