"""The fleet benchmark computes its figures correctly and runs each experiment."""

import math
import statistics
from contextlib import closing
from dataclasses import replace

import pytest
from fleet_cases import job

from benchmarks.fleet import __main__ as fleet
from benchmarks.fleet import measure
from benchmarks.fleet.__main__ import show
from benchmarks.fleet.compare import aims, gate, saved, table, verdict, worse
from benchmarks.fleet.paper import SYSTEMS, TABLE
from benchmarks.fleet.runs import HIGHEST, PENDING, POLICIES, Bench, Plan
from benchmarks.fleet.subject import Subject
from benchmarks.fleet.workload import read
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.trace import Round, TraceWriter

COMMON, WORKLOADS = read()
PLAN = Plan(
    tasks=20, span=1.0, seeds=(1, 2), few=(1,), shares=(0.5, HIGHEST), robots=(5, 20), halvings=5,
    overload=(1.5,), micro=('LIBERO/Pi0.5',), buckets=(2, 10), aging=(5,), latencies=(0.1,),
    bandwidths=(1e8,),
)  # fmt: skip
SUBJECT = Subject.of(WORKLOADS[7], COMMON)


def test_every_experiment_runs_and_every_simulation_is_counted():
    found = measure.measure([SUBJECT], PLAN, quiet=True)
    assert {row['workload'] for key in ('online', 'fleets', 'places') for row in found[key]} == {
        SUBJECT.name
    }
    show(found)  # this workload has no small sweeps
    show(found | dict(settings=found['online'], networks=found['online']))


def test_the_peak_is_where_fifo_takes_three_times_as_long():
    bench = Bench(replace(PLAN, tasks=60), lambda: None)
    found = bench.peak(SUBJECT)
    assert found['reached']
    at_peak = bench.mean(SUBJECT, POLICIES['fifo'], 'static', found['peak'])['average']
    assert at_peak == pytest.approx(3 * found['unloaded'], rel=0.35)
    below = bench.mean(SUBJECT, POLICIES['fifo'], 'static', 0.5 * found['peak'])['average']
    assert below < at_peak


@pytest.mark.parametrize('calibrated', [True, False])
def test_the_count_of_simulations_is_right(calibrated):
    subject, ticks = SUBJECT if calibrated else replace(SUBJECT, calibrated={}), []
    bench = Bench(PLAN, lambda: ticks.append(1))
    peak = subject.calibrated.get('peak') or bench.peak(subject)['peak']
    bench.online(subject, peak)
    bench.short(subject, peak)
    bench.fleets(subject)
    bench.places(subject, peak)
    assert len(ticks) == measure._simulations([subject], PLAN)


def test_a_fast_engine_has_as_many_seconds_of_work():
    jobs = []
    subject = replace(SUBJECT, jobs=lambda n, seed: jobs.append(n) or SUBJECT.jobs(n, seed))
    Bench(replace(PLAN, tasks=1, span=100.0), lambda: None).mean(
        subject, POLICIES['fifo'], 'static', 1.0
    )
    assert set(jobs) == {round(100 * subject.capacity)}


def test_short_tasks_are_reported():
    (found,) = Bench(PLAN, lambda: None).short(SUBJECT, 1.0)
    assert 0 < found['share'] < 1 and found.keys() == {'workload', 'share', *POLICIES}
    long = replace(SUBJECT, jobs=lambda n, seed: ([job(0.5, 3)] * n,) * 2)
    assert Bench(PLAN, lambda: None).short(long, 1.0) == []


def seeds(*averages):
    return dict(seeds=[dict(p25=a / 2, average=a, p95=2 * a) for a in averages])


def test_saved_is_in_percent_of_the_other_seed_by_seed():
    found = saved(seeds(5.0, 16.0), seeds(10.0, 20.0))  # 50 and 20%
    assert found['average']['saved'] == pytest.approx(35) == found['p25']['saved']
    assert found['average']['high'] == pytest.approx(35 + 12.71 * 15, abs=0.1)
    assert saved(seeds(5.0), seeds(4.0))['p95'] == dict(saved=-25.0, low=-math.inf, high=math.inf)


def row(scheduler, horizon, average, share=HIGHEST):
    place = dict(workload='LIBERO/Pi0.5', share=share, horizon=horizon, scheduler=scheduler)
    return place | dict(average=average) | seeds(average, average)


ONLINE = [
    row('fifo', 'static', 10.0), row('autellix', 'static', 8.0), row('kairos', 'static', 9.0),
    row('fifo', 'dynamic', 5.0), row('autellix', 'dynamic', 6.0), row('kairos', 'dynamic', 4.0),
    row(PENDING, 'static', 7.0),
]  # fmt: skip


def test_the_table_sets_ours_beside_the_papers():
    against = {line['against']: line for line in table(ONLINE)}
    averages = {
        key: [line[s]['average']['saved'] for s in (*SYSTEMS, PENDING)]
        for key, line in against.items()
    }
    assert averages['fifo'] == pytest.approx([60, 10, 50, 30])
    assert averages['autellix'] == pytest.approx([50, -12.5, 25, 12.5])
    assert against['fifo']['kairos, paper'] == dict(p25=76.4, average=65.6, p95=51.9)


def test_workloads_where_kairos_is_worse_are_reported():
    found = worse(ONLINE)
    assert [row['figure'] for row in found] == ['p25', 'average', 'p95']
    for row in found:
        assert (row['horizon'], row['than'], row['scheduler']) == ('static', 'autellix', 'kairos')
        assert row['saved'] == pytest.approx(-12.5) and row['sure']


def test_a_figure_that_is_worse_is_told_though_the_average_is_not():
    early = row('kairos', 'static', 9.0)
    early['seeds'] = [each | dict(p25=6.0) for each in early['seeds']]
    others = [r for r in ONLINE if (r['scheduler'], r['horizon']) != ('kairos', 'static')]
    than = {r['than']: r['figure'] for r in worse([early, *others]) if r['figure'] == 'p25'}
    assert than == dict(fifo='p25', autellix='p25')
    mine = aims([early, *others], {})[0]
    assert mine['scheduler'] == 'kairos' and not mine['p25 never worse']


@pytest.mark.parametrize(
    ('low', 'high', 'said'), [(8, 12, 'reached'), (7.9, 12, 'undecided'), (5, 7.9, 'missed')]
)
def test_an_aim_is_reached_where_its_whole_interval_is(low, high, said):
    assert verdict(dict(saved=(low + high) / 2, low=low, high=high), 8) == said


def test_more_seeds_than_the_intervals_know_are_refused():
    assert saved(seeds(*[5.0] * 10), seeds(*[10.0] * 10))['p25']['low'] == 50
    with pytest.raises(ValueError, match='11 seeds: the intervals are of at most 10'):
        saved(seeds(*[5.0] * 11), seeds(*[10.0] * 11))


def test_the_highest_rate_is_told_beside_the_capacity():
    found = Bench(PLAN, lambda: None).load(SUBJECT, 2 * SUBJECT.capacity)
    assert found['over'] == pytest.approx(2 * HIGHEST) and found['tasks'] == 20
    assert found['work'] / found['arrive'] == pytest.approx(found['over'])
    assert found['rate'] * found['arrive'] == pytest.approx(found['tasks'])


def test_aims_are_reached_or_missed_by_workload_and_reading():
    plain, pending = aims(ONLINE, {'LIBERO/Pi0.5': True})
    assert (plain['average aim'], plain['p25 aim']) == ('reached', 'missed')
    assert not plain['average never worse'] and not plain['p25 never worse']
    assert (pending['average aim'], pending['p25 aim']) == ('reached', 'reached')
    assert pending['average never worse'] and pending['scheduler'] == PENDING


def test_the_baselines_stand_to_each_other_by_rate():
    assert gate(ONLINE) == [{'workload': 'LIBERO/Pi0.5', f'{HIGHEST:g}': 0.8}]


def test_the_papers_table_gives_its_headline():
    averages = [ways[0][1] for rows in TABLE.values() for ways in rows.values()]
    assert (min(averages), max(averages)) == (31.8, 66.5)


def test_another_variation_of_rounds_is_at_the_same_rates_and_not_known_to_be_valid(monkeypatch):
    seen = []
    monkeypatch.setattr(fleet, 'measure', lambda subjects, *_: seen.extend(subjects) or {})
    monkeypatch.setattr(fleet.plots, 'plot', lambda found: None)
    fleet.main('--workloads LIBERO/Pi0.5 --cv 0.1 --json'.split())
    (only,) = seen
    (given,) = (each for each in WORKLOADS if each.name == only.name)
    assert only.calibrated == dict(cv=0.1, peak=given.peak, valid=None)
    lengths = [len(made.horizons) for made in only.jobs(200, 1)[0]]
    assert statistics.pstdev(lengths) / statistics.fmean(lengths) < 0.15 < given.cv


@pytest.mark.parametrize('cv', ['0', '-1', 'nan', '3'])
def test_a_variation_that_is_none_is_refused(cv, capsys):
    with pytest.raises(SystemExit):
        fleet.main(['--cv', cv])
    assert '--cv is from 0.05 to 2' in capsys.readouterr().err


def test_a_recorded_trace_is_a_subject(tmp_path):
    path = tmp_path / 'a.jsonl'
    with closing(TraceWriter(path, 0.1)) as recorder:
        for i in range(3):
            recorder.add(Round('a', i, 10, 20, 0.1, 0, i + 0.5, i + 1.0, 5))
    subject = Subject.recorded(str(path), Profile('e', (1,), (0.1,), 20), COMMON)
    static, dynamic = subject.jobs(4, 1)
    assert static == dynamic and len(static) == 4 and static[0].horizons == (5, 5, 5)
