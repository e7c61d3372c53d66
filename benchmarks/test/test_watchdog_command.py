"""Benchmark watchdog computes its figures from given runs, and the run-on of a controller."""

import json
from contextlib import nullcontext

import pytest

from benchmarks.common import report
from benchmarks.watchdog import __main__ as watchdog
from benchmarks.watchdog.stand_ins import DIRECT, WATCHED, KeepingController


def test_every_case_is_measured_and_compared_with_no_watchdog(monkeypatch, tmp_path, capsys):
    ways = []

    def given(who, how, speed, rate, way):
        ways.append(way)
        seconds = 2.0 if way == DIRECT else 0.1 if who == watchdog.ACTION else 0.3
        return dict(run_on_s=seconds, run_on_rad=speed * seconds)

    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(watchdog, 'kill', given)
    monkeypatch.setattr(watchdog, 'isolated', nullcontext)
    watchdog.main(['--kills', '8'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ways == [WATCHED] * 8 + [DIRECT]
    assert [row['kills'] for row in found['rows']] == [2, 2, 2, 2, 1]
    assert found['worst_run_on_s'] == 0.3
    assert found['rows'][-1]['run_on_rad_max'] == pytest.approx(3.0)


def test_the_run_on_is_the_time_and_the_way_until_zero_was_received():
    controller = object.__new__(KeepingController)
    controller.log = [(1.0, (1.5, 0.0)), (2.0, (1.0, 0.0)), (2.1, (0.0, 0.0)), (2.2, (0.0, 0.0))]
    seconds, way = controller.run_on(1.5, 4.0)
    assert seconds == pytest.approx(0.6) and way == pytest.approx(0.5 * 1.5 + 0.1)
    assert controller.run_on(2.15, 4.0) == (0.0, 0.0)
    assert controller.run_on(0.5, 1.5) == (pytest.approx(1.0), pytest.approx(0.75))
