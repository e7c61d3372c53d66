"""Benchmark fleet.speech compares a fleet with and without text, on engines at a given load."""

from dataclasses import replace

import pytest

from benchmarks.fleet.serving import measure as serving
from benchmarks.fleet.speech import figures, measure
from embodied_kv.fleet.profile import Profile

FOUND = Profile('e', (1, 2, 4), (0.05, 0.06, 0.1), 9)  # at most 40 chunks/s
WORDS = {'begin': {8: 0.01}, 'decode': {1: 0.004, 16: 0.008}}


def test_an_engine_is_so_fast_that_the_fleet_loads_it_as_said():
    times = measure.speed(FOUND, 16, 0.7, 0.1)
    faster = serving.physics(FOUND.faster(times, 'e'), [16], 6.0, 0.1)
    assert faster['asked'][16] / faster['capacity'] == pytest.approx(0.7)
    assert measure.faster(WORDS, 2.0)['decode'] == {1: 0.002, 16: 0.004}


def test_the_mute_and_the_speaking_fleet_differ_in_words_alone():
    tasks = [[0, 2], [1, 3]]
    mute, speaking = (measure.order(tasks, FOUND, words, 0.05) for words in (None, WORDS))
    assert mute.tasks == tasks and mute.max_queue_delay == 0.05
    assert not mute.habits.prompts and len(speaking.habits.prompts) == measure.STREAMS
    assert replace(speaking, speech={}, habits=mute.habits) == mute
    assert speaking.speech == WORDS
    assert replace(speaking.habits, prompts=()) == mute.habits


@pytest.mark.parametrize('robots', [1, 16, 64])
def test_rows_are_enough_for_the_streams_of_all(robots):
    config = measure.engine_config(robots)
    newest, streams = robots, measure.STREAMS * robots
    assert config.rows >= config.max_batch_robots + newest + streams
    assert config.rows - config.reserved_rows >= streams == config.streams


def test_costs_of_words_are_read_as_written(tmp_path):
    path = tmp_path / 'words.yaml'
    measure.write_words(WORDS, path)
    assert measure.read_words(path) == WORDS
    for text in ('', 'begin: {8: a}\ndecode: {}', '[1]', 'begin: {8: 1.0}'):
        path.write_text(text)
        with pytest.raises(ValueError, match='no costs of words'):
            measure.read_words(path)


def run(way, latencies, said, span=10.0, delay=0.0):
    return dict(
        robots=4, load=0.5, way=way, speed=2.0, latencies=latencies, said=said, span=span,
        spoken=1.0, charged=5.0, delay=delay,
    )  # fmt: skip


def test_words_are_those_of_all_robots():
    runs = [
        run('mute', [0.1] * 100, []),
        run('speaking', [0.1] * 90 + [0.12] * 10, ['the red cube', 'reach', '']),
        run('alone', [0.4], ['one word'], span=40.0),
        run('alone', [0.8], [], span=40.0),
    ]
    (row,) = figures.rows(runs)
    assert row['p95_ratio'] == pytest.approx(1.2)
    assert row['average_ratio'] == pytest.approx(1.02)
    assert row['words'] == pytest.approx(0.4)
    assert row['words_alone'] == pytest.approx(4 * 0.025)  # two of the four robots were run
    assert row['words_ratio'] == pytest.approx(4.0)
    assert row['share_words'] == 0.1 and row['rounds'] == 100


def test_a_fleet_that_holds_requests_is_compared_with_a_mute_one_that_does_so_too():
    alone = run('alone', [0.4], ['one word'])
    at_once = [run('mute', [0.1], []), run('speaking', [0.1], ['word'])]
    held = [run('mute', [0.2], [], delay=0.05), run('speaking', [0.3], ['a word'], delay=0.05)]
    first, second = figures.rows([*at_once, *held, alone])
    assert (first['delay_ms'], second['delay_ms']) == (0, 50)
    assert first['p95_ratio'] == pytest.approx(1.0) and second['p95_ratio'] == pytest.approx(1.5)
    assert second['words_ratio'] == pytest.approx(2 * first['words_ratio'])
