"""Frames of episodes get tasks that the earlier frames of a memory determine."""

import numpy as np
import pytest

from embodied_kv.demo.sim.tasks import AWAY, MEMORY_FAMILIES, RETURNED, distances
from training.policy.dataset import Frames
from training.policy.episodes import COLOUR_NAMES, SHAPE_NAMES, episode_path, read_episode
from training.policy.generate import make_episode
from training.policy.memory import EpisodeMemory, KeepRule

LENGTH = 90  # frames
COVERED = 4  # index of the episode with covers


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """Return the folder of five episodes; the last one has covers."""
    root = tmp_path_factory.mktemp('data')
    for index in range(5):
        make_episode(index, root, 60, LENGTH, covered=5)
    return root


@pytest.fixture(scope='module')
def episodes(root):
    return [read_episode(episode_path(root, index)) for index in range(5)]


@pytest.fixture(scope='module')
def found(episodes):
    """Return the tasks of every frame of every episode: (episode, memory, frame, task)."""
    memories = [(episode, EpisodeMemory(episode)) for episode in episodes]
    return [
        (episode, memory, frame, task)
        for episode, memory in memories
        for frame in range(len(episode))
        for task in memory.tasks(frame)
    ]


def kept(*frames):
    rule = KeepRule()
    return [i for i, frame in enumerate(frames) if rule.keeps(*frame)]


def test_a_memory_keeps_the_first_frame_and_the_last_one_of_an_instruction():
    assert kept(*((0.1 * i, i in (4, 5)) for i in range(9))) == [0, 4, 5]


def test_a_memory_keeps_a_frame_every_two_seconds():
    assert kept(*((0.1 * i, False) for i in range(50))) == [0, 20, 40]
    assert kept(*((0.1 * i, i == 7) for i in range(50))) == [0, 7, 27, 47]


def test_a_memory_has_the_last_frame_before_the_present_instruction(episodes):
    episode, memory = episodes[0], EpisodeMemory(episodes[0])
    assert list(memory.before(0)) == []
    assert list(memory.before(1)) == [0]
    frame = len(episode) - 1
    changes = np.flatnonzero(np.diff(episode.frames['task_index'][: frame - 10]))
    for since in (frame, frame - 10, frame - 30):
        before = memory.before(since)
        assert since - 1 in before and {*changes[changes < since]} <= {*before}
        assert before.max() < since and np.diff([*before, since]).max() <= 20


def test_every_family_occurs(found):
    assert {task.family for *_, task in found} == {*MEMORY_FAMILIES}


def test_a_memory_has_earlier_frames_only(found):
    for _, memory, frame, _ in found:
        before = memory.before(frame)
        assert len(before) and before.max() < frame


def pose(episode, frame, task):
    """Return the pose of the target of a task in a frame."""
    colour, shape = task.target.split()
    kinds = (episode.colours == COLOUR_NAMES.index(colour)) & (
        episode.shapes == SHAPE_NAMES.index(shape)
    )
    return episode.frames['truth.things'][frame, np.flatnonzero(kinds)[0]]


def is_held(episode, frame, task):
    colours, shapes, held = episode.colours, episode.shapes, episode.frames['truth.held'][frame]
    names = [f'{COLOUR_NAMES[c]} {SHAPE_NAMES[s]}' for c, s in zip(colours, shapes, strict=True)]
    return held >= 0 and names[held] == task.target


def test_a_thing_to_be_returned_was_there_in_a_kept_frame_and_is_away_or_held(found):
    returns = [each for each in found if each[-1].family == 'return']
    for episode, memory, frame, task in returns:
        away = distances(pose(episode, frame, task), task.spot)
        assert away >= AWAY or is_held(episode, frame, task)
        then = [distances(pose(episode, t, task), task.spot) for t in memory.before(frame)]
        assert min(then) < 1e-3 < RETURNED


def test_a_thing_that_was_put_down_at_a_wrong_place_is_returned_to_where_it_was_before(found):
    """The place where the task began is not the wanted one, wherever the thing is now."""
    misplaced = 0
    for episode, memory, frame, _ in found:
        for since in range(max(1, frame - 30), frame):
            for task in memory.tasks(frame, since=since):
                if task.family == 'return' and not is_held(episode, since, task):
                    begun = pose(episode, since, task)
                    assert distances(begun, task.spot) >= AWAY
                    moved = distances(pose(episode, frame, task), begun[:2]) >= AWAY
                    misplaced += moved and not is_held(episode, frame, task)
    assert misplaced


def test_the_thing_of_a_sequence_is_the_only_one_that_was_reached(found):
    sequences = [each for each in found if each[-1].family == 'sequence']
    for episode, memory, frame, task in sequences:
        numbers = episode.frames['task_index']
        earlier = {numbers[t] for t in memory.before(frame) if numbers[t] < numbers[frame]}
        assert ('reach', task.target) in {
            (episode.tasks[number].family, episode.tasks[number].target) for number in earlier
        }


def test_a_hidden_thing_was_visible_before_it_was_covered(found):
    hidden = [each for each in found if each[-1].family == 'hidden']
    for episode, memory, frame, task in hidden:
        assert len(episode.covers_at(frame)) in (2, 3)
        assert distances(pose(episode, frame, task), task.spot) < 0.005
        assert any(len(episode.covers_at(t)) == 0 for t in memory.before(frame))


def test_tasks_with_covers_are_read_as_they_were_written(episodes):
    tasks = [task for task in episodes[COVERED].tasks if task.family == 'hidden']
    assert tasks and all(isinstance(task.spot, tuple) for task in tasks)
    assert all(episode.covers is None for episode in episodes[:COVERED])


def test_other_episodes_are_as_without_the_option_until_a_thing_is_moved_by_hand(
    episodes, tmp_path
):
    for index in range(COVERED):
        make_episode(index, tmp_path, 60, LENGTH)
        plain = read_episode(episode_path(tmp_path, index))
        assert plain.tasks[0] == episodes[index].tasks[0]
        for name, values in plain.frames.items():
            np.testing.assert_array_equal(values[:8], episodes[index].frames[name][:8])


def recorded_returns(episodes):
    """Yield frames of recorded tasks that return a thing: (episode, frame, first frame, task)."""
    for episode in episodes:
        numbers = episode.frames['task_index']
        for frame, number in enumerate(numbers):
            if (task := episode.tasks[number]).family == 'return':
                yield episode, frame, int(np.flatnonzero(numbers == number)[0]), task


def test_a_recorded_return_ends_on_the_table(tmp_path):
    make_episode(1, tmp_path, 1000, LENGTH, covered=6)
    heights, put_down = [], 0
    for episode, frame, _, task in recorded_returns([read_episode(episode_path(tmp_path, 1))]):
        at = pose(episode, frame, task)
        if distances(at, task.spot) < RETURNED:
            held = is_held(episode, frame, task)
            heights += [at[2]] if held else []
            put_down += not held
    assert max(heights) > 0.1 > min(heights) and put_down


def test_the_memory_of_a_recorded_return_determines_where_the_thing_was(episodes):
    memories = {id(episode): EpisodeMemory(episode) for episode in episodes}
    found = []
    for episode, frame, since, task in recorded_returns(episodes):
        memory = memories[id(episode)]
        found.append(memory.determines(task, frame, memory.before(since, 4)))
        assert not memory.determines(task, frame, np.zeros(0, np.int64))
    assert np.mean(found) > 0.9 and len(found) > 50


def test_a_policy_without_a_memory_refuses_covers(root):
    with pytest.raises(ValueError, match=r'episode_000004.npz has covers.*without --memory'):
        Frames.read([episode_path(root, 3), episode_path(root, COVERED)])
