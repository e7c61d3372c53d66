"""`benchmarks.deadline` takes snapshots during control and reports their count and duration."""

import argparse
import math

import pytest

from benchmarks.deadline import serve


@pytest.fixture(scope='module')
def measured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, 'SNAPSHOT_EVERY', 0.3)
        run = dict(deadlines=40, period=0.1, threads=1, device='cpu', compile='off')
        args = argparse.Namespace(preset='tiny', views=None, **run)
        return serve.serve(args, time_budget=True, freeze=True)


def test_the_session_is_frozen_more_than_once(measured):
    snapshots = measured['snapshots']
    assert snapshots['count'] > 2
    assert 0 < snapshots['p50_ms'] <= snapshots['max_ms']


def test_capsules_have_the_rows_of_live_streams(measured):
    assert measured['snapshots']['mb'] * 1e6 > 10_000


def test_chunks_go_on_coming(measured):
    assert len(measured['late']) > 3
    assert measured['tokens_s'] > 0


def test_a_chunk_that_is_late_or_absent_is_a_miss():
    args = argparse.Namespace(deadlines=4, period=0.1)
    row = serve.figures('a run', args, [0.02, 0.05, 0.3], load=0.5)
    assert (row['misses'], row['absent'], row['miss_pct']) == (2, 1, 50)
    assert row['max_ms'] == pytest.approx(300)
    assert row['load'] == 0.5


def test_where_no_chunk_came_all_are_misses_and_no_time_is_known():
    row = serve.figures('a run', argparse.Namespace(deadlines=4, period=0.1), [], load=0.5)
    assert (row['misses'], row['absent'], row['miss_pct']) == (4, 4, 100)
    assert math.isnan(row['p99_ms']) and math.isnan(row['max_ms'])
