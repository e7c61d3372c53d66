"""The command of `benchmarks.latency` prints tables and every figure and refuses bad arguments."""

import json

import pytest
from latency_bench_cases import FOUR, at, episodes

from benchmarks.latency import __main__ as latency
from benchmarks.latency.plot import plot
from benchmarks.latency.ways import WAYS
from embodied_kv.config import TINY
from embodied_kv.model.policy import Policy
from training.evaluate import worlds


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Return a function that runs it on short episodes of a tiny policy.

    It returns the figures and the tables.
    """
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(worlds.SECONDS, 0.5))
    monkeypatch.setattr(latency.evaluation, 'load', lambda _: Policy.random(TINY, seed=1))
    monkeypatch.setattr(latency.report, 'OUT', tmp_path)

    def run(*words):
        latency.main(['--quick', *words])
        *tables, line = capsys.readouterr().out.splitlines()
        return json.loads(line), '\n'.join(tables)

    return run


def test_every_way_at_every_latency(command, tmp_path):
    found, tables = command('--episodes', '1')
    named = [(row['way'], row['latency']) for row in found['rows']]
    assert named == [(way, ms) for ms in ('0', '300') for way in WAYS]
    assert {row['success']['n'] for row in found['rows']} == {4}
    assert [row['way'] for row in found['costs']] == list(WAYS)
    assert len(found['against_off']) == 2 * (len(WAYS) - 1)
    assert {row['verdict'] for row in found['verdict']} <= {'reached', 'missed'}
    assert found['conditions']['families'] == list(FOUR) and found['euler_steps'] == [4]
    guidance = dict(schedule='exponential', horizon=10, most=5.0)
    assert found['conditions']['guidance'] == guidance
    for title in ('success and smoothness', 'from its own 0 ms', 'beside off', 'verdict'):
        assert title in tables
    assert (tmp_path / 'latency.png').exists()
    assert json.loads((tmp_path / 'latency.json').read_text()) == found
    assert len(list((tmp_path / 'latency').glob('*.json'))) == len(named)


@pytest.mark.parametrize('outcomes', ['s' * 8, '.' * 8])
def test_a_picture_shows_what_always_and_what_never_succeeds(outcomes, monkeypatch, tmp_path):
    monkeypatch.setattr(latency.report, 'OUT', tmp_path)
    some = episodes(outcomes)
    plot({at('off', ms, spread=spread): some for ms in (0, 200) for spread in (0.0, 0.5)})
    assert (tmp_path / 'latency.png').exists()


def test_a_second_run_measures_nothing(command, monkeypatch, tmp_path):
    words = '--ways', 'off', '--episodes', '1', '--families', 'reach', '--out', f'{tmp_path}/kept'
    first, _ = command(*words)
    monkeypatch.setattr(latency, 'measure', None)
    again, _ = command(*words)
    del first['machine'], again['machine']
    assert first == again


def test_steps_are_compared_at_two_latencies(command):
    words = '--steps 1 3 10 --episodes 1 --families reach push --crowded'.split()
    found, tables = command(*words, '--latencies', '0', '200')
    named = [(row['way'], row['latency'], row['euler_steps']) for row in found['rows']]
    every = [(way, ms, n) for ms in ('0', '200') for n in (1, 3, 10) for way in ('off', 'trained')]
    assert named == every and found['conditions']['crowded']
    assert len(found['by_steps']) == 8 and 'fewer Euler steps' in tables
    assert {row['euler_steps'] for row in found['verdict']} == {3}


@pytest.mark.parametrize(
    'words, points',
    [('', 5 * 7), ('--steps 1 2 3 4 10', 2 * 2 * 5), ('--varying --ways off guided', 2 * 6)],
)
def test_the_whole_is_planned(words, points):
    made = latency.argparse.ArgumentParser()
    latency.add_arguments(made)
    args = made.parse_args(words.split())
    assert len(latency.plan(args)) == points
    assert len(latency.conditions(args).cases) == 400


@pytest.mark.parametrize(
    'words, said',
    [
        ('--latencies 1000', 'a latency is 0 to 900 ms'),
        ('--varying -1', 'a latency is 0 to 900 ms'),
        ('--spread 1', '--spread is between 0 and 1'),
        ('--steps 0', '--steps are from 1 to 50'),
        ('--horizon 11', '--horizon is 0 to 10'),
        ('--episodes 0', '--episodes is at least 1'),
    ],
)
def test_nonsense_is_refused(command, capsys, words, said):
    with pytest.raises(SystemExit) as caught:
        command(*words.split())
    assert caught.value.code == 2 and said in capsys.readouterr().err
