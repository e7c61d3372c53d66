"""The work of a failed or stalled engine is reassigned, and no answer counts twice."""

import pytest
from fleet_cases import ONE, TWO, answers, dispatcher, job, request

from benchmarks.fleet.simulate import Simulation
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.protocol import Verdict
from embodied_kv.fleet.schedulers import Kairos


def pair():
    return dispatcher(EngineState('one', ONE), EngineState('two', TWO))


def test_the_work_of_a_dead_engine_goes_to_another():
    server = pair()
    server.submit(request('a'), 0.0)
    (dispatch,) = server.decide(0.0)
    assert dispatch.engine == 'one'
    server.lost('one')
    (again,) = server.decide(0.1)
    assert again.engine == 'two' and again.batch == dispatch.batch
    assert len(server.done('two', again.number, answers(again), 1.0)) == 1


def test_failed_engine_gets_no_batch_until_restored():
    server = dispatcher()
    server.lost('one')
    server.submit(request(), 0.0)
    assert server.decide(0.0) == []
    server.restored('one')
    assert len(server.decide(0.0)) == 1


def test_stalled_engine_is_detected_and_its_late_answer_dropped():
    server = pair()
    server.submit(request('a'), 0.0)
    (dispatch,) = server.decide(0.0)
    assert server.check(4.0) == []
    assert server.wake(4.0) == dispatch.overdue == 4.5  # 4 x 1 s + 0.5 s
    assert server.check(4.5) == ['one']
    (again,) = server.decide(4.5)
    assert again.engine == 'two'
    assert len(server.done('two', again.number, answers(again, 'second'), 5.5)) == 1
    assert server.done('one', dispatch.number, answers(dispatch, 'late'), 6.0) == []
    receipt = server.submit(request('a'), 7.0)
    assert receipt.verdict is Verdict.ANSWERED and receipt.answer.chunk == 'second'
    assert server.engines['one'].alive  # its answer shows that it works


def test_a_late_answer_that_is_the_first_counts_and_the_second_does_not():
    server = pair()
    server.submit(request('a'), 0.0)
    (dispatch,) = server.decide(0.0)
    server.lost('one')
    (again,) = server.decide(0.1)
    assert len(server.done('one', dispatch.number, answers(dispatch, 'first'), 0.5)) == 1
    assert server.done('two', again.number, answers(again, 'second'), 1.0) == []


def test_late_answer_removes_the_waiting_round():
    server = dispatcher()
    server.submit(request(), 0.0)
    (dispatch,) = server.decide(0.0)
    server.lost('one')
    assert server.queue
    assert len(server.done('one', dispatch.number, answers(dispatch), 1.0)) == 1
    assert not server.queue and server.decide(1.0) == []
    assert server.done('one', dispatch.number, answers(dispatch), 1.1) == []


def test_answer_with_another_number_is_dropped():
    server = pair()
    server.submit(request('a'), 0.0)
    (dispatch,) = server.decide(0.0)
    assert server.done('two', dispatch.number, answers(dispatch), 0.5) == []
    assert len(server.done('one', dispatch.number, answers(dispatch), 1.0)) == 1


def test_too_few_answers_are_refused_and_the_work_waits_again():
    server = dispatcher()
    server.submit(request(), 0.0)
    (dispatch,) = server.decide(0.0)
    with pytest.raises(ValueError, match=r"must match its batch \[\('r', 't', 0\)\] \(got \[\]"):
        server.done('one', dispatch.number, [], 1.0)
    assert list(server.queue) == ['r']


def test_a_cloud_link_that_stalls_gives_its_work_to_the_edge():
    cloud = EngineState('cloud', ONE.faster(100, 'cloud'), Link(0.01, 1e9, 1e9))
    server = dispatcher(EngineState('one', ONE), cloud)
    for robot in 'ab':
        server.submit(request(robot), 0.0)
    edge, away = server.decide(0.0)
    assert (edge.engine, away.engine) == ('one', 'cloud')
    server.done('one', edge.number, answers(edge), 1.0)
    assert server.check(1.0) == ['cloud']
    (again,) = server.decide(1.0)
    assert again.engine == 'one' and again.batch == away.batch


@pytest.mark.parametrize('moment', [0.5, 3.3, 7.0])
def test_fleet_finishes_after_an_engine_failure(moment):
    jobs = [job(1.0, 4) for _ in range(6)]
    engines = [EngineState('one', ONE), EngineState('two', TWO)]
    found = Simulation(jobs, Kairos(), engines, deaths={'one': moment}).fleet(6)
    assert (found.latency > 0).all()
    assert found.rounds <= 6 * 4 + 1  # one round is lost with its engine
