"""The benchmark's own arithmetic, and one tiny run of every experiment."""

import pytest

from embodied_kv.bench.fleet import measure
from embodied_kv.bench.fleet.__main__ import show
from embodied_kv.bench.fleet.paper import SYSTEMS, TABLE
from embodied_kv.bench.fleet.runs import Bench, Plan, Subject, saved, table, worse
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.trace import Recorder, Round
from embodied_kv.fleet.workload import read

COMMON, WORKLOADS = read()
PLAN = Plan(
    tasks=30, seeds=(1, 2), shares=(0.5, 1.0), robots=(5, 20), halvings=5, overload=(1.5,),
    micro=('LIBERO/Pi0.5',), buckets=(2, 10), aging=(5,), latencies=(0.1,), bandwidths=(1e8,),
)  # fmt: skip
SUBJECT = Subject.of(WORKLOADS[7], COMMON)


def test_every_experiment_runs_and_every_simulation_is_counted():
    found = measure.measure([SUBJECT], PLAN, quiet=True)
    assert {row['workload'] for key in ('online', 'fleets', 'places') for row in found[key]} == {
        SUBJECT.name
    }
    show(found | dict(settings=found['online'], networks=found['online']))


def test_the_peak_is_where_fifo_takes_three_times_as_long():
    bench = Bench(PLAN, lambda: None)
    found = bench.peak(SUBJECT)
    assert found['reached']
    rows = {
        (r['horizon'], r['scheduler'], r['share']): r for r in bench.online(SUBJECT, found['peak'])
    }
    at_peak = rows['static', 'fifo', 1.0]['average']
    assert at_peak == pytest.approx(3 * found['unloaded'], rel=0.25)
    assert rows['static', 'fifo', 0.5]['average'] < at_peak


def test_the_count_of_simulations_is_right():
    ticks = []
    bench = Bench(PLAN, lambda: ticks.append(1))
    peak = bench.peak(SUBJECT)['peak']
    bench.online(SUBJECT, peak)
    bench.fleets(SUBJECT)
    bench.places(SUBJECT, peak)
    assert len(ticks) == measure._simulations([SUBJECT], PLAN)


def test_saved_is_in_percent_of_the_other():
    ours, theirs = dict(p25=1.0, average=5.0, p95=8.0), dict(p25=4.0, average=5.0, p95=4.0)
    assert saved(ours, theirs) == dict(p25=75.0, average=0.0, p95=-100.0)


def row(scheduler, horizon, average, workload='LIBERO/Pi0.5'):
    figures = dict(p25=average / 2, average=average, p95=2 * average)
    return dict(workload=workload, share=1.0, horizon=horizon, scheduler=scheduler) | figures


ONLINE = [
    row('fifo', 'static', 10.0), row('autellix', 'static', 8.0), row('kairos', 'static', 9.0),
    row('fifo', 'dynamic', 5.0), row('autellix', 'dynamic', 6.0), row('kairos', 'dynamic', 4.0),
]  # fmt: skip


def test_the_table_sets_ours_beside_the_papers():
    against = {line['against']: line for line in table(ONLINE)}
    assert [against['fifo'][s]['average'] for s in SYSTEMS] == pytest.approx([60, 10, 50])
    assert [against['autellix'][s]['average'] for s in SYSTEMS] == pytest.approx([50, -12.5, 25])
    assert against['fifo']['kairos, paper'] == dict(p25=76.4, average=65.6, p95=51.9)


def test_where_kairos_is_worse_is_told():
    (only,) = worse(ONLINE)
    assert (only['horizon'], only['than'], only['by']) == ('static', 'autellix', 0.125)


def test_the_papers_table_gives_its_headline():
    averages = [ways[0][1] for rows in TABLE.values() for ways in rows.values()]
    assert (min(averages), max(averages)) == (31.8, 66.5)


def test_a_recorded_trace_is_a_subject(tmp_path):
    path = tmp_path / 'a.jsonl'
    with Recorder(path, 0.1) as recorder:
        for i in range(3):
            recorder.add(Round('a', i, 10, 20, 0.1, 0, i + 0.5, i + 1.0, 5))
    subject = Subject.recorded(str(path), Profile('e', (1,), (0.1,), 20), COMMON)
    static, dynamic = subject.jobs(4, 1)
    assert static == dynamic and len(static) == 4 and static[0].horizons == (5, 5, 5)
