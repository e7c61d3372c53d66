"""`benchmarks.fleet.charged`: equal actions for each horizon, and success by executed share."""

import json

import numpy as np
import pytest

from benchmarks.common import report
from benchmarks.fleet import charged
from benchmarks.fleet.success import Curve
from benchmarks.fleet.workload import Job


def job(*horizons):
    return Job(horizons, period=0.1, observation_bytes=1, chunk_bytes=1)


@pytest.fixture
def curve():
    return Curve(np.array([0.2, 1.0]), np.array([0.9, 0.5]), episodes=100)


def test_a_constant_share_has_its_measured_rate(curve):
    whole, least, between = curve.of([job(10, 10), job(2, 2, 2), job(6, 6)], chunk=10)
    assert (whole, least) == (pytest.approx(0.5), pytest.approx(0.9))
    assert between == pytest.approx(0.7)


def test_rounds_are_charged_by_their_actions(curve):
    (mixed,) = curve.of([job(10, 2, 2, 2, 2, 2)], chunk=10)
    assert mixed == pytest.approx((0.5 * 0.9) ** 0.5)


def test_a_share_below_the_measured_ones_has_the_nearest_rate(curve):
    assert curve.of([job(1, 1)], chunk=10) == pytest.approx(0.9)


def test_drawn_curves_scatter_as_their_episodes(curve):
    random = np.random.default_rng(0)
    rates = np.array([curve.drawn(random).rates for _ in range(500)])
    np.testing.assert_allclose(rates.mean(0), [0.9, 0.5], atol=0.01)
    np.testing.assert_allclose(rates.std(0), [0.03, 0.05], rtol=0.2)


def test_the_measured_curve_is_read():
    found = Curve.read()
    assert found.shares[-1] == 1 and (found.rates > 0.9).all() and found.episodes == 240


def test_each_horizon_executes_the_same_actions():
    cut = charged.cut([job(4, 4, 4, 4, 4, 4)], [job(4, 10, 10)], chunk=10)
    assert [cut[name][0].horizons for name in charged.HORIZONS] == [
        (4, 4, 4, 4, 4, 4), (4, 10, 10), (8, 8, 8), (10, 10, 4),
    ]  # fmt: skip


def test_the_command_reports_time_and_success_of_each_pair(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(charged, 'CURVES', 50)
    charged.main(['--quick'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(found['total']) == len(charged.SHARES) * 4 * 3
    rows = {(r['share'], r['horizon'], r['scheduler']): r for r in found['rows']}
    for share in charged.SHARES:
        reference = rows[(share, *charged.REFERENCE)]
        assert reference['gain'] == reference['saved'] == 0
        assert reference['break_even'] == pytest.approx(reference['success'])
        for horizon in charged.HORIZONS:
            row = rows[share, horizon, 'kairos']
            assert row['success_low'] < row['success'] < row['success_high']
            assert row['success'] == rows[share, horizon, 'fifo']['success']
            assert (row['gain_paper'] is None) == (horizon != 'dynamic')
