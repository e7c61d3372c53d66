"""Benchmark horizon pairs episodes and compares thresholds with a line between static horizons."""

import json

import numpy as np
import pytest
import torch

from benchmarks import horizon
from embodied_kv.config import TINY
from embodied_kv.control.execution_horizon import parse
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import worlds
from training.evaluate.report import rate


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.4))
    torch.set_num_threads(1)


def test_every_setting_meets_the_same_cases_and_noise(short):
    ended = []
    texts = ['static:1', 'static:3', 'confidence:0:1']
    found = horizon.measure(
        Policy.random(TINY, seed=1), texts, 1, robots=2, on_end=lambda: ended.append(1)
    )
    assert list(found) == texts and len(ended) == 3 * len(FAMILIES)
    for some in found.values():
        assert [outcome.case.family for outcome in some] == list(FAMILIES)
        for one, other in zip(some, found['static:1'], strict=True):
            np.testing.assert_allclose(one.first, other.first, atol=1e-5)
    row = horizon.summary('static:3', found['static:3'])
    assert (row['horizon'], row['rounds'], row['success']['n']) == (3, 2, len(FAMILIES))


def test_the_last_line_is_every_figure(short, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(horizon.evaluation, 'load', lambda _: Policy.random(TINY, seed=1))
    monkeypatch.setattr(horizon.report, 'OUT', tmp_path)
    horizon.main(['--quick'])
    *tables, line = capsys.readouterr().out.splitlines()
    figures = json.loads(line)
    assert [row['setting'] for row in figures['rows']] == list(horizon.QUICK)
    assert {row['success']['n'] for row in figures['rows']} == {2 * len(FAMILIES)}
    assert sum(figures['verdict'].values()) == len(figures['compared']) == 2
    assert tables and (tmp_path / 'horizon.png').exists()


@pytest.mark.parametrize('quick', [True, False])
def test_settings_are_policies_and_the_thresholds_go_down_to_the_shortest(quick):
    texts = horizon.settings(quick)
    assert len(texts) == len(set(texts))
    minima = {policy.minimum for text in texts if hasattr(policy := parse(text), 'minimum')}
    assert minima == {min(horizon.STATIC)}


def row(setting, length, outcomes):
    return dict(
        setting=setting,
        horizon=length,
        outcomes=outcomes,
        success=rate(outcomes.count('s'), len(outcomes)),
    )


STATIC = [row('static:2', 2.0, 's' * 8), row('static:6', 6.0, 'ssss....')]


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(horizon, 'FAMILIES', FAMILIES[:4])


def test_a_threshold_is_compared_with_the_line_between_static_horizons(four):
    (found,) = horizon.compare([*STATIC, row('confidence:0:1', 3.0, 'sssssss.')])
    assert (found['rate'], found['static'], found['difference']) == (0.875, 0.875, 0)
    # paired differences: 0 in scene 0, (1, 1, 1, -3) / 4 in scene 1; the mean of each scene is 0
    assert found['low'] == found['high'] == 0
    assert found['longer'] == 1.5


def test_the_verdict_counts_what_is_beyond_doubt(four):
    compared = horizon.compare(
        [*STATIC, row('confidence:0:1', 6.0, 'ssss.s.s'), row('confidence:1:1', 2.0, '.' * 8)]
    )
    assert [found['longer'] for found in compared] == [3.0, 1 / 3]
    assert compared[0]['difference'] == 0.25 and compared[0]['low'] < 0 < compared[0]['high']
    assert horizon.verdict(compared) == dict(above=0, below=1, level=1)
