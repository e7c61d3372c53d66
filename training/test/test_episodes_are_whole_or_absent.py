"""Datasets are generated once, resumed without loss, and refused when damaged."""

import json

import numpy as np
import pytest

from embodied_kv.demo.sim.tasks import FAMILIES
from training.policy.episodes import episode_path, features, find_episodes, read_episode
from training.policy.generate import make_episode


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    """Return the folder of a dataset with four episodes of twelve frames."""
    root = tmp_path_factory.mktemp('data')
    for index in range(4):
        assert make_episode(index, root, 40, 12) == 12
    return root


def test_an_episode_has_every_feature_for_every_frame(dataset):
    episode = read_episode(episode_path(dataset, 0))
    assert len(episode) == 12
    for name, shape in features(64).items():
        assert episode.frames[name].shape == (12, *shape)
    things = episode.colours >= 0
    assert 2 <= things.sum() <= 6
    assert np.isfinite(episode.frames['truth.things'][:, things]).all()
    assert np.isnan(episode.frames['truth.things'][:, ~things]).all()
    assert {task.family for task in episode.tasks} <= set(FAMILIES)
    assert episode.frames['task_index'].max() == len(episode.tasks) - 1


@pytest.mark.parametrize(('index', 'places'), [(1, 1), (2, 1), (3, 2)])
def test_scenes_take_turns_in_how_many_places_they_have(dataset, index, places):
    assert (read_episode(episode_path(dataset, index)).shapes >= 3).sum() >= places


def test_a_leftover_is_where_the_arm_is_sent(dataset):
    """Action i of a frame is action 0 of the frame i later, unless another plan took over."""
    kept = 0
    for index in range(4):
        leftover = read_episode(episode_path(dataset, index)).frames['truth.leftover']
        assert np.isnan(leftover[0]).all() and np.isfinite(leftover[-1, 0]).all()
        planned = np.isfinite(leftover).all(-1)
        assert (planned[:, :-1] >= planned[:, 1:]).all()  # plans have no gaps
        for now, then in zip(leftover[1:], leftover[2:], strict=False):
            both = np.isfinite(now[1:] + then[:-1]).all(-1)
            kept += both.any() and np.allclose(now[1:][both], then[:-1][both], atol=1e-5)
    assert kept > 4


def test_what_is_there_is_kept_and_what_is_missing_is_made_again(dataset):
    kept, lost = episode_path(dataset, 2), episode_path(dataset, 3)
    before, stamp = read_episode(lost), kept.stat().st_mtime_ns
    lost.unlink()
    for index in (2, 3):
        make_episode(index, dataset, 40, 12)
    assert kept.stat().st_mtime_ns == stamp
    for name, values in read_episode(lost).frames.items():
        np.testing.assert_array_equal(values, before.frames[name])


def test_a_truncated_episode_is_refused_by_name(dataset, tmp_path):
    path = tmp_path / 'episode_000000.npz'
    path.write_bytes(episode_path(dataset, 0).read_bytes()[:5000])
    with pytest.raises(
        ValueError, match=r'episode_000000.npz is not an episode.*generate it again'
    ):
        read_episode(path)


def test_an_empty_folder_says_what_to_run(tmp_path):
    with pytest.raises(ValueError, match=r'training\.policy\.generate'):
        find_episodes(tmp_path)


def test_the_command_writes_the_dataset_and_its_meta(generate, tmp_path):
    run = generate(tmp_path, '--episodes', '2', '--length', '3')
    assert run.returncode == 0, run.stderr
    assert '2 episodes, 6 frames' in run.stdout
    info = json.loads((tmp_path / 'meta' / 'info.json').read_text())
    assert (info['total_frames'], info['fps']) == (6, 10.0)
    lines = (tmp_path / 'meta' / 'episodes.jsonl').read_text().splitlines()
    assert [json.loads(line)['length'] for line in lines] == [3, 3]


def test_seeds_of_the_evaluation_are_refused(generate, tmp_path):
    run = generate(tmp_path, '--seed', '1000000')
    assert run.returncode == 2 and 'kept for evaluation' in run.stderr
