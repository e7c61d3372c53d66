"""Duplicate, late and replaced rounds are answered at most once."""

import pytest
from fleet_cases import answers, dispatcher, ran, request

from embodied_kv.fleet.protocol import Answer, Verdict


def serve(server, now):
    """Dispatch one batch and answer it; return the answers that count."""
    (dispatch,) = server.decide(now)
    return server.done('one', dispatch.number, answers(dispatch), now + 1)


def phase(server):
    task = server.rounds.robots['r'].task
    return 'dispatched' if task.is_dispatched else 'answered' if task.answer else 'submitted'


def test_a_round_goes_through_its_phases():
    server = dispatcher()
    assert server.submit(request(), 0.0).verdict is Verdict.QUEUED
    assert phase(server) == 'submitted'
    (dispatch,) = server.decide(0.0)
    assert phase(server) == 'dispatched'
    (answer,) = server.done('one', dispatch.number, answers(dispatch), 1.0)
    assert (answer.robot, answer.task, answer.round) == ('r', 't', 0)
    assert phase(server) == 'answered'
    server.submit(request(round=1, execution=ran(0, 1.0, 2.0)), 1.5)
    assert phase(server) == 'submitted'
    assert server.rounds.robots['r'].task.wait.execution == 1.0


def test_a_repetition_while_it_waits_or_is_served_changes_nothing():
    server = dispatcher()
    server.submit(request(), 0.0)
    assert server.submit(request(), 0.1).verdict is Verdict.DUPLICATE
    (dispatch,) = server.decide(0.2)
    assert len(dispatch.batch) == 1
    assert server.submit(request(), 0.3).verdict is Verdict.DUPLICATE
    assert server.decide(0.3) == []
    assert len(server.done('one', dispatch.number, answers(dispatch), 1.0)) == 1
    assert server.decide(1.0) == []


def test_repeated_request_after_the_answer_gets_the_same_answer():
    server = dispatcher()
    server.submit(request(), 0.0)
    (answer,) = serve(server, 0.0)
    receipt = server.submit(request(), 2.0)
    assert receipt.verdict is Verdict.ANSWERED and receipt.answer is answer
    assert server.decide(2.0) == []


def test_an_older_round_is_late():
    server = dispatcher()
    server.submit(request(round=1), 0.0)
    assert server.submit(request(round=0), 0.1).verdict is Verdict.LATE
    (dispatch,) = server.decide(0.2)
    assert [r.round for r in dispatch.batch] == [1]


def test_late_round_still_reports_its_execution():
    server = dispatcher()
    server.submit(request(round=2), 0.0)
    server.submit(request(round=1, execution=ran(0, 0.0, 3.0)), 0.1)
    assert server.rounds.robots['r'].task.wait.execution == 3.0


def test_a_newer_round_takes_the_place_of_a_waiting_one():
    server = dispatcher()
    server.submit(request(round=0), 0.0)
    server.submit(request(round=1), 0.1)
    (dispatch,) = server.decide(0.2)
    assert [r.round for r in dispatch.batch] == [1]


def test_answer_to_a_replaced_round_is_dropped():
    server = dispatcher()
    server.submit(request(round=0), 0.0)
    (dispatch,) = server.decide(0.0)
    server.submit(request(round=1), 0.5)
    assert server.done('one', dispatch.number, answers(dispatch), 1.0) == []
    assert len(serve(server, 1.0)) == 1


def test_a_restarted_robot_begins_a_task_of_its_own():
    server = dispatcher()
    server.submit(request(round=5), 0.0)
    (dispatch,) = server.decide(0.0)
    assert server.submit(request(task='after'), 0.5).verdict is Verdict.QUEUED
    assert server.done('one', dispatch.number, answers(dispatch), 1.0) == []
    assert server.submit(request(round=6), 1.0).verdict is Verdict.LATE  # of the task before
    (answer,) = serve(server, 1.0)
    assert answer.task == 'after'


def test_a_finished_task_is_over():
    server = dispatcher()
    server.submit(request(), 0.0)
    server.finish('r', 'another')
    assert server.queue
    server.finish('r', 't')
    assert not server.queue and server.decide(0.0) == []
    assert server.submit(request(round=1), 1.0).verdict is Verdict.LATE


def test_an_answer_that_names_another_round_is_refused():
    server = dispatcher()
    server.submit(request(), 0.0)
    (dispatch,) = server.decide(0.0)
    with pytest.raises(ValueError, match=r"must match .* \(got \[\('r', 't', 1\)\]"):
        server.done('one', dispatch.number, [Answer('r', 't', 1, 5)], 1.0)
    assert len(serve(server, 2.0)) == 1
