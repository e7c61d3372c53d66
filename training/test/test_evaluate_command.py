"""The evaluation command refuses bad arguments in one line, and its figures are reproducible."""

import json
from dataclasses import replace

import pytest

from embodied_kv.config import TABLETOP, TINY
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.checkpoints.own import save
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation, worlds
from training.evaluate.__main__ import main

SHORT = '--episodes 1 --seeds 2 --families reach pick --robots 2 --max-tokens 4'.split()


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    return caught.value.code, line


def test_a_checkpoint_that_is_not_there_is_named(capsys, tmp_path):
    code, line = refusal(capsys, '--checkpoint', str(tmp_path / 'nothing'))
    assert code == 2
    assert line.startswith('evaluate: ') and str(tmp_path / 'nothing') in line


def test_without_a_bundled_checkpoint_one_is_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr('embodied_kv.model.checkpoints.own.ASSETS', tmp_path)
    code, line = refusal(capsys)
    assert code == 2 and "preset 'tabletop' has no bundled checkpoint" in line


def test_another_robots_policy_is_refused(tmp_path):
    config = replace(TINY, action_dim=6, state_dim=6)
    policy = Policy.random(config)
    save(
        tmp_path / 'p',
        policy.model.state_dict(),
        config,
        policy.processing.normalizer,
        policy.tokenizer,
    )
    with pytest.raises(ValueError, match='moves 6 joints, here are front, wrist and 7'):
        evaluation.load(str(tmp_path / 'p'))


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--episodes', '0'], '--episodes is at least 1'),
        (['--steps-per-frame', '0'], '--steps-per-frame is at least 1'),
        (['--episodes', '10001'], '--episodes is at most 10000'),
        (['--latency-ms', '901'], '--latency-ms is 0 to 900: a chunk would be over when it comes'),
        (['--latency-spread', '1'], '--latency-spread is from 0 to 1'),
        (['--rtc-horizon', '11'], '--rtc-horizon is 0 to 10, the chunk size'),
        (['--euler-steps', '0'], '--euler-steps is at least 1'),
    ],
)
def test_numbers_out_of_range_are_refused(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(evaluation, 'load', lambda _: Policy.random(TINY))
    assert refusal(capsys, *arguments) == (2, f'evaluate: {message}')


@pytest.fixture
def figures(monkeypatch, capsys):
    """Return a function that runs the command on short episodes and returns its JSON line."""
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.5))
    monkeypatch.setattr(evaluation, 'load', lambda _: Policy.random(TINY))

    def run(*arguments):
        main([*SHORT, '--json', *arguments])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_the_same_command_gives_the_same_figures(figures):
    one, other = (figures('--latency-ms', '30', '--mode', 'all', '--expert') for _ in range(2))
    assert one.pop('timings') != other.pop('timings')
    assert one == other
    assert [pair['first_chunks'] for pair in one['pairs']] == [0.0] * 3
    assert one['expert'][0]['success']['n'] == 2
    assert one['evaluate']['latency_ms'] == 30 and one['evaluate']['first_scene'] == 2_000_000


def test_a_measured_latency_is_rounded_up_to_a_set_point(figures):
    line = figures('--mode', 'silent')
    measured, injected = line['timings']['latency_ms'], line['evaluate']['latency_ms']
    assert injected % 10 == 0
    assert min(measured, 100) <= injected < measured + 10
    assert line['modes']['silent']['text'] == []


def test_the_random_policy_is_the_tabletops():
    assert evaluation.load('random').config == TABLETOP
